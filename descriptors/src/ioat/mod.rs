//! Intel I/OAT: the "QuickData" copy engine, also called CBDMA, interface version 3.
//!
//! Layout only: [`registers`](IoatRegisters), [words](ChannelStatus) and
//! [descriptors](IoatDescriptor). Names of registers are those of Intel's data sheets of
//! the Xeon E5 processors; offsets and bits were checked against the definitions that
//! Linux 6.12 uses for the same device.
//!
//! # Finding the channels
//!
//! BAR 0 is [`BAR_LENGTH`] of memory space. It begins with the registers of the device,
//! [`IoatRegisters`]; the block of channel `n`, [`IoatChannelRegisters`], begins at
//! [`channel_offset`]`(n)`. Processors of the E5 family show one channel per PCI function,
//! each with one MSI-X vector.
//!
//! # Interface versions
//!
//! CBVER has the version, major in the upper four bits. Versions 1 and 2 put the chain
//! address and the command elsewhere or start a chain in another way; this module
//! describes 3.0 ([`VERSION_3_0`]) to 3.4, which agree in what it names. 3.0 refuses a
//! null descriptor whose size is zero, so a null descriptor always has size 1 here. 3.3
//! lost the MSI-X table on a channel reset in its first devices (Atom C2000, Xeon D-1500).
//!
//! # How a channel works
//!
//! 1. After a reset the driver writes CHANCMP with the address of the 8-byte completion
//!    word, CHANCTRL, and CHAINADDR with the address of the first descriptor. CHANCMP and
//!    CHAINADDR are 64-bit registers that take **two 32-bit writes, low word first**.
//! 2. Descriptors are linked by `next`, usually to a circle. The engine follows `next`
//!    and does not know where the circle ends.
//! 3. DMACOUNT is the doorbell: it counts the descriptors that were made ready since
//!    CHAINADDR was written, **free running and modulo 2^16**. The engine keeps a count of
//!    those that it has executed and works while the two differ. So at most 65,535 may be
//!    outstanding, and no START or APPEND command is needed as it was in version 1.
//! 4. A descriptor whose control word asks for it makes the engine write a completion word
//!    to CHANCMP: the address of that descriptor in bits 63:6, and the state of the channel
//!    in the low bits, as [`ChannelStatus`]. Descriptors complete in order, so the word
//!    tells how far the engine has come. It is also written on an error when CHANCTRL says
//!    so, with [`ChannelState::Halted`].
//! 5. With an interrupt asked for, the channel sends one and then none until CHANCTRL is
//!    written again with [`ChannelControl::interrupt_rearm`] set. With one vector for all
//!    channels, ATTNSTATUS tells which.
//! 6. An error halts the channel: CHANERR tells why, and CHANSTS still has the address of
//!    the last descriptor that was completed, so the next one is at fault. The driver
//!    clears CHANERR by writing the ones back, resets the channel, and sets it up as in 1.
//!    The count begins at zero again.
//! 7. [`ChannelCommand::SUSPEND`] stops the engine between two descriptors. As the drivers
//!    of this device do it, a stopped channel runs again after CHAINADDR and then DMACOUNT
//!    are written, the count from zero. [`ChannelCommand::RESET`] reads as set until the
//!    reset has ended.

mod descriptor;
mod registers;
mod words;

pub use descriptor::{IoatControl, IoatDescriptor, IoatFillDescriptor, Operation};
pub use registers::{IoatChannelRegisters, IoatRegisters};
pub use words::{
    Capabilities, ChannelCommand, ChannelControl, ChannelErrors, ChannelState, ChannelStatus,
    InterruptControl, InterruptDelay, Version,
};

use vdk_hal::address::ByteLength;

/// The vendor id: Intel.
pub const VENDOR_ID: u16 = 0x8086;
/// Base class, subclass and programming interface: system peripheral, other.
pub const CLASS_CODE: u32 = 0x08_8000;
/// The BAR with the registers.
pub const BAR: u8 = 0;
/// The size of the BAR.
pub const BAR_LENGTH: ByteLength = ByteLength::new(16 << 10);
/// Where the MSI-X table lies in the BAR of the E5 and E7 families.
pub const MSIX_TABLE_OFFSET: u64 = 0x2000;
/// Where the pending bits of MSI-X lie in the BAR of the E5 and E7 families.
pub const MSIX_PENDING_OFFSET: u64 = 0x3000;
/// The size of a descriptor. Its address is a multiple of it.
pub const DESCRIPTOR_LENGTH: ByteLength = ByteLength::new(64);
/// The alignment of the completion word that CHANCMP points to, and its size.
pub const COMPLETION_ALIGNMENT: ByteLength = ByteLength::new(8);
/// The size of one block of channel registers.
pub const CHANNEL_STRIDE: u64 = 0x80;
/// CHANCNT has five bits; drivers see at most this many channels in one function.
pub const MAX_CHANNELS: u8 = 31;
/// How many descriptors may be outstanding: one less than the period of DMACOUNT.
pub const MAX_OUTSTANDING: u16 = u16::MAX;

