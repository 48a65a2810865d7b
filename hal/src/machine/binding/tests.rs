use super::*;
use crate::machine::Usage;
use crate::machine::fake::{FakeMachine, ONE, THREE, TWO};

const NVME: &str = "0x010802\n";
const NET: &str = "0x020000\n";

fn address(text: &str) -> Bdf {
    text.parse().unwrap()
}

/// A machine with an NVMe controller alone in group 7.
fn with_nvme() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.function(ONE, NVME, "nvme");
    fake.group("7", &[ONE]);
    fake
}

fn bind(fake: &FakeMachine, functions: &[&str]) -> Result<Vec<Transfer>, TransferError> {
    let functions: Vec<Bdf> = functions.iter().map(|one| address(one)).collect();
    Binder::new(&fake.machine(), fake).bind(&functions, false, None)
}

fn unbind(fake: &FakeMachine, function: &str) -> Result<Vec<Transfer>, TransferError> {
    Binder::new(&fake.machine(), fake).unbind(&[address(function)])
}

fn some(driver: &str, reserved: &str) -> (Option<String>, String) {
    (Some(driver.to_owned()), reserved.to_owned())
}

#[test]
fn a_function_goes_to_vfio_pci_and_back_to_the_driver_that_had_it() {
    let fake = with_nvme();
    let done = bind(&fake, &[ONE]).unwrap();
    assert_eq!((done.len(), done[0].outcome), (1, Outcome::Done));
    assert_eq!((done[0].from.as_deref(), done[0].to.as_deref()), (Some("nvme"), Some("vfio-pci")));
    assert_eq!(fake.state(ONE), some("vfio-pci", "vfio-pci"));
    assert_eq!(
        *fake.written.borrow(),
        [
            format!("vfio-pci > /sys/bus/pci/devices/{ONE}/driver_override"),
            format!("{ONE} > /sys/bus/pci/drivers/nvme/unbind"),
            format!("{ONE} > /sys/bus/pci/drivers_probe"),
        ]
    );
    assert_eq!(bind(&fake, &[ONE]).unwrap()[0].outcome, Outcome::Already);
    let back = unbind(&fake, ONE).unwrap();
    assert_eq!((back[0].from.as_deref(), back[0].to.as_deref()), (Some("vfio-pci"), Some("nvme")));
    assert_eq!((fake.state(ONE), &back[0].notes), (some("nvme", "(null)"), &Vec::new()));
    assert_eq!(unbind(&fake, ONE).unwrap()[0].outcome, Outcome::Already);
    assert_eq!(fake.machine().remembered(address(ONE)), None);
}

#[test]
fn the_driver_of_old_is_not_forgotten_when_vfio_pci_lost_the_function_by_hand() {
    let fake = with_nvme();
    bind(&fake, &[ONE]).unwrap();
    std::fs::remove_file(fake.at(&format!("/sys/devices/pci0000:00/{ONE}/driver"))).unwrap();
    assert_eq!(fake.state(ONE), (None, "vfio-pci".to_owned()));
    assert_eq!(bind(&fake, &[ONE]).unwrap()[0].outcome, Outcome::Done);
    assert_eq!(fake.state(ONE), some("vfio-pci", "vfio-pci"));
    unbind(&fake, ONE).unwrap();
    assert_eq!(fake.state(ONE), some("nvme", "(null)"));
}

#[test]
fn a_function_without_a_driver_has_none_again_and_a_reservation_comes_back() {
    let fake = FakeMachine::new();
    fake.function(ONE, NET, "");
    fake.function(TWO, NET, "ixgbe");
    fake.group("7", &[ONE]);
    fake.group("8", &[TWO]);
    fake.file(&format!("/sys/devices/pci0000:00/{TWO}/driver_override"), "ixgbe\n");
    bind(&fake, &[ONE, TWO, ONE]).unwrap();
    assert_eq!(fake.state(ONE), some("vfio-pci", "vfio-pci"));
    unbind(&fake, ONE).unwrap();
    assert_eq!(fake.state(ONE), (None, "(null)".to_owned()));
    unbind(&fake, TWO).unwrap();
    assert_eq!(fake.state(TWO), some("ixgbe", "ixgbe"));
}

