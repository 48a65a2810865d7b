//! The kit against a scripted function, without hardware and without a stub.

mod fake;
mod lifecycle;
mod matching;
mod probe;
mod queue;
mod registry;
mod session;
mod source;
