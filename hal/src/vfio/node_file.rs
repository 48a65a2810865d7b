//! Opening device nodes that may appear a moment later.

use core::time::Duration;
use std::io;
use std::path::Path;

use rustix::io::Errno;

use super::holder;
use super::kernel::SystemFile;
use super::refusal::Refusal;
use crate::poll::{Clock, Deadline, SystemClock};

/// Opens a node. After hot plug it appears only after its function, and after a close by
/// another thread of this process it may be busy for a moment: both are waited for.
pub(super) fn open_node(path: &Path, module: &str) -> Result<SystemFile, Refusal> {
    let clock = SystemClock::new();
    patiently(&clock, path, || SystemFile::open(path)).map_err(|error| Refusal::node(path, &error, module))
}

fn patiently<T>(clock: &impl Clock, path: &Path, mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let deadline = Deadline::after(clock, PATIENCE);
    loop {
        let error = match open() {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        let passing = match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NODEV | Errno::NXIO) => true,
            Some(Errno::BUSY) => holder::other_than_us(path).is_none(),
            _ => false,
        };
        if !passing || deadline.is_over(clock) {
            return Err(error);
        }
        clock.sleep(PAUSE);
    }
}

/// udev needs a few tens of milliseconds on a busy machine.
const PATIENCE: Duration = Duration::from_millis(400);
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poll::ManualClock;

    #[test]
    fn a_node_that_appears_late_is_waited_for_and_no_longer_than_that() {
        let clock = ManualClock::default();
        let mut calls = 0;
        let late = patiently(&clock, Path::new("/nowhere"), || {
            calls += 1;
            if calls < 5 { Err(Errno::NODEV.into()) } else { Ok(calls) }
        });
        assert_eq!(late.unwrap(), 5);
        let never = patiently(&clock, Path::new("/nowhere"), || Err::<(), _>(Errno::NOENT.into()));
        assert_eq!(never.unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(clock.now() < PATIENCE * 3);
        let mut calls = 0;
        let denied = patiently(&clock, Path::new("/nowhere"), || {
            calls += 1;
            Err::<(), _>(Errno::ACCESS.into())
        });
        assert_eq!((denied.unwrap_err().kind(), calls), (io::ErrorKind::PermissionDenied, 1));
    }
}
