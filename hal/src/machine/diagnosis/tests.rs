use super::*;
use crate::machine::fake::{FakeMachine, ONE, THREE, TWO};

fn find<'a>(findings: &'a [Finding], subject: &str) -> &'a Finding {
    findings
        .iter()
        .find(|finding| finding.subject == subject)
        .unwrap_or_else(|| panic!("{subject}: {findings:#?}"))
}

fn of(fake: &FakeMachine, address: &str) -> Vec<Finding> {
    fake.machine().diagnose_function(address.parse().unwrap()).unwrap()
}

fn fix(finding: &Finding) -> &str {
    finding.fix.as_deref().unwrap_or_default()
}

/// A machine on which nothing is wrong.
fn healthy() -> FakeMachine {
    let fake = FakeMachine::new();
    fake.file("/proc/sys/kernel/osrelease", "6.12.9\n");
    fake.file("/proc/cpuinfo", "processor : 0\nvendor_id\t: GenuineIntel\nflags\t: fpu vmx\n");
    fake.file("/proc/interrupts", "  24: 0 0 IR-PCI-MSIX-0000:00:06.0 0-edge nvme0q0\n");
    fake.file("/proc/self/limits", "Limit Soft Hard Units\nMax locked memory  unlimited unlimited bytes\n");
    fake.file("/proc/self/status", "VmLck:\t 0 kB\nVmPin:\t 16 kB\nCapEff:\t0000000000000000\n");
    fake.folder("/sys/class/iommu/dmar0");
    for module in ["vfio", "vfio_pci", "vfio_iommu_type1", "iommufd"] {
        fake.file(&format!("/sys/module/{module}/initstate"), "live\n");
    }
    fake.file("/dev/vfio/vfio", "");
    fake.file("/dev/iommu", "");
    fake.function(ONE, "0x010802\n", "nvme");
    fake.group("7", &[ONE]);
    fake
}

#[test]
fn a_machine_with_everything_has_nothing_wrong() {
    let fake = healthy();
    let findings = fake.machine().diagnose();
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:#?}");
    assert_eq!(find(&findings, "IOMMU").text, "on: 1 group behind dmar0");
    assert_eq!(find(&findings, "interrupt remapping").text, "on");
    assert_eq!(find(&findings, "locked memory").text, "16 KiB in use, no limit");
    assert!(find(&findings, "device nodes").text.contains("no function is with vfio-pci yet"));
}

#[test]
fn an_iommu_that_is_off_is_mended_in_the_way_of_its_vendor() {
    let fake = FakeMachine::new();
    let look = |fake: &FakeMachine| {
        let finding = fake.machine().iommu();
        assert_eq!(finding.level, Level::Problem);
        (finding.text.clone(), fix(&finding).to_owned())
    };
    fake.file("/proc/cmdline", "quiet\n");
    fake.file("/proc/cpuinfo", "vendor_id : GenuineIntel\nflags : fpu\n");
    fake.file("/etc/default/grub", "");
    let (text, fix) = look(&fake);
    assert!(text.contains("the firmware describes none") && fix.contains("turn VT-d on"), "{text}: {fix}");
    fake.file("/sys/firmware/acpi/tables/DMAR", "");
    let (_, fix) = look(&fake);
    assert_eq!(
        fix,
        "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on /' /etc/default/grub && update-grub && reboot"
    );
    fake.file("/usr/sbin/grubby", "");
    assert_eq!(look(&fake).1, "grubby --update-kernel=ALL --args=intel_iommu=on && reboot");
    fake.file("/proc/cmdline", "quiet intel_iommu=on\n");
    assert!(look(&fake).1.starts_with("dmesg"));
    fake.file("/proc/cmdline", "quiet intel_iommu=off\n");
    assert!(look(&fake).0.contains("booted with intel_iommu=off"));
    assert_eq!(look(&fake).1, "grubby --update-kernel=ALL --remove-args=intel_iommu=off && reboot");
    fake.file("/proc/cmdline", "");
    fake.file("/proc/cpuinfo", "vendor_id : AuthenticAMD\nflags : fpu\n");
    assert!(look(&fake).1.contains("turn AMD-Vi on"));
    fake.file("/proc/cpuinfo", "vendor_id : AuthenticAMD\nflags : fpu hypervisor\n");
    assert!(look(&fake).1.contains("-device intel-iommu,intremap=on"));
    fake.file("/proc/cpuinfo", "CPU implementer : 0x41\n");
    assert!(look(&fake).1.contains("SMMU"));
}

