//! The NVMe driver on the emulated controller.

mod blocks;
mod faults;
mod harness;
mod life;
mod states;
mod stop;
