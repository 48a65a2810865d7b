use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::address::{BarIndex, ByteLength};
use crate::bar::BarKind;
use crate::barrier;
use crate::memory::Pages;

/// A backend that remembers every access and answers with the offset.
#[derive(Default)]
struct Recorder(Mutex<Vec<(char, u64, Width, u64)>>);

impl Recorder {
    fn take(&self) -> Vec<(char, u64, Width, u64)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl BarAccess for Recorder {
    fn read(&self, offset: u64, width: Width) -> Result<u64, BarError> {
        self.0.lock().unwrap().push(('r', offset, width, 0));
        // Junk above the width: a backend's answer is cut to what was asked for.
        Ok(0xdead_beef_dead_0000 | offset)
    }

    fn write(&self, offset: u64, width: Width, value: u64) -> Result<(), BarError> {
        self.0.lock().unwrap().push(('w', offset, width, value));
        Ok(())
    }
}

crate::register_block! {
    /// A set that lies in the trapped part.
    struct TrappedRegisters(0x20) {
        /// Low word first.
        LOW_HIGH: u64 @ 0x00, ReadWrite, split LowHigh;
        /// High word first.
        HIGH_LOW: u64 @ 0x08, ReadWrite, split HighLow;
        /// One access.
        WHOLE: u64 @ 0x10, ReadWrite;
        /// A byte.
        BYTE: u8 @ 0x1d, ReadWriteClear;
    }
}

struct Fixture {
    bar: Bar,
    memory: SharedMemory,
    recorder: Arc<Recorder>,
    liveness: Arc<Liveness>,
}

/// A BAR of 16 KiB of which the second page is mapped.
fn fixture(permissions: BarPermissions, kick: Option<Arc<Kick>>) -> Fixture {
    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    let (recorder, liveness) = (Arc::new(Recorder::default()), Liveness::new());
    let area = |offset| MappedArea { offset, memory: memory.clone(), kick: kick.clone() };
    let info = BarInfo {
        index: BarIndex::new(2).unwrap(),
        kind: BarKind::Memory64,
        prefetchable: false,
        size: ByteLength::new(0x4000),
        address: 0,
    };
    let areas = vec![area(0x3001), area(u64::MAX), area(0x1000)];
    let trapped: Arc<dyn BarAccess> = recorder.clone();
    let bar = Bar::new(info, permissions, areas, Some(trapped), Arc::clone(&liveness));
    assert_eq!(bar.mapped_areas().len(), 1, "areas outside the BAR are ignored");
    Fixture { bar, memory, recorder, liveness }
}

#[test]
fn each_access_goes_to_the_part_that_holds_all_of_it() {
    let Fixture { bar, memory, recorder, .. } = fixture(BarPermissions::READ_WRITE, None);
    memory.write_value(8, &0x1122_3344_5566_7788u64).unwrap();
    assert_eq!(bar.read::<u64>(0x1008), Ok(0x1122_3344_5566_7788));
    assert_eq!(bar.read::<u16>(0x100a), Ok(0x5566));
    bar.write::<u8>(0x1fff, 0xee).unwrap();
    assert_eq!(memory.read_value::<u8>(0xfff), Ok(0xee));
    assert_eq!(recorder.take(), []);
    assert_eq!(bar.read::<u32>(0xffc), Ok(0xdead_0ffc));
    assert_eq!(bar.read::<u8>(0x2003), Ok(0x03), "cut to the width");
    bar.write::<u16>(0x3ffe, 0xabcd).unwrap();
    let expected =
        [('r', 0xffc, Width::U32, 0), ('r', 0x2003, Width::U8, 0), ('w', 0x3ffe, Width::U16, 0xabcd)];
    assert_eq!(recorder.take(), expected);
}

#[test]
fn accesses_outside_misaligned_or_forbidden_reach_nobody() {
    let Fixture { bar, recorder, .. } = fixture(BarPermissions::READ_WRITE, None);
    let index = bar.info().index;
    for offset in [0x4000, 0x3ffd, u64::MAX - 3, u64::MAX] {
        let outside = BarError::OutOfBounds { bar: index, offset, width: Width::U32, size: 0x4000 };
        assert_eq!(bar.read::<u32>(offset), Err(outside.clone()));
        assert_eq!(bar.write::<u32>(offset, 0), Err(outside));
    }
    for offset in [0x2, 0x1001, 0x1002] {
        let misaligned = BarError::Misaligned { bar: index, offset, width: Width::U32 };
        assert_eq!(bar.read::<u32>(offset), Err(misaligned));
    }
    let read_only = fixture(BarPermissions { read: true, write: false }, None);
    let forbidden = BarError::Forbidden { bar: index, access: "writable" };
    assert_eq!(read_only.bar.write::<u8>(0x1000, 1), Err(forbidden.clone()));
    assert_eq!(read_only.bar.write::<u8>(0, 1), Err(forbidden));
    let write_only = fixture(BarPermissions { read: false, write: true }, None);
    let forbidden = BarError::Forbidden { bar: index, access: "readable" };
    assert_eq!(write_only.bar.read::<u8>(0x1000), Err(forbidden));
    assert_eq!(
        (recorder.take(), read_only.recorder.take(), write_only.recorder.take()),
        (vec![], vec![], vec![])
    );
}

#[test]
fn a_part_that_is_neither_mapped_nor_trapped_is_unsupported() {
    let Fixture { bar, .. } = fixture(BarPermissions::READ_WRITE, None);
    let only_mapped =
        Bar::new(*bar.info(), BarPermissions::READ_WRITE, bar.mapped_areas().to_vec(), None, Liveness::new());
    assert_eq!(only_mapped.write::<u64>(0x1000, 1), Ok(()));
    let unsupported =
        BarError::System { bar: bar.info().index, offset: 0, error: std::io::ErrorKind::Unsupported };
    assert_eq!(only_mapped.read::<u64>(0), Err(unsupported));
}

#[test]
fn after_close_nothing_is_accessed_and_gone_outlasts_closed() {
    let Fixture { bar, recorder, liveness, .. } = fixture(BarPermissions::READ_WRITE, None);
    let index = bar.info().index;
    liveness.close();
    for offset in [0, 0x1000] {
        assert_eq!(bar.read::<u32>(offset), Err(BarError::NotOpen { bar: index }));
        assert_eq!(bar.write::<u32>(offset, 1), Err(BarError::NotOpen { bar: index }));
    }
    liveness.remove();
    liveness.close();
    assert_eq!(bar.flush(0), Err(BarError::DeviceGone { bar: index }));
    assert_eq!((recorder.take(), bar.liveness()), (vec![], LivenessState::Gone));
}

#[test]
fn split_registers_are_accessed_in_their_order() {
    let Fixture { bar, recorder, .. } = fixture(BarPermissions::READ_WRITE, None);
    let set = bar.registers::<TrappedRegisters>(0x2000).unwrap();
    set.write(TrappedRegisters::LOW_HIGH, 0x2_0000_0001).unwrap();
    set.write(TrappedRegisters::HIGH_LOW, 0x2_0000_0001).unwrap();
    set.write(TrappedRegisters::WHOLE, 0x2_0000_0001).unwrap();
    set.write(TrappedRegisters::BYTE, 0x80).unwrap();
    let (word, whole, byte) = (Width::U32, Width::U64, Width::U8);
    let expected = [
        ('w', 0x2000, word, 1),
        ('w', 0x2004, word, 2),
        ('w', 0x200c, word, 2),
        ('w', 0x2008, word, 1),
        ('w', 0x2010, whole, 0x2_0000_0001),
        ('w', 0x201d, byte, 0x80),
    ];
    assert_eq!(recorder.take(), expected);
    assert_eq!(set.read(TrappedRegisters::LOW_HIGH), Ok(0xdead_2004_dead_2000));
    assert_eq!(set.read(TrappedRegisters::HIGH_LOW), Ok(0xdead_200c_dead_2008));
    let order: Vec<_> = recorder.take().iter().map(|access| access.1).collect();
    assert_eq!(order, [0x2000, 0x2004, 0x200c, 0x2008]);
    assert!(set.doorbell(TrappedRegisters::LOW_HIGH).is_err(), "a doorbell is one access");
    assert!(set.mapped().is_none());
    assert_eq!(
        bar.registers::<TrappedRegisters>(0x3fe8).unwrap_err().to_string(),
        "TrappedRegisters at 0x3fe8 needs 0x20 bytes, which are not all inside BAR2 of 0x4000 bytes"
    );
    assert!(bar.registers::<TrappedRegisters>(u64::MAX - 7).is_err());
    assert!(bar.registers::<TrappedRegisters>(0x2004).is_err());
}

#[test]
fn doorbells_are_mapped_or_trapped_as_their_register_is() {
    let Fixture { bar, memory, recorder, .. } = fixture(BarPermissions::READ_WRITE, None);
    let mapped = bar.registers::<TrappedRegisters>(0x1000).unwrap();
    let doorbell = mapped.doorbell(TrappedRegisters::WHOLE).unwrap();
    doorbell.ring(barrier::doorbell(), 7).unwrap();
    assert!(doorbell.is_mapped() && memory.read_value::<u64>(0x10) == Ok(7));
    let trapped = bar.registers::<TrappedRegisters>(0).unwrap().doorbell(TrappedRegisters::WHOLE).unwrap();
    trapped.ring(barrier::doorbell(), 9).unwrap();
    assert_eq!((trapped.is_mapped(), recorder.take()), (false, vec![('w', 0x10, Width::U64, 9)]));
    let read_only = fixture(BarPermissions { read: true, write: false }, None);
    let set = read_only.bar.registers::<TrappedRegisters>(0x1000).unwrap();
    assert!(set.doorbell(TrappedRegisters::BYTE).is_err() && set.mapped().is_none());
}

#[test]
#[cfg_attr(miri, ignore = "needs poll")]
fn a_device_that_sleeps_hears_every_kind_of_write() {
    let kick = Kick::new().unwrap();
    let Fixture { bar, memory, .. } = fixture(BarPermissions::READ_WRITE, Some(Arc::clone(&kick)));
    let set = bar.registers::<TrappedRegisters>(0x1000).unwrap();
    assert!(set.mapped().is_none(), "plain stores would not wake it");
    let doorbell = set.doorbell(TrappedRegisters::WHOLE).unwrap();
    let rounds = 2000u64;
    let device = std::thread::spawn(move || {
        let mut seen = 0;
        while seen < rounds {
            let look = || memory.load::<u64>(0x10, Ordering::Acquire).unwrap();
            let mut now = look();
            if now == seen {
                kick.prepare_sleep();
                now = look();
                if now == seen {
                    assert!(kick.sleep(Duration::from_secs(20)), "nobody rang after {seen}");
                    continue;
                }
                kick.cancel_sleep();
            }
            seen = now;
            // The driver waits for the echo, so that every round has its own sleep.
            memory.store::<u64>(0x20, seen, Ordering::Release).unwrap();
        }
    });
    for round in 1..=rounds {
        match round % 3 {
            0 => bar.write::<u64>(0x1010, round).unwrap(),
            1 => set.write(TrappedRegisters::WHOLE, round).unwrap(),
            _ => doorbell.ring(barrier::doorbell(), round).unwrap(),
        }
        while bar.read::<u64>(0x1020).unwrap() != round {
            assert!(!device.is_finished(), "the device gave up before {round}");
            std::thread::yield_now();
        }
    }
    device.join().unwrap();
}
