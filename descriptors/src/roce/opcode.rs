//! Opcodes of the base transport header.
//!
//! Bits 7:5 are the transport service, bits 4:0 the operation with the packet's place in its
//! message. Reliable datagram, XRC, FLUSH and ATOMIC WRITE are not described here.

use core::fmt;

/// The transport service of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection (RC).
    ReliableConnection,
    /// Unreliable connection (UC).
    UnreliableConnection,
    /// Unreliable datagram (UD).
    UnreliableDatagram,
    /// Congestion notification, which belongs to no service.
    CongestionNotification,
}

impl Transport {
    /// The transport service that bits 7:5 of an opcode name, whether or not the rest of it is
    /// known. `None` for a service that this module does not describe.
    #[must_use]
    pub const fn of(opcode: u8) -> Option<Self> {
        match opcode >> 5 {
            0 => Some(Self::ReliableConnection),
            1 => Some(Self::UnreliableConnection),
            3 => Some(Self::UnreliableDatagram),
            4 => Some(Self::CongestionNotification),
            _ => None,
        }
    }
}

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Data for a posted receive.
    Send,
    /// Data for memory that the sender names.
    Write,
    /// Asks for memory that the sender names.
    ReadRequest,
    /// Data that was asked for.
    ReadResponse,
    /// An acknowledgement, positive or negative.
    Acknowledge,
    /// The original value of an atomic operation.
    AtomicAcknowledge,
    /// Compare 64 bits and swap them when equal.
    CompareSwap,
    /// Add to 64 bits.
    FetchAdd,
    /// Tells the sender of marked packets to slow down.
    CongestionNotification,
}

/// The place of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether a message begins with this packet.
    #[inline]
    #[must_use]
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether a message ends with this packet.
    #[inline]
    #[must_use]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// Which headers stand between the base transport header and the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtensionKind {
    /// None.
    None,
    /// ImmDt.
    Immediate,
    /// IETH.
    Invalidate,
    /// RETH.
    Remote,
    /// RETH, ImmDt.
    RemoteImmediate,
    /// AETH.
    Acknowledge,
    /// AETH, AtomicAckETH.
    AtomicAcknowledge,
    /// AtomicETH.
    Atomic,
    /// DETH.
    Datagram,
    /// DETH, ImmDt.
    DatagramImmediate,
    /// The 16 reserved bytes of a congestion notification.
    Congestion,
}

impl ExtensionKind {
    /// How many bytes the headers have.
    #[inline]
    #[must_use]
    pub const fn length(self) -> usize {
        match self {
            Self::None => 0,
            Self::Immediate | Self::Invalidate | Self::Acknowledge => 4,
            Self::Datagram => 8,
            Self::AtomicAcknowledge | Self::DatagramImmediate => 12,
            Self::Remote | Self::Congestion => 16,
            Self::RemoteImmediate => 20,
            Self::Atomic => 28,
        }
    }
}

/// An opcode that this module describes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(u8);

/// What is known of one opcode.
#[derive(Clone, Copy)]
struct Description {
    transport: Transport,
    operation: Operation,
    position: Position,
    extension: ExtensionKind,
    name: &'static str,
}

macro_rules! opcodes {
    ($($constant:ident = $value:literal: $transport:ident, $operation:ident, $position:ident, $extension:ident, $name:literal;)*) => {
        impl Opcode {
            $(
                #[doc = $name]
                pub const $constant: Self = Self($value);
            )*

            /// Every opcode, in the order of its value.
            pub const ALL: &'static [Self] = &[$(Self::$constant),*];
        }

        const DESCRIPTIONS: [Option<Description>; 256] = {
            let mut table = [None; 256];
            $(
                table[$value] = Some(Description {
                    transport: Transport::$transport,
                    operation: Operation::$operation,
                    position: Position::$position,
                    extension: ExtensionKind::$extension,
                    name: $name,
                });
            )*
            table
        };
    };
}

