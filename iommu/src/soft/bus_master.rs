//! The way of one device thread into an address space.

use core::fmt;
use std::sync::Arc;

use vdk_hal::address::{Iova, IovaRange, RequesterId};
use vdk_hal::memory::access::AccessReader;

use super::burst::Burst;
use super::fault::{FaultReason, TranslationFault};
use super::iotlb::Iotlb;
use super::{BusMasterGate, SoftDomain};

/// One device thread's way to memory: every access is translated by the domain, checked
/// against the rights of the mapping, and refused while the function's gate is closed.
///
/// Each method is one [`Burst`], which renews itself when it gets long; several accesses in
/// a row are faster through [`burst`](Self::burst). All of them behave alike:
///
/// - An access may span mappings that touch, whatever memory is behind them.
/// - An access of no bytes succeeds and touches nothing, even where nothing is mapped.
/// - When an access faults in the middle, the bytes before the faulting address may have
///   been moved, as on hardware.
/// - Bytes of one access are moved in no particular order, unless the method says so.
/// - Every fault is also in the log of the IOMMU.
pub struct BusMaster {
    reader: AccessReader,
    iotlb: Iotlb,
    port: Port,
}

impl BusMaster {
    pub(super) fn new(
        domain: Arc<SoftDomain>,
        reader: AccessReader,
        requester: RequesterId,
        gate: Arc<BusMasterGate>,
    ) -> Self {
        Self { reader, iotlb: Iotlb::new(), port: Port { domain, requester, gate } }
    }

    /// The ID that faults carry.
    #[must_use]
    pub fn requester(&self) -> RequesterId {
        self.port.requester
    }

    /// The gate of the function.
    #[must_use]
    pub fn gate(&self) -> &Arc<BusMasterGate> {
        &self.port.gate
    }

    /// The address space.
    #[must_use]
    pub fn domain(&self) -> &Arc<SoftDomain> {
        &self.port.domain
    }

    /// Begins a burst.
    ///
    /// # Errors
    ///
    /// [`FaultReason::BusMasterOff`], at address 0.
    #[inline]
    pub fn burst(&mut self) -> Result<Burst<'_>, TranslationFault> {
        self.begin(Iova::new(0), false)
    }

    /// Copies from `address` on into the device.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be read.
    #[inline]
    pub fn read(&mut self, address: Iova, bytes: &mut [u8]) -> Result<(), TranslationFault> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.begin(address, false)?.read(address, bytes)
    }

    /// Copies out of the device to `address` and on.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be written.
    #[inline]
    pub fn write(&mut self, address: Iova, bytes: &[u8]) -> Result<(), TranslationFault> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.begin(address, true)?.write(address, bytes)
    }

    /// Copies within the address space; see [`Burst::copy`].
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be read or written.
    #[inline]
    pub fn copy(&mut self, destination: Iova, source: Iova, length: u64) -> Result<(), TranslationFault> {
        if length == 0 {
            return Ok(());
        }
        self.begin(source, false)?.copy(destination, source, length)
    }

    /// Fills memory with a pattern; see [`Burst::fill`].
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] at the first address that cannot be written.
    #[inline]
    pub fn fill(&mut self, address: Iova, length: u64, pattern: u64) -> Result<(), TranslationFault> {
        if length == 0 {
            return Ok(());
        }
        self.begin(address, true)?.fill(address, length, pattern)
    }

    /// Loads a word in one access, with Acquire order.
    ///
    /// # Errors
    ///
    /// A [`TranslationFault`]; [`FaultReason::Misaligned`] unless `address` is a multiple
    /// of 8.
    #[inline]
    pub fn load_u64(&mut self, address: Iova) -> Result<u64, TranslationFault> {
        self.begin(address, false)?.load_u64(address)
    }

    /// Stores a word in one access, with Release order.
    ///
    /// # Errors
    ///
    /// As [`load_u64`](Self::load_u64).
    #[inline]
    pub fn store_u64(&mut self, address: Iova, value: u64) -> Result<(), TranslationFault> {
        self.begin(address, true)?.store_u64(address, value)
    }

    /// The mapping that `address` is in: a range that the device may touch now.
    ///
    /// # Errors
    ///
    /// The [`TranslationFault`] that an access would have.
    #[inline]
    pub fn translate(&mut self, address: Iova, write: bool) -> Result<IovaRange, TranslationFault> {
        self.begin(address, write)?.translate(address, write)
    }

    #[inline(always)]
    pub(super) fn begin(&mut self, address: Iova, write: bool) -> Result<Burst<'_>, TranslationFault> {
        let access = self.reader.enter();
        // After `enter`, as the gate demands.
        if self.port.gate.is_open() {
            Ok(Burst::new(access, &mut self.iotlb, &self.port))
        } else {
            Err(self.port.fault(FaultReason::BusMasterOff, address, write))
        }
    }
}

impl fmt::Debug for BusMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BusMaster")
            .field("requester", &self.port.requester)
            .field("open", &self.port.gate.is_open())
            .field("domain", &self.port.domain)
            .finish_non_exhaustive()
    }
}

/// What the accesses of a bus master go through.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) domain: Arc<SoftDomain>,
    pub(super) requester: RequesterId,
    pub(super) gate: Arc<BusMasterGate>,
}

impl Port {
    /// Makes a fault and enters it into the log.
    #[cold]
    pub(super) fn fault(&self, reason: FaultReason, address: Iova, write: bool) -> TranslationFault {
        let fault = TranslationFault { reason, requester: self.requester, address, write };
        self.domain.report(fault);
        fault
    }
}
