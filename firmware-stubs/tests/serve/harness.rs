//! A client that sends messages as the specification prints them.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use vdk_firmware_stubs::serve::{RunningServer, Server, ServerOptions, iommu_options};
use vdk_firmware_stubs::{StubKind, StubNode, StubOptions};
use vdk_hal::address::ByteLength;
use vdk_hal::interrupt::EventFd;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::vfio_user::capabilities::Capabilities;
use vdk_hal::vfio_user::message::{
    Command, DmaMap, DmaUnmap, Header, InterruptSet, RegionAccess, Version, region,
};
use vdk_hal::vfio_user::transport::{Channel, Message, TransportError};
use vdk_iommu::soft::SoftIommu;
use zerocopy::IntoBytes;

pub(crate) const EBUSY: u32 = 16;
pub(crate) const EEXIST: u32 = 17;
pub(crate) const ENODEV: u32 = 19;
pub(crate) const EINVAL: u32 = 22;
pub(crate) const EOPNOTSUPP: u32 = 95;

/// Memory decoding and bus mastering in the Command register.
pub(crate) const DECODE_AND_MASTER: u32 = 0x6;

/// Long enough for a machine that is busy with something else.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A device on a socket.
pub(crate) struct Served {
    pub(crate) node: Arc<StubNode>,
    pub(crate) path: PathBuf,
    pub(crate) server: RunningServer,
}

pub(crate) fn options() -> StubOptions {
    StubOptions { iommu: Some(SoftIommu::new(iommu_options())), ..StubOptions::default() }
}

pub(crate) fn socket_path() -> PathBuf {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("vdk-serve-{}-{number}.sock", std::process::id()))
}

pub(crate) fn serve_node(node: Arc<StubNode>) -> Served {
    let path = socket_path();
    let server = Server::bind(Arc::clone(&node), &path, ServerOptions::default()).unwrap();
    Served { node, path, server: server.spawn().unwrap() }
}

pub(crate) fn serve(kind: StubKind) -> Served {
    serve_node(StubNode::new(kind, options()).unwrap())
}

impl Served {
    pub(crate) fn connect(&self) -> Client {
        Client::new(UnixStream::connect(&self.path).unwrap())
    }

    /// A client that has negotiated.
    pub(crate) fn client(&self) -> Client {
        let client = self.connect();
        client.negotiate().unwrap();
        client
    }
}

/// One connection.
pub(crate) struct Client {
    channel: Channel,
}