/// Version 3.0, in CBVER.
pub const VERSION_3_0: Version = Version(0x30);
/// Version 3.2: Xeon E5.
pub const VERSION_3_2: Version = Version(0x32);
/// Version 3.3: Atom C2000, Xeon D-1500.
pub const VERSION_3_3: Version = Version(0x33);
/// Version 3.4: Xeon Scalable of the third generation.
pub const VERSION_3_4: Version = Version(0x34);

/// Where the register block of `channel` begins in the BAR, in bytes.
#[must_use]
pub const fn channel_offset(channel: u8) -> u64 {
    CHANNEL_STRIDE * (channel as u64 + 1)
}

/// The largest transfer of one descriptor, as XFERCAP says: its low five bits are the
/// binary logarithm of the size in bytes. Zero means no transfer at all (Linux then sees
/// no channels): `None`.
#[must_use]
pub const fn transfer_cap(xfercap: u8) -> Option<ByteLength> {
    match xfercap & 0x1f {
        0 => None,
        log2 => Some(ByteLength::new(1 << log2)),
    }
}

/// One PCI device id and what has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// The device id; the vendor is [`VENDOR_ID`].
    pub device: u16,
    /// The product, and the function where it has several.
    pub name: &'static str,
    /// The interface version of the platform.
    pub version: Version,
}

