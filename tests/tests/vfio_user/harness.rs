//! What the tests share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vdk_firmware_stubs::serve::{RunningServer, Server, ServerOptions, iommu_options};
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::function::PciNode;
use vdk_hal::vfio_user::VfioUserNode;
use vdk_iommu::soft::SoftIommu;

/// A device on a socket, and the way to it.
pub(crate) struct Served {
    pub(crate) node: Arc<StubNode>,
    pub(crate) client: Arc<dyn PciNode>,
    pub(crate) path: PathBuf,
    _server: RunningServer,
}

pub(crate) fn socket_path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("vdk-user-{}-{number}.sock", std::process::id()))
}

pub(crate) fn serve(kind: StubKind, options: StubOptions) -> Served {
    let options = StubOptions { iommu: Some(SoftIommu::new(iommu_options())), ..options };
    let node = StubNode::new(kind, options).expect("the options are valid");
    let path = socket_path();
    let server = Server::bind(Arc::clone(&node), &path, ServerOptions::default()).expect("a socket");
    let server = server.spawn().expect("a thread");
    Served { node, client: Arc::new(VfioUserNode::new(&path)), path, _server: server }
}
