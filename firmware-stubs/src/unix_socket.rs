//! The files of unix sockets: what is replaced by one, and what is removed with one.

use std::fs::{File, FileType};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use thiserror::Error;

/// Why there is no socket at a path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SocketError {
    /// Somebody uses it already.
    #[error("{} is in use by another program: choose another path, or stop that program", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// There is something else at the path.
    #[error("{} is {what} and not a socket, so it is left alone: choose another path", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
        /// What is there, with its article.
        what: &'static str,
    },
    /// No socket can have the path.
    #[error(
        "the path {} has {length} bytes, and that of a socket has {LONGEST_PATH} at most: choose a shorter one",
        path.display()
    )]
    PathTooLong {
        /// Where.
        path: PathBuf,
        /// How many bytes it has.
        length: usize,
    },
    /// There is no directory for it.
    #[error("there is no directory {} for the socket {}: make it first", directory.display(), path.display())]
    NoDirectory {
        /// Where.
        path: PathBuf,
        /// What is missing.
        directory: PathBuf,
    },
    /// The system refused.
    #[error("cannot {operation} {}: {error}", path.display())]
    System {
        /// What was tried.
        operation: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::ErrorKind,
    },
}

/// The file of a socket of this process. Dropping it removes the file, unless another one is
/// at its path by then.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Keeps the inode, so that no other file has its number.
    file: File,
}

impl SocketFile {
    /// Makes a socket at `path` by `make`. One that a process left behind is replaced, and
    /// nothing else is.
    pub(crate) fn bind<S>(
        path: &Path,
        make: impl FnOnce(&Path) -> io::Result<S>,
    ) -> Result<(S, Self), SocketError> {
        check_path(path)?;
        remove_stale(path)?;
        let socket = make(path).map_err(|error| refused(path, &error))?;
        let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| system("look at", path, error.kind()))?;
        Ok((socket, Self { path: path.to_owned(), file: file.into() }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is still what is at its path.
    fn is_there(&self) -> io::Result<bool> {
        let (own, there) = (self.file.metadata()?, std::fs::symlink_metadata(&self.path)?);
        Ok((own.dev(), own.ino()) == (there.dev(), there.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        match self.is_there().and_then(|own| if own { std::fs::remove_file(&self.path) } else { Ok(()) }) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                log::warn!("cannot remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

/// Refuses a path that no socket can have.
pub(crate) fn check_path(path: &Path) -> Result<(), SocketError> {
    let length = path.as_os_str().len();
    if length > LONGEST_PATH {
        return Err(SocketError::PathTooLong { path: path.to_owned(), length });
    }
    Ok(())
}

/// Removes a socket that nobody has.
fn remove_stale(path: &Path) -> Result<(), SocketError> {
    let kind = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look at", path, error.kind())),
    };
    // The system refuses a connection to whatever is no socket as it does to a stale one.
    if !kind.is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned(), what: name(kind) });
    }
    // Datagrams need nobody to accept them, so whoever listens there is not disturbed.
    let called = UnixDatagram::unbound().and_then(|caller| caller.connect(path));
    let error = match called {
        Ok(()) => return Err(SocketError::InUse { path: path.to_owned() }),
        Err(error) => error,
    };
    match Errno::from_io_error(&error) {
        // It is a stream, or speaks to somebody else.
        Some(Errno::PROTOTYPE | Errno::PERM) => Err(SocketError::InUse { path: path.to_owned() }),
        Some(Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(system("remove", path, error.kind()))
            }
            _ => Ok(()),
        },
        Some(Errno::NOENT) => Ok(()),
        _ => Err(system("look at", path, error.kind())),
    }
}

fn refused(path: &Path, error: &io::Error) -> SocketError {
    match (error.kind(), path.parent()) {
        (io::ErrorKind::AddrInUse, _) => SocketError::InUse { path: path.to_owned() },
        (io::ErrorKind::NotFound, Some(directory)) if directory != Path::new("") => {
            SocketError::NoDirectory { path: path.to_owned(), directory: directory.to_owned() }
        }
        (kind, _) => system("make the socket", path, kind),
    }
}

fn system(operation: &'static str, path: &Path, error: io::ErrorKind) -> SocketError {
    SocketError::System { operation, path: path.to_owned(), error }
}

fn name(kind: FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_symlink() {
        "a symbolic link"
    } else if kind.is_file() {
        "a regular file"
    } else if kind.is_fifo() {
        "a pipe"
    } else {
        "a device"
    }
}

/// How many bytes the path of a socket has at most: the system keeps 108, with a zero.
const LONGEST_PATH: usize = 107;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vdk-socket-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn bind(path: &Path) -> Result<(UnixListener, SocketFile), SocketError> {
        SocketFile::bind(path, |path| UnixListener::bind(path))
    }

    #[test]
    fn only_a_socket_that_nobody_has_is_replaced() {
        let folder = folder("replaced");
        let path = folder.join("x");
        std::fs::write(&path, "precious").unwrap();
        let refused = bind(&path).unwrap_err();
        assert_eq!(refused, SocketError::NotASocket { path: path.clone(), what: "a regular file" });
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();

        let (listener, file) = bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert_eq!(bind(&path).unwrap_err(), SocketError::InUse { path: path.clone() });
        let nobody = listener.accept().unwrap_err();
        assert_eq!(nobody.kind(), io::ErrorKind::WouldBlock, "the one that listens is not disturbed");
        drop(listener);
        let (second, _file) = bind(&path).unwrap();
        drop(file);
        assert!(path.exists(), "the first one leaves the socket of the second alone");
        drop((second, _file));
        assert!(!path.exists());

        let datagrams = UnixDatagram::bind(&path).unwrap();
        assert_eq!(bind(&path).unwrap_err(), SocketError::InUse { path: path.clone() });
        drop(datagrams);
        drop(bind(&path).unwrap());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_path_that_cannot_be_says_why() {
        let folder = folder("paths");
        let missing = folder.join("none");
        let error = bind(&missing.join("x")).unwrap_err();
        assert_eq!(error, SocketError::NoDirectory { path: missing.join("x"), directory: missing });
        let long = Path::new("/tmp").join("x".repeat(103));
        assert_eq!(bind(&long).unwrap_err(), SocketError::PathTooLong { path: long, length: 108 });
        let error = bind(&folder).unwrap_err();
        assert_eq!(error, SocketError::NotASocket { path: folder.clone(), what: "a directory" });
        std::fs::remove_dir_all(folder).unwrap();
    }
}
