//! A write-only register has nothing to read.
use vdk_hal::mmio::MappedBlock;

vdk_hal::register_block! {
    struct Registers(0x10) {
        COMMAND: u32 @ 0x00, WriteOnly;
    }
}

fn read(block: &MappedBlock<Registers>) -> u32 {
    block.read(Registers::COMMAND)
}

fn main() {
    let _ = read;
}
