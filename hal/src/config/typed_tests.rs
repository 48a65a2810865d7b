//! Tests of the capabilities that are known in detail.

use std::time::Duration;

use super::mock::MockConfig;
use super::*;
use crate::address::{BarIndex, ByteLength};
use crate::bar::{Bar, BarError, BarInfo, BarKind, BarPermissions, Liveness, MappedArea};
use crate::memory::{Pages, SharedMemory};
use crate::poll::{Clock, ManualClock};

#[test]
fn the_width_and_offset_of_an_access_are_exact() {
    let config = MockConfig::endpoint(256);
    config.set32(0x40, 0x4433_2211);
    config.make_writable(0x40, &[0xff; 4]);
    let bytes = [0x11, 0x22, 0x33, 0x44];
    for (offset, byte) in (0x40..).zip(bytes) {
        assert_eq!(config.read8(offset), Ok(byte));
        let word = if offset % 2 == 0 { Some(config.read16(offset).unwrap()) } else { None };
        assert_eq!(word.is_some(), config.read16(offset).is_ok());
        let misaligned = Err(ConfigError::Misaligned { offset, width: Width::U32 });
        assert_eq!(config.read32(offset), if offset == 0x40 { Ok(0x4433_2211) } else { misaligned });
    }
    config.write16(0x42, 0xabcd).unwrap();
    assert_eq!(config.read32(0x40), Ok(0xabcd_2211), "the neighbour keeps its value");
    config.write8(0x41, 0xee).unwrap();
    assert_eq!(config.read32(0x40), Ok(0xabcd_ee11));
    let before = config.writes().len();
    assert!(config.write16(0x41, 0).is_err() && config.write32(0x42, 0).is_err());
    for (offset, width) in [(256, Width::U8), (255, Width::U16), (254, Width::U32), (u16::MAX, Width::U32)] {
        let outside = ConfigError::OutOfBounds { offset, width, size: 256 };
        let result = match width {
            Width::U8 => config.write8(offset, 0),
            Width::U16 => config.write16(offset, 0),
            Width::U32 | Width::U64 => config.write32(offset, 0),
        };
        assert_eq!(result, Err(outside));
    }
    assert_eq!(config.writes().len(), before, "a refused access reaches nobody");
}

#[test]
fn enabling_bus_mastering_does_not_touch_status() {
    let config = MockConfig::endpoint(256);
    config.set16(6, 0xf910);
    let before = update_command(&config, |command| command.set_bus_master(true)).unwrap();
    assert!(!before.bus_master() && read_command(&config).unwrap().bus_master());
    assert_eq!(config.read16(6), Ok(0xf910));
    assert_eq!(config.writes(), [(4, Width::U16, 4)]);
    update_command(&config, |command| command.set_bus_master(true)).unwrap();
    assert_eq!(config.writes().len(), 1, "what does not change is not written");
    let mut parity = Status::default();
    parity.set_detected_parity_error(true);
    clear_status(&config, parity).unwrap();
    assert_eq!(config.read16(6), Ok(0x7910));
    config.remove();
    assert_eq!(update_command(&config, |_| ()), Err(ConfigError::DeviceGone));
}

#[test]
fn a_subsystem_comes_from_where_the_header_type_keeps_it() {
    let config = MockConfig::endpoint(256);
    config.set32(0x08, 0x0108_0203);
    config.set32(0x2c, 0x2222_1111);
    let identity = identity(&config).unwrap();
    assert_eq!((identity.class, identity.revision), (0x01_08_02, 0x03));
    assert_eq!((identity.subsystem_vendor, identity.subsystem), (0x1111, 0x2222));
    assert_eq!(identity.to_string(), "1234:5678");
    config.set8(0x0e, 0x81);
    config.link(0x34, 0x40, 0x0d);
    config.set32(0x44, 0x4444_3333);
    let bridge = super::identity(&config).unwrap();
    assert_eq!((bridge.subsystem_vendor, bridge.subsystem), (0x3333, 0x4444));
    config.set8(0x41, 0x40);
    config.set8(0x40, 0x01);
    assert_eq!(super::identity(&config).unwrap().subsystem, 0, "a list that loops does not hide the rest");
    let kind = read_header_type(&config).unwrap();
    assert!(kind.is_multi_function() && kind.layout() == HeaderLayout::Bridge);
}

