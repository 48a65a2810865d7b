//! What PCI says: configuration space, BARs, power states, reset.

use std::sync::Arc;

use vdk_firmware_stubs::shell::{
    BarProfile, DeviceModel, ExpressProfile, MsixProfile, Profile, Surroundings, Work,
};
use vdk_firmware_stubs::{DriverFaultKind, StubKind, StubNode, StubOptions};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::{BarError, BarKind, size_bars};
use vdk_hal::config::{
    CapabilityId, ConfigError, Express, ExtendedCapabilityId, PortType, PowerManagement, PowerState,
    capabilities, extended_capabilities, identity,
};
use vdk_hal::function::{PciFunction, PciIdentity, PciNode};
use vdk_hal::mmio::Width;
use vdk_hal::poll::ManualClock;
use vdk_hal::reset::{ResetError, ResetKind};
use vdk_iommu::soft::BusMaster;

use crate::harness::*;

fn open(kind: StubKind) -> (Arc<StubNode>, Arc<dyn PciFunction>) {
    let node = StubNode::new(kind, StubOptions::default()).unwrap();
    let function = node.open().unwrap();
    (node, function)
}

#[test]
fn a_node_and_its_configuration_space_name_the_same_function() {
    for (kind, vendor, device, class) in
        [(StubKind::Edu, 0x1234, 0x11e8, 0x00ff00), (StubKind::Ioat, 0x8086, 0x2f20, 0x088000)]
    {
        let (node, function) = open(kind);
        assert_eq!(node.name(), format!("stub:{kind}"));
        let found = node.identity().unwrap();
        assert_eq!((found.vendor, found.device, found.class), (vendor, device, class));
        assert_eq!(identity(function.config()), Ok(found));
        assert_eq!(function.config().read16(0x04), Ok(0), "nothing is on after open");
    }
}

#[test]
fn a_size_probe_is_any_value_whose_address_bits_are_ones() {
    for pattern in [u32::MAX, 0xffff_fff0] {
        let (_, function) = open(StubKind::Edu);
        let config = function.config();
        let before = config.read32(0x10).unwrap();
        let info = function.bar_info(bar0()).unwrap();
        assert_eq!((info.size, info.address), (ByteLength::new(1 << 20), u64::from(before)));
        config.write32(0x10, pattern).unwrap();
        assert_eq!(config.read32(0x10), Ok(0xfff0_0000));
        assert_eq!(function.bar_info(bar0()).unwrap().address, u64::from(before), "not relocated");
        config.write32(0x10, before).unwrap();
        assert_eq!(config.read32(0x10), Ok(before));
        config.write32(0x10, 0xd034_5678).unwrap();
        assert_eq!(function.bar_info(bar0()).unwrap().address, 0xd030_0000, "relocated");
    }
    let (_, function) = open(StubKind::Ioat);
    let config = function.config();
    let address = function.bar_info(bar0()).unwrap().address;
    config.write32(0x10, u32::MAX).unwrap();
    config.write32(0x14, u32::MAX).unwrap();
    assert_eq!((config.read32(0x10), config.read32(0x14)), (Ok(0xffff_c004), Ok(u32::MAX)));
    assert_eq!(function.bar_info(bar0()).unwrap().address, address);
    config.write32(0x10, 0x8000_0000).unwrap();
    config.write32(0x14, 0x12).unwrap();
    assert_eq!(function.bar_info(bar0()).unwrap().address, 0x12_8000_0000);
    assert!(function.bar_info(BarIndex::new(1).unwrap()).is_none(), "the upper half is no BAR");
    assert_eq!(config.read32(0x30), Ok(0), "no ROM");
    assert_eq!(function.rom(), Ok(None));
}

/// A model with registers that hold what is written to them.
struct Memory([u64; 8]);

impl DeviceModel for Memory {
    fn read(
        &mut self,
        bar: BarIndex,
        _offset: u64,
        _width: Width,
        _surroundings: &mut Surroundings<'_>,
    ) -> Result<u64, DriverFaultKind> {
        Ok(self.0[bar.as_usize()])
    }

