//! What the kernel has: its version, and the modules of VFIO.

use super::Finding;
use crate::machine::Machine;

/// How a module is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    BuiltIn,
    Loaded,
    Loadable,
    Missing,
}

impl Presence {
    fn words(self) -> &'static str {
        match self {
            Self::BuiltIn => "built in",
            Self::Loaded => "loaded",
            Self::Loadable => "not loaded",
            Self::Missing => "not in this kernel",
        }
    }

    pub(super) fn is_active(self) -> bool {
        matches!(self, Self::BuiltIn | Self::Loaded)
    }
}

impl Machine {
    /// What the kernel is, and what a newer one has.
    pub(super) fn kernel_version(&self) -> Finding {
        let release = self.release();
        let Some(version) = parse_version(&release) else {
            return Finding::warning(
                "kernel",
                format!("the version {release:?} says nothing"),
                "see that /proc is mounted",
            );
        };
        let lacks: Vec<&str> =
            SINCE.iter().filter(|(since, _)| version < *since).map(|(_, what)| *what).collect();
        if version < OLDEST {
            let text = format!("Linux {release} cannot reserve functions for a driver");
            return Finding::problem(
                "kernel",
                text,
                "use Linux 3.16 or newer; 6.6 has everything that vdk uses",
            );
        }
        let lacks = if lacks.is_empty() { String::new() } else { format!("; it lacks {}", lacks.join(", ")) };
        Finding::ok("kernel", format!("Linux {release}{lacks}"))
    }

    /// The modules that open functions, and those that map memory.
    pub(super) fn modules(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for (module, option) in [("vfio", "CONFIG_VFIO"), ("vfio-pci", "CONFIG_VFIO_PCI")] {
            let presence = self.presence(module);
            let subject = format!("module {module}");
            found.push(match presence {
                Presence::BuiltIn | Presence::Loaded => Finding::ok(subject, presence.words()),
                Presence::Loadable => Finding::warning(
                    subject,
                    presence.words(),
                    format!("modprobe {module} (`vdk bind` does so)"),
                ),
                Presence::Missing => Finding::problem(
                    subject,
                    presence.words(),
                    format!("install the kernel's other modules, such as linux-modules-extra, or one with {option}"),
                ),
            });
        }
        let (type1, iommufd) = (self.presence("vfio_iommu_type1"), self.presence("iommufd"));
        let words = |presence: Presence| match presence {
            Presence::Loadable => "loaded when needed",
            other => other.words(),
        };
        let text = format!("vfio_iommu_type1 is {}, iommufd is {}", words(type1), words(iommufd));
        found.push(match (type1, iommufd) {
            (Presence::Missing, Presence::Missing) => Finding::problem(
                ADDRESS_SPACES,
                format!("{text}: nothing can map memory for a device"),
                "install a kernel with CONFIG_VFIO_IOMMU_TYPE1 or CONFIG_IOMMUFD",
            ),
            _ => Finding::ok(ADDRESS_SPACES, text),
        });
        found
    }

    /// How a module is there.
    pub(super) fn presence(&self, module: &str) -> Presence {
        let name = module.replace('-', "_");
        let folder = self.path(&format!("/sys/module/{name}"));
        if folder.join("initstate").exists() {
            return Presence::Loaded;
        }
        let driver = self.path(&format!("/sys/bus/pci/drivers/{module}"));
        if folder.exists() || driver.exists() || self.lists("modules.builtin", &name) {
            return Presence::BuiltIn;
        }
        // Not every module that is built in has a folder or is listed, but it has its node.
        let node = match name.as_str() {
            "vfio" => Some("/dev/vfio/vfio"),
            "iommufd" => Some("/dev/iommu"),
            _ => None,
        };
        if node.is_some_and(|node| self.path(node).exists()) {
            return Presence::BuiltIn;
        }
        if self.lists("modules.dep", &name) { Presence::Loadable } else { Presence::Missing }
    }

    /// Whether a list of the kernel's modules has one, packed or not.
    fn lists(&self, list: &str, name: &str) -> bool {
        let list = self.text(&format!("/lib/modules/{}/{list}", self.release())).unwrap_or_default();
        list.lines().any(|line| {
            let path = line.split(':').next().unwrap_or_default();
            let file = path.rsplit('/').next().unwrap_or_default();
            file.split_once(".ko").is_some_and(|(stem, _)| stem.replace('-', "_") == name)
        })
    }

    fn release(&self) -> String {
        self.text("/proc/sys/kernel/osrelease").unwrap_or_default()
    }
}

/// The first two numbers of a version such as `6.1.0-18-amd64`.
fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

const ADDRESS_SPACES: &str = "address spaces";
/// The first with `driver_override`.
const OLDEST: (u32, u32) = (3, 16);
/// What came with which version, as far as drivers can do without it.
const SINCE: [((u32, u32), &str); 4] = [
    ((6, 1), "low-power states (6.1)"),
    ((6, 2), "iommufd (6.2)"),
    ((6, 5), "MSI-X vectors added one by one (6.5)"),
    ((6, 6), "device nodes for iommufd (6.6)"),
];
