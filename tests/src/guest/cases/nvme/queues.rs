//! Depths, many queues, and the ways to learn of a completion.

use anyhow::{Context, Result, ensure};
use vdk_driver::nvme::{CompletionMode, ControllerOptions, OpenQueueError, QueueOptions, QueuePair};

use super::bed::{Bed, LONG, start};
use crate::guest::Guest;

pub(super) fn depths(guest: &Guest) -> Result<()> {
    let controller = start(guest, ControllerOptions::default())?;
    let most = controller.facts().queue_entries - 1;
    drop(controller);
    for depth in [1, 2, 7, 63, most] {
        let queue = QueueOptions { depth, ..QueueOptions::default() };
        let controller =
            ControllerOptions { max_transfer: vdk_hal::address::ByteLength::SIZE_4K, ..Default::default() };
        let mut bed = Bed::with(guest, 1 << 20, controller, queue)?;
        let (block, blocks) = (bed.block(), bed.namespace.blocks());
        let memory = [bed.entry(0, block)?];
        // Three rounds and a bit, so that both queues wrap.
        for round in 0..4u64 {
            let count = if round == 3 { depth.div_ceil(2) } else { depth };
            for command in 0..u64::from(count) {
                bed.pair.read(&bed.namespace, command % blocks, &memory, command)?;
            }
            if count == depth {
                let full = bed.pair.read(&bed.namespace, 0, &memory, 0);
                ensure!(full.is_err(), "command {depth} was taken by a queue of depth {depth}");
            }
            bed.finish().with_context(|| format!("depth {depth}, round {round}"))?;
        }
    }
    Ok(())
}

pub(super) fn too_deep(guest: &Guest) -> Result<()> {
    let controller = start(guest, ControllerOptions::default())?;
    let entries = controller.facts().queue_entries;
    for depth in [0, entries, 65_536, u32::MAX] {
        let opened: Result<QueuePair<u64>, _> =
            controller.queue_pair(QueueOptions { depth, ..QueueOptions::default() });
        let error = opened.err().with_context(|| format!("a queue of depth {depth}"))?;
        ensure!(matches!(error, OpenQueueError::Depth { .. }), "{error}");
        let text = error.to_string();
        ensure!(text.contains("MQES") && text.contains(&entries.to_string()), "{text}");
    }
    Ok(())
}

/// Asks for 64 queues and opens all that are given, each busy at once.
pub(super) fn many(guest: &Guest) -> Result<()> {
    let asked = 64;
    let bed = Bed::with(
        guest,
        1 << 20,
        ControllerOptions { queues: asked, ..ControllerOptions::default() },
        QueueOptions { depth: 8, ..QueueOptions::default() },
    )?;
    let granted = bed.controller.facts().queues;
    ensure!((1..=asked).contains(&granted), "{granted} queues were given");
    if let Ok(given) = guest.setting("queues") {
        ensure!(granted == given.parse::<u16>()?.min(asked), "{granted} queues were given, not {given}");
    }
    let options = QueueOptions { depth: 8, ..QueueOptions::default() };
    let mut pairs: Vec<QueuePair<u64>> =
        (1..granted).map(|_| bed.controller.queue_pair(options)).collect::<Result<_, _>>()?;
    let refused: Result<QueuePair<u64>, _> = bed.controller.queue_pair(options);
    let error = refused.err().context("a queue too many")?;
    ensure!(matches!(error, OpenQueueError::NoQueueLeft { .. }), "{error}");
    ensure!(error.to_string().contains(&format!("all {granted} I/O queues")), "{error}");
    let memory = [bed.entry(0, bed.block())?];
    for round in 0..3 {
        for pair in &mut pairs {
            for command in 0..8 {
                pair.read(&bed.namespace, command, &memory, round * 8 + command)?;
            }
            pair.commit()?;
        }
        for pair in &mut pairs {
            let mode = if pair.has_interrupt() { CompletionMode::Interrupt } else { CompletionMode::Poll };
            let mut ended = Vec::new();
            while pair.outstanding() > 0 {
                pair.wait(mode, LONG).with_context(|| format!("queue {}", pair.number()))?;
                pair.poll(64, |completion| ended.push((completion.owner, completion.result.is_ok())))?;
            }
            ended.sort_unstable();
            let wanted: Vec<_> = (0..8).map(|command| (round * 8 + command, true)).collect();
            ensure!(ended == wanted, "queue {}: {ended:?}", pair.number());
        }
    }
    // A number that was closed is given again.
    let numbers: Vec<u16> = pairs.iter().map(QueuePair::number).collect();
    if let Some(pair) = pairs.pop() {
        let ended = pair.close()?;
        ensure!(ended.is_empty(), "{} commands were left", ended.len());
        let again: QueuePair<u64> = bed.controller.queue_pair(options)?;
        ensure!(Some(&again.number()) == numbers.last(), "queue {} was opened", again.number());
    }
    Ok(())
}

pub(super) fn waits(guest: &Guest) -> Result<()> {
    let mut bed = Bed::new(guest, 1 << 20)?;
    ensure!(bed.pair.has_interrupt(), "the queue has no interrupt");
    let memory = [bed.entry(0, bed.block())?];
    for mode in [CompletionMode::Interrupt, CompletionMode::Poll, CompletionMode::Adaptive] {
        bed.mode = mode;
        for round in 0..50u64 {
            for command in 0..=round % 7 {
                bed.pair.read(&bed.namespace, command, &memory, command)?;
            }
            bed.finish().with_context(|| format!("{mode:?}"))?;
        }
    }
    ensure!(bed.pair.statistics().interrupts > 0, "no interrupt was counted");
    drop(bed);
    let queue = QueueOptions { interrupt: false, ..QueueOptions::default() };
    let mut bed = Bed::with(guest, 1 << 20, ControllerOptions::default(), queue)?;
    let memory = [bed.entry(0, bed.block())?];
    bed.pair.read(&bed.namespace, 0, &memory, 0)?;
    let refused =
        bed.pair.wait(CompletionMode::Interrupt, LONG).err().context("a wait without an interrupt")?;
    ensure!(refused.to_string().contains("no interrupt"), "{refused}");
    bed.mode = CompletionMode::Poll;
    bed.finish()
}

pub(super) fn shadows(guest: &Guest) -> Result<()> {
    for shadow_doorbells in [false, true] {
        let controller = ControllerOptions { shadow_doorbells, ..ControllerOptions::default() };
        let mut bed = Bed::with(guest, 1 << 20, controller, QueueOptions::default())?;
        let has = bed.controller.facts().shadow_doorbells;
        ensure!(shadow_doorbells || !has, "shadows that nobody asked for");
        let (block, depth) = (bed.block(), u64::from(bed.pair.depth()));
        for round in 0..10u64 {
            bed.fill(0, block, round)?;
            bed.write(round, &[bed.entry(0, block)?])?;
            for command in 0..depth {
                let memory = [bed.entry(usize::try_from(command % 128)? * block, block)?];
                bed.pair.read(&bed.namespace, round, &memory, command)?;
                if command % 5 == round % 5 {
                    bed.pair.commit()?;
                }
            }
            bed.finish().with_context(|| format!("shadows {has}, round {round}"))?;
            bed.check(3 * block, block, round)?;
        }
        let statistics = bed.pair.statistics();
        ensure!(!has || statistics.doorbells_spared > 0, "no doorbell was spared: {statistics:?}");
    }
    Ok(())
}