/// The devices with an interface of version 3, in ascending order of their ids. Names as
/// in the PCI ID repository.
pub const DEVICE_IDS: &[DeviceId] = &[
    id(0x0b00, "Xeon Scalable (Ice Lake) CBDMA", VERSION_3_4),
    id(0x0c50, "Atom C2000 QuickData 0", VERSION_3_3),
    id(0x0c51, "Atom C2000 QuickData 1", VERSION_3_3),
    id(0x0c52, "Atom C2000 QuickData 2", VERSION_3_3),
    id(0x0c53, "Atom C2000 QuickData 3", VERSION_3_3),
    id(0x0e20, "Xeon E5 v2 DMA channel 0", VERSION_3_2),
    id(0x0e21, "Xeon E5 v2 DMA channel 1", VERSION_3_2),
    id(0x0e22, "Xeon E5 v2 DMA channel 2", VERSION_3_2),
    id(0x0e23, "Xeon E5 v2 DMA channel 3", VERSION_3_2),
    id(0x0e24, "Xeon E5 v2 DMA channel 4", VERSION_3_2),
    id(0x0e25, "Xeon E5 v2 DMA channel 5", VERSION_3_2),
    id(0x0e26, "Xeon E5 v2 DMA channel 6", VERSION_3_2),
    id(0x0e27, "Xeon E5 v2 DMA channel 7", VERSION_3_2),
    id(0x0e2e, "Xeon E5 v2 DMA, RAID 0", VERSION_3_2),
    id(0x0e2f, "Xeon E5 v2 DMA, RAID 1", VERSION_3_2),
    id(0x2021, "Xeon Scalable (Skylake) CBDMA", VERSION_3_2),
    id(0x2f20, "Xeon E5 v3 DMA channel 0", VERSION_3_2),
    id(0x2f21, "Xeon E5 v3 DMA channel 1", VERSION_3_2),
    id(0x2f22, "Xeon E5 v3 DMA channel 2", VERSION_3_2),
    id(0x2f23, "Xeon E5 v3 DMA channel 3", VERSION_3_2),
    id(0x2f24, "Xeon E5 v3 DMA channel 4", VERSION_3_2),
    id(0x2f25, "Xeon E5 v3 DMA channel 5", VERSION_3_2),
    id(0x2f26, "Xeon E5 v3 DMA channel 6", VERSION_3_2),
    id(0x2f27, "Xeon E5 v3 DMA channel 7", VERSION_3_2),
    id(0x2f2e, "Xeon E5 v3 DMA, RAID 0", VERSION_3_2),
    id(0x2f2f, "Xeon E5 v3 DMA, RAID 1", VERSION_3_2),
    id(0x3429, "5520/5500/X58 QuickData 4", VERSION_3_0),
    id(0x342a, "5520/5500/X58 QuickData 5", VERSION_3_0),
    id(0x342b, "5520/5500/X58 QuickData 6", VERSION_3_0),
    id(0x342c, "5520/5500/X58 QuickData 7", VERSION_3_0),
    id(0x3430, "5520/5500/X58 QuickData 0", VERSION_3_0),
    id(0x3431, "5520/5500/X58 QuickData 1", VERSION_3_0),
    id(0x3432, "5520/5500/X58 QuickData 2", VERSION_3_0),
    id(0x3433, "5520/5500/X58 QuickData 3", VERSION_3_0),
    id(0x3710, "Xeon C5500/C3500 DMA 0", VERSION_3_2),
    id(0x3711, "Xeon C5500/C3500 DMA 1", VERSION_3_2),
    id(0x3712, "Xeon C5500/C3500 DMA 2", VERSION_3_2),
    id(0x3713, "Xeon C5500/C3500 DMA 3", VERSION_3_2),
    id(0x3714, "Xeon C5500/C3500 DMA 4", VERSION_3_2),
    id(0x3715, "Xeon C5500/C3500 DMA 5", VERSION_3_2),
    id(0x3716, "Xeon C5500/C3500 DMA 6", VERSION_3_2),
    id(0x3717, "Xeon C5500/C3500 DMA 7", VERSION_3_2),
    id(0x3718, "Xeon C5500/C3500 DMA 8", VERSION_3_2),
    id(0x3719, "Xeon C5500/C3500 DMA 9", VERSION_3_2),
    id(0x3c20, "Xeon E5 DMA channel 0", VERSION_3_2),
    id(0x3c21, "Xeon E5 DMA channel 1", VERSION_3_2),
    id(0x3c22, "Xeon E5 DMA channel 2", VERSION_3_2),
    id(0x3c23, "Xeon E5 DMA channel 3", VERSION_3_2),
    id(0x3c24, "Xeon E5 DMA channel 4", VERSION_3_2),
    id(0x3c25, "Xeon E5 DMA channel 5", VERSION_3_2),
    id(0x3c26, "Xeon E5 DMA channel 6", VERSION_3_2),
    id(0x3c27, "Xeon E5 DMA channel 7", VERSION_3_2),
    id(0x3c2e, "Xeon E5 DMA, RAID 0", VERSION_3_2),
    id(0x3c2f, "Xeon E5 DMA, RAID 1", VERSION_3_2),
    id(0x6f20, "Xeon E5 v4 DMA channel 0", VERSION_3_2),
    id(0x6f21, "Xeon E5 v4 DMA channel 1", VERSION_3_2),
    id(0x6f22, "Xeon E5 v4 DMA channel 2", VERSION_3_2),
    id(0x6f23, "Xeon E5 v4 DMA channel 3", VERSION_3_2),
    id(0x6f24, "Xeon E5 v4 DMA channel 4", VERSION_3_2),
    id(0x6f25, "Xeon E5 v4 DMA channel 5", VERSION_3_2),
    id(0x6f26, "Xeon E5 v4 DMA channel 6", VERSION_3_2),
    id(0x6f27, "Xeon E5 v4 DMA channel 7", VERSION_3_2),
    id(0x6f2e, "Xeon E5 v4 DMA, RAID 0", VERSION_3_2),
    id(0x6f2f, "Xeon E5 v4 DMA, RAID 1", VERSION_3_2),
    id(0x6f50, "Xeon D-1500 QuickData 0", VERSION_3_3),
    id(0x6f51, "Xeon D-1500 QuickData 1", VERSION_3_3),
    id(0x6f52, "Xeon D-1500 QuickData 2", VERSION_3_3),
    id(0x6f53, "Xeon D-1500 QuickData 3", VERSION_3_3),
];

const fn id(device: u16, name: &'static str, version: Version) -> DeviceId {
    DeviceId { device, name, version }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_ids_are_ascending_and_all_of_version_3() {
        assert!(DEVICE_IDS.windows(2).all(|pair| pair[0].device < pair[1].device));
        assert!(DEVICE_IDS.iter().all(|id| id.version.major() == 3));
        assert_eq!(DEVICE_IDS.len(), 68);
    }

    #[test]
    fn the_transfer_cap_is_a_power_of_two_and_zero_is_none() {
        assert_eq!(transfer_cap(0), None);
        assert_eq!(transfer_cap(0xe0), None);
        assert_eq!(transfer_cap(20), Some(ByteLength::new(1 << 20)));
        assert_eq!(transfer_cap(0xff), Some(ByteLength::new(1 << 31)));
    }

    #[test]
    fn channels_follow_the_device_block() {
        assert_eq!(channel_offset(0), 0x80);
        assert_eq!(channel_offset(3), 0x200);
        assert!(channel_offset(MAX_CHANNELS) <= BAR_LENGTH.as_u64());
    }
}
