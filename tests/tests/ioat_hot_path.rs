//! What posting, committing and polling of the I/OAT driver must not do.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::io::Read;
use std::sync::Arc;
use std::time::Instant;

use rustix::thread::{SecureComputingMode, set_secure_computing_mode};
use vdk_descriptors::sg::CopySegment;
use vdk_driver::ioat::{Channel, ChannelOptions, CompletionMode, Ioat};
use vdk_driver::kit::Session;
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::function::PciNode;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, DmaRegion};

struct Rig {
    node: Arc<StubNode>,
    channel: Channel<String>,
    memory: DmaRegion<Bidirectional>,
    owners: Vec<String>,
    _ioat: Ioat,
}

const BATCHES: u32 = 500;

impl Rig {
    fn new() -> Self {
        // It looks for work all the time, so that nobody has to wake it.
        let node = StubNode::new(
            StubKind::Ioat,
            StubOptions { spin: Duration::from_secs(600), ..StubOptions::default() },
        )
        .unwrap();
        let opened: Arc<dyn PciNode> = node.clone();
        let ioat = Ioat::start(Session::open(&opened, "test").unwrap()).unwrap();
        let shared = SharedMemory::allocate(ByteLength::new(1 << 16), Pages::Base).unwrap();
        let memory = ioat.domain().map(shared).unwrap();
        let channel = ioat.channel(0, ChannelOptions { depth: 63, ..ChannelOptions::default() }).unwrap();
        let owners = (0..64).map(|owner| format!("owner {owner}")).collect();
        Self { node, channel, memory, owners, _ioat: ioat }
    }

    /// Posts, commits and polls in batches of every kind; owners go around.
    fn run(&mut self) {
        let base = self.memory.iova().as_u64();
        let at = |offset: u64| Iova::new(base + offset);
        let segments = [0, 100, 200].map(|offset| CopySegment {
            source: at(offset),
            destination: at(32_768 + offset),
            length: 64,
        });
        for batch in 0..BATCHES {
            for _ in 0..batch % 16 + 1 {
                let owner = self.owners.pop().unwrap();
                let count = usize::try_from(batch % 3).unwrap() + 1;
                self.channel.copy(&segments[..count], owner).unwrap();
            }
            self.channel.commit().unwrap();
            while self.channel.outstanding() > 0 {
                let owners = &mut self.owners;
                self.channel.poll(5, |end| owners.push(end.owner)).unwrap();
            }
        }
        assert_eq!(self.owners.len(), 64);
    }
}

#[test]
fn posting_committing_and_polling_allocate_and_free_nothing() {
    let mut rig = Rig::new();
    rig.run();
    let counted = allocation_counter::measure(|| rig.run());
    assert_eq!((counted.count_total, counted.count_current, counted.bytes_total), (0, 0, 0));
    let counted = allocation_counter::measure(|| {
        let rejected = rig.channel.copy(&[], String::from("another"));
        assert!(rejected.is_err());
    });
    assert_eq!(counted.count_total, 1, "the counter counts");
}

#[test]
fn posting_committing_and_polling_make_no_system_call() {
    let mut rig = Rig::new();
    rig.run();
    let finished = Arc::new(AtomicBool::new(false));
    let (mut end_of_test, _keeps_it_open) = std::io::pipe().unwrap();
    let before = rig.node.statistics();
    let node = Arc::clone(&rig.node);
    let done = Arc::clone(&finished);
    // In strict mode a thread may read, write and exit; anything else ends it on the spot.
    std::thread::spawn(move || {
        set_secure_computing_mode(SecureComputingMode::Strict).unwrap();
        rig.run();
        done.store(true, Ordering::Release);
        // It cannot end in an orderly way any more, so it waits for the end of the process.
        let _ = end_of_test.read(&mut [0]);
        core::mem::forget(rig);
    });
    let start = Instant::now();
    while !finished.load(Ordering::Acquire) {
        assert!(start.elapsed() < Duration::from_secs(120), "ended by a system call");
        std::thread::sleep(Duration::from_millis(1));
    }
    let after = node.statistics();
    assert!(after.descriptors > before.descriptors + u64::from(BATCHES));
    // Of what is allowed, one would be a write that wakes the device.
    if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        assert_eq!(after.wakeups, before.wakeups);
    }
}

#[test]
fn a_system_call_in_strict_mode_would_be_noticed() {
    let survived = Arc::new(AtomicBool::new(false));
    let (send, thread_id) = std::sync::mpsc::channel();
    let flag = Arc::clone(&survived);
    std::thread::spawn(move || {
        send.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
        set_secure_computing_mode(SecureComputingMode::Strict).unwrap();
        std::thread::yield_now();
        flag.store(true, Ordering::Release);
    });
    let task = format!("/proc/self/task/{}", thread_id.recv().unwrap());
    let start = Instant::now();
    while std::fs::exists(&task).unwrap() {
        assert!(start.elapsed() < Duration::from_secs(120), "the thread is still there");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!survived.load(Ordering::Acquire));
}

#[test]
fn waiting_allocates_nothing() {
    let mut rig = Rig::new();
    let base = rig.memory.iova();
    let segment = CopySegment { source: base, destination: Iova::new(base.as_u64() + 4096), length: 4096 };
    let mut owner = Some(String::from("owner"));
    let counted = allocation_counter::measure(|| {
        for mode in [CompletionMode::Poll, CompletionMode::Adaptive, CompletionMode::Interrupt] {
            rig.channel.copy(&[segment], owner.take().unwrap()).unwrap();
            while owner.is_none() {
                rig.channel.wait(mode, Duration::from_secs(120)).unwrap();
                rig.channel.poll(1, |end| owner = Some(end.owner)).unwrap();
            }
        }
    });
    assert_eq!(counted.count_total, 0);
}
