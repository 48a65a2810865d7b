//! Field report D29: a token stands for the stores before its barrier, so it rings once.
use vdk_hal::barrier;
use vdk_hal::mmio::Doorbell;

fn ring(doorbell: &Doorbell<u32>) {
    let token = barrier::doorbell();
    let _ = doorbell.ring(token, 1);
    let _ = doorbell.ring(token, 2);
}

fn main() {
    let _ = ring;
}
