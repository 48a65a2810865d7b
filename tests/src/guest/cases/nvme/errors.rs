//! What is refused, by the driver and by the controller.

use anyhow::{Context, Result, bail, ensure};
use vdk_descriptors::nvme::{NvmOpcode, Status, SubmissionEntry};
use vdk_driver::nvme::{CommandError, ControllerOptions, QueueOptions, RejectReason};
use vdk_hal::address::ByteLength;

use super::bed::Bed;
use crate::guest::Guest;

pub(super) fn refused(guest: &Guest) -> Result<()> {
    let mut bed = Bed::with(
        guest,
        8 << 20,
        ControllerOptions { max_transfer: ByteLength::new(1 << 20), ..ControllerOptions::default() },
        QueueOptions::default(),
    )?;
    let (block, blocks) = (bed.block(), bed.namespace.blocks());
    let most = usize::try_from(bed.pair.max_transfer().as_u64())?;
    type Wanted = fn(&RejectReason) -> bool;
    let cases: [(u64, usize, usize, &str, Wanted); 7] = [
        (blocks, 0, block, "pass the end", |reason| matches!(reason, RejectReason::Range { .. })),
        (blocks - 1, 0, 2 * block, "pass the end", |reason| matches!(reason, RejectReason::Range { .. })),
        (u64::MAX, 0, block, "pass the end", |reason| matches!(reason, RejectReason::Range { .. })),
        (0, 0, block + 4, "multiple of the block size", |reason| {
            matches!(reason, RejectReason::PartialBlock { .. })
        }),
        (0, 0, 4, "multiple of the block size", |reason| matches!(reason, RejectReason::PartialBlock { .. })),
        (0, 0, most + block, "(MDTS)", |reason| matches!(reason, RejectReason::TooLong { .. })),
        (0, 2, block, "", |reason| matches!(reason, RejectReason::Memory(_) | RejectReason::Sgl(_))),
    ];
    for (lba, offset, length, text, wanted) in cases {
        let memory = [bed.entry(offset, length)?];
        match bed.pair.write(&bed.namespace, lba, &memory, 77) {
            Err(rejected) => {
                ensure!(rejected.owner == 77, "the owner is {}", rejected.owner);
                ensure!(wanted(&rejected.reason), "LBA {lba:#x}, {length:#x} bytes: {rejected}");
                ensure!(rejected.to_string().contains(text), "{rejected}");
            }
            // SGLs may begin anywhere.
            Ok(_) if offset == 2 && bed.controller.facts().sgl.kind() == 1 => bed.finish()?,
            Ok(_) => bail!("LBA {lba:#x}, {length:#x} bytes at {offset} were taken"),
        }
    }
    let empty = bed.pair.read(&bed.namespace, 0, &[], 1).err().context("no memory was taken")?;
    ensure!(matches!(empty.reason, RejectReason::PartialBlock { .. }), "{empty}");
    ensure!(bed.pair.deallocate(&bed.namespace, &[], 1).is_err(), "no range was taken");
    // The queue is as it was.
    let memory = [bed.entry(0, block)?];
    bed.read(0, &memory)
}

pub(super) fn statuses(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 20)?;
    let (id, blocks, block) = (bed.namespace.id(), bed.namespace.blocks(), bed.block());
    let memory = [bed.entry(0, block)?];
    let mut past_end =
        SubmissionEntry { opcode: NvmOpcode::READ.0, namespace: id, ..SubmissionEntry::default() };
    past_end.set_starting_lba(blocks);
    let cases = [
        (past_end, &[Status::LBA_OUT_OF_RANGE][..]),
        (
            SubmissionEntry { opcode: 0x7f, namespace: id, ..SubmissionEntry::default() },
            &[Status::INVALID_OPCODE][..],
        ),
        (
            SubmissionEntry {
                opcode: NvmOpcode::READ.0,
                namespace: 0x7777_7777,
                ..SubmissionEntry::default()
            },
            &[Status::INVALID_NAMESPACE, Status::INVALID_FIELD][..],
        ),
    ];
    for (number, (entry, wanted)) in cases.into_iter().enumerate() {
        bed.pair.command(entry, &memory, number as u64)?;
        let ended = bed.finish_all()?;
        match ended.get(&(number as u64)).context("it did not end")? {
            Err(CommandError::Status { status, .. }) => {
                ensure!(wanted.contains(status), "command {number} ended with {status}");
            }
            other => bail!("command {number} ended with {other:?}"),
        }
    }
    ensure!(bed.pair.statistics().failed == 3, "{:?}", bed.pair.statistics());
    bed.read(0, &memory)
}
