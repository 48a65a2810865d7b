//! Accesses to BARs and configuration space.
//!
//! An access of 1, 2, 4 or 8 bytes that is aligned is one access of the device. Any other is
//! cut into aligned pieces of at most 4 bytes, from the front.

use rustix::io::Errno;
use vdk_hal::bar::{Bar, BarError};
use vdk_hal::config::{ConfigError, ConfigSpace};
use vdk_hal::function::PciFunction;
use vdk_hal::mmio::Width;
use vdk_hal::vfio_user::capabilities::MAX_TRANSFER;
use vdk_hal::vfio_user::message::{RegionAccess, ShortWrite, WriteCount, region};
use vdk_hal::vfio_user::transport::Message;
use zerocopy::FromBytes;

use super::description::Description;
use super::reply::{Answer, Refusal, Reply};
use super::session::parse;

/// Reads a region.
pub(super) fn read(description: &Description, function: &dyn PciFunction, message: &Message) -> Answer {
    let (access, _) = parse::<RegionAccess>(message)?;
    let length = check(description, &access)?;
    let mut bytes = vec![0; length];
    for piece in Pieces::new(access.offset, length) {
        let place = &mut bytes[piece.start..piece.start + piece.width.bytes()];
        let value = match description.bar(access.region) {
            Some(bar) => read_bar(bar, piece.offset, piece.width)?,
            None => read_config(function.config(), piece.offset, piece.width)?,
        };
        place.copy_from_slice(&value.to_le_bytes()[..piece.width.bytes()]);
    }
    Ok(Reply::of(&access).followed_by(&bytes))
}

/// Writes a region.
pub(super) fn write(description: &Description, function: &dyn PciFunction, message: &Message) -> Answer {
    let (access, bytes) = parse::<RegionAccess>(message)?;
    write_bytes(description, function, &access, bytes)?;
    Ok(Reply::of(&access))
}

/// Does several writes, in order, until one is refused.
pub(super) fn write_many(description: &Description, function: &dyn PciFunction, message: &Message) -> Answer {
    let (WriteCount { count }, rest) = parse::<WriteCount>(message)?;
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    // The size is compared before anything is done.
    let length = count.checked_mul(size_of::<ShortWrite>()).filter(|length| *length <= rest.len());
    let Some(writes) = length.and_then(|length| rest.get(..length)) else {
        return Err(Refusal::invalid(format!("there are not {count} writes in the message")));
    };
    let mut done = 0;
    for bytes in writes.chunks_exact(size_of::<ShortWrite>()) {
        let Ok(ShortWrite { access, bytes }) = ShortWrite::read_from_bytes(bytes) else { break };
        if access.count > 8 {
            return Err(Refusal::invalid(format!("a short write has {} bytes", access.count)));
        }
        if let Err(refusal) = write_bytes(description, function, &access, &bytes) {
            log::debug!("{}: write {done} of {count}: {}", function.name(), refusal.reason);
            break;
        }
        done += 1;
    }
    Ok(Reply::of(&WriteCount { count: done }))
}

fn write_bytes(
    description: &Description,
    function: &dyn PciFunction,
    access: &RegionAccess,
    bytes: &[u8],
) -> Result<(), Refusal> {
    let length = check(description, access)?;
    let Some(bytes) = bytes.get(..length) else {
        return Err(Refusal::invalid(format!("{:#x} of {length:#x} bytes came along", bytes.len())));
    };
    for piece in Pieces::new(access.offset, length) {
        let mut value = [0; 8];
        value[..piece.width.bytes()].copy_from_slice(&bytes[piece.start..piece.start + piece.width.bytes()]);
        let value = u64::from_le_bytes(value);
        match description.bar(access.region) {
            Some(bar) => write_bar(bar, piece.offset, piece.width, value)?,
            None => write_config(function.config(), piece.offset, piece.width, value)?,
        }
    }
    Ok(())
}

/// Checks that an access is inside its region; returns its length.
fn check(description: &Description, access: &RegionAccess) -> Result<usize, Refusal> {
    let RegionAccess { offset, region, count } = *access;
    if count > MAX_TRANSFER {
        return Err(Refusal::invalid(format!("{count:#x} bytes are more than {MAX_TRANSFER:#x}")));
    }
    let size = match description.bar(region) {
        Some(bar) => bar.info().size.as_u64(),
        None if region == region::CONFIG => u64::from(description.config_size()),
        None => return Err(Refusal::invalid(format!("there is no region {region}"))),
    };
    let inside = offset.checked_add(u64::from(count)).is_some_and(|end| end <= size);
    let length = usize::try_from(count).ok().filter(|_| inside);
    length.ok_or_else(|| {
        let reason =
            format!("{count:#x} bytes at {offset:#x} are outside region {region} of {size:#x} bytes");
        Refusal::invalid(reason)
    })
}

