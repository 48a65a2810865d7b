//! Clients that mean no good.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;
use vdk_firmware_stubs::StubKind;
use vdk_hal::interrupt::EventFd;
use vdk_hal::vfio_user::message::{Command, Header, RegionAccess, ShortWrite, Version, WriteCount, region};
use vdk_hal::vfio_user::transport::TransportError;
use zerocopy::IntoBytes;

use crate::harness::*;

#[test]
fn commands_that_are_cut_off_are_refused_and_the_session_goes_on() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let lengths = [
        (Command::DMA_MAP, 32),
        (Command::DMA_UNMAP, 24),
        (Command::DEVICE_GET_INFO, 16),
        (Command::DEVICE_GET_REGION_INFO, 32),
        (Command::DEVICE_GET_IRQ_INFO, 16),
        (Command::DEVICE_SET_IRQS, 20),
        (Command::REGION_READ, 16),
        (Command::REGION_WRITE, 16),
        (Command::REGION_WRITE_MULTI, 8),
    ];
    for (command, length) in lengths {
        for short in [0, 1, length - 1] {
            assert_eq!(client.call(command, &[&vec![0; short]]).err(), Some(EINVAL), "{command} {short}");
        }
    }
    for number in [0, 6, 11, 12, 14, 16, 17, 18, 19, 0xffff] {
        assert_eq!(client.call(Command(number), &[&[0; 64]]).err(), Some(EOPNOTSUPP), "{number}");
    }
    assert_eq!(client.negotiate().err(), Some(EINVAL), "the version is agreed on once");
    let event = EventFd::new().unwrap();
    let info = client.call_with(Command::DEVICE_GET_INFO, &[&[0; 16]], &[event.as_fd()]);
    assert_eq!(info.err(), Some(EINVAL), "a file that means nothing");
    assert_eq!(client.config32(0), 0x2f20_8086);
}

#[test]
fn accesses_outside_of_regions_are_refused() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    client.enable();
    for (number, offset, count) in [
        (0, 0x4000, 1),
        (0, 0x3fff, 2),
        (0, u64::MAX, 1),
        (0, u64::MAX - 3, 8),
        (0, 0, 0x4001),
        (0, 0, u32::MAX),
        (1, 0, 4),
        (6, 0, 4),
        (7, 4096, 4),
        (7, 4093, 4),
        (8, 0, 1),
        (9, 0, 1),
        (u32::MAX, 0, 1),
    ] {
        assert_eq!(client.read(number, offset, count).err(), Some(EINVAL), "{number} {offset:#x} {count:#x}");
        let access = RegionAccess { offset, region: number, count };
        let bytes = vec![0; usize::try_from(count.min(0x5000)).unwrap()];
        let written = client.call(Command::REGION_WRITE, &[access.as_bytes(), &bytes]);
        assert_eq!(written.err(), Some(EINVAL), "{number} {offset:#x} {count:#x}");
    }
    let access = RegionAccess { offset: 0, region: 0, count: 8 };
    assert_eq!(client.call(Command::REGION_WRITE, &[access.as_bytes(), &[0; 7]]).err(), Some(EINVAL));
    assert_eq!(client.read(7, 0, 0), Ok(vec![]));
}

#[test]
fn configuration_space_is_read_in_one_go_and_in_any_pieces() {
    let served = serve(StubKind::Ioat);
    let client = served.client();
    let whole = client.read(region::CONFIG, 0, 4096).unwrap();
    assert_eq!(&whole[..4], [0x86, 0x80, 0x20, 0x2f]);
    for (offset, length) in [(0, 256), (1, 3), (3, 10), (4093, 3), (0x100, 64)] {
        let start = usize::try_from(offset).unwrap();
        let count = u32::try_from(length).unwrap();
        assert_eq!(client.read(region::CONFIG, offset, count).unwrap(), whole[start..start + length]);
    }
    drop((client, served));

    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    client.write32(0x04, 0x0f0f_0f0f);
    let block = client.read(0, 0, 12).unwrap();
    let expected = [0x0100_00edu32.to_le_bytes(), 0xf0f0_f0f0u32.to_le_bytes(), [0; 4]].concat();
    assert_eq!(block, expected, "three registers, one access each");
    assert_eq!(served.node.driver_faults(), []);
}

