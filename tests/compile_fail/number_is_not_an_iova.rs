//! Field report A10: a bare number where an address is meant.
use vdk_hal::address::{ByteLength, Iova};

fn main() {
    let _ = Iova::new(0x1000).checked_add(4096);
    let _ = ByteLength::SIZE_4K.checked_add(4096_u64.into());
}
