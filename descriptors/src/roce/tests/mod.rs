//! Frames of Linux, of hardware and of another implementation, read and rebuilt.

mod captures;
mod foreign;
mod prediction;
mod reference;
mod round_trip;
mod vectors;
