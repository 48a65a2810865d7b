//! The words in the registers of the device and of a channel.

use core::fmt;
use core::ops::{BitAnd, BitOr, BitOrAssign};

use bitfield::bitfield;
use vdk_hal::address::Iova;

bitfield! {
    /// CBVER: the interface version.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Version(pub u8);
    impl Debug;
    /// Major version; this module describes 3.
    pub u8, major, _: 7, 4;
    /// Minor version.
    pub u8, minor, _: 3, 0;
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

bitfield! {
    /// INTRCTRL: interrupts of the whole device.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InterruptControl(pub u8);
    impl Debug;
    /// Lets the device interrupt at all. With one vector for all channels reading the
    /// register clears it.
    pub master_enable, set_master_enable: 0;
    /// A channel wants attention. Read only.
    pub status, set_status: 1;
    /// An interrupt is being signalled: `status` and `master_enable`. Read only.
    pub signalled, set_signalled: 2;
    /// Gives each channel its own MSI-X vector, numbered like the channel.
    pub vector_per_channel, set_vector_per_channel: 3;
}

bitfield! {
    /// INTRDELAY: how long interrupts are held back so that several become one.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InterruptDelay(pub u16);
    impl Debug;
    /// The delay in microseconds.
    pub u16, microseconds, set_microseconds: 13, 0;
    /// Whether the device can do this. Read only.
    pub supported, set_supported: 15;
}

bitfield! {
    /// DMACAPABILITY: what the engine can do beyond copying, which it always can.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Capabilities(pub u32);
    impl Debug;
    /// Page break: may stop a transfer at a page boundary.
    pub page_break, set_page_break: 0;
    /// CRC generation.
    pub crc, set_crc: 1;
    /// Markers skipped while the CRC is computed.
    pub skip_marker, set_skip_marker: 2;
    /// Direct cache access.
    pub direct_cache_access, set_direct_cache_access: 4;
    /// Copy with CRC.
    pub crc_move, set_crc_move: 5;
    /// Fill with a pattern: [`Operation::FILL`](super::Operation::FILL).
    pub fill, set_fill: 6;
    /// Physical APIC ids in DCACTRL.
    pub apic, set_apic: 7;
    /// XOR of several sources.
    pub xor, set_xor: 8;
    /// P and Q of a RAID 6 set.
    pub pq, set_pq: 9;
    /// Error status written back into the descriptor.
    pub descriptor_write_back, set_descriptor_write_back: 13;
    /// RAID with 16 sources through extended descriptors.
    pub raid_16_sources, set_raid_16_sources: 17;
    /// Descriptors are fetched ahead of their turn.
    pub descriptor_prefetch, set_descriptor_prefetch: 23;
}

bitfield! {
    /// CHANCTRL: what a channel does on an error, and its interrupt.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ChannelControl(pub u16);
    impl Debug;
    /// Reads as one: an interrupt was sent, and no other follows. Written as one: clears
    /// that, so that the channel may interrupt again. Writing zero changes nothing.
    pub interrupt_rearm, set_interrupt_rearm: 0;
    /// Write a completion word when an error halts the channel.
    pub error_completion_enable, set_error_completion_enable: 2;
    /// Any error halts the channel, not only fatal ones.
    pub any_error_abort_enable, set_any_error_abort_enable: 3;
    /// Interrupt when an error halts the channel.
    pub error_interrupt_enable, set_error_interrupt_enable: 4;
    /// Reads of descriptors do not snoop the caches.
    pub descriptor_snoop_disable, set_descriptor_snoop_disable: 5;
    /// A lock for several drivers of one channel: the first read gives zero and sets it,
    /// later reads give one, until it is written as zero.
    pub in_use, set_in_use: 8;
    /// Completion words go to the cache of a processor.
    pub completion_dca_enable, set_completion_dca_enable: 9;
    /// Priority among the channels.
    pub u16, priority, set_priority: 15, 12;
}

impl ChannelControl {
    /// What a running channel needs: may interrupt, and an error halts it, is written to
    /// the completion word and interrupts.
    pub const RUN: Self = Self(0x001d);
}

/// CHANCMD: one command at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelCommand(pub u8);

impl ChannelCommand {
    /// Starts the chain at CHAINADDR. Version 1 only: since version 2 DMACOUNT does it.
    pub const START: Self = Self(0x01);
    /// Looks at `next` of the last descriptor again, since something was appended there.
    /// Version 1 only: since version 2 DMACOUNT does it.
    pub const APPEND: Self = Self(0x02);
    /// Stops after the current descriptor: [`ChannelState::Suspended`].
    pub const SUSPEND: Self = Self(0x04);
    /// Stops in the middle of the current descriptor: [`ChannelState::Halted`].
    pub const ABORT: Self = Self(0x08);
    /// Goes on after [`SUSPEND`](Self::SUSPEND).
    pub const RESUME: Self = Self(0x10);
    /// Brings the channel to its state after power-on. Reads as set until that is done.
    pub const RESET: Self = Self(0x20);
}

/// What a channel is doing: bits 2:0 of CHANSTS and of the completion word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelState {
    /// Executing descriptors.
    Active,
    /// All that was counted is done. "Done" in Linux.
    Idle,
    /// Stopped between two descriptors by [`ChannelCommand::SUSPEND`].
    Suspended,
    /// Stopped by an error or by [`ChannelCommand::ABORT`].
    Halted,
    /// Waits for a trigger.
    Armed,
    /// A value without a meaning (5, 6 or 7).
    Reserved(u8),
}

