//! An emulated NVMe controller: admin commands and their errors.

use vdk_firmware_stubs::{NamespaceOptions, StubOptions};
use vdk_hal::dma::Permissions;

use super::harness::{bytes, wait_until};
use super::nvme_host::{ACQ, AQA, ASQ, CC, CSTS, Command, Host, head_doorbell, small, tail_doorbell};

const BUFFER: u64 = 0x800_0000;

#[test]
fn queues_with_wrong_numbers_sizes_or_places_are_refused() {
    let mut host = Host::small();
    let completion = |id: u32, size: u32, flags: u32, address: u64| {
        Command::new(0x05).pages(address, 0).dword(10, id | size << 16).dword(11, flags)
    };
    for (command, status) in [
        (completion(0, 3, 3, 0x1000), 0x101),
        (completion(5, 3, 3, 0x1000), 0x101),
        (completion(1, 0, 3, 0x1000), 0x102),
        (completion(1, 1024, 3, 0x1000), 0x102),
        (completion(1, 3, 3, 0x1800), 0x13),
        (completion(1, 3, 3 | 5 << 16, 0x1000), 0x108),
        (completion(1, 3, 2, 0x1000), 0x02),
        (completion(1, 3, 7, 0x1000), 0x02),
        (completion(1, 3, 3 | 4 << 16, 0x1000), 0),
        (completion(1, 3, 3, 0x1000), 0x101),
    ] {
        assert_eq!(host.admin(command).status, status, "{command:?}");
    }
    let submission = |id: u32, size: u32, flags: u32, address: u64| {
        Command::new(0x01).pages(address, 0).dword(10, id | size << 16).dword(11, flags)
    };
    for (command, status) in [
        (submission(1, 3, 1, 0x1000), 0x100),
        (submission(1, 3, 1 | 2 << 16, 0x1000), 0x100),
        (submission(0, 3, 1 | 1 << 16, 0x1000), 0x101),
        (submission(1, 0, 1 | 1 << 16, 0x1000), 0x102),
        (submission(1, 3, 1 | 1 << 16, 0x1004), 0x13),
        (submission(1, 3, 1 << 16, 0x1000), 0x02),
        (submission(2, 3, 1 | 1 << 16, 0x1000), 0),
        (submission(2, 3, 1 | 1 << 16, 0x1000), 0x101),
    ] {
        assert_eq!(host.admin(command).status, status, "{command:?}");
    }
    for (opcode, id, status) in
        [(0x04, 1, 0x10c), (0x00, 1, 0x101), (0x00, 0, 0x101), (0x00, 2, 0), (0x04, 0, 0x101), (0x04, 1, 0)]
    {
        assert_eq!(host.admin(Command::new(opcode).dword(10, id)).status, status, "{opcode:#x} {id}");
    }
}

#[test]
fn the_number_of_queues_is_granted_before_the_first_only() {
    let mut host = Host::small();
    let wanted = |count: u32| Command::new(0x09).dword(10, 7).dword(11, count | count << 16);
    assert_eq!(host.admin(wanted(0xffff)).status, 0x02);
    let granted = host.admin(wanted(63));
    assert_eq!((granted.status, granted.result), (0, 0x0003_0003));
    assert_eq!(host.admin(wanted(1)).result, 0x0001_0001);
    assert_eq!(host.admin(Command::new(0x0a).dword(10, 7)).result, 0x0001_0001);
    assert_eq!(host.create_completion(3, 4, 1), 0x101, "only two were granted");
    assert_eq!(host.create_completion(2, 4, 1), 0);
    assert_eq!(host.admin(wanted(1)).status, 0x0c);
}

#[test]
fn features_keep_what_is_set_until_the_reset() {
    let mut host = Host::small();
    let set = |feature: u32, value: u32| Command::new(0x09).dword(10, feature).dword(11, value);
    let read = |feature: u32| Command::new(0x0a).dword(10, feature);
    assert_eq!(host.admin(set(0x08, 0x0a05)).status, 0);
    assert_eq!(host.admin(read(0x08)).result, 0x0a05);
    assert_eq!(host.admin(read(0x108)).result, 0, "the default");
    assert_eq!(host.admin(read(0x308)).result, 4, "it can be changed");
    assert_eq!(host.admin(set(0x8000_0008, 1)).status, 0x10d, "it cannot be saved");
    assert_eq!(host.admin(set(0x08, 0x1_0000)).status, 0x02, "a reserved bit");
    assert_eq!(host.admin(set(0x08, 1).namespace(1)).status, 0x10f);
    assert_eq!(host.admin(set(0x05, 5).namespace(1)).status, 0);
    assert_eq!(host.admin(set(0x05, 5).namespace(9)).status, 0x0b);
    assert_eq!(host.admin(set(0x02, 1)).status, 0x02, "there is one power state");
    assert_eq!(host.admin(set(0x7f, 1)).status, 0x02, "there is no such feature");
    assert_eq!(host.admin(read(0x06)).status, 0x02, "memory has no cache");
    host.disable();
    host.enable(0x0046_0001);
    assert_eq!(host.admin(read(0x08)).result, 0);
    assert_eq!(host.bench.faults(), Vec::<String>::new());
}

