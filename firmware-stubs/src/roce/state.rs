//! The states of a queue pair, and which attributes each change needs and allows.
//!
//! The table is the one that Linux checks every device against.

use thiserror::Error;
use vdk_descriptors::roce::Transport;

/// The transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// RC: each message arrives once and in order, or the queue pair fails.
    ReliableConnected,
    /// UC: in order, and lost messages are lost.
    UnreliableConnected,
    /// UD: single packets to anyone.
    Datagram,
}

impl Service {
    /// How its packets are marked.
    #[inline]
    #[must_use]
    pub const fn transport(self) -> Transport {
        match self {
            Self::ReliableConnected => Transport::ReliableConnection,
            Self::UnreliableConnected => Transport::UnreliableConnection,
            Self::Datagram => Transport::UnreliableDatagram,
        }
    }
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing is set up; the queues are empty.
    Reset,
    /// Receives can be posted.
    Init,
    /// RTR: requests are taken.
    ReadyToReceive,
    /// RTS: requests are sent too.
    ReadyToSend,
    /// SQD: what was begun is finished, nothing is begun.
    SendQueueDrain,
    /// SQE: a send failed; the receive side goes on. Never with a reliable connection.
    SendQueueError,
    /// Everything posted is flushed.
    Error,
}

impl State {
    /// All states.
    pub const ALL: [Self; 7] = [
        Self::Reset,
        Self::Init,
        Self::ReadyToReceive,
        Self::ReadyToSend,
        Self::SendQueueDrain,
        Self::SendQueueError,
        Self::Error,
    ];

    /// Whether requests of the other side are taken.
    #[inline]
    #[must_use]
    pub const fn receives(self) -> bool {
        matches!(self, Self::ReadyToReceive | Self::ReadyToSend | Self::SendQueueDrain | Self::SendQueueError)
    }

    /// Whether sends that were begun go on.
    #[inline]
    #[must_use]
    pub const fn sends(self) -> bool {
        matches!(self, Self::ReadyToSend | Self::SendQueueDrain)
    }
}

/// A set of attributes, with the bits of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Mask(pub u32);

impl Mask {
    /// No attribute.
    pub const NONE: Self = Self(0);
    /// The state that the caller believes to be the current one.
    pub const CURRENT_STATE: Self = Self(1 << 1);
    /// Whether the end of draining gives an event.
    pub const DRAINED_EVENT: Self = Self(1 << 2);
    /// What the other side may do.
    pub const ACCESS: Self = Self(1 << 3);
    /// The index of the P_Key.
    pub const PARTITION_KEY: Self = Self(1 << 4);
    /// The port.
    pub const PORT: Self = Self(1 << 5);
    /// The Q_Key.
    pub const Q_KEY: Self = Self(1 << 6);
    /// The way to the other side.
    pub const PATH: Self = Self(1 << 7);
    /// The path MTU.
    pub const PATH_MTU: Self = Self(1 << 8);
    /// The local ACK timeout.
    pub const TIMEOUT: Self = Self(1 << 9);
    /// How often packets are sent again.
    pub const RETRIES: Self = Self(1 << 10);
    /// How often a receiver may be not ready.
    pub const RNR_RETRIES: Self = Self(1 << 11);
    /// The first PSN of the other side.
    pub const RECEIVE_PSN: Self = Self(1 << 12);
    /// How many READs and atomic operations this side may have outstanding.
    pub const INITIATOR_DEPTH: Self = Self(1 << 13);
    /// Another way to the other side, which RoCE does not have.
    pub const ALTERNATE_PATH: Self = Self(1 << 14);
    /// How long the other side is to wait for a receive.
    pub const RNR_TIMER: Self = Self(1 << 15);
    /// The first PSN of this side.
    pub const SEND_PSN: Self = Self(1 << 16);
    /// How many READs and atomic operations the other side may have outstanding.
    pub const RESPONDER_DEPTH: Self = Self(1 << 17);
    /// The state of path migration, which RoCE does not have.
    pub const MIGRATION: Self = Self(1 << 18);
    /// The queue pair of the other side.
    pub const DESTINATION: Self = Self(1 << 20);

    /// Both together.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What is in `self` and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether there is nothing.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a change of state needs, and what it allows beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Attributes that must be given.
    pub required: Mask,
    /// Attributes that may be given.
    pub optional: Mask,
}

