//! Field report D29: a doorbell that no barrier precedes.
use vdk_hal::mmio::Doorbell;

fn ring(doorbell: &Doorbell<u32>) {
    let _ = doorbell.ring((), 1);
}

fn main() {
    let _ = ring;
}
