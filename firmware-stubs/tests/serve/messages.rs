//! Memory without a file: the client is asked, and may answer anything.

use std::io::Write;
use std::os::unix::net::UnixStream;

use vdk_firmware_stubs::StubKind;
use vdk_hal::vfio_user::message::{Command, DmaAccess, DmaMap, DmaUnmap, Header, RegionAccess, Version};
use vdk_hal::vfio_user::transport::Message;
use vdk_iommu::soft::FaultReason;
use zerocopy::IntoBytes;

use crate::harness::*;

const START: u64 = 0x5000;
const BOTH: u32 = DmaMap::READ | DmaMap::WRITE;

/// A client with two pages of its own.
fn client(served: &Served) -> Client {
    let client = served.client();
    client.enable();
    map(&client, BOTH).unwrap();
    client
}

fn map(client: &Client, flags: u32) -> Result<(), u32> {
    let request = DmaMap { argument_size: 32, flags, offset: 0, address: START, size: 0x2000 };
    client.map_with(&request, &[])
}

/// A way to answer a question.
type Reply<'a> = &'a dyn Fn(&Message);

/// Starts a transfer of an edu between its buffer and memory, and gives what is asked of the
/// client then.
fn question(client: &Client, address: u64, count: u64, to_memory: bool) -> Message {
    let (source, destination) = if to_memory { (EDU_BUFFER, address) } else { (address, EDU_BUFFER) };
    for (register, value) in [(0x80, source), (0x88, destination), (0x90, count)] {
        client.write(0, register, &value.to_le_bytes()).unwrap();
    }
    let access = RegionAccess { offset: 0x98, region: 0, count: 4 };
    let go = 1 | u32::from(to_memory) << 1;
    let header = Header { id: 7, command: Command::REGION_WRITE.0, ..Header::default() };
    client.send(header, &[access.as_bytes(), &go.to_le_bytes()], &[]);
    // The device may be faster than the reply.
    let (first, second) = (client.receive().unwrap(), client.receive().unwrap());
    let (question, reply) = if first.header.is_command() { (first, second) } else { (second, first) };
    assert!(question.header.is_command() && question.header.wants_reply(), "{:?}", question.header);
    assert_eq!((reply.header.is_reply(), reply.header.id), (true, 7));
    question
}

fn about(question: &Message) -> (Command, DmaAccess, &[u8]) {
    let (access, bytes) = question.parse::<DmaAccess>().unwrap();
    (Command(question.header.command), access, bytes)
}

/// Answers it, with a header that was changed.
fn answer_with(client: &Client, question: &Message, change: impl Fn(&mut Header), parts: &[&[u8]]) {
    let Header { id, command, .. } = question.header;
    let mut header = Header { id, command, flags: Header::REPLY, ..Header::default() };
    change(&mut header);
    client.send(header, parts, &[]);
}

fn answer(client: &Client, question: &Message, bytes: &[u8]) {
    let (_, access, _) = about(question);
    answer_with(client, question, |_| (), &[access.as_bytes(), bytes]);
}

fn wait_for_the_end(client: &Client) {
    wait_until("the end of a transfer", || client.read32(0x98) & 1 == 0);
}

#[test]
fn memory_without_a_file_is_read_and_written_by_asking_the_client() {
    let served = serve(StubKind::Edu);
    let client = client(&served);
    assert_eq!(map(&client, BOTH), Err(EEXIST));
    assert_eq!(client.map(0x6000, &pages(1), DmaMap::READ), Err(EEXIST));

    let asked = question(&client, START + 0x10, 16, false);
    assert_eq!(about(&asked), (Command::DMA_READ, DmaAccess { address: 0x5010, count: 16 }, &[][..]));
    answer(&client, &asked, b"from the client!");
    wait_for_the_end(&client);
    let asked = question(&client, START + 0x1ff0, 16, true);
    let written = (Command::DMA_WRITE, DmaAccess { address: 0x6ff0, count: 16 }, &b"from the client!"[..]);
    assert_eq!(about(&asked), written);
    answer(&client, &asked, &[]);
    wait_for_the_end(&client);
    assert_eq!(served.node.iommu().faults(), []);

    // Into memory with a file, across the edge.
    let page = pages(1);
    client.map(0x7000, &page, BOTH).unwrap();
    let asked = question(&client, 0x6ff8, 16, true);
    assert_eq!(about(&asked).1, DmaAccess { address: 0x6ff8, count: 8 });
    answer(&client, &asked, &[]);
    wait_for_the_end(&client);
    assert_eq!(page.read_value::<[u8; 8]>(0), Ok(*b" client!"));

    assert_eq!(client.unmap(0, START, 0x2000), Ok(0x2000));
    client.edu_transfer(START, 16, true);
    let faults = served.node.iommu().faults();
    assert_eq!((faults.len(), faults[0].reason), (1, FaultReason::NotMapped), "nobody was asked");
}

