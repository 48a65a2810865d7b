use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;

use super::*;
use crate::bar::LivenessState;
use crate::config::{ConfigSpace, register};
use crate::mmio::Width;
use crate::vfio::choice::ChosenInterface;
use crate::vfio::claim::Claim;
use crate::vfio::container::Container;
use crate::vfio::kernel::KernelFile;
use crate::vfio::mock::MockFile;
use crate::vfio::options::{KernelInterface, VfioOptions};
use crate::vfio::session::{Attachment, Opened};
use crate::vfio::space::{Backing, Space};

/// Where the file of the device has its configuration space.
const CONFIG: u64 = 0x1000;
const COMMAND: u64 = CONFIG + 4;

/// What the kernel refuses.
#[derive(Default)]
struct Refusals {
    /// The raw error of a reset; none if it is 0.
    reset: AtomicU32,
    /// Writes of the Command register, from so many on.
    command_writes: AtomicU32,
    refuse_command: AtomicBool,
}

struct Machine {
    refusals: Arc<Refusals>,
    file: Arc<MockFile>,
    session: Arc<Session>,
}

/// An open function with a configuration space and nothing else, that can be reset.
fn machine(address: &str) -> Machine {
    let refusals = Arc::new(Refusals::default());
    let kernel = Arc::clone(&refusals);
    let file = MockFile::new(move |call, message, _| match call {
        Call::DeviceInfo => {
            // PCI, with a reset; nine regions, five kinds of interrupts.
            message.put(4, 0b11);
            message.put(8, 9);
            message.put(12, 5);
            Ok(0)
        }
        Call::RegionInfo => {
            let is_config = message.word(8) == Some(7);
            message.put(4, if is_config { 3 } else { 0 });
            message.put64(16, if is_config { 4096 } else { 0 });
            message.put64(24, CONFIG);
            Ok(0)
        }
        Call::Reset => match kernel.reset.load(Ordering::Relaxed) {
            0 => Ok(0),
            raw => Err(Errno::from_raw_os_error(raw.try_into().unwrap())),
        },
        _ => Err(Errno::NOTTY),
    });
    file.file().set_len(CONFIG + 4096).unwrap();
    // A vendor and a device, and memory space and bus mastering on.
    file.write_at(CONFIG, &[0x34, 0x12, 0x78, 0x56, 0x06, 0x00]).unwrap();
    let kernel = Arc::clone(&refusals);
    file.before_accesses(move |offset, write| {
        if write && offset == COMMAND && kernel.refuse_command.load(Ordering::Relaxed) {
            let left = kernel.command_writes.load(Ordering::Relaxed);
            kernel.command_writes.store(left.saturating_sub(1), Ordering::Relaxed);
            return if left == 0 { Err(Errno::IO) } else { Ok(()) };
        }
        Ok(())
    });
    let container = MockFile::new(|call, _, _| match call {
        Call::ApiVersion | Call::SetIommu | Call::IommuInfo => Ok(0),
        Call::CheckExtension => Ok(1),
        _ => Err(Errno::NOTTY),
    });
    let address = address.parse().unwrap();
    let opened = Opened {
        name: "mock".to_owned(),
        address,
        interface: ChosenInterface { interface: KernelInterface::Type1, reason: String::new() },
        root: std::path::PathBuf::new(),
        file: file.clone(),
        attachment: Attachment::Iommufd,
        space: Space::over(Backing::Type1(Arc::new(Container::over(container).unwrap()))),
        claim: Claim::take(address).unwrap(),
    };
    let session = Session::start(opened, &VfioOptions::default()).map_err(|refusal| refusal.text()).unwrap();
    Machine { refusals, file, session }
}

impl Machine {
    fn command(&self) -> u16 {
        let mut raw = [0; 2];
        self.file.read_at(COMMAND, &mut raw).unwrap();
        u16::from_le_bytes(raw)
    }

    fn state(&self) -> LivenessState {
        self.session.device.liveness().state()
    }

    fn write_command(&self, value: u16) -> Result<(), ConfigError> {
        self.session.config.write_raw(register::COMMAND, Width::U16, value.into())
    }

