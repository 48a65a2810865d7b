//! The vfio-user client against servers that answer what they like.

#![cfg(not(miri))]

use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use vdk_hal::address::{BarIndex, ByteLength, Iova, IovaRange};
use vdk_hal::bar::BarError;
use vdk_hal::config::ConfigError;
use vdk_hal::dma::{MapError, Permissions, UnmapError};
use vdk_hal::event::DeviceEvent;
use vdk_hal::function::{OpenError, PciNode};
use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::vfio_user::capabilities::Capabilities;
use vdk_hal::vfio_user::message::{
    Command, DeviceInfo, DmaAccess, Header, InterruptInfo, RegionAccess, RegionDescription, Version,
};
use vdk_hal::vfio_user::transport::{Channel, Message};
use vdk_hal::vfio_user::{VfioUserNode, VfioUserOptions};
use zerocopy::IntoBytes;

/// What a server says to a command.
enum Say {
    /// What an honest server says.
    Truth,
    /// A payload.
    Payload(Vec<u8>),
    /// An error.
    Error(u32),
    /// A reply to another command.
    Other,
    /// Nothing.
    Silence,
    /// It hangs up.
    End,
}

/// What is said to every command of one kind.
type Lie = Box<dyn Fn() -> Say + Send>;

/// A server with a function of 64 KiB of BAR 0 and two MSI-X vectors, that says the truth
/// unless `say` has something else.
struct Liar {
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
    /// What the server sends by itself, and the replies to that.
    ask: Sender<(Command, Vec<u8>)>,
    replies: Receiver<Message>,
}

impl Liar {
    fn new(say: impl Fn(&Message) -> Say + Send + 'static) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("vdk-liar-{}-{number}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let (ask, questions) = channel::<(Command, Vec<u8>)>();
        let (answers, replies) = channel();
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            let channel = Channel::new(stream.into()).unwrap();
            let mut config = vec![0u8; 256];
            config[..4].copy_from_slice(&[0x34, 0x12, 0x78, 0x56]);
            loop {
                for (command, payload) in questions.try_iter() {
                    let header = Header { id: 0x7777, command: command.0, ..Header::default() };
                    channel.send(header, &[&payload], &[]).unwrap();
                }
                let message = match channel.receive(Duration::from_millis(2)) {
                    Ok(message) => message,
                    Err(vdk_hal::vfio_user::transport::TransportError::TimedOut) => continue,
                    Err(_) => return,
                };
                if message.header.is_reply() {
                    let _ = answers.send(message);
                    continue;
                }
                let (flags, error, command, payload) = match say(&message) {
                    Say::Truth => (0, 0, message.header.command, truth(&message, &mut config)),
                    Say::Payload(payload) => (0, 0, message.header.command, payload),
                    Say::Error(error) => (Header::ERROR, error, message.header.command, Vec::new()),
                    Say::Other => (0, 0, message.header.command ^ 1, Vec::new()),
                    Say::Silence => continue,
                    Say::End => return,
                };
                if message.header.wants_reply() {
                    let flags = Header::REPLY | flags;
                    let header = Header { id: message.header.id, command, flags, error, ..Header::default() };
                    let _ = channel.send(header, &[&payload], &[]);
                }
            }
        });
        Self { path, thread: Some(thread), ask, replies }
    }

    fn node(&self) -> VfioUserNode {
        VfioUserNode::with_options(&self.path, VfioUserOptions { timeout: Duration::from_secs(2) })
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
        if let Some(thread) = self.thread.take().filter(|thread| thread.is_finished()) {
            thread.join().unwrap();
        }
    }
}

/// What an honest server says.
fn truth(message: &Message, config: &mut [u8]) -> Vec<u8> {
    match Command(message.header.command) {
        Command::VERSION => [Version::OURS.as_bytes(), &Capabilities::OURS.to_text()].concat(),
        Command::DEVICE_GET_INFO => {
            let info = DeviceInfo { argument_size: 16, flags: 3, regions: 9, interrupts: 5 };
            info.as_bytes().to_vec()
        }
        Command::DEVICE_GET_REGION_INFO => {
            let (request, _) = message.parse::<RegionDescription>().unwrap();
            let size = match request.index {
                0 => 0x1_0000,
                7 => 256,
                _ => 0,
            };
            let info = RegionDescription {
                argument_size: 32,
                flags: 3,
                index: request.index,
                size,
                ..RegionDescription::default()
            };
            info.as_bytes().to_vec()
        }
        Command::DEVICE_GET_IRQ_INFO => {
            let (request, _) = message.parse::<InterruptInfo>().unwrap();
            let count = u32::from(request.index == 2) * 2;
            InterruptInfo { argument_size: 16, flags: 1, index: request.index, count }.as_bytes().to_vec()
        }
        Command::REGION_READ => {
            let (access, _) = message.parse::<RegionAccess>().unwrap();
            let bytes = match access.region {
                7 => {
                    let start = usize::try_from(access.offset).unwrap();
                    config[start..start + usize::try_from(access.count).unwrap()].to_vec()
                }
                _ => vec![0xab; usize::try_from(access.count).unwrap()],
            };
            [access.as_bytes(), &bytes].concat()
        }
        Command::REGION_WRITE => {
            let (access, bytes) = message.parse::<RegionAccess>().unwrap();
            if access.region == 7 {
                let start = usize::try_from(access.offset).unwrap();
                config[start..start + bytes.len()].copy_from_slice(bytes);
            }
            access.as_bytes().to_vec()
        }
        Command::DMA_UNMAP => message.payload.clone(),
        _ => Vec::new(),
    }
}

