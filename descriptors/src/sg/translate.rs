//! From addresses of this process to what a device uses.

use thiserror::Error;
use vdk_hal::address::{ByteLength, HostAddress, Iova};

use super::{SgEntry, SgError};

/// The answer of a translation: an address, and **for how many bytes it holds**.
///
/// The two cannot be had apart. A driver once took the address and not the length, and
/// described a buffer on two pages as one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a translation holds for some bytes only: take its range"]
pub struct Translation {
    iova: Iova,
    contiguous: ByteLength,
}

impl Translation {
    /// The device sees the asked-for address at `iova`, and the bytes behind it, up to
    /// `contiguous` in all, without a gap.
    pub const fn new(iova: Iova, contiguous: ByteLength) -> Self {
        Self { iova, contiguous }
    }

    /// The range of at most `wanted` bytes. It may be shorter than wanted, then there is
    /// more to translate.
    #[must_use]
    pub fn range(self, wanted: ByteLength) -> SgEntry {
        SgEntry { iova: self.iova, length: self.contiguous.min(wanted) }
    }
}

/// Something that knows where a device sees the memory of this process: a registration
/// table, a pool, a mapping. Closures of the same form are one.
pub trait Translate {
    /// Why an address is not known.
    type Error;

    /// Where the device sees `address`, and for how many of the `wanted` bytes the answer
    /// holds: at least one.
    ///
    /// # Errors
    ///
    /// Its own, when `address` is not visible to the device.
    fn translate(&mut self, address: HostAddress, wanted: ByteLength) -> Result<Translation, Self::Error>;
}

impl<F, E> Translate for F
where
    F: FnMut(HostAddress, ByteLength) -> Result<Translation, E>,
{
    type Error = E;

    fn translate(&mut self, address: HostAddress, wanted: ByteLength) -> Result<Translation, E> {
        self(address, wanted)
    }
}

/// Why a buffer was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TranslateError<E> {
    /// The address is not visible to the device.
    #[error("the device does not see address {address}: {error}")]
    NotVisible {
        /// The first address of the buffer that is not.
        address: HostAddress,
        /// What the translation said.
        error: E,
    },
    /// A translation for no bytes, which leads nowhere.
    #[error("the translation of address {address} holds for no bytes")]
    Nothing {
        /// The address.
        address: HostAddress,
    },
    /// A buffer that does not fit the address space of this process.
    #[error("a buffer of {length:#x} bytes at {address} passes the end of the address space")]
    PastEnd {
        /// Where it begins.
        address: HostAddress,
        /// Its size.
        length: u64,
    },
    /// A buffer without bytes.
    #[error("a buffer at {address} has no bytes")]
    ZeroLength {
        /// Where it begins.
        address: HostAddress,
    },
    /// The list does not take a piece.
    #[error(transparent)]
    Refused(SgError),
}

