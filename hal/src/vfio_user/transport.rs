//! Whole messages, with their file descriptors, over a stream socket.
//!
//! A message is read in two steps, header and rest, and never beyond its end, so that file
//! descriptors that come along belong to it. What the other side says of sizes is checked
//! before anything is allocated.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, recvmsg, sendmsg,
};
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

use super::capabilities::{MAX_MESSAGE_FDS, MAX_TEXT, MAX_TRANSFER};
use super::message::Header;

/// How long the payload of a message may be: the largest transfer, with what describes it.
/// Nothing else is as long.
pub const MAX_PAYLOAD: usize = MAX_TRANSFER as usize + 64;

const _: () = assert!(MAX_PAYLOAD >= MAX_TEXT + 4);

/// How long the rest of a message may take once it has begun, and how long a message may
/// take to be sent.
pub const MESSAGE_TIME: Duration = Duration::from_secs(5);

/// One message.
#[derive(Debug)]
pub struct Message {
    /// Its beginning.
    pub header: Header,
    /// What follows the header.
    pub payload: Vec<u8>,
    /// The file descriptors that came along, close-on-exec.
    pub files: Vec<OwnedFd>,
}

impl Message {
    /// The structure that the payload begins with, and what follows it.
    #[must_use]
    pub fn parse<T: FromBytes>(&self) -> Option<(T, &[u8])> {
        T::read_from_prefix(&self.payload).ok()
    }
}

/// A connected socket. Any thread may send; one receives.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    sending: Mutex<()>,
}

impl Channel {
    /// Takes a connected stream socket and makes it non-blocking.
    ///
    /// # Errors
    ///
    /// What `fcntl(2)` reports.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&socket)?;
        rustix::fs::fcntl_setfl(&socket, flags | OFlags::NONBLOCK)?;
        Ok(Self { socket, sending: Mutex::default() })
    }

    /// Sends a message whose payload is `parts`, one after the other. The size in the header
    /// is set here.
    ///
    /// # Errors
    ///
    /// [`TransportError`]. After any but [`TransportError::TooLong`] and
    /// [`TransportError::TooManyFiles`] the connection is of no use any more.
    pub fn send(
        &self,
        header: Header,
        parts: &[&[u8]],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), TransportError> {
        let payload = parts.iter().map(|part| part.len()).sum::<usize>();
        let too_long = TransportError::TooLong { size: payload };
        let size = u32::try_from(payload + Header::LENGTH).map_err(|_| too_long.clone())?;
        if payload > MAX_PAYLOAD {
            return Err(too_long);
        }
        if files.len() > MAX_FILES {
            return Err(TransportError::TooManyFiles);
        }
        let header = Header { size, ..header };
        let end = Instant::now() + MESSAGE_TIME;
        // Messages of two threads must not mix, and the file descriptors of one belong to it.
        let _alone = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut files = files;
        let mut sent = 0;
        while sent < payload + Header::LENGTH {
            let rest = unsent(header.as_bytes(), parts, sent);
            let rest: Vec<IoSlice<'_>> = rest.into_iter().map(IoSlice::new).collect();
            match self.send_once(&rest, files) {
                Ok(count) => {
                    sent += count;
                    files = &[];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, end)?,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(TransportError::Closed),
                Err(error) => return Err(system(error)),
            }
        }
        Ok(())
    }

    /// Receives one message. It waits for it to begin until `begin` is over, and
    /// [`MESSAGE_TIME`] for the rest.
    ///
    /// # Errors
    ///
    /// [`TransportError`]; the connection is of no use any more then, unless it is
    /// [`TransportError::TimedOut`] and nothing had begun.
    pub fn receive(&self, begin: Duration) -> Result<Message, TransportError> {
        let mut files = Vec::new();
        let mut header = [0; Header::LENGTH];
        let first = self.receive_some(&mut header, &mut files, Instant::now() + begin)?;
        if first == 0 {
            return Err(TransportError::Closed);
        }
        let end = Instant::now() + MESSAGE_TIME;
        self.receive_all(&mut header[first..], &mut files, end)?;
        let header = Header::read_from_bytes(&header).map_err(|_| TransportError::Truncated)?;
        let size = usize::try_from(header.size).unwrap_or(usize::MAX);
        let length = size.checked_sub(Header::LENGTH).ok_or(TransportError::TooShort { size })?;
        if length > MAX_PAYLOAD {
            return Err(TransportError::TooLong { size });
        }
        let mut payload = vec![0; length];
        self.receive_all(&mut payload, &mut files, end)?;
        if files.len() > MAX_FILES {
            return Err(TransportError::TooManyFiles);
        }
        Ok(Message { header, payload, files })
    }

    /// Says that nothing more is sent: the other side reads the end.
    pub fn finish_sending(&self) {
        // It fails only when the other side is gone already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
    }

    /// Ends both directions: whoever waits for a message is told.
    pub fn shut_down(&self) {
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    fn send_once(&self, parts: &[IoSlice<'_>], files: &[BorrowedFd<'_>]) -> Result<usize, Errno> {
        let mut space = [MaybeUninit::uninit(); CONTROL_SPACE];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(Errno::NOBUFS);
        }
        sendmsg(&self.socket, parts, &mut control, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn receive_all(
        &self,
        bytes: &mut [u8],
        files: &mut Vec<OwnedFd>,
        end: Instant,
    ) -> Result<(), TransportError> {
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.receive_some(rest, files, end)? {
                0 => return Err(TransportError::Truncated),
                count => done += count,
            }
        }
        Ok(())
    }

    /// Receives at least one byte, or zero at the end.
    fn receive_some(
        &self,
        bytes: &mut [u8],
        files: &mut Vec<OwnedFd>,
        end: Instant,
    ) -> Result<usize, TransportError> {
        loop {
            let mut space = [MaybeUninit::uninit(); CONTROL_SPACE];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let received = recvmsg(&self.socket, &mut [IoSliceMut::new(bytes)], &mut control, flags);
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(more) = message {
                    files.extend(more);
                }
            }
            match received {
                // Those that did not fit are closed already.
                Ok(received) if received.flags.contains(ReturnFlags::CTRUNC) => {
                    return Err(TransportError::TooManyFiles);
                }
                Ok(_) if files.len() > MAX_FILES => return Err(TransportError::TooManyFiles),
                Ok(received) => return Ok(received.bytes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::IN, end)?,
                Err(Errno::CONNRESET) => return Ok(0),
                Err(error) => return Err(system(error)),
            }
        }
    }

    fn wait(&self, what: PollFlags, end: Instant) -> Result<(), TransportError> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(TransportError::TimedOut);
            }
            let limit = Timespec::try_from(left).ok();
            let mut files = [PollFd::new(&self.socket, what)];
            match poll(&mut files, limit.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(system(error)),
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Why a message was not sent or received.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// The other side is gone, or has said all.
    #[error("the other side of the socket is gone")]
    Closed,
    /// The other side went away in the middle of a message.
    #[error("the other side of the socket is gone in the middle of a message")]
    Truncated,
    /// The header names a size that is shorter than the header.
    #[error("a message says that it has {size:#x} bytes, less than its header")]
    TooShort {
        /// The size.
        size: usize,
    },
    /// The message is longer than anybody needs.
    #[error("a message of {size:#x} bytes is longer than {MAX_PAYLOAD:#x}")]
    TooLong {
        /// The size.
        size: usize,
    },
    /// More file descriptors came along than was said.
    #[error("a message brings more than {MAX_MESSAGE_FDS} file descriptors")]
    TooManyFiles,
    /// The other side is there but does not go on.
    #[error("the other side of the socket does not go on")]
    TimedOut,
    /// The system refused.
    #[error("the system refused: {0}")]
    System(io::ErrorKind),
}

