//! The bus-master enable bit of a function.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use vdk_hal::memory::access::AccessDomain;
use vdk_hal::poll::TimedOut;

/// Whether a function may access memory. A function has one gate for all its
/// [`BusMaster`](super::BusMaster)s, in whatever domains they are; its model opens and
/// closes it with bit 2 of the command register, and closes it for a reset.
///
/// # How closing is complete
///
/// A burst looks at the gate after it has announced itself. [`close`](Self::close) marks
/// the gate and then waits, in each domain that a bus master of the gate is in, for the
/// bursts that were announced before, by the means with which an unmap waits. Cached
/// translations of these domains are dropped by it, also those of other functions there:
/// they walk the page table once more.
#[derive(Debug, Default)]
pub struct BusMasterGate {
    open: AtomicBool,
    domains: Mutex<Vec<Weak<AccessDomain>>>,
}

impl BusMasterGate {
    /// A closed gate, as after a reset.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Lets bursts begin.
    pub fn open(&self) {
        // ORDERING: Release: what was set up before is seen by a burst that finds it open.
        self.open.store(true, Ordering::Release);
    }

    /// Lets no more bursts begin and waits for those that are under way: no access through
    /// the gate follows. The thread that calls it must not itself be in a burst.
    ///
    /// # Errors
    ///
    /// [`TimedOut`] when a burst does not end within 2 s in one domain. The gate is closed
    /// then, but bursts that are under way, in whatever domain, may still access memory;
    /// calling again waits again.
    pub fn close(&self) -> Result<(), TimedOut> {
        // ORDERING: SeqCst store before the fence in `revoke_tokens`; pairs with `is_open`
        // in a burst, which comes after the burst's announcement.
        self.open.store(false, Ordering::SeqCst);
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner).clone();
        domains.iter().filter_map(Weak::upgrade).try_for_each(|domain| domain.revoke_tokens())
    }

    /// Whether bursts may begin.
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        // ORDERING: Acquire pairs with the Release in `open`.
        self.open.load(Ordering::Acquire)
    }

    /// Remembers a domain in which bursts through this gate happen. One that is added while
    /// `close` runs is too late to be waited for, but then its bursts find the gate closed.
    pub(super) fn add_domain(&self, domain: &Arc<AccessDomain>) {
        let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.retain(|known| known.strong_count() > 0);
        if !domains.iter().any(|known| core::ptr::eq(known.as_ptr(), Arc::as_ptr(domain))) {
            domains.push(Arc::downgrade(domain));
        }
    }
}
