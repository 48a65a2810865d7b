//! The system calls of VFIO and iommufd, and nothing else.
//!
//! [`KernelFile`] is one open file of the kernel - a container, a group, a device or
//! `/dev/iommu` - to which messages are passed. What a message means is for the modules
//! above; tests put files of their own in the place of the kernel's.

// UNSAFETY: makes ioctl calls.
#![expect(unsafe_code, reason = "ioctl calls")]

use core::ffi::c_void;
use core::ptr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::message::Message;
use crate::memory::SharedMemory;

/// The calls that are made. The numbers are those of Linux's `include/uapi/linux/vfio.h`
/// and `iommufd.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Call {
    ApiVersion,
    CheckExtension,
    SetIommu,
    GroupStatus,
    GroupSetContainer,
    GroupUnsetContainer,
    GroupDevice,
    DeviceInfo,
    RegionInfo,
    IrqInfo,
    SetIrqs,
    Reset,
    HotResetInfo,
    HotReset,
    IommuInfo,
    MapDma,
    UnmapDma,
    Feature,
    BindIommufd,
    AttachIommufd,
    DetachIommufd,
    IoasAlloc,
    IoasAllowIovas,
    IoasIovaRanges,
    IoasMap,
    IoasUnmap,
    IommuOption,
}

impl Call {
    /// The number of the call. VFIO counts from 100, iommufd from 0x80.
    const fn number(self) -> u8 {
        match self {
            Self::ApiVersion => 100,
            Self::CheckExtension => 101,
            Self::SetIommu => 102,
            Self::GroupStatus => 103,
            Self::GroupSetContainer => 104,
            Self::GroupUnsetContainer => 105,
            Self::GroupDevice => 106,
            Self::DeviceInfo => 107,
            Self::RegionInfo => 108,
            Self::IrqInfo => 109,
            Self::SetIrqs => 110,
            Self::Reset => 111,
            // Container and device number their own calls from here on.
            Self::HotResetInfo | Self::IommuInfo => 112,
            Self::HotReset | Self::MapDma => 113,
            Self::UnmapDma => 114,
            Self::Feature => 117,
            Self::BindIommufd => 118,
            Self::AttachIommufd => 119,
            Self::DetachIommufd => 120,
            Self::IoasAlloc => 0x81,
            Self::IoasAllowIovas => 0x82,
            Self::IoasIovaRanges => 0x84,
            Self::IoasMap => 0x85,
            Self::IoasUnmap => 0x86,
            Self::IommuOption => 0x87,
        }
    }

    const fn code(self) -> Opcode {
        opcode::none(b';', self.number())
    }
}

