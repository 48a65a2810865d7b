//! What the tests share.

use core::time::Duration;
use std::sync::Arc;

use vdk_descriptors::sg::SgEntry;
use vdk_driver::kit::Session;
use vdk_driver::nvme::{
    CommandError, Completion, CompletionMode, Controller, ControllerOptions, Namespace, QueueError,
    QueueOptions, QueuePair, WaitError,
};
use vdk_firmware_stubs::{FaultPlan, StubKind, StubNode, StubOptions};
use vdk_hal::address::ByteLength;
use vdk_hal::function::PciNode;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, DmaRegion};

/// Long enough for a machine that is busy with something else.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) type Ended = (u32, Result<u32, CommandError>);

pub(crate) fn stub(options: StubOptions) -> Arc<StubNode> {
    StubNode::new(StubKind::Nvme, options).unwrap()
}

pub(crate) fn start(node: &Arc<StubNode>) -> Controller {
    start_with(node, ControllerOptions { admin_limit: LONG, ..ControllerOptions::default() })
}

pub(crate) fn start_with(node: &Arc<StubNode>, options: ControllerOptions) -> Controller {
    let node: Arc<dyn PciNode> = node.clone();
    Controller::start(Session::open(&node, "test").unwrap(), options).unwrap()
}

pub(crate) fn plan(text: &str) -> FaultPlan {
    text.parse().unwrap()
}

pub(crate) fn region(controller: &Controller, bytes: u64) -> DmaRegion<Bidirectional> {
    let memory = SharedMemory::allocate(ByteLength::new(bytes), Pages::Base).unwrap();
    controller.domain().map(memory).unwrap()
}

pub(crate) fn part(region: &DmaRegion<Bidirectional>, offset: usize, length: usize) -> SgEntry {
    let part = region.segment(offset, length).unwrap();
    SgEntry { iova: part.iova, length: part.length }
}

/// A controller with a namespace, a queue pair and memory.
pub(crate) struct Bed {
    // In the order in which they are to be dropped: the queue first.
    pub(crate) pair: QueuePair<u32>,
    pub(crate) memory: DmaRegion<Bidirectional>,
    pub(crate) namespace: Namespace,
    pub(crate) controller: Controller,
    pub(crate) node: Arc<StubNode>,
}

impl Bed {
    pub(crate) fn new(time_limit: Duration) -> Self {
        Self::on(stub(StubOptions::default()), time_limit)
    }

    pub(crate) fn on(node: Arc<StubNode>, time_limit: Duration) -> Self {
        let controller = start(&node);
        Self::started(node, controller, time_limit)
    }

    pub(crate) fn started(node: Arc<StubNode>, controller: Controller, time_limit: Duration) -> Self {
        let options = QueueOptions { depth: 16, time_limit, ..QueueOptions::default() };
        let pair = controller.queue_pair(options).unwrap();
        let memory = region(&controller, 1 << 20);
        let namespace = controller.namespace(1).unwrap();
        Self { pair, memory, namespace, controller, node }
    }

    pub(crate) fn read(&mut self, lba: u64, owner: u32) {
        let entry = part(&self.memory, 0, 512);
        self.pair.read(&self.namespace, lba, &[entry], owner).unwrap();
    }

    /// Takes what ends until nothing is outstanding or the queue fails.
    pub(crate) fn run(&mut self) -> (Vec<Ended>, Option<QueueError>) {
        let mut ended = Vec::new();
        loop {
            match self.pair.poll(64, |completion| ended.push(pair_of(completion))) {
                Ok(_) if self.pair.outstanding() == 0 => return (ended, None),
                Ok(_) => {}
                Err(error) => return (ended, Some(error)),
            }
            match self.pair.wait(CompletionMode::Adaptive, LONG) {
                Ok(()) => {}
                Err(WaitError::Queue(error)) => return (ended, Some(error)),
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub(crate) fn recover(&mut self) -> Vec<Ended> {
        let mut ended = Vec::new();
        self.pair.recover(|completion| ended.push(pair_of(completion))).unwrap();
        ended
    }

    /// Writes a block with a fresh value and reads it back.
    pub(crate) fn assert_usable(&mut self, value: u8) {
        self.memory.write(4096, &[value; 512]).unwrap();
        let (from, to) = (part(&self.memory, 4096, 512), part(&self.memory, 8192, 512));
        self.pair.write(&self.namespace, 5, &[from], 1).unwrap();
        assert_eq!(self.run(), (vec![(1, Ok(0))], None));
        self.memory.write(8192, &[!value; 512]).unwrap();
        self.pair.read(&self.namespace, 5, &[to], 2).unwrap();
        assert_eq!(self.run(), (vec![(2, Ok(0))], None));
        let mut found = [0; 512];
        self.memory.read(8192, &mut found).unwrap();
        assert_eq!(found, [value; 512]);
    }
}

pub(crate) fn pair_of(completion: Completion<u32>) -> Ended {
    (completion.owner, completion.result)
}
