//! Raw access to emulated devices: register numbers as the data sheets print them, and no
//! driver.

use core::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::address::{BarIndex, ByteLength, Iova, IovaRange};
use vdk_hal::bar::Bar;
use vdk_hal::dma::Permissions;
use vdk_hal::function::{PciFunction, PciNode};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::mmio::RegisterValue;

/// An open function with memory decoding and bus mastering on.
pub(crate) struct Bench {
    pub(crate) node: Arc<StubNode>,
    pub(crate) function: Arc<dyn PciFunction>,
    pub(crate) bar: Bar,
}

impl Bench {
    pub(crate) fn new(kind: StubKind, options: StubOptions) -> Self {
        Self::open(StubNode::new(kind, options).unwrap())
    }

    pub(crate) fn open(node: Arc<StubNode>) -> Self {
        let function = node.open().unwrap();
        function.config().write16(COMMAND, MEMORY).unwrap();
        function.set_bus_master(true).unwrap();
        let bar = function.bar(bar0()).unwrap();
        Self { node, function, bar }
    }

    pub(crate) fn edu() -> Self {
        Self::new(StubKind::Edu, StubOptions::default())
    }

    pub(crate) fn read<T: RegisterValue>(&self, offset: u64) -> T {
        self.bar.read(offset).unwrap()
    }

    pub(crate) fn write<T: RegisterValue>(&self, offset: u64, value: T) {
        self.bar.write(offset, value).unwrap();
    }

    /// Fresh pages, mapped for the device.
    pub(crate) fn map(&self, iova: u64, length: u64, permissions: Permissions) -> SharedMemory {
        let memory = SharedMemory::allocate(ByteLength::new(length), Pages::Base).unwrap();
        self.function.dma().map(Iova::new(iova), &memory, permissions).unwrap();
        memory
    }

    pub(crate) fn unmap(&self, iova: u64, length: u64) {
        let range = IovaRange::new(Iova::new(iova), ByteLength::new(length)).unwrap();
        assert_eq!(self.function.dma().unmap(range), Ok(ByteLength::new(length)));
    }

    /// The kinds of the driver faults so far, as text, each once and in order.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut kinds: Vec<String> = Vec::new();
        for fault in self.node.driver_faults() {
            let kind = fault.kind.to_string();
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        kinds
    }
}

pub(crate) fn bar0() -> BarIndex {
    BarIndex::new(0).unwrap()
}

/// Waits until `look` is true; a device that does not get there fails the test.
#[track_caller]
pub(crate) fn wait_until(what: &str, look: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !look() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::yield_now();
    }
}

/// What every byte of test data is, by its place.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| {
            let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ seed as u64);
            (mixed >> 56) as u8
        })
        .collect()
}

pub(crate) fn bytes(memory: &SharedMemory) -> Vec<u8> {
    let mut all = vec![0; memory.length().to_usize().unwrap()];
    memory.read(0, &mut all).unwrap();
    all
}

/// One channel of an I/OAT, driven by hand.
pub(crate) struct Channel<'bench> {
    pub(crate) bench: &'bench Bench,
    pub(crate) number: u64,
    pub(crate) ring: SharedMemory,
    pub(crate) completion: SharedMemory,
    pub(crate) slots: usize,
    /// Descriptors announced since the chain was started.
    pub(crate) announced: u16,
    /// The slot that is written next.
    pub(crate) slot: usize,
}

pub(crate) const RING: u64 = 0x10_0000;
pub(crate) const COMPLETION: u64 = 0x20_0000;

impl<'bench> Channel<'bench> {
    /// Maps a ring of `slots` descriptors, linked to a circle, and starts the channel on it.
    pub(crate) fn start(bench: &'bench Bench, number: u64, slots: usize) -> Self {
        let ring_bytes = (slots as u64 * 64).next_multiple_of(4096);
        let ring_iova = RING + number * 0x100_0000;
        let ring = bench.map(ring_iova, ring_bytes, Permissions::Read);
        let completion = bench.map(COMPLETION + number * 0x1000, 4096, Permissions::Write);
        let mut channel = Self { bench, number, ring, completion, slots, announced: 0, slot: 0 };
        for slot in 0..slots {
            let next = channel.address((slot + 1) % slots);
            channel.ring.write_value(slot * 64 + 24, &next).unwrap();
        }
        channel.begin(0);
        channel
    }

