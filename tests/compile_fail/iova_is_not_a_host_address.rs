//! Field report A10: an address of the process where the device's is meant.
use vdk_hal::address::{ByteLength, HostAddress, IovaRange};

fn main() {
    let _ = IovaRange::new(HostAddress::new(0x1000), ByteLength::SIZE_4K);
}
