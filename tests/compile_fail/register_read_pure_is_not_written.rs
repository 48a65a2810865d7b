//! A register that is only readable cannot be written.
use vdk_hal::mmio::RegisterBlock;

vdk_hal::register_block! {
    struct Registers(0x10) {
        STATUS: u32 @ 0x00, ReadPure;
    }
}

fn write(block: &RegisterBlock<Registers>) {
    let _ = block.write(Registers::STATUS, 1);
}

fn main() {
    let _ = write;
}