fn power(config: &MockConfig, capabilities: u16, control: u16) -> PowerManagement {
    config.link(0x34, 0x40, 0x01);
    config.set16(0x42, capabilities);
    config.set16(0x44, control);
    config.make_writable(0x44, &[0x03, 0x81]);
    PowerManagement::find(config).unwrap().unwrap()
}

#[test]
fn a_power_state_is_set_waited_for_and_the_wake_status_kept() {
    let config = MockConfig::endpoint(256);
    let clock = ManualClock::default();
    let power = power(&config, 0x0003, 0x8100);
    assert_eq!(power.change_state(&config, &clock, PowerState::D3Hot), Ok(false));
    assert_eq!(clock.now(), Duration::from_millis(10));
    assert_eq!(power.state(&config), Ok(PowerState::D3Hot));
    assert_eq!(config.writes(), [(0x44, Width::U16, 0x0103)], "the wake status is not written with a one");
    assert_eq!(
        power.change_state(&config, &clock, PowerState::D0),
        Ok(true),
        "without NoSoftRst it is a reset"
    );
    config.set16(0x44, 0x000b);
    assert_eq!(power.change_state(&config, &clock, PowerState::D0), Ok(false));
}

#[test]
fn power_states_that_cannot_be_are_refused_before_anything_is_written() {
    let config = MockConfig::endpoint(256);
    let clock = ManualClock::default();
    let without = power(&config, 0x0003, 0);
    assert!(matches!(
        without.change_state(&config, &clock, PowerState::D1),
        Err(ConfigError::NotSupported { .. })
    ));
    let with = power(&config, 0x0603, 3);
    assert!(with.supports(PowerState::D1) && with.supports(PowerState::D2));
    assert!(matches!(
        with.change_state(&config, &clock, PowerState::D2),
        Err(ConfigError::NotSupported { .. })
    ));
    assert_eq!(config.writes(), []);
    config.make_writable(0x44, &[0, 0]);
    let stuck = with.change_state(&config, &clock, PowerState::D0);
    assert_eq!(stuck, Err(ConfigError::Ignored { offset: 0x44, register: "the power state" }));
    config.remove();
    assert_eq!(with.change_state(&config, &clock, PowerState::D0), Err(ConfigError::DeviceGone));
}

#[test]
fn the_layout_of_msi_follows_its_control_register() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x50, 0x05);
    config.set32(0x54, 0xfee0_1000);
    config.set32(0x58, 0x0000_0001);
    for (control, message, mask, pending, length, address) in [
        (0x0000, 0x08, None, None, 10, 0xfee0_1000),
        (0x0080, 0x0c, None, None, 14, 0x1_fee0_1000),
        (0x0100, 0x08, Some(0x0c), Some(0x10), 20, 0xfee0_1000),
        (0x0180, 0x0c, Some(0x10), Some(0x14), 24, 0x1_fee0_1000),
    ] {
        config.set16(0x52, control);
        let msi = Msi::find(&config).unwrap().unwrap();
        assert_eq!(
            (msi.message(), msi.mask(), msi.pending(), msi.length()),
            (message, mask, pending, length)
        );
        assert_eq!(msi.message_address(&config), Ok(address));
    }
    config.set16(0x52, 0x005b);
    let msi = Msi::find(&config).unwrap().unwrap();
    assert_eq!((msi.vectors(), msi.enabled_vectors()), (32, 32));
    config.set16(0x52, 0x000c);
    assert!(matches!(Msi::find(&config), Err(ConfigError::Malformed { offset: 0x50, .. })));
}