impl Client {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { channel: Channel::new(stream.into()).unwrap() }
    }

    pub(crate) fn negotiate(&self) -> Result<Message, u32> {
        self.call(Command::VERSION, &[Version::OURS.as_bytes(), &Capabilities::OURS.to_text()])
    }

    pub(crate) fn send(&self, header: Header, parts: &[&[u8]], files: &[BorrowedFd<'_>]) {
        self.channel.send(header, parts, files).unwrap();
    }

    pub(crate) fn receive(&self) -> Result<Message, TransportError> {
        self.channel.receive(LONG)
    }

    /// A command and its reply, or the error in it.
    pub(crate) fn call(&self, command: Command, parts: &[&[u8]]) -> Result<Message, u32> {
        self.call_with(command, parts, &[])
    }

    pub(crate) fn call_with(
        &self,
        command: Command,
        parts: &[&[u8]],
        files: &[BorrowedFd<'_>],
    ) -> Result<Message, u32> {
        self.send(Header { id: 0x1234, command: command.0, ..Header::default() }, parts, files);
        let reply = self.receive().expect("a reply");
        assert!(reply.header.is_reply(), "{:?}", reply.header);
        assert_eq!((reply.header.id, reply.header.command), (0x1234, command.0));
        if reply.header.flags & Header::ERROR == 0 {
            return Ok(reply);
        }
        assert!(reply.payload.is_empty(), "an error has no payload");
        Err(reply.header.error)
    }

    /// Whether the server has hung up.
    pub(crate) fn call_is_over(&self) -> bool {
        matches!(self.channel.receive(Duration::from_millis(1)), Err(TransportError::Closed))
    }

    pub(crate) fn read(&self, number: u32, offset: u64, count: u32) -> Result<Vec<u8>, u32> {
        let access = RegionAccess { offset, region: number, count };
        let reply = self.call(Command::REGION_READ, &[access.as_bytes()])?;
        let (answered, bytes) = reply.parse::<RegionAccess>().unwrap();
        assert_eq!(answered, access);
        assert_eq!(bytes.len(), usize::try_from(count).unwrap());
        Ok(bytes.to_vec())
    }

    pub(crate) fn write(&self, number: u32, offset: u64, bytes: &[u8]) -> Result<(), u32> {
        let access = RegionAccess { offset, region: number, count: u32::try_from(bytes.len()).unwrap() };
        let reply = self.call(Command::REGION_WRITE, &[access.as_bytes(), bytes])?;
        assert_eq!(reply.parse::<RegionAccess>().unwrap().0, access);
        Ok(())
    }

    pub(crate) fn read32(&self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(0, offset, 4).unwrap().try_into().unwrap())
    }

    pub(crate) fn write32(&self, offset: u64, value: u32) {
        self.write(0, offset, &value.to_le_bytes()).unwrap();
    }

    pub(crate) fn config32(&self, offset: u64) -> u32 {
        u32::from_le_bytes(self.read(region::CONFIG, offset, 4).unwrap().try_into().unwrap())
    }

    pub(crate) fn enable(&self) {
        self.write(region::CONFIG, 4, &DECODE_AND_MASTER.to_le_bytes()[..2]).unwrap();
    }

    pub(crate) fn map_with(&self, request: &DmaMap, files: &[BorrowedFd<'_>]) -> Result<(), u32> {
        self.call_with(Command::DMA_MAP, &[request.as_bytes()], files).map(|reply| {
            assert!(reply.payload.is_empty());
        })
    }

    /// Maps all of `memory`.
    pub(crate) fn map(&self, address: u64, memory: &SharedMemory, flags: u32) -> Result<(), u32> {
        let (file, offset) = memory.file().unwrap();
        let size = memory.length().as_u64();
        self.map_with(&DmaMap { argument_size: 32, flags, offset, address, size }, &[file.as_fd()])
    }

    /// Unmaps; returns how many bytes it were.
    pub(crate) fn unmap(&self, flags: u32, address: u64, size: u64) -> Result<u64, u32> {
        let request = DmaUnmap { argument_size: 24, flags, address, size };
        let reply = self.call(Command::DMA_UNMAP, &[request.as_bytes()])?;
        let (answered, _) = reply.parse::<DmaUnmap>().unwrap();
        assert_eq!((answered.flags, answered.address), (flags, address));
        Ok(answered.size)
    }

    pub(crate) fn set_interrupts(
        &self,
        (index, start, count): (u32, u32, u32),
        flags: u32,
        bytes: &[u8],
        events: &[&EventFd],
    ) -> Result<(), u32> {
        let size = 20 + u32::try_from(bytes.len()).unwrap();
        let request = InterruptSet { argument_size: size, flags, index, start, count };
        let files: Vec<BorrowedFd<'_>> = events.iter().map(|event| event.as_fd()).collect();
        self.call_with(Command::DEVICE_SET_IRQS, &[request.as_bytes(), bytes], &files).map(drop)
    }

    /// One transfer of an edu's engine between its buffer and memory, waited for.
    pub(crate) fn edu_transfer(&self, address: u64, count: u64, to_memory: bool) {
        let (source, destination) = if to_memory { (EDU_BUFFER, address) } else { (address, EDU_BUFFER) };
        for (register, value) in [(0x80, source), (0x88, destination), (0x90, count)] {
            self.write(0, register, &value.to_le_bytes()).unwrap();
        }
        self.write32(0x98, 1 | u32::from(to_memory) << 1);
        wait_until("the end of a transfer", || self.read32(0x98) & 1 == 0);
    }
}

/// Where an edu's buffer is.
pub(crate) const EDU_BUFFER: u64 = 0x4_0000;

pub(crate) fn pages(count: u64) -> SharedMemory {
    SharedMemory::allocate(ByteLength::new(count * 4096), Pages::Base).unwrap()
}

/// A file of memory that can be cut.
pub(crate) fn memory_file(bytes: &[u8]) -> File {
    let mut file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
    file.write_all(bytes).unwrap();
    file
}

#[track_caller]
pub(crate) fn wait_until(what: &str, look: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !look() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::yield_now();
    }
}
