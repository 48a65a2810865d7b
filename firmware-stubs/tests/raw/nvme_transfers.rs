//! An emulated NVMe controller: the shapes that data can have, and I/O commands.

use core::time::Duration;
use std::io::{Read, Seek, SeekFrom, Write};

use proptest::prelude::*;
use vdk_firmware_stubs::{NamespaceOptions, StubError, StubKind, StubNode, StubOptions};
use vdk_hal::dma::Permissions;
use vdk_hal::memory::SharedMemory;

use super::harness::{bytes, pattern};
use super::nvme_host::{Command, FLUSH, Host, Pair, small};

const BUFFER: u64 = 0x800_0000;
const LIST: u64 = 0x900_0000;

/// A host with a queue pair, a buffer of 2 MiB and a list of 64 KiB.
fn bench(options: StubOptions) -> (Host, Pair, SharedMemory, SharedMemory) {
    let mut host = Host::new(options);
    let pair = host.pair(1, 8);
    let buffer = host.bench.map(BUFFER, 2 << 20, Permissions::ReadWrite);
    let list = host.bench.map(LIST, 0x1_0000, Permissions::Read);
    (host, pair, buffer, list)
}

/// Writes a PRP list at `offset` of the list memory that names the pages of the buffer from
/// `first` on, chained where a page of the list ends. Returns how many list pages it takes.
fn write_list(list: &SharedMemory, offset: usize, first: u64, pages: usize) {
    let mut at = offset;
    for page in 0..pages {
        if at % 4096 == 4088 && page + 1 < pages {
            list.write_value(at, &(LIST + at as u64 + 8)).unwrap();
            at += 8;
        }
        list.write_value(at, &(first + 4096 * page as u64)).unwrap();
        at += 8;
    }
}

#[test]
fn pages_are_named_by_entries_lists_and_chained_lists() {
    let (mut host, mut pair, buffer, list) = bench(small());
    buffer.write(0, &pattern(3, 1 << 20)).unwrap();
    for (blocks, offset, list_offset) in [
        (1, 0, 0),
        (8, 0, 0),
        (9, 0, 0),
        (8, 0x204, 0),
        (16, 0xe00, 0),
        (17, 0, 8),
        (128, 0x400, 0xfe8),
        (1024, 0, 0x100),
        (1024, 4, 0xff8),
    ] {
        let length: usize = blocks * 512;
        let first_page = 4096 - offset;
        let rest = length.saturating_sub(first_page);
        let pages = rest.div_ceil(4096);
        let second = match pages {
            0 => 0,
            1 => BUFFER + 4096,
            _ => {
                write_list(&list, list_offset, BUFFER + 4096, pages);
                LIST + list_offset as u64
            }
        };
        let write = Command::write(5, blocks as u32).pages(BUFFER + offset as u64, second);
        assert_eq!(host.io(&mut pair, write).status, 0, "{blocks} blocks at {offset:#x}");
        buffer.fill(1 << 20, 1 << 20, 0xee).unwrap();
        let back = BUFFER + (1 << 20);
        let second = match length.div_ceil(4096) {
            1 => 0,
            2 => back + 4096,
            pages => {
                write_list(&list, 0, back + 4096, pages - 1);
                LIST
            }
        };
        assert_eq!(host.io(&mut pair, Command::read(5, blocks as u32).pages(back, second)).status, 0);
        let all = bytes(&buffer);
        assert_eq!(all[1 << 20..][..length], all[offset..offset + length], "{blocks} blocks at {offset:#x}");
        assert_eq!(all[(1 << 20) + length], 0xee, "not more");
    }
    assert_eq!(host.bench.node.iommu().faults(), []);
}

