//! Errors with a cause: whoever prints the chain prints each text once.

use core::error::Error;
use core::time::Duration;
use std::io;
use std::sync::Arc;

use vdk_descriptors::nvme::AdminOpcode;
use vdk_driver::block::{BlockError, BlockFailure, BlockOperation, RefuseReason};
use vdk_driver::kit::{Failure, SessionError, StartError};
use vdk_driver::{ioat, nvme};
use vdk_hal::address::{BarIndex, ByteLength, Iova, IovaRange};
use vdk_hal::bar::BarError;
use vdk_hal::dma::{MapError, UnmapError};
use vdk_hal::memory::{MemoryError, Pages};
use vdk_hal::poll::TimedOut;
use vdk_iommu::DomainError;

fn late() -> TimedOut {
    TimedOut { what: "its completion", allowed: Duration::from_millis(3) }
}

fn gone() -> BarError {
    BarError::DeviceGone { bar: BarIndex::new(0).unwrap() }
}

fn refused() -> io::Error {
    io::Error::other("the system says no")
}

fn range() -> IovaRange {
    IovaRange::new(Iova::new(0x1000), ByteLength::SIZE_4K).unwrap()
}

/// The texts of a chain, the outermost first.
fn texts(error: &dyn Error) -> Vec<String> {
    let (mut texts, mut next) = (Vec::new(), Some(error));
    while let Some(error) = next {
        texts.push(error.to_string());
        next = error.source();
    }
    texts
}

#[track_caller]
fn assert_said_once(error: &dyn Error, cause: &str) {
    let texts = texts(error);
    let times: usize = texts.iter().map(|text| text.matches(cause).count()).sum();
    assert_eq!(times, 1, "{cause:?} in {texts:?}");
}

#[test]
fn causes_in_the_hardware_layer_are_said_once() {
    let length = ByteLength::SIZE_4K;
    let no = refused().to_string();
    let hint = String::new();
    assert_said_once(&MemoryError::Allocate { length, pages: Pages::Base, error: refused(), hint }, &no);
    assert_said_once(&MemoryError::MapFile { offset: 0, length, error: refused() }, &no);
    assert_said_once(&UnmapError::DeviceBusy { range: range(), error: late() }, &late().to_string());
}

#[test]
fn causes_in_the_address_space_are_said_once() {
    let source = MapError::System { range: range(), error: io::ErrorKind::OutOfMemory };
    let cause = source.to_string();
    assert_said_once(&DomainError::from(source.clone()), &cause);
    assert_said_once(&DomainError::LockedBar { source }, &cause);
}

#[test]
fn causes_in_the_kit_are_said_once() {
    let closed = SessionError::NotOpen { function: "0000:01:00.0".to_owned() };
    let cause = closed.to_string();
    assert_said_once(&Failure::Open(closed.clone()), &cause);
    assert_said_once(&Failure::Start(Arc::new(StartError::Session(closed.clone()))), &cause);
    assert_said_once(&StartError::other(closed), &cause);
}

#[test]
fn causes_in_the_engine_are_said_once() {
    let (late_text, gone_text) = (late().to_string(), gone().to_string());
    let channel = 3;
    let stop = ioat::StopError::from(late());
    assert_said_once(&ioat::StartError::Reset { channel, error: stop.clone() }, &late_text);
    let errors = [
        ioat::ChannelError::TimedOut { channel, error: late() },
        ioat::ChannelError::NotStopped { channel, error: stop },
    ];
    for error in errors {
        assert_said_once(&error, &late_text);
        assert_said_once(&ioat::WaitError::from(error.clone()), &late_text);
        assert_said_once(&ioat::RejectReason::from(error), &late_text);
    }
    assert_said_once(&ioat::ChannelError::Register { channel, error: gone() }, &gone_text);
}

#[test]
fn causes_in_the_controller_are_said_once() {
    let (late_text, gone_text) = (late().to_string(), gone().to_string());
    let (command, queue) = (AdminOpcode::IDENTIFY, 1);
    let enable = nvme::EnableError::from(late());
    let stop = nvme::StopError::from(enable.clone());
    let admin = nvme::AdminError::TimedOut { command, error: late() };
    assert_said_once(&enable, &late_text);
    assert_said_once(&nvme::ResetError::NotStopped(stop), &late_text);
    let start = nvme::StartError::from(admin.clone());
    assert_said_once(&nvme::ResetError::NotStarted(Box::new(start)), &late_text);
    assert_said_once(&admin, &late_text);
    assert_said_once(&nvme::RecoverError::from(admin), &late_text);
    assert_said_once(&nvme::AdminError::Register { command, error: gone() }, &gone_text);
    let register = nvme::QueueError::Register { queue, error: gone() };
    assert_said_once(&register, &gone_text);
    assert_said_once(&nvme::RejectReason::from(register.clone()), &gone_text);
    assert_said_once(&BlockError::Lost(register.clone().into()), &gone_text);
    let failed = BlockError::Failed(register.clone().into());
    assert_said_once(&failed, &gone_text);
    assert_said_once(&RefuseReason::from(failed), &gone_text);
    let operation = BlockOperation::Read;
    assert_said_once(&BlockFailure { operation, lba: 0, blocks: 1, error: register.into() }, &gone_text);
}