#[test]
fn several_writes_in_one_message_are_done_in_order_until_one_is_refused() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let write = |offset, count, value: u32| ShortWrite {
        access: RegionAccess { offset, region: 0, count },
        bytes: u64::from(value).to_le_bytes(),
    };
    let writes = [write(0x04, 4, 0xffff_0000), write(0x04, 4, 0x1234_5678), write(0x10_0000, 4, 1)];
    let count = WriteCount { count: 3 };
    let reply = client.call(Command::REGION_WRITE_MULTI, &[count.as_bytes(), writes.as_bytes()]).unwrap();
    assert_eq!(reply.parse::<WriteCount>().unwrap().0.count, 2, "the third is outside");
    assert_eq!(client.read32(0x04), !0x1234_5678);
    let many = WriteCount { count: u64::MAX };
    assert_eq!(
        client.call(Command::REGION_WRITE_MULTI, &[many.as_bytes(), writes.as_bytes()]).err(),
        Some(EINVAL)
    );
    let long = [write(0x04, 9, 0)];
    let one = WriteCount { count: 1 };
    assert_eq!(
        client.call(Command::REGION_WRITE_MULTI, &[one.as_bytes(), long.as_bytes()]).err(),
        Some(EINVAL)
    );
}

#[test]
fn a_command_without_a_reply_gets_none_not_even_when_it_is_wrong() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    let quiet =
        Header { id: 1, command: Command::REGION_WRITE.0, flags: Header::NO_REPLY, ..Header::default() };
    let access = RegionAccess { offset: 4, region: 0, count: 4 };
    client.send(quiet, &[access.as_bytes(), &[1, 2, 3, 4]], &[]);
    client.send(quiet, &[&[0; 3]], &[]);
    assert_eq!(client.read32(0x04), !0x0403_0201, "the next reply is to the next question");
}

#[test]
fn clients_that_do_not_begin_properly_are_sent_away_and_the_next_is_served() {
    let served = serve(StubKind::Edu);
    let first = |header: Header, payload: &[u8]| {
        let client = served.connect();
        client.send(header, &[payload], &[]);
        match client.receive() {
            Ok(reply) => {
                assert!(matches!(client.receive(), Err(TransportError::Closed)));
                reply.header.error
            }
            Err(_) => 0,
        }
    };
    let version = Header { command: Command::VERSION.0, ..Header::default() };
    assert_eq!(first(Header { command: Command::DEVICE_RESET.0, ..version }, &[]), EINVAL);
    assert_eq!(first(Header { flags: Header::REPLY, ..version }, Version::OURS.as_bytes()), EINVAL);
    assert_eq!(first(version, &[0; 3]), EINVAL);
    assert_eq!(first(version, &[0, 0, 1, 0, b'{']), EINVAL);
    assert_eq!(first(version, Version { major: 1, minor: 0 }.as_bytes()), EOPNOTSUPP);
    drop(served.connect());
    let half = UnixStream::connect(&served.path).unwrap();
    (&half).write_all(&[1, 2, 3]).unwrap();
    drop(half);
    served.client().enable();
}

#[test]
fn messages_that_cannot_be_end_the_session_and_the_next_client_is_served() {
    let served = serve(StubKind::Edu);
    let broken: [&[u8]; 3] = [
        Header { command: 9, size: 15, ..Header::default() }.as_bytes(),
        Header { command: 9, size: u32::MAX, ..Header::default() }.as_bytes(),
        Header { command: 9, size: 16, flags: Header::REPLY, ..Header::default() }.as_bytes(),
    ]
    .map(|bytes| -> &[u8] { bytes.to_vec().leak() });
    for bytes in broken {
        let stream = UnixStream::connect(&served.path).unwrap();
        let raw = stream.try_clone().unwrap();
        let client = Client::new(stream);
        client.negotiate().unwrap();
        (&raw).write_all(bytes).unwrap();
        assert!(client.receive().is_err());
    }
    served.client().enable();
}

#[test]
fn a_second_client_is_told_that_the_device_is_busy() {
    let served = serve(StubKind::Edu);
    let first = served.client();
    for _ in 0..3 {
        assert_eq!(served.connect().negotiate().err(), Some(EBUSY));
    }
    first.enable();
    drop(first);
    served.client().enable();
    assert_eq!(served.server.server().clients(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a client says, it gets an answer or is hung up on, and the next is served.
    #[test]
    fn any_commands_are_answered(
        commands in proptest::collection::vec(
            (0u16..20, any::<bool>(), proptest::collection::vec(any::<u8>(), 0..64), 0usize..3), 1..20),
        numbers in proptest::collection::vec(0u32..12, 8),
    ) {
        let served = serve(StubKind::Ioat);
        let client = served.client();
        let event = EventFd::new().unwrap();
        for (command, small, mut payload, files) in commands {
            if small {
                // Numbers that are nearly right go further than any others.
                payload = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
            }
            let files = vec![event.as_fd(); files];
            let header = Header { id: 7, command, ..Header::default() };
            client.send(header, &[&payload], &files);
            let reply = client.receive().expect("an answer");
            prop_assert!(reply.header.is_reply());
            prop_assert_eq!((reply.header.id, reply.header.command), (7, command));
        }
        drop(client);
        prop_assert_eq!(served.client().config32(0), 0x2f20_8086);
    }
}
