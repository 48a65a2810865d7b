//! QEMU's educational device.
//!
//! Layout only. The source is `docs/specs/edu.rst` of QEMU.
//!
//! # The device
//!
//! BAR 0 is 1 MiB of memory space. Below offset 0x80 only 4-byte accesses are allowed,
//! from 0x80 on 4 or 8 bytes; others read as all ones and are not written.
//!
//! - Writing [`FACTORIAL`](EduRegisters::FACTORIAL) starts the computation of `n!`, modulo
//!   2^32, in the background; [`Status::computing`] is set meanwhile, and a write is then
//!   ignored. When [`Status::raise_after_factorial`] is set, the end raises
//!   [`INTERRUPT_FACTORIAL`].
//! - An interrupt is raised by setting bits of the interrupt status, with
//!   [`INTERRUPT_RAISE`](EduRegisters::INTERRUPT_RAISE) or by the device itself. The line
//!   stays asserted until all bits were cleared through
//!   [`INTERRUPT_ACKNOWLEDGE`](EduRegisters::INTERRUPT_ACKNOWLEDGE). With MSI one message
//!   is sent each time bits are raised.
//! - A DMA transfer moves [`DMA_COUNT`](EduRegisters::DMA_COUNT) bytes between memory and
//!   the device's buffer, which the device addresses at [`DMA_BUFFER`]. While
//!   [`DmaCommand::start`] reads as set the transfer runs, and all four DMA registers
//!   ignore writes.
//!
//! The buffer ends at `DMA_BUFFER + DMA_BUFFER_LENGTH`; a transfer that leaves it is an
//! error of the driver (QEMU stops the machine).

use bitfield::bitfield;
use vdk_hal::address::{ByteLength, Iova};
use vdk_hal::register_block;

/// The vendor id.
pub const VENDOR_ID: u16 = 0x1234;
/// The device id.
pub const DEVICE_ID: u16 = 0x11e8;
/// The revision id.
pub const REVISION_ID: u8 = 0x10;
/// Base class, subclass and programming interface: other.
pub const CLASS_CODE: u32 = 0x00ff00;
/// The BAR with the registers.
pub const BAR: u8 = 0;
/// The size of the BAR: 1 MiB.
pub const BAR_LENGTH: ByteLength = ByteLength::new(1 << 20);

/// From this offset on 8-byte accesses are allowed beside 4-byte ones.
pub const WIDE_ACCESS_OFFSET: u64 = 0x80;

/// Where the device's own buffer lies, as the DMA source and destination registers see it.
pub const DMA_BUFFER: Iova = Iova::new(0x40000);
/// The size of that buffer.
pub const DMA_BUFFER_LENGTH: ByteLength = ByteLength::SIZE_4K;
/// How many address bits the device drives unless it was told otherwise (`dma_mask`).
pub const DMA_ADDRESS_BITS: u8 = 28;

/// Raised in the interrupt status when a factorial is ready and was asked to say so.
pub const INTERRUPT_FACTORIAL: u32 = 0x0000_0001;
/// Raised in the interrupt status when a DMA transfer has ended and was asked to say so.
pub const INTERRUPT_DMA: u32 = 0x0000_0100;

register_block! {
    /// The registers, at the beginning of BAR 0.
    pub struct EduRegisters(0x100) {
        /// What the device is: see [`Identification`].
        IDENTIFICATION: u32 @ 0x00, ReadPure;
        /// Reads as the bitwise inverse of what was written last.
        LIVENESS: u32 @ 0x04, ReadWrite;
        /// Write `n`; reads as `n!` modulo 2^32 once it is computed.
        FACTORIAL: u32 @ 0x08, ReadWrite;
        /// See [`Status`].
        STATUS: u32 @ 0x20, ReadWrite;
        /// The causes that are raised and not yet acknowledged.
        INTERRUPT_STATUS: u32 @ 0x24, ReadPure;
        /// Sets these bits of the interrupt status and raises the interrupt.
        INTERRUPT_RAISE: u32 @ 0x60, WriteOnly;
        /// Clears these bits of the interrupt status; the line falls when none is left.
        INTERRUPT_ACKNOWLEDGE: u32 @ 0x64, WriteOnly;
        /// Where the transfer reads: an I/O virtual address, or one in the buffer.
        DMA_SOURCE: u64 @ 0x80, ReadWrite;
        /// Where the transfer writes: an I/O virtual address, or one in the buffer.
        DMA_DESTINATION: u64 @ 0x88, ReadWrite;
        /// How many bytes are moved, at most [`DMA_BUFFER_LENGTH`].
        DMA_COUNT: u64 @ 0x90, ReadWrite;
        /// See [`DmaCommand`].
        DMA_COMMAND: u64 @ 0x98, ReadWrite;
    }
}

bitfield! {
    /// The identification register: 0xMMmm00ed, of which QEMU's device says 0x010000ed.
    #[derive(Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Identification(pub u32);
    impl Debug;
    /// Major version.
    pub u8, major, set_major: 31, 24;
    /// Minor version.
    pub u8, minor, set_minor: 23, 16;
    /// Always [`Identification::SIGNATURE`].
    pub u16, signature, set_signature: 15, 0;
}

impl Identification {
    /// The low half of the register of every edu device.
    pub const SIGNATURE: u16 = 0x00ed;
    /// Version 1.0, which is what QEMU's device says.
    pub const VERSION_1_0: Self = Self(0x0100_00ed);
}

bitfield! {
    /// The status register. Other bits read as written or as zero; write them as zero.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Status(pub u32);
    impl Debug;
    /// A factorial is being computed. Read only.
    pub computing, set_computing: 0;
    /// Raise [`INTERRUPT_FACTORIAL`] when the factorial is ready.
    pub raise_after_factorial, set_raise_after_factorial: 7;
}

bitfield! {
    /// The DMA command register.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct DmaCommand(pub u64);
    impl Debug;
    /// Starts the transfer; reads as set until it has ended.
    pub start, set_start: 0;
    /// Clear: from memory to the buffer, the source is in memory. Set: from the buffer to
    /// memory, the destination is in memory.
    pub to_memory, set_to_memory: 1;
    /// Raise [`INTERRUPT_DMA`] when the transfer has ended.
    pub raise_when_done, set_raise_when_done: 2;
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdk_hal::mmio::{RegisterSet, Width};

    #[test]
    fn registers_below_the_wide_area_are_32_bits_and_the_others_64() {
        for register in EduRegisters::REGISTERS {
            let wide = register.offset as u64 >= WIDE_ACCESS_OFFSET;
            assert_eq!(register.width, if wide { Width::U64 } else { Width::U32 }, "{}", register.name);
        }
        assert_eq!(EduRegisters::REGISTERS.len(), 11);
    }

    #[test]
    fn words_have_the_values_of_the_specification() {
        let identification = Identification::VERSION_1_0;
        assert_eq!((identification.major(), identification.minor()), (1, 0));
        assert_eq!(identification.signature(), Identification::SIGNATURE);
        let mut status = Status::default();
        status.set_raise_after_factorial(true);
        assert_eq!(status.0, 0x80);
        let mut command = DmaCommand::default();
        command.set_start(true);
        assert_eq!(command.0, 1);
        command.set_to_memory(true);
        command.set_raise_when_done(true);
        assert_eq!(command.0, 7);
    }
}
