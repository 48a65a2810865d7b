//! A tracer: everything that passes, in the log.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use vdk_descriptors::roce::neighbour::Neighbour;
use vdk_descriptors::roce::{Frame, Unverified};

use super::super::time::Time;
use super::{Wire, WireError};

/// Says at level "trace" what passes a wire, a line for each frame.
#[derive(Debug)]
pub struct Tracer<W> {
    wire: W,
    name: String,
}

impl<W: Wire> Tracer<W> {
    /// Traces `wire`; its lines begin with `name`.
    #[must_use]
    pub const fn new(wire: W, name: String) -> Self {
        Self { wire, name }
    }

    /// The wire underneath.
    pub const fn wire(&mut self) -> &mut W {
        &mut self.wire
    }
}

impl<W: Wire> Wire for Tracer<W> {
    fn send(&mut self, now: Time, frame: &[u8]) -> Result<(), WireError> {
        log::trace!("{now} {} > {}", self.name, Described(frame));
        self.wire.send(now, frame)
    }

    fn receive(&mut self, now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        let received = self.wire.receive(now, buffer)?;
        if let Some(length) = received {
            log::trace!("{now} {} < {}", self.name, Described(buffer.get(..length).unwrap_or_default()));
        }
        Ok(received)
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

/// What is in a frame, in a few words.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a>(pub &'a [u8]);

impl fmt::Display for Described<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (frame, error) = match Unverified::parse(self.0)
            .map(|frame| (*frame.frame(), frame.verify().err()))
        {
            Ok(parsed) => parsed,
            Err(error) => {
                return match Neighbour::parse(self.0) {
                    Some(Neighbour::Question { from, target, .. }) => write!(f, "{from} asks for {target}"),
                    Some(Neighbour::Answer { holder, target }) => write!(f, "{target} is at {holder}"),
                    None => write!(f, "{:#x} bytes: {error}", self.0.len()),
                };
            }
        };
        let Frame { headers, payload } = frame;
        let bth = headers.bth;
        write!(f, "{} {} psn {}", bth.opcode, bth.destination, bth.psn)?;
        if let Some(acknowledge) = headers.extension.acknowledge() {
            write!(f, " {} msn {}", acknowledge.syndrome, acknowledge.msn.value())?;
        }
        if let Some(reth) = headers.extension.remote() {
            write!(f, " va {:#x} key {} length {:#x}", reth.address, reth.key, reth.length)?;
        }
        write!(f, ", {:#x} bytes", payload.len())?;
        if bth.ack_request {
            f.write_str(", ack request")?;
        }
        if let Some(error) = error {
            write!(f, " ({error})")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;
    use vdk_descriptors::roce::{
        Aeth, Bth, Ethernet, EthernetAddress, Extension, Headers, MAX_FRAME, Msn, NakCode, Network, Opcode,
        Psn, Qpn, Syndrome, neighbour,
    };

    #[test]
    fn each_kind_of_frame_is_told_in_a_few_words() {
        let (one, other) = (EthernetAddress([2, 0, 0, 0, 0, 1]), EthernetAddress([2, 0, 0, 0, 0, 2]));
        let (from, to): (IpAddr, IpAddr) = ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let syndrome = Syndrome::nak(NakCode::RemoteAccessError);
        let headers = Headers {
            ethernet: Ethernet::new(one, other),
            network: Network::new(from, to, 0xc000).unwrap(),
            bth: Bth::new(Opcode::RC_ACKNOWLEDGE, Qpn::new(0x11).unwrap(), Psn::new(0x200)),
            extension: Extension::Acknowledge(Aeth { syndrome, msn: Msn::new(7) }),
        };
        let mut buffer = [0; MAX_FRAME];
        let length = Frame { headers, payload: &[] }.build(&mut buffer).unwrap();
        assert_eq!(
            Described(&buffer[..length]).to_string(),
            "RC Acknowledge 0x000011 psn 0x000200 NAK, remote access error msn 7, 0x0 bytes"
        );
        buffer[length - 1] ^= 1;
        assert!(Described(&buffer[..length]).to_string().contains("(the invariant crc is"));
        let length = neighbour::question(&mut buffer, one, from, to).unwrap();
        assert_eq!(Described(&buffer[..length]).to_string(), "10.0.0.1 asks for 10.0.0.2");
        let length = neighbour::answer(&mut buffer, other, to, one, from).unwrap();
        assert_eq!(Described(&buffer[..length]).to_string(), "10.0.0.2 is at 02-00-00-00-00-02");
        assert!(Described(&[0; 20]).to_string().starts_with("0x14 bytes: not RoCE: ethertype 0x0000"));
        assert!(Described(&[]).to_string().contains("was cut short"));
    }
}
