//! Intel I/OAT, interface version 3.2: a copy engine with channels.
//!
//! Registers, words and descriptors are in [`vdk_descriptors::ioat`]. The device appears as
//! a channel of the Xeon E5 v3, with more than one channel as in earlier products, and can
//! copy and fill; XOR and P+Q are not there. MSI-X has one vector for each channel.
//!
//! # Stricter than hardware
//!
//! - Each register takes its own width only; a 64-bit register is written by two 32-bit
//!   writes, of which the upper one takes effect, and read by two or one.
//! - A doorbell without a chain, or while the channel is halted, is a driver fault and is
//!   taken back.
//! - A descriptor that uses what the engine has not, or bits that are reserved, halts the
//!   channel, as does whatever the IOMMU refuses.
//! - A channel reset clears everything in the block, CHANCTRL and CHANCMP included.
//!
//! # Not modelled
//!
//! Direct cache access, CRC, XOR and P+Q, the older interfaces, priorities among channels,
//! and snooping: DCACTRL, CHWPREFLMT and the priority bits only keep what is written.

mod attention;
mod channel;
mod doorbell;
mod engine;
mod plain;
mod registers;
mod report;

use std::sync::Arc;

use vdk_descriptors::ioat::{
    BAR, BAR_LENGTH, CHANNEL_STRIDE, CLASS_CODE, Capabilities, IoatChannelRegisters, IoatRegisters,
    MSIX_PENDING_OFFSET, MSIX_TABLE_OFFSET, VENDOR_ID, VERSION_3_2, channel_offset, transfer_cap,
};
use vdk_hal::address::{BarIndex, ByteLength};
use vdk_hal::bar::{BarKind, MappedArea};
use vdk_hal::function::PciIdentity;
use vdk_hal::memory::{MemoryError, Pages, SharedMemory};
use vdk_hal::mmio::{Kick, RegisterSet, Width};
use vdk_iommu::soft::BusMaster;

use self::attention::Attention;
use self::channel::Channel;
use self::registers::{Access, find};
use crate::driver_fault::DriverFaultKind;
use crate::options::{StubError, StubOptions};
use crate::shell::{
    BarProfile, ConfigRegister, DeviceModel, ExpressProfile, MsiProfile, MsixProfile, PowerProfile, Profile,
    Surroundings, Work,
};

/// The profile and the model of an I/OAT.
pub(crate) fn build(options: &StubOptions) -> Result<(Profile, Box<dyn DeviceModel>), StubError> {
    StubError::check_range("the count of channels", u64::from(options.channels), 1..=4)?;
    StubError::check_range("the transfer cap", u64::from(options.transfer_cap_log2), 12..=31)?;
    let bar = BarIndex::new(BAR).ok_or(StubError::Profile { what: "there is no such BAR" })?;
    let inside = |offset: u64| {
        u32::try_from(offset).map_err(|_| StubError::Profile { what: "MSI-X is outside its BAR" })
    };
    let profile = Profile {
        name: "stub:ioat".to_owned(),
        identity: PciIdentity {
            vendor: VENDOR_ID,
            device: DEVICE_ID,
            revision: 0x02,
            class: CLASS_CODE,
            subsystem_vendor: VENDOR_ID,
            subsystem: 0,
        },
        bars: vec![BarProfile { index: bar, kind: BarKind::Memory64, prefetchable: false, size: BAR_LENGTH }],
        intx: true,
        msi: Some(MsiProfile { vectors: 1, maskable: true }),
        msix: Some(MsixProfile {
            vectors: u16::from(options.channels),
            table: (bar, inside(MSIX_TABLE_OFFSET)?),
            pending: (bar, inside(MSIX_PENDING_OFFSET)?),
        }),
        power: Some(PowerProfile { no_soft_reset: options.no_soft_reset }),
        express: Some(ExpressProfile { function_level_reset: true }),
        registers: vec![
            // CHANERR_INT, the channel errors as configuration space shows them, and its mask.
            ConfigRegister { offset: 0x180, writable: 0, write_one_to_clear: u32::MAX, value: 0 },
            ConfigRegister { offset: 0x184, writable: u32::MAX, write_one_to_clear: 0, value: 0 },
        ],
        serial_number: options.seed ^ u64::from(options.address.requester_id().as_u16()) << 48,
    };
    Ok((profile, Box::new(Ioat::new(bar, options))))
}

/// The registers of the device and its channels.
struct Ioat {
    bar: BarIndex,
    mapped_doorbells: bool,
    transfer_cap_log2: u8,
    general_control: u8,
    attention: Attention,
    channels: Vec<Channel>,
}

impl Ioat {
    fn new(bar: BarIndex, options: &StubOptions) -> Self {
        let cap = transfer_cap(options.transfer_cap_log2).unwrap_or(ByteLength::SIZE_4K);
        Self {
            bar,
            mapped_doorbells: options.mapped_doorbells,
            transfer_cap_log2: options.transfer_cap_log2,
            general_control: 0,
            attention: Attention::default(),
            channels: (0..options.channels).map(|number| Channel::new(number, bar, cap)).collect(),
        }
    }

    /// The channel whose block `offset` is in, and where in it.
    fn channel(&mut self, offset: u64) -> Option<(&mut Channel, u64)> {
        let inside = offset.checked_sub(channel_offset(0))?;
        let number = usize::try_from(inside / CHANNEL_STRIDE).ok()?;
        Some((self.channels.get_mut(number)?, inside % CHANNEL_STRIDE))
    }