/// Gives every piece of a buffer to `take`, in order.
pub(super) fn pieces<T: Translate>(
    address: HostAddress,
    length: ByteLength,
    translate: &mut T,
    mut take: impl FnMut(SgEntry) -> Result<(), TranslateError<T::Error>>,
) -> Result<(), TranslateError<T::Error>> {
    if length.is_zero() {
        return Err(TranslateError::ZeroLength { address });
    }
    if address.as_u64().checked_add(length.as_u64() - 1).is_none() {
        return Err(TranslateError::PastEnd { address, length: length.as_u64() });
    }
    let mut done = 0;
    while done < length.as_u64() {
        let at = HostAddress::new(address.as_u64() + done);
        let wanted = ByteLength::new(length.as_u64() - done);
        let translation = translate
            .translate(at, wanted)
            .map_err(|error| TranslateError::NotVisible { address: at, error })?;
        let piece = translation.range(wanted);
        if piece.length.is_zero() {
            return Err(TranslateError::Nothing { address: at });
        }
        take(piece)?;
        done += piece.length.as_u64();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sg::{SgLimits, SgList};

    const PAGE: u64 = 4096;
    const BUFFER: u64 = 0x7f00_0000_0000;

    /// Pages of the buffer lie in reverse order, with a page of distance between them.
    fn reverse(address: HostAddress, _wanted: ByteLength) -> Result<Translation, &'static str> {
        let offset = address.as_u64().checked_sub(BUFFER).ok_or("below the buffer")?;
        let page = 0x100_0000 - (offset / PAGE) * 2 * PAGE;
        Ok(Translation::new(Iova::new(page + offset % PAGE), ByteLength::new(PAGE - offset % PAGE)))
    }

    fn entry(iova: u64, length: u64) -> SgEntry {
        SgEntry { iova: Iova::new(iova), length: ByteLength::new(length) }
    }

    #[test]
    fn every_page_of_a_buffer_is_translated() {
        let mut list = SgList::new(&SgLimits::NONE).unwrap();
        list.push_buffer(HostAddress::new(BUFFER + 100), ByteLength::new(2 * PAGE + 1), reverse).unwrap();
        assert_eq!(
            list.entries(),
            [
                entry(0x100_0000 + 100, PAGE - 100),
                entry(0x100_0000 - 2 * PAGE, PAGE),
                entry(0x100_0000 - 4 * PAGE, 101),
            ]
        );
    }

    #[test]
    fn pages_with_gaps_become_two_entries_and_pages_without_become_one() {
        let apart = |address: HostAddress, _: ByteLength| -> Result<Translation, &str> {
            let offset = address.as_u64() - BUFFER;
            let page = 0x10_0000 + (offset / PAGE) * 3 * PAGE;
            Ok(Translation::new(Iova::new(page + offset % PAGE), ByteLength::new(PAGE - offset % PAGE)))
        };
        let together = |address: HostAddress, _: ByteLength| -> Result<Translation, &str> {
            let offset = address.as_u64() - BUFFER;
            Ok(Translation::new(Iova::new(0x10_0000 + offset), ByteLength::new(PAGE - offset % PAGE)))
        };
        let mut list = SgList::new(&SgLimits::NONE).unwrap();
        list.push_buffer(HostAddress::new(BUFFER), ByteLength::new(2 * PAGE), apart).unwrap();
        assert_eq!(list.entries(), [entry(0x10_0000, PAGE), entry(0x10_0000 + 3 * PAGE, PAGE)]);
        list.clear();
        list.push_buffer(HostAddress::new(BUFFER), ByteLength::new(2 * PAGE), together).unwrap();
        assert_eq!(list.entries(), [entry(0x10_0000, 2 * PAGE)]);
    }

    #[test]
    fn a_translation_in_the_middle_that_fails_leaves_the_list_as_it_was() {
        let mut list = SgList::new(&SgLimits::NONE).unwrap();
        list.push(Iova::new(0x0f_f000), ByteLength::new(PAGE)).unwrap();
        let before = list.clone();
        let holes = |address: HostAddress, _: ByteLength| -> Result<Translation, &'static str> {
            let offset = address.as_u64() - BUFFER;
            if offset >= 2 * PAGE {
                return Err("not registered");
            }
            Ok(Translation::new(Iova::new(0x10_0000 + offset), ByteLength::new(PAGE)))
        };
        let error = list.push_buffer(HostAddress::new(BUFFER), ByteLength::new(3 * PAGE), holes).unwrap_err();
        let address = HostAddress::new(BUFFER + 2 * PAGE);
        assert_eq!(error, TranslateError::NotVisible { address, error: "not registered" });
        assert_eq!(list.entries(), before.entries());
        assert_eq!(list.total(), before.total());
        list.push(Iova::new(0x10_0000), ByteLength::new(1)).unwrap();
        assert_eq!(list.entries(), [entry(0x0f_f000, PAGE + 1)]);
    }

    #[test]
    fn a_translation_that_leads_nowhere_is_an_error() {
        let mut list = SgList::new(&SgLimits::NONE).unwrap();
        let nowhere =
            |_: HostAddress, _: ByteLength| Ok::<_, &str>(Translation::new(Iova::new(0), ByteLength::ZERO));
        let address = HostAddress::new(BUFFER);
        assert_eq!(
            list.push_buffer(address, ByteLength::new(8), nowhere),
            Err(TranslateError::Nothing { address })
        );
        assert_eq!(
            list.push_buffer(address, ByteLength::ZERO, reverse),
            Err(TranslateError::ZeroLength { address })
        );
        let address = HostAddress::new(u64::MAX);
        assert_eq!(
            list.push_buffer(address, ByteLength::new(2), reverse),
            Err(TranslateError::PastEnd { address, length: 2 })
        );
        assert!(list.is_empty());
    }

    #[test]
    fn a_translation_longer_than_asked_is_cut() {
        let endless = |address: HostAddress, _: ByteLength| {
            Ok::<_, &str>(Translation::new(Iova::new(address.as_u64()), ByteLength::new(u64::MAX)))
        };
        let mut list = SgList::new(&SgLimits::NONE).unwrap();
        list.push_buffer(HostAddress::new(BUFFER), ByteLength::new(10), endless).unwrap();
        assert_eq!(list.entries(), [entry(BUFFER, 10)]);
    }
}
