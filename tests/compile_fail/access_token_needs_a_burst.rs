//! A token is a bare address; only a burst can use it, and a burst borrows its reader.
use vdk_hal::memory::access::{AccessReader, AccessToken};

fn keep(reader: &mut AccessReader, token: &AccessToken) {
    let first = reader.enter();
    let second = reader.enter();
    let _ = first.read(token, 0, &mut [0]);
    drop(second);
}

fn main() {
    let _ = keep;
}