/// Why a change of state is refused. The queue pair is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TransitionError {
    /// There is no such change.
    #[error("cannot move a queue pair from {from:?} to {to:?}")]
    Forbidden {
        /// The state it is in.
        from: State,
        /// The state it was to get.
        to: State,
    },
    /// The caller believes it to be in another state.
    #[error("the queue pair is in {from:?}, not in {believed:?}")]
    Believed {
        /// The state it is in.
        from: State,
        /// The state in the attributes.
        believed: State,
    },
    /// Required attributes are missing.
    #[error("from {from:?} to {to:?} the attributes {missing:#x} are missing")]
    Missing {
        /// The state it is in.
        from: State,
        /// The state it was to get.
        to: State,
        /// The bits of the missing attributes.
        missing: u32,
    },
    /// Attributes are given that the change does not allow.
    #[error("from {from:?} to {to:?} the attributes {extra:#x} cannot be given")]
    Extra {
        /// The state it is in.
        from: State,
        /// The state it was to get.
        to: State,
        /// The bits of the attributes.
        extra: u32,
    },
    /// An attribute has a value that there is not.
    #[error("the {name} cannot be {value:#x}; the largest is {most:#x}")]
    Value {
        /// The attribute.
        name: &'static str,
        /// What was given.
        value: u32,
        /// The largest that is allowed.
        most: u32,
    },
    /// Without depth, READs and atomic operations that are posted would never be sent.
    #[error("the initiator depth cannot be 0: READs or atomic operations are posted")]
    ReadsPosted,
    /// Sends that were begun are not done yet.
    #[error("the send queue is still draining; wait for the event")]
    Draining,
}

/// What the change from `from` to `to` needs; `None` when there is no such change.
#[must_use]
pub fn transition(service: Service, from: State, to: State) -> Option<Transition> {
    match (from, to) {
        (_, State::Reset) => return Some(Transition { required: Mask::NONE, optional: Mask::NONE }),
        (State::Reset, State::Error) => return None,
        (_, State::Error) => return Some(Transition { required: Mask::NONE, optional: Mask::NONE }),
        _ => {}
    }
    let row = TABLE.iter().find(|row| (row.from, row.to) == (from, to))?;
    match service {
        Service::ReliableConnected => row.reliable,
        Service::UnreliableConnected => row.unreliable,
        Service::Datagram => row.datagram,
    }
}

/// Checks the change from `from` to `to` with the attributes `given`.
///
/// # Errors
///
/// [`TransitionError`]: no such change, attributes missing, attributes too many.
pub fn check(service: Service, from: State, to: State, given: Mask) -> Result<(), TransitionError> {
    let transition = transition(service, from, to).ok_or(TransitionError::Forbidden { from, to })?;
    let missing = transition.required.without(given);
    if !missing.is_empty() {
        return Err(TransitionError::Missing { from, to, missing: missing.0 });
    }
    // RoCE has no alternate path, whatever the table says.
    let allowed = transition.required.with(transition.optional).without(Mask::ALTERNATE_PATH);
    let extra = given.without(allowed);
    if !extra.is_empty() {
        return Err(TransitionError::Extra { from, to, extra: extra.0 });
    }
    Ok(())
}

struct Row {
    from: State,
    to: State,
    reliable: Option<Transition>,
    unreliable: Option<Transition>,
    datagram: Option<Transition>,
}

const fn all(masks: &[Mask]) -> Mask {
    let mut all = Mask::NONE;
    let mut index = 0;
    while index < masks.len() {
        // PANIC: `index` is below the length.
        all = all.with(masks[index]);
        index += 1;
    }
    all
}

const fn some(required: &[Mask], optional: &[Mask]) -> Option<Transition> {
    Some(Transition { required: all(required), optional: all(optional) })
}

use Mask as M;

const CONNECTED_INIT: &[Mask] = &[M::PARTITION_KEY, M::PORT, M::ACCESS];
const DATAGRAM_INIT: &[Mask] = &[M::PARTITION_KEY, M::PORT, M::Q_KEY];
const RECEIVE_OPTIONS: &[Mask] = &[M::ALTERNATE_PATH, M::ACCESS, M::PARTITION_KEY];
const RUNNING_RC: &[Mask] = &[M::CURRENT_STATE, M::ACCESS, M::ALTERNATE_PATH, M::MIGRATION, M::RNR_TIMER];
const RUNNING_UC: &[Mask] = &[M::CURRENT_STATE, M::ACCESS, M::ALTERNATE_PATH, M::MIGRATION];
const RUNNING_UD: &[Mask] = &[M::CURRENT_STATE, M::Q_KEY];