#[test]
fn without_a_memory_of_this_boot_the_kernel_chooses() {
    let fake = with_nvme();
    bind(&fake, &[ONE]).unwrap();
    fake.file("/proc/sys/kernel/random/boot_id", "boot-2\n");
    let back = unbind(&fake, ONE).unwrap();
    assert_eq!((back[0].to.as_deref(), back[0].notes.len()), (Some("nvme"), 1));
    assert_eq!(fake.state(ONE), some("nvme", "(null)"));
}

#[test]
fn drivers_are_remembered_elsewhere_when_run_cannot_be_written() {
    let fake = with_nvme();
    fake.file("/run/vdk", "a file where the folder should be");
    bind(&fake, &[ONE]).unwrap();
    assert!(fake.at(&format!("/state/vdk/drivers/{ONE}")).exists());
    assert_eq!(unbind(&fake, ONE).unwrap()[0].to.as_deref(), Some("nvme"));
    fs::remove_dir_all(fake.at("/state")).unwrap();
    fake.file("/state", "another");
    let error = bind(&fake, &[ONE]).unwrap_err().to_string();
    assert!(
        error.contains("cannot remember the former driver in") && error.ends_with("everything is as it was"),
        "{error}"
    );
    assert_eq!(fake.state(ONE), some("nvme", "(null)"));
}

#[test]
fn a_mounted_disk_is_refused_unless_forced_and_nothing_is_written() {
    let fake = with_nvme();
    fake.block(ONE, "nvme/nvme0/nvme0n1", "259:0\n");
    fake.block(ONE, "nvme/nvme0/nvme0n1/nvme0n1p1", "259:1\n");
    fake.file("/proc/self/mountinfo", "30 1 259:1 / /srv\\040x rw - ext4 /dev/root rw\n");
    let error = bind(&fake, &[ONE]).unwrap_err();
    let mounted = Usage::Mounted { device: "nvme0n1p1".to_owned(), at: "/srv x".to_owned() };
    assert_eq!(error, TransferError::InUse { usage: vec![(address(ONE), mounted)] });
    assert!(error.to_string().contains("umount /srv x"), "{error}");
    assert!(fake.written.borrow().is_empty());
    let machine = fake.machine();
    let forced = Binder::new(&machine, &fake).forced(true).bind(&[address(ONE)], false, None).unwrap();
    assert_eq!(forced[0].outcome, Outcome::Done);
}

#[test]
fn the_whole_group_goes_and_members_that_are_no_obstacle_stay() {
    let fake = FakeMachine::new();
    fake.function(ONE, NET, "ixgbe");
    fake.function(TWO, NET, "ixgbe");
    fake.function(THREE, "0x060400\n", "pcieport");
    fake.function("0000:02:01.0", NET, "");
    fake.group("7", &[ONE, TWO, THREE, "0000:02:01.0"]);
    let alone = bind(&fake, &[ONE]).unwrap();
    assert_eq!(
        alone[0].notes,
        [format!(
            "IOMMU group 7 cannot be opened yet, since it also holds {TWO} (ixgbe): vdk bind --group {ONE}"
        )]
    );
    let machine = fake.machine();
    let done = Binder::new(&machine, &fake).bind(&[address(ONE)], true, None).unwrap();
    let outcomes: Vec<_> = done.iter().map(|one| (one.address.to_string(), one.outcome)).collect();
    assert_eq!(outcomes, [(ONE.to_owned(), Outcome::Already), (TWO.to_owned(), Outcome::Done)]);
    assert!(done.iter().all(|one| one.notes.is_empty()), "{done:?}");
    assert_eq!(fake.state(THREE), some("pcieport", "(null)"));
    assert_eq!(fake.state("0000:02:01.0").0, None);
}

