//! The direction of a mapping, in the type.

use vdk_hal::dma::Permissions;

/// Which way data moves through a mapping, as seen from the processor.
///
/// The three directions are types without values; a mapping is made with exactly
/// [`PERMISSIONS`](Self::PERMISSIONS), so a device that moves data the other way faults.
pub trait Direction: sealed::Sealed + Send + Sync + 'static {
    /// What the device may do.
    const PERMISSIONS: Permissions;
}

/// Directions in which the processor fills the memory and the device reads it.
pub trait CpuWrites: Direction {}

/// Directions in which the device fills the memory and the processor reads it.
pub trait CpuReads: Direction {}

/// The device reads only.
#[derive(Clone, Copy, Debug)]
pub enum ToDevice {}

/// The device writes only.
#[derive(Clone, Copy, Debug)]
pub enum FromDevice {}

/// Both read and write: rings, doorbell records, memory that changes its role.
#[derive(Clone, Copy, Debug)]
pub enum Bidirectional {}

impl Direction for ToDevice {
    const PERMISSIONS: Permissions = Permissions::Read;
}

impl Direction for FromDevice {
    const PERMISSIONS: Permissions = Permissions::Write;
}

impl Direction for Bidirectional {
    const PERMISSIONS: Permissions = Permissions::ReadWrite;
}

impl CpuWrites for ToDevice {}
impl CpuWrites for Bidirectional {}
impl CpuReads for FromDevice {}
impl CpuReads for Bidirectional {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::ToDevice {}
    impl Sealed for super::FromDevice {}
    impl Sealed for super::Bidirectional {}
}
