//! What is right and wrong with one function.

use super::{Finding, count};
use crate::address::Bdf;
use crate::config::{ConfigError, ConfigSpace, Msi, Msix, register};
use crate::machine::{Machine, is_vfio, link_name, text};
use crate::sysfs::{Obstacle, SysfsError, SysfsFunction};

impl Machine {
    /// Looks at everything that decides whether and how well a function can be driven. The
    /// function is not opened.
    ///
    /// # Errors
    ///
    /// [`SysfsError`] when it is not there, or does not say what it is.
    pub fn diagnose_function(&self, address: Bdf) -> Result<Vec<Finding>, SysfsError> {
        let function = SysfsFunction::read(&self.devices(), address)?;
        let mut found = vec![answers(&function), self.driver_finding(&function)];
        found.extend(self.group(&function));
        found.extend(self.usage_finding(&function));
        found.extend(self.function_access(&function));
        found.extend(power(&function));
        found.extend(self.virtual_functions(&function));
        found.push(resets(&function));
        found.push(bars(&function));
        found.push(interrupts(&function));
        found.extend(memory_node(&function));
        found.push(verdict(&function, &found));
        Ok(found)
    }

    fn driver_finding(&self, function: &SysfsFunction) -> Finding {
        let address = function.address;
        let reserved = self.driver_state(address).ok().and_then(|state| state.reserved_for);
        match function.driver.as_deref() {
            Some(driver) if is_vfio(driver) => {
                let before = self.remembered(address).and_then(|state| state.driver);
                let back = before.map_or_else(String::new, |driver| format!(", and {driver} before"));
                Finding::ok(DRIVER, format!("{driver}{back}"))
                    .with_fix(format!("to give it back: vdk unbind {address}"))
            }
            Some(_) if function.identity.class >> 16 == 0x06 => Finding::problem(
                DRIVER,
                "it is a bridge and stays with the kernel",
                "choose a function behind it",
            ),
            Some(driver) => Finding::problem(
                DRIVER,
                format!("{driver} has it, and vfio-pci has to have it"),
                format!("vdk bind {address}"),
            ),
            None => {
                let reserved =
                    reserved.map_or_else(String::new, |name| format!(" (it is reserved for {name})"));
                Finding::problem(DRIVER, format!("none has it{reserved}"), format!("vdk bind {address}"))
            }
        }
    }

    fn usage_finding(&self, function: &SysfsFunction) -> Vec<Finding> {
        let usage = self.usage(function).into_iter().filter(|usage| *usage != crate::machine::Usage::Bridge);
        usage.map(|usage| Finding::problem("in use", usage.to_string(), usage.fix())).collect()
    }

    fn function_access(&self, function: &SysfsFunction) -> Vec<Finding> {
        let bound = function.driver.as_deref().is_some_and(is_vfio);
        if bound { self.function_nodes(function) } else { Vec::new() }
    }

    fn virtual_functions(&self, function: &SysfsFunction) -> Option<Finding> {
        let folder = function.folder();
        if let Some(physical) = link_name(&folder.join("physfn")) {
            let driver = physical.parse().ok().and_then(|address| self.driver(address));
            let with = driver.clone().unwrap_or_else(|| "no driver".to_owned());
            let text = format!("a virtual function of {physical}, which is with {with}");
            return Some(if driver.is_some_and(|driver| is_vfio(&driver)) {
                Finding::warning(
                    SR_IOV,
                    format!("{text}: it opens only with the VF token of the process that drives {physical}"),
                    "agree on one UUID, such as that of `uuidgen`, and open both with it",
                )
            } else {
                Finding::ok(SR_IOV, text)
            });
        }
        let total: u32 = text(&folder.join("sriov_totalvfs"))?.parse().ok()?;
        let now: u32 = text(&folder.join("sriov_numvfs")).and_then(|count| count.parse().ok()).unwrap_or(0);
        let text = format!("it can have {total} virtual functions and has {now}");
        Some(if now > 0 && function.driver.as_deref().is_some_and(is_vfio) {
            Finding::warning(
                SR_IOV,
                format!("{text}: whoever opens it sets a VF token, which the owners of those need"),
                "agree on one UUID, such as that of `uuidgen`, and open all with it",
            )
        } else {
            Finding::ok(SR_IOV, text)
        })
    }
}

/// Whether the function answers at all.
fn answers(function: &SysfsFunction) -> Finding {
    let address = function.address;
    let rescan = format!("echo 1 > /sys/bus/pci/devices/{address}/remove; echo 1 > /sys/bus/pci/rescan");
    match function.config().and_then(|config| config.read16(register::VENDOR_ID)) {
        Ok(0xffff) => Finding::problem("function", "it does not answer: it is off, asleep or gone", rescan),
        Ok(_) => Finding::ok("function", format!("{} answers", function.identity)),
        Err(error) => Finding::problem("function", error.to_string(), rescan),
    }
}

