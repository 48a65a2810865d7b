//! Field report A10: address and length in the wrong order.
use vdk_hal::address::{ByteLength, Iova, IovaRange};

fn main() {
    let _ = IovaRange::new(ByteLength::SIZE_4K, Iova::new(0x1000));
}
