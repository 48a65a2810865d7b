//! The edu driver on a device that nobody here wrote.

use core::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use vdk_descriptors::edu::EduRegisters;
use vdk_driver::edu::{Completion, Edu, EduError, LONGEST_TRANSFER, TransferDirection};
use vdk_driver::kit::{Registry, Session};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::config::update_command;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_iommu::{Direction, DmaRegion, FromDevice, ToDevice};

use crate::guest::{Case, Guest};

pub(super) const CASES: &[Case] = &[
    Case { name: "edu", shows: "the edu driver computes, interrupts and moves bytes", run: edu },
    Case { name: "edu-line", shows: "the interrupt line is masked and unmasked", run: line },
    Case { name: "edu-unmapped", shows: "nothing is written to an address after its unmap", run: unmapped },
    Case { name: "edu-lifecycle", shows: "a hundred starts and stops leave nothing behind", run: lifecycle },
];

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);
/// The bit of the status register that asks for an interrupt at the end of a factorial.
const INTERRUPT_AT_END: u32 = 0x80;
const BOTH: [Completion; 2] = [Completion::Poll, Completion::Interrupt];

fn start(guest: &Guest) -> Result<Edu> {
    Ok(Edu::start(Session::open(&guest.node()?, "vdk-guest")?)?)
}

/// INTx without the driver, which takes MSI where there is MSI.
fn line(guest: &Guest) -> Result<()> {
    let function = guest.node()?.open()?;
    update_command(function.config(), |command| command.set_memory_space(true))?;
    let bar = function.bar(BarIndex::new(0).context("BAR0")?)?;
    let write = |register: usize, value: u32| {
        bar.write::<u32>(u64::try_from(register)?, value).map_err(anyhow::Error::from)
    };
    let (raise, acknowledge) =
        (EduRegisters::INTERRUPT_RAISE.offset(), EduRegisters::INTERRUPT_ACKNOWLEDGE.offset());
    let (interrupts, kind, event) = (function.interrupts(), InterruptKind::Intx, EventFd::new()?);
    ensure!(interrupts.vector_count(kind) == 1, "the function has no interrupt line");
    interrupts.enable(kind, &[Some(event.clone())])?;
    guest.part(
        "each factorial signals once, and the line stays masked until it is unmasked",
        (|| {
            for n in 3..6 {
                write(EduRegisters::STATUS.offset(), INTERRUPT_AT_END)?;
                write(EduRegisters::FACTORIAL.offset(), n)?;
                ensure!(event.wait(LONG)? && event.take() == 1, "{n}! did not signal once");
                write(raise, 0x100)?;
                ensure!(!event.wait(SHORT)?, "a masked line signalled");
                interrupts.unmask(kind, 0)?;
                ensure!(event.wait(LONG)? && event.take() == 1, "the line was up when it was unmasked");
                write(acknowledge, u32::MAX)?;
                interrupts.unmask(kind, 0)?;
                ensure!(!event.wait(SHORT)?, "a line signalled that was down");
            }
            Ok(())
        })(),
    );
    interrupts.disable_all(kind)?;
    guest.part(
        "disabling signals nothing",
        if event.take() == 0 { Ok(()) } else { Err(anyhow!("it signalled")) },
    );
    guest.part(
        "a line that was raised while it was disabled signals when it is enabled anew",
        (|| {
            for _ in 0..3 {
                write(raise, 0x200)?;
                ensure!(!event.wait(SHORT)?, "a line signalled that nobody listens to");
                interrupts.enable(kind, &[Some(event.clone())])?;
                ensure!(event.wait(LONG)?, "it did not signal");
                write(acknowledge, u32::MAX)?;
                // Whatever came twice is taken; a line that is down is silent.
                let _ = event.take();
                interrupts.unmask(kind, 0)?;
                ensure!(!event.wait(SHORT)?, "a line signalled that was down");
                interrupts.disable_all(kind)?;
            }
            Ok(())
        })(),
    );
    Ok(())
}

fn region<D: Direction>(edu: &Edu) -> Result<DmaRegion<D>> {
    Ok(edu.domain().map(SharedMemory::allocate(ByteLength::new(1 << 16), Pages::Base)?)?)
}

fn edu(guest: &Guest) -> Result<()> {
    let mut edu = start(guest)?;
    guest.part("it answers as the device that it should be", edu.check_liveness().map_err(Into::into));
    guest.part("factorials are computed modulo 2 to the 32", factorials(&mut edu));
    guest.part("interrupts are raised, waited for and acknowledged", interrupts(&mut edu));
    guest.part("transfers of every length and place move the right bytes", transfers(&mut edu));
    guest.part("a transfer that does not fit is refused before the device sees it", refusals(&mut edu));
    drop(edu);
    guest.part("the kit matches, starts and stops the driver", kit(guest));
    Ok(())
}

fn factorials(edu: &mut Edu) -> Result<()> {
    for completion in BOTH {
        let mut expected = 1u32;
        for n in 0..20 {
            expected = expected.wrapping_mul(n.max(1));
            let found = edu.factorial(n, completion, LONG)?;
            ensure!(found == expected, "{n}! is {found:#x} by {completion:?}, not {expected:#x}");
        }
    }
    Ok(())
}

