//! A bus master as a container of bytes, for device models that are written against
//! [`vm_memory::Bytes`].

use core::cell::RefCell;
use core::sync::atomic::Ordering;
use std::io::ErrorKind;

use thiserror::Error;
use vdk_hal::address::Iova;
use vm_memory::{
    AtomicAccess, Bytes, GuestAddress, ReadVolatile, VolatileMemoryError, VolatileSlice, WriteVolatile,
};

use super::{BusMaster, TranslationFault};

/// A [`BusMaster`] whose memory is reached through [`Bytes`]: the address is the I/O virtual
/// address that the device puts on the bus.
///
/// `read` and `write`, as the trait says, stop short where nothing more can be reached, and
/// fail only when nothing can be; the fault is in the log in both cases. Streams are moved
/// through a small buffer, so a slow stream does not hold up an unmap.
#[derive(Debug)]
pub struct BusMasterBytes {
    device: RefCell<BusMaster>,
}

impl BusMasterBytes {
    /// Wraps a bus master.
    #[must_use]
    pub fn new(device: BusMaster) -> Self {
        Self { device: RefCell::new(device) }
    }

    /// The bus master again.
    #[must_use]
    pub fn into_inner(self) -> BusMaster {
        self.device.into_inner()
    }

    /// How many of `count` bytes from `address` on can be accessed and fit the buffer.
    fn reach(&self, address: Iova, count: usize, write: bool) -> Result<usize, TranslationFault> {
        let range = self.device.borrow_mut().translate(address, write)?;
        // One less than what there is, so that it cannot overflow.
        let further = range.last().as_u64().saturating_sub(address.as_u64());
        let reachable = usize::try_from(further).unwrap_or(usize::MAX).saturating_add(1);
        Ok(reachable.min(count).min(BUFFER))
    }
}

/// Why an access through [`BusMasterBytes`] failed.
#[derive(Debug, Error)]
pub enum BusMasterBytesError {
    /// The IOMMU refused it.
    #[error(transparent)]
    Fault(#[from] TranslationFault),
    /// The stream that bytes come from or go to failed.
    #[error("the stream failed: {0}")]
    Stream(VolatileMemoryError),
    /// The stream ended early.
    #[error("the stream ended after {completed:#x} of {expected:#x} bytes")]
    Incomplete {
        /// How many bytes were asked for.
        expected: usize,
        /// How many bytes were moved.
        completed: usize,
    },
    /// A word is wider than 64 bits.
    #[error("words of {width} bytes cannot be accessed in one piece")]
    Width {
        /// The width in bytes.
        width: usize,
    },
}

impl Bytes<GuestAddress> for BusMasterBytes {
    type E = BusMasterBytesError;

    fn write(&self, buf: &[u8], addr: GuestAddress) -> Result<usize, Self::E> {
        let result = self.device.borrow_mut().write(Iova::new(addr.0), buf);
        moved(addr, buf.len(), result)
    }

    fn read(&self, buf: &mut [u8], addr: GuestAddress) -> Result<usize, Self::E> {
        let result = self.device.borrow_mut().read(Iova::new(addr.0), buf);
        moved(addr, buf.len(), result)
    }

    fn write_slice(&self, buf: &[u8], addr: GuestAddress) -> Result<(), Self::E> {
        Ok(self.device.borrow_mut().write(Iova::new(addr.0), buf)?)
    }

    fn read_slice(&self, buf: &mut [u8], addr: GuestAddress) -> Result<(), Self::E> {
        Ok(self.device.borrow_mut().read(Iova::new(addr.0), buf)?)
    }

    fn read_volatile_from<F: ReadVolatile>(
        &self,
        addr: GuestAddress,
        src: &mut F,
        count: usize,
    ) -> Result<usize, Self::E> {
        stream(addr, count, |address, left| {
            // Before the stream is read, so that nothing is taken out of it and lost.
            let reach = self.reach(address, left, true)?;
            let mut buffer = [0; BUFFER];
            let chunk = buffer.get_mut(..reach).unwrap_or_default();
            let got = uninterrupted(|| src.read_volatile(&mut VolatileSlice::from(&mut *chunk)))?;
            self.device.borrow_mut().write(address, chunk.get(..got).unwrap_or_default())?;
            Ok((got, reach))
        })
    }

    fn read_exact_volatile_from<F: ReadVolatile>(
        &self,
        addr: GuestAddress,
        src: &mut F,
        count: usize,
    ) -> Result<(), Self::E> {
        all(addr, count, |addr, count| self.read_volatile_from(addr, src, count))
    }