    fn write(
        &mut self,
        bar: BarIndex,
        _offset: u64,
        _width: Width,
        value: u64,
        _surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind> {
        self.0[bar.as_usize()] = value;
        Ok(())
    }

    fn reset(&mut self) {
        self.0 = [0; 8];
    }

    fn work(&mut self, _bus: &mut BusMaster, _surroundings: &mut Surroundings<'_>) -> Work {
        Work::Idle
    }
}

fn bar(index: u8, kind: BarKind, prefetchable: bool, size: u64) -> BarProfile {
    BarProfile { index: BarIndex::new(index).unwrap(), kind, prefetchable, size: ByteLength::new(size) }
}

fn custom(bars: Vec<BarProfile>, msix: Option<MsixProfile>) -> Arc<StubNode> {
    let profile = Profile {
        name: "stub:memory".to_owned(),
        identity: PciIdentity { vendor: 0xabcd, device: 1, ..PciIdentity::default() },
        bars,
        intx: false,
        msi: None,
        msix,
        power: None,
        express: Some(ExpressProfile { function_level_reset: true }),
        registers: Vec::new(),
        serial_number: 0x0123_4567_89ab_cdef,
    };
    StubNode::with_model(profile, Box::new(Memory([0; 8])), StubOptions::default()).unwrap()
}

#[test]
fn bars_of_every_kind_and_size_are_found_by_the_sizing_protocol() {
    let layouts = [
        vec![
            bar(0, BarKind::Memory64, true, 32 << 30),
            bar(2, BarKind::Memory64, false, 4 << 30),
            bar(4, BarKind::Memory64, true, 1 << 50),
        ],
        vec![
            bar(0, BarKind::Memory32, false, 16),
            bar(1, BarKind::Memory64, true, 2 << 30),
            bar(3, BarKind::Memory32, true, 1 << 31),
            bar(4, BarKind::Io, false, 4),
            bar(5, BarKind::Io, false, 256),
        ],
        Vec::new(),
    ];
    for bars in layouts {
        let node = custom(bars.clone(), None);
        let function = node.open().unwrap();
        let layout = size_bars(function.config()).unwrap();
        for index in BarIndex::all() {
            assert_eq!(layout.bar(index), function.bar_info(index));
        }
        for expected in &bars {
            let found = layout.bar(expected.index).unwrap();
            assert_eq!(
                (found.kind, found.prefetchable, found.size),
                (expected.kind, expected.prefetchable, expected.size)
            );
        }
        assert_eq!(layout.bars().count(), bars.len());
    }
}

#[test]
fn memory_and_io_decoding_are_apart() {
    let node = custom(vec![bar(0, BarKind::Memory32, false, 4096), bar(1, BarKind::Io, false, 16)], None);
    let function = node.open().unwrap();
    let (memory, io) = (function.bar(bar0()).unwrap(), function.bar(BarIndex::new(1).unwrap()).unwrap());
    function.config().write16(COMMAND, 0x0001).unwrap();
    memory.write(0, 5u32).unwrap();
    io.write(0, 6u32).unwrap();
    assert_eq!((memory.read::<u32>(0), io.read::<u32>(0)), (Ok(u32::MAX), Ok(6)));
    function.config().write16(COMMAND, MEMORY).unwrap();
    assert_eq!((memory.read::<u8>(0), io.read::<u8>(0)), (Ok(0), Ok(0xff)), "the write was dropped");
    assert_eq!(node.driver_fault_count(), 3);
    let absent = function.bar(BarIndex::new(2).unwrap()).unwrap_err();
    assert!(matches!(absent, BarError::Absent { .. }));
}

#[test]
fn an_msix_table_lies_wherever_the_capability_says() {
    let (two, four) = (BarIndex::new(2).unwrap(), BarIndex::new(4).unwrap());
    let bars = vec![bar(2, BarKind::Memory64, false, 64 << 10), bar(4, BarKind::Memory64, false, 16 << 20)];
    let msix = MsixProfile { vectors: 129, table: (two, 0x5200), pending: (four, 0xb9_0000) };
    let node = custom(bars, Some(msix));
    let function = node.open().unwrap();
    let capability = vdk_hal::config::Msix::find(function.config()).unwrap().unwrap();
    assert_eq!((capability.table.bar, capability.table.offset), (two, 0x5200));
    assert_eq!((capability.pending.bar, capability.pending.offset), (four, 0xb9_0000));
    assert_eq!(capability.vectors(), 129);
    function.config().write16(COMMAND, MEMORY).unwrap();
    let (table, pending) = (function.bar(two).unwrap(), function.bar(four).unwrap());
    assert_eq!(table.read::<u32>(0x5200 + 128 * 16 + 12), Ok(1));
    assert_eq!(table.read::<u32>(0x5200 + 129 * 16 + 12), Ok(0), "behind the table is the model");
    assert_eq!(table.read::<u32>(0x51fc), Ok(0));
    pending.write(0xb9_0018, 7u64).unwrap();
    assert_eq!((pending.read::<u64>(0xb9_0010), pending.read::<u64>(0xb9_0018)), (Ok(0), Ok(7)));
}

#[test]
fn command_keeps_its_own_bits_and_leaves_status_alone() {
    let (_, function) = open(StubKind::Edu);
    let config = function.config();
    config.write16(COMMAND, 0xffff).unwrap();
    assert_eq!(config.read16(COMMAND), Ok(0x0546));
    let status = config.read16(STATUS).unwrap();
    config.write16(COMMAND, 0).unwrap();
    assert_eq!(config.read16(STATUS), Ok(status));
    config.write32(0x00, 0).unwrap();
    config.write32(0x08, u32::MAX).unwrap();
    assert_eq!((config.read32(0x00), config.read32(0x08)), (Ok(0x11e8_1234), Ok(0x00ff_0010)));
    assert_eq!((config.read8(0x3d), config.read16(0x2c)), (Ok(1), Ok(0x1af4)));
}

#[test]
fn accesses_have_exactly_their_width() {
    let (_, function) = open(StubKind::Edu);
    let config = function.config();
    config.write8(0x3c, 0xab).unwrap();
    config.write8(0x0c, 0x10).unwrap();
    for (offset, word) in [(0x00, 0x11e8_1234u32), (0x0c, 0x0000_0010), (0x3c, 0x0000_01ab)] {
        assert_eq!(config.read32(offset), Ok(word));
        assert_eq!(config.read16(offset + 2), Ok((word >> 16) as u16));
        for byte in 0..4u16 {
            assert_eq!(config.read8(offset + byte), Ok(word.to_le_bytes()[usize::from(byte)]));
        }
    }
    assert!(matches!(config.read16(0x01), Err(ConfigError::Misaligned { .. })));
    assert!(matches!(config.read32(0x100), Err(ConfigError::OutOfBounds { .. })), "256 bytes, no express");
}

#[test]
fn capabilities_are_chained_in_both_spaces() {
    let ids = |function: &Arc<dyn PciFunction>| -> Vec<CapabilityId> {
        capabilities(function.config()).map(|found| found.unwrap().id).collect()
    };
    let (_, edu) = open(StubKind::Edu);
    assert_eq!(ids(&edu), [CapabilityId::MSI]);
    assert_eq!((edu.config().size(), edu.reset_kinds()), (256, Vec::new()));
    let (_, ioat) = open(StubKind::Ioat);
    let expected =
        [CapabilityId::POWER_MANAGEMENT, CapabilityId::MSI, CapabilityId::MSIX, CapabilityId::PCI_EXPRESS];
    assert_eq!(ids(&ioat), expected);
    let extended: Vec<ExtendedCapabilityId> =
        extended_capabilities(ioat.config()).map(|found| found.unwrap().id).collect();
    let errors = ExtendedCapabilityId::ADVANCED_ERROR_REPORTING;
    assert_eq!(extended, [errors, ExtendedCapabilityId::DEVICE_SERIAL_NUMBER]);
    let express = Express::find(ioat.config()).unwrap().unwrap();
    assert_eq!(express.port_type(), PortType::INTEGRATED_ENDPOINT);
    assert!(express.function_level_reset());
    assert_eq!(ioat.config().size(), 4096);
    assert_eq!(ioat.config().read32(0xffc), Ok(0));
    ioat.config().write32(0x184, 0x1234_5678).unwrap();
    assert_eq!((ioat.config().read32(0x180), ioat.config().read32(0x184)), (Ok(0), Ok(0x1234_5678)));
}

#[test]
fn an_uncorrectable_error_is_in_the_aer_capability_until_it_is_cleared() {
    let (node, function) = open(StubKind::Ioat);
    assert_eq!(function.config().read32(0x104), Ok(0));
    node.report_error();
    assert_eq!(function.events().next(), Some(vdk_hal::event::DeviceEvent::Error));
    assert_eq!(function.config().read32(0x104), Ok(1 << 22));
    function.config().write32(0x104, 1 << 22).unwrap();
    assert_eq!(function.config().read32(0x104), Ok(0));
}

#[test]
fn in_d3hot_nothing_answers_and_the_way_back_is_a_reset() {
    for no_soft_reset in [false, true] {
        let bench = Bench::new(StubKind::Ioat, StubOptions { no_soft_reset, ..StubOptions::default() });
        let config = bench.function.config();
        let power = PowerManagement::find(config).unwrap().unwrap();
        bench.write(0x9c, 0x77u32);
        bench.write(0x98, 0x40u32);
        let clock = ManualClock::default();
        assert_eq!(power.change_state(config, &clock, PowerState::D3Hot), Ok(false));
        assert_eq!(bench.read::<u32>(0x98), u32::MAX);
        bench.write(0x98, 0x80u32);
        assert_eq!(config.read16(0x00), Ok(0x8086), "configuration space answers");
        assert_eq!(bench.faults(), ["the function is in D3hot"]);
        assert_eq!(power.change_state(config, &clock, PowerState::D0), Ok(!no_soft_reset));
        let expected = if no_soft_reset { MEMORY | BUS_MASTER } else { 0 };
        assert_eq!(config.read16(COMMAND), Ok(expected));
        config.write16(COMMAND, MEMORY).unwrap();
        assert_eq!(bench.read::<u32>(0x98), if no_soft_reset { 0x40 } else { 0 });
        let kinds = bench.function.reset_kinds();
        assert_eq!(kinds.contains(&ResetKind::PowerManagement), !no_soft_reset);
        config.write16(power.offset + 4, 1).unwrap();
        assert_eq!(config.read16(power.offset + 4).unwrap() & 3, 0, "there is no D1");
    }
}

#[test]
fn dma_is_gated_in_d3hot() {
    let bench = Bench::new(StubKind::Ioat, StubOptions { no_soft_reset: true, ..StubOptions::default() });
    let memory = bench.map(0x4000_0000, 4096, vdk_hal::dma::Permissions::ReadWrite);
    memory.fill(0, 64, 1).unwrap();
    let mut channel = Channel::start(&bench, 0, 16);
    channel.copy(8, 0x4000_0000, 0x4000_0040);
    let config = bench.function.config();
    let control = PowerManagement::find(config).unwrap().unwrap().offset + 4;
    config.write16(control, 3).unwrap();
    channel.post(8, COMPLETE, 0x4000_0000, 0x4000_0080);
    channel.ring_doorbell();
    config.write16(control, 0).unwrap();
    assert_eq!(memory.read_value::<u64>(0x80), Ok(0));
    assert_eq!(channel.status(), channel.address(0) | IDLE, "the doorbell was not heard");
    assert_eq!(bench.faults(), ["memory decoding is off in the command register"]);
}

fn assert_was_reset(bench: &Bench) {
    let config = bench.function.config();
    assert_eq!(config.read16(COMMAND), Ok(0), "decoding and bus mastering are off");
    assert_eq!(bench.function.interrupts().enabled(), None);
    assert_eq!(config.read8(0x3c), Ok(9), "the interrupt line is the system's");
    config.write16(COMMAND, MEMORY).unwrap();
    assert_eq!(bench.read::<u64>(0x80 + CHANSTS), HALTED);
    assert_eq!((bench.read::<u64>(0x98), bench.read::<u8>(0x03)), (0, 0));
    assert_eq!(bench.read::<u32>(0x2000), 0, "the MSI-X table");
}

#[test]
fn every_reset_that_is_offered_resets() {
    let resets: [fn(&Bench); 4] = [
        |bench| bench.function.reset(ResetKind::FunctionLevel).unwrap(),
        |bench| bench.function.reset(ResetKind::PowerManagement).unwrap(),
        |bench| {
            let config = bench.function.config();
            let express = Express::find(config).unwrap().unwrap();
            express.reset_function(config, &ManualClock::default()).unwrap();
        },
        |bench| {
            let config = bench.function.config();
            let control = Express::find(config).unwrap().unwrap().offset + 8;
            config.write8(control + 1, 0x80).unwrap();
        },
    ];
    for reset in resets {
        let bench = Bench::new(StubKind::Ioat, StubOptions::default());
        let memory = bench.map(0x4000_0000, 4096, vdk_hal::dma::Permissions::ReadWrite);
        let address = bench.function.bar_info(bar0()).unwrap().address;
        let event = vdk_hal::interrupt::EventFd::new().unwrap();
        let kind = vdk_hal::interrupt::InterruptKind::Msix;
        bench.function.interrupts().enable(kind, &[Some(event)]).unwrap();
        bench.function.config().write8(0x3c, 9).unwrap();
        bench.write(0x2000, 0x1000u32);
        bench.write(0x03, 0x09u8);
        let mut channel = Channel::start(&bench, 0, 16);
        channel.copy(8, 0x4000_0000, 0x4000_0040);
        reset(&bench);
        assert_was_reset(&bench);
        assert_eq!(bench.function.bar_info(bar0()).unwrap().address, address);
        bench.function.set_bus_master(true).unwrap();
        memory.fill(0, 8, 0x7e).unwrap();
        channel.begin(0);
        channel.copy(8, 0x4000_0000, 0x4000_0080);
        assert_eq!(memory.read_value::<u8>(0x80), Ok(0x7e), "mappings stay over a reset");
    }
}

#[test]
fn a_reset_that_there_is_not_is_an_error() {
    let (_, edu) = open(StubKind::Edu);
    for kind in [ResetKind::FunctionLevel, ResetKind::PowerManagement, ResetKind::Hot] {
        let function = "stub:edu".to_owned();
        assert_eq!(edu.reset(kind), Err(ResetError::NotSupported { function, kind }));
    }
    let (_, ioat) = open(StubKind::Ioat);
    assert_eq!(ioat.reset_kinds(), [ResetKind::FunctionLevel, ResetKind::PowerManagement]);
    assert!(matches!(ioat.reset(ResetKind::Hot), Err(ResetError::NotSupported { .. })));
}

#[test]
fn options_out_of_range_are_refused() {
    let ioat = |options| StubNode::new(StubKind::Ioat, options).map(|_| ()).unwrap_err().to_string();
    let channels = ioat(StubOptions { channels: 5, ..StubOptions::default() });
    assert_eq!(channels, "the count of channels is 5, it must be 1 to 4");
    let cap = ioat(StubOptions { transfer_cap_log2: 32, ..StubOptions::default() });
    assert_eq!(cap, "the transfer cap is 32, it must be 12 to 31");
}
