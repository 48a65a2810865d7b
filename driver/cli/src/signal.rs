//! Interruption by the user.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};

/// Whether the user asked to stop, by Ctrl-C or SIGTERM. A second request ends the process
/// at once.
#[derive(Clone, Debug)]
pub(crate) struct StopRequest(Arc<AtomicBool>);

impl StopRequest {
    /// Begins to listen.
    pub(crate) fn listen() -> Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // The order matters: the first signal finds the flag unset and only sets it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))
                .and_then(|_| signal_hook::flag::register(signal, Arc::clone(&flag)))
                .context("cannot listen for signals")?;
        }
        Ok(Self(flag))
    }

    /// Whether to stop.
    pub(crate) fn is_set(&self) -> bool {
        // ORDERING: Relaxed; the flag carries nothing but itself.
        self.0.load(Ordering::Relaxed)
    }
}

/// The user asked to stop. Says how things are left.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted: {0}")]
pub(crate) struct Interrupted(pub(crate) &'static str);
