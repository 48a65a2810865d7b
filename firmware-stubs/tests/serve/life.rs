//! Clients come and go.

use std::sync::Arc;

use vdk_firmware_stubs::serve::{ServeError, Server, ServerOptions};
use vdk_firmware_stubs::{SocketError, StubKind, StubNode, StubOptions};
use vdk_hal::function::PciNode;
use vdk_hal::interrupt::EventFd;
use vdk_hal::vfio_user::message::{DmaMap, InterruptSet};

use crate::harness::*;

#[test]
fn a_client_that_dies_in_the_middle_of_a_transfer_leaves_a_device_for_the_next() {
    let slow = StubOptions { transfer_time: std::time::Duration::from_secs(1), ..options() };
    let served = serve_node(StubNode::new(StubKind::Edu, slow).unwrap());
    let memory = pages(1);
    let event = EventFd::new().unwrap();
    let client = served.client();
    client.enable();
    client.map(0x1000, &memory, DmaMap::READ | DmaMap::WRITE).unwrap();
    let flags = InterruptSet::DATA_EVENT_FILE | InterruptSet::ACTION_TRIGGER;
    client.set_interrupts((1, 0, 1), flags, &[], &[&event]).unwrap();
    client.write(0, 0x80, &EDU_BUFFER.to_le_bytes()).unwrap();
    client.write(0, 0x88, &0x1000u64.to_le_bytes()).unwrap();
    client.write(0, 0x90, &64u64.to_le_bytes()).unwrap();
    memory.write(0, &[9; 64]).unwrap();
    client.write32(0x98, 0b111);
    drop(client);

    let next = served.client();
    assert_eq!(next.config32(4) & 0x6, 0, "decoding and bus mastering are off");
    next.enable();
    assert_eq!(next.read32(0x98) & 1, 0, "the transfer has ended");
    let after = [memory.read_value::<u64>(0).unwrap(), memory.read_value::<u64>(56).unwrap()];
    served.node.iommu().clear_faults();
    next.edu_transfer(0x1000, 16, true);
    assert_eq!(served.node.iommu().fault_count(), 1, "the mappings of the first are gone");
    assert_eq!([memory.read_value::<u64>(0).unwrap(), memory.read_value::<u64>(56).unwrap()], after);
    assert_eq!(event.take(), 0, "nobody signals the first client any more");
}

#[test]
fn clients_in_turn_find_the_device_free_as_soon_as_the_one_before_is_gone() {
    let served = serve(StubKind::Ioat);
    for round in 0..30u64 {
        let client = served.client();
        client.enable();
        let memory = pages(1);
        client.map(0x1000 * (round + 1), &memory, DmaMap::READ).unwrap();
    }
    assert_eq!(served.server.server().clients(), 30);
}

#[test]
fn a_removed_function_ends_the_session_and_is_not_there_for_the_next() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    served.node.remove();
    wait_until("the end of the session", || client.call_is_over());
    assert_eq!(served.connect().negotiate().err(), Some(ENODEV));
}

#[test]
fn a_server_that_is_stopped_ends_its_session_and_removes_its_socket() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let Served { node, path, server } = served;
    drop(server);
    assert!(client.receive().is_err());
    assert!(!path.exists());
    drop(node.open().expect("the device is free"));
}

#[test]
fn a_socket_in_use_and_other_files_are_not_replaced_and_a_stale_socket_is() {
    let served = serve(StubKind::Edu);
    let node = StubNode::new(StubKind::Edu, options()).unwrap();
    let again = Server::bind(Arc::clone(&node), &served.path, ServerOptions::default());
    assert!(matches!(again, Err(ServeError::Socket(SocketError::InUse { .. }))), "{again:?}");
    let path = socket_path();
    std::fs::write(&path, b"precious").unwrap();
    let over = Server::bind(Arc::clone(&node), &path, ServerOptions::default());
    assert!(matches!(over, Err(ServeError::Socket(SocketError::NotASocket { .. }))), "{over:?}");
    std::fs::remove_file(&path).unwrap();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(Server::bind(node, &path, ServerOptions::default()).unwrap());
    assert!(!path.exists());
}

#[test]
fn a_server_that_ends_leaves_the_socket_of_its_successor_alone() {
    let first = serve(StubKind::Edu);
    std::fs::remove_file(&first.path).unwrap();
    let node = StubNode::new(StubKind::Edu, options()).unwrap();
    let second = Server::bind(node, &first.path, ServerOptions::default()).unwrap();
    let path = first.path.clone();
    drop(first);
    assert!(path.exists());
    drop(second);
    assert!(!path.exists());
}

#[test]
fn a_device_that_is_open_in_this_process_is_busy() {
    let served = serve(StubKind::Edu);
    let function = served.node.open().unwrap();
    assert_eq!(served.connect().negotiate().err(), Some(EBUSY));
    drop(function);
    served.client().enable();
}
