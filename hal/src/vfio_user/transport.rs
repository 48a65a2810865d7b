//! Whole messages, with their file descriptors, over a stream socket.
//!
//! A message is read in two steps, header and rest, and never beyond its end, so that file
//! descriptors that come along belong to it. What the other side says of sizes is checked
//! before anything is allocated.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, PoisonError};
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
/// take to be sent, where the caller names no end.
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
///
/// When a message is left in the middle, on either way, the stream is out of step: the
/// connection is shut down then, so that nobody takes its rest for a message.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    /// Whether somebody sends.
    sending: Mutex<bool>,
    /// Told when nobody sends any more.
    sent: Condvar,
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
        Ok(Self { socket, sending: Mutex::default(), sent: Condvar::new() })
    }

    /// Sends a message whose payload is `parts`, one after the other, within
    /// [`MESSAGE_TIME`]. The size in the header is set here.
    ///
    /// # Errors
    ///
    /// As [`send_by`](Self::send_by).
    pub fn send(
        &self,
        header: Header,
        parts: &[&[u8]],
        files: &[BorrowedFd<'_>],
    ) -> Result<(), TransportError> {
        self.send_by(Instant::now() + MESSAGE_TIME, header, parts, files)
    }

    /// Sends a message that must have left at `end`, the wait for other senders included.
    ///
    /// # Errors
    ///
    /// [`TransportError`]. After any but [`TransportError::TooLong`],
    /// [`TransportError::TooManyFiles`] and [`TransportError::TimedOut`], with which nothing
    /// was sent, the connection is shut down.
    pub fn send_by(
        &self,
        end: Instant,
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
        // Messages of two threads must not mix, and the file descriptors of one belong to it.
        let _alone = self.begin_sending(end)?;
        let mut files = files;
        let mut sent = 0;
        let result = loop {
            if sent == payload + Header::LENGTH {
                return Ok(());
            }
            let rest = unsent(header.as_bytes(), parts, sent);
            let rest: Vec<IoSlice<'_>> = rest.into_iter().map(IoSlice::new).collect();
            match self.send_once(&rest, files) {
                Ok(count) => {
                    sent += count;
                    files = &[];
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match self.wait(PollFlags::OUT, end) {
                    Ok(()) => {}
                    Err(TransportError::TimedOut) if sent == 0 => return Err(TransportError::TimedOut),
                    Err(TransportError::TimedOut) => break TransportError::Stalled,
                    Err(error) => break error,
                },
                Err(Errno::PIPE | Errno::CONNRESET) => break TransportError::Closed,
                Err(error) => break system(error),
            }
        };
        self.shut_down();
        Err(result)
    }

    /// Receives one message. It waits for it to begin until `begin` is over, and
    /// [`MESSAGE_TIME`] for the rest.
    ///
    /// # Errors
    ///
    /// As [`receive_by`](Self::receive_by).
    pub fn receive(&self, begin: Duration) -> Result<Message, TransportError> {
        self.receive_message(Instant::now() + begin, || Instant::now() + MESSAGE_TIME)
    }

    /// Receives one message that must be here as a whole at `end`.
    ///
    /// # Errors
    ///
    /// [`TransportError`]. After any but [`TransportError::TimedOut`], with which nothing had
    /// begun, and [`TransportError::Closed`], after which there is still the other way, the
    /// connection is shut down.
    pub fn receive_by(&self, end: Instant) -> Result<Message, TransportError> {
        self.receive_message(end, || end)
    }

    fn receive_message(
        &self,
        begin: Instant,
        end: impl FnOnce() -> Instant,
    ) -> Result<Message, TransportError> {
        let mut files = Vec::new();
        let mut header = [0; Header::LENGTH];
        let first = match self.receive_some(&mut header, &mut files, begin) {
            Ok(0) => return Err(TransportError::Closed),
            Ok(first) => first,
            Err(TransportError::TimedOut) => return Err(TransportError::TimedOut),
            Err(error) => {
                self.shut_down();
                return Err(error);
            }
        };
        self.receive_rest(header, first, files, end()).map_err(|error| {
            self.shut_down();
            match error {
                TransportError::TimedOut => TransportError::Stalled,
                other => other,
            }
        })
    }

    fn receive_rest(
        &self,
        mut header: [u8; Header::LENGTH],
        first: usize,
        mut files: Vec<OwnedFd>,
        end: Instant,
    ) -> Result<Message, TransportError> {
        // PANIC: no more is received than the slice that was given.
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

    /// Waits until nobody else sends.
    fn begin_sending(&self, end: Instant) -> Result<Sending<'_>, TransportError> {
        let busy = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let left = end.saturating_duration_since(Instant::now());
        let waited = self.sent.wait_timeout_while(busy, left, |busy| *busy);
        let (mut busy, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *busy {
            return Err(TransportError::TimedOut);
        }
        *busy = true;
        Ok(Sending(self))
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

/// The turn of a thread that sends.
struct Sending<'a>(&'a Channel);

impl Drop for Sending<'_> {
    fn drop(&mut self) {
        *self.0.sending.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.sent.notify_one();
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
    /// The other side is there, but nothing was said or could be said in time.
    #[error("the other side of the socket does not go on")]
    TimedOut,
    /// The other side stopped in the middle of a message.
    #[error("the other side of the socket stopped in the middle of a message")]
    Stalled,
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
        let event = EventFd::new().unwrap();
        let files = vec![event.as_fd(); MAX_FILES + 1];
        let header = Header { size: 16, ..Header::default() };
        for count in [MAX_FILES + 1, 100] {
            let (left, right) = pair();
            assert_eq!(left.send(Header::default(), &[], &files), Err(TransportError::TooManyFiles));
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

    /// Sends until the socket takes no more, and whether the last message was cut.
    fn fill(channel: &Channel) -> TransportError {
        let long = vec![0; MAX_PAYLOAD];
        loop {
            if let Err(error) = channel.send_by(Instant::now(), Header::default(), &[&long], &[]) {
                return error;
            }
        }
    }

    #[test]
    fn a_message_has_one_end_and_half_of_one_ends_the_connection() {
        let (left, right) = pair();
        assert_eq!(right.receive_by(Instant::now()).unwrap_err(), TransportError::TimedOut);
        let mut raw = UnixStream::from(left.socket.try_clone().unwrap());
        raw.write_all(Header { size: 20, ..Header::default() }.as_bytes()).unwrap();
        raw.write_all(&[0; 3]).unwrap();
        assert_eq!(right.receive_by(Instant::now()).unwrap_err(), TransportError::Stalled);
        assert_eq!(raw.write_all(&[0]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(right.receive(SOON).unwrap_err(), TransportError::Closed, "the rest is no message");
    }

    #[test]
    fn who_no_longer_reads_is_not_waited_for_and_gets_no_half_of_a_message() {
        let (left, _right) = pair();
        assert_eq!(fill(&left), TransportError::Stalled, "a part of it was sent");
        assert_eq!(left.send(Header::default(), &[], &[]), Err(TransportError::Closed));

        let (left, right) = pair();
        let small = || left.send_by(Instant::now(), Header { id: 5, ..Header::default() }, &[], &[]);
        let mut count = 0;
        let error = loop {
            match small() {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error, TransportError::TimedOut, "nothing of it was sent");
        for _ in 0..count {
            assert_eq!(right.receive(SOON).unwrap().header.id, 5);
        }
        small().unwrap();
    }

    #[test]
    fn the_wait_for_another_sender_counts() {
        let (left, right) = pair();
        let turn = left.begin_sending(Instant::now()).unwrap();
        let send = || left.send_by(Instant::now(), Header { id: 6, ..Header::default() }, &[], &[]);
        assert_eq!(send(), Err(TransportError::TimedOut));
        drop(turn);
        send().unwrap();
        assert_eq!(right.receive(SOON).unwrap().header.id, 6);
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
