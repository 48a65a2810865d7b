//! An emulated NVMe controller: enabling, identifying, reading and writing.

use vdk_hal::dma::Permissions;

use super::harness::{bytes, pattern};
use super::nvme_host::{CAP, Command, FLUSH, Host, INTMC, INTMS, VS, small};

const BUFFER: u64 = 0x800_0000;

#[test]
fn a_controller_is_enabled_and_says_what_it_is() {
    let mut host = Host::small();
    assert_eq!(host.bench.read::<u64>(CAP), 0x0040_0025_1401_03ff);
    assert_eq!(host.bench.read::<u32>(CAP + 4), 0x0040_0025);
    assert_eq!(host.bench.read::<u32>(VS), 0x0001_0400);
    let memory = host.bench.map(BUFFER, 4096, Permissions::ReadWrite);
    let identify = |cns| Command::new(0x06).pages(BUFFER, 0).dword(10, cns);
    assert_eq!(host.admin(identify(1)).status, 0);
    let page = bytes(&memory);
    assert_eq!(page[4..24], *b"vdk0000000000000000 ");
    assert_eq!(page[24..52], *b"vdk emulated NVMe controller");
    assert_eq!((page[77], page[512], page[513], page[516]), (7, 0x66, 0x44, 1));
    assert_eq!(host.admin(identify(0).namespace(1)).status, 0);
    let page = bytes(&memory);
    assert_eq!(page[..8], 2048u64.to_le_bytes());
    assert_eq!(page[128..136], [0, 0, 9, 0, 0, 0, 12, 0]);
    assert_eq!(host.admin(identify(0).namespace(2)).status, 0x0b);
    assert_eq!(host.admin(identify(2)).status, 0);
    assert_eq!(bytes(&memory)[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(host.bench.faults(), Vec::<String>::new());
}

#[test]
fn what_is_written_is_read_back() {
    let mut host = Host::small();
    let mut pair = host.pair(1, 16);
    let memory = host.bench.map(BUFFER, 0x4000, Permissions::ReadWrite);
    memory.write(0x200, &pattern(1, 0x1000)).unwrap();
    let write = Command::write(3, 8).pages(BUFFER + 0x200, BUFFER + 0x1000);
    assert_eq!(host.io(&mut pair, write).status, 0);
    assert_eq!(host.io(&mut pair, Command::new(FLUSH).namespace(1)).status, 0);
    assert_eq!(host.io(&mut pair, Command::read(3, 8).pages(BUFFER + 0x2000, 0)).status, 0);
    assert_eq!(bytes(&memory)[0x2000..0x3000], pattern(1, 0x1000));
    assert_eq!(host.bench.node.iommu().faults(), []);
}

#[test]
fn queues_wrap_many_times() {
    for mapped_doorbells in [true, false] {
        let mut host = Host::new(vdk_firmware_stubs::StubOptions { mapped_doorbells, ..small() });
        let mut pair = host.pair(1, 3);
        let memory = host.bench.map(BUFFER, 0x1000, Permissions::ReadWrite);
        for round in 0..50u64 {
            memory.write(0, &pattern(round as usize, 512)).unwrap();
            let done = host.io(&mut pair, Command::write(round, 1).pages(BUFFER, 0));
            assert_eq!((done.status, u64::from(done.head)), (0, (round + 1) % 3));
        }
        for round in 0..50u64 {
            assert_eq!(host.io(&mut pair, Command::read(round, 1).pages(BUFFER, 0)).status, 0);
            assert_eq!(bytes(&memory)[..512], pattern(round as usize, 512));
        }
        assert_eq!(host.bench.faults(), Vec::<String>::new());
    }
}

#[test]
fn a_disabled_controller_begins_again() {
    let mut host = Host::small();
    let mut pair = host.pair(1, 4);
    assert_eq!(host.io(&mut pair, Command::new(FLUSH).namespace(1)).status, 0);
    host.disable();
    host.enable(0x0046_0001);
    assert_eq!(host.create_completion(1, 4, 1), 0, "the queue was gone");
    assert_eq!(host.bench.read::<u32>(INTMS), 0);
    host.bench.write::<u32>(INTMS, 0x5);
    host.bench.write::<u32>(INTMC, 0x1);
    assert_eq!(host.bench.read::<u32>(INTMC), 0x4);
}

#[test]
fn a_list_describes_data_at_any_byte() {
    let mut host = Host::small();
    let mut pair = host.pair(1, 4);
    let memory = host.bench.map(BUFFER, 0x4000, Permissions::ReadWrite);
    memory.write(0x203, &pattern(2, 512)).unwrap();
    assert_eq!(host.io(&mut pair, Command::write(0, 1).list(BUFFER + 0x203, 512, 0)).status, 0);
    assert_eq!(host.io(&mut pair, Command::read(0, 1).pages(BUFFER + 0x1000, 0)).status, 0);
    assert_eq!(bytes(&memory)[0x1000..0x1200], pattern(2, 512));
}
