//! Field report A10: comparing addresses of two spaces has no meaning.
use vdk_hal::address::{HostAddress, Iova};

fn main() {
    let _ = Iova::new(0x1000) == HostAddress::new(0x1000);
}
