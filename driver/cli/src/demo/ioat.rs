//! What the demo does with the copy engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use vdk_driver::descriptors::sg::{CopySegment, SgEntry, SgLimits, SgList};
use vdk_driver::hal::address::{ByteLength, Iova};
use vdk_driver::hal::memory::{Pages, SharedMemory};
use vdk_driver::ioat::{Channel, ChannelOptions, Completion, CompletionMode, Ioat};
use vdk_driver::iommu::{DmaRegion, Domain, FromDevice, ToDevice};
use vdk_driver::kit::Running;
use vdk_firmware_stubs::StubNode;

use super::{Checks, Rate};

/// How much each side of the copies has.
const SIZE: usize = 8 << 20;
const BLOCK: usize = 32 << 10;
const LIMIT: Duration = Duration::from_secs(10);

/// Memory on both sides of the device, and a channel.
struct Bench {
    channel: Channel<()>,
    source: DmaRegion<ToDevice>,
    destination: DmaRegion<FromDevice>,
}

impl Bench {
    fn new(ioat: &Running<Ioat>) -> Result<Self> {
        let (channel, domain) = ioat.with(|ioat| {
            let channel = ioat.channel::<()>(0, ChannelOptions::default());
            (channel, ioat.domain().clone())
        })?;
        let source = region::<ToDevice>(&domain)?;
        let destination = region::<FromDevice>(&domain)?;
        let mut block = vec![0; BLOCK];
        for offset in (0..SIZE).step_by(BLOCK) {
            content(offset, &mut block);
            source.write(offset, &block)?;
        }
        Ok(Self { channel: channel?, source, destination })
    }

