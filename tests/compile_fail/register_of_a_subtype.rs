//! Sets that are subtypes of each other may differ in length: their registers do not mix.
use vdk_hal::mmio::{MappedBlock, ReadWrite, Register, RegisterBlock, RegisterInfo, RegisterSet};

struct Of<T>(T);
type Long = Of<for<'a> fn(&'a u8)>;
type Short = Of<fn(&'static u8)>;

impl RegisterSet for Long {
    const LENGTH: usize = 0x1000;
    const NAME: &'static str = "Long";
    const REGISTERS: &'static [RegisterInfo] = &[];
}

impl RegisterSet for Short {
    const LENGTH: usize = 0x10;
    const NAME: &'static str = "Short";
    const REGISTERS: &'static [RegisterInfo] = &[];
}

fn register(long: Register<Long, u32, ReadWrite>) -> Register<Short, u32, ReadWrite> {
    long
}

fn mapped(long: MappedBlock<Long>) -> MappedBlock<Short> {
    long
}

fn block(long: RegisterBlock<Long>) -> RegisterBlock<Short> {
    long
}

fn main() {
    let _ = (register, mapped, block);
}
