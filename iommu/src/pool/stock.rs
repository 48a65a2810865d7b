//! The free buffers that a pool has at hand.

use vdk_hal::address::ByteLength;

use super::buffer::DmaBuffer;

/// A stack of free buffers for each class. The class of a buffer is the exponent of its
/// capacity.
pub(super) struct Stocks {
    stocks: [Stock; CLASSES],
}

struct Stock {
    buffers: Vec<DmaBuffer>,
    /// How many to keep; zero until the class is used.
    depth: usize,
}

impl Stocks {
    pub(super) fn new() -> Self {
        Self { stocks: core::array::from_fn(|_| Stock { buffers: Vec::new(), depth: 0 }) }
    }

    /// Makes room for all buffers of a class that will be kept, so that
    /// [`keep`](Self::keep) never allocates.
    pub(super) fn open(&mut self, class: u32) {
        if let Some(stock) = self.stocks.get_mut(index_of(class)) {
            stock.depth = depth(class);
            stock.buffers.reserve_exact(stock.depth.saturating_sub(stock.buffers.len()));
        }
    }

    /// How many more buffers of a class are kept.
    #[inline]
    pub(super) fn room(&self, class: u32) -> usize {
        let stock = self.stocks.get(index_of(class));
        stock.map_or(0, |stock| stock.depth.saturating_sub(stock.buffers.len()))
    }

    /// Takes the latest buffer of a class.
    #[inline(always)]
    pub(super) fn take(&mut self, class: u32) -> Option<DmaBuffer> {
        self.stocks.get_mut(index_of(class))?.buffers.pop()
    }

    /// Moves the latest buffers of a class, at most `count`, to the end of `buffers`.
    #[inline]
    pub(super) fn take_many(&mut self, class: u32, count: usize, buffers: &mut Vec<DmaBuffer>) {
        if let Some(stock) = self.stocks.get_mut(index_of(class)) {
            let left = stock.buffers.len().saturating_sub(count);
            buffers.extend(stock.buffers.drain(left..));
        }
    }

    /// Keeps a buffer, or gives it back when there is no room.
    #[inline(always)]
    pub(super) fn keep(&mut self, buffer: DmaBuffer) -> Result<(), DmaBuffer> {
        match self.stocks.get_mut(index_of(buffer.class())) {
            Some(stock) if stock.buffers.len() < stock.depth => {
                stock.buffers.push(buffer);
                Ok(())
            }
            _ => Err(buffer),
        }
    }

    /// Keeps all of `buffers`, which are of `class`; there must be room.
    #[inline]
    pub(super) fn keep_many(&mut self, class: u32, buffers: &mut Vec<DmaBuffer>) {
        if let Some(stock) = self.stocks.get_mut(index_of(class)) {
            stock.buffers.append(buffers);
        }
    }

    /// Gives all buffers up.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = DmaBuffer> {
        self.stocks.iter_mut().flat_map(|stock| stock.buffers.drain(..))
    }

    /// How many buffers there are.
    pub(super) fn count(&self) -> usize {
        self.stocks.iter().map(|stock| stock.buffers.len()).sum()
    }

    /// How many bytes they have together.
    pub(super) fn bytes(&self) -> ByteLength {
        let capacities = self.stocks.iter().flat_map(|stock| &stock.buffers).map(DmaBuffer::capacity);
        ByteLength::new(capacities.map(ByteLength::as_u64).sum())
    }
}

/// The class of buffers of `length` bytes; one that no pool has for a length of zero.
#[inline]
pub(super) fn class_of(length: usize) -> u32 {
    // A length of zero wraps to all ones, whose exponent is 64.
    let exponent = usize::BITS - length.wrapping_sub(1).leading_zeros();
    exponent.max(SMALLEST_CLASS)
}

#[inline]
fn index_of(class: u32) -> usize {
    // CAST: a class is at most 64.
    class.wrapping_sub(SMALLEST_CLASS) as usize
}

/// How many buffers of a class are kept: 1 MiB of them, from 8 to 512.
fn depth(class: u32) -> usize {
    ((1 << 20) >> class.min(20)).clamp(8, 512)
}

/// Buffers have at least 64 bytes, a cache line of their own.
pub(super) const SMALLEST_CLASS: u32 = 6;

/// Slabs are below 2^38 bytes.
pub(super) const LARGEST_CLASS: u32 = 37;

const CLASSES: usize = (LARGEST_CLASS - SMALLEST_CLASS + 1) as usize;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_holds_the_lengths_up_to_its_capacity() {
        assert_eq!([1, 64, 65, 128, 2048, 2049, 4096].map(class_of), [6, 6, 7, 7, 11, 12, 12]);
        assert_eq!(class_of(1 << 37), LARGEST_CLASS);
        for length in [0, (1 << 37) + 1, usize::MAX] {
            assert!(class_of(length) > LARGEST_CLASS, "{length}");
        }
    }
}
