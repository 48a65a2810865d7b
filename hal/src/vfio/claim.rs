//! Which functions this process has open: each is opened once.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::refusal::Refusal;
use crate::address::Bdf;

/// The right of this process to one function, given back when dropped.
#[derive(Debug)]
pub(super) struct Claim(Bdf);

impl Claim {
    pub(super) fn take(address: Bdf) -> Result<Self, Refusal> {
        if claimed().insert(address) { Ok(Self(address)) } else { Err(Refusal::busy("this process")) }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed().remove(&self.0);
    }
}

fn claimed() -> MutexGuard<'static, BTreeSet<Bdf>> {
    static CLAIMED: Mutex<BTreeSet<Bdf>> = Mutex::new(BTreeSet::new());
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_claimed_once_at_a_time() {
        let address = "fffe:01:02.3".parse().unwrap();
        let claim = Claim::take(address).unwrap();
        let error = Claim::take(address).unwrap_err().text();
        assert!(error.ends_with("is open already, by this process"), "{error}");
        drop(claim);
        drop(Claim::take(address).unwrap());
    }
}
