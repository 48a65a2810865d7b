//! What the demo does with the educational device.

use std::time::Duration;

use anyhow::{Result, bail};
use vdk_driver::edu::{Completion, Edu, LONGEST_TRANSFER};
use vdk_driver::hal::address::ByteLength;
use vdk_driver::hal::memory::{Pages, SharedMemory};
use vdk_driver::iommu::{FromDevice, ToDevice};
use vdk_driver::kit::Running;

use super::Checks;

const LIMIT: Duration = Duration::from_secs(10);

/// A register, an interrupt and a DMA transfer each way.
pub(super) fn tour(edu: &Running<Edu>, checks: &mut Checks<'_>) -> Result<()> {
    checks.run("edu: 10! by interrupt", || {
        let result = edu.with(|edu| edu.factorial(10, Completion::Interrupt, LIMIT))??;
        if result != 3_628_800 {
            bail!("the device says {result}");
        }
        Ok(result.to_string())
    })?;
    checks.run("edu: DMA to its buffer and back", || edu.with(round_trip)?)
}

fn round_trip(edu: &mut Edu) -> Result<String> {
    let length = usize::try_from(LONGEST_TRANSFER.as_u64())?;
    let page = || SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base);
    let source = edu.domain().map::<ToDevice>(page()?)?;
    let destination = edu.domain().map::<FromDevice>(page()?)?;
    let sent: Vec<u8> = (0..=250).map(|byte: u8| byte.wrapping_mul(7)).cycle().take(length).collect();
    source.write(0, &sent)?;
    edu.copy_to_buffer(&source, 0, length, 0, Completion::Interrupt, LIMIT)?;
    edu.copy_from_buffer(&destination, 0, length, 0, Completion::Poll, LIMIT)?;
    let mut received = vec![0; length];
    destination.read(0, &mut received)?;
    if sent != received {
        bail!("what came back differs from what was sent");
    }
    Ok(format!("{length} bytes came back unchanged"))
}