    /// Commits what was posted and waits until all of it has ended.
    fn finish(&mut self, mode: CompletionMode) -> Result<()> {
        let mut failure = None;
        let begin = Instant::now();
        while self.channel.outstanding() > 0 {
            let left = LIMIT.checked_sub(begin.elapsed());
            let left = left.with_context(|| format!("the engine was not done within {LIMIT:?}"))?;
            self.channel.wait(mode, left)?;
            self.channel
                .poll(usize::MAX, |completion| failure = failure.take().or(completion.result.err()))?;
        }
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    fn segment(&self, offset: usize, length: usize) -> Result<CopySegment> {
        Ok(CopySegment {
            source: self.source.segment(offset, length)?.iova,
            destination: self.destination.segment(offset, length)?.iova,
            length: u32::try_from(length)?,
        })
    }
}

/// What the source holds from `offset`.
fn content(offset: usize, bytes: &mut [u8]) {
    for (index, byte) in bytes.iter_mut().enumerate() {
        let place = offset + index;
        // CAST: the remainder is below 253.
        #[expect(clippy::cast_possible_truncation, reason = "the remainder is below 253")]
        let value = ((place / 4096 * 31 + place * 7) % 253) as u8;
        *byte = value;
    }
}

fn region<D: vdk_driver::iommu::Direction>(domain: &Domain) -> Result<DmaRegion<D>> {
    let memory = SharedMemory::allocate(ByteLength::from_usize(SIZE), Pages::Transparent)?;
    Ok(domain.map(memory)?)
}

/// Copies, a fill, and an access that the IOMMU refuses.
pub(super) fn tour(ioat: &Running<Ioat>, node: &Arc<StubNode>, checks: &mut Checks<'_>) -> Result<()> {
    let mut bench = Bench::new(ioat)?;
    checks.run("ioat: copy 8 MiB as 256 scattered pieces", || scattered_copy(&mut bench))?;
    checks.run("ioat: fill 1 MiB with a pattern", || fill(&mut bench))?;
    checks.run("ioat: copy from memory that it was not given", || refused(&mut bench, node))?;
    checks.run("ioat: close the channel", || {
        let rest: Vec<Completion<()>> = bench.channel.close()?;
        if rest.is_empty() {
            Ok("nothing was outstanding".to_owned())
        } else {
            bail!("{} are left", rest.len())
        }
    })
}

fn scattered_copy(bench: &mut Bench) -> Result<String> {
    const PIECES: usize = SIZE / PIECE;
    const PIECE: usize = BLOCK;
    let mut source = SgList::with_capacity(&SgLimits::NONE, PIECES)?;
    let mut destination = SgList::with_capacity(&SgLimits::NONE, PIECES)?;
    for piece in 0..PIECES {
        let length = ByteLength::from_usize(PIECE);
        source.push(bench.source.segment(piece * PIECE, PIECE)?.iova, length)?;
        destination.push(bench.destination.segment((PIECES - 1 - piece) * PIECE, PIECE)?.iova, length)?;
    }
    let doorbells = bench.channel.statistics().doorbells;
    bench.channel.copy_sg(&source, &destination, ())?;
    bench.finish(CompletionMode::Adaptive)?;
    let (mut sent, mut received) = (vec![0; PIECE], vec![0; PIECE]);
    for piece in 0..PIECES {
        content(piece * PIECE, &mut sent);
        bench.destination.read((PIECES - 1 - piece) * PIECE, &mut received)?;
        if sent != received {
            bail!("piece {piece} differs");
        }
    }
    let doorbells = bench.channel.statistics().doorbells - doorbells;
    Ok(format!("every byte is right, {doorbells} doorbell for the whole chain"))
}

fn fill(bench: &mut Bench) -> Result<String> {
    const LENGTH: usize = 1 << 20;
    const PATTERN: u64 = 0x0123_4567_89ab_cdef;
    let segment = bench.destination.segment(0, LENGTH)?;
    let entry = SgEntry { iova: segment.iova, length: segment.length };
    bench.channel.fill(PATTERN, &[entry], ())?;
    bench.finish(CompletionMode::Interrupt)?;
    let mut bytes = vec![0; LENGTH];
    bench.destination.read(0, &mut bytes)?;
    if bytes.chunks(8).any(|chunk| chunk != PATTERN.to_le_bytes()) {
        bail!("the pattern is not there");
    }
    Ok("the pattern is everywhere, completed by interrupt".to_owned())
}

fn refused(bench: &mut Bench, node: &Arc<StubNode>) -> Result<String> {
    let good = bench.segment(0, 4096)?;
    let bad = CopySegment { source: Iova::new(0xdead_0000), ..good };
    let faults = node.iommu().fault_count();
    bench.channel.copy(&[bad], ())?;
    if bench.finish(CompletionMode::Adaptive).is_ok() {
        bail!("the copy was done although its source is not mapped");
    }
    let mut ended = 0;
    bench.channel.recover(|completion| ended += u32::from(completion.result.is_err()))?;
    let fault = node.iommu().faults().last().copied().context("the IOMMU logged no fault")?;
    if node.iommu().fault_count() == faults || ended != 1 {
        bail!("{ended} operations ended with an error");
    }
    bench.channel.copy(&[good], ())?;
    bench.finish(CompletionMode::Adaptive)?;
    Ok(format!("refused ({fault}), the channel was reset and works again"))
}

/// How fast copies of three sizes are.
pub(super) fn rates(ioat: &Running<Ioat>) -> Result<Vec<Rate>> {
    let mut bench = Bench::new(ioat)?;
    let mut rates = Vec::new();
    for (bytes, batch) in [(64, 32), (4096, 32), (65536, 8)] {
        rates.push(rate(&mut bench, bytes, batch)?);
    }
    bench.channel.close()?;
    Ok(rates)
}

fn rate(bench: &mut Bench, bytes: usize, batch: usize) -> Result<Rate> {
    const TIME: Duration = Duration::from_millis(250);
    // The working set stays in the cache of one core.
    let places = (512 << 10) / bytes;
    let segments =
        (0..places).map(|place| bench.segment(place * bytes, bytes)).collect::<Result<Vec<_>>>()?;
    let (mut place, mut operations) = (0, 0);
    let begin = Instant::now();
    while begin.elapsed() < TIME {
        for _ in 0..64 {
            while bench.channel.free() < batch {
                bench.channel.wait(CompletionMode::Adaptive, LIMIT)?;
                operations += bench.channel.poll(usize::MAX, drop)?;
            }
            for _ in 0..batch {
                bench.channel.copy(&segments[place..=place], ())?;
                place = (place + 1) % places;
            }
            bench.channel.commit()?;
        }
        operations += bench.channel.poll(usize::MAX, drop)?;
    }
    operations += bench.channel.outstanding();
    bench.finish(CompletionMode::Adaptive)?;
    let seconds = begin.elapsed().as_secs_f64();
    let operations = u64::try_from(operations)?;
    Ok(Rate {
        bytes: u64::try_from(bytes)?,
        batch,
        operations,
        operations_per_second: operations as f64 / seconds,
        bytes_per_second: operations as f64 * bytes as f64 / seconds,
    })
}
