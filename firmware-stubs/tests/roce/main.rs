//! The transport core: two endpoints of it against each other, and against what Linux said.

#![forbid(unsafe_code)]

mod lab;
mod loss;
mod oracle;
mod reliable;
mod services;
