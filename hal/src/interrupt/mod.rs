//! Interrupts: kinds, vectors, and the event files that they signal.

mod event_fd;
mod room;

pub use event_fd::EventFd;

use core::fmt;

use thiserror::Error;

/// How a function interrupts. The kinds exclude one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterruptKind {
    /// A level-triggered line, one vector. It is masked when it fires and must be unmasked
    /// after the device was served.
    Intx,
    /// Message-signalled, a power of two of vectors up to 32.
    Msi,
    /// Message-signalled with a table, up to 2048 vectors.
    Msix,
}

impl fmt::Display for InterruptKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Intx => "INTx",
            Self::Msi => "MSI",
            Self::Msix => "MSI-X",
        })
    }
}

/// The interrupts of one function.
///
/// The verbs are separate on purpose: "disable" never fires a vector, "detach" leaves the
/// others alone, and only [`self_test`](Self::self_test) signals an event file. Each failed
/// call leaves everything as it was. Ending what was never begun succeeds.
pub trait Interrupts: Send + Sync {
    /// How many vectors of `kind` the function has; zero when it has none.
    fn vector_count(&self, kind: InterruptKind) -> u16;

    /// Which kind is enabled.
    fn enabled(&self) -> Option<InterruptKind>;

    /// Whether [`attach`](Self::attach) can add a vector while others are in use. Where it
    /// cannot, the vectors are given to [`enable`](Self::enable) once.
    fn can_attach_later(&self, kind: InterruptKind) -> bool;

    /// Enables `kind`: vector `n` signals `events[n]`, or nothing where that is `None`.
    ///
    /// # Errors
    ///
    /// - [`InterruptError::NotSupported`], [`InterruptError::NoSuchVector`];
    /// - [`InterruptError::AlreadyEnabled`] when this or another kind is enabled;
    /// - [`InterruptError::NotPowerOfTwo`] for MSI;
    /// - [`InterruptError::System`], [`InterruptError::Gone`].
    fn enable(&self, kind: InterruptKind, events: &[Option<EventFd>]) -> Result<(), InterruptError>;

    /// Makes an enabled vector signal `event`, also one beyond those given to `enable`
    /// where [`can_attach_later`](Self::can_attach_later) says so.
    ///
    /// # Errors
    ///
    /// [`InterruptError::NotEnabled`], [`InterruptError::NoSuchVector`],
    /// [`InterruptError::CannotGrow`], [`InterruptError::System`].
    fn attach(&self, kind: InterruptKind, vector: u16, event: &EventFd) -> Result<(), InterruptError>;

    /// Makes a vector signal nothing.
    ///
    /// # Errors
    ///
    /// [`InterruptError::NoSuchVector`], [`InterruptError::System`].
    fn detach(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError>;

    /// Disables every vector of `kind` without signalling any.
    ///
    /// # Errors
    ///
    /// [`InterruptError::System`].
    fn disable_all(&self, kind: InterruptKind) -> Result<(), InterruptError>;

    /// Masks a vector.
    ///
    /// # Errors
    ///
    /// [`InterruptError::NotEnabled`], [`InterruptError::NoSuchVector`],
    /// [`InterruptError::NotMaskable`], [`InterruptError::System`].
    fn mask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError>;

    /// Unmasks a vector; one that became pending meanwhile signals now. For INTx this is
    /// the acknowledgement that lets the line fire again.
    ///
    /// # Errors
    ///
    /// As [`mask`](Self::mask).
    fn unmask(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError>;

    /// Signals the event file of a vector as if the device had.
    ///
    /// # Errors
    ///
    /// [`InterruptError::NotEnabled`], [`InterruptError::NoSuchVector`],
    /// [`InterruptError::System`].
    fn self_test(&self, kind: InterruptKind, vector: u16) -> Result<(), InterruptError>;
}

/// Why an interrupt operation failed. Everything is as it was before.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InterruptError {
    /// The function has no interrupts of the kind.
    #[error("the function has no {kind}")]
    NotSupported {
        /// The kind.
        kind: InterruptKind,
    },
    /// The vector number is too high.
    #[error("{kind} vector {vector} does not exist: the function has {count}")]
    NoSuchVector {
        /// The kind.
        kind: InterruptKind,
        /// The number asked for.
        vector: u16,
        /// How many there are.
        count: u16,
    },
    /// A kind is enabled; disable it first.
    #[error("cannot enable {kind}: {enabled} is enabled; disable it first")]
    AlreadyEnabled {
        /// The kind asked for.
        kind: InterruptKind,
        /// The kind in use.
        enabled: InterruptKind,
    },
    /// The kind is not enabled.
    #[error("{kind} is not enabled")]
    NotEnabled {
        /// The kind.
        kind: InterruptKind,
    },
    /// MSI comes in powers of two.
    #[error("MSI needs a power of two of vectors, not {count}")]
    NotPowerOfTwo {
        /// The count asked for.
        count: u16,
    },
    /// The backend cannot add vectors while others are enabled.
    #[error("{kind} vector {vector} cannot be added while {enabled} are enabled: enable all at once")]
    CannotGrow {
        /// The kind.
        kind: InterruptKind,
        /// The vector asked for.
        vector: u16,
        /// How many are enabled.
        enabled: u16,
    },
    /// The kind cannot be masked by vector.
    #[error("{kind} vectors cannot be masked on this function")]
    NotMaskable {
        /// The kind.
        kind: InterruptKind,
    },
    /// The function is gone.
    #[error("the device is gone")]
    Gone,
    /// The session is closed.
    #[error("the session is not open")]
    NotOpen,
    /// The system refused.
    #[error("the system refused to set up {kind}: {error}")]
    System {
        /// The kind.
        kind: InterruptKind,
        /// What the system said.
        error: std::io::ErrorKind,
    },
}