fn interrupts(edu: &mut Edu) -> Result<()> {
    ensure!(matches!(edu.wait_interrupt(SHORT), Err(EduError::TimedOut(_))), "one came that nobody raised");
    for causes in [1, 0x100, 0xdead_0000, 0x7fff_ffff] {
        edu.raise_interrupt(causes)?;
        let seen = edu.wait_interrupt(LONG)?;
        ensure!(seen == causes, "raised {causes:#x}, seen {seen:#x}");
    }
    ensure!(matches!(edu.wait_interrupt(SHORT), Err(EduError::TimedOut(_))), "one came twice");
    Ok(())
}

fn transfers(edu: &mut Edu) -> Result<()> {
    let input: DmaRegion<ToDevice> = region(edu)?;
    let output: DmaRegion<FromDevice> = region(edu)?;
    let bytes: Vec<u8> =
        (0..9000u32).map(|index| index * 7 % 251).map(u8::try_from).collect::<Result<_, _>>()?;
    input.write(0, &bytes)?;
    let longest = usize::try_from(LONGEST_TRANSFER.as_u64())?;
    let places = [(0, 1, 0), (1, longest, 0), (4090, 13, 4082), (3, 2048, 2047), (4095, 1, 4094)];
    for (index, (from, length, at)) in places.into_iter().enumerate() {
        let completion = BOTH[index % 2];
        edu.copy_to_buffer(&input, from, length, at, completion, LONG)?;
        edu.copy_from_buffer(&output, 5, length, at, completion, LONG)?;
        let mut moved = vec![0; length];
        output.read(5, &mut moved)?;
        ensure!(moved == bytes[from..from + length], "{length} bytes at {at:#x} arrived changed");
    }
    Ok(())
}

fn refusals(edu: &mut Edu) -> Result<()> {
    let input: DmaRegion<ToDevice> = region(edu)?;
    for (length, at) in [(4096, 0), (1, 4095), (100, u64::MAX)] {
        let refused = edu.copy_to_buffer(&input, 0, length, at, Completion::Poll, LONG);
        ensure!(matches!(refused, Err(EduError::OutsideBuffer { .. })), "{length} at {at:#x}: {refused:?}");
    }
    Ok(())
}

fn kit(guest: &Guest) -> Result<()> {
    let registry = Registry::new()?;
    registry.register::<Edu>()?;
    let running = registry.start::<Edu>(&guest.node()?).map_err(|why| anyhow!("{why}"))?;
    let result = running.with(|edu| edu.factorial(6, Completion::Interrupt, LONG).map_err(|e| e.to_string()));
    let found = result.context("the driver did not run")?;
    ensure!(found == Ok(720), "6! is {found:?}");
    ensure!(running.stop().is_final(), "it did not stop");
    Ok(())
}

/// Writes 64 bytes to a mapping, ends the mapping, and writes other bytes to the address.
///
/// The memory is read back after both: the first arrived, the second did not.
fn unmapped(guest: &Guest) -> Result<()> {
    let mut edu = start(guest)?;
    let (first, second) = ([0xa5u8; 64], [0x5au8; 64]);
    let input: DmaRegion<ToDevice> = region(&edu)?;
    let output: DmaRegion<FromDevice> = region(&edu)?;
    let place = output.segment(0, 64)?;
    input.write(0, &first)?;
    input.write(64, &second)?;
    edu.copy_to_buffer(&input, 0, 64, 0, Completion::Poll, LONG)?;
    edu.transfer(TransferDirection::FromBuffer, place, 0, Completion::Poll, LONG)?;
    edu.copy_to_buffer(&input, 64, 64, 0, Completion::Poll, LONG)?;
    let memory = output.unmap().map_err(|(error, _)| error)?;
    // The device reports nothing: only the memory can tell.
    edu.transfer(TransferDirection::FromBuffer, place, 0, Completion::Poll, LONG)?;
    let mut found = [0; 64];
    memory.read(0, &mut found)?;
    ensure!(found == first, "the memory begins with {:#x}, not {:#x}", found[0], first[0]);
    factorials(&mut edu).context("the device does not work on")
}

fn lifecycle(guest: &Guest) -> Result<()> {
    let files = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    drop(start(guest)?);
    let before = files()?;
    for cycle in 0..100usize {
        let mut edu = start(guest)?;
        let input: DmaRegion<ToDevice> = region(&edu)?;
        edu.copy_to_buffer(&input, 0, 100, 0, BOTH[cycle % 2], LONG)?;
        ensure!(edu.factorial(5, BOTH[cycle % 2], LONG)? == 120, "5! is wrong in cycle {cycle}");
        // Left raised on purpose; the next start must not see it.
        edu.raise_interrupt(0x40)?;
        edu.stop();
    }
    let after = files()?;
    ensure!(before == after, "{before} files were open before and {after} are after");
    Ok(())
}
