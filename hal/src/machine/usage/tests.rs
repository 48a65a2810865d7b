use super::*;
use crate::machine::fake::{FakeMachine, ONE};

fn words(fake: &FakeMachine) -> Vec<String> {
    fake.machine().usage(&fake.read(ONE)).iter().map(ToString::to_string).collect()
}

fn disk() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.function(ONE, "0x010802\n", "nvme");
    fake.block(ONE, "nvme/nvme0/nvme0n1", "259:0\n");
    fake.block(ONE, "nvme/nvme0/nvme0n1/nvme0n1p1", "259:1\n");
    fake
}

#[test]
fn a_disk_that_nobody_uses_is_free() {
    let fake = disk();
    fake.file(
        "/proc/self/mountinfo",
        "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n23 1 259:10 / /x rw - ext4 /dev/nvme0n10 rw\n",
    );
    fake.file("/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n");
    assert_eq!(words(&fake), Vec::<String>::new());
}

#[test]
fn mounts_are_found_by_number_and_by_name() {
    let fake = disk();
    fake.link("/dev/disk/by-label/data", "/dev/nvme0n1");
    fake.file(
        "/proc/self/mountinfo",
        "22 1 0:40 /@ /srv rw,relatime shared:1 - btrfs /dev/disk/by-label/data rw\n\
         23 1 259:1 / /boot\\040old rw - vfat /dev/root rw\n24 1 0:5 / /proc rw - proc proc rw\nrubbish\n",
    );
    assert_eq!(words(&fake), ["nvme0n1p1 is mounted at /boot old", "nvme0n1 is mounted at /srv"]);
}

#[test]
fn swap_holders_and_processes_are_uses() {
    let fake = disk();
    fake.file("/proc/swaps", "Filename Type Size Used Priority\n/dev/nvme0n1p1 partition 1 0 -2\n");
    fake.folder(&format!("/sys/devices/pci0000:00/{ONE}/nvme/nvme0/nvme0n1/holders/dm-0"));
    fake.file("/proc/77/comm", "dd\n");
    fake.link("/proc/77/fd/3", "/dev/nvme0n1");
    assert_eq!(
        words(&fake),
        ["nvme0n1p1 is swap space", "nvme0n1 is part of dm-0", "nvme0n1 is open in dd (process 77)"]
    );
    let fixes: Vec<_> = fake.machine().usage(&fake.read(ONE)).iter().map(Usage::fix).collect();
    assert!(fixes[0] == "swapoff /dev/nvme0n1p1" && fixes[1].contains("cryptsetup close"), "{fixes:?}");
}

#[test]
fn a_namespace_that_several_controllers_reach_is_found_below_its_subsystem() {
    let fake = FakeMachine::new();
    fake.function(ONE, "0x010802\n", "nvme");
    let controller = format!("/sys/devices/pci0000:00/{ONE}/nvme/nvme3");
    fake.folder(&controller);
    fake.link("/sys/class/nvme/nvme3", &controller);
    let subsystem = "/sys/devices/virtual/nvme-subsystem/nvme-subsys0";
    fake.file(&format!("{subsystem}/nvme0n1/dev"), "259:5\n");
    fake.link(&format!("{subsystem}/nvme3"), &controller);
    fake.link("/sys/class/nvme-subsystem/nvme-subsys0", subsystem);
    fake.link("/sys/class/block/nvme0n1", &format!("{subsystem}/nvme0n1"));
    fake.file("/proc/self/mountinfo", "30 1 259:5 / /srv rw - ext4 /dev/nvme0n1 rw\n");
    assert_eq!(words(&fake), ["nvme0n1 is mounted at /srv"]);
}

#[test]
fn interfaces_displays_keyboards_and_virtual_functions_are_uses() {
    let fake = FakeMachine::new();
    fake.function(ONE, "0x020000\n", "ixgbe");
    fake.interface(ONE, "eth0", "0x1003\n");
    fake.interface(ONE, "eth1", "0x1002\n");
    assert_eq!(words(&fake), ["network interface eth0 is up"]);
    let folder = format!("/sys/devices/pci0000:00/{ONE}");
    fake.link(&format!("{folder}/net/eth1/master"), "/sys/class/net/br0");
    fake.file(&format!("{folder}/boot_vga"), "1\n");
    fake.file(&format!("{folder}/usb1/input/input4/name"), "AT keyboard\n");
    fake.file(&format!("{folder}/usb1/input/input4/capabilities/key"), "fffe\n");
    fake.file(&format!("{folder}/sound/input5/capabilities/key"), "0\n");
    fake.link("/sys/class/input/input5", &format!("{folder}/sound/input5"));
    fake.link("/sys/class/input/input4", &format!("{folder}/usb1/input/input4"));
    fake.file(&format!("{folder}/sriov_numvfs"), "2\n");
    assert_eq!(
        words(&fake),
        [
            "it is the display of the console",
            "network interface eth0 is up",
            "network interface eth1 belongs to br0",
            "input device \"AT keyboard\" is attached to it",
            "2 virtual functions of it exist",
        ]
    );
    let fix = fake.machine().usage(&fake.read(ONE)).last().unwrap().fix();
    assert_eq!(fix, format!("echo 0 > /sys/bus/pci/devices/{ONE}/sriov_numvfs"));
}
