//! Changes of state.

use super::QueuePair;
use crate::roce::attributes::Attributes;
use crate::roce::host::Host;
use crate::roce::state::{self, State, TransitionError};

impl QueuePair {
    /// Moves the queue pair to `to` and sets attributes.
    ///
    /// Reset empties both queues without completions; Error flushes them.
    ///
    /// # Errors
    ///
    /// [`TransitionError`], and nothing changes.
    pub fn modify(
        &mut self,
        to: State,
        attributes: &Attributes,
        host: &mut impl Host,
    ) -> Result<(), TransitionError> {
        let from = self.state;
        state::check(self.service, from, to, attributes.mask())?;
        if let Some(believed) = attributes.current_state.filter(|believed| *believed != from) {
            return Err(TransitionError::Believed { from, believed });
        }
        attributes.check_values()?;
        let draining = from == State::SendQueueDrain && !self.requester.is_drained();
        if draining && !matches!(to, State::Error | State::Reset) {
            return Err(TransitionError::Draining);
        }
        if attributes.initiator_depth == Some(0) && self.has_reads() {
            return Err(TransitionError::ReadsPosted);
        }
        match to {
            State::Reset => {
                self.reset();
                return Ok(());
            }
            State::Error => {
                self.enter_error(host);
                return Ok(());
            }
            _ => {}
        }
        self.set(attributes);
        self.state = to;
        if to == State::ReadyToReceive {
            self.established = false;
        }
        // Only the change to SQD drains. From there to itself only attributes change.
        if to == State::SendQueueDrain && from != to {
            self.drained = false;
            self.note_drained(host);
        }
        Ok(())
    }

    /// Whether a READ or an atomic operation is posted and not done.
    fn has_reads(&self) -> bool {
        let ring = &self.requester.queue.ring;
        (ring.head()..ring.tail()).any(|slot| ring.slot(slot).operation.is_answered())
    }

    fn reset(&mut self) {
        self.state = State::Reset;
        self.way = None;
        self.congestion = None;
        self.drained_event = false;
        let mtu = self.port_mtu.bytes();
        (self.requester.settings.mtu, self.responder.settings.mtu) = (mtu, mtu);
        self.requester.settings.depth = 0;
        self.responder.set_depth(0);
        self.requester.reset();
        self.responder.reset();
    }

    fn set(&mut self, attributes: &Attributes) {
        if let Some(path) = attributes.path {
            self.way = Some((path, path.flow()));
        }
        if let Some(destination) = attributes.destination {
            self.destination = destination;
        }
        if let Some(rights) = attributes.access {
            self.responder.settings.rights = rights;
        }
        if let Some(q_key) = attributes.q_key {
            self.q_key = q_key;
            self.requester.settings.q_key = q_key;
        }
        if let Some(mtu) = attributes.path_mtu {
            self.requester.settings.mtu = mtu.bytes();
            self.responder.settings.mtu = mtu.bytes();
        }
        if let Some(depth) = attributes.responder_depth {
            self.responder.set_depth(u32::from(depth));
        }
        if let Some(timer) = attributes.rnr_timer {
            self.responder.settings.rnr_timer = timer;
        }
        if let Some(psn) = attributes.receive_psn {
            self.responder.start(psn);
        }
        let requester = &mut self.requester.settings;
        if let Some(timeout) = attributes.timeout {
            requester.timeout = timeout.duration();
        }
        if let Some(retries) = attributes.retries {
            requester.retries = retries;
        }
        if let Some(retries) = attributes.rnr_retries {
            requester.rnr_retries = retries;
        }
        if let Some(depth) = attributes.initiator_depth {
            requester.depth = u32::from(depth);
        }
        if attributes.retries.or(attributes.rnr_retries).is_some() {
            self.requester.reload();
        }
        if let Some(psn) = attributes.send_psn {
            self.requester.start(psn);
        }
        if let Some(wanted) = attributes.drained_event {
            self.drained_event = wanted;
        }
    }
}