#[test]
fn permissions_are_checked_before_the_client_is_asked() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.enable();
    map(&client, DmaMap::READ).unwrap();
    client.edu_transfer(START, 16, true);
    assert_eq!(served.node.iommu().faults()[0].reason, FaultReason::NotWritable);
    client.unmap(DmaUnmap::ALL, 0, 0).unwrap();
    map(&client, DmaMap::WRITE).unwrap();
    client.edu_transfer(START, 16, false);
    assert_eq!(served.node.iommu().faults()[1].reason, FaultReason::NotReadable);
}

#[test]
fn a_wrong_answer_is_a_fault_and_the_device_goes_on() {
    let served = serve(StubKind::Edu);
    let client = client(&served);
    let right = DmaAccess { address: START, count: 16 };
    let wrong: [(&str, Reply<'_>); 8] = [
        ("nothing", &|asked| answer_with(&client, asked, |_| (), &[])),
        ("too few bytes", &|asked| answer(&client, asked, &[1; 15])),
        ("too many bytes", &|asked| answer(&client, asked, &[1; 17])),
        ("another address", &|asked| {
            let other = DmaAccess { address: START + 1, ..right };
            answer_with(&client, asked, |_| (), &[other.as_bytes(), &[1; 16]]);
        }),
        ("another length", &|asked| {
            let other = DmaAccess { count: 8, ..right };
            answer_with(&client, asked, |_| (), &[other.as_bytes(), &[1; 16]]);
        }),
        ("another command", &|asked| {
            let change = |header: &mut Header| header.command = Command::DMA_WRITE.0;
            answer_with(&client, asked, change, &[right.as_bytes(), &[1; 16]]);
        }),
        ("an error", &|asked| {
            let change =
                |header: &mut Header| (header.flags, header.error) = (Header::REPLY | Header::ERROR, 14);
            answer_with(&client, asked, change, &[]);
        }),
        ("another question", &|asked| {
            let change = |header: &mut Header| header.id ^= 1;
            answer_with(&client, asked, change, &[right.as_bytes(), &[1; 16]]);
        }),
    ];
    for (what, reply) in wrong {
        served.node.iommu().clear_faults();
        let asked = question(&client, START, 16, false);
        reply(&asked);
        wait_for_the_end(&client);
        let faults = served.node.iommu().faults();
        assert_eq!(faults.len(), 1, "{what}");
        assert_eq!(
            (faults[0].reason, faults[0].address.as_u64()),
            (FaultReason::NotAnswered, START),
            "{what}"
        );
    }
    let asked = question(&client, START, 16, false);
    answer(&client, &asked, &[2; 16]);
    wait_for_the_end(&client);
    assert_eq!(served.node.iommu().fault_count(), 1);
}

#[test]
fn commands_are_taken_while_an_answer_is_waited_for() {
    let served = serve(StubKind::Edu);
    let client = client(&served);
    let asked = question(&client, START, 16, false);
    // A register that the device thread is in the way of, and a region that it is not.
    let send = |id: u16, access: RegionAccess| {
        let header = Header { id, command: Command::REGION_READ.0, ..Header::default() };
        client.send(header, &[access.as_bytes()], &[]);
    };
    send(21, RegionAccess { offset: 0, region: 0, count: 4 });
    send(22, RegionAccess { offset: 0, region: 7, count: 4 });
    answer(&client, &asked, &[3; 16]);
    for id in [21, 22] {
        let reply = client.receive().unwrap();
        assert_eq!((reply.header.id, reply.header.flags), (id, Header::REPLY));
    }
    wait_for_the_end(&client);
    assert_eq!(served.node.iommu().faults(), []);
}

#[test]
fn an_unmap_waits_for_the_answer_and_not_for_ever() {
    let served = serve(StubKind::Edu);
    let client = client(&served);
    let _never_answered = question(&client, START, 16, false);
    assert_eq!(client.unmap(0, START, 0x2000), Ok(0x2000));
    wait_for_the_end(&client);
    let faults = served.node.iommu().faults();
    assert_eq!((faults.len(), faults[0].reason), (1, FaultReason::NotAnswered));
    // An answer that comes too late is for nobody.
    client.edu_transfer(START, 16, false);
    assert_eq!(served.node.iommu().faults()[1].reason, FaultReason::NotMapped);
}

#[test]
fn a_client_that_dies_while_it_is_asked_leaves_a_device_for_the_next() {
    let served = serve(StubKind::Edu);
    for to_memory in [true, false] {
        let client = client(&served);
        question(&client, START, 16, to_memory);
        drop(client);
    }
    let next = client(&served);
    let asked = question(&next, START, 16, false);
    answer(&next, &asked, &[4; 16]);
    wait_for_the_end(&next);
    assert_eq!(served.server.server().clients(), 3);
}

#[test]
fn a_client_that_stops_in_the_middle_of_an_answer_leaves_a_reset_device_for_the_next() {
    let served = serve(StubKind::Edu);
    let stream = UnixStream::connect(&served.path).unwrap();
    let raw = stream.try_clone().unwrap();
    let stopping = Client::new(stream);
    stopping.negotiate().unwrap();
    stopping.enable();
    map(&stopping, BOTH).unwrap();
    stopping.write32(0x20, 0x80);
    let asked = question(&stopping, START, 16, false);
    let header = Header { flags: Header::REPLY, size: 48, ..asked.header };
    (&raw).write_all(header.as_bytes()).unwrap();
    (&raw).write_all(&[0; 31]).unwrap();
    assert!(stopping.receive().is_err(), "it is dropped, although its end is open");
    let next = client(&served);
    assert_eq!(next.read32(0x20), 0, "the status is that of a reset");
    let asked = question(&next, START, 16, false);
    answer(&next, &asked, &[4; 16]);
    wait_for_the_end(&next);
    assert_eq!(served.node.iommu().faults().len(), 1);
    assert_eq!(served.node.iommu().faults()[0].reason, FaultReason::NotAnswered);
}

#[test]
fn a_client_is_asked_for_no_more_than_it_takes_at_once() {
    let served = serve(StubKind::Edu);
    let client = Client::new(UnixStream::connect(&served.path).unwrap());
    let text = b"{\"capabilities\":{\"max_data_xfer_size\":10}}\0";
    client.call(Command::VERSION, &[Version::OURS.as_bytes(), text]).unwrap();
    client.enable();
    map(&client, BOTH).unwrap();
    let asked = question(&client, START, 16, false);
    assert_eq!(about(&asked).1, DmaAccess { address: START, count: 10 });
    answer(&client, &asked, &[5; 10]);
    let asked = client.receive().unwrap();
    assert_eq!(about(&asked).1, DmaAccess { address: START + 10, count: 6 });
    answer(&client, &asked, &[6; 6]);
    wait_for_the_end(&client);
    assert_eq!(served.node.iommu().faults(), []);
}

#[test]
fn a_reply_that_nobody_waits_for_ends_a_client_that_was_never_asked() {
    let served = serve(StubKind::Edu);
    let client = served.client();
    client.send(
        Header { id: 1, command: Command::DMA_READ.0, flags: Header::REPLY, ..Header::default() },
        &[],
        &[],
    );
    wait_until("the end of the session", || client.call_is_over());
    let other = client_after(&served);
    other.send(
        Header { id: 99, command: Command::DMA_READ.0, flags: Header::REPLY, ..Header::default() },
        &[],
        &[],
    );
    assert!(other.read(7, 0, 4).is_ok(), "a late answer is no reason to hang up");
}

/// A client that was asked something before.
fn client_after(served: &Served) -> Client {
    let client = client(served);
    let asked = question(&client, START, 16, false);
    answer(&client, &asked, &[0; 16]);
    wait_for_the_end(&client);
    client
}
