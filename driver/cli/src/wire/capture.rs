//! Frames out of a capture file: pcap and pcapng.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, Endianness, PcapError, TsResolution};
use thiserror::Error;

/// A frame as it was captured.
#[derive(Debug)]
pub(crate) struct Captured<'a> {
    /// Its time since 1970.
    pub(crate) time: Duration,
    /// How long it was on the wire.
    pub(crate) original_length: u32,
    /// What was kept of it.
    pub(crate) bytes: &'a [u8],
}

/// Why a file gives no frames, or no more of them.
#[derive(Debug, Error)]
pub(crate) enum Unreadable {
    #[error("cannot read {path}")]
    System {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is empty: the capture wrote nothing. Was it started on the right interface?")]
    Empty { path: PathBuf },
    #[error(
        "{path} is no capture: it begins with {magic}, neither pcap nor pcapng. \
         Write one with `tcpdump -w FILE` or `dumpcap -w FILE`"
    )]
    NoCapture { path: PathBuf, magic: String },
    #[error("{path} holds no frame. Was the capture started on the right interface, and was there traffic?")]
    NoFrames { path: PathBuf },
    #[error(
        "{path} holds frames of link type {link:?}, not Ethernet: capture on the network interface itself, \
         not on `any`"
    )]
    LinkType { path: PathBuf, link: DataLink },
    #[error("{path} ends in the middle of frame {frame}: it was cut short. Copy or capture it again")]
    CutShort { path: PathBuf, frame: u64 },
    #[error("{path} is damaged at frame {frame}: {reason}. Copy or capture it again")]
    Damaged { path: PathBuf, frame: u64, reason: String },
}

