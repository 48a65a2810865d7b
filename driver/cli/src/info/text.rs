//! The report of a function as text.

use std::fmt::Write as _;

use super::capabilities::CapabilityReport;
use super::report::Report;
use crate::output::{self, Table};

/// The report as a person reads it.
pub(super) fn render(report: &Report) -> String {
    let mut text = format!("{}  {}\n", report.name, report.description);
    let mut facts = Table::default();
    facts.row(["  address", report.address.as_str()]);
    facts.row(["  ids", &format!("{} (subsystem {})", report.ids, report.subsystem_ids)]);
    facts.row(["  class", &format!("{} ({})", report.class, report.class_name)]);
    facts.row(["  revision", &report.revision]);
    facts.row(["  command", &list(&report.command)]);
    facts.row(["  status", &list(&report.status)]);
    if let Some(driver) = &report.driver {
        facts.row(["  driver", driver.as_str()]);
    }
    if let Some(group) = report.iommu_group {
        facts.row(["  IOMMU group", &group.to_string()]);
    }
    if let Some(interface) = &report.interface {
        facts.row(["  opened through", interface.as_str()]);
    }
    text.push_str(&facts.render());

    text.push_str("BARs\n");
    if report.bars.is_empty() {
        text.push_str("  none\n");
    }
    let mut bars = Table::default();
    for bar in &report.bars {
        bars.row([
            format!("  BAR{}", bar.index),
            bar.kind.clone(),
            bar.size.map_or_else(|| "size not readable".to_owned(), output::size),
            format!("at {}", bar.address),
            if bar.prefetchable { "prefetchable".to_owned() } else { String::new() },
        ]);
    }
    text.push_str(&bars.render());

    section(&mut text, "Capabilities", &report.capabilities, report.capabilities_fault.as_deref());
    section(
        &mut text,
        "Extended capabilities",
        &report.extended_capabilities,
        report.extended_capabilities_fault.as_deref(),
    );

    text.push_str("Interrupts\n");
    let vectors: Vec<String> = report
        .interrupts
        .iter()
        .map(|interrupt| format!("{} x{}", interrupt.kind, interrupt.vectors))
        .collect();
    let _ = writeln!(text, "  {}", if vectors.is_empty() { "none".to_owned() } else { vectors.join(", ") });

    match &report.dma {
        Some(dma) => {
            let _ = writeln!(text, "DMA through {}", dma.mapper);
            for range in &dma.ranges {
                let _ = writeln!(text, "  IOVA {} to {}", range.start, range.last);
            }
            let sizes: Vec<String> = dma.page_sizes.iter().map(|size| output::size(*size)).collect();
            let _ = writeln!(text, "  pages of {}", sizes.join(", "));
            if let Some(mappings) = dma.mappings_available {
                let _ = writeln!(text, "  {mappings} more mappings");
            }
        }
        None => text.push_str("DMA\n  IOVA ranges are known when the device is open\n"),
    }
    if let Some(resets) = &report.resets {
        let _ = writeln!(text, "Reset\n  {}", list(resets));
    }
    if !report.obstacles.is_empty() {
        text.push_str("vdk cannot open it\n");
    }
    for obstacle in &report.obstacles {
        let _ = writeln!(text, "  {}\n    {}", obstacle.reason, obstacle.fix);
    }
    text
}

fn section(text: &mut String, title: &str, capabilities: &[CapabilityReport], fault: Option<&str>) {
    let _ = writeln!(text, "{title}");
    if capabilities.is_empty() && fault.is_none() {
        text.push_str("  none\n");
    }
    for capability in capabilities {
        let mut details = capability.details.iter();
        let first = details.next().map_or_else(String::new, |detail| format!(": {detail}"));
        let _ = writeln!(text, "  [{:#05x}] {}{first}", capability.offset, capability.name);
        for detail in details {
            let _ = writeln!(text, "          {detail}");
        }
    }
    if let Some(fault) = fault {
        let _ = writeln!(text, "  the list ends here: {fault}");
    }
}

fn list(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
