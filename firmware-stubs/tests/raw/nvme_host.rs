//! A small host for an emulated NVMe controller: numbers as the specification prints them.

use core::sync::atomic::Ordering;

use vdk_firmware_stubs::{NamespaceOptions, StubKind, StubOptions};
use vdk_hal::dma::Permissions;
use vdk_hal::memory::SharedMemory;

use super::harness::{Bench, wait_until};

/// One queue pair.
pub(crate) struct Pair {
    pub(crate) id: u16,
    pub(crate) depth: u32,
    submission: SharedMemory,
    completion: SharedMemory,
    tail: u32,
    head: u32,
    phase: bool,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) result: u32,
    pub(crate) head: u16,
    pub(crate) queue: u16,
    pub(crate) command: u16,
    /// SCT and SC.
    pub(crate) status: u16,
    pub(crate) do_not_retry: bool,
}

/// A controller that is enabled, with its admin queue.
pub(crate) struct Host {
    pub(crate) bench: Bench,
    pub(crate) admin: Pair,
    next_command: u16,
}

/// A command with everything zero but what a test sets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Command {
    pub(crate) opcode: u8,
    pub(crate) flags: u8,
    pub(crate) namespace: u32,
    pub(crate) pointer: [u64; 2],
    pub(crate) dwords: [u32; 6],
}

impl Command {
    pub(crate) fn new(opcode: u8) -> Self {
        Self { opcode, ..Self::default() }
    }

    pub(crate) fn namespace(self, namespace: u32) -> Self {
        Self { namespace, ..self }
    }

    pub(crate) fn pages(self, first: u64, second: u64) -> Self {
        Self { pointer: [first, second], ..self }
    }

    /// An SGL descriptor in the command.
    pub(crate) fn list(self, address: u64, length: u32, identifier: u8) -> Self {
        let second = u64::from(length) | u64::from(identifier) << 56;
        Self { flags: 0x40, pointer: [address, second], ..self }
    }

    pub(crate) fn dword(mut self, number: usize, value: u32) -> Self {
        self.dwords[number - 10] = value;
        self
    }

    /// First block and how many.
    pub(crate) fn blocks(self, first: u64, count: u32) -> Self {
        self.dword(10, first as u32).dword(11, (first >> 32) as u32).dword(12, count - 1)
    }

    pub(crate) fn read(first: u64, count: u32) -> Self {
        Self::new(READ).namespace(1).blocks(first, count)
    }

    pub(crate) fn write(first: u64, count: u32) -> Self {
        Self::new(WRITE).namespace(1).blocks(first, count)
    }
}

impl Host {
    /// Enables a controller with an admin queue of 32 entries.
    pub(crate) fn new(options: StubOptions) -> Self {
        let bench = Bench::new(StubKind::Nvme, options);
        let admin = Pair::map(&bench, 0, 32);
        let mut host = Self { bench, admin, next_command: 1 };
        host.enable(0x0046_0001);
        host
    }

    /// With one namespace of 1 MiB.
    pub(crate) fn small() -> Self {
        Self::new(small())
    }

    /// Enables the controller, from disabled.
    #[track_caller]
    pub(crate) fn enable(&mut self, configuration: u32) {
        self.admin.restart();
        self.bench.write::<u32>(AQA, 31 | 31 << 16);
        self.bench.write::<u64>(ASQ, submission_iova(0));
        self.bench.write::<u64>(ACQ, completion_iova(0));
        self.bench.write::<u32>(CC, configuration);
        wait_until("ready", || self.status() & 1 == 1);
    }

    #[track_caller]
    pub(crate) fn disable(&self) {
        self.bench.write::<u32>(CC, 0x0046_0000);
        wait_until("not ready", || self.status() & 1 == 0);
    }

    pub(crate) fn status(&self) -> u32 {
        self.bench.read(CSTS)
    }

    /// Creates an I/O queue pair whose vector is its number.
    #[track_caller]
    pub(crate) fn pair(&mut self, id: u16, depth: u32) -> Pair {
        let pair = Pair::map(&self.bench, id, depth);
        assert_eq!(self.create_completion(id, depth, 3 | u32::from(id) << 16), 0);
        assert_eq!(self.create_submission(id, depth, 1 | u32::from(id) << 16), 0);
        pair
    }

    pub(crate) fn create_completion(&mut self, id: u16, depth: u32, flags: u32) -> u16 {
        let command = Command::new(0x05).pages(completion_iova(id), 0);
        self.admin(command.dword(10, u32::from(id) | (depth - 1) << 16).dword(11, flags)).status
    }

    pub(crate) fn create_submission(&mut self, id: u16, depth: u32, flags: u32) -> u16 {
        let command = Command::new(0x01).pages(submission_iova(id), 0);
        self.admin(command.dword(10, u32::from(id) | (depth - 1) << 16).dword(11, flags)).status
    }