fn read_bar(bar: &Bar, offset: u64, width: Width) -> Result<u64, Refusal> {
    let read = match width {
        Width::U8 => bar.read::<u8>(offset).map(u64::from),
        Width::U16 => bar.read::<u16>(offset).map(u64::from),
        Width::U32 => bar.read::<u32>(offset).map(u64::from),
        Width::U64 => bar.read::<u64>(offset),
    };
    read.map_err(|error| of_bar(&error))
}

fn write_bar(bar: &Bar, offset: u64, width: Width, value: u64) -> Result<(), Refusal> {
    let [a, b, c, d, ..] = value.to_le_bytes();
    let written = match width {
        Width::U8 => bar.write(offset, a),
        Width::U16 => bar.write(offset, u16::from_le_bytes([a, b])),
        Width::U32 => bar.write(offset, u32::from_le_bytes([a, b, c, d])),
        Width::U64 => bar.write(offset, value),
    };
    written.map_err(|error| of_bar(&error))
}

fn read_config(config: &dyn ConfigSpace, offset: u64, width: Width) -> Result<u64, Refusal> {
    let read = config_offset(offset)
        .and_then(|offset| config.read_raw(offset, width).map_err(|error| of_config(&error)));
    read.map(u64::from)
}

fn write_config(config: &dyn ConfigSpace, offset: u64, width: Width, value: u64) -> Result<(), Refusal> {
    // CAST: a piece of configuration space has 4 bytes at most.
    let value = u32::try_from(value).unwrap_or(u32::MAX);
    config_offset(offset)
        .and_then(|offset| config.write_raw(offset, width, value).map_err(|error| of_config(&error)))
}

fn config_offset(offset: u64) -> Result<u16, Refusal> {
    u16::try_from(offset).map_err(|_| Refusal::invalid("outside configuration space"))
}

fn of_bar(error: &BarError) -> Refusal {
    let number = match error {
        BarError::NotOpen { .. } | BarError::DeviceGone { .. } => Errno::NODEV,
        _ => Errno::IO,
    };
    Refusal::new(number, error.to_string())
}

fn of_config(error: &ConfigError) -> Refusal {
    let number = match error {
        ConfigError::NotOpen | ConfigError::DeviceGone => Errno::NODEV,
        _ => Errno::IO,
    };
    Refusal::new(number, error.to_string())
}

/// One access of the device that a message is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    /// Where in the region.
    offset: u64,
    /// Where in the message.
    start: usize,
    width: Width,
}

/// The accesses of a message, whose end in the region was checked.
struct Pieces {
    offset: u64,
    start: usize,
    length: usize,
    widest: usize,
}

impl Pieces {
    fn new(offset: u64, length: usize) -> Self {
        let whole = Width::from_bytes(length).is_some_and(|width| is_aligned(offset, width.bytes()));
        Self { offset, start: 0, length, widest: if whole { length } else { 4 } }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let left = self.length - self.start;
        let fits = |width: &Width| {
            let bytes = width.bytes();
            bytes <= left && bytes <= self.widest && is_aligned(self.offset, bytes)
        };
        let width = [Width::U64, Width::U32, Width::U16, Width::U8].into_iter().find(fits)?;
        let piece = Piece { offset: self.offset, start: self.start, width };
        // CAST: a width is at most 8; the end was checked.
        self.offset = self.offset.saturating_add(width.bytes() as u64);
        self.start += width.bytes();
        Some(piece)
    }
}

fn is_aligned(offset: u64, bytes: usize) -> bool {
    // CAST: a width is at most 8.
    offset.is_multiple_of(bytes as u64)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn widths(offset: u64, length: usize) -> Vec<usize> {
        Pieces::new(offset, length).map(|piece| piece.width.bytes()).collect()
    }

    #[test]
    fn an_aligned_access_of_a_usual_width_is_one_access() {
        for width in [1, 2, 4, 8] {
            assert_eq!(widths(0x40, width), [width]);
        }
        assert_eq!(widths(4, 8), [4, 4]);
        assert_eq!(widths(1, 4), [1, 2, 1]);
        assert_eq!(widths(3, 6), [1, 4, 1]);
        assert_eq!(widths(0, 16), [4, 4, 4, 4]);
        assert_eq!(widths(7, 0), [0usize; 0]);
    }

    proptest! {
        #[test]
        fn pieces_cover_the_access_once_and_are_aligned(offset in 0u64..5000, length in 0usize..300) {
            let mut next = (offset, 0);
            for piece in Pieces::new(offset, length) {
                prop_assert_eq!((piece.offset, piece.start), next);
                prop_assert!(is_aligned(piece.offset, piece.width.bytes()));
                next = (piece.offset + piece.width.bytes() as u64, piece.start + piece.width.bytes());
            }
            prop_assert_eq!(next, (offset + length as u64, length));
        }
    }
}
