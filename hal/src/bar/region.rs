//! What the kernel says about a region, from the bytes that it wrote.
//!
//! The layout is that of `struct vfio_region_info` and `struct vfio_info_cap_header` in
//! Linux's `include/uapi/linux/vfio.h`; vfio-user uses the same one. The bytes come from a
//! kernel or from another process, and are checked like everything else that is read.

use thiserror::Error;

use super::Area;

/// A region of a VFIO device, such as a BAR.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its number; BAR n is region n.
    pub index: u32,
    /// It can be read.
    pub readable: bool,
    /// It can be written.
    pub writable: bool,
    /// It, or a part of it, can be mapped.
    pub mappable: bool,
    /// Its size in bytes; zero when it does not exist.
    pub size: u64,
    /// Where it begins in the device file.
    pub file_offset: u64,
    /// The only areas that can be mapped, when it says so.
    pub sparse: Option<Vec<Area>>,
    /// The pages of the MSI-X table and pending bits can be mapped as well.
    pub msix_mappable: bool,
    /// The type and subtype of a region that is not a BAR, ROM or configuration space.
    pub device_specific: Option<(u32, u32)>,
}

/// Why a region description was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegionInfoError {
    /// The buffer is too small: ask again with one of `needed` bytes.
    #[error("the region description needs {needed:#x} bytes, the buffer has {available:#x}")]
    TooShort {
        /// How many bytes it needs.
        needed: usize,
        /// How many there were.
        available: usize,
    },
    /// The description contradicts itself.
    #[error("malformed region description at {offset:#x}: {what}")]
    Malformed {
        /// Where, in bytes from its beginning.
        offset: usize,
        /// What is wrong.
        what: &'static str,
    },
}

impl RegionInfo {
    /// How many bytes a description without capabilities has.
    pub const FIXED_LENGTH: usize = 32;

    /// Reads a description and its capabilities. Capabilities with an unknown number are
    /// skipped; a sparse one of an unknown version means that nothing is known to be
    /// mappable.
    ///
    /// # Errors
    ///
    /// - [`RegionInfoError::TooShort`] when the kernel had more to say than fits;
    /// - [`RegionInfoError::Malformed`] for a capability outside the description, or a list
    ///   that does not move forward.
    pub fn parse(bytes: &[u8]) -> Result<Self, RegionInfoError> {
        let available = bytes.len();
        let short = |needed| RegionInfoError::TooShort { needed, available };
        let fixed = bytes.get(..Self::FIXED_LENGTH).ok_or_else(|| short(Self::FIXED_LENGTH))?;
        let needed = usize::try_from(u32_at(fixed, 0)?).unwrap_or(usize::MAX);
        if needed > available {
            return Err(short(needed));
        }
        if needed < Self::FIXED_LENGTH {
            return Err(RegionInfoError::Malformed { offset: 0, what: "it is shorter than its fixed part" });
        }
        let flags = u32_at(fixed, 4)?;
        let mut region = Self {
            index: u32_at(fixed, 8)?,
            readable: flags & FLAG_READ != 0,
            writable: flags & FLAG_WRITE != 0,
            mappable: flags & FLAG_MMAP != 0,
            size: u64_at(fixed, 16)?,
            file_offset: u64_at(fixed, 24)?,
            ..Self::default()
        };
        if flags & FLAG_CAPS != 0 {
            // PANIC: `needed <= available`, checked above.
            region.read_capabilities(&bytes[..needed], u32_at(fixed, 12)?)?;
        }
        Ok(region)
    }

