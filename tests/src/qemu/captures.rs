//! What was captured on the wire of a guest, and what `vdk wire` and tshark say of it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::oracle::Struck;
use crate::sources;

/// The captures of a run. Each is read once, and what is sound in it kept for
/// [`judge`](Self::judge).
pub(super) struct Captures<'a> {
    binaries: &'a Path,
    folder: &'a Path,
}

/// The addresses of the guest.
const GUEST: [&str; 2] = ["10.0.0.1", "fd00::1"];
/// The file with all that was kept.
const KEPT: &str = "all.pcap";
/// How many frames of one capture are kept; a longer one goes on as it began.
const MOST_KEPT: u64 = 4096;
/// How many bytes stand before the first frame of a capture, and before each frame.
const PCAP_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;

/// What `vdk wire` says of one capture.
struct Report(Value);

impl Report {
    fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_default()
    }

    /// How many sound frames came from the guest.
    fn of_guest(&self) -> u64 {
        let pairs = self.0["by_queue_pair"].as_array().map_or(&[][..], Vec::as_slice);
        let of_guest =
            pairs.iter().filter(|pair| GUEST.contains(&pair["source"].as_str().unwrap_or_default()));
        of_guest.filter_map(|pair| pair["frames"].as_u64()).sum()
    }

    /// The frames with a wrong ICRC: their places in the file, from 1, and what is in them.
    fn damaged(&self) -> Vec<(u64, Struck)> {
        let records = self.0["records"].as_array().map_or(&[][..], Vec::as_slice);
        let damaged = records.iter().filter(|record| record["icrc"] == Value::Bool(false));
        let number = |value: &Value| u32::try_from(value.as_u64().unwrap_or_default()).unwrap_or_default();
        damaged
            .map(|record| {
                let struck = Struck {
                    opcode: record["opcode"].as_str().unwrap_or_default().to_owned(),
                    queue_pair: number(&record["queue_pair"]),
                    psn: number(&record["psn"]),
                };
                (record["number"].as_u64().unwrap_or_default(), struck)
            })
            .collect()
    }
}

impl<'a> Captures<'a> {
    pub(super) const fn new(binaries: &'a Path, folder: &'a Path) -> Self {
        Self { binaries, folder }
    }

    /// Reads a capture in which so many frames were damaged on purpose: every other one must
    /// have a right ICRC. Gives how many frames there are, how many have a wrong ICRC, and how
    /// many sound ones came from the guest, to which `10.0.0.1` and `fd00::1` belong.
    ///
    /// # Errors
    ///
    /// It cannot be read, or has another number of damaged frames, or a malformed one.
    pub(super) fn keep(&self, name: &str, damaged: u64) -> Result<String> {
        let report = self.read(name)?;
        let bad = report.number("bad_icrc");
        ensure!(bad == damaged, "{bad} frames have a wrong ICRC, and {damaged} were damaged on purpose");
        self.keep_sound(name, &report, MOST_KEPT)?;
        Ok(format!("{} {bad} {}", report.number("frames"), report.of_guest()))
    }

    /// Reads a capture in which these frames were damaged on purpose, and those alone have a wrong
    /// ICRC. Gives how many frames there are, and how many were damaged.
    ///
    /// # Errors
    ///
    /// It cannot be read, others are damaged, or one is malformed.
    pub(super) fn keep_but(&self, name: &str, struck: &[Struck]) -> Result<String> {
        let report = self.read(name)?;
        let mut bad: Vec<Struck> = report.damaged().into_iter().map(|(_, struck)| struck).collect();
        let mut expected = struck.to_vec();
        bad.sort_unstable();
        expected.sort_unstable();
        let wrong = bad.iter().zip(&expected).find(|(bad, expected)| bad != expected);
        ensure!(
            bad == expected,
            "{} frames have a wrong ICRC, and {} were damaged on purpose; the first that differ: {wrong:?}",
            bad.len(),
            expected.len()
        );
        self.keep_sound(name, &report, u64::MAX)?;
        Ok(format!("{} {}", report.number("frames"), bad.len()))
    }

    /// Lets `vdk wire` verify every ICRC of all that was kept, and tshark look for what is
    /// malformed.
    ///
    /// # Errors
    ///
    /// What they object to.
    pub(super) fn judge(&self) -> Result<String> {
        let all = self.folder.join(KEPT);
        let output = self.vdk_wire(&all, "--summary")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let last = text.lines().next_back().unwrap_or_default();
        ensure!(output.status.success(), "vdk wire: {} {last} {errors}", output.status);
        let output = Command::new(sources::root().join("tests/roce/malformed")).arg(&all).output()?;
        let said = String::from_utf8_lossy(&output.stdout).replace('\n', "; ");
        ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        Ok(text.lines().rfind(|line| line.contains(" frames")).unwrap_or(last).to_owned())
    }