    fn write_volatile_to<F: WriteVolatile>(
        &self,
        addr: GuestAddress,
        dst: &mut F,
        count: usize,
    ) -> Result<usize, Self::E> {
        stream(addr, count, |address, left| {
            let reach = self.reach(address, left, false)?;
            let mut buffer = [0; BUFFER];
            let chunk = buffer.get_mut(..reach).unwrap_or_default();
            self.device.borrow_mut().read(address, chunk)?;
            let put = uninterrupted(|| dst.write_volatile(&VolatileSlice::from(&mut *chunk)))?;
            Ok((put, reach))
        })
    }

    fn write_all_volatile_to<F: WriteVolatile>(
        &self,
        addr: GuestAddress,
        dst: &mut F,
        count: usize,
    ) -> Result<(), Self::E> {
        all(addr, count, |addr, count| self.write_volatile_to(addr, dst, count))
    }

    fn store<T: AtomicAccess>(&self, val: T, addr: GuestAddress, order: Ordering) -> Result<(), Self::E> {
        let address = Iova::new(addr.0);
        let mut device = self.device.borrow_mut();
        let mut burst = device.begin(address, true)?;
        let bytes = val.as_slice();
        Ok(match *bytes {
            [a] => burst.store(address, a, order),
            [a, b] => burst.store(address, u16::from_ne_bytes([a, b]), order),
            [a, b, c, d] => burst.store(address, u32::from_ne_bytes([a, b, c, d]), order),
            [a, b, c, d, e, f, g, h] => {
                burst.store(address, u64::from_ne_bytes([a, b, c, d, e, f, g, h]), order)
            }
            _ => return Err(BusMasterBytesError::Width { width: bytes.len() }),
        }?)
    }

