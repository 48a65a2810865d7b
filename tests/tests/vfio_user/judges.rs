//! The `vfio_user` crate as the other side: its client with our server, its server with our
//! client. It was written by other people from the same specification.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::address::{BarIndex, ByteLength, Iova, IovaRange};
use vdk_hal::config;
use vdk_hal::dma::Permissions;
use vdk_hal::function::PciNode;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::reset::ResetKind;
use vdk_hal::vfio_user::VfioUserNode;
use vfio_bindings::bindings::vfio::vfio_region_info;
use vfio_user::{Client, DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

use crate::conformance::ALONE;
use crate::harness::{serve, socket_path};

const LONG: Duration = Duration::from_secs(60);
const FILE_TRIGGER: u32 = 0x24;
const NONE_TRIGGER: u32 = 0x21;

#[test]
fn the_client_of_the_crate_drives_an_edu_on_our_server() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = serve(StubKind::Edu, StubOptions::default());
    let mut client = Client::new(&served.path).unwrap();
    // The crate has this flag the wrong way round: an edu has no reset.
    assert!(client.resettable());
    assert_eq!(client.region(0).map(|region| region.size), Some(0x10_0000));
    assert_eq!(client.get_irq_info(1).map(|info| info.count).unwrap(), 1);
    let mut word = [0; 4];
    client.region_read(7, 0, &mut word).unwrap();
    assert_eq!(u32::from_le_bytes(word), 0x11e8_1234);
    client.region_write(7, 4, &[6, 0]).unwrap();
    client.region_read(0, 0, &mut word).unwrap();
    assert_eq!(u32::from_le_bytes(word), 0x0100_00ed);

    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    memory.write(0, b"there and back").unwrap();
    let (file, offset) = memory.file().unwrap();
    client.dma_map(offset, 0x10_0000, 4096, file.as_raw_fd()).unwrap();
    let event = EventFd::new().unwrap();
    client.set_irqs(1, FILE_TRIGGER, 0, 1, &[event.as_fd().as_raw_fd()]).unwrap();
    for (source, destination, command) in
        [(0x10_0000u64, 0x4_0000u64, 0b101u32), (0x4_0000, 0x10_0800, 0b111)]
    {
        for (register, value) in [(0x80, source), (0x88, destination), (0x90, 14)] {
            client.region_write(0, register, &value.to_le_bytes()).unwrap();
        }
        client.region_write(0, 0x98, &command.to_le_bytes()).unwrap();
        assert!(event.wait(LONG).unwrap(), "the end of a transfer interrupts");
        event.drain();
        client.region_write(0, 0x64, &0x100u32.to_le_bytes()).unwrap();
    }
    assert_eq!(memory.read_value::<[u8; 14]>(0x800), Ok(*b"there and back"));
    client.set_irqs(1, NONE_TRIGGER, 0, 0, &[]).unwrap();
    client.dma_unmap(0x10_0000, 4096).unwrap();
    assert_eq!(served.node.iommu().fault_count(), 0);
    client.shutdown().unwrap();
}

#[test]
fn the_client_of_the_crate_resets_an_ioat_on_our_server() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let served = serve(StubKind::Ioat, StubOptions::default());
    let mut client = Client::new(&served.path).unwrap();
    assert!(!client.resettable(), "the crate has this flag the wrong way round");
    client.region_write(7, 4, &[6, 0]).unwrap();
    client.reset().unwrap();
    let mut command = [0; 2];
    client.region_read(7, 4, &mut command).unwrap();
    assert_eq!(u16::from_le_bytes(command) & 6, 0);
}

/// What the backend of the crate's server saw.
#[derive(Default)]
struct Seen {
    config: Vec<u8>,
    bar: Vec<u8>,
    maps: Vec<(bool, bool, u64, u64, u64, Option<File>)>,
    unmaps: Vec<(u64, u64)>,
    resets: u32,
    interrupts: Vec<(u32, u32, u32, u32)>,
    events: Vec<File>,
}

struct Backend(Arc<Mutex<Seen>>);

