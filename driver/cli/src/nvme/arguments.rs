//! What a person can type after `vdk nvme`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use vdk_driver::hal::vfio::KernelInterface;

use crate::arguments::parse_size;
use crate::device;

/// The commands for NVMe controllers.
#[derive(Debug, Subcommand)]
pub(crate) enum NvmeCommand {
    /// List the controller and its namespaces.
    #[command(after_help = "Examples:\n  vdk nvme list 0000:01:00.0\n  vdk nvme list 0000:01:00.0 --json")]
    List(Target),
    /// Show what the controller and its namespaces say of themselves, with the SMART log.
    #[command(
        after_help = "Examples:\n  vdk nvme identify 0000:01:00.0\n  vdk nvme identify 0000:01:00.0 --json | jq .model"
    )]
    Identify(Target),
    /// Read blocks to a file or the standard output.
    #[command(after_help = "Examples:\n  vdk nvme read 0000:01:00.0 --blocks 256 -o first.img\n  \
                      vdk nvme read 0000:01:00.0 --lba 2048 --blocks 8 | xxd | head\n  \
                      vdk nvme read 0000:01:00.0 -o whole.img    # all of the namespace")]
    Read(ReadArguments),
    /// Write blocks from a file or the standard input. What was there is lost.
    #[command(after_help = "Examples:\n  vdk nvme write 0000:01:00.0 -i disk.img --yes\n  \
                      vdk nvme write 0000:01:00.0 --lba 2048 -i part.img --flush --verify --yes")]
    Write(WriteArguments),
    /// Make everything written before durable.
    #[command(after_help = "Examples:\n  vdk nvme flush 0000:01:00.0")]
    Flush(NamespaceTarget),
    /// Set blocks to zero, or tell the controller that they are not needed. What was there is lost.
    #[command(after_help = "Examples:\n  vdk nvme zero 0000:01:00.0 --lba 0 --blocks 256 --yes\n  \
                      vdk nvme zero 0000:01:00.0 --lba 0 --blocks 256 --discard --yes")]
    Zero(ZeroArguments),
    /// Format a namespace. Everything in it is lost.
    #[command(after_help = "Examples:\n  vdk nvme format 0000:01:00.0 --format 0 --yes")]
    Format(FormatArguments),
    /// Measure operations a second and how long they take.
    #[command(after_help = "Examples:\n  vdk nvme bench 0000:01:00.0\n  \
                      vdk nvme bench 0000:01:00.0 --depth 1 --seconds 4 --json\n  \
                      vdk nvme bench 0000:01:00.0 --pattern sequential --block-size 128KiB --wait interrupt\n  \
                      vdk nvme bench 0000:01:00.0 --operation mixed --queues 4 --yes    # destroys what is there")]
    Bench(BenchArguments),
}

/// Which controller, and how it is reached.
#[derive(Clone, Debug, Args)]
pub(crate) struct Target {
    /// The controller: a PCI address, stub:NAME or vfio-user:PATH.
    #[arg(value_name = "DEV", value_parser = device::parse)]
    pub(crate) device: String,

    /// The interface of the kernel: auto, iommufd or type1.
    #[arg(long, value_name = "INTERFACE", default_value = "auto")]
    pub(crate) interface: KernelInterface,

    /// Use shadow doorbells in memory where the controller has them.
    #[arg(long)]
    pub(crate) shadow_doorbells: bool,
}

/// Which namespace of which controller.
#[derive(Clone, Debug, Args)]
pub(crate) struct NamespaceTarget {
    #[command(flatten)]
    pub(crate) target: Target,

    /// The namespace; the first active one when absent.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) nsid: Option<u32>,
}

/// What `vdk nvme read` is given.
#[derive(Debug, Args)]
pub(crate) struct ReadArguments {
    #[command(flatten)]
    pub(crate) target: NamespaceTarget,

    /// The first block.
    #[arg(long, value_name = "LBA", allow_negative_numbers = true, default_value_t = 0)]
    pub(crate) lba: u64,

