use super::*;
use crate::config::mock::MockConfig;
use crate::mmio::Width;

/// Makes slot `index` a register that is programmed with `programmed` and decodes `size`.
fn bar32(config: &MockConfig, index: usize, programmed: u32, size: u32) {
    config.set32(0x10 + 4 * index, programmed);
    let fixed = if programmed & 1 != 0 { 0x3 } else { 0xf };
    config.make_writable(0x10 + 4 * index, &(!(size - 1) & !fixed).to_le_bytes());
}

fn bar64(config: &MockConfig, index: usize, programmed: u64, size: u64) {
    let (low, mask) = (programmed.to_le_bytes(), (!(size - 1) & !0xf).to_le_bytes());
    config.set32(0x10 + 4 * index, u32::from_le_bytes(low[..4].try_into().unwrap()));
    config.set32(0x14 + 4 * index, u32::from_le_bytes(low[4..].try_into().unwrap()));
    config.make_writable(0x10 + 4 * index, &mask);
}

fn sizes(config: &MockConfig) -> Vec<(u8, BarKind, u64)> {
    let before = config.bytes();
    let layout = size_bars(config).unwrap();
    assert_eq!(config.bytes(), before, "every register is put back");
    layout.bars().map(|bar| (bar.index.as_u8(), bar.kind, bar.size.as_u64())).collect()
}

#[test]
fn each_size_is_found_and_each_register_put_back() {
    for size in [4, 8, 16, 256] {
        let config = MockConfig::endpoint(256);
        config.set16(4, 0x0407);
        bar32(&config, 0, 0xe001, size);
        assert_eq!(sizes(&config), [(0, BarKind::Io, size.into())]);
    }
    for size in [16, 4096, 1 << 31] {
        let config = MockConfig::endpoint(256);
        bar32(&config, 5, 0x8000_0008, size);
        assert_eq!(sizes(&config), [(5, BarKind::Memory32, size.into())]);
        assert!(size_bars(&config).unwrap().bars().all(|bar| bar.prefetchable && bar.address == 0x8000_0000));
    }
    for size in [16, 4096, 1 << 31, 1 << 32, 32 << 30, 1 << 63] {
        let config = MockConfig::endpoint(256);
        bar64(&config, 2, 0x4, size);
        assert_eq!(sizes(&config), [(2, BarKind::Memory64, size)]);
    }
}

#[test]
fn a_16_bit_io_decoder_is_not_taken_for_a_huge_one() {
    let config = MockConfig::endpoint(256);
    config.set32(0x10, 0xe001);
    config.make_writable(0x10, &[0xe0, 0xff, 0, 0]);
    assert_eq!(sizes(&config), [(0, BarKind::Io, 32)]);
}

#[test]
fn upper_halves_are_not_bars_of_their_own() {
    let config = MockConfig::endpoint(256);
    for index in [0, 2, 4] {
        bar64(&config, index, 0x38_0000_000c, 1 << 20);
    }
    assert_eq!(sizes(&config).iter().map(|bar| bar.0).collect::<Vec<_>>(), [0, 2, 4]);
    assert!(size_bars(&config).unwrap().bar(BarIndex::new(1).unwrap()).is_none());

    let config = MockConfig::endpoint(256);
    bar32(&config, 0, 0xfe00_0000, 4096);
    bar64(&config, 1, 0x4, 8192);
    bar32(&config, 3, 0xfd00_0000, 16);
    bar64(&config, 4, 0x38_0000_0004, 1 << 33);
    let kinds: Vec<_> = sizes(&config).iter().map(|bar| (bar.0, bar.1)).collect();
    use BarKind::{Memory32, Memory64};
    assert_eq!(kinds, [(0, Memory32), (1, Memory64), (3, Memory32), (4, Memory64)]);
}

