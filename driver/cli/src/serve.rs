//! `vdk serve`: an emulated device on a vfio-user socket.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use vdk_driver::iommu::soft::SoftIommu;
use vdk_firmware_stubs::serve::{Server, ServerOptions, iommu_options};
use vdk_firmware_stubs::{NamespaceOptions, StubKind, StubOptions};

use crate::arguments::ServeArguments;
use crate::device;
use crate::output;
use crate::signal::StopRequest;

/// What is said when clients can connect.
#[derive(Debug, Serialize)]
struct Serving {
    device: String,
    socket: String,
    process: u32,
}

/// Runs the command.
pub(crate) fn run(arguments: &ServeArguments, json: bool) -> Result<()> {
    let stop = StopRequest::listen()?;
    let kind = arguments.stub;
    let mut options = StubOptions {
        seed: arguments.seed,
        iommu: Some(SoftIommu::new(iommu_options())),
        ..StubOptions::default()
    };
    if let Some(plan) = &arguments.fault {
        options.fault_plan = plan.clone();
    }
    if !arguments.disk.is_empty() {
        ensure!(kind == StubKind::Nvme, "stub:{kind} has no disk: only stub:nvme takes --disk");
        let whole =
            |file: &PathBuf| NamespaceOptions { bytes: 0, file: Some(file.clone()), ..Default::default() };
        options.namespaces = arguments.disk.iter().map(whole).collect();
    }
    let node = device::stub(kind, options)?;
    let options = ServerOptions { mapped_doorbells: !arguments.trapped };
    let server = Server::bind(node.clone(), &arguments.socket, options)?;
    let serving = Serving {
        device: format!("stub:{kind}"),
        socket: arguments.socket.display().to_string(),
        process: std::process::id(),
    };
    let running = server.spawn().context("cannot serve")?;
    if json {
        output::print_json(&serving)?;
    } else {
        output::print(&format!("serving {} on {}; Ctrl-C ends it\n", serving.device, serving.socket))?;
    }
    while !stop.is_set() {
        std::thread::sleep(LOOK);
    }
    let clients = running.server().clients();
    drop(running);
    log::info!("{clients} clients were served: {:?}", node.statistics());
    for fault in node.driver_faults() {
        log::info!("a driver did wrong: {fault}");
    }
    Ok(())
}

/// How often it looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