opcodes! {
    RC_SEND_FIRST = 0x00: ReliableConnection, Send, First, None, "RC SEND First";
    RC_SEND_MIDDLE = 0x01: ReliableConnection, Send, Middle, None, "RC SEND Middle";
    RC_SEND_LAST = 0x02: ReliableConnection, Send, Last, None, "RC SEND Last";
    RC_SEND_LAST_IMMEDIATE = 0x03: ReliableConnection, Send, Last, Immediate, "RC SEND Last with Immediate";
    RC_SEND_ONLY = 0x04: ReliableConnection, Send, Only, None, "RC SEND Only";
    RC_SEND_ONLY_IMMEDIATE = 0x05: ReliableConnection, Send, Only, Immediate, "RC SEND Only with Immediate";
    RC_WRITE_FIRST = 0x06: ReliableConnection, Write, First, Remote, "RC RDMA WRITE First";
    RC_WRITE_MIDDLE = 0x07: ReliableConnection, Write, Middle, None, "RC RDMA WRITE Middle";
    RC_WRITE_LAST = 0x08: ReliableConnection, Write, Last, None, "RC RDMA WRITE Last";
    RC_WRITE_LAST_IMMEDIATE = 0x09: ReliableConnection, Write, Last, Immediate, "RC RDMA WRITE Last with Immediate";
    RC_WRITE_ONLY = 0x0a: ReliableConnection, Write, Only, Remote, "RC RDMA WRITE Only";
    RC_WRITE_ONLY_IMMEDIATE = 0x0b: ReliableConnection, Write, Only, RemoteImmediate, "RC RDMA WRITE Only with Immediate";
    RC_READ_REQUEST = 0x0c: ReliableConnection, ReadRequest, Only, Remote, "RC RDMA READ Request";
    RC_READ_RESPONSE_FIRST = 0x0d: ReliableConnection, ReadResponse, First, Acknowledge, "RC RDMA READ response First";
    RC_READ_RESPONSE_MIDDLE = 0x0e: ReliableConnection, ReadResponse, Middle, None, "RC RDMA READ response Middle";
    RC_READ_RESPONSE_LAST = 0x0f: ReliableConnection, ReadResponse, Last, Acknowledge, "RC RDMA READ response Last";
    RC_READ_RESPONSE_ONLY = 0x10: ReliableConnection, ReadResponse, Only, Acknowledge, "RC RDMA READ response Only";
    RC_ACKNOWLEDGE = 0x11: ReliableConnection, Acknowledge, Only, Acknowledge, "RC Acknowledge";
    RC_ATOMIC_ACKNOWLEDGE = 0x12: ReliableConnection, AtomicAcknowledge, Only, AtomicAcknowledge, "RC ATOMIC Acknowledge";
    RC_COMPARE_SWAP = 0x13: ReliableConnection, CompareSwap, Only, Atomic, "RC CmpSwap";
    RC_FETCH_ADD = 0x14: ReliableConnection, FetchAdd, Only, Atomic, "RC FetchAdd";
    RC_SEND_LAST_INVALIDATE = 0x16: ReliableConnection, Send, Last, Invalidate, "RC SEND Last with Invalidate";
    RC_SEND_ONLY_INVALIDATE = 0x17: ReliableConnection, Send, Only, Invalidate, "RC SEND Only with Invalidate";
    UC_SEND_FIRST = 0x20: UnreliableConnection, Send, First, None, "UC SEND First";
    UC_SEND_MIDDLE = 0x21: UnreliableConnection, Send, Middle, None, "UC SEND Middle";
    UC_SEND_LAST = 0x22: UnreliableConnection, Send, Last, None, "UC SEND Last";
    UC_SEND_LAST_IMMEDIATE = 0x23: UnreliableConnection, Send, Last, Immediate, "UC SEND Last with Immediate";
    UC_SEND_ONLY = 0x24: UnreliableConnection, Send, Only, None, "UC SEND Only";
    UC_SEND_ONLY_IMMEDIATE = 0x25: UnreliableConnection, Send, Only, Immediate, "UC SEND Only with Immediate";
    UC_WRITE_FIRST = 0x26: UnreliableConnection, Write, First, Remote, "UC RDMA WRITE First";
    UC_WRITE_MIDDLE = 0x27: UnreliableConnection, Write, Middle, None, "UC RDMA WRITE Middle";
    UC_WRITE_LAST = 0x28: UnreliableConnection, Write, Last, None, "UC RDMA WRITE Last";
    UC_WRITE_LAST_IMMEDIATE = 0x29: UnreliableConnection, Write, Last, Immediate, "UC RDMA WRITE Last with Immediate";
    UC_WRITE_ONLY = 0x2a: UnreliableConnection, Write, Only, Remote, "UC RDMA WRITE Only";
    UC_WRITE_ONLY_IMMEDIATE = 0x2b: UnreliableConnection, Write, Only, RemoteImmediate, "UC RDMA WRITE Only with Immediate";
    UD_SEND_ONLY = 0x64: UnreliableDatagram, Send, Only, Datagram, "UD SEND Only";
    UD_SEND_ONLY_IMMEDIATE = 0x65: UnreliableDatagram, Send, Only, DatagramImmediate, "UD SEND Only with Immediate";
    CONGESTION_NOTIFICATION = 0x81: CongestionNotification, CongestionNotification, Only, Congestion, "CNP";
}

