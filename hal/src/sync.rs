//! The atomics of the protocols that are model-checked.
//!
//! The files [`memory/epoch.rs`](crate::memory) and `mmio/sleep_flag.rs` take atomics and
//! fences from `crate::sync` and `crate::barrier` only. The models under `tests/` include
//! the same files with both names bound to `loom`.

pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