const TABLE: &[Row] = &[
    Row {
        from: State::Reset,
        to: State::Init,
        reliable: some(CONNECTED_INIT, &[]),
        unreliable: some(CONNECTED_INIT, &[]),
        datagram: some(DATAGRAM_INIT, &[]),
    },
    Row {
        from: State::Init,
        to: State::Init,
        reliable: some(&[], CONNECTED_INIT),
        unreliable: some(&[], CONNECTED_INIT),
        datagram: some(&[], DATAGRAM_INIT),
    },
    Row {
        from: State::Init,
        to: State::ReadyToReceive,
        reliable: some(
            &[M::PATH, M::PATH_MTU, M::DESTINATION, M::RECEIVE_PSN, M::RESPONDER_DEPTH, M::RNR_TIMER],
            RECEIVE_OPTIONS,
        ),
        unreliable: some(&[M::PATH, M::PATH_MTU, M::DESTINATION, M::RECEIVE_PSN], RECEIVE_OPTIONS),
        datagram: some(&[], &[M::PARTITION_KEY, M::Q_KEY]),
    },
    Row {
        from: State::ReadyToReceive,
        to: State::ReadyToSend,
        reliable: some(
            &[M::TIMEOUT, M::RETRIES, M::RNR_RETRIES, M::SEND_PSN, M::INITIATOR_DEPTH],
            &[M::CURRENT_STATE, M::ALTERNATE_PATH, M::ACCESS, M::RNR_TIMER, M::MIGRATION],
        ),
        unreliable: some(&[M::SEND_PSN], RUNNING_UC),
        datagram: some(&[M::SEND_PSN], RUNNING_UD),
    },
    Row {
        from: State::ReadyToSend,
        to: State::ReadyToSend,
        reliable: some(&[], RUNNING_RC),
        unreliable: some(&[], RUNNING_UC),
        datagram: some(&[], RUNNING_UD),
    },
    Row {
        from: State::ReadyToSend,
        to: State::SendQueueDrain,
        reliable: some(&[], &[M::DRAINED_EVENT]),
        unreliable: some(&[], &[M::DRAINED_EVENT]),
        datagram: some(&[], &[M::DRAINED_EVENT]),
    },
    Row {
        from: State::SendQueueDrain,
        to: State::ReadyToSend,
        reliable: some(&[], RUNNING_RC),
        unreliable: some(&[], RUNNING_UC),
        datagram: some(&[], RUNNING_UD),
    },
    Row {
        from: State::SendQueueDrain,
        to: State::SendQueueDrain,
        reliable: some(
            &[],
            &[
                M::PORT,
                M::PATH,
                M::TIMEOUT,
                M::RETRIES,
                M::RNR_RETRIES,
                M::INITIATOR_DEPTH,
                M::RESPONDER_DEPTH,
                M::ALTERNATE_PATH,
                M::ACCESS,
                M::PARTITION_KEY,
                M::RNR_TIMER,
                M::MIGRATION,
            ],
        ),
        unreliable: some(&[], &[M::PATH, M::ALTERNATE_PATH, M::ACCESS, M::PARTITION_KEY, M::MIGRATION]),
        datagram: some(&[], &[M::PARTITION_KEY, M::Q_KEY]),
    },
    Row {
        from: State::SendQueueError,
        to: State::ReadyToSend,
        reliable: None,
        unreliable: some(&[], &[M::CURRENT_STATE, M::ACCESS]),
        datagram: some(&[], RUNNING_UD),
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICES: [Service; 3] =
        [Service::ReliableConnected, Service::UnreliableConnected, Service::Datagram];

    #[test]
    fn only_the_changes_of_the_table_exist() {
        use State::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};
        for service in SERVICES {
            for from in State::ALL {
                for to in State::ALL {
                    let exists = match (from, to) {
                        (_, Reset) => true,
                        (from, Error) => from != Reset,
                        (SendQueueError, ReadyToSend) => service != Service::ReliableConnected,
                        pair => [
                            (Reset, Init),
                            (Init, Init),
                            (Init, ReadyToReceive),
                            (ReadyToReceive, ReadyToSend),
                            (ReadyToSend, ReadyToSend),
                            (ReadyToSend, SendQueueDrain),
                            (SendQueueDrain, ReadyToSend),
                            (SendQueueDrain, SendQueueDrain),
                        ]
                        .contains(&pair),
                    };
                    assert_eq!(
                        transition(service, from, to).is_some(),
                        exists,
                        "{service:?} {from:?} {to:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn each_missing_and_each_extra_attribute_is_refused() {
        for service in SERVICES {
            for (from, to) in State::ALL.iter().flat_map(|from| State::ALL.map(|to| (*from, to))) {
                let Some(needed) = transition(service, from, to) else { continue };
                assert_eq!(check(service, from, to, needed.required), Ok(()));
                for bit in (0..26).map(|bit| Mask(1 << bit)) {
                    let required = !bit.without(needed.required).is_empty();
                    if required {
                        let allowed = bit.without(needed.optional).is_empty() && bit != Mask::ALTERNATE_PATH;
                        let answer = check(service, from, to, needed.required.with(bit));
                        assert_eq!(answer.is_ok(), allowed, "{service:?} {from:?} {to:?} {bit:?}");
                    } else {
                        let answer = check(service, from, to, needed.required.without(bit));
                        let missing = TransitionError::Missing { from, to, missing: bit.0 };
                        assert_eq!(answer, Err(missing));
                    }
                }
            }
        }
    }

    #[test]
    fn a_reliable_queue_pair_needs_its_timers_to_become_ready_to_send() {
        let needed =
            transition(Service::ReliableConnected, State::ReadyToReceive, State::ReadyToSend).unwrap();
        assert_eq!(needed.required.0, 0x1_2e00);
        let needed = transition(Service::ReliableConnected, State::Init, State::ReadyToReceive).unwrap();
        assert_eq!(needed.required.0, 0x12_9180);
        assert_eq!(needed.optional.0, 0x4018);
    }
}
