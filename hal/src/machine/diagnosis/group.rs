//! The IOMMU group of a function: who is in it, and what keeps it from being opened.

use super::{Finding, count};
use crate::address::Bdf;
use crate::machine::{Machine, is_safe_in_group};
use crate::sysfs::{IommuGroup, SysfsFunction};

impl Machine {
    /// The group as a whole, and each member that is in the way.
    pub(super) fn group(&self, function: &SysfsFunction) -> Vec<Finding> {
        let Some(group) = &function.iommu_group else {
            return vec![Finding::problem(
                "IOMMU group",
                "it is in none: no IOMMU confines it",
                "vdk doctor says how to turn the IOMMU on",
            )];
        };
        if group.without_iommu {
            return vec![Finding::problem(
                "IOMMU group",
                format!(
                    "{} has no IOMMU behind it: the device could read and write all memory",
                    group.number
                ),
                "turn the IOMMU on (vdk doctor says how) and no-IOMMU mode off",
            )];
        }
        let mut found = vec![self.members(function, group)];
        for (member, driver) in group.members.iter().filter(|(member, _)| *member != function.address) {
            let subject = format!("group member {member}");
            let is_bridge = self.is_bridge(*member);
            let what = if is_bridge { "a bridge " } else { "" };
            found.push(match driver {
                None => Finding::ok(subject, format!("{what}without a driver, which is no obstacle")),
                Some(name) if is_safe_in_group(name) => {
                    Finding::ok(subject, format!("{what}with {name}, which is no obstacle"))
                }
                Some(name) if is_bridge => Finding::problem(
                    subject,
                    format!("a bridge with {name}: the group cannot be opened while it has it"),
                    format!("when nothing needs it: echo {member} > /sys/bus/pci/drivers/{name}/unbind"),
                ),
                Some(name) => Finding::problem(
                    subject,
                    format!("with {name}: the group cannot be opened while it has it"),
                    format!("vdk bind {member}, or all at once: vdk bind --group {}", function.address),
                ),
            });
        }
        found
    }

    fn members(&self, function: &SysfsFunction, group: &IommuGroup) -> Finding {
        let others: Vec<Bdf> =
            group.members.iter().map(|(member, _)| *member).filter(|one| *one != function.address).collect();
        let endpoints = others.iter().filter(|member| !self.is_bridge(**member)).count();
        let number = group.number;
        if endpoints == 0 {
            return Finding::ok("IOMMU group", format!("{number}, which no other device is in"));
        }
        let device = |address: Bdf| (address.segment(), address.bus(), address.device());
        let one_card =
            others.iter().all(|other| device(*other) == device(function.address) || self.is_bridge(*other));
        let why = if one_card {
            "the functions of this card do not promise to keep their traffic apart (they have no ACS)"
        } else {
            "the ports above do not keep the traffic of these devices apart (no ACS), so the IOMMU cannot either"
        };
        Finding::ok(
            "IOMMU group",
            format!(
                "{number}, with {}: {why}; they go to one owner together",
                count(endpoints, "other function")
            ),
        )
        .with_fix(
            "to part them, use another slot or turn ACS on in the firmware setup; the kernel patch \
                 pcie_acs_override only claims that they are apart",
        )
    }

    fn is_bridge(&self, address: Bdf) -> bool {
        let class = crate::machine::text(&self.function(address).join("class"));
        class.is_some_and(|class| class.starts_with("0x06"))
    }
}