/// Gives each frame of the file to `frame`, in the order of the file.
///
/// # Errors
///
/// The file cannot be read, or not to its end; or `frame` failed, which ends it.
pub(crate) fn each_frame(
    path: &Path,
    mut frame: impl FnMut(&Captured<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut frames = 0;
    let system = |source| Unreadable::System { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(system)?;
    if file.metadata().map_err(system)?.is_dir() {
        return Err(system(io::ErrorKind::IsADirectory.into()).into());
    }
    let mut magic = [0; 4];
    let length = read_up_to(&mut file, &mut magic).map_err(system)?;
    file.rewind().map_err(system)?;
    let mut count = |captured: &Captured<'_>| {
        frames += 1;
        frame(captured)
    };
    match (length, magic) {
        (0, _) => return Err(Unreadable::Empty { path: path.to_owned() }.into()),
        (
            4,
            [0xa1, 0xb2, 0xc3, 0xd4]
            | [0xa1, 0xb2, 0x3c, 0x4d]
            | [0xd4, 0xc3, 0xb2, 0xa1]
            | [0x4d, 0x3c, 0xb2, 0xa1],
        ) => {
            each_of_pcap(path, file, &mut count)?;
        }
        (4, [0x0a, 0x0d, 0x0d, 0x0a]) => each_of_pcapng(path, file, &mut count)?,
        _ => {
            let magic = magic[..length].iter().map(|byte| format!("{byte:02x}")).collect();
            return Err(Unreadable::NoCapture { path: path.to_owned(), magic }.into());
        }
    }
    if frames == 0 {
        return Err(Unreadable::NoFrames { path: path.to_owned() }.into());
    }
    Ok(())
}

fn each_of_pcap(
    path: &Path,
    file: File,
    frame: &mut impl FnMut(&Captured<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut reader = PcapReader::new(file).map_err(|error| unreadable(path, 1, error))?;
    let header = reader.header();
    let nanoseconds = match header.ts_resolution {
        TsResolution::MicroSecond => 1000,
        TsResolution::NanoSecond => 1,
    };
    only_ethernet(path, header.datalink)?;
    // Packets are taken as they stand: what a capture says about its own limits is not
    // always true.
    for number in 1.. {
        let Some(packet) = reader.next_raw_packet() else { break };
        let packet = packet.map_err(|error| unreadable(path, number, error))?;
        let fraction = Duration::from_nanos(u64::from(packet.ts_frac) * nanoseconds);
        frame(&Captured {
            time: Duration::from_secs(u64::from(packet.ts_sec)) + fraction,
            original_length: packet.orig_len,
            bytes: &packet.data,
        })?;
    }
    Ok(())
}

fn each_of_pcapng(
    path: &Path,
    file: File,
    frame: &mut impl FnMut(&Captured<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut reader = PcapNgReader::new(file).map_err(|error| unreadable(path, 1, error))?;
    let mut interfaces: Vec<Interface> = Vec::new();
    // The reader takes the first section header itself.
    let mut little = reader.section().endianness == Endianness::Little;
    let mut number = 1;
    while let Some(block) = reader.next_block() {
        let missing = |id: u32| Unreadable::Damaged {
            path: path.to_owned(),
            frame: number,
            reason: format!("interface {id:#x} was never described"),
        };
        match block.map_err(|error| unreadable(path, number, error))? {
            Block::SectionHeader(section) => {
                interfaces.clear();
                little = section.endianness == Endianness::Little;
            }
            Block::InterfaceDescription(block) => interfaces.push(Interface::new(&block)),
            Block::EnhancedPacket(packet) => {
                let interface = usize::try_from(packet.interface_id).ok().and_then(|id| interfaces.get(id));
                let interface = interface.ok_or_else(|| missing(packet.interface_id))?;
                only_ethernet(path, interface.link)?;
                // The reader takes the units of the file for nanoseconds.
                let units = packet.timestamp.as_nanos();
                let time = interface.time(u64::try_from(units).unwrap_or(u64::MAX));
                let original_length = packet.original_len;
                frame(&Captured { time, original_length, bytes: &packet.data })?;
                number += 1;
            }
            Block::Packet(packet) => {
                let id = u32::from(packet.interface_id);
                let interface = interfaces.get(usize::from(packet.interface_id));
                let interface = interface.ok_or_else(|| missing(id))?;
                only_ethernet(path, interface.link)?;
                // Two numbers, the upper one first, which the reader takes for one.
                let units = if little { packet.timestamp.rotate_left(32) } else { packet.timestamp };
                let (time, original_length) = (interface.time(units), packet.original_len);
                frame(&Captured { time, original_length, bytes: &packet.data })?;
                number += 1;
            }
            Block::SimplePacket(packet) => {
                let interface = interfaces.first().ok_or_else(|| missing(0))?;
                only_ethernet(path, interface.link)?;
                // Its length is that of the wire or of the snapshot, whichever is smaller; the
                // rest is padding.
                let kept = packet.original_len.min(interface.snapshot);
                let kept = usize::try_from(kept).unwrap_or(usize::MAX).min(packet.data.len());
                let bytes = packet.data.get(..kept).unwrap_or_default();
                frame(&Captured { time: Duration::ZERO, original_length: packet.original_len, bytes })?;
                number += 1;
            }
            _ => {}
        }
    }
    Ok(())
}

/// What a block says about the frames of one interface.
#[derive(Debug)]
struct Interface {
    link: DataLink,
    snapshot: u32,
    /// `if_tsresol`: a power of ten, or of two when the top bit is set.
    resolution: u8,
}

impl Interface {
    fn new(block: &InterfaceDescriptionBlock<'_>) -> Self {
        let resolution = block.options.iter().find_map(|option| match option {
            InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
            _ => None,
        });
        let snapshot = if block.snaplen == 0 { u32::MAX } else { block.snaplen };
        Self { link: block.linktype, snapshot, resolution: resolution.unwrap_or(6) }
    }

    /// `units` as a time; the largest there is when it cannot be said.
    fn time(&self, units: u64) -> Duration {
        let exponent = u32::from(self.resolution & 0x7f);
        let base: u128 = if self.resolution & 0x80 == 0 { 10 } else { 2 };
        let Some(per_second) = base.checked_pow(exponent) else { return Duration::ZERO };
        let seconds = u128::from(units) / per_second;
        let rest = u128::from(units) % per_second * 1_000_000_000 / per_second;
        match (u64::try_from(seconds), u64::try_from(rest)) {
            (Ok(seconds), Ok(rest)) => Duration::from_secs(seconds) + Duration::from_nanos(rest),
            _ => Duration::MAX,
        }
    }
}

fn only_ethernet(path: &Path, link: DataLink) -> Result<(), Unreadable> {
    if link == DataLink::ETHERNET {
        Ok(())
    } else {
        Err(Unreadable::LinkType { path: path.to_owned(), link })
    }
}

fn unreadable(path: &Path, frame: u64, error: PcapError) -> Unreadable {
    let path = path.to_owned();
    match error {
        PcapError::IoError(source) if source.kind() == io::ErrorKind::UnexpectedEof => {
            Unreadable::CutShort { path, frame }
        }
        PcapError::IncompleteBuffer => Unreadable::CutShort { path, frame },
        PcapError::IoError(source) => Unreadable::System { path, source },
        other => Unreadable::Damaged { path, frame, reason: other.to_string() },
    }
}

/// Reads until the buffer is full or the file ends.
fn read_up_to(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut length = 0;
    while let Some(place) = buffer.get_mut(length..).filter(|place| !place.is_empty()) {
        match file.read(place) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_resolution_that_the_file_tells() {
        let time =
            |resolution, units| Interface { link: DataLink::ETHERNET, snapshot: 0, resolution }.time(units);
        assert_eq!(time(6, 1_500_000), Duration::from_millis(1500));
        assert_eq!(time(9, 1_500_000_000), Duration::from_millis(1500));
        assert_eq!(time(0x80 | 10, 1536), Duration::from_millis(1500));
        assert_eq!(time(0, u64::MAX), Duration::from_secs(u64::MAX));
        assert_eq!(time(20, u64::MAX), Duration::from_nanos(184_467_440));
        assert_eq!(time(0x7f, 1), Duration::ZERO);
        assert_eq!(time(0xff, u64::MAX), Duration::ZERO);
    }
}
