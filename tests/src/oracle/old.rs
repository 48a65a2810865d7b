//! Where rxe of Linux 6.1 does something else than that of Linux 6.12.

use vdk_firmware_stubs::roce::Status;

use super::rows::Meeting::{OursToRxe, RxeToOurs};
use super::rows::{FAILED, FINE, Meeting, Outcome, Row, SENDING};

/// A request that rxe cannot carry out tells so itself; the newer one flushes it with those behind
/// it.
const OWN_REQUEST: Outcome =
    Outcome { requester: &[Some(Status::LocalQueuePairOperation)], states: (FAILED, SENDING), ..FINE };
/// A datagram that is too long ends the queue pair; with the newer one it vanishes.
const TOO_LONG: Outcome = Outcome {
    responder_receives: &[Some(Status::LocalQueuePairOperation)],
    states: (SENDING, FAILED),
    ..FINE
};

/// The number of the row, who asks, and what comes of it.
const DEPARTURES: &[(u8, Meeting, Outcome)] = &[
    (9, RxeToOurs, OWN_REQUEST),
    (32, RxeToOurs, OWN_REQUEST),
    (36, OursToRxe, TOO_LONG),
    (38, RxeToOurs, OWN_REQUEST),
    (39, RxeToOurs, OWN_REQUEST),
    (40, RxeToOurs, OWN_REQUEST),
];

/// What comes of a row with it, when that is something else.
pub(super) fn departure(row: &Row, meeting: Meeting) -> Option<&'static Outcome> {
    let found =
        DEPARTURES.iter().find(|(number, departing, _)| (*number, *departing) == (row.number, meeting));
    found.map(|(_, _, outcome)| outcome)
}

#[cfg(test)]
mod tests {
    use super::super::datagrams::DATAGRAM_ROWS;
    use super::super::rows::ROWS;
    use super::*;

    #[test]
    fn each_departure_of_the_old_one_is_another_outcome_of_a_row() {
        let mut found = 0;
        for row in ROWS.iter().chain(DATAGRAM_ROWS) {
            for meeting in [OursToRxe, RxeToOurs] {
                let Some(outcome) = departure(row, meeting) else { continue };
                assert_ne!(outcome, row.expected(meeting), "{:02} {}", row.number, row.name);
                found += 1;
            }
        }
        assert_eq!(found, DEPARTURES.len());
    }
}
