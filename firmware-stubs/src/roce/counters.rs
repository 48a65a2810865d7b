//! What a queue pair counted.

/// Counts of one queue pair since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames taken.
    pub frames_received: u64,
    /// Request packets that were sent before.
    pub sent_again: u64,
    /// Sends that were done.
    pub sends: u64,
    /// Receives that were done.
    pub receives: u64,
    /// Times that an answer was overdue.
    pub timeouts: u64,
    /// Sends that failed because nothing came back, or too much was lost.
    pub retries_exceeded: u64,
    /// Sends that failed because the other side had no receive.
    pub rnr_retries_exceeded: u64,
    /// NAKs for a gap that came.
    pub sequence_naks_received: u64,
    /// NAKs for a missing receive that came.
    pub rnr_naks_received: u64,
    /// Times that an answer to a READ or an atomic operation was seen to be lost.
    pub answers_lost: u64,
    /// Answers that fit no request: old ones, mostly.
    pub strange_answers: u64,
    /// NAKs for a gap that were sent.
    pub sequence_naks_sent: u64,
    /// NAKs for a missing receive that were sent.
    pub rnr_naks_sent: u64,
    /// Requests that came again.
    pub duplicates: u64,
    /// Requests with a PSN that was not their turn.
    pub out_of_sequence: u64,
    /// Packets that were dropped without an answer, for any other reason.
    pub dropped: u64,
    /// Datagrams with a wrong Q_Key.
    pub q_key_violations: u64,
    /// Congestion notifications that came.
    pub congestion_received: u64,
    /// Congestion notifications that were sent.
    pub congestion_sent: u64,
}

impl Counters {
    /// Packets that were neither taken nor answered.
    pub(super) const fn refused(&self) -> u64 {
        self.dropped + self.q_key_violations
    }
}