impl ChannelState {
    /// The state in the low three bits of `bits`; the others are not looked at.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        match bits & 0x7 {
            0 => Self::Active,
            1 => Self::Idle,
            2 => Self::Suspended,
            3 => Self::Halted,
            4 => Self::Armed,
            other => Self::Reserved(other),
        }
    }

    /// The state as three bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
        match self {
            Self::Active => 0,
            Self::Idle => 1,
            Self::Suspended => 2,
            Self::Halted => 3,
            Self::Armed => 4,
            Self::Reserved(other) => other & 0x7,
        }
    }
}

impl fmt::Display for ChannelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active => f.write_str("active"),
            Self::Idle => f.write_str("idle"),
            Self::Suspended => f.write_str("suspended"),
            Self::Halted => f.write_str("halted"),
            Self::Armed => f.write_str("armed"),
            Self::Reserved(other) => write!(f, "reserved {other:#x}"),
        }
    }
}

bitfield! {
    /// CHANSTS, and the completion word that the device writes to CHANCMP.
    ///
    /// # Ownership
    ///
    /// The device writes the completion word in one 8-byte access after the data of the
    /// descriptor; the driver loads it in one access, with Acquire, and then finds the
    /// data there.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ChannelStatus(pub u64);
    impl Debug;
    u8, state_bits, set_state_bits: 2, 0;
    /// An error that belongs to no descriptor.
    pub unaffiliated_error, set_unaffiliated_error: 3;
    /// An error that did not halt the channel.
    pub soft_error, set_soft_error: 4;
}

impl ChannelStatus {
    /// The word for a descriptor at `completed`, of whose address bits 63:6 count.
    #[must_use]
    pub const fn new(completed: Iova, state: ChannelState) -> Self {
        Self((completed.as_u64() & !0x3f) | state.bits() as u64)
    }

    /// What the channel is doing.
    #[must_use]
    pub fn state(self) -> ChannelState {
        ChannelState::from_bits(self.state_bits())
    }

    /// Replaces the state.
    pub fn set_state(&mut self, state: ChannelState) {
        self.set_state_bits(state.bits());
    }

    /// The address of the last descriptor that was completed; zero after a reset. It comes
    /// from the device: check it against the ring.
    #[must_use]
    pub const fn completed(self) -> Iova {
        Iova::new(self.0 & !0x3f)
    }
}

/// CHANERR: the errors of a channel, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ChannelErrors(pub u32);

