//! The memory regions of an endpoint and their keys.

use std::ops::Range;

use thiserror::Error;

use crate::roce::memory::{Atomic, Memory, MemoryError, ProtectionDomain, Reach, Rights};

/// A registered region, as its owner knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration {
    /// The key, local and remote.
    pub key: u32,
    /// The address of the first byte.
    pub address: u64,
}

/// Why a region cannot be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RegisterError {
    /// The last byte would have no address.
    #[error("{length:#x} bytes from {address:#x} on do not fit into 64 bits of address")]
    Range {
        /// The address of the first byte.
        address: u64,
        /// How many bytes.
        length: usize,
    },
    /// There are as many regions as there can be.
    #[error("there are {0:#x} memory regions, and no key for another; deregister some")]
    Quota(usize),
}

#[derive(Debug)]
struct Region {
    bytes: Vec<u8>,
    address: u64,
    rights: Rights,
    domain: ProtectionDomain,
    /// Whether the remote key was invalidated by the other side.
    invalidated: bool,
}

/// One place of the table. Its generation is part of the key, so that the key of a region that
/// is gone opens no later one. When there is no further generation, the place is not used again.
#[derive(Debug, Default)]
struct Place {
    generation: u8,
    region: Option<Region>,
}

/// The table of regions.
#[derive(Debug)]
pub struct KeyTable {
    places: Vec<Place>,
    free: Vec<usize>,
    next_address: u64,
}

/// How many regions there can be: 24 bits of a key say which one it is.
const MOST: usize = 1 << 24;
/// Where the regions lie that are not given an address.
const FIRST_ADDRESS: u64 = 0x7f00_0000_0000;
const PAGE: u64 = 4096;

impl Default for KeyTable {
    fn default() -> Self {
        // Place 0 stays empty: no region has a key below 256.
        Self { places: vec![Place::default()], free: Vec::new(), next_address: FIRST_ADDRESS }
    }
}

impl KeyTable {
    /// Registers `bytes`, at an address that nothing else has.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], when there are too many regions.
    pub fn register(
        &mut self,
        domain: ProtectionDomain,
        rights: Rights,
        bytes: Vec<u8>,
    ) -> Result<Registration, RegisterError> {
        let address = self.next_address;
        let pages = (bytes.len() as u64).div_ceil(PAGE) + 1;
        let registration = self.register_at(domain, rights, address, bytes)?;
        self.next_address = address + pages * PAGE;
        Ok(registration)
    }

    /// Registers `bytes` at `address`.
    ///
    /// # Errors
    ///
    /// [`RegisterError`], and `bytes` is gone.
    pub fn register_at(
        &mut self,
        domain: ProtectionDomain,
        rights: Rights,
        address: u64,
        bytes: Vec<u8>,
    ) -> Result<Registration, RegisterError> {
        if address.checked_add(bytes.len() as u64).is_none() {
            return Err(RegisterError::Range { address, length: bytes.len() });
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.places.len() == MOST => return Err(RegisterError::Quota(MOST)),
            None => {
                self.places.push(Place::default());
                self.places.len() - 1
            }
        };
        let region = Region { bytes, address, rights, domain, invalidated: false };
        let key = self.places.get_mut(place).map_or(0, |entry| {
            entry.region = Some(region);
            key(place, entry.generation)
        });
        Ok(Registration { key, address })
    }

    /// Gives the bytes of a region back. Its key opens nothing from now on.
    pub fn deregister(&mut self, key: u32) -> Option<Vec<u8>> {
        let index = index(key);
        let place = self.places.get_mut(index).filter(|place| place.generation == generation(key))?;
        let region = place.region.take()?;
        // A place whose generations are used up stays empty: a key is never given twice.
        if let Some(next) = place.generation.checked_add(1) {
            place.generation = next;
            self.free.push(index);
        }
        Some(region.bytes)
    }

    /// The bytes of a region.
    #[must_use]
    pub fn bytes(&self, key: u32) -> Option<&[u8]> {
        self.region(key).map(|region| region.bytes.as_slice())
    }

    /// The bytes of a region, to be written.
    pub fn bytes_mut(&mut self, key: u32) -> Option<&mut [u8]> {
        self.region_mut(key).map(|region| region.bytes.as_mut_slice())
    }

    #[inline]
    fn region(&self, key: u32) -> Option<&Region> {
        let place = self.places.get(index(key))?;
        place.region.as_ref().filter(|_| place.generation == generation(key))
    }

