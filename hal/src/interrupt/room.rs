//! Room in the event files of peers.
//!
//! Whether a write to a full event file blocks is said by the open file, and a peer that sent
//! it has that too: it can fill the counter and let writes block at any time, also between a
//! look and a write. Linux has no write to an event file that never blocks. So a thread looks,
//! as long as there are such files, whether somebody waits for room in one, and makes the room
//! by taking the count. Only a count of 2^64 - 2 has no room for another one, which no peer
//! reaches by counting.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::event_fd::take;

/// Who is writing to the event file of a peer. Each adds one.
#[derive(Debug)]
pub(super) struct Writers {
    fd: Arc<OwnedFd>,
    count: AtomicU32,
}

impl Writers {
    /// Has the file looked at until the result is dropped.
    pub(super) fn new(fd: &Arc<OwnedFd>) -> io::Result<Arc<Self>> {
        let writers = Arc::new(Self { fd: Arc::clone(fd), count: AtomicU32::new(0) });
        let mut watched = watched();
        if !watched.running {
            std::thread::Builder::new().name("vdk event files".to_owned()).spawn(look_at_all)?;
            watched.running = true;
        }
        watched.files.push(Arc::downgrade(&writers));
        Ok(writers)
    }

    /// Runs what writes one to the file.
    pub(super) fn write(&self, write: impl FnOnce()) {
        // ORDERING: Relaxed; that it is seen soon is enough, and the system call after it does
        // not return before that when there is no room.
        self.count.fetch_add(1, Ordering::Relaxed);
        write();
        // ORDERING: Relaxed; one that is seen too long finds room in the file.
        self.count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes room when somebody waits for it. A peer that fills the file again at once may be
    /// faster than a waiter, but not always.
    fn look(&self) {
        for _ in 0..ATTEMPTS {
            // ORDERING: Relaxed; as above.
            if self.count.load(Ordering::Relaxed) == 0 || self.has_room() {
                return;
            }
            log::debug!("the event file of a peer was full, and is emptied");
            let _ = take(&self.fd);
            std::thread::yield_now();
        }
    }

    fn has_room(&self) -> bool {
        let mut files = [PollFd::new(&*self.fd, PollFlags::OUT)];
        !matches!(poll(&mut files, Some(&Timespec::default())), Ok(0))
    }
}

/// All event files of peers.
struct Watched {
    files: Vec<Weak<Writers>>,
    /// Whether there is a thread that looks at them.
    running: bool,
}

fn watched() -> MutexGuard<'static, Watched> {
    static WATCHED: Mutex<Watched> = Mutex::new(Watched { files: Vec::new(), running: false });
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at all files until there is none.
fn look_at_all() {
    loop {
        std::thread::sleep(INTERVAL);
        let mut watched = watched();
        watched.files.retain(|file| file.strong_count() > 0);
        if watched.files.is_empty() {
            watched.running = false;
            return;
        }
        for file in watched.files.iter().filter_map(Weak::upgrade) {
            file.look();
        }
    }
}

/// How often it is looked, which is how long a peer can hold a writer up.
const INTERVAL: Duration = Duration::from_millis(20);
/// How often room is made in one file before the next one has its turn.
const ATTEMPTS: u32 = 64;
