//! What a person can type.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use vdk_driver::hal::address::Bdf;
use vdk_driver::hal::vfio::KernelInterface;
use vdk_firmware_stubs::StubKind;
use vdk_firmware_stubs::fault::FaultPlan;

use crate::device;
use crate::doctor::{self, Patient};
use crate::nvme::NvmeCommand;
use crate::roce::RoceCommand;

/// Drive PCIe devices from user space.
#[derive(Debug, Parser)]
#[command(
    name = "vdk",
    version,
    about = "VFIO Driver Kit: drive PCIe devices from user space",
    after_help = "DEV is stub:NAME (an emulated device; see `vdk list`), vfio-user:PATH (one that `vdk serve` offers)\n\
                  or a PCI address such as 0000:01:00.0.\n\
                  Without a command vdk runs the demo.\n\n\
                  Exit codes: 0 done; 1 it failed, such as a device that is absent, in use or broken; 2 the command line\n\
                  is wrong, a DEV, STUB or PLAN included; 130 Ctrl-C or SIGTERM ended it. More may be under a command.\n\n\
                  Examples:\n  vdk demo\n  vdk list --json\n  vdk doctor\n  vdk info stub:ioat\n  vdk copy in.img out.img --verify"
)]
pub(crate) struct Arguments {
    /// What to do; `demo` when absent.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,

    /// Print JSON for machines instead of text: one object, and an array for `list`.
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Say more: -v what is done, -vv details, -vvv everything. `RUST_LOG` overrides it.
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show in a few seconds what vdk does, on emulated devices.
    #[command(after_help = "Examples:\n  vdk demo\n  vdk demo --json")]
    Demo,
    /// List the PCI functions of this machine and the emulated devices.
    #[command(after_help = "Examples:\n  vdk list\n  vdk list --json | jq '.[].address'")]
    List,
    /// Show the configuration space, BARs, capabilities, interrupts and IOVA ranges of a device.
    #[command(after_help = "Examples:\n  vdk info stub:ioat\n  vdk info 0000:01:00.0 --json")]
    Info(InfoArguments),
    /// Say what is right and wrong with this machine or a device, and how to mend it.
    #[command(
        after_help = "Exit codes: 0 nothing is wrong (warnings do not count), 1 a problem was found, 2 wrong usage.\n\n\
                            Examples:\n  vdk doctor                  # IOMMU, modules, device nodes, limits of this machine\n  \
                            vdk doctor 0000:01:00.0     # driver, IOMMU group, uses, power, reset of a function\n  \
                            vdk doctor vfio-user:/run/ioat.sock\n  \
                            vdk doctor --json | jq '.findings[] | select(.level != \"ok\")'"
    )]
    Doctor(DoctorArguments),
    /// Give PCI functions to vfio-pci, so that vdk can open them, and remember their drivers.
    #[command(
        after_help = "The former driver is remembered in /run/vdk/drivers until the machine boots again.\n\
                            When a step fails, everything is brought back to what it was.\n\n\
                            Examples:\n  sudo vdk bind 0000:01:00.0\n  \
                            sudo vdk bind 0000:01:00.0 --group --user $USER   # its whole IOMMU group, for this user\n  \
                            vdk bind 0000:01:00.0 --dry-run                   # print the commands, change nothing"
    )]
    Bind(BindArguments),
    /// Give PCI functions back to the drivers that had them before `vdk bind`.
    #[command(after_help = "Where no driver is remembered, the kernel chooses one.\n\n\
                            Examples:\n  sudo vdk unbind 0000:01:00.0\n  vdk unbind 0000:01:00.0 --dry-run")]
    Unbind(UnbindArguments),
    /// Copy a file through a DMA engine.
    #[command(
        after_help = with_faults("Examples:\n  vdk copy in.img out.img\n  vdk copy in.img out.img --verify --json\n  \
                            vdk copy in.img out.img --chunk 1MiB --segments 256\n  \
                            vdk copy in.img out.img --fault halt@3:0x4    # an emulated device that misbehaves; see recoveries\n  \
                            vdk copy in.img - | sha256sum")
    )]
    Copy(CopyArguments),
    /// Offer an emulated device on a vfio-user socket, to QEMU or to `vfio-user:PATH`.
    #[command(after_help = with_faults("Examples:\n  vdk serve ioat --socket /tmp/ioat.sock\n  \
                            vdk copy in.img out.img --device vfio-user:/tmp/ioat.sock\n  \
                            qemu-system-x86_64 ... -object memory-backend-memfd,id=m,size=1G,share=on -machine memory-backend=m \\\n    \
                            -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/ioat.sock\"}}'"))]
    Serve(ServeArguments),
    /// Drive an NVMe controller: list, identify, read, write, measure.
    #[command(
        subcommand,
        after_help = "DEV is a PCI address, stub:nvme or vfio-user:PATH.\n\n\
                      Examples:\n  vdk nvme list stub:nvme\n  vdk nvme identify 0000:01:00.0\n  \
                      vdk nvme read vfio-user:/tmp/nvme.sock --blocks 8 -o first.img"
    )]
    Nvme(NvmeCommand),
    /// Show the RoCE frames of a capture and verify the invariant CRC of each.
    #[command(after_help = "Exit codes: 0 all verify, 1 one does not, 2 the file cannot be read.\n\n\
                      Examples:\n  vdk wire trace.pcap\n  vdk wire trace.pcapng --summary\n  \
                      vdk wire trace.pcap --json | jq '.records[] | select(.marks)'")]
    Wire(WireArguments),
    /// Run queue pairs over a wire, against vdk or the tools of Linux.
    #[command(subcommand)]
    Roce(RoceCommand),
}