    fn load<T: AtomicAccess>(&self, addr: GuestAddress, order: Ordering) -> Result<T, Self::E> {
        let address = Iova::new(addr.0);
        let mut device = self.device.borrow_mut();
        let mut burst = device.begin(address, false)?;
        let mut value = T::zeroed();
        let bytes = value.as_mut_slice();
        match bytes.len() {
            1 => bytes.copy_from_slice(&burst.load::<u8>(address, order)?.to_ne_bytes()),
            2 => bytes.copy_from_slice(&burst.load::<u16>(address, order)?.to_ne_bytes()),
            4 => bytes.copy_from_slice(&burst.load::<u32>(address, order)?.to_ne_bytes()),
            8 => bytes.copy_from_slice(&burst.load::<u64>(address, order)?.to_ne_bytes()),
            width => return Err(BusMasterBytesError::Width { width }),
        }
        Ok(value)
    }
}

/// How many bytes an access moved: all, or those before the fault.
fn moved(
    start: GuestAddress,
    length: usize,
    result: Result<(), TranslationFault>,
) -> Result<usize, BusMasterBytesError> {
    let Err(fault) = result else { return Ok(length) };
    match usize::try_from(fault.address.as_u64().wrapping_sub(start.0)) {
        Ok(before) if before > 0 && before < length => Ok(before),
        _ => Err(fault.into()),
    }
}

/// Moves up to `count` bytes by steps that say how many they moved and how many they tried
/// to. A step that fails ends it, and counts as a failure only if it is the first.
fn stream(
    start: GuestAddress,
    count: usize,
    mut step: impl FnMut(Iova, usize) -> Result<(usize, usize), BusMasterBytesError>,
) -> Result<usize, BusMasterBytesError> {
    let mut done = 0;
    while done < count {
        // CAST: `usize` is at most 64 bits wide.
        let Some(address) = start.0.checked_add(done as u64) else { break };
        match step(Iova::new(address), count - done) {
            Ok((moved, tried)) => {
                done += moved.min(tried);
                if moved < tried {
                    break;
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Moves exactly `count` bytes with calls that may move fewer.
fn all(
    start: GuestAddress,
    count: usize,
    mut step: impl FnMut(GuestAddress, usize) -> Result<usize, BusMasterBytesError>,
) -> Result<(), BusMasterBytesError> {
    let mut done = 0;
    while done < count {
        let early = BusMasterBytesError::Incomplete { expected: count, completed: done };
        // CAST: `usize` is at most 64 bits wide.
        let Some(address) = start.0.checked_add(done as u64) else { return Err(early) };
        match step(GuestAddress(address), count - done)? {
            0 => return Err(early),
            moved => done += moved,
        }
    }
    Ok(())
}

fn uninterrupted(
    mut call: impl FnMut() -> Result<usize, VolatileMemoryError>,
) -> Result<usize, BusMasterBytesError> {
    loop {
        match call() {
            Err(VolatileMemoryError::IOError(error)) if error.kind() == ErrorKind::Interrupted => {}
            result => return result.map_err(BusMasterBytesError::Stream),
        }
    }
}

/// How many bytes of a stream are moved at once.
const BUFFER: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::tests::{PAGE, iova, machine, memory};
    use crate::soft::{FaultReason, SoftIommuOptions};
    use vdk_hal::dma::{DmaMapper, Permissions};

    fn reason(error: BusMasterBytesError) -> FaultReason {
        match error {
            BusMasterBytesError::Fault(fault) => fault.reason,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn objects_slices_and_words_go_through_the_iommu() {
        let (domain, gate, device) = machine(SoftIommuOptions::default());
        let host = memory(1);
        domain.map(iova(0x2000), &host, Permissions::ReadWrite).unwrap();
        let bytes = BusMasterBytes::new(device);
        bytes.write_obj(0x1122_3344_u32, GuestAddress(0x2ffc)).unwrap();
        assert_eq!(host.read_value::<u32>(0xffc).unwrap(), 0x1122_3344);
        assert_eq!(bytes.read_obj::<u16>(GuestAddress(0x2ffc)).unwrap(), 0x3344);
        // ORDERING: any will do; one thread.
        let order = Ordering::SeqCst;
        bytes.store(0x77_u8, GuestAddress(0x2001), order).unwrap();
        bytes.store(0x8899_u16, GuestAddress(0x2002), order).unwrap();
        bytes.store(0xaabb_ccdd_u32, GuestAddress(0x2004), order).unwrap();
        assert_eq!(bytes.load::<u64>(GuestAddress(0x2000), order).unwrap(), 0xaabb_ccdd_8899_7700);
        assert_eq!(bytes.load::<i16>(GuestAddress(0x2002), order).unwrap(), 0x8899_u16.cast_signed());

        assert_eq!(reason(bytes.write_obj(1_u64, GuestAddress(0x2ffc)).unwrap_err()), FaultReason::NotMapped);
        assert_eq!(
            reason(bytes.load::<u32>(GuestAddress(0x2002), order).unwrap_err()),
            FaultReason::Misaligned
        );
        assert_eq!(bytes.write(&[1; 8], GuestAddress(0x2ffe)).unwrap(), 2);
        assert_eq!(bytes.read(&mut [1; 8], GuestAddress(0x2ffd)).unwrap(), 3);
        assert_eq!(
            reason(bytes.read(&mut [1; 8], GuestAddress(0x3000)).unwrap_err()),
            FaultReason::NotMapped
        );
        assert_eq!(bytes.read(&mut [], GuestAddress(0)).unwrap(), 0);
        gate.close().unwrap();
        let refused = bytes.store(1_u32, GuestAddress(0x2000), order).unwrap_err();
        assert_eq!(reason(refused), FaultReason::BusMasterOff);
        assert_eq!(domain.iommu().fault_count(), 6);
        assert_eq!(bytes.into_inner().load_u64(iova(0x2000)).unwrap_err().reason, FaultReason::BusMasterOff);
    }

    #[test]
    fn streams_stop_where_memory_or_stream_ends_and_lose_nothing() {
        let (domain, _, device) = machine(SoftIommuOptions::default());
        let (first, second) = (memory(2), memory(1));
        domain.map(iova(0x2000), &first, Permissions::ReadWrite).unwrap();
        domain.map(iova(0x4000), &second, Permissions::ReadWrite).unwrap();
        let bytes = BusMasterBytes::new(device);
        let text: Vec<u8> = (0..14_000u32).map(|n| n.to_le_bytes()[0] ^ n.to_le_bytes()[1]).collect();
        let mut source = &text[..];
        let reachable = usize::try_from(3 * PAGE).unwrap() - 5;
        assert_eq!(bytes.read_volatile_from(GuestAddress(0x2005), &mut source, 14_000).unwrap(), reachable);
        assert_eq!(source, &text[reachable..]);
        let mut copy = Vec::new();
        bytes.write_all_volatile_to(GuestAddress(0x2005), &mut copy, reachable).unwrap();
        assert_eq!(copy, text[..reachable]);
        let error = bytes.write_all_volatile_to(GuestAddress(0x4fff), &mut copy, 2).unwrap_err();
        assert_eq!(reason(error), FaultReason::NotMapped);

        let error = bytes.read_exact_volatile_from(GuestAddress(0x2000), &mut &text[..10], 11).unwrap_err();
        assert_eq!(error.to_string(), "the stream ended after 0xa of 0xb bytes");
        bytes.read_exact_volatile_from(GuestAddress(0x3ffe), &mut &text[..10], 10).unwrap();
        assert_eq!(second.read_value::<u8>(7).unwrap(), text[9]);
        let mut short = [0; 3];
        assert_eq!(bytes.write_volatile_to(GuestAddress(0x3ffe), &mut &mut short[..], 10).unwrap(), 3);
        assert_eq!(short, text[..3]);
    }
}
