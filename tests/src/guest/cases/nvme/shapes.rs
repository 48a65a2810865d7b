//! Memory of every shape: offsets in a page, lists of pages, chains of lists, holes.

use anyhow::{Context, Result, bail, ensure};
use vdk_descriptors::sg::SgEntry;
use vdk_driver::nvme::{ControllerOptions, QueueOptions, RejectReason};
use vdk_hal::address::ByteLength;

use super::bed::{Bed, pattern, same};
use crate::guest::Guest;

const PAGE: usize = 4096;

/// One page pointer, two, and lists, with every kind of offset.
pub(super) fn pages(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 20)?;
    let block = bed.block();
    for (round, offset) in [0, 4, 512, 1024, 4092, PAGE, PAGE + 4].into_iter().enumerate() {
        for length in [block, PAGE, 2 * PAGE, 3 * PAGE, 16 * PAGE] {
            let length = length.next_multiple_of(block);
            let seed = (round * 100 + length) as u64;
            bed.fill(offset, length, seed)?;
            let memory = [bed.entry(offset, length)?];
            bed.write(40, &memory)?;
            bed.clear()?;
            // Read to another place, so that a wrong pointer cannot cancel itself out.
            let other = (512 << 10) + (PAGE - 4 - offset % PAGE);
            let memory = [bed.entry(other, length)?];
            bed.read(40, &memory)?;
            bed.check(other, length, seed).with_context(|| format!("{length:#x} bytes at {offset:#x}"))?;
            let mut around = [0; 4];
            bed.region.read(other - 4, &mut around)?;
            ensure!(around == [0; 4], "bytes before the memory were written");
            bed.region.read(other + length, &mut around)?;
            ensure!(around == [0; 4], "bytes behind the memory were written");
        }
    }
    Ok(())
}

/// Lists of exactly 511, 512 and 513 entries, and longer ones, as far as MDTS allows.
pub(super) fn chains(guest: &Guest) -> Result<()> {
    let controller =
        ControllerOptions { max_transfer: ByteLength::new(8 << 20), ..ControllerOptions::default() };
    let queue = QueueOptions { depth: 4, ..QueueOptions::default() };
    let mut bed = Bed::with(guest, 12 << 20, controller, queue)?;
    let most = usize::try_from(bed.pair.max_transfer().as_u64())?;
    let (block, mut tried) = (bed.block(), 0);
    for pages in [511usize, 512, 513, 514, 1022, 1023, 1024] {
        for offset in [0, 2048] {
            // QEMU maps 1024 pages of a command at most, whatever its MDTS says.
            if pages == 1024 && offset > 0 {
                continue;
            }
            // The first page has its pointer in the command, the others in the list.
            let length = (pages * PAGE).next_multiple_of(block);
            if length > most || length as u64 > bed.namespace.length().as_u64() {
                continue;
            }
            tried += 1;
            let seed = (pages + offset) as u64;
            bed.fill(offset, length, seed)?;
            let memory = [bed.entry(offset, length)?];
            bed.write(0, &memory)?;
            bed.clear()?;
            bed.read(0, &memory)?;
            bed.check(offset, length, seed).with_context(|| format!("{pages} pages at {offset}"))?;
        }
    }
    ensure!(tried > 0 || most < 512 * PAGE, "no chain was tried with transfers of {most:#x} bytes");
    Ok(())
}

/// Scattered pages, and pieces that page pointers cannot describe: by an SGL where the
/// controller has them, and refused with the reason where it has none.
pub(super) fn holes(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 20)?;
    let block = bed.block();
    // Whole pages in reverse order: page pointers do that.
    let pages: Vec<(usize, usize)> = (0..8).rev().map(|page| (2 * page * PAGE, PAGE)).collect();
    scatter(&mut bed, &pages, 7)?;
    // Two pieces of half a block each, with a hole inside a page, and one off a page.
    let half = block / 2;
    let pieces = [(0, half), (PAGE, half), (3 * PAGE + 4, block)];
    if bed.controller.facts().sgl.kind() != 0 {
        return scatter(&mut bed, &pieces, 9);
    }
    let memory = entries(&bed, &pieces)?;
    match bed.pair.write(&bed.namespace, 40, &memory, 0) {
        Err(rejected) => {
            ensure!(matches!(rejected.reason, RejectReason::Memory(_)), "{rejected}");
            ensure!(rejected.to_string().contains("no SGLs"), "{rejected}");
            Ok(())
        }
        Ok(_) => bail!("pieces with holes were taken without SGLs"),
    }
}

fn entries(bed: &Bed, pieces: &[(usize, usize)]) -> Result<Vec<SgEntry>> {
    pieces.iter().map(|(offset, length)| bed.entry(*offset, *length)).collect()
}

/// Writes from pieces and reads back into one, then the other way round.
fn scatter(bed: &mut Bed, pieces: &[(usize, usize)], seed: u64) -> Result<()> {
    let total: usize = pieces.iter().map(|(_, length)| length).sum();
    let (wanted, memory) = (pattern(total, seed), entries(bed, pieces)?);
    bed.clear()?;
    let mut done = 0;
    for (offset, length) in pieces {
        bed.region.write(*offset, &wanted[done..done + length])?;
        done += length;
    }
    bed.write(40, &memory)?;
    let flat = 512 << 10;
    bed.read(40, &[bed.entry(flat, total)?])?;
    let mut found = vec![0; total];
    bed.region.read(flat, &mut found)?;
    same(&found, &wanted)?;
    bed.clear()?;
    bed.read(40, &memory)?;
    let mut done = 0;
    for (offset, length) in pieces {
        let mut found = vec![0; *length];
        bed.region.read(*offset, &mut found)?;
        same(&found, &wanted[done..done + length])?;
        done += length;
    }
    Ok(())
}
