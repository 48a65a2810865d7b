//! No reference into memory that a device can reach.
use vdk_hal::memory::SharedMemory;

fn bytes(memory: &mut SharedMemory) -> &mut [u8] {
    &mut memory[..]
}

fn coerced(memory: &SharedMemory) -> &[u8] {
    memory
}

fn main() {
    let _ = (bytes, coerced);
}
