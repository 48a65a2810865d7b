//! What a queue pair may touch: keys, rights, and the accesses themselves.

use thiserror::Error;

/// What a memory region or a queue pair allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rights(u8);

impl Rights {
    /// Nothing but local reads, which every region allows.
    pub const NONE: Self = Self(0);
    /// The queue pairs of this side may write: receives, and the answers of reads.
    pub const LOCAL_WRITE: Self = Self(1);
    /// The other side may write.
    pub const REMOTE_WRITE: Self = Self(2);
    /// The other side may read.
    pub const REMOTE_READ: Self = Self(4);
    /// The other side may do atomic operations.
    pub const REMOTE_ATOMIC: Self = Self(8);
    /// Every access. Not that the other side may invalidate the key, which is no access.
    pub const ALL: Self = Self(15);
    /// The other side may invalidate the key with a SEND. Of a region only: a key that is given
    /// away for one use, as a memory window is. An ordinary registration outlives its peers.
    pub const REMOTE_INVALIDATE: Self = Self(16);

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// `self` without what `other` has.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether everything in `needed` is allowed.
    #[inline]
    #[must_use]
    pub const fn allow(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// A group of regions and queue pairs that may be used together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProtectionDomain(pub u32);

/// Bytes that a queue pair wants to reach through a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// The key: local or remote, by [`rights`](Self::rights).
    pub key: u32,
    /// The first address, in the address space of the region.
    pub address: u64,
    /// How many bytes. Zero reaches nothing and needs no key.
    pub length: u32,
    /// What the region has to allow. [`Rights::NONE`] is a local read.
    pub rights: Rights,
    /// The domain of the queue pair.
    pub domain: ProtectionDomain,
}

/// An atomic operation on eight bytes, which are a number in the host's byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `swap` when the number is `compare`.
    CompareSwap {
        /// The number that must be there.
        compare: u64,
        /// The number to store.
        swap: u64,
    },
    /// Adds, and wraps around.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

impl Atomic {
    /// The number that the operation leaves where `original` was.
    #[must_use]
    pub const fn apply(self, original: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if original == compare => swap,
            Self::CompareSwap { .. } => original,
            Self::FetchAdd { add } => original.wrapping_add(add),
        }
    }
}

/// Why memory cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MemoryError {
    /// There is no such key, or its region was deregistered or invalidated.
    #[error("key {key:#010x} names no memory region; was the region deregistered?")]
    Key {
        /// The key.
        key: u32,
    },
    /// The region belongs to another protection domain.
    #[error("key {key:#010x} belongs to another protection domain")]
    Domain {
        /// The key.
        key: u32,
    },
    /// The bytes are not all inside the region.
    #[error("{length:#x} bytes at {address:#x} are not inside the region of key {key:#010x}")]
    Bounds {
        /// The key.
        key: u32,
        /// The first address.
        address: u64,
        /// How many bytes.
        length: u32,
    },
    /// The region does not allow it.
    #[error("the region of key {key:#010x} does not allow this access")]
    Rights {
        /// The key.
        key: u32,
    },
    /// The memory itself failed, such as a DMA that the IOMMU refused.
    #[error("memory at {address:#x} could not be accessed")]
    Fault {
        /// The first address.
        address: u64,
    },
}

/// The memory that the queue pairs of a host use: its table of keys and its DMA.
///
/// Each call is a DMA request, and its return is the result. Every access is checked in full,
/// also when [`check`](Self::check) allowed it before: a key can die in between.
pub trait Memory {
    /// Whether all of `reach` is allowed.
    ///
    /// # Errors
    ///
    /// [`MemoryError`], and nothing of `reach` may be touched.
    fn check(&self, reach: &Reach) -> Result<(), MemoryError>;

    /// Reads `reach` into `bytes`, which has the length of `reach`.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]; what `bytes` holds then is not the memory's.
    fn read(&mut self, reach: &Reach, bytes: &mut [u8]) -> Result<(), MemoryError>;

    /// Writes `bytes`, which has the length of `reach`.
    ///
    /// # Errors
    ///
    /// [`MemoryError`]; nothing was written unless it is [`MemoryError::Fault`].
    fn write(&mut self, reach: &Reach, bytes: &[u8]) -> Result<(), MemoryError>;

    /// Does an atomic operation on the eight aligned bytes of `reach` and tells what they
    /// were.
    ///
    /// # Errors
    ///
    /// [`MemoryError`], and the bytes are what they were.
    fn atomic(&mut self, reach: &Reach, operation: Atomic) -> Result<u64, MemoryError>;

    /// Makes a remote key dead, as the other side asked with a SEND.
    ///
    /// # Errors
    ///
    /// [`MemoryError`] when there is no such key in `domain`, or its region is not registered
    /// with [`Rights::REMOTE_INVALIDATE`].
    fn invalidate(&mut self, domain: ProtectionDomain, key: u32) -> Result<(), MemoryError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_allowed_only_when_all_are_there() {
        let some = Rights::REMOTE_READ.with(Rights::LOCAL_WRITE);
        assert!(some.allow(Rights::REMOTE_READ) && some.allow(Rights::NONE));
        assert!(!some.allow(Rights::REMOTE_WRITE.with(Rights::REMOTE_READ)));
        assert_eq!(Rights::ALL.without(Rights::LOCAL_WRITE).with(Rights::LOCAL_WRITE), Rights::ALL);
    }

    #[test]
    fn an_atomic_operation_leaves_the_number_that_it_says() {
        assert_eq!(Atomic::CompareSwap { compare: 1, swap: 7 }.apply(1), 7);
        assert_eq!(Atomic::CompareSwap { compare: 1, swap: 7 }.apply(2), 2);
        assert_eq!(Atomic::FetchAdd { add: 3 }.apply(u64::MAX), 2);
    }
}
