//! The kit against a scripted function, without hardware and without a stub.

mod fake;
mod matching;
mod queue;
mod session;
mod source;