#[test]
fn a_64_bit_register_in_the_last_slot_is_malformed() {
    let config = MockConfig::endpoint(256);
    bar32(&config, 5, 0x4, 4096);
    let before = config.bytes();
    assert!(matches!(size_bars(&config), Err(ConfigError::Malformed { offset: 0x24, .. })));
    assert_eq!(config.bytes(), before);
    assert_eq!(bar_registers(&config).unwrap().filter(Result::is_err).count(), 1);

    let bridge = MockConfig::endpoint(256);
    bridge.set8(0x0e, 0x01);
    bar64(&bridge, 0, 0x4, 4096);
    assert_eq!(sizes(&bridge), [(0, BarKind::Memory64, 4096)]);
    // What follows the two slots of a bridge is not a BAR.
    bridge.set32(0x18, 0x0002_0100);
    assert_eq!(sizes(&bridge).len(), 1);
    bar32(&bridge, 1, 0x4, 4096);
    bar32(&bridge, 0, 0, 4096);
    assert!(matches!(size_bars(&bridge), Err(ConfigError::Malformed { offset: 0x14, .. })));
}

#[test]
fn masks_with_gaps_and_reserved_types_are_malformed_and_put_back() {
    let config = MockConfig::endpoint(256);
    config.set32(0x10, 0xfe00_0000);
    config.make_writable(0x10, &[0, 0xf0, 0x0f, 0xff]);
    let before = config.bytes();
    assert!(matches!(size_bars(&config), Err(ConfigError::Malformed { offset: 0x10, .. })));
    assert_eq!(config.bytes(), before);
    config.set32(0x10, 0x6);
    assert!(matches!(size_bars(&config), Err(ConfigError::Malformed { offset: 0x10, .. })));
    // A 64-bit type without a single address bit.
    config.set32(0x10, 0x4);
    config.make_writable(0x10, &[0; 8]);
    assert!(matches!(size_bars(&config), Err(ConfigError::Malformed { offset: 0x10, .. })));
}

#[test]
fn the_rom_register_is_the_same_before_and_after_with_and_without_a_rom() {
    for (raw, mask, expected) in [
        (0, 0u32, None),
        (0xfeb0_0001, 0xffff_0001, Some((0x1_0000, 0xfeb0_0000, true))),
        (0, 0xffff_f801, Some((0x800, 0, false))),
    ] {
        let config = MockConfig::endpoint(256);
        config.set32(0x30, raw);
        config.make_writable(0x30, &mask.to_le_bytes());
        let before = config.bytes();
        let rom = size_bars(&config).unwrap().rom();
        assert_eq!(rom.map(|rom| (rom.size.as_u64(), rom.address, rom.enabled)), expected);
        assert_eq!(config.bytes(), before);
        let enabled_while_probed =
            config.writes().iter().any(|write| write.0 == 0x30 && write.2 != raw && write.2 & 1 != 0);
        assert!(!enabled_while_probed, "the ROM never decodes a probe address");
    }
}

#[test]
fn probes_are_all_ones_while_decoding_is_off_and_command_is_written_with_16_bits() {
    let config = MockConfig::endpoint(256);
    config.set16(4, 0x0407);
    config.set16(6, 0xf900);
    bar64(&config, 0, 0x38_0000_0004, 1 << 20);
    size_bars(&config).unwrap();
    let writes = config.writes();
    assert_eq!(writes.first(), Some(&(4, Width::U16, 0x0404)), "bus mastering is not touched");
    assert_eq!(writes.last(), Some(&(4, Width::U16, 0x0407)));
    let probes: Vec<_> = writes.iter().filter(|write| write.0 >= 0x10 && write.0 < 0x30).collect();
    assert_eq!(probes[0], &(0x10, Width::U32, u32::MAX));
    assert_eq!(probes[2], &(0x14, Width::U32, u32::MAX));
    assert_eq!(config.bytes()[6..8], [0x00, 0xf9], "no error bit of Status was cleared");
}

#[test]
fn a_function_that_vanishes_while_it_is_sized_is_gone() {
    let config = MockConfig::endpoint(256);
    config.remove();
    assert_eq!(size_bars(&config), Err(ConfigError::DeviceGone));
}
