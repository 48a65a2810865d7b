use super::*;
use crate::bar::{Bar, BarPermissions};
use crate::vfio::mock::MockFile;

const PAGE: u64 = 4096;

/// A device whose regions are its file: BAR0 of four pages at 0, configuration space behind.
fn device() -> (Arc<MockFile>, Arc<Device>) {
    let file = MockFile::new(|_, message, _| {
        let index = message.word(8).unwrap();
        let (flags, size, offset) = match index {
            0 => (7, 4 * PAGE, 0),
            2 => (3, 256, 8 * PAGE),
            7 => (3, 4096, 16 * PAGE),
            // No VGA device.
            8 => return Err(Errno::INVAL),
            9 => (1, 64, 20 * PAGE),
            _ => (0, 0, 0),
        };
        message.put(4, flags);
        message.put64(16, size);
        message.put64(24, offset);
        Ok(0)
    });
    use crate::vfio::kernel::KernelFile as _;
    file.file().set_len(24 * PAGE).unwrap();
    let device = file.device();
    (file, device)
}

fn bar_of(device: &Arc<Device>, table: &RegionTable) -> Bar {
    let index = BarIndex::new(0).unwrap();
    let region = table.bar(index).unwrap();
    let info = BarInfo {
        index,
        kind: BarKind::Memory32,
        prefetchable: false,
        size: ByteLength::new(region.size),
        address: 0,
    };
    let areas = map_areas(device, &info, region, None).unwrap();
    let trapped = TrappedBar { device: Arc::clone(device), bar: index, file_offset: region.file_offset };
    Bar::new(info, BarPermissions::READ_WRITE, areas, Some(Arc::new(trapped)), Arc::clone(device.liveness()))
}

