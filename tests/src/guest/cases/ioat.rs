//! The I/OAT driver on an engine behind the kernel.

use core::time::Duration;

use anyhow::{Result, ensure};
use vdk_descriptors::sg::{CopySegment, SgEntry};
use vdk_driver::ioat::{Channel, ChannelOptions, CompletionMode, Ioat};
use vdk_driver::kit::Session;
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Bidirectional, DmaRegion};

use crate::guest::{Case, Guest};

pub(super) const CASES: &[Case] = &[
    Case { name: "ioat", shows: "the ioat driver copies, fills, waits and recovers", run: ioat },
    Case { name: "ioat-unmapped", shows: "nothing is written to an address after its unmap", run: unmapped },
];

const LONG: Duration = Duration::from_secs(60);
const MODES: [CompletionMode; 3] =
    [CompletionMode::Poll, CompletionMode::Interrupt, CompletionMode::Adaptive];
/// Each half of the memory that is copied in.
const HALF: usize = 1 << 18;

fn start(guest: &Guest) -> Result<Ioat> {
    Ok(Ioat::start(Session::open(&guest.node()?, "vdk-guest")?)?)
}

fn region(ioat: &Ioat, bytes: usize) -> Result<DmaRegion<Bidirectional>> {
    let memory = SharedMemory::allocate(ByteLength::new(u64::try_from(bytes)?), Pages::Base)?;
    Ok(ioat.domain().map(memory)?)
}

fn ioat(guest: &Guest) -> Result<()> {
    let device = start(guest)?;
    let mut channel: Channel<usize> = device.channel(0, ChannelOptions::default())?;
    let memory = region(&device, 2 * HALF)?;
    for mode in MODES {
        let name = format!("copies arrive unchanged, waited for by {mode:?}").to_lowercase();
        guest.part(&name, copies(&mut channel, &memory, mode));
    }
    guest.part("a fill arrives", fill(&mut channel, &memory));
    guest.part("a channel that is reset gives its copies back and works on", recovery(&mut channel, &memory));
    channel.close()?;
    device.stop()?;
    drop(device);
    guest.part("twenty starts and stops leave nothing behind", lifecycle(guest));
    Ok(())
}

/// Pieces of the lower half to the same places in the upper half.
fn pieces(memory: &DmaRegion<Bidirectional>) -> Result<Vec<CopySegment>> {
    let lengths = [1, 7, 64, 511, 512, 4095, 4096, 4097, 8192, 65_536, 100_003];
    let mut at = 0;
    let mut pieces = Vec::new();
    for length in lengths {
        let source = memory.segment(at, length)?.iova;
        let destination = memory.segment(HALF + at, length)?.iova;
        pieces.push(CopySegment { source, destination, length: u32::try_from(length)? });
        at += length;
    }
    ensure!(at <= HALF, "the pieces do not fit");
    Ok(pieces)
}

fn pattern(seed: usize) -> Result<Vec<u8>> {
    (0..HALF)
        .map(|index| u8::try_from((index * 31 + index / 256 + seed * 17) % 251).map_err(Into::into))
        .collect()
}

/// Commits, waits and polls until nothing is outstanding; how many ended well.
fn drain(channel: &mut Channel<usize>, mode: CompletionMode) -> Result<usize> {
    let (mut well, mut first_error) = (0, None);
    channel.commit()?;
    while channel.outstanding() > 0 {
        channel.wait(mode, LONG)?;
        channel.poll(usize::MAX, |end| match end.result {
            Ok(()) => well += 1,
            Err(error) => first_error = first_error.or(Some(error)),
        })?;
    }
    ensure!(first_error.is_none(), "an operation failed: {first_error:?}");
    Ok(well)
}

fn copies(
    channel: &mut Channel<usize>,
    memory: &DmaRegion<Bidirectional>,
    mode: CompletionMode,
) -> Result<()> {
    let pieces = pieces(memory)?;
    for round in 0..20 {
        let written = pattern(round)?;
        memory.write(0, &written)?;
        memory.write(HALF, &vec![0; HALF])?;
        for (number, piece) in pieces.iter().enumerate() {
            channel.copy(std::slice::from_ref(piece), number).map_err(|refused| refused.reason)?;
        }
        let well = drain(channel, mode)?;
        ensure!(well == pieces.len(), "{well} of {} copies ended well", pieces.len());
        let total = pieces.iter().map(|piece| usize::try_from(piece.length)).sum::<Result<usize, _>>()?;
        let mut found = vec![0; total];
        memory.read(HALF, &mut found)?;
        ensure!(found == written[..total], "round {round} arrived changed");
    }
    Ok(())
}

