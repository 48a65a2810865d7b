//! Capability numbers and their names.
//!
//! Numbers as in Linux's `include/uapi/linux/pci_regs.h`, which follows the PCI Code and
//! ID Assignment Specification.

use core::fmt;

/// The number of a capability in the first 256 bytes. Numbers that this crate does not
/// know are carried as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CapabilityId(pub u8);

/// The number of an extended capability. Numbers that this crate does not know are carried
/// as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtendedCapabilityId(pub u16);

macro_rules! names {
    ($type:ident: $($number:literal $constant:ident $name:literal),* $(,)?) => {
        impl $type {
            $(
                #[doc = $name]
                pub const $constant: Self = Self($number);
            )*

            /// The name in the standard, or `None` for a number that this crate does not know.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($number => Some($name),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "capability {:#04x}", self.0),
                }
            }
        }
    };
}

names! { CapabilityId:
    0x00 NULL "Null",
    0x01 POWER_MANAGEMENT "Power Management",
    0x02 AGP "AGP",
    0x03 VITAL_PRODUCT_DATA "Vital Product Data",
    0x04 SLOT_ID "Slot Identification",
    0x05 MSI "MSI",
    0x06 COMPACT_PCI_HOT_SWAP "CompactPCI Hot Swap",
    0x07 PCI_X "PCI-X",
    0x08 HYPERTRANSPORT "HyperTransport",
    0x09 VENDOR_SPECIFIC "Vendor-Specific",
    0x0a DEBUG_PORT "Debug Port",
    0x0b COMPACT_PCI_RESOURCE "CompactPCI Central Resource Control",
    0x0c HOT_PLUG "PCI Hot-Plug",
    0x0d SUBSYSTEM_ID "Bridge Subsystem ID",
    0x0e AGP_8X "AGP 8x",
    0x0f SECURE_DEVICE "Secure Device",
    0x10 PCI_EXPRESS "PCI Express",
    0x11 MSIX "MSI-X",
    0x12 SATA "SATA Data/Index Configuration",
    0x13 ADVANCED_FEATURES "Advanced Features",
    0x14 ENHANCED_ALLOCATION "Enhanced Allocation",
}

names! { ExtendedCapabilityId:
    0x00 NULL "Null",
    0x01 ADVANCED_ERROR_REPORTING "Advanced Error Reporting",
    0x02 VIRTUAL_CHANNEL "Virtual Channel",
    0x03 DEVICE_SERIAL_NUMBER "Device Serial Number",
    0x04 POWER_BUDGETING "Power Budgeting",
    0x05 ROOT_COMPLEX_LINK_DECLARATION "Root Complex Link Declaration",
    0x06 ROOT_COMPLEX_LINK_CONTROL "Root Complex Internal Link Control",
    0x07 ROOT_COMPLEX_EVENT_COLLECTOR "Root Complex Event Collector",
    0x08 MULTI_FUNCTION_VIRTUAL_CHANNEL "Multi-Function Virtual Channel",
    0x09 VIRTUAL_CHANNEL_9 "Virtual Channel (with MFVC)",
    0x0a ROOT_COMPLEX_REGISTER_BLOCK "Root Complex Register Block",
    0x0b VENDOR_SPECIFIC "Vendor-Specific",
    0x0d ACCESS_CONTROL_SERVICES "Access Control Services",
    0x0e ALTERNATIVE_ROUTING_ID "Alternative Routing-ID",
    0x0f ADDRESS_TRANSLATION_SERVICES "Address Translation Services",
    0x10 SR_IOV "Single Root I/O Virtualization",
    0x11 MR_IOV "Multi-Root I/O Virtualization",
    0x12 MULTICAST "Multicast",
    0x13 PAGE_REQUEST "Page Request Interface",
    0x15 RESIZABLE_BAR "Resizable BAR",
    0x16 DYNAMIC_POWER_ALLOCATION "Dynamic Power Allocation",
    0x17 TPH_REQUESTER "TPH Requester",
    0x18 LATENCY_TOLERANCE_REPORTING "Latency Tolerance Reporting",
    0x19 SECONDARY_PCI_EXPRESS "Secondary PCI Express",
    0x1a PROTOCOL_MULTIPLEXING "Protocol Multiplexing",
    0x1b PASID "Process Address Space ID",
    0x1d DOWNSTREAM_PORT_CONTAINMENT "Downstream Port Containment",
    0x1e L1_PM_SUBSTATES "L1 PM Substates",
    0x1f PRECISION_TIME_MEASUREMENT "Precision Time Measurement",
    0x23 DESIGNATED_VENDOR_SPECIFIC "Designated Vendor-Specific",
    0x25 DATA_LINK_FEATURE "Data Link Feature",
    0x26 PHYSICAL_LAYER_16GT "Physical Layer 16.0 GT/s",
    0x29 ENCLOSURE_MANAGEMENT "Native PCIe Enclosure Management",
    0x2a PHYSICAL_LAYER_32GT "Physical Layer 32.0 GT/s",
    0x2e DATA_OBJECT_EXCHANGE "Data Object Exchange",
}