#[test]
fn entries_in_wrong_places_are_refused_before_anything_moves() {
    let (mut host, mut pair, buffer, list) = bench(small());
    buffer.fill(0, 0x10000, 0xee).unwrap();
    list.write_value(0, &[BUFFER + 0x1000, BUFFER + 0x2004, BUFFER + 0x3000]).unwrap();
    list.write_value(0xff8, &(LIST + 0x1008)).unwrap();
    for (command, status) in [
        (Command::read(0, 1).pages(BUFFER + 2, 0), 0x13),
        (Command::read(0, 16).pages(BUFFER, BUFFER + 0x1004), 0x13),
        (Command::read(0, 24).pages(BUFFER, LIST + 4), 0x13),
        (Command::read(0, 32).pages(BUFFER, LIST), 0x13),
        (Command::read(0, 24).pages(BUFFER, LIST + 0xff8), 0x13),
        (Command::read(0, 24).pages(BUFFER, 0xdead_0000), 0x04),
        (Command::read(0, 1).pages(0xdead_0000, 0), 0x04),
        (Command::read(0, 1025).pages(BUFFER, LIST), 0x02),
        (Command::read(2047, 2).pages(BUFFER, 0), 0x80),
        (Command::read(u64::MAX, 2).pages(BUFFER, 0), 0x80),
        (Command::read(0, 1).pages(BUFFER, 0).namespace(2), 0x0b),
        (Command::read(0, 1).pages(BUFFER, 0).namespace(u32::MAX), 0x0b),
        (Command { flags: 1, ..Command::read(0, 1).pages(BUFFER, 0) }, 0x02),
        (Command { flags: 0xc0, ..Command::read(0, 1).pages(BUFFER, 0) }, 0x02),
        (Command::read(0, 1).pages(BUFFER, 0).dword(12, 0x2000_0000), 0x181),
        (Command::new(0x7f).namespace(1), 0x01),
    ] {
        let done = host.io(&mut pair, command);
        assert_eq!((done.status, done.do_not_retry), (status, true), "{command:?}");
    }
    assert!(bytes(&buffer)[..0x10000].iter().all(|byte| *byte == 0xee));
}

#[test]
fn lists_have_segments_buckets_and_an_end() {
    let (mut host, mut pair, buffer, list) = bench(small());
    buffer.write(0, &pattern(4, 0x2000)).unwrap();
    let entry = |at: usize, address: u64, length: u32, identifier: u8| {
        list.write_value(at, &[address, u64::from(length) | u64::from(identifier) << 56]).unwrap();
    };
    // 100 bytes, nothing, 900 bytes and another segment with the last 24.
    entry(0, BUFFER + 1, 100, 0x00);
    entry(16, BUFFER, 0, 0x00);
    entry(32, BUFFER + 0x1000, 900, 0x00);
    entry(48, LIST + 0x100, 16, 0x30);
    entry(0x100, BUFFER + 0x1800, 24, 0x00);
    assert_eq!(host.io(&mut pair, Command::write(0, 2).list(LIST, 64, 0x20)).status, 0);
    // Read back with a bucket in the middle.
    entry(0x200, BUFFER + 0x10_0000, 512, 0x00);
    entry(0x210, 0, 500, 0x10);
    entry(0x220, BUFFER + 0x10_0200, 12, 0x00);
    assert_eq!(host.io(&mut pair, Command::read(0, 2).list(LIST + 0x200, 48, 0x30)).status, 0);
    let all = bytes(&buffer);
    let mut expected = all[1..101].to_vec();
    expected.extend_from_slice(&all[0x1000..0x1000 + 900]);
    expected.extend_from_slice(&all[0x1800..0x1818]);
    assert_eq!(all[0x10_0000..0x10_0200], expected[..512]);
    assert_eq!(all[0x10_0200..0x10_020c], expected[1012..]);
    assert_eq!(all[0x10_020c..0x10_0300], [0; 0xf4]);
    // What is wrong.
    entry(0x300, BUFFER, 512, 0x00);
    entry(0x310, LIST, 16, 0x30);
    entry(0x320, BUFFER, 512, 0x40);
    entry(0x330, LIST + 0x330, 16, 0x20);
    for (command, status) in [
        (Command::read(0, 2).list(BUFFER, 1023, 0x00), 0x0f),
        (Command::read(0, 2).list(BUFFER, 1025, 0x00), 0x0f),
        (Command::read(0, 2).list(LIST, 40, 0x30), 0x0d),
        (Command::read(0, 2).list(LIST, 0, 0x30), 0x0d),
        (Command::read(0, 2).list(LIST + 4, 32, 0x30), 0x16),
        (Command::read(0, 2).list(LIST + 0x300, 16, 0x20), 0x0d),
        (Command::read(0, 2).list(LIST + 0x300, 32, 0x30), 0x0d),
        (Command::read(0, 2).list(LIST + 0x320, 16, 0x30), 0x11),
        (Command::read(0, 2).list(LIST + 0x330, 16, 0x20), 0x0e),
        (Command::read(0, 2).list(BUFFER, 1024, 0x01), 0x11),
        (Command::read(0, 2).list(0xdead_0000, 32, 0x30), 0x04),
    ] {
        assert_eq!(host.io(&mut pair, command).status, status, "{command:?}");
    }
    // Admin commands take no list.
    assert_eq!(host.admin(Command::new(0x06).list(BUFFER, 4096, 0).dword(10, 1)).status, 0x02);
}