fn power(function: &SysfsFunction) -> Vec<Finding> {
    let (address, folder) = (function.address, function.folder());
    let awake = format!(
        "echo 0 > /sys/bus/pci/devices/{address}/d3cold_allowed; echo on > \
         /sys/bus/pci/devices/{address}/power/control"
    );
    let keeps = "; for every function of vfio-pci: modprobe vfio-pci disable_idle_d3=1";
    let status = text(&folder.join("power/runtime_status")).unwrap_or_default();
    let state = function.power_state.clone();
    let shown = state.clone().unwrap_or_else(|| "unknown".to_owned());
    if status == "error" {
        let text = format!("{shown}, and the kernel failed to put it to sleep or wake it");
        return vec![Finding::problem(POWER, text, format!("{awake}; dmesg tells more"))];
    }
    let managed = text(&folder.join("power/control")).as_deref() == Some("auto");
    let deep = text(&folder.join("d3cold_allowed")).as_deref() == Some("1");
    vec![match state.as_deref() {
        Some("D3cold") => Finding::warning(
            POWER,
            "D3cold: its power is off until it is opened, and some devices do not come back",
            format!("{awake}{keeps}"),
        ),
        Some(sleeping @ ("D1" | "D2" | "D3hot")) => {
            let text = format!("{sleeping}: it is asleep until it is opened");
            if managed && deep {
                Finding::ok(POWER, format!("{text}, and may go to D3cold"))
                    .with_fix(format!("to keep it awake: {awake}{keeps}"))
            } else {
                Finding::ok(POWER, text)
            }
        }
        _ => Finding::ok(POWER, shown),
    }]
}

fn resets(function: &SysfsFunction) -> Finding {
    let folder = function.folder();
    match text(&folder.join("reset_method")) {
        Some(methods) if !methods.is_empty() => Finding::ok(RESET, methods),
        _ if folder.join("reset").exists() => Finding::ok(RESET, "the kernel has a method"),
        _ => Finding::warning(
            RESET,
            "none: when a driver dies, the device keeps the state that it is in",
            "begin each driver by quieting the device through its own registers",
        ),
    }
}

fn bars(function: &SysfsFunction) -> Finding {
    let bars: Vec<_> = function.bars.bars().collect();
    let shown: Vec<String> =
        bars.iter().map(|bar| format!("BAR{} {} {}", bar.index.as_u8(), bar.kind, bar.size)).collect();
    if bars.iter().any(|bar| bar.address == 0) {
        return Finding::problem(
            BARS,
            format!("{}: the kernel has no address for one of them", shown.join(", ")),
            "boot with pci=realloc, or turn \"Above 4G decoding\" on in the firmware setup",
        );
    }
    Finding::ok(BARS, if shown.is_empty() { "none".to_owned() } else { shown.join(", ") })
}

fn interrupts(function: &SysfsFunction) -> Finding {
    const SUBJECT: &str = "interrupts";
    let config = match function.config() {
        Ok(config) => config,
        Err(error) => return Finding::warning(SUBJECT, error.to_string(), "lspci -vv"),
    };
    let mut kinds = Vec::new();
    if config.read8(register::INTERRUPT_PIN).unwrap_or(0) != 0 {
        kinds.push("INTx".to_owned());
    }
    let found = (Msi::find(&config), Msix::find(&config));
    if let Ok(Some(msi)) = &found.0 {
        kinds.push(format!("MSI x{}", msi.vectors()));
    }
    if let Ok(Some(msix)) = &found.1 {
        kinds.push(format!("MSI-X x{}", msix.vectors()));
    }
    if kinds.is_empty() {
        kinds.push("none".to_owned());
    }
    let hidden = [found.0.err(), found.1.err()].into_iter().flatten();
    if hidden.into_iter().any(|error| matches!(error, ConfigError::Privilege { .. })) {
        let text = format!("{}, and what only root can see", kinds.join(", "));
        return Finding::ok(SUBJECT, text).with_fix(format!("sudo vdk doctor {}", function.address));
    }
    Finding::ok(SUBJECT, kinds.join(", "))
}

fn memory_node(function: &SysfsFunction) -> Option<Finding> {
    let node = function.numa_node?;
    Some(Finding::ok("NUMA node", format!("{node}: memory and processors of this node are the near ones")))
}

/// Whether it could be opened now.
fn verdict(function: &SysfsFunction, found: &[Finding]) -> Finding {
    let problems = found.iter().filter(|finding| finding.level == super::Level::Problem).count();
    let obstacles: Vec<String> = function.obstacles().iter().map(Obstacle::reason).collect();
    match (obstacles.first(), problems) {
        (None, 0) => Finding::ok(VERDICT, "yes"),
        (None, problems) => Finding::problem(
            VERDICT,
            format!(
                "not before {} above mended",
                if problems == 1 { "the problem is" } else { "the problems are" }
            ),
            format!("vdk doctor {} again, after that", function.address),
        ),
        (Some(_), problems) => Finding::problem(
            VERDICT,
            format!("no: {}", obstacles.join(", ")),
            format!("mend {}, from top to bottom", count(problems, "problem")),
        ),
    }
}

const DRIVER: &str = "driver";
const POWER: &str = "power";
const SR_IOV: &str = "SR-IOV";
const RESET: &str = "reset";
const BARS: &str = "BARs";
const VERDICT: &str = "vdk can open it";
