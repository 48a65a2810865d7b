//! The transport core: two endpoints of it against each other, and against what Linux said.

#![forbid(unsafe_code)]

mod answers;
#[expect(unreachable_pub, reason = "the fuzz targets have it as a crate of its own")]
#[path = "../../../tests/fuzz/src/lib.rs"]
mod attack;
mod capture;
mod cases;
mod draining;
mod events;
mod hostile;
mod lab;
mod loss;
mod model;
mod model_retries;
mod model_unreliable;
mod oracle;
mod paths;
mod prediction;
mod random;
mod reliable;
mod repeated;
#[expect(unreachable_pub, reason = "the oracle with a guest has it too")]
#[path = "../../../tests/src/oracle/rows.rs"]
mod rows;
mod scripts;
mod services;
mod unknown;
