//! A device that goes away under an access: a memory file plays the BAR, and truncating it
//! takes the pages away as the kernel does with those of a removed function.

// UNSAFETY: a test installs a handler of its own before the crate does.
#![expect(unsafe_code, reason = "sigaction in a test")]
#![expect(clippy::unnecessary_safety_comment, reason = "takes UNSAFETY for SAFETY in the root of a crate")]
#![cfg(not(miri))]

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::{Bar, BarError, BarInfo, BarKind, BarPermissions, Liveness, LivenessState, MappedArea};
use vdk_hal::memory::SharedMemory;
use vdk_hal::mmio::MappedBlock;
use vdk_hal::{barrier, register_block};

register_block! {
    /// What the fake BAR holds.
    struct FakeRegisters(0x1000) {
        /// A word of the first page.
        WORD: u64 @ 0x08, ReadWrite;
    }
}

const PATTERN: u8 = 0x5a;
const WORD: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// A file of whole pages filled with [`PATTERN`].
fn fake_device(pages: usize) -> File {
    let file = File::from(rustix::fs::memfd_create("bar", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    std::io::Write::write_all(&mut &file, &vec![PATTERN; pages * page()]).unwrap();
    file
}

fn page() -> usize {
    vdk_hal::memory::page_size().to_usize().unwrap()
}

fn map(file: &File, length: usize, liveness: &Arc<Liveness>) -> SharedMemory {
    SharedMemory::map_guarded(file, 0, ByteLength::from_usize(length), liveness).unwrap()
}

fn bar(memory: SharedMemory, liveness: &Arc<Liveness>) -> Bar {
    let info = BarInfo {
        index: BarIndex::new(0).unwrap(),
        kind: BarKind::Memory64,
        prefetchable: false,
        size: memory.length(),
        address: 0,
    };
    let areas = vec![MappedArea { offset: 0, memory, kick: None }];
    Bar::new(info, BarPermissions::READ_WRITE, areas, None, Arc::clone(liveness))
}

fn gone() -> BarError {
    BarError::DeviceGone { bar: BarIndex::new(0).unwrap() }
}

#[test]
fn a_read_after_removal_says_gone_and_the_process_lives() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let bar = bar(map(&file, page(), &liveness), &liveness);
    assert_eq!(bar.read::<u32>(8), Ok(0x5a5a_5a5a));
    file.set_len(0).unwrap();
    assert_eq!(bar.liveness(), LivenessState::Live, "nobody has looked yet");
    assert_eq!(bar.read::<u32>(8), Err(gone()));
    assert_eq!(bar.liveness(), LivenessState::Gone);
    assert_eq!(bar.read::<u8>(0), Err(gone()));
}

#[test]
fn writes_after_removal_are_lost_and_the_read_back_tells() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let memory = map(&file, page(), &liveness);
    let bar = bar(memory.clone(), &liveness);
    let doorbell = bar.registers::<FakeRegisters>(0).unwrap().doorbell(FakeRegisters::WORD).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(doorbell.ring(barrier::doorbell(), 1), Ok(()), "a posted write cannot tell");
    assert_eq!(bar.flush(0), Err(gone()));
    assert_eq!(bar.write::<u32>(0, 1), Err(gone()));
    file.set_len(4096).unwrap();
    assert_eq!(memory.read_value::<u8>(0), Ok(0xff), "the device does not come back under a mapping");
}

#[test]
fn only_the_function_that_went_away_is_marked() {
    let files = [fake_device(2), fake_device(2), fake_device(2)];
    let functions: Vec<_> = files
        .iter()
        .map(|file| {
            let liveness = Liveness::new();
            bar(map(file, 2 * page(), &liveness), &liveness)
        })
        .collect();
    files[1].set_len(0).unwrap();
    // Every page answers ones, not only the first one touched.
    let memory = &functions[1].mapped_areas()[0].memory;
    let mut bytes = vec![0; 2 * page()];
    memory.read(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0xff));
    let states: Vec<_> = functions.iter().map(Bar::liveness).collect();
    assert_eq!(states, [LivenessState::Live, LivenessState::Gone, LivenessState::Live]);
    assert_eq!(functions[2].read::<u64>(0), Ok(WORD));
}

