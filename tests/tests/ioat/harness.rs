//! What the tests share.

use core::time::Duration;
use std::sync::Arc;

use vdk_descriptors::sg::CopySegment;
use vdk_driver::ioat::{Channel, ChannelOptions, Completion, CompletionMode, Ioat, OperationError};
use vdk_driver::kit::Session;
use vdk_firmware_stubs::{FaultPlan, StubKind, StubNode, StubOptions};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::function::PciNode;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, Direction, DmaRegion};

/// Long enough for a machine that is busy with something else.
pub(crate) const LONG: Duration = Duration::from_secs(120);
pub(crate) const SHORT: Duration = Duration::from_millis(500);

pub(crate) fn stub(options: StubOptions) -> Arc<StubNode> {
    StubNode::new(StubKind::Ioat, options).unwrap()
}

pub(crate) fn start(node: &Arc<StubNode>) -> Ioat {
    let node: Arc<dyn PciNode> = node.clone();
    Ioat::start(Session::open(&node, "test").unwrap()).unwrap()
}

/// A table no longer than the depth demands, so that it wraps.
pub(crate) fn options(depth: u32) -> ChannelOptions {
    ChannelOptions { depth, slots: Some(0), ..ChannelOptions::default() }
}

pub(crate) fn plan(text: &str) -> FaultPlan {
    text.parse().unwrap()
}

pub(crate) fn region<D: Direction>(ioat: &Ioat, bytes: u64) -> DmaRegion<D> {
    ioat.domain().map(SharedMemory::allocate(ByteLength::new(bytes), Pages::Base).unwrap()).unwrap()
}

pub(crate) fn region_at<D: Direction>(ioat: &Ioat, iova: u64, bytes: u64) -> DmaRegion<D> {
    let memory = SharedMemory::allocate(ByteLength::new(bytes), Pages::Base).unwrap();
    ioat.domain().map_at(Iova::new(iova), memory).unwrap()
}

pub(crate) fn segment<S: Direction, D: Direction>(
    from: (&DmaRegion<S>, usize),
    to: (&DmaRegion<D>, usize),
    length: usize,
) -> CopySegment {
    CopySegment {
        source: from.0.segment(from.1, length).unwrap().iova,
        destination: to.0.segment(to.1, length).unwrap().iova,
        length: u32::try_from(length).unwrap(),
    }
}

/// Commits and polls until nothing is outstanding.
pub(crate) fn drain<T>(channel: &mut Channel<T>, mode: CompletionMode) -> Vec<Completion<T>> {
    let mut ends = Vec::new();
    channel.commit().unwrap();
    while channel.outstanding() > 0 {
        channel.wait(mode, LONG).unwrap();
        channel.poll(usize::MAX, |end| ends.push(end)).unwrap();
    }
    ends
}

pub(crate) fn recover<T>(channel: &mut Channel<T>) -> Vec<(T, Result<(), OperationError>)> {
    let mut ends = Vec::new();
    channel.recover(|end| ends.push((end.owner, end.result))).unwrap();
    ends
}

/// Copies eight bytes with a fresh value and looks at them.
pub(crate) fn assert_usable(channel: &mut Channel<u32>, memory: &DmaRegion<Bidirectional>, value: u64) {
    memory.write(0, &value.to_le_bytes()).unwrap();
    memory.write(2048, &[0; 8]).unwrap();
    channel.copy(&[segment((memory, 0), (memory, 2048), 8)], u32::MAX).unwrap();
    let ends = drain(channel, CompletionMode::Adaptive);
    assert_eq!(ends.iter().map(|end| (end.owner, end.result)).collect::<Vec<_>>(), [(u32::MAX, Ok(()))]);
    let mut bytes = [0; 8];
    memory.read(2048, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), value);
}

/// A small generator of numbers that a seed repeats.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }
}