#[test]
fn regions_keep_their_numbers_when_one_does_not_exist() {
    let (_, device) = device();
    let table = RegionTable::read(&device, 10).unwrap();
    let numbers: Vec<u32> = table.regions().map(|region| region.index).collect();
    assert_eq!(numbers, [0, 2, 7, 9]);
    assert_eq!(table.region(9).map(|region| region.size), Some(64));
    assert!(table.region(8).is_none() && table.region(1).is_none() && table.region(u32::MAX).is_none());
    assert_eq!(RegionTable::read(&device, u32::MAX).unwrap().regions.len(), 64, "a forged count is cut");
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_bar_is_mapped_and_let_go_while_its_handle_is_held() {
    let (_file, device) = device();
    let table = RegionTable::read(&device, 9).unwrap();
    let bar = bar_of(&device, &table);
    assert_eq!(bar.mapped_areas().len(), 1);
    bar.write::<u32>(8, 0x1234_5678).unwrap();
    let mut through_the_file = [0; 4];
    device.reach(|file| file.read_at(8, &mut through_the_file)).unwrap();
    assert_eq!(through_the_file, 0x1234_5678u32.to_le_bytes());

    device.liveness().close();
    for area in bar.mapped_areas() {
        area.memory.revoke().unwrap();
    }
    // A handle that does not look at liveness meets ones, and nothing dies.
    assert_eq!(
        bar.mapped_areas()[0].memory.load::<u32>(8, core::sync::atomic::Ordering::Relaxed),
        Ok(u32::MAX)
    );
    let mut kept = [0; 4];
    device.reach_anyhow(|file| file.read_at(8, &mut kept)).unwrap();
    assert_eq!(kept, through_the_file, "the device was not touched");
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn while_memory_space_is_off_a_bar_refuses_and_is_not_gone() {
    let (_, device) = device();
    let table = RegionTable::read(&device, 9).unwrap();
    let bar = bar_of(&device, &table);
    bar.write::<u16>(0, 7).unwrap();
    device.set_decoding(false);
    assert!(matches!(bar.read::<u16>(0), Err(BarError::Asleep { .. })));
    device.set_resting(true);
    device.set_decoding(true);
    assert!(matches!(bar.write::<u16>(0, 1), Err(BarError::Asleep { .. })), "it is in low power");
    device.set_resting(false);
    device.set_decoding(true);
    assert_eq!(bar.read::<u16>(0), Ok(7));
    device.set_decoding(false);
    device.liveness().remove();
    device.set_decoding(true);
    assert!(matches!(bar.read::<u16>(0), Err(BarError::DeviceGone { .. })), "gone is for good");
}

#[test]
fn trapped_parts_are_accessed_with_their_width_through_the_file() {
    let (_, device) = device();
    let trapped =
        TrappedBar { device: Arc::clone(&device), bar: BarIndex::new(2).unwrap(), file_offset: 8 * PAGE };
    trapped.write(4, Width::U16, 0xabcd).unwrap();
    trapped.write(8, Width::U64, 0x1122_3344_5566_7788).unwrap();
    assert_eq!(trapped.read(4, Width::U32), Ok(0xabcd));
    assert_eq!(trapped.read(8, Width::U64), Ok(0x1122_3344_5566_7788));
    assert_eq!(trapped.read(5, Width::U8), Ok(0xab));
    assert!(matches!(trapped.read(100 * PAGE, Width::U32), Err(BarError::System { .. })), "past the end");
    device.shut();
    assert!(matches!(trapped.read(4, Width::U32), Err(BarError::NotOpen { .. })));
}

#[test]
#[cfg_attr(miri, ignore = "maps a file")]
fn a_page_touched_while_the_function_sleeps_is_there_when_it_wakes() {
    use crate::vfio::kernel::KernelFile as _;
    let (file, device) = device();
    let table = RegionTable::read(&device, 9).unwrap();
    let bar = bar_of(&device, &table);
    let memory = &bar.mapped_areas()[0].memory;
    let load = || memory.load::<u32>(8, core::sync::atomic::Ordering::Relaxed);
    device.set_decoding(false);
    // What the kernel does to the mapping when memory space is off.
    file.file().set_len(0).unwrap();
    assert_eq!(load(), Ok(u32::MAX));
    assert_eq!(device.liveness().state(), LivenessState::Asleep, "it is not gone");
    file.file().set_len(24 * PAGE).unwrap();
    device.reach(|file| file.write_at(8, &7u32.to_le_bytes())).unwrap();
    device.set_decoding(true);
    assert_eq!(load(), Ok(7));
    assert_eq!(bar.read::<u32>(8), Ok(7));
    // Awake, the same is a removal.
    file.file().set_len(0).unwrap();
    assert_eq!(load(), Ok(u32::MAX));
    assert_eq!(device.liveness().state(), LivenessState::Gone);
}

#[test]
fn a_trapped_access_that_failed_in_a_sleep_is_no_error_of_the_device_when_it_is_awake_again() {
    use core::sync::atomic::{AtomicBool, Ordering};
    static SLEEP: AtomicBool = AtomicBool::new(true);
    let (file, device) = device();
    let asleep = Arc::clone(&device);
    file.before_accesses(move |_, _| {
        if SLEEP.load(Ordering::Relaxed) {
            asleep.set_decoding(false);
            asleep.set_decoding(true);
        }
        Err(Errno::IO)
    });
    let bar = TrappedBar { device: Arc::clone(&device), bar: BarIndex::new(0).unwrap(), file_offset: 0 };
    assert!(matches!(bar.read(0, Width::U32), Err(BarError::Asleep { .. })));
    assert!(matches!(bar.write(0, Width::U32, 1), Err(BarError::Asleep { .. })));
    SLEEP.store(false, Ordering::Relaxed);
    assert!(matches!(bar.read(0, Width::U32), Err(BarError::System { .. })), "it was awake all the time");
    assert!(matches!(bar.write(0, Width::U32, 1), Err(BarError::System { .. })));
}

#[test]
fn a_trapped_access_of_64_bits_is_two_with_the_low_word_first() {
    let (file, device) = device();
    let bar = TrappedBar { device, bar: BarIndex::new(0).unwrap(), file_offset: PAGE };
    bar.write(0x10, Width::U64, 0x1122_3344_5566_7788).unwrap();
    assert_eq!(file.take_accesses(), [(PAGE + 0x10, 4), (PAGE + 0x14, 4)]);
    assert_eq!(bar.read(0x10, Width::U64), Ok(0x1122_3344_5566_7788));
    assert_eq!(file.take_accesses(), [(PAGE + 0x10, 4), (PAGE + 0x14, 4)]);
    assert_eq!(bar.read(0x14, Width::U32), Ok(0x1122_3344));
}
