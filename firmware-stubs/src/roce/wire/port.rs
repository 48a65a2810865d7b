//! A port: its addresses, and its neighbours.

use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use thiserror::Error;
use vdk_descriptors::roce::neighbour::{self, Neighbour};
use vdk_descriptors::roce::{EthernetAddress, Gid};

use super::super::time::Time;
use super::{Wire, WireError};

/// The identifiers of a port, each with its index, as Linux orders them: the link-local one at
/// index 0, then those of the addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidTable {
    gids: Vec<Gid>,
}

/// A GID index that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("gid index {index} does not exist: the port has {count}, from 0 on")]
pub struct GidIndexError {
    /// The index.
    pub index: usize,
    /// How many identifiers the port has.
    pub count: usize,
}

impl GidTable {
    /// The table of a port with these addresses.
    #[must_use]
    pub fn new(ethernet: EthernetAddress, addresses: &[IpAddr]) -> Self {
        let mut gids = vec![Gid::link_local(ethernet)];
        for address in addresses {
            let gid = Gid::from_address(*address);
            if !gids.contains(&gid) {
                gids.push(gid);
            }
        }
        Self { gids }
    }

    /// The identifier at an index.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn gid(&self, index: usize) -> Result<Gid, GidIndexError> {
        self.gids.get(index).copied().ok_or(GidIndexError { index, count: self.gids.len() })
    }

    /// Whether the port has this identifier.
    #[must_use]
    pub fn contains(&self, gid: Gid) -> bool {
        self.gids.contains(&gid)
    }

    /// All, in the order of their indices.
    #[must_use]
    pub fn all(&self) -> &[Gid] {
        &self.gids
    }
}

/// A wire with addresses: answers who asks for them, and finds out those of its neighbours.
///
/// It is a wire itself. Questions and answers do not come out of it, everything else does.
#[derive(Debug)]
pub struct Port<W> {
    wire: W,
    ethernet: EthernetAddress,
    gids: GidTable,
    neighbours: Vec<(IpAddr, EthernetAddress)>,
    /// Where the next neighbour goes when there are [`NEIGHBOURS`] already.
    oldest: usize,
    /// The last questions, so that they are not asked at each try.
    asked: [Option<(IpAddr, Time)>; 8],
}

impl<W: Wire> Port<W> {
    /// Gives addresses to an end of a wire. It has the link-local address of `ethernet` too.
    #[must_use]
    pub fn new(wire: W, ethernet: EthernetAddress, addresses: &[IpAddr]) -> Self {
        let gids = GidTable::new(ethernet, addresses);
        let neighbours = Vec::with_capacity(NEIGHBOURS);
        Self { wire, ethernet, gids, neighbours, oldest: 0, asked: [None; 8] }
    }

    /// The Ethernet address of the port.
    #[must_use]
    pub const fn ethernet(&self) -> EthernetAddress {
        self.ethernet
    }

    /// The identifiers of the port.
    #[must_use]
    pub const fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// The wire underneath.
    pub const fn wire(&mut self) -> &mut W {
        &mut self.wire
    }

    /// Takes the addresses away from the wire again.
    #[must_use]
    pub fn into_wire(self) -> W {
        self.wire
    }

    /// The Ethernet address of a neighbour, when it is known. If not, the neighbour is asked,
    /// at most ten times a second; the answer comes in by [`receive`](Wire::receive).
    ///
    /// # Errors
    ///
    /// The wire is broken.
    pub fn resolve(&mut self, now: Time, address: IpAddr) -> Result<Option<EthernetAddress>, WireError> {
        let known = self.neighbours.iter().find(|(neighbour, _)| *neighbour == address);
        if let Some((_, ethernet)) = known {
            return Ok(Some(*ethernet));
        }
        let recent = |asked: &Option<(IpAddr, Time)>| {
            asked.is_some_and(|(target, when)| target == address && now.since(when) < QUESTION_INTERVAL)
        };
        if self.asked.iter().any(recent) {
            return Ok(None);
        }
        // The place of the same question, or else of the oldest one.
        let age = |asked: &Option<(IpAddr, Time)>| match asked {
            Some((target, _)) if *target == address => Time::ZERO,
            Some((_, when)) => *when,
            None => Time::ZERO,
        };
        if let Some(place) = self.asked.iter_mut().min_by_key(|asked| age(asked)) {
            *place = Some((address, now));
        }
        let mut buffer = [0; neighbour::MAX_LENGTH];
        let from = self.source_for(address);
        if let Ok(length) = neighbour::question(&mut buffer, self.ethernet, from, address) {
            self.wire.send(now, buffer.get(..length).unwrap_or_default())?;
        }
        Ok(None)
    }

