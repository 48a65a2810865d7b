//! A namespace: what is needed to address its blocks.

use vdk_descriptors::nvme::IdentifyNamespace;
use vdk_hal::address::ByteLength;

use super::error::NamespaceError;

/// A namespace as it was when it was asked for. After a format ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    id: u32,
    blocks: u64,
    block_exponent: u32,
    metadata: u16,
    read_only: bool,
}

impl Namespace {
    /// Reads what the controller says of namespace `id`.
    ///
    /// # Errors
    ///
    /// [`NamespaceError`] when its format is not one that this driver addresses.
    pub fn new(id: u32, identify: &IdentifyNamespace) -> Result<Self, NamespaceError> {
        let format = identify.lba_format();
        let exponent = format.block_exponent;
        if !(9..=16).contains(&exponent) {
            return Err(NamespaceError::BlockLength { id, exponent });
        }
        if format.metadata > 0 && identify.format.extended_lba() {
            return Err(NamespaceError::Metadata { id, metadata: format.metadata });
        }
        Ok(Self {
            id,
            // More bytes than 64 bits count cannot be addressed.
            blocks: identify.size.min(u64::MAX >> exponent),
            block_exponent: u32::from(exponent),
            metadata: format.metadata,
            read_only: identify.attributes & 1 != 0,
        })
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// How many blocks it has; may be zero.
    #[inline]
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The size of a block, 512 bytes to 64 KiB.
    #[inline]
    #[must_use]
    pub fn block_length(&self) -> ByteLength {
        ByteLength::new(1 << self.block_exponent)
    }

    /// Binary logarithm of the size of a block.
    #[inline]
    #[must_use]
    pub fn block_exponent(&self) -> u32 {
        self.block_exponent
    }

    /// Its size in bytes.
    #[must_use]
    pub fn length(&self) -> ByteLength {
        ByteLength::new(self.blocks << self.block_exponent)
    }

    /// Bytes of metadata of each block, in their own buffer; this driver moves none.
    #[must_use]
    pub fn metadata(&self) -> u16 {
        self.metadata
    }

    /// Whether it is write protected.
    #[inline]
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn identify(exponent: u8, metadata: u16) -> IdentifyNamespace {
        let mut identify = IdentifyNamespace::new_zeroed();
        identify.size = 1000;
        identify.lba_formats[0].block_exponent = exponent;
        identify.lba_formats[0].metadata = metadata;
        identify
    }

    #[test]
    fn blocks_of_512_and_4096_bytes_are_addressed() {
        for (exponent, length) in [(9, 512), (12, 4096)] {
            let namespace = Namespace::new(3, &identify(exponent, 0)).unwrap();
            assert_eq!(namespace.block_length(), ByteLength::new(length));
            assert_eq!(namespace.length(), ByteLength::new(length * 1000));
            assert!(!namespace.is_read_only());
        }
    }

    #[test]
    fn formats_that_cannot_be_addressed_are_refused_with_the_fix() {
        let error = Namespace::new(3, &identify(0, 0)).unwrap_err();
        assert_eq!(error, NamespaceError::BlockLength { id: 3, exponent: 0 });
        assert!(error.to_string().contains("format it"), "{error}");
        assert!(Namespace::new(3, &identify(63, 0)).is_err());
        let mut extended = identify(12, 8);
        assert_eq!(Namespace::new(3, &extended).unwrap().metadata(), 8);
        extended.format.set_extended_lba(true);
        let error = Namespace::new(3, &extended).unwrap_err();
        assert_eq!(error, NamespaceError::Metadata { id: 3, metadata: 8 });
    }

    #[test]
    fn a_size_beyond_64_bits_of_bytes_is_cut() {
        let mut huge = identify(12, 0);
        huge.size = u64::MAX;
        let namespace = Namespace::new(1, &huge).unwrap();
        assert_eq!(namespace.blocks(), u64::MAX >> 12);
        assert_eq!(namespace.length().as_u64(), (u64::MAX >> 12) << 12);
    }
}