    #[inline]
    fn region_mut(&mut self, key: u32) -> Option<&mut Region> {
        let place = self.places.get_mut(index(key))?;
        let fits = place.generation == generation(key);
        place.region.as_mut().filter(|_| fits)
    }
}

#[inline]
fn index(key: u32) -> usize {
    // CAST: 24 bits.
    (key >> 8) as usize
}

#[inline]
fn generation(key: u32) -> u8 {
    key.to_le_bytes()[0]
}

fn key(place: usize, generation: u8) -> u32 {
    u32::try_from(place).unwrap_or(0) << 8 | u32::from(generation)
}

impl Region {
    /// Which bytes of the region `reach` is, if all of it is allowed.
    #[inline]
    fn range(&self, reach: &Reach) -> Result<Range<usize>, MemoryError> {
        let key = reach.key;
        if self.domain != reach.domain {
            return Err(MemoryError::Domain { key });
        }
        let remote = !Rights::LOCAL_WRITE.allow(reach.rights);
        if remote && self.invalidated {
            return Err(MemoryError::Key { key });
        }
        if !self.rights.allow(reach.rights) {
            return Err(MemoryError::Rights { key });
        }
        let outside = MemoryError::Bounds { key, address: reach.address, length: reach.length };
        let start = reach.address.checked_sub(self.address).ok_or(outside)?;
        let start = usize::try_from(start).map_err(|_| outside)?;
        // CAST: a length of 32 bits fits on every machine that this runs on.
        let end = start.checked_add(reach.length as usize).ok_or(outside)?;
        if end > self.bytes.len() { Err(outside) } else { Ok(start..end) }
    }
}

impl Memory for KeyTable {
    #[inline]
    fn check(&self, reach: &Reach) -> Result<(), MemoryError> {
        let region = self.region(reach.key).ok_or(MemoryError::Key { key: reach.key })?;
        region.range(reach).map(|_| ())
    }

    #[inline]
    fn read(&mut self, reach: &Reach, bytes: &mut [u8]) -> Result<(), MemoryError> {
        let region = self.region(reach.key).ok_or(MemoryError::Key { key: reach.key })?;
        let from = region.bytes.get(region.range(reach)?).unwrap_or_default();
        if from.len() != bytes.len() {
            return Err(MemoryError::Fault { address: reach.address });
        }
        bytes.copy_from_slice(from);
        Ok(())
    }

    #[inline]
    fn write(&mut self, reach: &Reach, bytes: &[u8]) -> Result<(), MemoryError> {
        let region = self.region_mut(reach.key).ok_or(MemoryError::Key { key: reach.key })?;
        let range = region.range(reach)?;
        let place = region.bytes.get_mut(range).unwrap_or_default();
        if place.len() != bytes.len() {
            return Err(MemoryError::Fault { address: reach.address });
        }
        place.copy_from_slice(bytes);
        Ok(())
    }

    fn atomic(&mut self, reach: &Reach, operation: Atomic) -> Result<u64, MemoryError> {
        let region = self.region_mut(reach.key).ok_or(MemoryError::Key { key: reach.key })?;
        let range = region.range(reach)?;
        let place = region.bytes.get_mut(range).and_then(<[u8]>::first_chunk_mut);
        let place = place.ok_or(MemoryError::Fault { address: reach.address })?;
        let original = u64::from_ne_bytes(*place);
        *place = operation.apply(original).to_ne_bytes();
        Ok(original)
    }

