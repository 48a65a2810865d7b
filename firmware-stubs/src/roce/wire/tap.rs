//! A tap: everything that passes, in a pcap file.

use std::borrow::Cow;
use std::io::Write;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pcap_file::pcap::{PcapHeader, PcapWriter, RawPcapPacket};
use pcap_file::{DataLink, PcapError, TsResolution};

use super::super::time::Time;
use super::{MAX_FRAME, Wire, WireError};

/// Writes every frame of a wire, both ways, to a pcap file. When that can no longer be written
/// the tap ends with a warning, and the wire goes on.
#[derive(Debug)]
pub struct Tap<W, F: Write> {
    wire: W,
    file: Option<PcapWriter<F>>,
    frames: u64,
}

impl<W: Wire, F: Write> Tap<W, F> {
    /// Puts a tap on `wire` that writes to `file`. Times in the file are those that are passed
    /// in.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn new(wire: W, file: F) -> Result<Self, WireError> {
        let header = PcapHeader {
            snaplen: u32::try_from(MAX_FRAME).unwrap_or(u32::MAX),
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            ..PcapHeader::default()
        };
        let file = PcapWriter::with_header(file, header).map_err(|error| WireError::System {
            operation: "write",
            name: "the capture of the tap".to_owned(),
            source: as_io(error),
        })?;
        Ok(Self { wire, file: Some(file), frames: 0 })
    }

    /// How many frames the file has.
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// The wire underneath.
    pub const fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    fn record(&mut self, now: Time, frame: &[u8]) {
        let Some(file) = &mut self.file else { return };
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        let since = Duration::from_nanos(now.nanos());
        let packet = RawPcapPacket {
            ts_sec: u32::try_from(since.as_secs()).unwrap_or(u32::MAX),
            ts_frac: since.subsec_nanos(),
            incl_len: length,
            orig_len: length,
            data: Cow::Borrowed(frame),
        };
        match file.write_raw_packet(&packet) {
            Ok(_) => self.frames += 1,
            Err(error) => {
                log::warn!("the tap ends after {} frames: {}", self.frames, as_io(error));
                self.file = None;
            }
        }
    }
}

impl<W: Wire, F: Write + Send> Wire for Tap<W, F> {
    fn send(&mut self, now: Time, frame: &[u8]) -> Result<(), WireError> {
        self.record(now, frame);
        self.wire.send(now, frame)
    }

    fn receive(&mut self, now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        let received = self.wire.receive(now, buffer)?;
        if let Some(length) = received {
            self.record(now, buffer.get(..length).unwrap_or_default());
        }
        Ok(received)
    }

    fn is_ready(&self) -> bool {
        self.wire.is_ready()
    }

    fn deadline(&self) -> Option<Time> {
        self.wire.deadline()
    }

    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError> {
        self.wire.wait(wake, timeout)
    }

    fn lost(&self) -> u64 {
        self.wire.lost()
    }
}

fn as_io(error: PcapError) -> std::io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => std::io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pair;
    use super::*;
    use pcap_file::pcap::PcapReader;

    #[test]
    fn the_file_has_both_directions_in_order_with_their_times() {
        let (wire, mut other) = pair(10_000).unwrap();
        let mut file = Vec::new();
        let mut tap = Tap::new(wire, &mut file).unwrap();
        let mut buffer = [0; 100];
        tap.send(Time::from_nanos(1_000_000_007), &[1; 60]).unwrap();
        other.send(Time::ZERO, &[2; 42]).unwrap();
        assert_eq!(tap.receive(Time::from_nanos(2_000_000_000), &mut buffer).unwrap(), Some(42));
        assert_eq!(tap.receive(Time::from_nanos(3), &mut buffer).unwrap(), None);
        assert_eq!(tap.frames(), 2);
        drop(tap);
        assert_eq!(other.receive(Time::ZERO, &mut buffer).unwrap(), Some(60));
        let mut reader = PcapReader::new(&file[..]).unwrap();
        assert_eq!(reader.header().datalink, DataLink::ETHERNET);
        let first = reader.next_packet().unwrap().unwrap();
        assert_eq!((first.timestamp, &*first.data), (Duration::from_nanos(1_000_000_007), &[1; 60][..]));
        let second = reader.next_packet().unwrap().unwrap();
        assert_eq!((second.timestamp, &*second.data), (Duration::from_secs(2), &[2; 42][..]));
        assert!(reader.next_packet().is_none());
    }

    /// Takes the header of the file and nothing more.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            match self.0.checked_sub(bytes.len()) {
                Some(left) => self.0 = left,
                None => return Err(std::io::ErrorKind::StorageFull.into()),
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_ends_the_tap_and_not_the_wire() {
        let (wire, mut other) = pair(10_000).unwrap();
        let mut tap = Tap::new(wire, Full(24)).unwrap();
        for _ in 0..3 {
            tap.send(Time::ZERO, &[1; 60]).unwrap();
            assert_eq!(other.receive(Time::ZERO, &mut [0; 100]).unwrap(), Some(60));
        }
        assert_eq!(tap.frames(), 0);
        assert!(matches!(Tap::new(other, Full(0)), Err(WireError::System { operation: "write", .. })));
    }
}