    fn read_capabilities(&mut self, bytes: &[u8], first: u32) -> Result<(), RegionInfoError> {
        let mut next = usize::try_from(first).unwrap_or(usize::MAX);
        let mut end_of_last = Self::FIXED_LENGTH;
        while next != 0 {
            let malformed = |what| RegionInfoError::Malformed { offset: next, what };
            if next < end_of_last {
                return Err(malformed("the capability list does not move forward"));
            }
            let capability = bytes.get(next..).unwrap_or_default();
            if capability.len() < HEADER_LENGTH {
                return Err(malformed("a capability is outside the description"));
            }
            end_of_last = next + HEADER_LENGTH;
            let (id, version) = (u16_at(capability, 0)?, u16_at(capability, 2)?);
            match id {
                CAP_SPARSE_MMAP if version == 1 => {
                    let areas = sparse_areas(capability)
                        .ok_or(malformed("the sparse areas are outside the description"))?;
                    self.sparse.get_or_insert_default().extend(areas);
                }
                CAP_SPARSE_MMAP => {
                    log::debug!("sparse mmap capability of version {version}: not mapping the region");
                    self.sparse.get_or_insert_default();
                }
                CAP_TYPE => {
                    let field = |at| u32_at(capability, at).map_err(|_| malformed("a type is cut off"));
                    self.device_specific = Some((field(8)?, field(12)?));
                }
                CAP_MSIX_MAPPABLE => self.msix_mappable = true,
                other => log::debug!("region capability {other} is not known, skipping it"),
            }
            next = usize::try_from(u32_at(capability, 4)?).unwrap_or(usize::MAX);
        }
        Ok(())
    }
}

/// The areas of a sparse capability; empty ones are left out.
fn sparse_areas(capability: &[u8]) -> Option<Vec<Area>> {
    let count = usize::try_from(u32_at(capability, 8).ok()?).ok()?;
    let bytes = capability.get(16..)?.get(..count.checked_mul(AREA_LENGTH)?)?;
    let areas = bytes
        .chunks_exact(AREA_LENGTH)
        .map(|area| Some(Area { offset: u64_at(area, 0).ok()?, length: u64_at(area, 8).ok()? }));
    areas.filter(|area| area.is_none_or(|area| area.length != 0)).collect()
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], RegionInfoError> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk());
    field.copied().ok_or(RegionInfoError::Malformed { offset: at, what: "a field is cut off" })
}

