//! The width of a register is that of its declaration.
use vdk_hal::mmio::MappedBlock;

vdk_hal::register_block! {
    struct Registers(0x10) {
        CONTROL: u16 @ 0x00, ReadWrite;
    }
}

fn write(block: &MappedBlock<Registers>, value: u32) {
    block.write(Registers::CONTROL, value);
}

fn main() {
    let _ = write;
}