#[test]
fn a_file_shorter_than_the_mapping_answers_ones_past_its_end() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let memory = map(&file, 2 * page(), &liveness);
    assert_eq!(memory.read_value::<u64>(0), Ok(WORD));
    assert_eq!(memory.read_value::<u64>(page()), Ok(u64::MAX));
}

#[test]
fn a_bar_smaller_than_a_page_is_guarded_and_bounded() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let memory = map(&file, 256, &liveness);
    assert_eq!(memory.length(), ByteLength::new(256));
    assert_eq!(memory.read_value::<u64>(248), Ok(WORD));
    assert!(memory.read_value::<u64>(256).is_err());
    file.set_len(0).unwrap();
    assert_eq!(memory.read_value::<u64>(248), Ok(u64::MAX));
    assert!(SharedMemory::map_guarded(&file, 12, ByteLength::SIZE_4K, &liveness).is_err());
    assert!(SharedMemory::map_guarded(&file, 0, ByteLength::ZERO, &liveness).is_err());
}

/// Huge pages cannot be split: a whole one is mended. Where none are reserved the kernel
/// refuses the mapping, and there is nothing to see.
#[test]
fn a_file_of_huge_pages_answers_ones_after_it_is_cut() {
    use rustix::fs::MemfdFlags;
    const HUGE: usize = 1 << 21;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    let Ok(file) = rustix::fs::memfd_create("huge", flags).map(File::from) else {
        println!("skipped: this kernel has no huge pages of 2 MiB");
        return;
    };
    file.set_len(2 * HUGE as u64).unwrap();
    let liveness = Liveness::new();
    let length = ByteLength::from_usize(HUGE + 100);
    let Ok(memory) = SharedMemory::map_guarded(&file, 0, length, &liveness) else {
        println!("skipped: needs 2 reserved huge pages; echo 2 > /proc/sys/vm/nr_hugepages");
        return;
    };
    memory.write_value(HUGE, &WORD).unwrap();
    memory.write_value(HUGE - 8, &WORD).unwrap();
    // The second page goes, and the first stays.
    file.set_len(HUGE as u64).unwrap();
    assert_eq!(memory.read_value::<u64>(HUGE + 92), Ok(u64::MAX));
    assert_eq!(liveness.state(), LivenessState::Gone);
    assert_eq!(memory.read_value::<u64>(HUGE - 8), Ok(WORD));
    file.set_len(0).unwrap();
    let mut all = vec![0; HUGE + 100];
    memory.read(0, &mut all).unwrap();
    assert!(all.iter().all(|byte| *byte == 0xff));
    memory.write_value(16, &WORD).unwrap();
    let at = memory.host_address().as_u64();
    drop(memory);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{at:x}-");
    assert!(!maps.lines().any(|line| line.starts_with(&start)), "the whole range is unmapped: {maps}");
}

#[test]
fn device_memory_never_becomes_a_slice() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let memory = map(&file, page(), &liveness).try_into_pinned().unwrap_err();
    assert_eq!(memory.read_value::<u64>(0), Ok(WORD));
}

#[test]
fn threads_that_read_at_once_meet_the_old_value_or_ones_and_nothing_else() {
    for _ in 0..20 {
        let (file, liveness) = (fake_device(4), Liveness::new());
        let memory = map(&file, 4 * page(), &liveness);
        let bar = bar(memory.clone(), &liveness);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|number| {
                    let block = MappedBlock::<FakeRegisters>::new(
                        &memory.slice(number % 2 * page(), 0x1000).unwrap(),
                    )
                    .unwrap();
                    let (bar, stop) = (bar.clone(), &stop);
                    scope.spawn(move || {
                        let mut others = 0;
                        while !stop.load(Ordering::Relaxed) {
                            let word = block.read(FakeRegisters::WORD);
                            others += u32::from(word != WORD && word != u64::MAX);
                        }
                        (others, bar.read::<u64>(8))
                    })
                })
                .collect();
            std::thread::yield_now();
            file.set_len(0).unwrap();
            while bar.liveness() == LivenessState::Live {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            for reader in readers {
                assert_eq!(reader.join().unwrap(), (0, Err(gone())));
            }
        });
    }
}

