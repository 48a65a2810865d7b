//! What `vdk roce` is given.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use vdk_driver::descriptors::roce::{AckTimeout, EthernetAddress, Gid, PathMtu};
use vdk_firmware_stubs::fault::Probability;
use vdk_firmware_stubs::roce::wire::{WireAddress, WireFaults};
use vdk_firmware_stubs::roce::{QueueSizes, Service};

/// Queue pairs over a wire, against vdk, `ibv_*_pingpong` or perftest.
#[derive(Debug, Subcommand)]
pub(crate) enum RoceCommand {
    /// Send messages to and fro, as ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong do.
    #[command(after_help = "Without HOST it is the server.\n\nExamples:\n  \
        vdk roce pingpong --wire udp:127.0.0.1:7001,127.0.0.1:7002 --address 10.0.0.1\n  \
        vdk roce pingpong 127.0.0.1 --wire udp:127.0.0.1:7002,127.0.0.1:7001 --address 10.0.0.9 --check")]
    Pingpong(PingpongArguments),
    /// Measure throughput, as ib_write_bw, ib_read_bw, ib_send_bw and ib_atomic_bw do.
    #[command(after_help = "Without HOST it is the server.\n\nExamples:\n  \
        vdk roce bw --wire udp:127.0.0.1:7001,127.0.0.1:7002 --address 10.0.0.1\n  \
        vdk roce bw 127.0.0.1 --wire udp:127.0.0.1:7002,127.0.0.1:7001 --address 10.0.0.9 --operation read")]
    Bw(TestArguments),
    /// Measure latency, as ib_write_lat, ib_read_lat, ib_send_lat and ib_atomic_lat do.
    #[command(after_help = "Without HOST it is the server.\n\nExamples:\n  \
        vdk roce lat --wire udp:127.0.0.1:7001,127.0.0.1:7002 --address 10.0.0.1\n  \
        vdk roce lat 127.0.0.1 --wire udp:127.0.0.1:7002,127.0.0.1:7001 --address 10.0.0.9 --operation send")]
    Lat(TestArguments),
}

/// The wire, the own addresses, and the peer.
#[derive(Debug, Args)]
pub(crate) struct LinkArguments {
    /// The host of the server, where its TCP port is. Without it this end is the server.
    #[arg(value_name = "HOST")]
    pub(crate) host: Option<String>,

    /// What carries the Ethernet frames, as QEMU's network back-ends do: udp:LOCAL,REMOTE,
    /// tcp:ADDRESS, tcp-listen:ADDRESS, unix-dgram:LOCAL,REMOTE, unix:PATH or unix-listen:PATH.
    #[arg(long, value_name = "WIRE")]
    pub(crate) wire: WireAddress,

    /// The IP address of this end on the wire.
    #[arg(long, value_name = "IP", default_value = "10.0.0.9")]
    pub(crate) address: IpAddr,

    /// The Ethernet address of this end on the wire; made from the IP address when absent.
    #[arg(long, value_name = "MAC", value_parser = parse_mac)]
    pub(crate) mac: Option<EthernetAddress>,

    /// Which of the own GIDs is used: 0 is fe80::, 1 is the IP address.
    #[arg(long, value_name = "INDEX", allow_negative_numbers = true, default_value_t = 1)]
    pub(crate) gid_index: usize,

    /// The TCP port on which the two ends exchange addresses.
    #[arg(long, short, value_name = "PORT", allow_negative_numbers = true, default_value_t = 18515)]
    pub(crate) port: u16,

    /// How many seconds to wait for the other end, each time.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) patience: u64,

    /// How many bytes a packet carries.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, default_value = "1024", value_parser = parse_mtu)]
    pub(crate) mtu: PathMtu,

    /// After how long without an acknowledgement it is sent again, on a reliable connection:
    /// N stands for 4.096 us times two to the power of N, 0 for never. 14 is 67 ms.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value = "14", value_parser = parse_timeout)]
    pub(crate) timeout: AckTimeout,

    #[command(flatten)]
    pub(crate) layers: LayerArguments,
}

/// What is put on the wire. Faults strike RoCE frames alone, each way with the same
/// probabilities.
#[derive(Debug, Args)]
pub(crate) struct LayerArguments {
    /// Write every frame that the wire carries to this file, in pcap format; see `vdk wire`.
    #[arg(long, value_name = "FILE")]
    pub(crate) capture: Option<PathBuf>,

    /// How many of a hundred frames are lost on purpose, each way; such as 1 or 0.25.
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, default_value = "0", value_parser = parse_percent)]
    pub(crate) loss: Probability,

    /// How many of a hundred frames pass twice.
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, default_value = "0", value_parser = parse_percent)]
    pub(crate) duplicate: Probability,

    /// How many of a hundred frames are overtaken by the next one.
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, default_value = "0", value_parser = parse_percent)]
    pub(crate) reorder: Probability,

    /// How many of a hundred frames are late.
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, default_value = "0", value_parser = parse_percent)]
    pub(crate) delay: Probability,

    /// By how many milliseconds they are late.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub(crate) delay_by: u64,

    /// How many of a hundred frames have one bit changed.
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, default_value = "0", value_parser = parse_percent)]
    pub(crate) corrupt: Probability,

    /// Which frames are struck: the same seed and the same frames give the same faults.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What `vdk roce pingpong` is given.
#[derive(Debug, Args)]
pub(crate) struct PingpongArguments {
    #[command(flatten)]
    pub(crate) link: LinkArguments,

    /// The transport service.
    #[arg(long, value_enum, default_value_t = Transport::Rc)]
    pub(crate) service: Transport,

    /// The size of a message.
    #[arg(long, short, value_name = "BYTES", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=(1 << 28)))]
    pub(crate) size: Option<u32>,