#[test]
fn bar_and_offset_of_msix_are_decoded_apart() {
    for offset in [0u32, 0x2000, 0x5200, 0xb9_0000] {
        for bir in 0..6 {
            let config = MockConfig::endpoint(256);
            config.link(0x34, 0x70, 0x11);
            config.set16(0x72, 0x8040);
            config.set32(0x74, offset | bir);
            let pending_bir = (bir + 1) % 6;
            config.set32(0x78, 0x3000 | pending_bir);
            let msix = Msix::find(&config).unwrap().unwrap();
            assert_eq!((msix.table.offset, u32::from(msix.table.bar.as_u8())), (offset.into(), bir));
            assert_eq!(msix.table.length, ByteLength::new(65 * 16));
            assert_eq!((msix.pending.offset, u32::from(msix.pending.bar.as_u8())), (0x3000, pending_bir));
            assert_eq!(msix.pending.length, ByteLength::new(16));
            assert!(msix.vectors() == 65 && msix.control.enable() && !msix.control.function_mask());
        }
    }
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x70, 0x11);
    config.set32(0x74, 0x2006);
    assert!(matches!(Msix::find(&config), Err(ConfigError::Malformed { offset: 0x74, .. })));
    config.set32(0x74, 0x2000);
    config.set32(0x78, 0x2007);
    assert!(matches!(Msix::find(&config), Err(ConfigError::Malformed { offset: 0x78, .. })));
}

#[test]
fn only_bit_0_of_vector_control_is_the_mask_and_the_rest_is_preserved() {
    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    let info = BarInfo {
        index: BarIndex::new(1).unwrap(),
        kind: BarKind::Memory32,
        prefetchable: false,
        size: ByteLength::SIZE_4K,
        address: 0,
    };
    let areas = vec![MappedArea { offset: 0, memory: memory.clone(), kick: None }];
    let bar = Bar::new(info, BarPermissions::READ_WRITE, areas, None, Liveness::new());
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x70, 0x11);
    config.set16(0x72, 1);
    config.set32(0x74, 0x801);
    let msix = Msix::find(&config).unwrap().unwrap();
    let mut table = MsixTable::new(bar.clone(), &msix).unwrap();
    memory.write_value(0x81c, &0xffff_fffeu32).unwrap();
    memory.write_value(0x810, &0x1_fee0_1000u64).unwrap();
    memory.write_value(0x818, &0x4021u32).unwrap();
    let entry = table.entry(1).unwrap().unwrap();
    assert!(!entry.control.masked());
    assert_eq!((entry.address, entry.message), (0x1_fee0_1000, 0x4021));
    assert_eq!(table.set_masked(1, true), Ok(true));
    assert_eq!(memory.read_value::<u32>(0x81c), Ok(0xffff_ffff));
    assert_eq!(table.set_masked(1, false), Ok(true));
    assert_eq!(memory.read_value::<u32>(0x81c), Ok(0xffff_fffe));
    assert_eq!((table.entry(2), table.set_masked(2, true)), (Ok(None), Ok(false)));
    config.set32(0x74, 0xff1);
    let outside = MsixTable::new(bar.clone(), &Msix::find(&config).unwrap().unwrap());
    assert!(matches!(outside, Err(BarError::OutOfBounds { .. })));
    config.set32(0x74, 0x800);
    assert!(matches!(
        MsixTable::new(bar, &Msix::find(&config).unwrap().unwrap()),
        Err(BarError::Absent { .. })
    ));
}

fn express(config: &MockConfig, flags: u16, device: u32) -> Express {
    config.link(0x34, 0x80, 0x10);
    config.set16(0x82, flags);
    config.set32(0x84, device);
    config.make_writable(0x88, &[0xff, 0xff]);
    Express::find(config).unwrap().unwrap()
}