#[test]
fn a_group_without_an_iommu_does_not_count_and_the_mode_is_a_danger() {
    let fake = healthy();
    fake.file("/sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
    fake.file("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
    let findings = fake.machine().diagnose();
    assert_eq!(find(&findings, "IOMMU").level, Level::Problem);
    let mode = find(&findings, "no-IOMMU mode");
    assert_eq!(mode.level, Level::Problem);
    assert_eq!(fix(mode), "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode");
    assert!(find(&of(&fake, ONE), "IOMMU group").text.contains("has no IOMMU behind it"));
}

#[test]
fn interrupts_that_are_not_remapped_are_a_problem_or_a_risk_that_was_taken() {
    let fake = healthy();
    fake.file("/proc/interrupts", "  24: 0 0 PCI-MSIX-0000:00:06.0 0-edge nvme0q0\n");
    assert_eq!(find(&fake.machine().diagnose(), "interrupt remapping").level, Level::Problem);
    fake.file("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n");
    let found = fake.machine().interrupt_remapping();
    assert_eq!((found.len(), found[0].level), (1, Level::Warning));
}

#[test]
fn modules_are_loaded_built_in_loadable_or_missing() {
    let fake = FakeMachine::new();
    fake.file("/proc/sys/kernel/osrelease", "6.1.0-18-amd64\n");
    let level = |subject: &str| find(&fake.machine().modules(), subject).level;
    assert_eq!(level("module vfio"), Level::Problem);
    assert_eq!(level("module vfio-pci"), Level::Ok, "its driver is there");
    assert_eq!(level("address spaces"), Level::Problem);
    let folder = "/lib/modules/6.1.0-18-amd64";
    fake.file(
        &format!("{folder}/modules.dep"),
        "kernel/drivers/vfio/vfio.ko.xz: kernel/virt/lib/irqbypass.ko.xz\nkernel/drivers/vfio/vfio_iommu_type1.ko.xz:\n",
    );
    let found = fake.machine().modules();
    assert_eq!(
        (find(&found, "module vfio").level, fix(&found[0])),
        (Level::Warning, "modprobe vfio (`vdk bind` does so)")
    );
    assert_eq!(
        find(&found, "address spaces").text,
        "vfio_iommu_type1 is loaded when needed, iommufd is not in this kernel"
    );
    fake.file(&format!("{folder}/modules.builtin"), "kernel/drivers/vfio/vfio.ko\n");
    assert_eq!(find(&fake.machine().modules(), "module vfio").text, "built in");
    let kernel = fake.machine().kernel_version();
    assert!(kernel.level == Level::Ok && kernel.text.contains("it lacks iommufd (6.2)"), "{}", kernel.text);
    fake.file("/proc/sys/kernel/osrelease", "3.10.0-el7\n");
    assert_eq!(fake.machine().kernel_version().level, Level::Problem);
}

#[test]
fn nodes_that_this_user_may_not_open_come_with_the_rule() {
    let fake = healthy();
    fake.file("/dev/vfio/7", "");
    fake.file("/dev/vfio/devices/vfio0", "");
    let mut machine = fake.machine();
    assert!(find(&machine.diagnose(), "device nodes").text.starts_with("2 nodes"));
    machine.may_use = |path| path.ends_with("vfio/vfio");
    let findings = machine.diagnose();
    assert_eq!(find(&findings, "/dev/vfio/vfio").level, Level::Ok);
    assert_eq!(find(&findings, "/dev/iommu").level, Level::Problem);
    let nodes = find(&findings, "device nodes");
    assert_eq!(
        (nodes.level, nodes.text.as_str()),
        (Level::Warning, "this user may not open /dev/vfio/7, /dev/vfio/devices/vfio0")
    );
    assert!(
        fix(nodes).contains("SUBSYSTEM==\"vfio|vfio-dev\", OWNER=\"USER\"' > /etc/udev/rules.d/70-vdk.rules")
    );
    fake.remove("/dev/iommu");
    assert_eq!(find(&fake.machine().diagnose(), "/dev/iommu").level, Level::Warning);
}

#[test]
fn a_low_limit_of_locked_memory_comes_with_the_command() {
    let fake = healthy();
    let with = |soft: u64, hard: &str| {
        fake.file("/proc/self/limits", &format!("Max locked memory         {soft}   {hard}   bytes\n"));
        fake.machine().locked_memory()
    };
    let low = with(65536, "65536");
    assert_eq!(low.level, Level::Problem);
    assert!(fix(&low).contains("prlimit --pid $$ --memlock=67108864:67108864"), "{}", fix(&low));
    let low = with(8 << 20, "unlimited");
    assert_eq!(
        (low.level, low.text.as_str()),
        (
            Level::Warning,
            "16 KiB in use, the limit is 8 MiB; a driver typically needs 64 MiB for rings and buffers"
        )
    );
    for part in ["ulimit -l 65536", "/etc/security/limits.d/vdk.conf", "LimitMEMLOCK=64M"] {
        assert!(fix(&low).contains(part), "{}", fix(&low));
    }
    fake.file("/proc/self/status", "VmLck:\t 0 kB\nCapEff:\t000001ffffffffff\n");
    assert_eq!(with(65536, "65536").level, Level::Ok);
}

#[test]
fn huge_pages_are_told_by_size_and_node() {
    let fake = healthy();
    let pool = |folder: &str, size: &str, reserved: &str| {
        fake.file(&format!("{folder}/hugepages-{size}kB/nr_hugepages"), reserved);
        fake.file(&format!("{folder}/hugepages-{size}kB/free_hugepages"), "1\n");
    };
    pool("/sys/kernel/mm/hugepages", "1048576", "0\n");
    pool("/sys/kernel/mm/hugepages", "2048", "0\n");
    let none = fake.machine().huge_pages();
    assert!(none.text.starts_with("none reserved, 2 MiB and 1 GiB would be possible"), "{}", none.text);
    pool("/sys/kernel/mm/hugepages", "2048", "8\n");
    pool("/sys/devices/system/node/node0/hugepages", "2048", "7\n");
    pool("/sys/devices/system/node/node1/hugepages", "2048", "1\n");
    assert_eq!(fake.machine().huge_pages().text, "8 of 2 MiB, 1 free (7 pages on node 0, 1 page on node 1)");
}

#[test]
fn a_function_of_another_driver_is_mended_by_bind_and_its_uses_are_named() {
    let fake = healthy();
    fake.block(ONE, "nvme/nvme0/nvme0n1", "259:0\n");
    fake.file("/proc/self/mountinfo", "30 1 259:0 / /srv rw - ext4 /dev/nvme0n1 rw\n");
    let findings = of(&fake, ONE);
    assert_eq!(fix(find(&findings, "driver")), format!("vdk bind {ONE}"));
    let used = find(&findings, "in use");
    assert_eq!((used.text.as_str(), fix(used)), ("nvme0n1 is mounted at /srv", "umount /srv"));
    assert_eq!(find(&findings, "reset").text, "flr bus");
    assert_eq!(find(&findings, "interrupts").text, "INTx");
    assert!(find(&findings, "vdk can open it").text.starts_with("no: it is bound to driver nvme"));
}

#[test]
fn each_member_of_a_group_of_three_has_its_own_command() {
    let fake = healthy();
    fake.function(TWO, "0x020000\n", "ixgbe");
    fake.function(THREE, "0x020000\n", "igb");
    fake.function("0000:00:1c.0", "0x060400\n", "pcieport");
    fake.remove(&format!("/sys/devices/pci0000:00/{ONE}/iommu_group"));
    fake.remove(&format!("/sys/kernel/iommu_groups/7/devices/{ONE}"));
    fake.group("7", &[ONE, TWO, THREE, "0000:00:1c.0"]);
    let findings = of(&fake, ONE);
    let group = find(&findings, "IOMMU group");
    assert!(
        group.text.starts_with("7, with 2 other functions: the ports above do not keep"),
        "{}",
        group.text
    );
    assert!(fix(group).contains("ACS"));
    for member in [TWO, THREE] {
        let finding = find(&findings, &format!("group member {member}"));
        assert_eq!(finding.level, Level::Problem);
        assert_eq!(fix(finding), format!("vdk bind {member}, or all at once: vdk bind --group {ONE}"));
    }
    assert_eq!(find(&findings, "group member 0000:00:1c.0").level, Level::Ok);
    assert_eq!(find(&of(&fake, "0000:00:1c.0"), "driver").text, "it is a bridge and stays with the kernel");
}

#[test]
fn a_function_that_is_bound_shows_its_nodes_and_their_holders() {
    let fake = healthy();
    fake.function(THREE, "0x020000\n", "");
    fake.group("9", &[THREE]);
    let machine = fake.machine();
    crate::machine::Binder::new(&machine, &fake).bind(&[THREE.parse().unwrap()], false, None).unwrap();
    let findings = of(&fake, THREE);
    let node = |name: &str, findings: &[Finding]| {
        let path = fake.at(name).display().to_string();
        find(findings, &path).clone()
    };
    assert_eq!(node("/dev/vfio/9", &findings).level, Level::Ok);
    assert_eq!(node("/dev/vfio/devices/vfio9", &findings).level, Level::Ok);
    fake.file("/proc/31/comm", "qemu\n");
    fake.link("/proc/31/fd/4", "/dev/vfio/9");
    let findings = of(&fake, THREE);
    assert_eq!(node("/dev/vfio/9", &findings).text, "open in qemu (process 31)");
    assert_eq!(findings.last().unwrap().level, Level::Problem);
    let mut machine = fake.machine();
    machine.may_use = |_| false;
    let findings = machine.diagnose_function(THREE.parse().unwrap()).unwrap();
    assert!(fix(&node("/dev/vfio/9", &findings)).starts_with("chown USER"));
    assert_eq!(node("/dev/vfio/9", &findings).level, Level::Problem);
    machine.may_use = |path| path.ends_with("iommu") || path.ends_with("vfio9");
    let findings = machine.diagnose_function(THREE.parse().unwrap()).unwrap();
    assert_eq!(node("/dev/vfio/9", &findings).level, Level::Warning, "iommufd is enough");
}

#[test]
fn power_sr_iov_and_addresses_of_bars_are_looked_at() {
    let fake = healthy();
    let folder = format!("/sys/devices/pci0000:00/{ONE}");
    fake.file(&format!("{folder}/power_state"), "D3cold\n");
    let power = find(&of(&fake, ONE), "power").clone();
    assert_eq!(power.level, Level::Warning);
    assert!(
        fix(&power).contains("d3cold_allowed") && fix(&power).contains("disable_idle_d3=1"),
        "{}",
        fix(&power)
    );
    fake.file(&format!("{folder}/power/runtime_status"), "error\n");
    assert_eq!(find(&of(&fake, ONE), "power").level, Level::Problem);
    fake.file(&format!("{folder}/sriov_totalvfs"), "8\n");
    fake.file(&format!("{folder}/sriov_numvfs"), "1\n");
    fake.function(TWO, "0x020000\n", "");
    fake.link(&format!("/sys/devices/pci0000:00/{TWO}/physfn"), &folder);
    assert_eq!(find(&of(&fake, ONE), "SR-IOV").text, "it can have 8 virtual functions and has 1");
    assert_eq!(find(&of(&fake, TWO), "SR-IOV").level, Level::Ok);
    let machine = fake.machine();
    let one = [ONE.parse().unwrap()];
    crate::machine::Binder::new(&machine, &fake).forced(true).bind(&one, false, None).unwrap();
    let token = find(&of(&fake, TWO), "SR-IOV").clone();
    assert!(token.level == Level::Warning && token.text.contains("VF token"), "{token:?}");
    assert_eq!(find(&of(&fake, ONE), "SR-IOV").level, Level::Warning);
    fake.file(&format!("{folder}/resource"), "0x0 0x3fff 0x20040200\n");
    let bars = find(&of(&fake, ONE), "BARs").clone();
    assert!(bars.level == Level::Problem && fix(&bars).contains("pci=realloc"), "{bars:?}");
}

#[test]
fn this_machine_can_be_diagnosed() {
    let machine = Machine::this();
    let findings = machine.diagnose();
    assert!(findings.iter().any(|finding| finding.subject == "IOMMU"));
    for finding in &findings {
        assert!(finding.level == Level::Ok || finding.fix.is_some(), "{finding:?}");
    }
    for function in crate::sysfs::SysfsListing::read(&machine.devices()).unwrap().functions {
        let findings = machine.diagnose_function(function.address).unwrap();
        assert_eq!(findings.last().unwrap().subject, "vdk can open it");
    }
}
