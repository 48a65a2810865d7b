//! The attributes of a queue pair.

use vdk_descriptors::roce::{AckTimeout, PathMtu, Psn, QKey, Qpn, RnrTimer};

use super::memory::Rights;
use super::path::Path;
use super::state::{Mask, State, TransitionError};

/// What a change of state sets. What is absent stays as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// The state that the caller believes to be the current one.
    pub current_state: Option<State>,
    /// Whether the end of draining gives an event.
    pub drained_event: Option<bool>,
    /// What the other side may do.
    pub access: Option<Rights>,
    /// The index of the P_Key. There is only the default one, 0.
    pub partition_index: Option<u16>,
    /// The port. There is only 1.
    pub port: Option<u8>,
    /// The key of the queue.
    pub q_key: Option<QKey>,
    /// The way to the other side.
    pub path: Option<Path>,
    /// How many bytes a packet carries.
    pub path_mtu: Option<PathMtu>,
    /// How long to wait for an answer.
    pub timeout: Option<AckTimeout>,
    /// How often packets are sent again without progress: 0 to 7.
    pub retries: Option<u8>,
    /// How often a receiver may be not ready without progress: 0 to 6, and 7 for ever.
    pub rnr_retries: Option<u8>,
    /// The first PSN of the other side.
    pub receive_psn: Option<Psn>,
    /// How many READs and atomic operations this side may have outstanding, at most
    /// [`MOST_DEPTH`].
    pub initiator_depth: Option<u8>,
    /// How long the other side is to wait for a receive.
    pub rnr_timer: Option<RnrTimer>,
    /// The first PSN of this side.
    pub send_psn: Option<Psn>,
    /// How many READs and atomic operations the other side may have outstanding, at most
    /// [`MOST_DEPTH`].
    pub responder_depth: Option<u8>,
    /// The queue pair of the other side.
    pub destination: Option<Qpn>,
}

/// How many READs and atomic operations may be outstanding at most.
pub const MOST_DEPTH: u8 = 128;

impl Attributes {
    /// No attribute.
    pub const NONE: Self = Self {
        current_state: None,
        drained_event: None,
        access: None,
        partition_index: None,
        port: None,
        q_key: None,
        path: None,
        path_mtu: None,
        timeout: None,
        retries: None,
        rnr_retries: None,
        receive_psn: None,
        initiator_depth: None,
        rnr_timer: None,
        send_psn: None,
        responder_depth: None,
        destination: None,
    };

    /// Which attributes are there.
    #[must_use]
    pub fn mask(&self) -> Mask {
        let there = [
            (Mask::CURRENT_STATE, self.current_state.is_some()),
            (Mask::DRAINED_EVENT, self.drained_event.is_some()),
            (Mask::ACCESS, self.access.is_some()),
            (Mask::PARTITION_KEY, self.partition_index.is_some()),
            (Mask::PORT, self.port.is_some()),
            (Mask::Q_KEY, self.q_key.is_some()),
            (Mask::PATH, self.path.is_some()),
            (Mask::PATH_MTU, self.path_mtu.is_some()),
            (Mask::TIMEOUT, self.timeout.is_some()),
            (Mask::RETRIES, self.retries.is_some()),
            (Mask::RNR_RETRIES, self.rnr_retries.is_some()),
            (Mask::RECEIVE_PSN, self.receive_psn.is_some()),
            (Mask::INITIATOR_DEPTH, self.initiator_depth.is_some()),
            (Mask::RNR_TIMER, self.rnr_timer.is_some()),
            (Mask::SEND_PSN, self.send_psn.is_some()),
            (Mask::RESPONDER_DEPTH, self.responder_depth.is_some()),
            (Mask::DESTINATION, self.destination.is_some()),
        ];
        there
            .into_iter()
            .filter(|(_, there)| *there)
            .fold(Mask::NONE, |mask, (attribute, _)| mask.with(attribute))
    }

    /// Whether all values are possible.
    pub(super) fn check_values(&self) -> Result<(), TransitionError> {
        let values = [
            ("index of the P_Key", self.partition_index.map(u32::from), 0),
            ("retry count", self.retries.map(u32::from), 7),
            ("RNR retry count", self.rnr_retries.map(u32::from), 7),
            ("initiator depth", self.initiator_depth.map(u32::from), u32::from(MOST_DEPTH)),
            ("responder depth", self.responder_depth.map(u32::from), u32::from(MOST_DEPTH)),
            // Port 0 is none, and becomes larger than any.
            ("port", self.port.map(|port| u32::from(port.wrapping_sub(1)) + 1), 1),
        ];
        for (name, value, most) in values {
            if let Some(value) = value.filter(|value| *value > most) {
                return Err(TransitionError::Value { name, value, most });
            }
        }
        Ok(())
    }
}