#[test]
fn zeroes_deallocation_comparison_and_unreadable_blocks() {
    let (mut host, mut pair, buffer, _list) = bench(small());
    buffer.write(0, &pattern(5, 0x1000)).unwrap();
    for first in [0, 8, 16] {
        assert_eq!(host.io(&mut pair, Command::write(first, 8).pages(BUFFER, 0)).status, 0);
    }
    let on = |opcode| Command::new(opcode).namespace(1);
    assert_eq!(host.io(&mut pair, on(0x05).blocks(0, 8).pages(BUFFER, 0)).status, 0);
    assert_eq!(host.io(&mut pair, on(0x08).blocks(2, 3)).status, 0);
    assert_eq!(host.io(&mut pair, on(0x05).blocks(0, 8).pages(BUFFER, 0)).status, 0x285);
    assert_eq!(host.io(&mut pair, Command::read(0, 8).pages(BUFFER + 0x1000, 0)).status, 0);
    let mut expected = pattern(5, 0x1000);
    expected[0x400..0xa00].fill(0);
    assert_eq!(bytes(&buffer)[0x1000..0x2000], expected);
    // Two ranges, one block each.
    buffer.write_value(0x2000, &[1u64 << 32, 8, 1 << 32, 17]).unwrap();
    let manage = on(0x09).pages(BUFFER + 0x2000, 0).dword(10, 1);
    assert_eq!(host.io(&mut pair, manage).status, 0, "a hint");
    assert_eq!(host.io(&mut pair, on(0x05).blocks(8, 8).pages(BUFFER, 0)).status, 0);
    assert_eq!(host.io(&mut pair, manage.dword(11, 4)).status, 0);
    assert_eq!(host.io(&mut pair, Command::read(8, 16).pages(BUFFER + 0x4000, BUFFER + 0x5000)).status, 0);
    let mut expected = [pattern(5, 0x1000), pattern(5, 0x1000)].concat();
    expected[..0x200].fill(0);
    expected[0x1200..0x1400].fill(0);
    assert_eq!(bytes(&buffer)[0x4000..0x6000], expected);
    buffer.write_value(0x2010, &[1u64 << 32, 2048]).unwrap();
    assert_eq!(host.io(&mut pair, manage.dword(11, 4)).status, 0x80);
    assert_eq!(host.io(&mut pair, on(0x04).blocks(20, 2)).status, 0);
    assert_eq!(host.io(&mut pair, Command::read(18, 3).pages(BUFFER, 0)).status, 0x281);
    assert_eq!(host.io(&mut pair, on(0x0c).blocks(21, 1)).status, 0x281);
    assert_eq!(host.io(&mut pair, Command::write(20, 2).pages(BUFFER, 0)).status, 0);
    assert_eq!(host.io(&mut pair, on(0x0c).blocks(0, 2048)).status, 0);
    assert_eq!(host.io(&mut pair, on(0x08).blocks(2000, 49)).status, 0x80);
}

#[test]
fn larger_pages_and_two_namespaces() {
    let second = NamespaceOptions { bytes: 1 << 20, block_size: 4096, ..NamespaceOptions::default() };
    let mut options = small();
    options.namespaces.push(second);
    let (mut host, _pair, buffer, list) = bench(options);
    host.disable();
    host.enable(0x0046_0101);
    let mut pair = host.pair(2, 4);
    buffer.write(0, &pattern(6, 1 << 16)).unwrap();
    list.write_value(8, &[BUFFER + 0x4000, BUFFER + 0x8000, BUFFER + 0xc000]).unwrap();
    let write = Command::write(3, 16).namespace(2);
    assert_eq!(
        host.io(&mut pair, write.pages(BUFFER + 0x1000, LIST + 8)).status,
        0x04,
        "a fourth page is missing"
    );
    assert_eq!(host.io(&mut pair, write.pages(BUFFER, LIST + 8)).status, 0);
    let read = Command::read(3, 16).namespace(2).list(BUFFER + 0x10_0000, 1 << 16, 0);
    assert_eq!(host.io(&mut pair, read).status, 0);
    let all = bytes(&buffer);
    assert_eq!(all[0x10_0000..0x11_0000], all[..0x1_0000]);
    assert_eq!(host.io(&mut pair, Command::read(0, 1).pages(BUFFER, 0)).status, 0);
    assert_eq!(bytes(&buffer)[..512], [0; 512], "the other namespace is another");
}

