//! The transport core: two endpoints of it against each other, and against what Linux said.

#![forbid(unsafe_code)]

mod capture;
mod hostile;
mod lab;
mod loss;
mod model;
mod oracle;
mod random;
mod reliable;
mod services;