#[test]
fn a_function_without_a_link_has_no_link_registers() {
    let config = MockConfig::endpoint(256);
    config.set32(0x8c, 0x0000_0104);
    config.set16(0x92, 0x1043);
    let endpoint = express(&config, 0x0002, 0x1000_0002);
    assert_eq!((endpoint.port_type(), endpoint.flags.version()), (PortType::ENDPOINT, 2));
    assert_eq!(endpoint.max_payload(), Some(ByteLength::new(512)));
    let link = endpoint.link.unwrap();
    assert_eq!((link.max_speed_bits(), link.max_width()), (4, 16));
    let status = endpoint.link_status(&config).unwrap().unwrap();
    assert_eq!((LinkSpeed(3).to_string(), status.speed_bits(), status.width()), ("8 GT/s".to_owned(), 3, 4));
    let integrated = express(&config, 0x0092, 0x7);
    assert_eq!((integrated.link, integrated.link_status(&config)), (None, Ok(None)));
    assert_eq!((integrated.max_payload(), integrated.function_level_reset()), (None, false));
    assert_eq!(integrated.port_type().to_string(), "root complex integrated endpoint");
}

#[test]
fn a_function_level_reset_waits_before_and_after_and_is_refused_without_the_bit() {
    let config = MockConfig::endpoint(256);
    let clock = ManualClock::default();
    let without = express(&config, 0x0002, 0);
    let refused = without.reset_function(&config, &clock);
    assert_eq!(refused, Err(ConfigError::NotSupported { what: "function-level reset" }));
    assert_eq!((config.writes().len(), clock.now()), (0, Duration::ZERO));

    let with = express(&config, 0x0002, 1 << 28);
    config.set16(0x88, 0x2810);
    config.set16(0x8a, 0x0020);
    assert_eq!(with.transactions_pending(&config), Ok(true));
    with.reset_function(&config, &clock).unwrap();
    assert!(clock.now() >= Duration::from_millis(1100), "pending requests were waited for");
    assert_eq!(config.writes(), [(0x88, Width::U16, 0xa810)], "the rest of Device Control is kept");

    config.set16(0x8a, 0);
    config.remove();
    assert_eq!(with.reset_function(&config, &clock), Err(ConfigError::DeviceGone));
}

#[test]
fn advanced_features_reset_needs_both_of_its_bits() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x60, 0x13);
    config.set8(0x63, 0x02);
    assert!(!AdvancedFeatures::find(&config).unwrap().unwrap().function_level_reset);
    config.set8(0x63, 0x03);
    let features = AdvancedFeatures::find(&config).unwrap().unwrap();
    features.reset_function(&config, &ManualClock::default()).unwrap();
    assert_eq!(config.writes(), [(0x64, Width::U8, 1)]);
}

#[test]
fn a_capability_at_the_end_of_the_space_is_an_error_not_a_panic() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0xfc, 0x01);
    assert!(matches!(
        PowerManagement::find(&config).unwrap().unwrap().control(&config),
        Err(ConfigError::OutOfBounds { .. })
    ));
    config.set8(0xfc, 0x11);
    assert!(matches!(Msix::find(&config), Err(ConfigError::OutOfBounds { .. })));
    config.set8(0xfc, 0x10);
    assert!(matches!(Express::find(&config), Err(ConfigError::OutOfBounds { .. })));
    config.set8(0xfc, 0x13);
    assert_eq!(AdvancedFeatures::find(&config).unwrap().unwrap().offset, 0xfc);
}

#[test]
fn names_are_those_of_the_standard_and_unknown_numbers_are_kept() {
    assert_eq!(CapabilityId::MSIX.to_string(), "MSI-X");
    assert_eq!(ExtendedCapabilityId(0x01).name(), Some("Advanced Error Reporting"));
    assert_eq!(ExtendedCapabilityId(0x0d).to_string(), "Access Control Services");
    assert_eq!(ExtendedCapabilityId(0xabcd).to_string(), "capability 0xabcd");
    assert_eq!(CapabilityId(0x7f).name(), None);
}