    fn invalidate(&mut self, domain: ProtectionDomain, key: u32) -> Result<(), MemoryError> {
        let region = self.region_mut(key).ok_or(MemoryError::Key { key })?;
        if region.domain != domain {
            return Err(MemoryError::Domain { key });
        }
        if !region.rights.allow(Rights::REMOTE_INVALIDATE) {
            return Err(MemoryError::Rights { key });
        }
        region.invalidated = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOMAIN: ProtectionDomain = ProtectionDomain(3);

    fn reach(key: u32, address: u64, length: u32, rights: Rights) -> Reach {
        Reach { key, address, length, rights, domain: DOMAIN }
    }

    #[test]
    fn a_key_opens_its_region_and_nothing_else() {
        let mut table = KeyTable::default();
        let region = table.register_at(DOMAIN, Rights::REMOTE_READ, 0x1000, vec![7; 16]).unwrap();
        let key = region.key;
        let mut bytes = [0; 8];
        table.read(&reach(key, 0x1008, 8, Rights::REMOTE_READ), &mut bytes).unwrap();
        assert_eq!(bytes, [7; 8]);
        for (address, length) in [(0xfff, 1), (0x1000, 17), (0x1010, 1), (u64::MAX, 2), (0, u32::MAX)] {
            let answer = table.check(&reach(key, address, length, Rights::REMOTE_READ));
            assert_eq!(answer, Err(MemoryError::Bounds { key, address, length }));
        }
        let answer = table.write(&reach(key, 0x1000, 1, Rights::REMOTE_WRITE), &[1]);
        assert_eq!(answer, Err(MemoryError::Rights { key }));
        let mut foreign = reach(key, 0x1000, 1, Rights::REMOTE_READ);
        foreign.domain = ProtectionDomain(4);
        assert_eq!(table.check(&foreign), Err(MemoryError::Domain { key }));
        for other in [0, key ^ 0x100, key ^ 1, u32::MAX] {
            let answer = table.check(&reach(other, 0x1000, 1, Rights::NONE));
            assert_eq!(answer, Err(MemoryError::Key { key: other }));
        }
        assert_eq!(table.bytes(key), Some(&[7; 16][..]));
    }

    #[test]
    fn the_key_of_a_region_that_is_gone_opens_no_later_one() {
        let mut table = KeyTable::default();
        let first = table.register(DOMAIN, Rights::ALL, vec![1]).unwrap();
        assert_eq!(table.deregister(first.key), Some(vec![1]));
        assert_eq!(table.deregister(first.key), None);
        let second = table.register(DOMAIN, Rights::ALL, vec![2]).unwrap();
        assert_eq!(first.key >> 8, second.key >> 8);
        assert_eq!(table.bytes(first.key), None);
        assert_eq!(table.bytes(second.key), Some(&[2][..]));
        assert!(second.address > first.address);
    }

    #[test]
    fn no_key_comes_back_however_often_regions_are_registered() {
        let mut table = KeyTable::default();
        let mut dead = std::collections::HashSet::new();
        for cycle in 0..300 {
            let region = table.register(DOMAIN, Rights::ALL, vec![3]).unwrap();
            assert!(dead.insert(region.key), "cycle {cycle} gives the dead key {:#x} again", region.key);
            assert_eq!(table.deregister(region.key), Some(vec![3]));
        }
        let last = table.register(DOMAIN, Rights::ALL, vec![4]).unwrap();
        assert!(dead.iter().all(|key| table.bytes(*key).is_none()));
        assert_eq!(table.bytes(last.key), Some(&[4][..]));
        assert_eq!(table.places.len(), 3, "a place is used for 256 regions before the next one is");
    }

    #[test]
    fn a_region_ends_before_the_address_space_does() {
        let mut table = KeyTable::default();
        let answer = table.register_at(DOMAIN, Rights::ALL, u64::MAX - 3, vec![0; 4]);
        assert_eq!(answer, Err(RegisterError::Range { address: u64::MAX - 3, length: 4 }));
        assert!(table.register_at(DOMAIN, Rights::ALL, u64::MAX - 4, vec![0; 4]).is_ok());
    }

    #[test]
    fn an_invalidated_key_is_dead_for_the_other_side_only() {
        let mut table = KeyTable::default();
        let rights = Rights::ALL.with(Rights::REMOTE_INVALIDATE);
        let region = table.register_at(DOMAIN, rights, 0x1000, vec![0; 8]).unwrap();
        assert!(table.invalidate(ProtectionDomain(0), region.key).is_err());
        table.invalidate(DOMAIN, region.key).unwrap();
        let remote = table.check(&reach(region.key, 0x1000, 8, Rights::REMOTE_ATOMIC));
        assert_eq!(remote, Err(MemoryError::Key { key: region.key }));
        assert_eq!(table.check(&reach(region.key, 0x1000, 8, Rights::LOCAL_WRITE)), Ok(()));
    }

    #[test]
    fn a_key_without_the_right_to_be_invalidated_stays_alive() {
        let mut table = KeyTable::default();
        let region = table.register_at(DOMAIN, Rights::ALL, 0x1000, vec![0; 8]).unwrap();
        let key = region.key;
        assert_eq!(table.invalidate(DOMAIN, key), Err(MemoryError::Rights { key }));
        assert_eq!(table.check(&reach(key, 0x1000, 8, Rights::REMOTE_WRITE)), Ok(()));
    }
}
