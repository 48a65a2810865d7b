//! The fault oracle of RoCE, with Linux's rxe at one of the two ends.
//!
//! [`rows`] says what is done and what must come of it. An [`Adapter`] is our endpoint
//! ([`Ours`]), or rxe in a guest ([`Rxe`]), told by the program `tests/roce/verbs.c` what to do.

mod adapter;
pub mod datagrams;
mod faulty;
pub mod hostile;
mod judge;
mod ours;
pub mod rows;
mod rxe;
mod traffic;
mod trial;

use vdk_descriptors::roce::Syndrome;

pub use adapter::{Adapter, Connection, Done, Pair, Region, Send};
pub use judge::{CAPTURE, GUEST, GUEST_SIX, HOST, HOST_SIX, judge};
pub use ours::{EndpointWire, Ours, Passed, Struck};
pub use rxe::Rxe;
pub use trial::{Seen, carry_out};

/// The syndromes of one direction that are no plain acknowledgement.
#[must_use]
pub fn refusals(passed: &[Passed], sent: bool) -> Vec<u8> {
    let syndromes = passed.iter().filter(|passed| passed.sent == sent).filter_map(Passed::syndrome);
    syndromes.filter(|syndrome| *syndrome != Syndrome::ACK).map(Syndrome::to_byte).collect()
}

#[cfg(test)]
mod tests {
    use vdk_descriptors::roce::{PathMtu, Psn};
    use vdk_firmware_stubs::roce::Station;
    use vdk_firmware_stubs::roce::wire::{FaultyWire, PairWire, Wire, WireFaults, pair};

    use super::datagrams::DATAGRAM_ROWS;
    use super::hostile::{HOSTILE, attack};
    use super::rows::{Meeting, ROWS};
    use super::traffic::{Run, carry_messages};
    use super::*;

    /// Two endpoints of ours, whose wire goes wrong in this way.
    fn both(faults: WireFaults) -> (Ours, Ours) {
        let (one, other) = pair(1 << 20).unwrap();
        (start(one, faults, HOST), start(other, faults, GUEST))
    }

    fn start(wire: PairWire, faults: WireFaults, station: Station) -> Ours {
        let wire: Box<dyn Wire> = Box::new(wire);
        Ours::start(FaultyWire::new(wire, faults, faults, 1), station).unwrap()
    }

    #[test]
    fn ours_against_ours_does_what_the_standard_says() {
        for (here, there) in [(HOST, GUEST), (HOST_SIX, GUEST_SIX)] {
            let (one, other) = pair(1 << 20).unwrap();
            let none = WireFaults::NONE;
            let (mut requester, mut responder) = (start(one, none, here), start(other, none, there));
            for row in ROWS.iter().chain(DATAGRAM_ROWS) {
                let expected = row.expected(Meeting::OursToOurs);
                let mut seen = carry_out(row, &mut requester, &mut responder, expected).unwrap();
                seen.wire = refusals(&requester.passed(), false);
                assert!(seen.is(expected), "{:02} {} at {}: {seen}", row.number, row.name, here.address);
            }
        }
    }

    #[test]
    fn ours_takes_hostile_requests_as_the_standard_says() {
        let (mut wire, mut responder) = both(WireFaults::NONE);
        let mut wrong = Vec::new();
        for row in HOSTILE {
            let seen = attack(row, &mut wire, &mut responder, &row.standard).unwrap();
            if !seen.is(&row.standard) {
                wrong.push(format!("{}: {seen}", row.name));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn all_messages_arrive_over_a_bad_wire_too() {
        for faults in ["", "drop=10%", "duplicate=10%", "reorder=10%", "corrupt=10%"] {
            let (mut requester, mut responder) = both(faults.parse().unwrap());
            let psns = (Psn::new(0xff_fff0), Psn::new(0x7f_fff0));
            // Eight times 134 ms for an answer: a busy machine may leave one of the two threads
            // aside for longer than eight short waits of the other.
            let run = Run { psns, mtu: PathMtu::Mtu1024, reads: true, timeout: 15, seed: 7 };
            carry_messages(&mut requester, &mut responder, &run)
                .unwrap_or_else(|error| panic!("{faults}: {error:#}"));
        }
    }
}