    /// Executes an admin command.
    #[track_caller]
    pub(crate) fn admin(&mut self, command: Command) -> Done {
        let id = self.next();
        self.admin.post(id, command);
        self.admin.ring(&self.bench);
        let done = self.admin.take(&self.bench);
        assert_eq!((done.command, done.queue), (id, 0));
        done
    }

    /// Executes a command of an I/O queue.
    #[track_caller]
    pub(crate) fn io(&mut self, pair: &mut Pair, command: Command) -> Done {
        let id = self.next();
        pair.post(id, command);
        pair.ring(&self.bench);
        let done = pair.take(&self.bench);
        assert_eq!((done.command, done.queue), (id, pair.id));
        done
    }

    pub(crate) fn next(&mut self) -> u16 {
        self.next_command = self.next_command % 0x7000 + 1;
        self.next_command
    }
}

impl Pair {
    /// Maps the memory of a queue pair.
    pub(crate) fn map(bench: &Bench, id: u16, depth: u32) -> Self {
        let bytes = |entry: u64| (u64::from(depth) * entry).next_multiple_of(4096);
        let submission = bench.map(submission_iova(id), bytes(64), Permissions::Read);
        let completion = bench.map(completion_iova(id), bytes(16), Permissions::ReadWrite);
        Self { id, depth, submission, completion, tail: 0, head: 0, phase: true }
    }

    /// As after the queue was created anew.
    pub(crate) fn restart(&mut self) {
        let bytes = self.completion.length().to_usize().unwrap();
        self.completion.fill(0, bytes, 0).unwrap();
        (self.tail, self.head, self.phase) = (0, 0, true);
    }

    /// Writes a command and returns where the next goes.
    pub(crate) fn post(&mut self, id: u16, command: Command) {
        let at = self.tail as usize * 64;
        let first = u32::from(command.opcode) | u32::from(command.flags) << 8 | u32::from(id) << 16;
        self.submission.write_value(at, &[first, command.namespace, 0, 0, 0, 0]).unwrap();
        self.submission.write_value(at + 24, &command.pointer).unwrap();
        self.submission.write_value(at + 40, &command.dwords).unwrap();
        self.tail = (self.tail + 1) % self.depth;
    }

    pub(crate) fn ring(&self, bench: &Bench) {
        vdk_hal::barrier::dma_wmb();
        bench.write::<u32>(tail_doorbell(self.id), self.tail);
    }

    /// Whether there is a completion.
    pub(crate) fn is_ready(&self) -> bool {
        let word: u64 = self.completion.load(self.head as usize * 16 + 8, Ordering::Acquire).unwrap();
        (word >> 48 & 1 == 1) == self.phase
    }

    /// Takes the next completion and gives its entry back.
    #[track_caller]
    pub(crate) fn take(&mut self, bench: &Bench) -> Done {
        wait_until("a completion", || self.is_ready());
        let done = self.peek();
        self.head = (self.head + 1) % self.depth;
        self.phase ^= self.head == 0;
        bench.write::<u32>(head_doorbell(self.id), self.head);
        done
    }

    fn peek(&self) -> Done {
        let at = self.head as usize * 16;
        let word: u64 = self.completion.load(at + 8, Ordering::Acquire).unwrap();
        let field = (word >> 48) as u16;
        Done {
            result: self.completion.read_value(at).unwrap(),
            head: word as u16,
            queue: (word >> 16) as u16,
            command: (word >> 32) as u16,
            status: field >> 1 & 0x7ff,
            do_not_retry: field >> 15 != 0,
        }
    }
}

/// One namespace of 1 MiB in blocks of 512 bytes.
pub(crate) fn small() -> StubOptions {
    let namespace = NamespaceOptions { bytes: 1 << 20, ..NamespaceOptions::default() };
    StubOptions { namespaces: vec![namespace], ..StubOptions::default() }
}

pub(crate) fn submission_iova(id: u16) -> u64 {
    0x100_0000 + u64::from(id) * 0x10_0000
}

pub(crate) fn completion_iova(id: u16) -> u64 {
    0x108_0000 + u64::from(id) * 0x10_0000
}

pub(crate) fn tail_doorbell(id: u16) -> u64 {
    0x1000 + u64::from(id) * 256
}

pub(crate) fn head_doorbell(id: u16) -> u64 {
    0x1080 + u64::from(id) * 256
}

pub(crate) const CAP: u64 = 0x00;
pub(crate) const VS: u64 = 0x08;
pub(crate) const INTMS: u64 = 0x0c;
pub(crate) const INTMC: u64 = 0x10;
pub(crate) const CC: u64 = 0x14;
pub(crate) const CSTS: u64 = 0x1c;
pub(crate) const AQA: u64 = 0x24;
pub(crate) const ASQ: u64 = 0x28;
pub(crate) const ACQ: u64 = 0x30;

pub(crate) const FLUSH: u8 = 0x00;
pub(crate) const WRITE: u8 = 0x01;
pub(crate) const READ: u8 = 0x02;