fn on(command: Command, say: impl Fn() -> Say + Send + 'static) -> impl Fn(&Message) -> Say + Send {
    move |message| if message.header.command == command.0 { say() } else { Say::Truth }
}

#[test]
fn an_honest_server_is_opened_used_and_closed() {
    let liar = Liar::new(|_| Say::Truth);
    let function = liar.node().open().unwrap();
    let bar = function.bar(BarIndex::new(0).unwrap()).unwrap();
    assert_eq!(bar.read::<u32>(4), Ok(0xabab_abab));
    assert_eq!(function.interrupts().vector_count(InterruptKind::Msix), 2);
    assert_eq!(function.interrupts().vector_count(InterruptKind::Intx), 0);
    function.close();
    assert_eq!(bar.read::<u32>(4), Err(BarError::NotOpen { bar: BarIndex::new(0).unwrap() }));
}

#[test]
fn servers_that_answer_nonsense_at_the_beginning_are_not_opened() {
    let short = || Say::Payload(vec![0; 3]);
    let version = |major, minor| Version { major, minor }.as_bytes().to_vec();
    let with = |text: &[u8]| [Version::OURS.as_bytes(), text].concat();
    let refused: Vec<(Command, Lie)> = vec![
        (Command::VERSION, Box::new(short)),
        (Command::VERSION, Box::new(move || Say::Payload(version(1, 0)))),
        (Command::VERSION, Box::new(move || Say::Payload(version(0, 9)))),
        (Command::VERSION, Box::new(move || Say::Payload(with(b"{\"capabilities\":7}\0")))),
        (Command::VERSION, Box::new(|| Say::Other)),
        (Command::VERSION, Box::new(|| Say::Silence)),
        (Command::VERSION, Box::new(|| Say::End)),
        (Command::VERSION, Box::new(|| Say::Error(0))),
        (Command::DEVICE_GET_INFO, Box::new(short)),
        (Command::DEVICE_GET_INFO, Box::new(|| Say::Payload(vec![0; 16]))),
        (Command::DEVICE_GET_INFO, Box::new(|| Say::Error(u32::MAX))),
        (Command::DEVICE_GET_REGION_INFO, Box::new(short)),
        (Command::DEVICE_GET_REGION_INFO, Box::new(|| Say::Payload(vec![0xff; 32]))),
        (Command::DEVICE_GET_REGION_INFO, Box::new(|| Say::Payload(vec![0; 32]))),
        (Command::DEVICE_GET_IRQ_INFO, Box::new(short)),
        (Command::REGION_READ, Box::new(short)),
        (Command::REGION_READ, Box::new(|| Say::Payload(vec![0; 16]))),
        (Command::REGION_READ, Box::new(|| Say::End)),
    ];
    for (number, (command, say)) in refused.into_iter().enumerate() {
        let liar = Liar::new(on(command, say));
        let error = liar.node().open().map(drop).unwrap_err();
        assert!(matches!(error, OpenError::Refused { .. }), "{number}, {command}: {error:?}");
    }
    for (error, busy) in [(16, true), (19, false)] {
        let liar = Liar::new(on(Command::VERSION, move || Say::Error(error)));
        match liar.node().open().map(drop).unwrap_err() {
            OpenError::Busy { .. } => assert!(busy),
            OpenError::Gone { .. } => assert!(!busy),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_server_that_hangs_up_is_a_function_that_is_gone() {
    let liar = Liar::new(|message| match message.parse::<RegionAccess>() {
        Some((access, _)) if message.header.command == 9 && access.region == 0 => Say::End,
        _ => Say::Truth,
    });
    let function = liar.node().open().unwrap();
    let bar = function.bar(BarIndex::new(0).unwrap()).unwrap();
    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    function.dma().map(Iova::new(0x1000), &memory, Permissions::Read).unwrap();
    let gone = BarError::DeviceGone { bar: BarIndex::new(0).unwrap() };
    assert_eq!(bar.read::<u32>(0), Err(gone.clone()));
    assert!(function.events().event().wait(Duration::from_secs(20)).unwrap());
    assert_eq!(function.events().next(), Some(DeviceEvent::Removed));
    assert_eq!(bar.write::<u32>(0, 1), Err(gone));
    assert_eq!(function.config().read32(0), Err(ConfigError::DeviceGone));
    let range = IovaRange::new(Iova::new(0x1000), ByteLength::SIZE_4K).unwrap();
    assert_eq!(function.dma().unmap(range), Ok(ByteLength::SIZE_4K), "its mappings went with it");
    assert!(memory.has_no_other_holder());
}

#[test]
fn a_server_that_does_not_answer_is_not_waited_for_for_ever() {
    let liar = Liar::new(|message| match message.parse::<RegionAccess>() {
        Some((access, _)) if message.header.command == 9 && access.region == 0 => Say::Silence,
        _ => Say::Truth,
    });
    let function = liar.node().open().unwrap();
    let bar = function.bar(BarIndex::new(0).unwrap()).unwrap();
    for _ in 0..2 {
        let error = bar.read::<u32>(0).unwrap_err();
        assert!(matches!(error, BarError::System { error: std::io::ErrorKind::TimedOut, .. }), "{error:?}");
    }
    assert_eq!(function.config().read16(0), Ok(0x1234), "the rest still works");
}

#[test]
fn refused_mappings_and_interrupts_leave_everything_as_it_was() {
    let liar = Liar::new(|message| match Command(message.header.command) {
        Command::DMA_MAP => Say::Error(28),
        Command::DEVICE_SET_IRQS => Say::Error(22),
        _ => Say::Truth,
    });
    let function = liar.node().open().unwrap();
    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    for _ in 0..2 {
        let error = function.dma().map(Iova::new(0x1000), &memory, Permissions::Read).unwrap_err();
        assert_eq!(error, MapError::TooManyMappings { limit: 65535 });
    }
    assert!(memory.has_no_other_holder());
    let range = IovaRange::new(Iova::new(0x1000), ByteLength::SIZE_4K).unwrap();
    assert_eq!(function.dma().unmap(range), Err(UnmapError::NotMapped { range }));
    let event = EventFd::new().unwrap();
    let enabled = function.interrupts().enable(InterruptKind::Msix, &[Some(event)]);
    assert!(matches!(enabled, Err(InterruptError::System { .. })), "{enabled:?}");
    assert_eq!(function.interrupts().enabled(), None);
}

#[test]
fn a_server_reaches_mapped_memory_by_messages_and_nothing_else() {
    let liar = Liar::new(|_| Say::Truth);
    let function = liar.node().open().unwrap();
    let memory = SharedMemory::allocate(ByteLength::SIZE_2M, Pages::Transparent).unwrap();
    let (readable, writable) = (memory.slice(0, 4096).unwrap(), memory.slice(4096, 4096).unwrap());
    readable.write(8, b"for the device").unwrap();
    function.dma().map(Iova::new(0x10_0000), &readable, Permissions::Read).unwrap();
    function.dma().map(Iova::new(0x20_0000), &writable, Permissions::Write).unwrap();
    let ask = |command: Command, address: u64, count: u64, bytes: &[u8]| {
        let access = DmaAccess { address, count };
        liar.ask.send((command, [access.as_bytes(), bytes].concat())).unwrap();
        let reply = liar.replies.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!((reply.header.id, reply.header.command), (0x7777, command.0));
        if reply.header.flags & Header::ERROR == 0 { Ok(reply.payload) } else { Err(reply.header.error) }
    };
    let read = ask(Command::DMA_READ, 0x10_0008, 14, &[]).unwrap();
    assert_eq!(&read[16..], b"for the device");
    ask(Command::DMA_WRITE, 0x20_0ffc, 4, b"done").unwrap();
    assert_eq!(writable.read_value::<[u8; 4]>(0xffc), Ok(*b"done"));
    for (command, address, count, error) in [
        (Command::DMA_READ, 0x20_0000, 4, 13),
        (Command::DMA_WRITE, 0x10_0000, 4, 13),
        (Command::DMA_READ, 0x10_0ffd, 4, 14),
        (Command::DMA_READ, 0x30_0000, 4, 14),
        (Command::DMA_READ, 0, 4, 14),
        (Command::DMA_READ, 0x10_0000, 0, 22),
        (Command::DMA_READ, 0x10_0000, u64::MAX, 22),
        (Command::DMA_READ, u64::MAX, 4, 22),
        (Command::DMA_WRITE, 0x20_0000, 8, 22),
        (Command::DEVICE_RESET, 0, 0, 95),
    ] {
        assert_eq!(ask(command, address, count, b"1234"), Err(error), "{command} {address:#x}+{count:#x}");
    }
    let range = IovaRange::new(Iova::new(0x10_0000), ByteLength::SIZE_4K).unwrap();
    function.dma().unmap(range).unwrap();
    assert_eq!(ask(Command::DMA_READ, 0x10_0008, 14, &[]), Err(14));
}