    /// The own address to speak to `address` from: of the same kind, link-local only to a
    /// link-local one.
    fn source_for(&self, address: IpAddr) -> IpAddr {
        let link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
        let own = self.gids.all().iter().map(|gid| gid.address());
        let of_kind = own.filter(|own| own.is_ipv4() == address.is_ipv4());
        if link_local {
            of_kind.clone().next()
        } else {
            let is_global = |own: &IpAddr| !matches!(own, IpAddr::V6(own) if own.is_unicast_link_local());
            of_kind.clone().find(is_global).or_else(|| of_kind.clone().next())
        }
        .unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED))
    }

    /// Looks at a frame; says whether it was a question or an answer.
    fn take(&mut self, now: Time, message: Neighbour) -> Result<(), WireError> {
        match message {
            Neighbour::Question { asker, from, target } => {
                if !self.gids.contains(Gid::from_address(target)) {
                    return Ok(());
                }
                if !from.is_unspecified() {
                    self.learn(from, asker);
                }
                let mut buffer = [0; neighbour::MAX_LENGTH];
                if let Ok(length) = neighbour::answer(&mut buffer, self.ethernet, target, asker, from) {
                    self.wire.send(now, buffer.get(..length).unwrap_or_default())?;
                }
            }
            Neighbour::Answer { holder, target } => {
                // Only what was asked for, or known already, is believed.
                let wanted = self.asked.iter().flatten().any(|(asked, _)| *asked == target);
                if wanted || self.neighbours.iter().any(|(known, _)| *known == target) {
                    self.learn(target, holder);
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, address: IpAddr, ethernet: EthernetAddress) {
        if self.gids.contains(Gid::from_address(address)) {
            return;
        }
        if let Some(known) = self.neighbours.iter_mut().find(|(known, _)| *known == address) {
            known.1 = ethernet;
        } else if self.neighbours.len() < NEIGHBOURS {
            self.neighbours.push((address, ethernet));
        } else if let Some(place) = self.neighbours.get_mut(self.oldest) {
            *place = (address, ethernet);
            self.oldest = (self.oldest + 1) % NEIGHBOURS;
        }
    }
}

impl<W: Wire> Wire for Port<W> {
    fn send(&mut self, now: Time, frame: &[u8]) -> Result<(), WireError> {
        self.wire.send(now, frame)
    }

    fn receive(&mut self, now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        // Who asks without end shall not keep the caller here: a wait ends at once for the rest.
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(length) = self.wire.receive(now, buffer)? else { break };
            let frame = buffer.get(..length).unwrap_or_default();
            match Neighbour::parse(frame) {
                Some(message) => self.take(now, message)?,
                None => return Ok(Some(length)),
            }
        }
        Ok(None)
    }

    fn is_ready(&self) -> bool {
        self.wire.is_ready()
    }

    fn deadline(&self) -> Option<Time> {
        self.wire.deadline()
    }

    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError> {
        self.wire.wait(wake, timeout)
    }

    fn lost(&self) -> u64 {
        self.wire.lost()
    }
}

/// How many questions and answers are taken before the caller has its turn.
const MESSAGES_AT_ONCE: usize = 64;
/// How many neighbours are remembered.
const NEIGHBOURS: usize = 64;
/// How long an answer is waited for before the question is asked again.
const QUESTION_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::super::pair;
    use super::*;

    const ONE: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0, 0, 1]);
    const OTHER: EthernetAddress = EthernetAddress([0x52, 0x54, 0, 0, 0, 2]);

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_table_has_the_link_local_identifier_at_0_and_ipv4_at_1() {
        let table = GidTable::new(ONE, &[address("10.0.0.1"), address("fd00::1"), address("10.0.0.1")]);
        let texts: Vec<String> = table.all().iter().map(Gid::to_string).collect();
        assert_eq!(texts, ["fe80::5054:ff:fe00:1", "::ffff:10.0.0.1", "fd00::1"]);
        assert_eq!(table.gid(1).unwrap().address(), address("10.0.0.1"));
        let error = table.gid(3).unwrap_err();
        assert_eq!(error.to_string(), "gid index 3 does not exist: the port has 3, from 0 on");
    }

    #[test]
    fn ports_find_each_other_by_every_address_and_ask_no_more_often_than_needed() {
        let (one, other) = pair(10_000).unwrap();
        let mut one = Port::new(one, ONE, &[address("10.0.0.1"), address("fd00::1")]);
        let mut other = Port::new(other, OTHER, &[address("10.0.0.2"), address("fd00::2")]);
        let mut buffer = [0; 2000];
        for target in ["10.0.0.2", "fd00::2", "fe80::5054:ff:fe00:2"] {
            let target = address(target);
            let now = Time::ZERO.after(Duration::from_secs(1));
            assert_eq!(one.resolve(now, target).unwrap(), None);
            assert_eq!(one.resolve(now, target).unwrap(), None);
            assert_eq!(other.receive(now, &mut buffer).unwrap(), None);
            assert_eq!(one.receive(now, &mut buffer).unwrap(), None);
            assert_eq!(one.resolve(now, target).unwrap(), Some(OTHER), "{target}");
        }
        // Who asked is known without a question.
        assert_eq!(other.resolve(Time::ZERO, address("fd00::1")).unwrap(), Some(ONE));
        // A lost question is asked again.
        let nobody = address("10.0.0.9");
        let mut questions = 0;
        for tenth in 0..20 {
            let now = Time::ZERO.after(Duration::from_millis(10_000 + tenth * 50));
            assert_eq!(one.resolve(now, nobody).unwrap(), None);
            while other.wire().receive(now, &mut buffer).unwrap().is_some() {
                questions += 1;
            }
        }
        assert_eq!(questions, 10);
    }

    #[test]
    fn nobody_can_fill_the_table_or_take_the_own_address() {
        let (mut one, other) = pair(100_000).unwrap();
        let mut port = Port::new(other, OTHER, &[address("10.0.0.2")]);
        let mut buffer = [0; 2000];
        let now = Time::ZERO;
        for host in 0..300u16 {
            let [high, low] = host.to_be_bytes();
            let from = IpAddr::from([10, 1, high, low]);
            let length = neighbour::question(&mut buffer, ONE, from, address("10.0.0.2")).unwrap();
            one.send(now, &buffer[..length]).unwrap();
            // An answer that nobody asked for.
            let length = neighbour::answer(&mut buffer, ONE, from, OTHER, address("10.0.0.2")).unwrap();
            one.send(now, &buffer[..length]).unwrap();
        }
        let length = neighbour::question(&mut buffer, ONE, address("10.0.0.2"), address("10.0.0.2")).unwrap();
        one.send(now, &buffer[..length]).unwrap();
        for _ in 0..=601 / MESSAGES_AT_ONCE {
            assert_eq!(port.receive(now, &mut buffer).unwrap(), None);
        }
        assert_eq!(port.neighbours.len(), NEIGHBOURS);
        assert!(port.neighbours.iter().all(|(known, _)| *known != address("10.0.0.2")));
    }

    #[test]
    fn questions_without_end_leave_the_caller_its_turn() {
        let (mut one, other) = pair(100_000).unwrap();
        let mut port = Port::new(other, OTHER, &[address("10.0.0.2")]);
        let mut buffer = [0; 2000];
        for _ in 0..=MESSAGES_AT_ONCE {
            let length =
                neighbour::question(&mut buffer, ONE, address("10.0.0.1"), address("10.0.0.2")).unwrap();
            one.send(Time::ZERO, &buffer[..length]).unwrap();
        }
        one.send(Time::ZERO, &[7; 60]).unwrap();
        assert_eq!(port.receive(Time::ZERO, &mut buffer).unwrap(), None, "the last question is left");
        // It is there at once, so this does not sleep.
        port.wait(None, None).unwrap();
        assert_eq!(port.receive(Time::ZERO, &mut buffer).unwrap(), Some(60));
    }

    #[test]
    fn other_frames_pass() {
        let (mut one, other) = pair(10_000).unwrap();
        let mut port = Port::new(other, OTHER, &[]);
        one.send(Time::ZERO, &[7; 60]).unwrap();
        let mut buffer = [0; 100];
        assert_eq!(port.receive(Time::ZERO, &mut buffer).unwrap(), Some(60));
        assert_eq!(buffer[..60], [7; 60]);
    }
}