/// What `vdk wire` is given.
#[derive(Debug, Args)]
pub(crate) struct WireArguments {
    /// The capture: pcap or pcapng, of an Ethernet interface.
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,

    /// Leave out the frames and show only what they add up to.
    #[arg(long)]
    pub(crate) summary: bool,
}

/// What `vdk serve` is given.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// The emulated device: edu, ioat or nvme.
    #[arg(value_name = "STUB", value_parser = parse_stub)]
    pub(crate) stub: StubKind,

    /// Where the socket is made. One that a server left behind is replaced.
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: PathBuf,

    /// Offer no doorbells to be mapped: every access is a message.
    #[arg(long)]
    pub(crate) trapped: bool,

    /// A file that keeps the blocks of a namespace of an nvme; may be given several times.
    #[arg(long, value_name = "FILE")]
    pub(crate) disk: Vec<PathBuf>,

    /// How the device misbehaves, as listed below.
    #[arg(long, value_name = "PLAN")]
    pub(crate) fault: Option<FaultPlan>,

    /// The seed of a fault plan with probabilities.
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// What `vdk info` is given.
#[derive(Debug, Args)]
pub(crate) struct InfoArguments {
    /// The device: stub:NAME, vfio-user:PATH or a PCI address.
    #[arg(value_name = "DEV", value_parser = device::parse)]
    pub(crate) device: String,

    /// The interface of the kernel for a device of this machine: auto, iommufd or type1.
    #[arg(long, value_name = "INTERFACE", default_value = "auto")]
    pub(crate) interface: KernelInterface,
}

/// What `vdk doctor` is given.
#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// The device: a PCI address, stub:NAME or vfio-user:PATH; the whole machine when absent.
    #[arg(value_name = "DEV", value_parser = doctor::parse)]
    pub(crate) device: Option<Patient>,
}

/// What `vdk bind` is given.
#[derive(Debug, Args)]
pub(crate) struct BindArguments {
    /// The functions, by PCI address.
    #[arg(value_name = "BDF", required = true)]
    pub(crate) functions: Vec<Bdf>,