    /// How many messages go each way.
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,

    /// How many receives are kept posted.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=i64::from(QueueSizes::MOST.receives)))]
    pub(crate) rx_depth: u32,

    /// Check what arrives byte by byte.
    #[arg(long, short)]
    pub(crate) check: bool,
}

/// What `vdk roce bw` and `vdk roce lat` are given.
#[derive(Debug, Args)]
pub(crate) struct TestArguments {
    #[command(flatten)]
    pub(crate) link: LinkArguments,

    /// What is measured.
    #[arg(long, value_enum, default_value_t = Measured::Write)]
    pub(crate) operation: Measured,

    /// The transport service.
    #[arg(long, value_enum, default_value_t = Transport::Rc)]
    pub(crate) service: Transport,

    /// The size of a message; 65536 for bw and 2 for lat when absent.
    #[arg(long, short, value_name = "BYTES", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=(1 << 28)))]
    pub(crate) size: Option<u32>,

    /// How many messages.
    #[arg(long, short = 'n', value_name = "N", allow_negative_numbers = true, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) iterations: u32,

    /// How many sends may be posted and not completed.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=16384))]
    pub(crate) tx_depth: u32,

    /// Write the memory of this end to this file after the test: first what it sent or read,
    /// in the second half what the other end wrote, sent or read.
    #[arg(long, value_name = "FILE")]
    pub(crate) memory: Option<PathBuf>,
}

/// A transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagrams.
    Ud,
}

impl Transport {
    pub(super) const fn service(self) -> Service {
        match self {
            Self::Rc => Service::ReliableConnected,
            Self::Uc => Service::UnreliableConnected,
            Self::Ud => Service::Datagram,
        }
    }
}

/// What bw and lat measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Measured {
    /// WRITE.
    Write,
    /// READ.
    Read,
    /// SEND.
    Send,
    /// Fetch and add.
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
}

impl Measured {
    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }
}

impl LinkArguments {
    /// The Ethernet address of this end.
    pub(super) fn ethernet(&self) -> EthernetAddress {
        let [.., a, b, c, d] = Gid::from_address(self.address).0;
        self.mac.unwrap_or(EthernetAddress([0x02, 0x76, 0x64, b ^ a, c, d]))
    }
}

impl LayerArguments {
    /// What goes wrong, each way.
    pub(super) fn faults(&self) -> WireFaults {
        WireFaults {
            drop: self.loss,
            duplicate: self.duplicate,
            reorder: self.reorder,
            delay: self.delay,
            delay_by: Duration::from_millis(self.delay_by),
            corrupt: self.corrupt,
            ..WireFaults::NONE
        }
    }
}

fn parse_percent(text: &str) -> Result<Probability, String> {
    let number = text.strip_suffix('%').unwrap_or(text);
    format!("{number}%")
        .parse()
        .map_err(|_| format!("{text:?} is no percentage from 0 to 100, with at most four decimals"))
}

fn parse_mtu(text: &str) -> Result<PathMtu, String> {
    let bytes = text.parse().ok().and_then(PathMtu::from_bytes);
    bytes.ok_or_else(|| format!("a path MTU is 256, 512, 1024, 2048 or 4096, not {text:?}"))
}

fn parse_timeout(text: &str) -> Result<AckTimeout, String> {
    let timeout = text.parse().ok().and_then(AckTimeout::new);
    timeout.ok_or_else(|| format!("a timeout is a number from 0 to 31, not {text:?}"))
}

fn parse_mac(text: &str) -> Result<EthernetAddress, String> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect();
    let bytes: Option<[u8; 6]> = bytes.ok().and_then(|bytes| bytes.try_into().ok());
    let bytes = bytes.ok_or_else(|| format!("{text:?} is no Ethernet address such as 52:54:00:12:34:56"))?;
    if bytes[0] & 1 != 0 {
        return Err(format!("{text} is the address of a group"));
    }
    Ok(EthernetAddress(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ethernet_address_is_read_and_groups_are_refused() {
        assert_eq!(parse_mac("52:54:00:12:34:56"), Ok(EthernetAddress([0x52, 0x54, 0, 0x12, 0x34, 0x56])));
        for bad in ["", "52:54", "52:54:00:12:34:5g", "01:00:5e:00:00:01", "52:54:00:12:34:56:78"] {
            assert!(parse_mac(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_mtu("4096"), Ok(PathMtu::Mtu4096));
        assert!(parse_mtu("1500").is_err());
        assert_eq!(parse_timeout("31"), Ok(AckTimeout::from_low_bits(31)));
        assert!(parse_timeout("32").is_err() && parse_timeout("1s").is_err());
    }

    #[test]
    fn a_percentage_has_at_most_four_decimals() {
        let parts = |text| parse_percent(text).map(Probability::parts_per_million);
        assert_eq!((parts("1"), parts("0.25%"), parts("100")), (Ok(10_000), Ok(2_500), Ok(1_000_000)));
        for bad in ["", "%", "1%%", "-1", "100.1", "0.12345", "1e1", "ten"] {
            assert!(parse_percent(bad).unwrap_err().contains("0 to 100"), "{bad}");
        }
    }

    #[test]
    fn a_depth_that_is_accepted_is_one_that_a_queue_can_have() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            pingpong: PingpongArguments,
        }
        let read = |depth: &str| {
            let line = ["vdk", "--wire", "tcp:127.0.0.1:1", "--rx-depth", depth];
            <Line as clap::Parser>::try_parse_from(line).map(|line| line.pingpong.rx_depth)
        };
        assert_eq!(read("32768").unwrap(), QueueSizes::MOST.receives);
        assert!(read("32769").is_err() && read("0").is_err());
    }
}
