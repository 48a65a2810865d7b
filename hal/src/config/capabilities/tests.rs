use super::*;
use crate::config::mock::MockConfig;
use crate::config::{ConfigBytes, identity};

fn walk(config: &dyn ConfigSpace) -> (Vec<(u8, u16)>, Option<ConfigError>) {
    let mut found = Vec::new();
    for item in capabilities(config) {
        match item {
            Ok(capability) => found.push((capability.id.0, capability.offset)),
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

fn walk_extended(config: &dyn ConfigSpace) -> (Vec<(u16, u16)>, Option<ConfigError>) {
    let mut found = Vec::new();
    for item in extended_capabilities(config) {
        match item {
            Ok(capability) => found.push((capability.id.0, capability.offset)),
            Err(error) => return (found, Some(error)),
        }
    }
    (found, None)
}

fn malformed(error: Option<ConfigError>, at: u16) -> bool {
    matches!(error, Some(ConfigError::Malformed { offset, .. }) if offset == at)
}

#[test]
fn a_valid_list_is_walked_in_its_own_order() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x80, 0x01);
    config.link(0x80, 0x40, 0x10);
    config.link(0x40, 0xfc, 0x11);
    assert_eq!(walk(&config), (vec![(0x01, 0x80), (0x10, 0x40), (0x11, 0xfc)], None));
    let found = find_capability(&config, CapabilityId::PCI_EXPRESS).unwrap();
    assert_eq!(found, Some(Capability { id: CapabilityId::PCI_EXPRESS, offset: 0x40 }));
    assert_eq!(find_capability(&config, CapabilityId::MSI), Ok(None));
}

#[test]
fn without_the_status_bit_there_is_no_list_whatever_the_pointer_says() {
    let config = MockConfig::endpoint(256);
    config.set8(0x34, 0xff);
    assert_eq!(walk(&config), (vec![], None));
    config.set16(6, 0x10);
    config.set8(0x34, 0);
    assert_eq!(walk(&config), (vec![], None));
}

#[test]
fn reserved_bits_of_a_pointer_are_masked_and_pointers_into_the_header_refused() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x40, 0x05);
    config.set8(0x34, 0x41);
    assert_eq!(walk(&config), (vec![(0x05, 0x40)], None));
    config.set8(0x34, 0xff);
    config.set16(0xfc, 0x0009);
    assert_eq!(walk(&config), (vec![(0x09, 0xfc)], None));
    config.set8(0x34, 0x3c);
    let (found, error) = walk(&config);
    assert!(found.is_empty() && malformed(error, 0x3c));
    config.link(0x34, 0x40, 0x05);
    config.set8(0x41, 0x04);
    let (found, error) = walk(&config);
    assert!(found == [(0x05, 0x40)] && malformed(error, 0x04), "{found:?}");
}

#[test]
fn loops_end_at_the_first_slot_met_again() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x40, 0x01);
    config.link(0x40, 0x40, 0x01);
    let (found, error) = walk(&config);
    assert!(found == [(0x01, 0x40)] && malformed(error, 0x40));

    config.link(0x40, 0x50, 0x05);
    config.link(0x50, 0x40, 0x01);
    let (found, error) = walk(&config);
    assert!(found == [(0x01, 0x40), (0x05, 0x50)] && malformed(error, 0x40));
    assert_eq!(find_capability(&config, CapabilityId::MSI).unwrap().unwrap().offset, 0x50);
    assert!(find_capability(&config, CapabilityId::MSIX).is_err(), "not found is not the same as absent");
}

#[test]
fn a_list_that_fills_every_slot_has_48_entries() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x40, 0x09);
    for offset in (0x40..0xfc).step_by(4) {
        config.link(offset, u8::try_from(offset + 4).unwrap(), 0x09);
    }
    let (found, error) = walk(&config);
    assert_eq!((found.len(), error), (48, None));
    config.link(0xfc, 0x40, 0x09);
    let (found, error) = walk(&config);
    assert!(found.len() == 48 && malformed(error, 0x40));
}

