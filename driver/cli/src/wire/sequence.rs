//! Which packets of a queue pair were sent again, and which are missing.

use vdk_driver::descriptors::roce::{
    Extension, Frame, Operation, PathMtu, Position, Psn, SyndromeKind, Transport,
};

/// What is remarkable about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A packet with this PSN, or a later one, was there before.
    Retransmission,
    /// So many packets before it are missing, at least.
    Gap(u32),
    /// The numbers begin anew: the queue pair was set up again.
    Restart,
    /// It refuses a request.
    Nak,
    /// It puts a request off.
    RnrNak,
}

/// The numbers of the packets to one queue pair. Its owner's requests and the answers to its
/// own requests are numbered apart.
#[derive(Debug, Default)]
pub(crate) struct Sequence {
    request: Option<Expected>,
    /// The next packet of a response, and whether one is being sent.
    response: Option<(Psn, bool)>,
}

/// Which PSN the next request has: one of `slack` and one, from `next` on. A READ request takes
/// as many as its answer has packets, and the path MTU is not in it.
#[derive(Clone, Copy, Debug)]
struct Expected {
    next: Psn,
    slack: u32,
}

impl Sequence {
    /// Takes the next packet and says what is remarkable about it.
    pub(crate) fn mark(&mut self, frame: &Frame<'_>) -> Option<Mark> {
        let bth = &frame.headers.bth;
        match (bth.opcode.transport(), bth.opcode.operation()) {
            // One queue pair sends datagrams to many, and numbers them together.
            (Transport::UnreliableDatagram | Transport::CongestionNotification, _) => None,
            (_, Operation::ReadResponse) => self.response(bth.psn, bth.opcode.position()),
            (_, Operation::Acknowledge | Operation::AtomicAcknowledge) => {
                match frame.headers.extension.acknowledge()?.syndrome.kind() {
                    SyndromeKind::Nak(_) | SyndromeKind::Reserved(_) => Some(Mark::Nak),
                    SyndromeKind::RnrNak(_) => Some(Mark::RnrNak),
                    SyndromeKind::Ack(_) => None,
                }
            }
            _ => self.request(bth.psn, &frame.headers.extension, bth.opcode.operation()),
        }
    }

    fn request(&mut self, psn: Psn, extension: &Extension, operation: Operation) -> Option<Mark> {
        let (least, most) = match (operation, extension.remote()) {
            (Operation::ReadRequest, Some(reth)) => {
                (PathMtu::Mtu4096.packets(reth.length), PathMtu::Mtu256.packets(reth.length))
            }
            _ => (1, 1),
        };
        let after = Expected { next: psn.after(least), slack: most - least };
        let Some(expected) = self.request else {
            self.request = Some(after);
            return None;
        };
        let offset = psn.offset_from(expected.next);
        let mark = if offset.unsigned_abs() > FAR {
            Some(Mark::Restart)
        } else if offset < 0 {
            Some(Mark::Retransmission)
        } else {
            let missing = offset.unsigned_abs().saturating_sub(expected.slack);
            (missing > 0).then_some(Mark::Gap(missing))
        };
        if mark != Some(Mark::Retransmission) || after.next.is_after(expected.next) {
            self.request = Some(after);
        }
        mark
    }

    fn response(&mut self, psn: Psn, position: Position) -> Option<Mark> {
        let mark = self.response.and_then(|(next, open)| {
            let offset = psn.offset_from(next);
            if offset.unsigned_abs() > FAR {
                Some(Mark::Restart)
            } else if offset < 0 {
                Some(Mark::Retransmission)
            } else {
                // Between two responses there may be requests that are answered otherwise.
                let inside = open && !position.begins();
                (inside && offset > 0).then_some(Mark::Gap(offset.unsigned_abs()))
            }
        });
        self.response = Some((psn.next(), !position.ends()));
        mark
    }
}

/// A PSN further than this from the expected one is the first of something new.
const FAR: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;
    use vdk_driver::descriptors::roce::{RemoteKey, Reth};

    fn requests(packets: &[(u32, u32)]) -> Vec<Option<Mark>> {
        let mut sequence = Sequence::default();
        packets
            .iter()
            .map(|&(psn, read)| {
                let reth = Reth { address: 0, key: RemoteKey(0), length: read };
                let (extension, operation) = if read > 0 {
                    (Extension::Remote(reth), Operation::ReadRequest)
                } else {
                    (Extension::None, Operation::Send)
                };
                sequence.request(Psn::new(psn), &extension, operation)
            })
            .collect()
    }

    #[test]
    fn requests_that_repeat_or_skip_numbers_are_marked() {
        let again = Some(Mark::Retransmission);
        assert_eq!(requests(&[(0xff_fffe, 0), (0xff_ffff, 0), (0, 0), (1, 0)]), [None; 4]);
        assert_eq!(requests(&[(1, 0), (2, 0), (1, 0), (2, 0), (3, 0)]), [None, None, again, again, None]);
        assert_eq!(requests(&[(1, 0), (4, 0), (2, 0)]), [None, Some(Mark::Gap(2)), again]);
        assert_eq!(requests(&[(5, 0), (0x80_0000, 0), (0x80_0001, 0)]), [None, Some(Mark::Restart), None]);
    }

    #[test]
    fn a_read_takes_as_many_numbers_as_its_answer_may_have_packets() {
        assert_eq!(requests(&[(10, 2500), (20, 0)]), [None, None]);
        assert_eq!(requests(&[(10, 2500), (11, 0)]), [None, None]);
        assert_eq!(requests(&[(10, 2500), (21, 0)]), [None, Some(Mark::Gap(1))]);
        assert_eq!(requests(&[(10, 2500), (15, 0), (12, 1000)])[2], Some(Mark::Retransmission));
    }

    #[test]
    fn responses_that_repeat_or_skip_packets_are_marked() {
        let mut sequence = Sequence::default();
        let mut mark = |psn, position| sequence.response(Psn::new(psn), position);
        assert_eq!(mark(7, Position::First), None);
        assert_eq!(mark(8, Position::Middle), None);
        assert_eq!(mark(10, Position::Last), Some(Mark::Gap(1)));
        assert_eq!(mark(9, Position::First), Some(Mark::Retransmission));
        assert_eq!(mark(10, Position::Last), None);
        assert_eq!(mark(15, Position::Only), None);
        assert_eq!(mark(15, Position::Only), Some(Mark::Retransmission));
    }
}
