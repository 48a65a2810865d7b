//! The beginning of a connection: versions and capabilities.

use core::time::Duration;

use rustix::io::Errno;
use vdk_hal::vfio_user::capabilities::Capabilities;
use vdk_hal::vfio_user::message::{Command, Header, Version};
use vdk_hal::vfio_user::transport::{Channel, Message};
use zerocopy::IntoBytes;

use super::reply::Refusal;

/// What a client proposed and what it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    version: Version,
    capabilities: Capabilities,
    /// How many bytes the client takes in one transfer.
    transfer: u32,
}

impl Agreement {
    /// Reads the first message of a client.
    pub(super) fn from_first(message: &Message) -> Result<Self, Refusal> {
        if !message.header.is_command() || Command(message.header.command) != Command::VERSION {
            return Err(Refusal::invalid("the first message is not VERSION"));
        }
        let Some((proposed, text)) = message.parse::<Version>() else {
            return Err(Refusal::invalid("VERSION is too short"));
        };
        if proposed.major != Version::OURS.major {
            let reason = format!("the client speaks version {}.{}", proposed.major, proposed.minor);
            return Err(Refusal::new(Errno::OPNOTSUPP, reason));
        }
        let theirs = Capabilities::parse(text).map_err(|error| Refusal::invalid(error.to_string()))?;
        let version = Version { minor: proposed.minor.min(Version::OURS.minor), ..Version::OURS };
        // The limits of what this side takes are its own, whatever the other side takes.
        let ours = Capabilities::OURS;
        let capabilities = Capabilities {
            max_mappings: ours.max_mappings.min(theirs.max_mappings),
            write_multiple: ours.write_multiple && theirs.write_multiple,
            ..ours
        };
        Ok(Self { version, capabilities, transfer: theirs.max_transfer })
    }

    /// How many mappings there can be.
    pub(super) fn max_mappings(&self) -> u32 {
        self.capabilities.max_mappings
    }

    /// How many bytes of its memory the client is asked for at once.
    pub(super) fn max_transfer(&self) -> u32 {
        self.transfer
    }

    /// The reply.
    pub(super) fn payload(&self) -> Vec<u8> {
        [self.version.as_bytes(), &self.capabilities.to_text()].concat()
    }
}

/// Answers the first message of a client with an error.
pub(super) fn refuse(channel: &Channel, error: Errno) {
    if let Ok(message) = channel.receive(FIRST_TIME) {
        let header = error_header(&message.header, error);
        // The client may be gone; it is not served in either case.
        let _ = channel.send(header, &[], &[]);
    }
}

/// The header of a reply.
pub(super) fn reply_header(command: &Header) -> Header {
    Header { id: command.id, command: command.command, flags: Header::REPLY, ..Header::default() }
}

/// The header of a reply that says that the command failed.
pub(super) fn error_header(command: &Header, error: Errno) -> Header {
    Header {
        flags: Header::REPLY | Header::ERROR,
        error: error.raw_os_error().unsigned_abs(),
        ..reply_header(command)
    }
}

/// How long a client may take to send its first message.
pub(super) const FIRST_TIME: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn first(version: Version, text: &[u8]) -> Message {
        let header = Header { command: Command::VERSION.0, ..Header::default() };
        Message { header, payload: [version.as_bytes(), text].concat(), files: Vec::new() }
    }

    #[test]
    fn the_lower_version_and_our_own_limits_are_agreed_on() {
        for (minor, agreed) in [(0, 0), (1, 1), (7, 1)] {
            let agreement = Agreement::from_first(&first(Version { major: 0, minor }, b"")).unwrap();
            assert_eq!(agreement.version, Version { major: 0, minor: agreed });
            assert!(!agreement.capabilities.write_multiple, "it was not proposed");
            assert_eq!(agreement.capabilities.max_message_fds, 16);
        }
        let text = b"{\"capabilities\":{\"write_multiple\":true,\"max_dma_maps\":10}}\0";
        let agreement = Agreement::from_first(&first(Version::OURS, text)).unwrap();
        assert!(agreement.capabilities.write_multiple);
        assert_eq!(agreement.capabilities.max_mappings, 10);
        assert_eq!(Capabilities::parse(&agreement.payload()[4..]), Ok(agreement.capabilities));
    }

    #[test]
    fn other_beginnings_are_refused() {
        let error = |message: &Message| Agreement::from_first(message).unwrap_err().error;
        assert_eq!(error(&first(Version { major: 1, minor: 0 }, b"")), Errno::OPNOTSUPP);
        assert_eq!(error(&first(Version::OURS, b"not json\0")), Errno::INVAL);
        let mut other = first(Version::OURS, b"");
        other.payload.truncate(3);
        assert_eq!(error(&other), Errno::INVAL);
        let mut other = first(Version::OURS, b"");
        other.header.command = Command::DEVICE_RESET.0;
        assert_eq!(error(&other), Errno::INVAL);
        let mut other = first(Version::OURS, b"");
        other.header.flags = Header::REPLY;
        assert_eq!(error(&other), Errno::INVAL);
    }
}