    fn read_device(&mut self, access: Access, surroundings: &Surroundings<'_>) -> u64 {
        let mut capabilities = Capabilities::default();
        capabilities.set_fill(true);
        let offset = access.register;
        if offset == IoatRegisters::CHANCNT.offset() {
            // CAST: at most 4 channels.
            self.channels.len() as u64
        } else if offset == IoatRegisters::XFERCAP.offset() {
            u64::from(self.transfer_cap_log2)
        } else if offset == IoatRegisters::GENCTRL.offset() {
            u64::from(self.general_control)
        } else if offset == IoatRegisters::INTRCTRL.offset() {
            u64::from(self.attention.take_control(surroundings).0)
        } else if offset == IoatRegisters::ATTNSTATUS.offset() {
            u64::from(self.attention.take_status(surroundings))
        } else if offset == IoatRegisters::CBVER.offset() {
            u64::from(VERSION_3_2.0)
        } else if offset == IoatRegisters::INTRDELAY.offset() {
            u64::from(self.attention.delay().0)
        } else if offset == IoatRegisters::DMACAPABILITY.offset() {
            u64::from(capabilities.0)
        } else {
            // PERPORTOFFSET, CSSTATUS, DCAOFFSET: no ports, nothing to report, no DCA.
            0
        }
    }

    fn write_device(&mut self, access: Access, value: u64, surroundings: &Surroundings<'_>) {
        let offset = access.register;
        let low = value.to_le_bytes();
        if offset == IoatRegisters::GENCTRL.offset() {
            self.general_control = low[0] & GENERAL_CONTROL;
        } else if offset == IoatRegisters::INTRCTRL.offset() {
            self.attention.write_control(low[0], surroundings);
        } else if offset == IoatRegisters::INTRDELAY.offset() {
            self.attention.write_delay(u16::from_le_bytes([low[0], low[1]]));
        }
    }
}

impl DeviceModel for Ioat {
    fn open(&mut self, kick: &Arc<Kick>) -> Result<Vec<(BarIndex, MappedArea)>, MemoryError> {
        if !self.mapped_doorbells {
            return Ok(Vec::new());
        }
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base)?;
        let mut areas = Vec::with_capacity(self.channels.len());
        for (number, channel) in (0..).zip(&mut self.channels) {
            // The page has room for 32 cells, each on cache lines of its own.
            let Ok(cell) = memory.slice(usize::from(number) * CELL_STRIDE, 2) else { continue };
            channel.map_doorbell(cell.clone());
            let offset = channel_offset(number) + doorbell_offset();
            areas.push((self.bar, MappedArea { offset, memory: cell, kick: Some(Arc::clone(kick)) }));
        }
        Ok(areas)
    }

    fn read(
        &mut self,
        _bar: BarIndex,
        offset: u64,
        width: Width,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<u64, DriverFaultKind> {
        if offset < channel_offset(0) {
            let access = find(IoatRegisters::REGISTERS, offset, width)?.for_read()?;
            return Ok(self.read_device(access, surroundings));
        }
        let (channel, offset) = self.channel(offset).ok_or(DriverFaultKind::Hole)?;
        let access = find(IoatChannelRegisters::REGISTERS, offset, width)?.for_read()?;
        channel.poll_doorbell(surroundings);
        Ok(access.part_of(channel.read(access.register)))
    }

    fn write(
        &mut self,
        _bar: BarIndex,
        offset: u64,
        width: Width,
        value: u64,
        surroundings: &mut Surroundings<'_>,
    ) -> Result<(), DriverFaultKind> {
        if offset < channel_offset(0) {
            let access = find(IoatRegisters::REGISTERS, offset, width)?.for_write(width)?;
            self.write_device(access, value, surroundings);
            return Ok(());
        }
        // Borrowed apart from the channels.
        let mut attention = core::mem::take(&mut self.attention);
        let result = match self.channel(offset) {
            None => Err(DriverFaultKind::Hole),
            Some((channel, offset)) => find(IoatChannelRegisters::REGISTERS, offset, width)
                .and_then(|access| access.for_write(width))
                .and_then(|access| channel.write(access, value, &mut attention, surroundings)),
        };
        self.attention = attention;
        result
    }

    fn reset(&mut self) {
        self.general_control = 0;
        self.attention = Attention::default();
        for channel in &mut self.channels {
            channel.function_reset();
        }
    }

    fn poll_doorbells(&mut self, surroundings: &mut Surroundings<'_>) {
        for channel in &mut self.channels {
            channel.poll_doorbell(surroundings);
        }
    }

    #[inline]
    fn work(&mut self, bus: &mut BusMaster, surroundings: &mut Surroundings<'_>) -> Work {
        let mut work = Work::Idle;
        for channel in &mut self.channels {
            work = work.and(channel.step(bus, &mut self.attention, surroundings));
        }
        if work == Work::Idle {
            // With two of them, one would wait for the other.
            let mut running = self.channels.iter_mut().filter(|channel| channel.is_running());
            if let (Some(channel), None) = (running.next(), running.next()) {
                work = channel.await_doorbell(bus, surroundings);
            }
        }
        if self.attention.is_delayed() { work.and(self.attention.deliver_due(surroundings)) } else { work }
    }
}

fn doorbell_offset() -> u64 {
    // CAST: `usize` is at most 64 bits wide.
    IoatChannelRegisters::DMACOUNT.offset() as u64
}

/// Xeon E5 v3, DMA channel 0.
const DEVICE_ID: u16 = 0x2f20;
/// The debug bit.
const GENERAL_CONTROL: u8 = 0x01;
/// Doorbell cells do not share cache lines, nor pairs of them.
const CELL_STRIDE: usize = 128;
