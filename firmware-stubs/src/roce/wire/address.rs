//! How a wire is written on a command line.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;

use super::{DatagramWire, StreamWire, Wire, WireError};

/// Where a wire leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WireAddress {
    /// `udp:LOCAL,REMOTE`: a frame in each UDP datagram.
    Udp {
        /// The own address.
        local: SocketAddr,
        /// The address of the other end.
        remote: SocketAddr,
    },
    /// `tcp:ADDRESS`: frames in a TCP connection to a listener.
    Tcp(SocketAddr),
    /// `tcp-listen:ADDRESS`: the same, and the other end connects.
    TcpListen(SocketAddr),
    /// `unix-dgram:LOCAL,REMOTE`: a frame in each datagram between two unix sockets.
    UnixDatagram {
        /// The own socket.
        local: PathBuf,
        /// The socket of the other end.
        remote: PathBuf,
    },
    /// `unix:PATH`: frames in a connection to a listening unix socket.
    Unix(PathBuf),
    /// `unix-listen:PATH`: the same, and the other end connects.
    UnixListen(PathBuf),
}

/// Why a text is no wire.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "{text:?} is no wire: use udp:LOCAL,REMOTE, tcp:ADDRESS, tcp-listen:ADDRESS, unix-dgram:LOCAL,REMOTE, \
     unix:PATH or unix-listen:PATH, with addresses such as 127.0.0.1:12345"
)]
pub struct ParseWireAddressError {
    /// The text.
    pub text: String,
}

impl WireAddress {
    /// Opens the wire. A peer of a datagram wire need not be there yet.
    ///
    /// # Errors
    ///
    /// The own address is taken, or nobody listens at the other.
    pub fn open(&self) -> Result<Box<dyn Wire>, WireError> {
        Ok(match self {
            Self::Udp { local, remote } => Box::new(DatagramWire::udp(*local, *remote)?),
            Self::Tcp(remote) => Box::new(StreamWire::connect_tcp(*remote, CONNECT_TIMEOUT)?),
            Self::TcpListen(local) => Box::new(StreamWire::listen_tcp(*local)?),
            Self::UnixDatagram { local, remote } => Box::new(DatagramWire::unix(local, remote)?),
            Self::Unix(path) => Box::new(StreamWire::connect_unix(path)?),
            Self::UnixListen(path) => Box::new(StreamWire::listen_unix(path)?),
        })
    }
}

impl FromStr for WireAddress {
    type Err = ParseWireAddressError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = || {
            let (kind, place) = text.split_once(':')?;
            let path = || (!place.is_empty()).then(|| PathBuf::from(place));
            let two =
                || place.split_once(',').filter(|(local, remote)| !local.is_empty() && !remote.is_empty());
            Some(match kind {
                "udp" => {
                    let (local, remote) = two()?;
                    Self::Udp { local: local.parse().ok()?, remote: remote.parse().ok()? }
                }
                "tcp" => Self::Tcp(place.parse().ok()?),
                "tcp-listen" => Self::TcpListen(place.parse().ok()?),
                "unix-dgram" => {
                    let (local, remote) = two()?;
                    Self::UnixDatagram { local: local.into(), remote: remote.into() }
                }
                "unix" => Self::Unix(path()?),
                "unix-listen" => Self::UnixListen(path()?),
                _ => return None,
            })
        };
        parse().ok_or_else(|| ParseWireAddressError { text: text.to_owned() })
    }
}

impl fmt::Display for WireAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { local, remote } => write!(f, "udp:{local},{remote}"),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
            Self::TcpListen(address) => write!(f, "tcp-listen:{address}"),
            Self::UnixDatagram { local, remote } => {
                write!(f, "unix-dgram:{},{}", local.display(), remote.display())
            }
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::UnixListen(path) => write!(f, "unix-listen:{}", path.display()),
        }
    }
}

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for text in [
            "udp:127.0.0.1:12346,127.0.0.1:12345",
            "udp:[::1]:1,[::1]:2",
            "tcp:10.0.0.1:7",
            "tcp-listen:0.0.0.0:7",
            "unix-dgram:/tmp/a,/tmp/b",
            "unix:/tmp/a:b",
            "unix-listen:a",
        ] {
            assert_eq!(text.parse::<WireAddress>().unwrap().to_string(), text);
        }
        for text in
            ["", "udp", "udp:1,2", "udp:127.0.0.1:1", "tcp:localhost", "unix:", "unix-dgram:a,", "x:y"]
        {
            let error = text.parse::<WireAddress>().unwrap_err();
            assert!(error.to_string().contains("use udp:LOCAL,REMOTE"), "{error}");
        }
    }

    #[test]
    fn an_address_that_is_taken_and_a_peer_that_is_missing_are_named() {
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = taken.local_addr().unwrap();
        let error = WireAddress::Udp { local, remote: local }.open().err().unwrap();
        assert_eq!(error.to_string(), format!("cannot open udp:{local},{local}"));
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let error = WireAddress::Tcp(nobody).open().err().unwrap();
        assert_eq!(error.to_string(), format!("cannot connect to tcp:{nobody}"));
    }
}
