//! Whatever a device, a kernel or a file says: every walk ends, nothing panics, and what
//! comes out keeps its promises.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use proptest::collection::vec;
use proptest::prelude::*;
use vdk_hal::address::{BarIndex, Bdf, ByteLength, Iova, IovaRange};
use vdk_hal::bar::{Area, RegionInfo, bar_registers, mappable_areas, size_bars};
use vdk_hal::config::{
    AdvancedFeatures, ConfigBytes, ConfigError, ConfigSpace, Express, Msi, Msix, MsixControl, MsixLocation,
    PowerManagement, PowerState, capabilities, extended_capabilities, identity, rom_images,
};
use vdk_hal::mmio::Width;
use vdk_hal::poll::ManualClock;

/// A function that answers each access with the next of some values, whatever it is asked,
/// and keeps nothing but a record of what was written.
struct Liar {
    answers: Vec<u32>,
    next: AtomicUsize,
    written: Mutex<Vec<(u16, u32)>>,
    size: u16,
}

impl Liar {
    fn new(answers: Vec<u32>, size: u16) -> Self {
        Self { answers, next: AtomicUsize::new(0), written: Mutex::default(), size }
    }
}

impl ConfigSpace for Liar {
    fn size(&self) -> u16 {
        self.size
    }

    fn read_raw(&self, _offset: u16, width: Width) -> Result<u32, ConfigError> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let mask = u32::MAX >> (32 - 8 * width.bytes());
        Ok(self.answers[next % self.answers.len()] & mask)
    }

    fn write_raw(&self, offset: u16, _width: Width, value: u32) -> Result<(), ConfigError> {
        self.written.lock().unwrap().push((offset, value));
        Ok(())
    }
}

