//! A file that answers like the kernel's, for tests.

use std::fs::File;
use std::sync::{Arc, Mutex};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::device::Device;
use super::kernel::{Attached, Call, KernelFile};
use super::message::Message;

/// What was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) call: Call,
    /// The message, or the argument as four bytes.
    pub(super) bytes: Vec<u8>,
}

type Answer = dyn FnMut(Call, &mut Message, &mut Attached<'_>) -> Result<u32, Errno> + Send;

/// Given the offset, and whether it is a write.
type Before = dyn FnMut(u64, bool) -> Result<(), Errno> + Send;

/// A file whose answers a test gives. What it reads and writes is a memory file.
pub(super) struct MockFile {
    answer: Mutex<Box<Answer>>,
    asked: Mutex<Vec<Asked>>,
    file: File,
    /// Offset and length of each read and write.
    accesses: Mutex<Vec<(u64, usize)>>,
    /// What happens before a read or a write at an offset, and whether it succeeds.
    before: Mutex<Box<Before>>,
}

impl MockFile {
    pub(super) fn new(
        answer: impl FnMut(Call, &mut Message, &mut Attached<'_>) -> Result<u32, Errno> + Send + 'static,
    ) -> Arc<Self> {
        let file = memfd_create("mock", MemfdFlags::CLOEXEC).unwrap().into();
        Arc::new(Self {
            answer: Mutex::new(Box::new(answer)),
            asked: Mutex::default(),
            file,
            accesses: Mutex::default(),
            before: Mutex::new(Box::new(|_, _| Ok(()))),
        })
    }

    /// A device over such a file.
    pub(super) fn device(self: &Arc<Self>) -> Arc<Device> {
        Arc::new(Device::new(Arc::clone(self) as Arc<dyn KernelFile>))
    }

    /// What was asked since the last time.
    pub(super) fn take(&self) -> Vec<Asked> {
        core::mem::take(&mut self.asked.lock().unwrap())
    }

    /// The calls that were made since the last time.
    pub(super) fn calls(&self) -> Vec<Call> {
        self.take().into_iter().map(|asked| asked.call).collect()
    }

    /// Offset and length of each read and write since the last time.
    pub(super) fn take_accesses(&self) -> Vec<(u64, usize)> {
        core::mem::take(&mut self.accesses.lock().unwrap())
    }

    /// Lets every read and write be preceded by a look that may refuse it.
    pub(super) fn before_accesses(&self, look: impl FnMut(u64, bool) -> Result<(), Errno> + Send + 'static) {
        *self.before.lock().unwrap() = Box::new(look);
    }

    fn ask(&self, call: Call, message: &mut Message, mut attached: Attached<'_>) -> Result<u32, Errno> {
        self.asked.lock().unwrap().push(Asked { call, bytes: message.bytes().to_vec() });
        (self.answer.lock().unwrap())(call, message, &mut attached)
    }
}

impl KernelFile for MockFile {
    fn command(&self, call: Call, argument: u32) -> Result<u32, Errno> {
        self.ask(call, &mut Message::new(4).with(0, argument), Attached::Nothing)
    }

    fn send(&self, call: Call, bytes: &[u8]) -> Result<u32, Errno> {
        self.ask(call, &mut Message::new(bytes.len()).with_bytes(0, bytes), Attached::Nothing)
    }

    fn exchange(&self, call: Call, message: &mut Message, attached: Attached<'_>) -> Result<u32, Errno> {
        message.set_size();
        self.ask(call, message, attached)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        self.accesses.lock().unwrap().push((offset, bytes.len()));
        (self.before.lock().unwrap())(offset, false)?;
        rustix::io::pread(&self.file, bytes, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.accesses.lock().unwrap().push((offset, bytes.len()));
        (self.before.lock().unwrap())(offset, true)?;
        rustix::io::pwrite(&self.file, bytes, offset)
    }

    fn file(&self) -> &File {
        &self.file
    }
}