    fn read(&self, name: &str) -> Result<Report> {
        let output = self.vdk_wire(&self.folder.join(name), "--json")?;
        let report: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
        let report = Report(report);
        let malformed = report.number("malformed") + report.number("cut_short");
        ensure!(malformed == 0, "{malformed} frames are malformed to vdk wire");
        ensure!(report.number("frames") > 0, "no RoCE frame was captured");
        Ok(report)
    }

    /// Moves what is sound in a capture to the others, of its first `most` frames.
    fn keep_sound(&self, name: &str, report: &Report, most: u64) -> Result<()> {
        let capture: PathBuf = self.folder.join(name);
        let damaged: Vec<u64> = report.damaged().into_iter().map(|(number, _)| number).collect();
        let sound = without(&fs::read(&capture)?, &damaged, most).context("the capture breaks off")?;
        let all = self.folder.join(KEPT);
        // The header of the file is there once.
        let from = if all.exists() { PCAP_HEADER } else { 0 };
        let mut file = File::options().create(true).append(true).open(&all)?;
        file.write_all(sound.get(from..).unwrap_or_default())?;
        Ok(fs::remove_file(&capture)?)
    }

    fn vdk_wire(&self, capture: &Path, option: &str) -> Result<Output> {
        Ok(Command::new(self.binaries.join("vdk")).arg("wire").arg(capture).arg(option).output()?)
    }
}

/// The first `most` frames of a pcap file, without some whose places are counted from 1. `None`
/// when the file breaks off.
fn without(bytes: &[u8], places: &[u64], most: u64) -> Option<Vec<u8>> {
    let (header, mut rest) = bytes.split_at_checked(PCAP_HEADER)?;
    let mut kept = header.to_vec();
    // The first byte of the magic number is the same for both resolutions of time.
    let is_big = header.first() == Some(&0xa1);
    for place in 1..=most {
        if rest.is_empty() {
            break;
        }
        // Seconds, fraction, bytes kept, bytes of the frame.
        let length = rest.get(8..12)?.first_chunk()?;
        let length = if is_big { u32::from_be_bytes(*length) } else { u32::from_le_bytes(*length) };
        let (frame, behind) = rest.split_at_checked(FRAME_HEADER + usize::try_from(length).ok()?)?;
        if places.binary_search(&place).is_err() {
            kept.extend_from_slice(frame);
        }
        rest = behind;
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use vdk_firmware_stubs::roce::time::Time;
    use vdk_firmware_stubs::roce::wire::{Tap, Wire, pair};

    use super::*;

    fn capture(lengths: impl IntoIterator<Item = usize>) -> Vec<u8> {
        let (wire, _other) = pair(0).unwrap();
        let mut file = Vec::new();
        let mut tap = Tap::new(wire, &mut file).unwrap();
        for length in lengths {
            tap.send(Time::ZERO, &vec![7; length]).unwrap();
        }
        drop(tap);
        file
    }

    #[test]
    fn frames_are_left_out_by_their_place() {
        let all = capture([20, 30, 40, 50]);
        assert_eq!(without(&all, &[], 9).unwrap(), all);
        assert_eq!(without(&all, &[1, 3], 9).unwrap(), capture([30, 50]));
        assert_eq!(without(&all, &[1, 2, 3, 4], 9).unwrap(), capture([]));
        for length in [0, PCAP_HEADER - 1, PCAP_HEADER + 3, all.len() - 1] {
            assert_eq!(without(&all[..length], &[], 9), None, "{length}");
        }
    }

    #[test]
    fn of_a_long_capture_the_first_frames_are_kept() {
        let all = capture([20, 30, 40, 50]);
        assert_eq!(without(&all, &[2], 3).unwrap(), capture([20, 40]));
        assert_eq!(without(&all[..all.len() - 1], &[], 3).unwrap(), capture([20, 30, 40]));
    }

    #[test]
    fn damaged_frames_are_told_by_what_is_in_them() {
        let report = Report(serde_json::json!({
            "frames": 3, "bad_icrc": 1,
            "by_queue_pair": [
                { "source": "10.0.0.1", "frames": 7 },
                { "source": "10.0.0.9", "frames": 8 },
                { "source": "fd00::1", "frames": 2 },
            ],
            "records": [
                { "number": 1, "icrc": true, "opcode": "RC SEND Only", "queue_pair": 17, "psn": 1 },
                { "number": 4, "icrc": false, "opcode": "RC ACK", "queue_pair": 18, "psn": 9 },
            ],
        }));
        assert_eq!(report.of_guest(), 9);
        let struck = Struck { opcode: "RC ACK".to_owned(), queue_pair: 18, psn: 9 };
        assert_eq!(report.damaged(), [(4, struck)]);
    }
}
