//! A read with side effects changes the device, so it needs `&mut`.
use vdk_hal::mmio::MappedBlock;

vdk_hal::register_block! {
    struct Registers(0x10) {
        FIFO: u32 @ 0x00, ReadSideEffects;
    }
}

fn take(block: &MappedBlock<Registers>) -> u32 {
    block.take(Registers::FIFO)
}

fn main() {
    let _ = take;
}