    /// How many blocks; all from the first on when absent.
    #[arg(long, value_name = "N")]
    pub(crate) blocks: Option<u64>,

    /// The file to write; the standard output when absent or `-`.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// What `vdk nvme write` is given.
#[derive(Debug, Args)]
pub(crate) struct WriteArguments {
    #[command(flatten)]
    pub(crate) target: NamespaceTarget,

    /// The first block.
    #[arg(long, value_name = "LBA", allow_negative_numbers = true, default_value_t = 0)]
    pub(crate) lba: u64,

    /// The file to read; the standard input when absent or `-`. The last block is filled up with zeros.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,

    /// Make it durable at the end.
    #[arg(long)]
    pub(crate) flush: bool,

    /// Read everything back at the end and compare the checksums.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Yes, what the blocks hold may be lost.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// What `vdk nvme zero` is given.
#[derive(Debug, Args)]
pub(crate) struct ZeroArguments {
    #[command(flatten)]
    pub(crate) target: NamespaceTarget,

    /// The first block.
    #[arg(long, value_name = "LBA")]
    pub(crate) lba: u64,

    /// How many blocks.
    #[arg(long, value_name = "N")]
    pub(crate) blocks: u64,

    /// Only tell the controller that the blocks are not needed; what they read as then is its affair.
    #[arg(long)]
    pub(crate) discard: bool,

    /// Yes, what the blocks hold may be lost.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// What `vdk nvme format` is given.
#[derive(Debug, Args)]
pub(crate) struct FormatArguments {
    #[command(flatten)]
    pub(crate) target: NamespaceTarget,

    /// The number of the LBA format; `vdk nvme identify` lists them.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u8).range(0..16))]
    pub(crate) format: u8,

    /// Yes, everything in the namespace may be lost.
    #[arg(long)]
    pub(crate) yes: bool,
}

/// In which order blocks are visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pattern {
    /// Anywhere.
    Random,
    /// One after the other, each queue in its own part.
    Sequential,
}

/// What is done with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Operation {
    /// Only reads.
    Read,
    /// Only writes.
    Write,
    /// As many reads as `--reads` says, the rest writes.
    Mixed,
}

/// How completions are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Wait {
    /// By looking all the time.
    Poll,
    /// By sleeping until the interrupt.
    Interrupt,
    /// By looking for a while, then sleeping.
    Adaptive,
}

/// What `vdk nvme bench` is given.
#[derive(Clone, Debug, Args)]
pub(crate) struct BenchArguments {
    #[command(flatten)]
    pub(crate) target: NamespaceTarget,

    /// In which order blocks are visited.
    #[arg(long, value_enum, default_value = "random")]
    pub(crate) pattern: Pattern,

    /// What is done with them.
    #[arg(long, value_enum, default_value = "read")]
    pub(crate) operation: Operation,

    /// How many of a hundred operations read, with `--operation mixed`.
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, default_value_t = 70, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) reads: u32,

    /// How much one operation moves; such as 4096, 4KiB or 1MiB.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, default_value = "4KiB", value_parser = parse_size)]
    pub(crate) block_size: u64,

    /// How many operations are in flight in each queue.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) depth: u32,

    /// How many queues, each with a thread.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) queues: u16,

    /// For how long, in seconds.
    #[arg(long, value_name = "S", allow_negative_numbers = true, default_value_t = 5.0, value_parser = parse_seconds)]
    pub(crate) seconds: f64,

    /// How completions are waited for.
    #[arg(long, value_enum, default_value = "poll")]
    pub(crate) wait: Wait,

    /// The seed of the random order.
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, default_value_t = 1)]
    pub(crate) seed: u64,

    /// Yes, what the namespace holds may be lost; needed for all but reads.
    #[arg(long)]
    pub(crate) yes: bool,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err(format!("{text:?} is not a number of seconds above 0 and up to 86400")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_positive_and_bounded() {
        assert_eq!(parse_seconds("0.5"), Ok(0.5));
        for bad in ["0", "-1", "inf", "NaN", "", "1e9"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
