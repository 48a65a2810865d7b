//! Descriptors: 64 bytes each, at addresses that are multiples of 64.

use bitfield::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What a descriptor does: bits 31:24 of its control word. Open, since the value comes from
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation(pub u8);

impl Operation {
    /// Copies `size` bytes: [`IoatDescriptor`].
    pub const COPY: Self = Self(0x00);
    /// Writes an 8-byte pattern over `size` bytes: [`IoatFillDescriptor`].
    pub const FILL: Self = Self(0x01);
    /// XOR of several sources.
    pub const XOR: Self = Self(0x87);
    /// Checks an XOR.
    pub const XOR_VALIDATE: Self = Self(0x88);
    /// P and Q of a RAID 6 set.
    pub const PQ: Self = Self(0x89);
    /// Checks P and Q.
    pub const PQ_VALIDATE: Self = Self(0x8a);
}

bitfield! {
    /// The control word of a copy or fill descriptor. Bits 23:11 are reserved, zero.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct IoatControl(pub u32);
    impl Debug;
    /// Interrupt when the descriptor is done.
    pub interrupt_enable, set_interrupt_enable: 0;
    /// Reads of the source do not snoop the caches. Reserved in a fill.
    pub source_snoop_disable, set_source_snoop_disable: 1;
    /// Writes to the destination do not snoop the caches.
    pub destination_snoop_disable, set_destination_snoop_disable: 2;
    /// Write the completion word when the descriptor is done.
    pub completion_write, set_completion_write: 3;
    /// The next descriptor does not begin before this one is done.
    pub fence, set_fence: 4;
    /// Moves nothing; the rest of the control word is obeyed. The size must not be zero.
    pub null, set_null: 5;
    /// Reading stops at a page boundary. Reserved in a fill.
    pub source_page_break, set_source_page_break: 6;
    /// Writing stops at a page boundary.
    pub destination_page_break, set_destination_page_break: 7;
    /// This descriptor and the next belong together.
    pub bundle, set_bundle: 8;
    /// The destination goes to the cache of a processor.
    pub destination_dca, set_destination_dca: 9;
    /// A hint for direct cache access.
    pub hint, set_hint: 10;
    u8, operation_bits, set_operation_bits: 31, 24;
}

impl IoatControl {
    /// What the descriptor does.
    #[must_use]
    pub fn operation(self) -> Operation {
        Operation(self.operation_bits())
    }

    /// Replaces what the descriptor does.
    pub fn set_operation(&mut self, operation: Operation) {
        self.set_operation_bits(operation.0);
    }
}

/// A copy descriptor, and a null descriptor when [`IoatControl::null`] is set.
///
/// # Ownership
///
/// The driver owns a descriptor until DMACOUNT has counted it; the device owns it from
/// then until a completion word names it or one after it. The device only reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoatDescriptor {
    /// How many bytes, 1 to the [cap](super::transfer_cap).
    pub size: u32,
    /// What to do.
    pub control: IoatControl,
    /// Where to read, an I/O virtual address of any alignment.
    pub source: u64,
    /// Where to write, an I/O virtual address of any alignment.
    pub destination: u64,
    /// The address of the next descriptor, a multiple of 64.
    pub next: u64,
    /// Reserved, zero.
    pub reserved: [u64; 2],
    /// For the driver's own use: the device does not look at it.
    pub user1: u64,
    /// For the driver's own use: the device does not look at it.
    pub user2: u64,
}

/// A fill descriptor: [`Operation::FILL`].
///
/// # Ownership
///
/// As for [`IoatDescriptor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IoatFillDescriptor {
    /// How many bytes, 1 to the [cap](super::transfer_cap).
    pub size: u32,
    /// What to do.
    pub control: IoatControl,
    /// What to write again and again, beginning with its lowest byte at the destination.
    pub pattern: u64,
    /// Where to write, an I/O virtual address.
    pub destination: u64,
    /// The address of the next descriptor, a multiple of 64.
    pub next: u64,
    /// Reserved, zero.
    pub reserved: [u64; 4],
}

const _: () = assert!(size_of::<IoatDescriptor>() == 64 && size_of::<IoatFillDescriptor>() == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem::offset_of;

    #[test]
    fn fields_lie_where_the_engine_looks() {
        assert_eq!(offset_of!(IoatDescriptor, control), 4);
        assert_eq!(offset_of!(IoatDescriptor, source), 8);
        assert_eq!(offset_of!(IoatDescriptor, destination), 16);
        assert_eq!(offset_of!(IoatDescriptor, next), 24);
        assert_eq!(offset_of!(IoatDescriptor, user1), 48);
        assert_eq!(offset_of!(IoatFillDescriptor, pattern), 8);
        assert_eq!(offset_of!(IoatFillDescriptor, next), 24);
    }

    #[test]
    fn the_control_word_has_the_bits_of_the_data_sheet() {
        let mut control = IoatControl::default();
        control.set_interrupt_enable(true);
        control.set_completion_write(true);
        control.set_null(true);
        assert_eq!(control.0, 0x29);
        control.set_operation(Operation::FILL);
        control.set_fence(true);
        assert_eq!(control.0, 0x0100_0039);
        assert_eq!(control.operation(), Operation::FILL);
        assert_eq!(IoatControl(0xff00_0000).operation(), Operation(0xff));
    }
}
