//! Global identifiers: the addresses of ports.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smoltcp::wire::EthernetAddress;

/// A global identifier: an IPv6 address, or an IPv4 address in the form `::ffff:a.b.c.d`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The identifier of an address.
    #[must_use]
    pub const fn from_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::from_ipv4(address),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }

    /// The identifier of an IPv4 address.
    #[must_use]
    pub const fn from_ipv4(address: Ipv4Addr) -> Self {
        Self(address.to_ipv6_mapped().octets())
    }

    /// The link-local identifier of an Ethernet address, `fe80::` and its modified EUI-64.
    /// Linux has it at index 0 of a port.
    #[must_use]
    pub const fn link_local(address: EthernetAddress) -> Self {
        let [a, b, c, d, e, f] = address.0;
        Self([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
    }

    /// The address that packets to this identifier have.
    #[must_use]
    pub const fn address(self) -> IpAddr {
        let address = Ipv6Addr::from_octets(self.0);
        match address.to_ipv4_mapped() {
            Some(address) => IpAddr::V4(address),
            None => IpAddr::V6(address),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv6Addr::from_octets(self.0), f)
    }
}