// The kernel writes in the byte order of the host.
fn u16_at(bytes: &[u8], at: usize) -> Result<u16, RegionInfoError> {
    field(bytes, at).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, RegionInfoError> {
    field(bytes, at).map(u32::from_ne_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, RegionInfoError> {
    field(bytes, at).map(u64::from_ne_bytes)
}

const FLAG_READ: u32 = 1 << 0;
const FLAG_WRITE: u32 = 1 << 1;
const FLAG_MMAP: u32 = 1 << 2;
const FLAG_CAPS: u32 = 1 << 3;
const CAP_SPARSE_MMAP: u16 = 1;
const CAP_TYPE: u16 = 2;
const CAP_MSIX_MAPPABLE: u16 = 3;
/// Number, version, offset of the next one.
const HEADER_LENGTH: usize = 8;
const AREA_LENGTH: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const SPARSE: &[u8] = &[
        1, 0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, //
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0, 0, 0, 0, 0, 0, //
        0, 0x60, 0, 0, 0, 0, 0, 0, 0, 0xa0, 0, 0, 0, 0, 0, 0,
    ];
    const MAPPABLE: &[u8] = &[3, 0, 1, 0, 0, 0, 0, 0];
    const UNKNOWN: &[u8] = &[9, 0, 7, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    /// A 64 KiB region number 2 with capabilities one after the other.
    fn blob(capabilities: &[&[u8]]) -> Vec<u8> {
        let mut bytes = vec![0; 32];
        bytes[4..8].copy_from_slice(&(if capabilities.is_empty() { 7u32 } else { 0xf }).to_ne_bytes());
        bytes[8..12].copy_from_slice(&2u32.to_ne_bytes());
        bytes[16..24].copy_from_slice(&0x10000u64.to_ne_bytes());
        bytes[24..32].copy_from_slice(&0x200_0000_0000u64.to_ne_bytes());
        let mut link = 12;
        for capability in capabilities {
            let at = u32::try_from(bytes.len()).unwrap();
            bytes[link..link + 4].copy_from_slice(&at.to_ne_bytes());
            link = bytes.len() + 4;
            bytes.extend_from_slice(capability);
        }
        let length = u32::try_from(bytes.len()).unwrap();
        bytes[..4].copy_from_slice(&length.to_ne_bytes());
        bytes
    }

    fn areas() -> Option<Vec<Area>> {
        Some(vec![Area { offset: 0, length: 0x5000 }, Area { offset: 0x6000, length: 0xa000 }])
    }

    #[test]
    fn every_combination_of_capabilities_is_understood() {
        let plain = RegionInfo::parse(&blob(&[])).unwrap();
        assert_eq!((plain.index, plain.size, plain.file_offset), (2, 0x10000, 0x200_0000_0000));
        assert!(plain.readable && plain.writable && plain.mappable && !plain.msix_mappable);
        assert_eq!(plain.sparse, None);
        for (capabilities, sparse, msix_mappable) in [
            (vec![SPARSE], areas(), false),
            (vec![MAPPABLE], None, true),
            (vec![SPARSE, MAPPABLE], areas(), true),
            (vec![MAPPABLE, SPARSE], areas(), true),
            (vec![UNKNOWN, SPARSE, MAPPABLE], areas(), true),
            (vec![UNKNOWN], None, false),
        ] {
            let region = RegionInfo::parse(&blob(&capabilities)).unwrap();
            assert_eq!((region.sparse, region.msix_mappable), (sparse, msix_mappable), "{capabilities:?}");
        }
        let typed = [2, 0, 1, 0, 0, 0, 0, 0, 0x86, 0x80, 0, 0x80, 1, 0, 0, 0];
        let region = RegionInfo::parse(&blob(&[&typed])).unwrap();
        assert_eq!(region.device_specific, Some((0x8000_8086, 1)));
    }

    #[test]
    fn a_buffer_that_is_too_small_is_asked_for_again_with_the_right_size() {
        let bytes = blob(&[SPARSE]);
        let short = RegionInfoError::TooShort { needed: 80, available: 32 };
        assert_eq!(RegionInfo::parse(&bytes[..32]), Err(short));
        assert_eq!(
            RegionInfo::parse(&bytes[..31]),
            Err(RegionInfoError::TooShort { needed: 32, available: 31 })
        );
        let mut lying = bytes.clone();
        lying[0] = 8;
        assert!(matches!(RegionInfo::parse(&lying), Err(RegionInfoError::Malformed { offset: 0, .. })));
        // Bytes after the description belong to somebody else.
        let mut longer = bytes;
        longer.extend_from_slice(&[0xff; 64]);
        assert_eq!(RegionInfo::parse(&longer).unwrap().sparse, areas());
    }

    #[test]
    fn lists_that_leave_the_description_or_do_not_advance_are_malformed() {
        let malformed = |bytes: &[u8], at: usize| {
            let error = RegionInfo::parse(bytes).unwrap_err();
            assert!(
                matches!(error, RegionInfoError::Malformed { offset, .. } if offset == at),
                "{error} instead of {at:#x}"
            );
        };
        let with = |at: usize, value: u32| {
            let mut bytes = blob(&[MAPPABLE, SPARSE]);
            bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
            bytes
        };
        malformed(&with(12, 8), 8);
        malformed(&with(12, 0x1000), 0x1000);
        malformed(&with(12, u32::MAX), 0xffff_ffff);
        malformed(&with(12, 84), 84);
        malformed(&with(36, 32), 32);
        malformed(&with(36, 36), 36);
        malformed(&with(44, 32), 32);
        malformed(&with(48, 3), 40);
        malformed(&with(48, u32::MAX), 40);
        assert_eq!(RegionInfo::parse(&with(36, 0)).unwrap().sparse, None);
    }

    #[test]
    fn a_sparse_capability_of_another_version_maps_nothing() {
        let mut other = SPARSE.to_vec();
        other[2] = 2;
        assert_eq!(RegionInfo::parse(&blob(&[&other])).unwrap().sparse, Some(vec![]));
    }
}
