//! Event files: counters that can be waited for.

use core::time::Duration;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags};

use super::room::Writers;

/// An `eventfd(2)`: signals add up until somebody takes them. Clones share it.
///
/// It never blocks: reading an empty one is a spurious wake-up, not an error. That holds for
/// taking whatever others do who share it, and for signalling one that came from them by
/// [`from_untrusted`](Self::from_untrusted).
#[derive(Clone, Debug)]
pub struct EventFd {
    fd: Arc<OwnedFd>,
    /// Of one whose other owner may let writes block.
    writers: Option<Arc<Writers>>,
}

impl EventFd {
    /// A counter at zero, not inherited by child processes.
    ///
    /// # Errors
    ///
    /// What `eventfd(2)` reports, mostly "too many open files".
    pub fn new() -> io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd: Arc::new(fd), writers: None })
    }

    /// An event file that came from elsewhere. It is made non-blocking, for everybody who
    /// shares it.
    ///
    /// # Errors
    ///
    /// What `fcntl(2)` reports.
    pub fn from_owned(fd: OwnedFd) -> io::Result<Self> {
        let flags = rustix::fs::fcntl_getfl(&fd)?;
        rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        Ok(Self { fd: Arc::new(fd), writers: None })
    }

    /// An event file that somebody sent who may lie: it is looked at whether it is one, since
    /// signalling another kind of file would write into it.
    ///
    /// Whoever sent it can let it block again and fill it. A signal then waits for some
    /// milliseconds, until a thread that looks after such files has emptied it. To know one
    /// that is full, each signal adds one to the counter, however much is asked for.
    ///
    /// # Errors
    ///
    /// "Invalid input" when it is not one, what looking at it reports, which needs `/proc`,
    /// what `fcntl(2)` reports, and that there is no thread.
    pub fn from_untrusted(fd: OwnedFd) -> io::Result<Self> {
        let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
        if std::fs::read_link(link)?.as_os_str() != "anon_inode:[eventfd]" {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = Self::from_owned(fd)?;
        let writers = Writers::new(&file.fd)?;
        Ok(Self { writers: Some(writers), ..file })
    }

    /// Adds `count` to the counter, which holds 2^64 - 2 at most. What does not fit is not
    /// added: the counter is readable then, and that is all that a signal promises.
    pub fn signal(&self, count: u64) {
        match &self.writers {
            None => self.add(count),
            Some(writers) => writers.write(|| self.add(count.min(1))),
        }
    }

    fn add(&self, count: u64) {
        // The kernel takes the largest number for an error.
        let count = count.min(u64::MAX - 1);
        loop {
            match rustix::io::write(&*self.fd, &count.to_ne_bytes()) {
                Err(Errno::INTR) => {}
                Ok(_) | Err(Errno::AGAIN) => return,
                Err(error) => {
                    log::error!("cannot signal an event file: {error}");
                    return;
                }
            }
        }
    }

    /// Takes the count and sets it to zero; zero when nothing was signalled.
    #[must_use = "the count says how many interrupts were coalesced; ignore it with `let _ =`"]
    pub fn take(&self) -> u64 {
        take(&self.fd)
    }

    /// Sets the count to zero.
    pub fn drain(&self) {
        let _ = self.take();
    }

    /// Waits until the counter is not zero, `timeout` at most; returns whether it is.
    ///
    /// # Errors
    ///
    /// What `poll(2)` reports.
    pub fn wait(&self, timeout: Duration) -> io::Result<bool> {
        let end = std::time::Instant::now().checked_add(timeout);
        loop {
            let left = end.map_or(timeout, |end| end.saturating_duration_since(std::time::Instant::now()));
            let limit = Timespec::try_from(left).ok();
            let mut files = [PollFd::new(&*self.fd, PollFlags::IN)];
            match poll(&mut files, limit.as_ref()) {
                Ok(ready) => return Ok(ready > 0),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Takes the count of an event file, also when others let reads block.
pub(super) fn take(fd: &OwnedFd) -> u64 {
    let mut bytes = [0; 8];
    loop {
        let read = if cfg!(miri) {
            // Miri does not know the other call, and there nobody else has the file.
            rustix::io::read(fd, &mut bytes)
        } else {
            // Event files have no offset. Since Linux 5.8 they are read without waiting.
            let parts = &mut [IoSliceMut::new(&mut bytes)];
            rustix::io::preadv2(fd, parts, u64::MAX, ReadWriteFlags::NOWAIT)
        };
        match read {
            Ok(8) => return u64::from_ne_bytes(bytes),
            Err(Errno::INTR) => {}
            // EAGAIN is a spurious wake-up; anything else is not an event file of ours.
            Ok(_) | Err(_) => return 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "needs poll")]
    fn counts_coalesce_and_an_empty_file_is_no_error() {
        let event = EventFd::new().unwrap();
        assert_eq!(event.take(), 0);
        assert!(!event.wait(Duration::ZERO).unwrap());
        event.signal(1);
        event.signal(4);
        assert!(event.wait(Duration::ZERO).unwrap());
        assert_eq!(event.take(), 5);
        event.signal(u64::MAX - 1);
        event.signal(1);
        assert_eq!(event.take(), u64::MAX - 1);
        assert!(!event.wait(Duration::from_millis(1)).unwrap());
        event.signal(u64::MAX);
        assert_eq!(event.take(), u64::MAX - 1, "as much as the counter holds");
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs fcntl")]
    fn an_event_file_from_elsewhere_does_not_block() {
        let foreign = EventFd::from_owned(eventfd(1, EventfdFlags::CLOEXEC).unwrap()).unwrap();
        assert_eq!((foreign.take(), foreign.take()), (1, 0));
        foreign.signal(u64::MAX - 1);
        foreign.signal(5);
        assert_eq!(foreign.take(), u64::MAX - 1, "a full counter stays full");
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs files")]
    fn a_file_that_is_no_event_file_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(EventFd::from_untrusted(file.into()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let event = eventfd(3, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(EventFd::from_untrusted(event).unwrap().take(), 3);
    }

    /// An event file, and the end of a peer that lets it block again.
    fn shared() -> (OwnedFd, OwnedFd) {
        let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        (file.try_clone().unwrap(), file)
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs preadv2")]
    fn a_peer_cannot_let_a_take_block() {
        let (peer, file) = shared();
        let event = EventFd::from_owned(file).unwrap();
        rustix::fs::fcntl_setfl(&peer, OFlags::empty()).unwrap();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(event.take()));
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(0));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs preadv2")]
    fn a_peer_cannot_let_a_signal_block() {
        let (peer, file) = shared();
        let event = EventFd::from_untrusted(file).unwrap();
        for _ in 0..3 {
            rustix::fs::fcntl_setfl(&peer, OFlags::empty()).unwrap();
            rustix::io::write(&peer, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let (tell, told) = mpsc::channel();
            let event = event.clone();
            thread::spawn(move || {
                event.signal(5);
                tell.send(event.take())
            });
            assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok(1));
        }
    }
}