#[test]
fn a_register_handle_keeps_its_mapping_alive() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let bar = bar(map(&file, page(), &liveness), &liveness);
    let address = bar.mapped_areas()[0].memory.host_address().as_u64();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{address:08x}-")) && line.contains("memfd:bar"))
    };
    let block = bar.registers::<FakeRegisters>(0).unwrap();
    let mapped = block.mapped().unwrap();
    let doorbell = block.doorbell(FakeRegisters::WORD).unwrap();
    drop((bar, block));
    let reader = std::thread::spawn(move || (0..1000).all(|_| mapped.read(FakeRegisters::WORD) == WORD));
    assert!(reader.join().unwrap() && is_mapped(), "the doorbell still holds it");
    drop(doorbell);
    assert!(!is_mapped());
}

/// Runs one of the ignored tests below in a process of its own.
fn run_alone(test: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    Command::new(program).args(["--exact", test, "--ignored", "--test-threads=1"]).output().unwrap()
}

/// Touches a page that is gone and not guarded, after a guarded mapping was made.
fn fault_outside_every_guard() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let _guarded = map(&fake_device(1), page(), &liveness);
    let memory = SharedMemory::map_file(&file, 0, ByteLength::from_usize(page()), true).unwrap();
    file.set_len(0).unwrap();
    std::hint::black_box(memory.read_value::<u8>(0)).unwrap();
}

#[test]
fn a_fault_outside_every_guarded_range_is_as_deadly_as_before() {
    let output = run_alone("child_faults_outside");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
#[ignore = "run as a child by the test above; it dies"]
fn child_faults_outside() {
    fault_outside_every_guard();
}

#[test]
fn the_handler_that_was_there_before_gets_every_other_fault() {
    let output = run_alone("child_has_a_handler_of_its_own");
    assert_eq!(output.status.code(), Some(42), "{output:?}");
}

extern "C" fn exit_with_42(_signal: libc::c_int) {
    // SAFETY: `_exit` is async-signal-safe.
    unsafe { libc::_exit(42) };
}

#[test]
#[ignore = "run as a child by the test above; it exits"]
fn child_has_a_handler_of_its_own() {
    let handler: extern "C" fn(libc::c_int) = exit_with_42;
    // SAFETY: the handler has the signature of one without SA_SIGINFO.
    unsafe { libc::signal(libc::SIGBUS, handler as usize) };
    let (file, liveness) = (fake_device(1), Liveness::new());
    let bar = bar(map(&file, page(), &liveness), &liveness);
    file.set_len(0).unwrap();
    assert_eq!(bar.read::<u8>(0), Err(gone()), "a guarded fault does not reach it");
    fault_outside_every_guard();
}

#[test]
fn a_signal_that_was_sent_is_not_taken_for_a_fault() {
    let output = run_alone("child_is_sent_the_signal");
    assert_eq!(output.status.signal(), Some(libc::SIGBUS), "{output:?}");
}

#[test]
#[ignore = "run as a child by the test above; it dies"]
fn child_is_sent_the_signal() {
    let (file, liveness) = (fake_device(1), Liveness::new());
    let _memory = map(&file, page(), &liveness);
    // The handler of the standard library, which was there before, takes the first one as
    // the sign to step back; the default action of the second one is death.
    // SAFETY: sends this thread a signal; no memory is involved.
    unsafe { libc::raise(libc::SIGBUS) };
    if liveness.state() == LivenessState::Live {
        // SAFETY: as above.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}