fn system(error: Errno) -> TransportError {
    TransportError::System(io::Error::from(error).kind())
}

/// What is left of a message after `sent` bytes.
fn unsent<'a>(header: &'a [u8], parts: &[&'a [u8]], sent: usize) -> Vec<&'a [u8]> {
    let mut skip = sent;
    let mut rest = Vec::with_capacity(parts.len() + 1);
    for part in core::iter::once(header).chain(parts.iter().copied()) {
        match part.get(skip..) {
            Some(left) => {
                if !left.is_empty() {
                    rest.push(left);
                }
                skip = 0;
            }
            None => skip -= part.len(),
        }
    }
    rest
}

const MAX_FILES: usize = MAX_MESSAGE_FDS as usize;

/// Room for the file descriptors of one message, and for one more so that too many are
/// noticed.
const CONTROL_SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_FILES + 1));

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;

    use super::*;
    use crate::interrupt::EventFd;

    fn pair() -> (Channel, Channel) {
        let (left, right) = UnixStream::pair().unwrap();
        (Channel::new(left.into()).unwrap(), Channel::new(right.into()).unwrap())
    }

    const SOON: Duration = Duration::from_millis(20);

    #[test]
    fn messages_arrive_whole_and_with_their_own_files() {
        let (left, right) = pair();
        let event = EventFd::new().unwrap();
        left.send(Header { id: 1, ..Header::default() }, &[b"ab", b"", b"cde"], &[]).unwrap();
        left.send(Header { id: 2, ..Header::default() }, &[b"f"], &[event.as_fd(), event.as_fd()]).unwrap();
        left.send(Header { id: 3, ..Header::default() }, &[], &[]).unwrap();
        left.finish_sending();
        let first = right.receive(SOON).unwrap();
        assert_eq!((first.header.id, first.header.size, &*first.payload), (1, 21, &b"abcde"[..]));
        assert!(first.files.is_empty());
        let second = right.receive(SOON).unwrap();
        assert_eq!((second.header.id, second.files.len(), &*second.payload), (2, 2, &b"f"[..]));
        for file in second.files {
            EventFd::from_owned(file).unwrap().signal(1);
        }
        assert_eq!(event.take(), 2);
        assert_eq!(right.receive(SOON).unwrap().header.id, 3);
        assert_eq!(right.receive(SOON).unwrap_err(), TransportError::Closed);
        right.send(Header::default(), &[b"the other way still works"], &[]).unwrap();
        assert_eq!(left.receive(SOON).unwrap().payload.len(), 25);
    }

    #[test]
    fn a_message_larger_than_the_buffer_of_the_socket_arrives() {
        let (left, right) = pair();
        let bytes: Vec<u8> = (0..=250).cycle().take(MAX_PAYLOAD).collect();
        let copy = bytes.clone();
        let sender = std::thread::spawn(move || left.send(Header::default(), &[&copy], &[]));
        assert!(right.receive(MESSAGE_TIME).unwrap().payload == bytes);
        sender.join().unwrap().unwrap();
    }

    #[test]
    fn sizes_that_cannot_be_are_refused_before_anything_is_allocated() {
        for (size, error) in [
            (0, TransportError::TooShort { size: 0 }),
            (15, TransportError::TooShort { size: 15 }),
            (u32::MAX, TransportError::TooLong { size: u32::MAX as usize }),
        ] {
            let (left, right) = pair();
            let header = Header { size, ..Header::default() };
            let mut raw = UnixStream::from(left.socket);
            raw.write_all(header.as_bytes()).unwrap();
            assert_eq!(right.receive(SOON).unwrap_err(), error);
        }
        let (left, _right) = pair();
        let long = vec![0; MAX_PAYLOAD + 1];
        assert!(matches!(left.send(Header::default(), &[&long], &[]), Err(TransportError::TooLong { .. })));
    }

    #[test]
    fn more_files_than_were_agreed_end_the_connection_and_leak_none() {
        let (left, right) = pair();
        let event = EventFd::new().unwrap();
        let files = vec![event.as_fd(); MAX_FILES + 1];
        assert_eq!(left.send(Header::default(), &[], &files), Err(TransportError::TooManyFiles));
        let header = Header { size: 16, ..Header::default() };
        for count in [MAX_FILES + 1, 100] {
            let files = vec![event.as_fd(); count];
            let mut space = vec![MaybeUninit::uninit(); 1024];
            let mut control = SendAncillaryBuffer::new(&mut space);
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
            let parts = [IoSlice::new(header.as_bytes())];
            sendmsg(&left.socket, &parts, &mut control, SendFlags::empty()).unwrap();
            assert_eq!(right.receive(SOON).unwrap_err(), TransportError::TooManyFiles);
        }
    }

    #[test]
    fn half_a_message_is_not_waited_for_for_ever() {
        let (left, right) = pair();
        assert_eq!(right.receive(SOON).unwrap_err(), TransportError::TimedOut);
        let mut raw = UnixStream::from(left.socket);
        raw.write_all(&[0; 7]).unwrap();
        drop(raw);
        assert_eq!(right.receive(SOON).unwrap_err(), TransportError::Truncated);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_are_messages_or_errors(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let (left, right) = UnixStream::pair().unwrap();
            let right = Channel::new(right.into()).unwrap();
            (&left).write_all(&bytes).unwrap();
            left.shutdown(std::net::Shutdown::Write).unwrap();
            let mut read = 0;
            while let Ok(message) = right.receive(SOON) {
                read += message.payload.len() + Header::LENGTH;
            }
            prop_assert!(read <= bytes.len());
            right.shut_down();
            prop_assert_eq!((&left).read(&mut [0]).unwrap_or(0), 0);
        }

        #[test]
        fn parts_are_what_is_left(sent in 0usize..40, lengths in proptest::collection::vec(0usize..10, 0..4)) {
            let header = [1; 16];
            let parts: Vec<Vec<u8>> = lengths.iter().map(|length| vec![2; *length]).collect();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let all = [&header[..], &slices.concat()].concat();
            let left = unsent(&header, &slices, sent.min(all.len())).concat();
            prop_assert_eq!(&left[..], &all[sent.min(all.len())..]);
        }
    }
}