#[test]
fn log_pages_tell_of_errors_and_of_what_was_done() {
    let mut host = Host::small();
    let memory = host.bench.map(BUFFER, 0x2000, Permissions::ReadWrite);
    let log =
        |page: u32, dwords: u32| Command::new(0x02).pages(BUFFER, 0).dword(10, page | (dwords - 1) << 16);
    let failed = host.admin(Command::new(0xaa).namespace(7).dword(10, 5));
    assert_eq!((failed.status, failed.do_not_retry), (0x01, true));
    assert_eq!(host.admin(log(1, 32)).status, 0);
    let page = bytes(&memory);
    assert_eq!(page[..8], 1u64.to_le_bytes());
    assert_eq!(page[10..12], failed.command.to_le_bytes());
    assert_eq!(page[12..14], 0xc002u16.to_le_bytes());
    assert_eq!((page[16], page[24]), (5, 7));
    assert_eq!(page[64..128], [0; 64]);
    assert_eq!(host.admin(log(2, 128)).status, 0);
    assert_eq!(bytes(&memory)[1..3], 313u16.to_le_bytes());
    assert_eq!(bytes(&memory)[176], 1, "one error");
    assert_eq!(host.admin(log(3, 128)).status, 0);
    assert_eq!(bytes(&memory)[8..11], *b"1.0");
    assert_eq!(host.admin(log(5, 1024)).status, 0);
    assert_eq!((bytes(&memory)[4 * 6], bytes(&memory)[4 * (256 + 1)]), (1, 3));
    assert_eq!(host.admin(log(5, 1).dword(12, 1024)).status, 0);
    assert_eq!(bytes(&memory)[0], 1, "flush, by an offset");
    assert_eq!(host.admin(log(5, 1).dword(12, 2)).status, 0x02);
    assert_eq!(host.admin(log(5, 1).dword(12, 4100)).status, 0x02);
    assert_eq!(host.admin(log(0x70, 1)).status, 0x109);
    assert_eq!(host.admin(log(2, 128).namespace(1)).status, 0x02);
}

#[test]
fn events_come_when_they_were_asked_for() {
    let mut host = Host::small();
    host.bench.map(BUFFER, 0x2000, Permissions::ReadWrite);
    let request = host.next();
    host.admin.post(request, Command::new(0x0c));
    host.admin.ring(&host.bench);
    // A limit below the temperature, and then that the host wants to know.
    assert_eq!(host.admin(Command::new(0x09).dword(10, 4).dword(11, 300)).status, 0);
    host.admin.post(500, Command::new(0x09).dword(10, 11).dword(11, 2));
    host.admin.ring(&host.bench);
    let done = [host.admin.take(&host.bench), host.admin.take(&host.bench)];
    let event = done.iter().find(|done| done.command == request).unwrap();
    assert_eq!((event.status, event.result), (0, 0x0002_0101));
    // The same does not come again before its page was read.
    for id in 501..505 {
        host.admin.post(id, Command::new(0x0c));
    }
    host.admin.post(505, Command::new(0x0c));
    host.admin.ring(&host.bench);
    let done = host.admin.take(&host.bench);
    assert_eq!((done.command, done.status), (505, 0x105), "four requests are the limit");
    let abort = host.admin(Command::new(0x08).dword(10, 999 << 16));
    assert_eq!((abort.status, abort.result), (0, 1));
    host.admin.post(600, Command::new(0x08).dword(10, 502 << 16));
    host.admin.ring(&host.bench);
    let done = [host.admin.take(&host.bench), host.admin.take(&host.bench)];
    assert_eq!((done[0].command, done[0].status), (502, 0x07));
    assert_eq!((done[1].command, done[1].result), (600, 0));
    host.admin.post(601, Command::new(0x02).pages(BUFFER, 0).dword(10, 2 | 127 << 16));
    host.admin.ring(&host.bench);
    assert_eq!(host.admin.take(&host.bench).command, 601);
    let event = host.admin.take(&host.bench);
    assert_eq!((event.command, event.result), (501, 0x0002_0101));
}

