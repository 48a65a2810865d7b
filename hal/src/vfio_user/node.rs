//! A function behind a socket that can be opened.

use core::time::Duration;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use rustix::io::Errno;

use super::connection::{Connection, RequestError};
use super::function::VfioUserFunction;
use crate::address::Bdf;
use crate::config::{self, ConfigError};
use crate::function::{OpenError, PciFunction, PciIdentity, PciNode};

/// How a server is talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VfioUserOptions {
    /// How long a server may take to answer a command.
    pub timeout: Duration,
}

impl Default for VfioUserOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(5) }
    }
}

/// A function that a vfio-user server offers on a socket: `vfio-user:PATH`.
///
/// It has no place on a bus of this machine, so that its address is `0000:00:00.0`. It is
/// open when a connection to the server has been made; a server has one client at a time.
#[derive(Debug)]
pub struct VfioUserNode {
    path: PathBuf,
    name: String,
    options: VfioUserOptions,
    open: Mutex<Weak<VfioUserFunction>>,
}

impl VfioUserNode {
    /// The function that is offered at `path`. Nothing is done before it is asked.
    #[must_use]
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self::with_options(path, VfioUserOptions::default())
    }

    /// As [`new`](Self::new), with a choice of options.
    #[must_use]
    pub fn with_options(path: impl AsRef<Path>, options: VfioUserOptions) -> Self {
        let path = path.as_ref().to_owned();
        let name = format!("vfio-user:{}", path.display());
        Self { path, name, options, open: Mutex::default() }
    }

    /// Opens the function and keeps its own type.
    ///
    /// # Errors
    ///
    /// As [`PciNode::open`].
    pub fn open_function(&self) -> Result<Arc<VfioUserFunction>, OpenError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.upgrade().is_some_and(|function| function.is_open()) {
            let holder = format!("this process, {}", std::process::id());
            return Err(OpenError::Busy { function: self.name.clone(), holder });
        }
        let function = self.connect()?;
        *open = Arc::downgrade(&function);
        Ok(function)
    }

    fn connect(&self) -> Result<Arc<VfioUserFunction>, OpenError> {
        let function = || self.name.clone();
        let refused = |reason: String, fix: &str| OpenError::Refused {
            function: function(),
            reason,
            fix: fix.to_owned(),
        };
        let path = self.path.display();
        let stream = UnixStream::connect(&self.path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenError::Refused {
                function: function(),
                reason: "there is no such socket".to_owned(),
                fix: format!("start a server: `vdk serve STUB --socket {path}`"),
            },
            io::ErrorKind::ConnectionRefused => OpenError::Refused {
                function: function(),
                reason: "nobody serves there".to_owned(),
                fix: format!("start a server: `vdk serve STUB --socket {path}`"),
            },
            io::ErrorKind::PermissionDenied => OpenError::Refused {
                function: function(),
                reason: "the permissions of the socket forbid it".to_owned(),
                fix: format!("`chmod` or `chown` {path}, or run as its owner"),
            },
            _ => refused(error.to_string(), "look whether the path is a socket"),
        })?;
        let (connection, receiver) = match Connection::begin(stream, self.options.timeout) {
            Ok(begun) => begun,
            Err(RequestError::Refused { error: Errno::BUSY, .. }) => {
                let holder = "another client of the server".to_owned();
                return Err(OpenError::Busy { function: function(), holder });
            }
            Err(RequestError::Refused { error: Errno::NODEV, .. }) => {
                return Err(OpenError::Gone { function: function() });
            }
            Err(error) => return Err(refused(error.to_string(), NOT_A_SERVER)),
        };
        VfioUserFunction::begin(self.name.clone(), connection, receiver)
            .map_err(|reason| refused(reason, NOT_A_SERVER))
    }
}

impl PciNode for VfioUserNode {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> Bdf {
        Bdf::default()
    }

    /// What the function is. Without a session of this node it is opened for a moment.
    fn identity(&self) -> Result<PciIdentity, ConfigError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        let function = match open.filter(|function| function.is_open()) {
            Some(function) => function,
            None => self.open_function().map_err(|error| match error {
                OpenError::Gone { .. } => ConfigError::DeviceGone,
                OpenError::Busy { .. } => {
                    ConfigError::System { offset: 0, error: io::ErrorKind::ResourceBusy }
                }
                _ => ConfigError::System { offset: 0, error: io::ErrorKind::NotFound },
            })?,
        };
        config::identity(function.config())
    }

    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError> {
        let function: Arc<dyn PciFunction> = self.open_function()?;
        Ok(function)
    }
}

const NOT_A_SERVER: &str = "look whether a vfio-user server is at the other end, and at its log";
