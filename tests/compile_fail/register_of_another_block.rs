//! A register belongs to the set that declares it.
use vdk_hal::mmio::MappedBlock;

vdk_hal::register_block! {
    struct Device(0x10) {
        CONTROL: u32 @ 0x00, ReadWrite;
    }
}

vdk_hal::register_block! {
    struct Channel(0x10) {
        STATUS: u32 @ 0x00, ReadWrite;
    }
}

fn read(block: &MappedBlock<Channel>) -> u32 {
    block.read(Device::CONTROL)
}

fn main() {
    let _ = read;
}
