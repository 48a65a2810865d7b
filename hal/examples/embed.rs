//! `vdk-hal` alone: a function of our own, made of memory, driven through its registers.
//!
//! Run it with `cargo run -p vdk-hal --example embed`.

use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::{Bar, BarInfo, BarKind, BarPermissions, Liveness, MappedArea};
use vdk_hal::config::{ConfigBytes, PowerManagement, capabilities, identity};
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::{barrier, register_block};

register_block! {
    /// The registers of a tiny adder.
    pub struct AdderRegisters(0x20) {
        /// The first number.
        LEFT: u32 @ 0x00, ReadWrite;
        /// The second number.
        RIGHT: u32 @ 0x04, ReadWrite;
        /// Their sum, after GO was written.
        SUM: u64 @ 0x08, ReadWrite, split LowHigh;
        /// Writing starts the addition.
        GO: u32 @ 0x10, ReadWrite;
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut config = vec![0; 256];
    config[..16].copy_from_slice(&[0x34, 0x12, 0xad, 0xde, 6, 0, 0x10, 0, 1, 0, 0, 0xff, 0, 0, 0, 0]);
    (config[0x34], config[0x40], config[0x42]) = (0x40, 0x01, 0x03);
    let config = ConfigBytes::new(config, 256);
    println!("function {} class {:06x}", identity(&config)?, identity(&config)?.class);
    for capability in capabilities(&config) {
        let capability = capability?;
        println!("  {:#04x} {}", capability.offset, capability.id);
    }
    println!("  in {}", PowerManagement::find(&config)?.ok_or("no power management")?.state(&config)?);

    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base)?;
    let (index, size) = (BarIndex::new(0).ok_or("no BAR 0")?, memory.length());
    let info = BarInfo { index, kind: BarKind::Memory32, prefetchable: false, size, address: 0 };
    let areas = vec![MappedArea { offset: 0, memory, kick: None }];
    let bar = Bar::new(info, BarPermissions::READ_WRITE, areas, None, Liveness::new());

    let driver = bar.registers::<AdderRegisters>(0)?;
    driver.write(AdderRegisters::LEFT, 40)?;
    driver.write(AdderRegisters::RIGHT, 2)?;
    driver.doorbell(AdderRegisters::GO)?.ring(barrier::doorbell(), 1)?;

    let device = bar.registers::<AdderRegisters>(0)?.mapped().ok_or("not mapped")?;
    let sum = device.read(AdderRegisters::LEFT) + device.read(AdderRegisters::RIGHT);
    device.write(AdderRegisters::SUM, sum.into());
    println!("40 + 2 = {}", driver.read(AdderRegisters::SUM)?);
    Ok(())
}
