//! A requester fed hostile frames: no panic, nothing touched that was not granted, bounded work.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vdk_fuzz::{Aim, attack};

fuzz_target!(|script: &[u8]| attack(script, Aim::Requester));
