//! Field report D29: only the barrier yields the token.
use vdk_hal::barrier::DoorbellToken;

fn main() {
    let _ = DoorbellToken(());
}