fn cases() -> ProptestConfig {
    // Under Miri a case takes seconds.
    let cases = if cfg!(miri) { 4 } else { 512 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// Configuration spaces that have a capability list more often than not.
fn config() -> impl Strategy<Value = ConfigBytes> {
    let bytes = prop_oneof![vec(any::<u8>(), 0..4097), vec(0u8..0x50, 256..257), vec(0u8..3, 4096..4097)];
    (bytes, any::<bool>(), prop_oneof![Just(256), Just(4096), any::<u16>()]).prop_map(
        |(mut bytes, listed, size)| {
            if listed && bytes.len() > 0x34 {
                bytes[6] |= 0x10;
                bytes[0x0e] &= 0x81;
            }
            ConfigBytes::new(bytes, size)
        },
    )
}

fn walk_everything(config: &dyn ConfigSpace) -> (usize, usize) {
    let _ = identity(config);
    let standard: Vec<_> = capabilities(config).take(100).collect();
    let extended: Vec<_> = extended_capabilities(config).take(2000).collect();
    let faults = |last: bool| if last { 1 } else { 0 };
    assert!(
        standard.iter().filter(|item| item.is_err()).count()
            <= faults(standard.last().is_some_and(Result::is_err))
    );
    assert!(
        extended.iter().filter(|item| item.is_err()).count()
            <= faults(extended.last().is_some_and(Result::is_err))
    );
    let clock = ManualClock::default();
    if let Ok(Some(power)) = PowerManagement::find(config) {
        let _ = power.change_state(config, &clock, PowerState::D3Hot);
    }
    if let Ok(Some(express)) = Express::find(config) {
        let _ = (express.link_status(config), express.max_payload(), express.port_type().to_string());
        let _ = express.reset_function(config, &clock);
    }
    if let Ok(Some(features)) = AdvancedFeatures::find(config) {
        let _ = features.reset_function(config, &clock);
    }
    if let Ok(Some(msi)) = Msi::find(config) {
        assert!(msi.vectors() <= 32 && msi.enabled_vectors() <= msi.vectors());
        let _ = msi.message_address(config);
    }
    if let Ok(Some(msix)) = Msix::find(config) {
        assert!((1..=2048).contains(&msix.vectors()));
        assert_eq!(msix.table.length.as_u64(), 16 * u64::from(msix.vectors()));
    }
    (standard.len(), extended.len())
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn capability_walks_end_and_visit_no_slot_twice(config in config()) {
        let (standard, extended) = walk_everything(&config);
        prop_assert!(standard <= 49 && extended <= 961);
        let offsets: Vec<_> = capabilities(&config).flatten().map(|found| found.offset).collect();
        prop_assert_eq!(offsets.iter().collect::<BTreeSet<_>>().len(), offsets.len());
        prop_assert!(offsets.iter().all(|offset| (0x40..=0xfc).contains(offset) && offset % 4 == 0));
        let offsets: Vec<_> = extended_capabilities(&config).flatten().map(|found| found.offset).collect();
        prop_assert_eq!(offsets.iter().collect::<BTreeSet<_>>().len(), offsets.len());
        prop_assert!(offsets.iter().all(|offset| (0x100..=0xffc).contains(offset) && offset % 4 == 0));
    }

    #[test]
    fn a_function_that_changes_its_answers_is_survived(
        answers in vec(prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(0x40404050)], 1..40),
        size in prop_oneof![Just(256u16), Just(4096)],
    ) {
        walk_everything(&Liar::new(answers, size));
    }

    #[test]
    fn sizing_puts_back_whatever_it_read(answers in vec(prop_oneof![any::<u32>(), Just(0), 0u32..16], 1..40)) {
        let liar = Liar::new(answers, 256);
        let _ = size_bars(&liar);
        let written = liar.written.lock().unwrap();
        let mut probed = None;
        for (offset, value) in written.iter().filter(|(offset, _)| *offset >= 0x10) {
            match probed.take() {
                None => {
                    let pattern = if *offset < 0x28 { u32::MAX } else { 0xffff_f800 };
                    prop_assert_eq!(*value, pattern);
                    probed = Some(*offset);
                }
                Some(before) => prop_assert_eq!(*offset, before, "restored before the next one"),
            }
        }
        prop_assert_eq!(probed, None, "the last one is restored too");
        let commands: Vec<_> = written.iter().filter(|(offset, _)| *offset == 4).collect();
        prop_assert!(commands.is_empty() || commands.len() == 2);
    }

    #[test]
    fn bars_of_any_bytes_are_in_order_and_apart(config in config()) {
        let Ok(registers) = bar_registers(&config) else { return Ok(()) };
        let registers: Vec<_> = registers.collect();
        prop_assert!(registers.len() <= 6);
        let indices: Vec<_> = registers.iter().flatten().map(|bar| bar.index).collect();
        prop_assert!(indices.is_sorted());
        prop_assert!(registers.iter().rev().skip(1).all(Result::is_ok));
    }

    #[test]
    fn region_descriptions_of_any_bytes_are_parsed_or_refused(
        mut bytes in vec(any::<u8>(), 0..256),
        (declared, first) in (0u32..300, 0u32..300),
    ) {
        let _ = RegionInfo::parse(&bytes);
        if bytes.len() >= 16 {
            bytes[..4].copy_from_slice(&declared.to_ne_bytes());
            bytes[4] |= 0x0f;
            bytes[12..16].copy_from_slice(&first.to_ne_bytes());
            if let Ok(region) = RegionInfo::parse(&bytes) {
                let areas = region.sparse.unwrap_or_default();
                prop_assert!(areas.len() * 16 <= bytes.len());
                prop_assert!(areas.iter().all(|area| area.length > 0));
            }
        }
    }

    #[test]
    fn roms_of_any_bytes_end(
        mut rom in vec(any::<u8>(), 0..4096),
        images in vec((0usize..8, 0u16..4), 0..4),
    ) {
        let mut at = 0;
        for (start, units) in images {
            if rom.len() >= at + 0x40 + start {
                rom[at..at + 2].copy_from_slice(&[0x55, 0xaa]);
                rom[at + 0x18..at + 0x1a].copy_from_slice(&[0x1c, 0]);
                rom[at + 0x1c..at + 0x20].copy_from_slice(b"PCIR");
                rom[at + 0x2c..at + 0x2e].copy_from_slice(&units.to_le_bytes());
                at += 512 * usize::from(units);
            }
        }
        let found: Vec<_> = rom_images(&rom).take(100).collect();
        prop_assert!(found.len() <= rom.len() / 512 + 1);
        let images = found.iter().flatten();
        prop_assert!(images.clone().all(|image| !image.bytes.is_empty()));
        prop_assert!(images.map(|image| image.bytes.len()).sum::<usize>() <= rom.len());
    }

    /// Compared with an oracle that asks of each page whether it may be mapped.
    #[test]
    fn mappable_areas_are_exactly_the_pages_that_may_be_mapped(
        size in 1u64..40,
        sparse in proptest::option::of(vec((0u64..48, 1u64..20), 0..5)),
        table in (0u64..48, 1u64..8, 0u8..2),
        pending in (0u64..48, 1u64..4, 0u8..2),
        msix_mappable in any::<bool>(),
        page in prop_oneof![Just(4u64), Just(8), Just(16)],
    ) {
        // In units of 1 KiB, so that a "page" has several.
        const KIB: u64 = 1024;
        let size = size.next_power_of_two() * KIB;
        let page = page * KIB;
        let area = |(offset, length): (u64, u64)| Area { offset: offset * KIB, length: length * KIB };
        let sparse: Option<Vec<Area>> = sparse.map(|areas| areas.into_iter().map(area).collect());
        let location = |(offset, length, bar): (u64, u64, u8)| MsixLocation {
            bar: BarIndex::new(bar).unwrap(),
            offset: offset * KIB,
            length: ByteLength::new(length * KIB),
        };
        let msix = Msix { offset: 0x40, control: MsixControl(0), table: location(table), pending: location(pending) };
        let region = RegionInfo { mappable: true, size, sparse: sparse.clone(), msix_mappable, ..RegionInfo::default() };
        let bar = BarIndex::new(0).unwrap();
        let areas = mappable_areas(bar, &region, Some(&msix), ByteLength::new(page));

        for pair in areas.windows(2) {
            prop_assert!(pair[0].offset + pair[0].length < pair[1].offset, "ascending, apart and merged");
        }
        let covered = |start: u64, end: u64| areas.iter().any(|a| a.offset <= start && end <= a.offset + a.length);
        let touched = |start: u64, end: u64| areas.iter().any(|a| a.offset < end && start < a.offset + a.length);
        for start in (0..size.div_ceil(page)).map(|number| number * page) {
            let end = (start + page).min(size);
            // An area offers the pages that lie in it whole; areas are not joined for it.
            let offered = sparse.as_ref().is_none_or(|areas| {
                areas.iter().any(|a| a.offset <= start && end <= a.offset + a.length)
            });
            let in_hole = !msix_mappable && [msix.table, msix.pending].iter().any(|hole| {
                hole.bar == bar && hole.offset < start + page && start < hole.offset + hole.length.as_u64()
            });
            let expected = offered && !in_hole;
            prop_assert_eq!(covered(start, end), expected, "page at {:#x} of {:?}", start, areas);
            prop_assert_eq!(touched(start, end), expected);
        }
    }

    #[test]
    fn address_arithmetic_agrees_with_wider_integers(a: u64, b: u64, shift in 0u32..64) {
        let (wide_a, wide_b) = (u128::from(a), u128::from(b));
        let fits = |value: u128| u64::try_from(value).ok();
        let length = ByteLength::new(b);
        prop_assert_eq!(Iova::new(a).checked_add(length).map(Iova::as_u64), fits(wide_a + wide_b));
        prop_assert_eq!(
            Iova::new(a).checked_offset_from(Iova::new(b)).map(ByteLength::as_u64),
            a.checked_sub(b)
        );
        prop_assert_eq!(ByteLength::new(a).checked_add(length).map(ByteLength::as_u64), fits(wide_a + wide_b));
        let alignment = 1u64 << shift;
        let up = wide_a.div_ceil(u128::from(alignment)) * u128::from(alignment);
        prop_assert_eq!(ByteLength::new(a).checked_align_up(ByteLength::new(alignment)).map(ByteLength::as_u64), fits(up));
        prop_assert_eq!(ByteLength::new(a).is_aligned_to(ByteLength::new(alignment)), a % alignment == 0);
    }

    #[test]
    fn ranges_agree_with_their_ends(a: u64, b: u64, c: u64, d: u64) {
        let range = |x: u64, y: u64| IovaRange::from_bounds(Iova::new(x.min(y)), Iova::new(x.max(y))).unwrap();
        let (left, right) = (range(a, b), range(c, d));
        let shared = left.intersection(right);
        prop_assert_eq!(shared, right.intersection(left));
        prop_assert_eq!(shared.is_some(), left.overlaps(right));
        prop_assert_eq!(left.contains_range(right), shared == Some(right));
        for address in [a, b, c, d].map(Iova::new) {
            let both = left.contains(address) && right.contains(address);
            prop_assert_eq!(shared.is_some_and(|shared| shared.contains(address)), both);
        }
        let again = IovaRange::new(left.start(), left.length());
        prop_assert!(again == Some(left) || left.length().as_u64() == u64::MAX);
    }

    #[test]
    fn addresses_of_functions_round_trip_and_any_text_is_parsed_or_refused(
        segment: u32, bus: u8, device in 0u8..40, function in 0u8..10, text in ".{0,20}",
    ) {
        let _ = text.parse::<Bdf>();
        match Bdf::new(segment, bus, device, function) {
            Some(bdf) => prop_assert_eq!(bdf.to_string().parse::<Bdf>(), Ok(bdf)),
            None => prop_assert!(device > 31 || function > 7),
        }
    }
}
