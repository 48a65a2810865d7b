//! Whether an IOMMU is on, and whether it guards interrupts as well.

use super::{Finding, count};
use crate::machine::Machine;

/// Who made the processor, which decides what its IOMMU is called.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vendor {
    Intel,
    Amd,
    Other,
}

impl Machine {
    /// Whether the kernel has an IOMMU, and what turns it on.
    pub(super) fn iommu(&self) -> Finding {
        let groups = self.confined_groups();
        if groups > 0 {
            let units = self.names("/sys/class/iommu").join(", ");
            let behind = if units.is_empty() { String::new() } else { format!(" behind {units}") };
            return Finding::ok(IOMMU, format!("on: {}{behind}", count(groups, "group")));
        }
        let line = self.text("/proc/cmdline").unwrap_or_default();
        if let Some(word) = line.split_ascii_whitespace().find(|word| OFF.contains(word)) {
            let fix = self.change_command_line(word, false);
            return Finding::problem(IOMMU, format!("off: the kernel was booted with {word}"), fix);
        }
        let (cause, fix) = self.missing_iommu(&line);
        Finding::problem(IOMMU, format!("off: {cause}; without it no device can be given to a process"), fix)
    }

    fn missing_iommu(&self, line: &str) -> (&'static str, String) {
        let table = |name: &str| self.path(&format!("/sys/firmware/acpi/tables/{name}")).exists();
        let look = |words: &str| format!("dmesg | grep -i -E '{words}'");
        match self.vendor() {
            Vendor::Intel if table("DMAR") && line.split_ascii_whitespace().any(|word| word == INTEL_ON) => (
                "the firmware describes VT-d and the kernel was told to use it, but has no group",
                look("dmar|iommu"),
            ),
            Vendor::Intel if table("DMAR") => (
                "the firmware describes VT-d, and the kernel does not use it",
                self.change_command_line(INTEL_ON, true),
            ),
            Vendor::Amd if table("IVRS") => (
                "the firmware describes AMD-Vi, and the kernel, which uses it unless told otherwise, has no group",
                look("amd-vi|iommu"),
            ),
            _ if self.is_virtual() => (
                "this is a virtual machine that has none",
                "give it one: for QEMU `-machine q35,kernel-irqchip=split -device \
                 intel-iommu,intremap=on,caching-mode=on`, and intel_iommu=on on its kernel's command line"
                    .to_owned(),
            ),
            Vendor::Intel => (
                "the firmware describes none",
                format!(
                    "turn VT-d on in the firmware setup, then: {}",
                    self.change_command_line(INTEL_ON, true)
                ),
            ),
            Vendor::Amd => (
                "the firmware describes none",
                "turn AMD-Vi on in the firmware setup (often called IOMMU, under NBIO or AMD CBS) and reboot"
                    .to_owned(),
            ),
            Vendor::Other => (
                "the kernel found none",
                "see that firmware or device tree describe the SMMU, and the kernel has its driver: "
                    .to_owned()
                    + &look("smmu|iommu"),
            ),
        }
    }

    /// Whether interrupts of devices are checked, as type1 and iommufd demand.
    pub(super) fn interrupt_remapping(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for module in ["vfio_iommu_type1", "iommufd"] {
            let path = format!("/sys/module/{module}/parameters/allow_unsafe_interrupts");
            if self.text(&path).as_deref() == Some("Y") {
                found.push(Finding::warning(
                    REMAPPING,
                    format!("{module} was told to do without: a device can then raise interrupts that belong to others"),
                    format!("echo N > {path}"),
                ));
            }
        }
        if self.confined_groups() == 0 || self.vendor() == Vendor::Other {
            return found;
        }
        let interrupts = self.text("/proc/interrupts").unwrap_or_default();
        // Chips behind the remapping hardware have names such as IR-PCI-MSI.
        let on = interrupts.split_ascii_whitespace().any(|word| word.starts_with("IR-"));
        if on {
            found.push(Finding::ok(REMAPPING, "on"));
        } else if found.is_empty() {
            found.push(Finding::problem(
                REMAPPING,
                "off, or no interrupt shows it: the kernel then refuses to open a group",
                "take intremap=off and nointremap off the kernel's command line, turn interrupt remapping (or x2APIC) \
                 on in the firmware setup; for QEMU `-machine q35,kernel-irqchip=split -device \
                 intel-iommu,intremap=on`",
            ));
        }
        found
    }

    /// The way around the IOMMU, where it is open.
    pub(super) fn without_iommu(&self) -> Option<Finding> {
        const SWITCH: &str = "/sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
        let on = self.text(SWITCH).as_deref() == Some("Y");
        on.then(|| {
            Finding::problem(
                "no-IOMMU mode",
                "on: a device that is opened so can read and write all memory. vdk does not open one",
                format!("echo N > {SWITCH}"),
            )
        })
    }

    /// How many groups have an IOMMU behind them.
    fn confined_groups(&self) -> usize {
        let names = self.names("/sys/kernel/iommu_groups");
        let kind = |name: &String| self.text(&format!("/sys/kernel/iommu_groups/{name}/name"));
        names.iter().filter(|name| kind(name).as_deref() != Some("vfio-noiommu")).count()
    }

    fn vendor(&self) -> Vendor {
        let processors = self.text("/proc/cpuinfo").unwrap_or_default();
        match processors.lines().find_map(|line| line.strip_prefix("vendor_id")) {
            Some(name) if name.ends_with("GenuineIntel") => Vendor::Intel,
            Some(name) if name.ends_with("AuthenticAMD") || name.ends_with("HygonGenuine") => Vendor::Amd,
            _ => Vendor::Other,
        }
    }

    fn is_virtual(&self) -> bool {
        let processors = self.text("/proc/cpuinfo").unwrap_or_default();
        let flags = processors.lines().find(|line| line.starts_with("flags"));
        flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "hypervisor"))
    }

    /// The commands that put a word on the kernel's command line or take it off.
    fn change_command_line(&self, word: &str, add: bool) -> String {
        if self.path("/usr/sbin/grubby").exists() || self.path("/sbin/grubby").exists() {
            let option = if add { "--args" } else { "--remove-args" };
            return format!("grubby --update-kernel=ALL {option}={word} && reboot");
        }
        if self.path("/etc/default/grub").exists() {
            let edit =
                if add { format!("s/^GRUB_CMDLINE_LINUX=\"/&{word} /") } else { format!("s/ *{word}//") };
            return format!("sed -i '{edit}' /etc/default/grub && update-grub && reboot");
        }
        let change = if add { "add" } else { "remove" };
        format!("{change} {word} on the kernel's command line, in the boot loader, and reboot")
    }
}

const IOMMU: &str = "IOMMU";
const REMAPPING: &str = "interrupt remapping";
const INTEL_ON: &str = "intel_iommu=on";
const OFF: [&str; 4] = ["intel_iommu=off", "amd_iommu=off", "iommu=off", "iommu=soft"];