    /// Refuses to write the Command register, but for the next `count` times.
    fn refuse_command_after(&self, count: u32) {
        self.refusals.command_writes.store(count, Ordering::Relaxed);
        self.refusals.refuse_command.store(true, Ordering::Relaxed);
    }
}

const MEMORY: u16 = 0b010;
const MEMORY_AND_MASTER: u16 = 0b110;

#[test]
fn a_function_is_opened_off_the_bus_and_a_reset_leaves_its_memory_off() {
    let machine = machine("fff0:00:00.0");
    assert_eq!((machine.command(), machine.state()), (MEMORY, LivenessState::Live));
    let kind = machine.session.reset_kinds()[0];
    machine.session.reset(kind).unwrap();
    assert_eq!((machine.command(), machine.state()), (0, LivenessState::Asleep));
}

#[test]
fn a_function_that_was_not_reset_goes_on_as_it_was() {
    let machine = machine("fff0:00:00.1");
    let kind = machine.session.reset_kinds()[0];
    for before in [MEMORY_AND_MASTER, MEMORY, 0] {
        machine.write_command(before).unwrap();
        let live = machine.state();
        machine.refusals.reset.store(5, Ordering::Relaxed);
        let error = machine.session.reset(kind).unwrap_err();
        assert!(matches!(error, ResetError::System { .. }), "{error}");
        assert_eq!((machine.command(), machine.state()), (before, live));
    }
}

#[test]
fn a_function_that_cannot_be_quieted_is_not_reset_and_goes_on() {
    let machine = machine("fff0:00:00.2");
    let kind = machine.session.reset_kinds()[0];
    machine.write_command(MEMORY_AND_MASTER).unwrap();
    machine.file.take();
    // Bus mastering goes off; memory space does not.
    machine.refuse_command_after(1);
    let error = machine.session.reset(kind).unwrap_err();
    assert!(matches!(error, ResetError::System { .. }), "{error}");
    assert!(!machine.file.calls().contains(&Call::Reset));
    // The way back is refused too: bus mastering stays off, and the function is awake.
    assert_eq!((machine.command(), machine.state()), (MEMORY, LivenessState::Live));
}

#[test]
fn a_command_that_is_not_written_changes_nothing_of_what_is_known() {
    let machine = machine("fff0:00:00.3");
    machine.refuse_command_after(0);
    assert!(matches!(machine.write_command(0), Err(ConfigError::System { .. })));
    assert_eq!((machine.command(), machine.state()), (MEMORY, LivenessState::Live), "it still answers");

    machine.refusals.refuse_command.store(false, Ordering::Relaxed);
    machine.write_command(0).unwrap();
    machine.refuse_command_after(0);
    assert!(machine.write_command(MEMORY).is_err());
    assert_eq!((machine.command(), machine.state()), (0, LivenessState::Asleep), "it does not answer yet");
    machine.refusals.refuse_command.store(false, Ordering::Relaxed);
    machine.write_command(MEMORY).unwrap();
    assert_eq!(machine.state(), LivenessState::Live);
}

#[test]
fn a_function_that_the_watcher_closes_can_be_opened_when_its_owner_has_closed_it_too() {
    let machine = machine("fff0:00:00.7");
    let address = machine.session.address;
    machine.write_command(MEMORY_AND_MASTER).unwrap();
    let (reached, closing) = std::sync::mpsc::channel();
    let (go_on, told) = std::sync::mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    machine.file.before_accesses(move |offset, write| {
        if write && offset == COMMAND {
            reached.send(()).unwrap();
            // Until it is dropped.
            let _ = told.lock().unwrap().recv();
        }
        Ok(())
    });
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| machine.session.close_overdue());
        closing.recv().unwrap();
        let owner = scope.spawn(|| {
            machine.session.close();
            Claim::take(address).map(drop).map_err(|refusal| refusal.text())
        });
        // The watcher waits for nobody.
        machine.session.close_overdue();
        // An owner who does not wait would be through by then, and find the function taken.
        std::thread::sleep(core::time::Duration::from_millis(50));
        drop(go_on);
        assert_eq!(owner.join().unwrap(), Ok(()));
        watcher.join().unwrap();
    });
}
