//! The way to another queue pair, and the room in which a frame for it is built.

use core::net::IpAddr;

use vdk_descriptors::roce::{Bth, Ethernet, EthernetAddress, Extension, Flow, Headers, Network, Qpn};

/// An address on the wire: of Ethernet and of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Station {
    /// The Ethernet address.
    pub ethernet: EthernetAddress,
    /// The IP address.
    pub address: IpAddr,
}

/// The way of a queue pair's frames: the headers in front of the transport's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Path {
    /// The Ethernet header.
    pub ethernet: Ethernet,
    /// IP and UDP.
    pub network: Network,
}

impl Path {
    /// The way from one station to another. Switches tell flows by the UDP source port.
    /// `None` when one address is IPv4 and the other IPv6.
    #[must_use]
    pub fn new(from: Station, to: Station, source_port: u16) -> Option<Self> {
        let network = Network::new(from.address, to.address, source_port)?;
        Some(Self { ethernet: Ethernet::new(from.ethernet, to.ethernet), network })
    }

    /// The way back to the sender of a frame.
    #[must_use]
    pub(super) fn back(headers: &Headers) -> Option<Self> {
        let network = Network::new(
            headers.network.destination(),
            headers.network.source(),
            match headers.network {
                Network::Ipv4(_, udp) | Network::Ipv6(_, udp) => udp.source_port,
                Network::GlobalRoute(_) => return None,
            },
        )?;
        let mut ethernet = Ethernet::new(headers.ethernet.destination, headers.ethernet.source);
        ethernet.tags = headers.ethernet.tags;
        Some(Self { ethernet, network })
    }

    /// Its headers, to be copied into frames.
    #[inline]
    #[must_use]
    pub(super) fn flow(&self) -> Flow {
        Flow::new(&self.ethernet, &self.network)
    }
}

/// Room for one frame.
#[derive(Debug)]
pub(super) struct Room<'a> {
    bytes: &'a mut [u8],
    /// The way; none when each frame has its own.
    flow: Option<&'a Flow>,
    destination: Qpn,
}

/// Why no frame was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unbuilt<E> {
    /// The payload could not be had.
    Payload(E),
    /// The room is too small, or there is no way.
    Room,
}

impl<'a> Room<'a> {
    #[inline]
    pub(super) fn new(bytes: &'a mut [u8], flow: Option<&'a Flow>, destination: Qpn) -> Self {
        Self { bytes, flow, destination }
    }

    /// The same room for a frame that goes another way than the queue pair's.
    #[inline]
    pub(super) fn redirect<'b>(&'b mut self, flow: &'b Flow, destination: Qpn) -> Room<'b> {
        Room { bytes: self.bytes, flow: Some(flow), destination }
    }

    /// Builds a frame with `length` bytes of payload, which `fill` writes. Its destination is
    /// set here.
    #[inline]
    pub(super) fn build<E>(
        &mut self,
        mut bth: Bth,
        extension: Extension,
        length: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, Unbuilt<E>> {
        bth.destination = self.destination;
        let flow = self.flow.ok_or(Unbuilt::Room)?;
        let mut unsealed = flow.build(&bth, &extension, self.bytes, length).map_err(|_| Unbuilt::Room)?;
        if length != 0 {
            fill(unsealed.payload()).map_err(Unbuilt::Payload)?;
        }
        Ok(unsealed.seal())
    }
}