#[test]
fn a_wrong_doorbell_is_taken_back_and_told() {
    for mapped_doorbells in [true, false] {
        let mut host = Host::new(StubOptions { mapped_doorbells, ..small() });
        let mut pair = host.pair(1, 8);
        host.admin.post(700, Command::new(0x0c));
        host.admin.ring(&host.bench);
        host.bench.write::<u32>(tail_doorbell(1), 8);
        let event = host.admin.take(&host.bench);
        assert_eq!((event.command, event.result), (700, 0x0001_0100), "the value is no place");
        // One after the other: the controller looks at its queues in an order of its own.
        host.bench.write::<u32>(head_doorbell(1), 1);
        wait_until("the second is found", || host.bench.node.driver_fault_count() == 2);
        host.bench.write::<u32>(tail_doorbell(3), 1);
        wait_until("the third is found", || host.bench.node.driver_fault_count() == 3);
        assert_eq!(
            host.bench.faults(),
            [
                "queue 1 got doorbell value 0x8: there is no such entry",
                "queue 1 got doorbell value 0x1: so much was not posted",
                "queue 3 got doorbell value 0x1: there is no such queue",
            ]
        );
        assert_eq!(host.io(&mut pair, Command::new(0).namespace(1)).status, 0, "the queue goes on");
    }
}

#[test]
fn a_format_changes_the_block_size_and_erases() {
    let first = NamespaceOptions { bytes: 4 << 20, ..NamespaceOptions::default() };
    let second = NamespaceOptions { bytes: 1 << 20, block_size: 4096, ..NamespaceOptions::default() };
    let mut host = Host::new(StubOptions { namespaces: vec![first, second], ..StubOptions::default() });
    let mut pair = host.pair(1, 8);
    let memory = host.bench.map(BUFFER, 0x2000, Permissions::ReadWrite);
    memory.fill(0, 0x1000, 0x5a).unwrap();
    assert_eq!(host.io(&mut pair, Command::write(8, 8).pages(BUFFER, 0)).status, 0);
    assert_eq!(host.admin(Command::new(0x80).namespace(1).dword(10, 2)).status, 0x10a);
    assert_eq!(host.admin(Command::new(0x80).namespace(3).dword(10, 1)).status, 0x0b);
    assert_eq!(host.admin(Command::new(0x80).namespace(1).dword(10, 1)).status, 0);
    assert_eq!(host.io(&mut pair, Command::read(1, 1).pages(BUFFER + 0x1000, 0)).status, 0);
    assert_eq!(bytes(&memory)[0x1000..], [0; 0x1000]);
    assert_eq!(host.io(&mut pair, Command::read(1024, 1).pages(BUFFER, 0)).status, 0x80);
    assert_eq!(host.admin(Command::new(0x80).namespace(u32::MAX).dword(10, 0)).status, 0);
    assert_eq!(host.admin(Command::new(0x06).namespace(2).pages(BUFFER, 0)).status, 0);
    assert_eq!(bytes(&memory)[..8], 2048u64.to_le_bytes());
}

#[test]
fn the_controller_is_enabled_with_right_values_only() {
    let host = Host::small();
    host.bench.write::<u32>(AQA, 0);
    host.bench.write::<u32>(CC, 0x0046_0081);
    assert_eq!(host.bench.read::<u32>(CC), 0x0046_0001);
    host.disable();
    host.bench.write::<u64>(ASQ, 0x800);
    host.bench.write::<u32>(CC, 0x0046_0001);
    wait_until("it has failed", || host.status() == 2);
    host.disable();
    wait_until("the reset", || host.status() == 0);
    host.bench.write::<u64>(ACQ, 0x1000);
    host.bench.write::<u32>(CC, 0x0146_0000);
    assert_eq!(
        host.bench.faults(),
        [
            "the controller is enabled",
            "the controller cannot be enabled: ASQ or ACQ is not on a page",
            "the bits 0x1000000 are reserved"
        ]
    );
}

#[test]
fn a_shutdown_is_completed_and_ends_with_a_reset() {
    let mut host = Host::small();
    host.bench.write::<u32>(CC, 0x0046_4001);
    wait_until("the shutdown is complete", || host.status() == 0x9);
    host.bench.write::<u32>(CC, 0x0046_0000);
    wait_until("the reset", || host.status() == 0);
    host.enable(0x0046_0001);
    assert_eq!(host.admin(Command::new(0x18)).status, 0, "keep alive");
}

#[test]
fn a_host_that_does_not_say_it_lives_is_given_up() {
    let mut host = Host::small();
    assert_eq!(host.admin(Command::new(0x09).dword(10, 15).dword(11, 2000)).status, 0);
    assert_eq!(host.admin(Command::new(0x0a).dword(10, 15)).result, 2000);
    wait_until("the fatal error", || host.bench.read::<u32>(CSTS) & 2 != 0);
    host.disable();
    host.enable(0x0046_0001);
    assert_eq!(host.admin(Command::new(0x0a).dword(10, 15)).result, 0);
}