#[test]
fn each_write_that_fails_leaves_every_function_as_it_was() {
    for file in ["driver_override", "ixgbe/unbind", "drivers_probe"] {
        let fake = FakeMachine::new();
        fake.function(ONE, NVME, "nvme");
        fake.function(TWO, NET, "ixgbe");
        fake.group("7", &[ONE, TWO]);
        // The first function needs one write of the files that both need.
        let after = u32::from(!file.starts_with("ixgbe"));
        fake.broken.borrow_mut().push((file.to_owned(), after));
        if file == "drivers_probe" {
            fake.refusing.borrow_mut().push("nobody".to_owned());
            fake.broken.borrow_mut().push(("vfio-pci/bind".to_owned(), 0));
        }
        let error = bind(&fake, &[ONE, TWO]).unwrap_err();
        if file == "driver_override" {
            // What cannot be written any more cannot be brought back, and is told.
            assert!(error.to_string().contains("not everything could be brought back"), "{error}");
            continue;
        }
        let TransferError::Failed { fault, left } = &error else { panic!("{file}: {error}") };
        assert_eq!(*left, [], "{file}");
        assert!(fault.to_string().contains("Input/output error"), "{fault}");
        assert_eq!(fake.state(ONE), some("nvme", "(null)"), "{file}");
        assert_eq!(fake.state(TWO), some("ixgbe", "(null)"), "{file}");
        assert_eq!(fake.machine().remembered(address(ONE)), None);
    }
}

#[test]
fn a_driver_that_does_not_take_the_function_is_told_and_the_former_one_has_it_again() {
    let fake = with_nvme();
    fake.refusing.borrow_mut().push("vfio-pci".to_owned());
    let error = bind(&fake, &[ONE]).unwrap_err();
    assert!(error.to_string().contains("vfio-pci/bind: No such device"), "{error}");
    assert!(error.to_string().ends_with("everything is as it was"), "{error}");
    assert_eq!(fake.state(ONE), some("nvme", "(null)"));

    fake.refusing.borrow_mut().clear();
    bind(&fake, &[ONE]).unwrap();
    fake.refusing.borrow_mut().push("nvme".to_owned());
    assert!(matches!(unbind(&fake, ONE), Err(TransferError::Failed { left, .. }) if left.is_empty()));
    assert_eq!(fake.state(ONE), some("vfio-pci", "vfio-pci"));
    assert_eq!(fake.machine().remembered(address(ONE)).unwrap().driver.as_deref(), Some("nvme"));
}

#[test]
fn what_is_missing_is_named_before_anything_changes() {
    let fake = with_nvme();
    assert!(matches!(bind(&fake, &[TWO]), Err(TransferError::NotFound { .. })));
    fs::remove_dir(fake.at("/sys/bus/pci/drivers/vfio-pci")).unwrap();
    let error = bind(&fake, &[ONE]).unwrap_err().to_string();
    assert_eq!(error, "there is no driver vfio-pci: modprobe vfio-pci failed: no such module");
    fake.loadable.borrow_mut().push("vfio-pci".to_owned());
    fake.may_write.set(false);
    assert!(matches!(bind(&fake, &[ONE]), Err(TransferError::NotPermitted { .. })));
    fake.may_write.set(true);
    let done = bind(&fake, &[ONE]).unwrap();
    assert_eq!(done[0].steps[0].to_string(), "modprobe vfio-pci");
    fake.remove(&format!("/sys/devices/pci0000:00/{ONE}/driver_override"));
    assert_eq!(bind(&fake, &[ONE]), Err(TransferError::NoDriverOverride { address: address(ONE) }));

    fake.function(THREE, NET, "ixgbe");
    fake.written.borrow_mut().clear();
    for (forced, trial) in [(false, false), (true, false), (true, true)] {
        let machine = fake.machine();
        let binder = Binder::new(&machine, &fake).forced(forced).trial(trial);
        let refused = binder.bind(&[address(THREE)], false, None);
        assert_eq!(refused, Err(TransferError::NoIommu { address: address(THREE) }), "{forced} {trial}");
    }
    assert!(fake.written.borrow().is_empty());
    fake.function("0000:00:00.0", "0x060000\n", "");
    let bridge = bind(&fake, &["0000:00:00.0"]);
    assert!(matches!(bridge, Err(TransferError::InUse { usage }) if usage[0].1 == Usage::Bridge));
}

