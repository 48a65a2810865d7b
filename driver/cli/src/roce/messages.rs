//! What the tools of the other side tell about a queue pair over TCP.

use std::fmt::Write as _;

use anyhow::{Context, Result, bail, ensure};
use vdk_driver::descriptors::roce::{Gid, Psn, Qpn};

/// The address that `ibv_*_pingpong` exchange: 51 characters and a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PingpongAddress {
    pub(super) number: Qpn,
    pub(super) psn: Psn,
    pub(super) gid: Gid,
}

impl PingpongAddress {
    /// How long the message is.
    pub(super) const LENGTH: usize = 52;
    /// What the client says when it has the address of the server.
    pub(super) const DONE: &[u8] = b"done\0";

    /// The message.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut text = format!("0000:{:06x}:{:06x}:", self.number.value(), self.psn.value());
        for byte in self.gid.0 {
            let _ = write!(text, "{byte:02x}");
        }
        text.push('\0');
        text.into_bytes()
    }

    /// Reads the message.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let text = printable(bytes)?;
        let fields: Vec<&str> = text.split(':').collect();
        let [_lid, number, psn, gid] = fields[..] else {
            bail!("the peer sent {text:?}, which is no address of a pingpong; is it another tool?");
        };
        let number = hexadecimal(number)?;
        Ok(Self { number: queue_pair(number)?, psn: Psn::new(hexadecimal(psn)?), gid: parse_gid(gid)? })
    }
}

/// The key that perftest exchanges: 107 characters and a zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PerftestKey {
    /// How many READs and atomic operations the sender of the key can take.
    pub(super) depth: u8,
    pub(super) number: Qpn,
    pub(super) psn: Psn,
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) gid: Gid,
}

impl PerftestKey {
    /// How long the message is.
    pub(super) const LENGTH: usize = 108;

    /// The message.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut text = format!(
            "0000:{:04x}:{:06x}:{:06x}:{:08x}:{:016x}:",
            self.depth,
            self.number.value(),
            self.psn.value(),
            self.key,
            self.address
        );
        for byte in self.gid.0 {
            let _ = write!(text, "{byte:02x}:");
        }
        text.push_str("00000000:\0");
        text.into_bytes()
    }

    /// Reads the message.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let text = printable(bytes)?;
        let fields: Vec<&str> = text.trim_end_matches(':').split(':').collect();
        ensure!(
            fields.len() == 23,
            "the peer sent {text:?}, which is no key of perftest; does it use another GID index or tool?"
        );
        let mut gid = [0; 16];
        for (byte, field) in gid.iter_mut().zip(fields.iter().skip(6)) {
            *byte = u8::try_from(hexadecimal(field)?).context("a byte of the GID is too large")?;
        }
        let field = |place: usize| fields.get(place).copied().unwrap_or_default();
        let address = u64::from_str_radix(field(5), 16).context("the address of the peer is no number")?;
        let depth = hexadecimal(field(1))?.min(u32::from(vdk_firmware_stubs::roce::MOST_DEPTH));
        Ok(Self {
            depth: u8::try_from(depth).unwrap_or(1),
            number: queue_pair(hexadecimal(field(2))?)?,
            psn: Psn::new(hexadecimal(field(3))?),
            key: hexadecimal(field(4))?,
            address,
            gid: Gid(gid),
        })
    }
}

fn printable(bytes: &[u8]) -> Result<&str> {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.chars().all(|c| c.is_ascii_graphic()));
    text.with_context(|| format!("the peer sent {bytes:02x?}, which is no text; is it another tool?"))
}

fn hexadecimal(text: &str) -> Result<u32> {
    u32::from_str_radix(text, 16).with_context(|| format!("the peer sent {text:?} in place of a number"))
}

fn queue_pair(number: u32) -> Result<Qpn> {
    Qpn::new(number).with_context(|| format!("the peer has queue pair {number:#x}, which needs over 24 bits"))
}

fn parse_gid(text: &str) -> Result<Gid> {
    ensure!(text.len() == 32 && text.is_ascii(), "the peer sent {text:?} in place of a GID");
    let value = u128::from_str_radix(text, 16).with_context(|| format!("{text:?} is no GID"))?;
    Ok(Gid(value.to_be_bytes()))
}

/// The version of perftest that is spoken.
pub(super) const VERSION: &[u8; 16] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";

/// Whether the perftest of this version speaks what is spoken here.
pub(super) fn check_version(bytes: &[u8]) -> Result<()> {
    let text = printable(bytes).context("cannot read the version of the peer's perftest")?;
    let version: Option<(u32, u32)> =
        text.split_once('.').and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    match version {
        None => bail!("the peer says version {text:?}: is it perftest? use perftest 5.70 to 6.27"),
        Some(version) if version < (5, 70) => {
            bail!("the peer is perftest {text}, which is too old; use 5.70 to 6.27")
        }
        Some(version) if version >= (6, 28) => bail!(
            "the peer is perftest {text}, which negotiates parameters that vdk does not know; \
             use perftest 5.70 to 6.27, such as that of Debian 12"
        ),
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_pingpong_is_what_linux_sends() {
        let text = b"0000:000011:35f99b:00000000000000000000ffff0a000002\0";
        let address = PingpongAddress::parse(text).unwrap();
        assert_eq!((address.number.value(), address.psn.value()), (0x11, 0x35_f99b));
        assert_eq!(address.gid.address().to_string(), "10.0.0.2");
        assert_eq!(address.bytes(), text);
        assert_eq!(text.len(), PingpongAddress::LENGTH);
    }

    #[test]
    fn the_key_of_perftest_is_what_linux_sends() {
        let gid = "00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:02";
        let text = format!("0000:0001:000015:513372:00000977:000055e180d86000:{gid}:00000000:\0");
        assert_eq!(text.len(), PerftestKey::LENGTH);
        let key = PerftestKey::parse(text.as_bytes()).unwrap();
        assert_eq!((key.depth, key.number.value(), key.psn.value()), (1, 0x15, 0x51_3372));
        assert_eq!((key.key, key.address), (0x977, 0x55e1_80d8_6000));
        assert_eq!(key.bytes(), text.into_bytes());
    }

    #[test]
    fn what_is_no_address_is_refused_with_what_it_was() {
        for bad in [&b"GET / HTTP/1.1\r\n"[..], b"\xff\xfe\0", b"", b"0000:1000000:0:0", b"0:1:2:zz", b":::"]
        {
            assert!(PingpongAddress::parse(bad).is_err());
            assert!(PerftestKey::parse(bad).is_err());
        }
        let error = PingpongAddress::parse(b"hello").unwrap_err().to_string();
        assert!(error.contains("hello"), "{error}");
    }

    #[test]
    fn only_versions_that_are_understood_are_spoken_to() {
        assert!(check_version(VERSION).is_ok() && check_version(b"5.70\0").is_ok());
        for (bad, expected) in [
            (&b"6.29\0"[..], "negotiates"),
            (b"4.2\0", "too old"),
            (b"5.69\0", "too old"),
            (b"abc\0", "is it perftest"),
            (b"", "perftest"),
        ] {
            let error = format!("{:#}", check_version(bad).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
