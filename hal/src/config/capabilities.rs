//! The two capability lists of a function.
//!
//! What the lists say comes from a device and may loop, point outside, or end in all ones.
//! A walk visits each slot at most once, so that it ends after 48 standard or 960 extended
//! capabilities whatever the device says, and each fault is reported once, as the last
//! item.

use super::header::{gone_or, read_header_type, read_status, require_present};
use super::{CapabilityId, ConfigError, ConfigSpace, ExtendedCapabilityId};

/// A capability in the first 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// What it is.
    pub id: CapabilityId,
    /// Where it begins, 0x40 to 0xfc, a multiple of 4.
    pub offset: u16,
}

/// An extended capability of PCI Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedCapability {
    /// What it is.
    pub id: ExtendedCapabilityId,
    /// The version of its layout, 0 to 15.
    pub version: u8,
    /// Where it begins, 0x100 to 0xffc, a multiple of 4.
    pub offset: u16,
}

/// The capabilities in the first 256 bytes, in the order of the list.
///
/// A fault ends the walk with one error item:
/// - [`ConfigError::DeviceGone`] when the function answers all ones;
/// - [`ConfigError::Malformed`] for a loop or a pointer into the header;
/// - those of the access, such as [`ConfigError::Privilege`].
pub fn capabilities(config: &dyn ConfigSpace) -> Capabilities<'_> {
    Capabilities { config, next: Next::First, visited: 0 }
}

/// The extended capabilities, in the order of the list; empty without PCI Express.
///
/// A fault ends the walk with one error item, as for [`capabilities`].
pub fn extended_capabilities(config: &dyn ConfigSpace) -> ExtendedCapabilities<'_> {
    let next = if config.size() > EXTENDED_START { Next::At(EXTENDED_START) } else { Next::End };
    ExtendedCapabilities { config, next, visited: [0; EXTENDED_SLOTS.div_ceil(64)] }
}

/// The first capability with a number. A fault in the list after it does not matter.
///
/// # Errors
///
/// As [`capabilities`].
pub fn find_capability(
    config: &dyn ConfigSpace,
    id: CapabilityId,
) -> Result<Option<Capability>, ConfigError> {
    capabilities(config).find(|item| item.as_ref().map_or(true, |found| found.id == id)).transpose()
}

/// The first extended capability with a number. A fault in the list after it does not
/// matter.
///
/// # Errors
///
/// As [`extended_capabilities`].
pub fn find_extended_capability(
    config: &dyn ConfigSpace,
    id: ExtendedCapabilityId,
) -> Result<Option<ExtendedCapability>, ConfigError> {
    extended_capabilities(config).find(|item| item.as_ref().map_or(true, |found| found.id == id)).transpose()
}

/// Walks the list of [`capabilities`].
pub struct Capabilities<'a> {
    config: &'a dyn ConfigSpace,
    next: Next,
    /// Bit `n` is set when the capability at `4 * n` was visited.
    visited: u64,
}

/// Walks the list of [`extended_capabilities`].
pub struct ExtendedCapabilities<'a> {
    config: &'a dyn ConfigSpace,
    next: Next,
    /// Bit `n` is set when the capability at `0x100 + 4 * n` was visited.
    visited: [u64; EXTENDED_SLOTS.div_ceil(64)],
}

#[derive(Clone, Copy, Debug)]
enum Next {
    /// The header has to be asked.
    First,
    At(u16),
    End,
}

impl Iterator for Capabilities<'_> {
    type Item = Result<Capability, ConfigError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Whatever fails below is the last item.
        let offset = match core::mem::replace(&mut self.next, Next::End) {
            Next::First => match self.first() {
                Ok(first) => first?,
                Err(error) => return Some(Err(error)),
            },
            Next::At(offset) => offset,
            Next::End => return None,
        };
        Some(self.visit(offset))
    }
}

impl Capabilities<'_> {
    fn first(&self) -> Result<Option<u16>, ConfigError> {
        require_present(self.config)?;
        if !read_status(self.config)?.capabilities_list() {
            return Ok(None);
        }
        let Some(register) = read_header_type(self.config)?.layout().capabilities_pointer() else {
            return Ok(None);
        };
        Ok(standard_pointer(self.config.read8(register)?))
    }

    fn visit(&mut self, offset: u16) -> Result<Capability, ConfigError> {
        if offset < STANDARD_START {
            return Err(ConfigError::Malformed {
                offset,
                what: "a capability pointer points into the header",
            });
        }
        let slot = 1 << (offset / 4);
        if self.visited & slot != 0 {
            return Err(ConfigError::Malformed { offset, what: "the capability list loops" });
        }
        self.visited |= slot;
        let header = self.config.read16(offset)?;
        if header == u16::MAX {
            return Err(gone_or(self.config, offset, "a capability header is all ones"));
        }
        let [id, next] = header.to_le_bytes();
        if let Some(next) = standard_pointer(next) {
            self.next = Next::At(next);
        }
        Ok(Capability { id: CapabilityId(id), offset })
    }
}

/// The offset that a pointer means: its low two bits are reserved, and zero ends the list.
fn standard_pointer(pointer: u8) -> Option<u16> {
    match u16::from(pointer & !3) {
        0 => None,
        offset => Some(offset),
    }
}

impl Iterator for ExtendedCapabilities<'_> {
    type Item = Result<ExtendedCapability, ConfigError>;

    fn next(&mut self) -> Option<Self::Item> {
        // Whatever fails below is the last item.
        let Next::At(offset) = core::mem::replace(&mut self.next, Next::End) else { return None };
        self.visit(offset).transpose()
    }
}

impl ExtendedCapabilities<'_> {
    fn visit(&mut self, offset: u16) -> Result<Option<ExtendedCapability>, ConfigError> {
        let Some(slot) = offset.checked_sub(EXTENDED_START).map(|above| usize::from(above / 4)) else {
            return Err(ConfigError::Malformed { offset, what: "an extended capability lies below 0x100" });
        };
        // PANIC: a next pointer has 12 bits, so that `slot` is below `EXTENDED_SLOTS`.
        let word = &mut self.visited[slot / 64];
        let bit = 1 << (slot % 64);
        if *word & bit != 0 {
            return Err(ConfigError::Malformed { offset, what: "the extended capability list loops" });
        }
        *word |= bit;
        let header = self.config.read32(offset)?;
        if header == u32::MAX {
            // All ones end the list, as an empty one does, if the function is there at all.
            return require_present(self.config).map(|()| None);
        }
        if header == 0 {
            return Ok(None);
        }
        // CAST: the masks make the fields fit.
        let (id, version) = ((header & 0xffff) as u16, ((header >> 16) & 0xf) as u8);
        // CAST: as above; the low two bits of the pointer are reserved.
        let next = ((header >> 20) & 0xffc) as u16;
        if next != 0 {
            self.next = Next::At(next);
        }
        Ok(Some(ExtendedCapability { id: ExtendedCapabilityId(id), version, offset }))
    }
}

const STANDARD_START: u16 = 0x40;
const EXTENDED_START: u16 = 0x100;
/// How many headers fit between 0x100 and 0x1000.
const EXTENDED_SLOTS: usize = (4096 - 256) / 4;

#[cfg(test)]
mod tests;