#[test]
fn a_trial_tells_the_commands_and_changes_nothing() {
    let fake = with_nvme();
    fs::remove_dir(fake.at("/sys/bus/pci/drivers/vfio-pci")).unwrap();
    fake.may_write.set(false);
    let machine = fake.machine();
    let planned = Binder::new(&machine, &fake).trial(true).bind(&[address(ONE)], false, Some(1000)).unwrap();
    assert_eq!((planned[0].outcome, planned[0].to.as_deref()), (Outcome::Planned, Some("vfio-pci")));
    let shown: Vec<String> = planned[0].steps.iter().map(ToString::to_string).collect();
    let root = fake.at("/").display().to_string();
    let shown: Vec<String> = shown.iter().map(|line| line.replace(&root, "/")).collect();
    assert_eq!(
        shown,
        [
            "modprobe vfio-pci".to_owned(),
            format!("# remember nvme in /run/vdk/drivers/{ONE}"),
            format!("echo vfio-pci > /sys/bus/pci/devices/{ONE}/driver_override"),
            format!("echo {ONE} > /sys/bus/pci/drivers/nvme/unbind"),
            format!("echo {ONE} > /sys/bus/pci/drivers_probe"),
            "chown 1000 /dev/vfio/7".to_owned(),
        ]
    );
    assert!(fake.written.borrow().is_empty() && fake.owners.borrow().is_empty());
    assert_eq!((fake.state(ONE), fake.machine().remembered(address(ONE))), (some("nvme", "(null)"), None));
    fake.may_write.set(true);
    fake.driver("vfio-pci");
    bind(&fake, &[ONE]).unwrap();
    let planned = Binder::new(&machine, &fake).trial(true).unbind(&[address(ONE)]).unwrap();
    assert_eq!((planned[0].outcome, planned[0].to.as_deref()), (Outcome::Planned, Some("nvme")));
    assert_eq!(
        planned[0].steps[0].to_string().replace(&root, "/"),
        format!("echo > /sys/bus/pci/devices/{ONE}/driver_override")
    );
    assert_eq!(fake.state(ONE), some("vfio-pci", "vfio-pci"));
}

#[test]
fn an_owner_gets_the_nodes_and_a_failure_there_undoes_the_rest() {
    let fake = with_nvme();
    let machine = fake.machine();
    let binder = Binder::new(&machine, &fake);
    fake.broken.borrow_mut().push(("devices/vfio7".to_owned(), 0));
    let error = binder.bind(&[address(ONE)], false, Some(1000)).unwrap_err().to_string();
    assert!(error.contains("to user 1000: Operation not permitted"), "{error}");
    assert_eq!(fake.state(ONE), some("nvme", "(null)"));
    fake.broken.borrow_mut().clear();
    fake.owners.borrow_mut().clear();
    binder.bind(&[address(ONE)], false, Some(1000)).unwrap();
    let both = [("/dev/vfio/7".to_owned(), 1000), ("/dev/vfio/devices/vfio7".to_owned(), 1000)];
    assert_eq!(*fake.owners.borrow(), both);
    fake.file("/etc/passwd", "top:x:0:0::/:/bin/sh\nann:x:1001:100::/:/bin/sh\n");
    assert_eq!((machine.user("ann"), machine.user("7"), machine.user("bob")), (Some(1001), Some(7), None));
}

#[test]
fn a_function_that_a_program_drives_is_not_taken_from_it() {
    let fake = with_nvme();
    bind(&fake, &[ONE]).unwrap();
    fake.file("/proc/4/comm", "spdk_tgt\n");
    fake.link("/proc/4/fd/9", "/dev/vfio/7");
    let error = unbind(&fake, ONE).unwrap_err().to_string();
    assert_eq!(error, format!("{ONE} is open in spdk_tgt (process 4): end it first"));
    let machine = fake.machine();
    Binder::new(&machine, &fake).forced(true).unbind(&[address(ONE)]).unwrap();
    assert_eq!(fake.state(ONE), some("nvme", "(null)"));
}
