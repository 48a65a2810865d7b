//! Sharing memory with devices ends every reference to it.
use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, PinnedMemory};

fn main() {
    let memory = PinnedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).unwrap();
    let first = &memory[0];
    let shared = memory.share();
    println!("{first} {shared:?}");
}