#[test]
fn a_removed_function_is_gone_and_a_virtual_function_without_ids_is_not() {
    let config = MockConfig::endpoint(4096);
    config.link(0x34, 0x40, 0x01);
    config.set32(0, u32::MAX);
    assert_eq!(identity(&config).unwrap().vendor, 0xffff);
    assert_eq!(walk(&config).0, [(0x01, 0x40)]);
    config.remove();
    assert_eq!(walk(&config), (vec![], Some(ConfigError::DeviceGone)));
    assert_eq!(walk_extended(&config), (vec![], Some(ConfigError::DeviceGone)));
    assert_eq!(identity(&config), Err(ConfigError::DeviceGone));
    assert_eq!(find_capability(&config, CapabilityId::MSI), Err(ConfigError::DeviceGone));
}

#[test]
fn a_header_of_all_ones_is_malformed_on_a_function_that_is_there() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x40, 0xff);
    config.set8(0x41, 0xff);
    let (found, error) = walk(&config);
    assert!(found.is_empty() && malformed(error, 0x40));
}

#[test]
fn a_file_cut_to_64_bytes_names_the_privilege() {
    let config = MockConfig::endpoint(256);
    config.link(0x34, 0x50, 0x01);
    let cut = ConfigBytes::new(&config.bytes()[..64], 256);
    assert_eq!(identity(&cut).unwrap().vendor, 0x1234);
    let (found, error) = walk(&cut);
    let error = error.unwrap();
    assert_eq!((found, &error), (vec![], &ConfigError::Privilege { offset: 0x50, readable: 64 }));
    assert!(error.to_string().contains("run as root"), "{error}");
}

#[test]
fn extended_lists_end_at_both_terminal_headers() {
    let config = MockConfig::endpoint(4096);
    assert_eq!(walk_extended(&config), (vec![], None));
    config.set32(0x100, u32::MAX);
    assert_eq!(walk_extended(&config), (vec![], None));
    config.set32(0x100, 0x1481_0001);
    config.set32(0x148, 0xffc2_0010);
    config.set32(0xffc, 0x0001_000d);
    assert_eq!(walk_extended(&config), (vec![(0x01, 0x100), (0x10, 0x148), (0x0d, 0xffc)], None));
    let found = find_extended_capability(&config, ExtendedCapabilityId::SR_IOV).unwrap().unwrap();
    assert_eq!((found.version, found.offset), (2, 0x148));
    config.set32(0x148, 0);
    assert_eq!(walk_extended(&config), (vec![(0x01, 0x100)], None));
    config.set32(0x148, u32::MAX);
    assert_eq!(walk_extended(&config), (vec![(0x01, 0x100)], None));
    assert_eq!(walk_extended(&MockConfig::endpoint(256)), (vec![], None));
}

#[test]
fn extended_loops_and_pointers_below_the_space_end_with_an_error() {
    let config = MockConfig::endpoint(4096);
    config.set32(0x100, 0x1001_0001);
    let (found, error) = walk_extended(&config);
    assert!(found == [(1, 0x100)] && malformed(error, 0x100));
    config.set32(0x100, 0x2001_0001);
    config.set32(0x200, 0x1001_0003);
    let (found, error) = walk_extended(&config);
    assert!(found == [(1, 0x100), (3, 0x200)] && malformed(error, 0x100));
    config.set32(0x200, 0x0c01_0003);
    let (found, error) = walk_extended(&config);
    assert!(found.len() == 2 && malformed(error, 0xc0));
    for offset in (0x100..0xffc).step_by(4) {
        config.set32(offset, u32::try_from(offset + 4).unwrap() << 20 | 0x0001_000b);
    }
    config.set32(0xffc, 0x0001_000b);
    let (found, error) = walk_extended(&config);
    assert_eq!((found.len(), error), (960, None));
    config.set32(0xffc, 0x1001_000b);
    let (found, error) = walk_extended(&config);
    assert!(found.len() == 960 && malformed(error, 0x100));
}