#[test]
fn a_file_keeps_what_is_written() {
    let path = std::env::temp_dir().join(format!("vdk-nvme-{}", std::process::id()));
    let mut file = std::fs::File::create_new(&path).unwrap();
    file.set_len(0x1_0000).unwrap();
    file.seek(SeekFrom::Start(0x3000)).unwrap();
    file.write_all(&pattern(7, 0x1000)).unwrap();
    let namespace = NamespaceOptions { bytes: 0, block_size: 4096, file: Some(path.clone()) };
    let options = StubOptions { namespaces: vec![namespace], ..StubOptions::default() };
    let (mut host, mut pair, buffer, _list) = bench(options);
    assert_eq!(host.io(&mut pair, Command::read(3, 1).pages(BUFFER, 0)).status, 0);
    assert_eq!(bytes(&buffer)[..0x1000], pattern(7, 0x1000));
    buffer.write(0, &pattern(8, 0x1000)).unwrap();
    assert_eq!(host.io(&mut pair, Command::write(15, 1).pages(BUFFER, 0)).status, 0);
    assert_eq!(host.io(&mut pair, Command::new(FLUSH).namespace(u32::MAX)).status, 0);
    assert_eq!(host.io(&mut pair, Command::new(0x05).namespace(1).blocks(15, 1).pages(BUFFER, 0)).status, 0);
    assert_eq!(host.io(&mut pair, Command::new(0x08).namespace(1).blocks(3, 1)).status, 0);
    let mut kept = std::fs::File::open(&path).unwrap();
    let mut all = Vec::new();
    kept.read_to_end(&mut all).unwrap();
    assert_eq!(all[0xf000..], pattern(8, 0x1000));
    assert_eq!(all[0x3000..0x4000], [0; 0x1000]);
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn options_that_cannot_be_are_refused() {
    let with = |namespace: NamespaceOptions| {
        StubNode::new(StubKind::Nvme, StubOptions { namespaces: vec![namespace], ..StubOptions::default() })
            .unwrap_err()
    };
    let namespace = NamespaceOptions::default();
    let missing = std::env::temp_dir().join("vdk-no-such-file");
    assert!(matches!(
        with(NamespaceOptions { file: Some(missing), ..namespace.clone() }),
        StubError::File { .. }
    ));
    assert!(matches!(
        with(NamespaceOptions { block_size: 1024, ..namespace.clone() }),
        StubError::Option { .. }
    ));
    assert!(matches!(with(NamespaceOptions { bytes: 0, ..namespace.clone() }), StubError::Option { .. }));
    assert!(matches!(with(NamespaceOptions { bytes: 5000, ..namespace }), StubError::Profile { .. }));
    for options in [
        StubOptions { queue_pairs: 65, ..small() },
        StubOptions { queue_entries: 1, ..small() },
        StubOptions { max_transfer_log2: 21, ..small() },
        StubOptions { ready_timeout: Duration::ZERO, ..small() },
        StubOptions { ready_timeout: Duration::from_secs(128), ..small() },
        StubOptions { namespaces: Vec::new(), ..small() },
    ] {
        assert!(matches!(StubNode::new(StubKind::Nvme, options), Err(StubError::Option { .. })));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn commands_of_any_bytes_are_answered(
        opcode in any::<u8>(), flags in any::<u8>(), namespace in 0u32..4,
        pointer in any::<[u64; 2]>(), near in any::<[u16; 2]>(), far in any::<bool>(), dwords in any::<[u32; 6]>(),
    ) {
        let (mut host, mut pair, _buffer, list) = bench(small());
        list.write(0, &pattern(namespace as usize, 0x1_0000)).unwrap();
        let near = [LIST + u64::from(near[0]), u64::from(near[1]) | u64::from(opcode) << 56];
        let pointer = if far { pointer } else { near };
        // A request for events is answered when there is one.
        let command = Command { opcode, flags, namespace, pointer, dwords };
        let done = host.io(&mut pair, command);
        prop_assert!(done.status < 0x800);
        if opcode != 0x0c && opcode != 0x09 && opcode != 0x04 {
            let done = host.admin(command);
            prop_assert!(done.status < 0x800);
            prop_assert_eq!(host.status() & 1, 1);
        }
    }
}