    /// Sets the channel up as after a reset, with the chain at `slot`.
    pub(crate) fn begin(&mut self, slot: usize) {
        self.write::<u16>(CHANCTRL, 0x001d);
        self.write_split(CHANCMP, COMPLETION + self.number * 0x1000);
        self.completion.store::<u64>(0, 0, Ordering::Relaxed).unwrap();
        self.write_split(CHAINADDR, self.address(slot));
        self.announced = 0;
        self.slot = slot;
    }

    pub(crate) fn address(&self, slot: usize) -> u64 {
        RING + self.number * 0x100_0000 + slot as u64 * 64
    }

    /// Writes the next descriptor and returns its address.
    pub(crate) fn post(&mut self, size: u32, control: u32, source: u64, destination: u64) -> u64 {
        let slot = self.slot;
        let at = slot * 64;
        self.ring.write_value(at, &[size, control]).unwrap();
        self.ring.write_value(at + 8, &[source, destination]).unwrap();
        self.slot = (slot + 1) % self.slots;
        self.announced = self.announced.wrapping_add(1);
        self.address(slot)
    }

    pub(crate) fn ring_doorbell(&self) {
        vdk_hal::barrier::dma_wmb();
        self.write::<u16>(DMACOUNT, self.announced);
    }

    /// Posts one copy that asks for a completion, and waits for it.
    pub(crate) fn copy(&mut self, size: u32, source: u64, destination: u64) {
        let address = self.post(size, COMPLETE, source, destination);
        self.ring_doorbell();
        self.wait_for(address);
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, address: u64) {
        wait_until("the completion", || self.word() & !0x3f == address);
    }

    #[track_caller]
    pub(crate) fn wait_for_state(&self, state: u64) {
        wait_until("the state", || self.status() & 7 == state);
    }

    pub(crate) fn word(&self) -> u64 {
        self.completion.load(0, Ordering::Acquire).unwrap()
    }

    pub(crate) fn status(&self) -> u64 {
        self.read(CHANSTS)
    }

    pub(crate) fn errors(&self) -> u32 {
        self.read(CHANERR)
    }

    pub(crate) fn command(&self, command: u8) {
        self.write(CHANCMD, command);
    }

    pub(crate) fn read<T: RegisterValue>(&self, register: u64) -> T {
        self.bench.read(0x80 * (self.number + 1) + register)
    }

    pub(crate) fn write<T: RegisterValue>(&self, register: u64, value: T) {
        self.bench.write(0x80 * (self.number + 1) + register, value);
    }

    pub(crate) fn write_split(&self, register: u64, value: u64) {
        self.write(register, value as u32);
        self.write(register + 4, (value >> 32) as u32);
    }
}

pub(crate) const COMMAND: u16 = 0x04;
pub(crate) const STATUS: u16 = 0x06;
pub(crate) const MEMORY: u16 = 0x0002;
pub(crate) const BUS_MASTER: u16 = 0x0004;
pub(crate) const INTX_DISABLE: u16 = 0x0400;

pub(crate) const CHANCTRL: u64 = 0x00;
pub(crate) const CHANCMD: u64 = 0x04;
pub(crate) const DMACOUNT: u64 = 0x06;
pub(crate) const CHANSTS: u64 = 0x08;
pub(crate) const CHAINADDR: u64 = 0x10;
pub(crate) const CHANCMP: u64 = 0x18;
pub(crate) const CHANERR: u64 = 0x28;
pub(crate) const CHANERRMASK: u64 = 0x2c;

pub(crate) const ACTIVE: u64 = 0;
pub(crate) const IDLE: u64 = 1;
pub(crate) const SUSPENDED: u64 = 2;
pub(crate) const HALTED: u64 = 3;
pub(crate) const ARMED: u64 = 4;

pub(crate) const INTERRUPT: u32 = 0x01;
pub(crate) const COMPLETE: u32 = 0x08;
pub(crate) const FENCE: u32 = 0x10;
pub(crate) const NULL: u32 = 0x20;
pub(crate) const FILL: u32 = 0x0100_0000;

pub(crate) const RESET: u8 = 0x20;
pub(crate) const RESUME: u8 = 0x10;
pub(crate) const ABORT: u8 = 0x08;
pub(crate) const SUSPEND: u8 = 0x04;
pub(crate) const APPEND: u8 = 0x02;
