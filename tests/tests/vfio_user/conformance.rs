//! The conformance suite through a socket, on every emulated device.

use std::sync::{Mutex, PoisonError};

use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_tests::conformance::Target;

use crate::harness::serve;

/// One test at a time: the suite counts the files that the process has open.
pub(crate) static ALONE: Mutex<()> = Mutex::new(());

fn conforms(kind: StubKind, options: StubOptions) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = serve(kind, options);
    let failures = Target::new(served.client.clone()).failures();
    assert!(failures.is_empty(), "vfio-user {kind}:\n  {}", failures.join("\n  "));
    assert_eq!(served.node.iommu().faults(), [], "the suite made no device access memory");
}

#[test]
fn every_device_conforms_over_a_socket() {
    for kind in StubKind::ALL {
        conforms(kind, StubOptions::default());
    }
}

#[test]
fn ioat_with_fixed_vectors_conforms_over_a_socket() {
    let options = StubOptions {
        mapped_doorbells: false,
        fixed_vectors: true,
        no_soft_reset: true,
        channels: 4,
        ..StubOptions::default()
    };
    conforms(StubKind::Ioat, options);
}
