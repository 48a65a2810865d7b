//! A read with side effects is not offered as a read.
use vdk_hal::mmio::MappedBlock;

vdk_hal::register_block! {
    struct Registers(0x10) {
        FIFO: u32 @ 0x00, ReadSideEffects;
    }
}

fn read(block: &MappedBlock<Registers>) -> u32 {
    block.read(Registers::FIFO)
}

fn main() {
    let _ = read;
}