impl Backend {
    fn seen(&self) -> std::sync::MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerBackend for Backend {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), io::Error> {
        let seen = self.seen();
        let bytes = if region == 7 { &seen.config } else { &seen.bar };
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let part = bytes.get(start..start + data.len()).ok_or(io::ErrorKind::InvalidInput)?;
        data.copy_from_slice(part);
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        let mut seen = self.seen();
        let bytes = if region == 7 { &mut seen.config } else { &mut seen.bar };
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let part = bytes.get_mut(start..start + data.len()).ok_or(io::ErrorKind::InvalidInput)?;
        part.copy_from_slice(data);
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> Result<(), io::Error> {
        let (read, write) = (flags.contains(DmaMapFlags::READ), flags.contains(DmaMapFlags::WRITE));
        self.seen().maps.push((read, write, offset, address, size, fd));
        Ok(())
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> Result<(), io::Error> {
        self.seen().unmaps.push((address, size));
        Ok(())
    }

    fn reset(&mut self) -> Result<(), io::Error> {
        self.seen().resets += 1;
        Ok(())
    }

    fn set_irqs(
        &mut self,
        index: u32,
        flags: u32,
        start: u32,
        count: u32,
        fds: Vec<File>,
    ) -> Result<(), io::Error> {
        let mut seen = self.seen();
        seen.interrupts.push((index, flags, start, count));
        seen.events.extend(fds);
        Ok(())
    }
}

#[test]
fn our_client_drives_a_device_on_the_server_of_the_crate() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = socket_path();
    let region = |index: u32, size: u64| ServerRegion {
        region_info: vfio_region_info { argsz: 32, flags: 3, index, cap_offset: 0, size, offset: 0 },
        sparse_areas: Vec::new(),
        mmap_fd: None,
    };
    let sizes = [4096, 0, 0, 0, 0, 0, 0, 256, 0];
    let regions = (0..).zip(sizes).map(|(index, size)| region(index, size)).collect();
    let irqs = [1, 0, 4, 0, 0];
    let irqs = (0..).zip(irqs).map(|(index, count)| IrqInfo { index, count, flags: 1 }).collect();
    let server = Server::new(&path, true, irqs, regions).unwrap();
    let mut config = vec![0; 256];
    config[..4].copy_from_slice(&[0x34, 0x12, 0x78, 0x56]);
    config[0x3d] = 1;
    let seen = Arc::new(Mutex::new(Seen { config, bar: vec![0; 4096], ..Seen::default() }));
    let backend = Backend(Arc::clone(&seen));
    let running = std::thread::spawn(move || {
        let mut backend = backend;
        // It ends with its client.
        let _ = server.run(&mut backend);
    });

    let node = VfioUserNode::new(&path);
    let function = node.open().unwrap();
    let look = || seen.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(config::identity(function.config()).unwrap().device, 0x5678);
    assert_eq!(function.interrupts().vector_count(InterruptKind::Msix), 4);
    let bar = function.bar(BarIndex::new(0).unwrap()).unwrap();
    bar.write::<u32>(0x10, 0x1234_5678).unwrap();
    bar.write::<u64>(0x18, 0x1122_3344_5566_7788).unwrap();
    assert_eq!(bar.read::<u16>(0x12), Ok(0x1234));
    assert_eq!(bar.read::<u64>(0x18), Ok(0x1122_3344_5566_7788));

    let memory = SharedMemory::allocate(ByteLength::new(8192), Pages::Base).unwrap();
    let range = IovaRange::new(Iova::new(0x10_0000), ByteLength::new(8192)).unwrap();
    function.dma().map(range.start(), &memory, Permissions::Read).unwrap();
    {
        let seen = look();
        let (read, write, offset, address, size, file) = &seen.maps[0];
        assert_eq!((*read, *write, *offset, *address, *size), (true, false, 0, 0x10_0000, 8192));
        file.as_ref().unwrap().write_all_at(b"by its file", 4096).unwrap();
    }
    assert_eq!(memory.read_value::<[u8; 11]>(4096), Ok(*b"by its file"));

    let events = [EventFd::new().unwrap(), EventFd::new().unwrap()];
    let vectors: Vec<_> = events.iter().cloned().map(Some).collect();
    function.interrupts().enable(InterruptKind::Msix, &vectors).unwrap();
    let end = Instant::now() + LONG;
    while look().events.len() < 2 && Instant::now() < end {
        std::thread::yield_now();
    }
    let signalled: Vec<File> = look().events.iter().map(|file| file.try_clone().unwrap()).collect();
    assert_eq!(signalled.len(), 2);
    for file in signalled {
        EventFd::from_untrusted(file.into()).unwrap().signal(1);
    }
    assert_eq!(events.each_ref().map(EventFd::take), [1, 1]);
    function.reset(ResetKind::FunctionLevel).unwrap();
    assert_eq!(look().resets, 1);
    assert_eq!(look().interrupts.last(), Some(&(2, NONE_TRIGGER, 0, 0)), "interrupts are off after a reset");
    assert_eq!(function.dma().unmap(range), Ok(range.length()));
    assert_eq!(look().unmaps, [(0x10_0000, 8192)]);
    drop((bar, function));
    running.join().unwrap();
    let _ = std::fs::remove_file(&path);
}