fn fill(channel: &mut Channel<usize>, memory: &DmaRegion<Bidirectional>) -> Result<()> {
    let place = memory.segment(64, 4096)?;
    let entry = SgEntry { iova: place.iova, length: place.length };
    memory.write(0, &[0xff; 8192])?;
    channel.fill(0x0807_0605_0403_0201, &[entry], 0).map_err(|refused| refused.reason)?;
    drain(channel, CompletionMode::Adaptive)?;
    let mut found = [0; 4096 + 128];
    memory.read(0, &mut found)?;
    ensure!(found[..64] == [0xff; 64] && found[64 + 4096..] == [0xff; 64], "it wrote outside its place");
    for (index, byte) in found[64..64 + 4096].iter().enumerate() {
        ensure!(usize::from(*byte) == index % 8 + 1, "byte {index:#x} is {byte:#x}");
    }
    Ok(())
}

fn recovery(channel: &mut Channel<usize>, memory: &DmaRegion<Bidirectional>) -> Result<()> {
    for piece in pieces(memory)? {
        channel.copy(&[piece], 1).map_err(|refused| refused.reason)?;
    }
    channel.commit()?;
    let mut ended = 0;
    channel.recover(|_| ended += 1)?;
    ensure!(channel.outstanding() == 0, "{} are outstanding after the reset", channel.outstanding());
    ensure!(ended == pieces(memory)?.len(), "{ended} came back");
    copies(channel, memory, CompletionMode::Adaptive)
}

fn lifecycle(guest: &Guest) -> Result<()> {
    let files = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    drop(start(guest)?);
    let before = files()?;
    for _ in 0..20 {
        let device = start(guest)?;
        let mut channel: Channel<usize> = device.channel(0, ChannelOptions::default())?;
        let memory = region(&device, 2 * HALF)?;
        channel.copy(&pieces(&memory)?[..3], 0).map_err(|refused| refused.reason)?;
        // Dropped with a copy under way, on purpose.
        channel.commit()?;
    }
    let after = files()?;
    ensure!(before == after, "{before} files were open before and {after} are after");
    Ok(())
}

/// Copies to a mapping, ends the mapping, and copies other bytes to the address.
///
/// The memory is read back after both: the first arrived, the second did not, and the engine
/// halted on it.
fn unmapped(guest: &Guest) -> Result<()> {
    let device = start(guest)?;
    let mut channel: Channel<usize> = device.channel(0, ChannelOptions::default())?;
    let input = region(&device, HALF)?;
    let output = region(&device, HALF)?;
    let (first, second) = ([0xa5u8; 64], [0x5au8; 64]);
    input.write(0, &first)?;
    input.write(64, &second)?;
    let destination = output.segment(0, 64)?.iova;
    let copy = |at| anyhow::Ok(CopySegment { source: input.segment(at, 64)?.iova, destination, length: 64 });
    channel.copy(&[copy(0)?], 0).map_err(|refused| refused.reason)?;
    drain(&mut channel, CompletionMode::Adaptive)?;
    let memory = output.unmap().map_err(|(error, _)| error)?;
    channel.copy(&[copy(64)?], 1).map_err(|refused| refused.reason)?;
    let refused = drain(&mut channel, CompletionMode::Poll);
    ensure!(refused.is_err(), "the engine did not report the access");
    let mut found = [0; 64];
    memory.read(0, &mut found)?;
    ensure!(found == first, "the memory begins with {:#x}, not {:#x}", found[0], first[0]);
    let mut ended = 0;
    channel.recover(|_| ended += 1)?;
    channel
        .copy(&[CopySegment { destination: input.segment(4096, 64)?.iova, ..copy(0)? }], 2)
        .map_err(|refused| refused.reason)?;
    ensure!(drain(&mut channel, CompletionMode::Adaptive)? == 1, "the engine does not work on");
    Ok(())
}
