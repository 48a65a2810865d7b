//! The emulated devices by raw register access: no driver, numbers as the standards and the
//! data sheets print them.

#![expect(clippy::cast_possible_truncation, reason = "the numbers of these tests fit")]

mod edu;
mod faults;
mod harness;
mod interrupts;
mod ioat_copies;
mod ioat_errors;
mod ioat_interrupts;
mod nvme_admin;
mod nvme_commands;
mod nvme_faults;
mod nvme_host;
mod nvme_transfers;
mod sessions;
mod shell;