/// What a message points to. The pointer is put into the message by the file, so that no
/// other code makes one.
pub(super) enum Attached<'a> {
    /// Nothing.
    Nothing,
    /// Bytes that the kernel reads or writes during the call.
    List { at: usize, bytes: &'a mut [u8] },
    /// Memory that devices reach after the call. The caller keeps it until they do not.
    Memory { at: usize, memory: &'a SharedMemory },
}

/// An open file of the kernel.
pub(super) trait KernelFile: Send + Sync {
    /// A call with a number as its argument.
    fn command(&self, call: Call, argument: u32) -> Result<u32, Errno>;

    /// A call with bytes that the kernel only reads: a name, ended by a zero byte, or a
    /// descriptor.
    fn send(&self, call: Call, bytes: &[u8]) -> Result<u32, Errno>;

    /// A call with a message that says its size in its first word and is answered in place.
    fn exchange(&self, call: Call, message: &mut Message, attached: Attached<'_>) -> Result<u32, Errno>;

    /// Reads from an offset of the file.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno>;

    /// Writes at an offset of the file.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno>;

    /// The file, for `mmap(2)` and for messages that name it.
    fn file(&self) -> &File;
}

/// A file that the kernel answers.
#[derive(Debug)]
pub(super) struct SystemFile(File);

impl SystemFile {
    /// Opens a device node for reading and writing. It is not inherited by child processes.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        OpenOptions::new().read(true).write(true).open(path).map(Self)
    }

    /// Takes over a descriptor that the kernel returned.
    pub(super) fn from_returned(descriptor: u32) -> Result<Self, Errno> {
        let descriptor = RawFd::try_from(descriptor).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel has just made the descriptor for this process, and nobody else
        // has seen it.
        let owned = unsafe { OwnedFd::from_raw_fd(descriptor) };
        // VFIO sets it on the descriptors that it makes; it costs nothing to be sure.
        rustix::io::fcntl_setfd(&owned, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Self(File::from(owned)))
    }

    fn invoke(&self, call: Call, argument: *mut c_void) -> Result<u32, Errno> {
        let invoke = || {
            let request = Invoke { call, argument };
            // SAFETY: the callers below give each call the argument that it takes.
            unsafe { ioctl(&self.0, request) }
        };
        let answer = rustix::io::retry_on_intr(invoke)?;
        // A negative answer is an error, which `ioctl` has taken care of.
        u32::try_from(answer).map_err(|_| Errno::INVAL)
    }
}

impl KernelFile for SystemFile {
    fn command(&self, call: Call, argument: u32) -> Result<u32, Errno> {
        // A number in the place of a pointer: nothing is read or written.
        let argument = usize::try_from(argument).map_err(|_| Errno::INVAL)?;
        self.invoke(call, ptr::without_provenance_mut(argument))
    }

    fn send(&self, call: Call, bytes: &[u8]) -> Result<u32, Errno> {
        // The kernel reads a descriptor of four bytes or up to the zero byte.
        let complete = match call {
            Call::GroupSetContainer => bytes.len() == size_of::<RawFd>(),
            Call::GroupDevice => bytes.last() == Some(&0),
            _ => false,
        };
        if !complete {
            return Err(Errno::INVAL);
        }
        self.invoke(call, bytes.as_ptr().cast_mut().cast())
    }

    fn exchange(&self, call: Call, message: &mut Message, attached: Attached<'_>) -> Result<u32, Errno> {
        // The kernel reads and writes no more than the size in the first word, which is
        // that of the buffer. What the message points to is alive during the call, and as
        // long as it says; see `Attached`.
        message.set_size();
        match attached {
            Attached::Nothing => {}
            Attached::List { at, bytes } => {
                // CAST: a pointer is at most 64 bits wide on every supported target.
                message.put64(at, bytes.as_mut_ptr().expose_provenance() as u64);
            }
            Attached::Memory { at, memory } => message.put64(at, memory.host_address().as_u64()),
        }
        self.invoke(call, message.as_mut_ptr().cast())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
        retry(|| self.0.read_at(bytes, offset))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        retry(|| self.0.write_at(bytes, offset))
    }

    fn file(&self) -> &File {
        &self.0
    }
}

fn retry(mut access: impl FnMut() -> io::Result<usize>) -> Result<usize, Errno> {
    loop {
        match access() {
            Ok(count) => return Ok(count),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR) => {}
                other => return Err(other.unwrap_or(Errno::IO)),
            },
        }
    }
}

/// The descriptor as a message holds it.
pub(super) fn descriptor(file: &File) -> [u8; 4] {
    file.as_raw_fd().to_ne_bytes()
}

struct Invoke {
    call: Call,
    argument: *mut c_void,
}

// SAFETY:
// 1. The argument is what the call takes: see the implementation of `KernelFile`.
// 2. The answer is the return value alone.
// 3. It counts as changing memory, whether it does or not.
unsafe impl Ioctl for Invoke {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.call.code()
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _argument: *mut c_void) -> rustix::io::Result<Self::Output> {
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_the_numbers_of_the_kernel_headers() {
        use iommufd_bindings as iommufd;
        let expected = [
            (Call::ApiVersion, 0x3b64),
            (Call::GroupDevice, 0x3b6a),
            (Call::SetIrqs, 0x3b6e),
            (Call::MapDma, 0x3b71),
            (Call::UnmapDma, 0x3b72),
            (Call::Feature, 0x3b75),
            (Call::DetachIommufd, 0x3b78),
            (Call::IoasAlloc, 0x3b00 | iommufd::IOMMUFD_CMD_IOAS_ALLOC),
            (Call::IoasAllowIovas, 0x3b00 | iommufd::IOMMUFD_CMD_IOAS_ALLOW_IOVAS),
            (Call::IoasIovaRanges, 0x3b00 | iommufd::IOMMUFD_CMD_IOAS_IOVA_RANGES),
            (Call::IoasMap, 0x3b00 | iommufd::IOMMUFD_CMD_IOAS_MAP),
            (Call::IoasUnmap, 0x3b00 | iommufd::IOMMUFD_CMD_IOAS_UNMAP),
            (Call::IommuOption, 0x3b00 | iommufd::IOMMUFD_CMD_OPTION),
        ];
        for (call, code) in expected {
            assert_eq!(call.code(), code, "{call:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs ioctl")]
    fn a_file_that_is_not_vfio_answers_with_an_error() {
        let file = SystemFile::open(Path::new("/dev/null")).unwrap();
        assert_eq!(file.command(Call::ApiVersion, 0), Err(Errno::NOTTY));
        let mut message = Message::new(16);
        assert_eq!(file.exchange(Call::DeviceInfo, &mut message, Attached::Nothing), Err(Errno::NOTTY));
        assert_eq!(message.word(0), Some(16), "the size is always said");
        assert_eq!(file.send(Call::GroupDevice, b"unfinished"), Err(Errno::INVAL));
        assert_eq!(file.send(Call::GroupSetContainer, &[0; 3]), Err(Errno::INVAL));
    }
}