    /// Take along the members of their IOMMU groups that keep the groups from being opened.
    #[arg(long)]
    pub(crate) group: bool,

    /// Take functions that are in use as well: mounted disks, interfaces that are up, the display.
    #[arg(long)]
    pub(crate) force: bool,

    /// Give the device nodes to this user, by name or number.
    #[arg(long, value_name = "NAME")]
    pub(crate) user: Option<String>,

    /// Print the commands that would be run, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What `vdk unbind` is given.
#[derive(Debug, Args)]
pub(crate) struct UnbindArguments {
    /// The functions, by PCI address.
    #[arg(value_name = "BDF", required = true)]
    pub(crate) functions: Vec<Bdf>,

    /// Take functions from programs that have them open; this waits until they let go.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print the commands that would be run, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// What `vdk copy` is given.
#[derive(Debug, Args)]
pub(crate) struct CopyArguments {
    /// The file to read.
    #[arg(value_name = "IN")]
    pub(crate) input: PathBuf,

    /// The file to write, `-` for the standard output. It appears under its name only when it is complete.
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,

    /// The device that moves the bytes: stub:NAME, vfio-user:PATH or a PCI address.
    #[arg(long, value_name = "DEV", default_value = "stub:ioat", value_parser = device::parse)]
    pub(crate) device: String,

    /// The interface of the kernel for a device of this machine: auto, iommufd or type1.
    #[arg(long, value_name = "INTERFACE", default_value = "auto")]
    pub(crate) interface: KernelInterface,

    /// How much each of the two halves holds; such as 65536, 64KiB or 4MiB.
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, default_value = "4MiB", value_parser = parse_size)]
    pub(crate) chunk: u64,

    /// Into how many scattered pieces each half is cut.
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) segments: u32,

    /// Read both files again at the end and compare them byte by byte.
    #[arg(long)]
    pub(crate) verify: bool,

    /// How the driver waits for the device: poll, interrupt or adaptive.
    #[arg(long, value_name = "MODE", default_value = "adaptive", value_parser = ["poll", "interrupt", "adaptive"])]
    pub(crate) wait: String,

    /// How long the device may take for one half, in milliseconds, before it is reset.
    #[arg(long, value_name = "MS", allow_negative_numbers = true, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) deadline: u64,

    /// How an emulated device misbehaves, as listed below.
    #[arg(long, value_name = "PLAN")]
    pub(crate) fault: Option<FaultPlan>,

    /// The seed of a fault plan with probabilities.
    #[arg(long, value_name = "SEED", allow_negative_numbers = true, default_value_t = 1)]
    pub(crate) seed: u64,
}

/// A text after the help of a command, and before it the faults.
fn with_faults(text: &str) -> String {
    format!("{}\n\n{text}", FaultPlan::syntax())
}

fn parse_stub(text: &str) -> Result<StubKind, String> {
    let name = text.strip_prefix("stub:").unwrap_or(text);
    name.parse().map_err(|error: vdk_firmware_stubs::ParseStubKindError| error.to_string())
}

/// Reads a size in bytes, with an optional unit: KiB, MiB or GiB (or K, M, G).
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    const MOST: u64 = 1 << 30;
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        other => return Err(format!("unknown unit {other:?}: use KiB, MiB or GiB")),
    };
    let count: u64 =
        digits.parse().map_err(|_| format!("{text:?} is not a size such as 65536, 64KiB or 4MiB"))?;
    match count.checked_mul(unit) {
        Some(0) => Err("the size must be at least 1 byte".to_owned()),
        Some(bytes) if bytes <= MOST => Ok(bytes),
        _ => Err(format!("{text} is more than 1 GiB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        assert_eq!(parse_size("65536"), Ok(65536));
        assert_eq!(parse_size("64KiB"), Ok(65536));
        assert_eq!(parse_size("4m"), Ok(4 << 20));
        for bad in ["0", "", "KiB", "1.5M", "4XB", "2GiB", "99999999999999999999", "-1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