impl Opcode {
    /// The opcode with this value, when it is one of [`ALL`](Self::ALL).
    #[inline]
    #[must_use]
    pub const fn new(value: u8) -> Option<Self> {
        if DESCRIPTIONS[value as usize].is_some() { Some(Self(value)) } else { None }
    }

    /// The value in the header.
    #[inline]
    #[must_use]
    pub const fn value(self) -> u8 {
        self.0
    }

    #[inline]
    const fn description(self) -> &'static Description {
        // An `Opcode` has a description by construction, so none is asked whether it is there.
        static TABLE: [Description; 256] = {
            let mut table = [UNREACHABLE; 256];
            let mut value = 0;
            while value < table.len() {
                if let Some(description) = DESCRIPTIONS[value] {
                    table[value] = description;
                }
                value += 1;
            }
            table
        };
        &TABLE[self.0 as usize]
    }

    /// The transport service.
    #[inline]
    #[must_use]
    pub const fn transport(self) -> Transport {
        self.description().transport
    }

    /// What the packet is for.
    #[inline]
    #[must_use]
    pub const fn operation(self) -> Operation {
        self.description().operation
    }

    /// The place of the packet in its message.
    #[inline]
    #[must_use]
    pub const fn position(self) -> Position {
        self.description().position
    }

    /// Which headers follow.
    #[inline]
    #[must_use]
    pub const fn extension(self) -> ExtensionKind {
        self.description().extension
    }

    /// The name that the standard gives it, with the service in front.
    #[inline]
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.description().name
    }

    /// Whether the packet is answered by a responder, rather than an answer itself.
    #[inline]
    #[must_use]
    pub const fn is_request(self) -> bool {
        !matches!(
            self.operation(),
            Operation::ReadResponse
                | Operation::Acknowledge
                | Operation::AtomicAcknowledge
                | Operation::CongestionNotification
        )
    }

    /// Whether the packet carries immediate data.
    #[inline]
    #[must_use]
    pub const fn has_immediate(self) -> bool {
        matches!(
            self.extension(),
            ExtensionKind::Immediate | ExtensionKind::RemoteImmediate | ExtensionKind::DatagramImmediate
        )
    }

    /// Whether bytes of a message may follow the headers.
    #[inline]
    #[must_use]
    pub const fn has_payload(self) -> bool {
        matches!(self.operation(), Operation::Send | Operation::Write | Operation::ReadResponse)
    }
}

const UNREACHABLE: Description = Description {
    transport: Transport::ReliableConnection,
    operation: Operation::Send,
    position: Position::First,
    extension: ExtensionKind::None,
    name: "",
};

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opcode({:#04x} {})", self.0, self.name())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opcode_says_what_its_bits_say() {
        assert_eq!(Opcode::ALL.len(), 38);
        for (value, description) in DESCRIPTIONS.iter().enumerate() {
            let value = u8::try_from(value).unwrap();
            assert_eq!(Opcode::new(value).is_some(), description.is_some());
        }
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::new(opcode.value()), Some(*opcode));
            let (transport, prefix) = match opcode.value() >> 5 {
                0 => (Transport::ReliableConnection, "RC "),
                1 => (Transport::UnreliableConnection, "UC "),
                3 => (Transport::UnreliableDatagram, "UD "),
                _ => (Transport::CongestionNotification, "CNP"),
            };
            assert_eq!(opcode.transport(), transport);
            assert_eq!(Transport::of(opcode.value()), Some(transport));
            assert!(opcode.name().starts_with(prefix));
            assert_eq!(opcode.name().contains("Immediate"), opcode.has_immediate());
        }
        // A service differs from another in nothing but its bits.
        for value in 0..0x0c {
            let (reliable, unreliable) = (Opcode::new(value).unwrap(), Opcode::new(value | 0x20).unwrap());
            assert_eq!(reliable.operation(), unreliable.operation());
            assert_eq!(reliable.position(), unreliable.position());
            assert_eq!(reliable.extension(), unreliable.extension());
            assert_eq!(reliable.name()[2..], unreliable.name()[2..]);
        }
    }

    #[test]
    fn requests_and_answers_are_told_apart() {
        let answers: Vec<u8> =
            Opcode::ALL.iter().filter(|opcode| !opcode.is_request()).map(|opcode| opcode.value()).collect();
        assert_eq!(answers, [0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x81]);
        assert_eq!(Opcode::RC_READ_RESPONSE_MIDDLE.extension(), ExtensionKind::None);
        assert_eq!(Opcode::UD_SEND_ONLY_IMMEDIATE.extension().length(), 12);
        assert!(Opcode::RC_WRITE_ONLY.position().begins() && Opcode::RC_WRITE_ONLY.position().ends());
    }
}