macro_rules! channel_errors {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl ChannelErrors {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*

            /// Each error with its name for messages, ascending.
            pub const NAMES: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

channel_errors! {
    /// The source cannot be reached at that address.
    SOURCE_ADDRESS = 0, "source address";
    /// The destination cannot be reached at that address.
    DESTINATION_ADDRESS = 1, "destination address";
    /// `next` points to an address that cannot be reached.
    NEXT_ADDRESS = 2, "next descriptor address";
    /// A descriptor is not aligned or cannot be read.
    DESCRIPTOR = 3, "descriptor";
    /// CHAINADDR has an address that cannot be reached or is not aligned.
    CHAIN_ADDRESS = 4, "chain address value";
    /// A command that does not fit the state, or several at once.
    COMMAND = 5, "channel command";
    /// The chip set found damaged data.
    CHIPSET_DATA_INTEGRITY = 6, "chip set data integrity";
    /// The engine found damaged data.
    DMA_DATA_INTEGRITY = 7, "dma data integrity";
    /// Reading the source failed.
    READ_DATA = 8, "read data";
    /// Writing the destination failed.
    WRITE_DATA = 9, "write data";
    /// The control word asks for what does not exist.
    DESCRIPTOR_CONTROL = 10, "descriptor control";
    /// The size is zero or above XFERCAP.
    DESCRIPTOR_LENGTH = 11, "descriptor transfer size";
    /// The completion word cannot be written.
    COMPLETION_ADDRESS = 12, "completion address";
    /// An interrupt could not be sent as it is set up.
    INTERRUPT_CONFIGURATION = 13, "interrupt configuration";
    /// An extended descriptor cannot be reached.
    EXTENDED_DESCRIPTOR_ADDRESS = 14, "extended descriptor address";
    /// An error that belongs to no descriptor.
    UNAFFILIATED = 15, "unaffiliated";
    /// The CRC, or P of a RAID set, did not match.
    CRC_OR_XOR_P = 16, "crc or xor p";
    /// Q of a RAID set did not match.
    XOR_Q = 17, "xor q";
    /// DMACOUNT does not fit the chain.
    DESCRIPTOR_COUNT = 18, "descriptor count";
}

impl ChannelErrors {
    /// No error.
    pub const NONE: Self = Self(0);

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for ChannelErrors {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for ChannelErrors {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

impl BitAnd for ChannelErrors {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl fmt::Display for ChannelErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut rest = self.0;
        let mut separator = "";
        for (error, name) in Self::NAMES {
            if self.contains(*error) {
                write!(f, "{separator}{name}")?;
                separator = ", ";
                rest &= !error.0;
            }
        }
        if rest != 0 { write!(f, "{separator}unknown {rest:#x}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_survives_the_way_to_bits_and_back() {
        for bits in 0..=u8::MAX {
            assert_eq!(ChannelState::from_bits(bits).bits(), bits & 7);
        }
        assert_eq!(ChannelState::from_bits(5), ChannelState::Reserved(5));
    }

    #[test]
    fn a_status_word_has_the_address_above_the_state() {
        let status = ChannelStatus::new(Iova::new(0x1_2345_67c0), ChannelState::Halted);
        assert_eq!(status.0, 0x1_2345_67c3);
        assert_eq!(status.completed(), Iova::new(0x1_2345_67c0));
        assert_eq!(status.state(), ChannelState::Halted);
        let noisy = ChannelStatus(u64::MAX);
        assert_eq!(noisy.completed(), Iova::new(!0x3f));
        assert_eq!(noisy.state(), ChannelState::Reserved(7));
        assert!(noisy.soft_error() && noisy.unaffiliated_error());
    }

    #[test]
    fn errors_are_named_and_unknown_ones_are_shown_in_hex() {
        let errors = ChannelErrors::READ_DATA | ChannelErrors::SOURCE_ADDRESS | ChannelErrors(1 << 30);
        assert_eq!(errors.to_string(), "source address, read data, unknown 0x40000000");
        assert_eq!(ChannelErrors::NONE.to_string(), "none");
        for (bit, (error, _)) in ChannelErrors::NAMES.iter().enumerate() {
            assert_eq!(error.0, 1 << bit);
        }
    }

    #[test]
    fn the_run_word_has_the_bits_it_names() {
        let mut control = ChannelControl::default();
        control.set_interrupt_rearm(true);
        control.set_error_completion_enable(true);
        control.set_any_error_abort_enable(true);
        control.set_error_interrupt_enable(true);
        assert_eq!(control, ChannelControl::RUN);
        assert_eq!(Version(0x33).to_string(), "3.3");
    }
}
