//! Two ends in one process.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use super::super::time::Time;
use super::{Wire, WireError, check_length, wait_for};

/// Makes a wire and returns its two ends. Each direction has room for `room` bytes of frames,
/// two bytes more for each of them; what does not fit is lost.
///
/// # Errors
///
/// The system has no more file descriptors.
pub fn pair(room: usize) -> Result<(PairWire, PairWire), WireError> {
    let (left, right) = (Arc::new(Direction::new(room)?), Arc::new(Direction::new(room)?));
    let one = PairWire { outgoing: Arc::clone(&left), incoming: Arc::clone(&right) };
    Ok((one, PairWire { outgoing: right, incoming: left }))
}

/// One end of a [`pair`].
#[derive(Debug)]
pub struct PairWire {
    outgoing: Arc<Direction>,
    incoming: Arc<Direction>,
}

impl Wire for PairWire {
    fn send(&mut self, _now: Time, frame: &[u8]) -> Result<(), WireError> {
        check_length(frame)?;
        let wake = self.outgoing.lock(|queue| {
            queue.push(frame);
            std::mem::take(&mut queue.asleep)
        });
        if wake {
            self.outgoing.ring();
        }
        Ok(())
    }

    fn receive(&mut self, _now: Time, buffer: &mut [u8]) -> Result<Option<usize>, WireError> {
        let (length, closed) = self.incoming.lock(|queue| (queue.pop(buffer), queue.closed));
        match length {
            None if closed => Err(WireError::Closed { name: NAME.to_owned() }),
            length => Ok(length),
        }
    }

    fn wait(&mut self, wake: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<(), WireError> {
        let asleep = self.incoming.lock(|queue| {
            queue.asleep = queue.used == 0 && !queue.closed;
            queue.asleep
        });
        if !asleep {
            return Ok(());
        }
        let result = wait_for(self.incoming.bell.as_fd(), false, wake, timeout);
        self.incoming.lock(|queue| queue.asleep = false);
        self.incoming.quiet();
        result.map_err(|errno| WireError::System {
            operation: "wait for",
            name: NAME.to_owned(),
            source: errno.into(),
        })
    }

    fn lost(&self) -> u64 {
        self.outgoing.lock(|queue| queue.lost) + self.incoming.lock(|queue| queue.too_long)
    }
}

impl Drop for PairWire {
    fn drop(&mut self) {
        for direction in [&self.outgoing, &self.incoming] {
            direction.lock(|queue| queue.closed = true);
            direction.ring();
        }
    }
}

/// What goes one way.
#[derive(Debug)]
struct Direction {
    queue: Mutex<Queue>,
    /// Wakes the receiver when it sleeps.
    bell: OwnedFd,
}

impl Direction {
    fn new(room: usize) -> Result<Self, WireError> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(|errno| WireError::System {
            operation: "make",
            name: NAME.to_owned(),
            source: errno.into(),
        })?;
        Ok(Self { queue: Mutex::new(Queue::new(room)), bell })
    }

    fn lock<R>(&self, work: impl FnOnce(&mut Queue) -> R) -> R {
        // Nothing that can panic is done with the lock held.
        work(&mut self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn ring(&self) {
        // Fails only when the counter is full, and then the receiver wakes anyway.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn quiet(&self) {
        // Fails only when nothing rang.
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
    }
}

/// Frames behind their lengths, in a circle of bytes.
#[derive(Debug)]
struct Queue {
    bytes: Box<[u8]>,
    first: usize,
    used: usize,
    /// The receiver sleeps, or is about to.
    asleep: bool,
    closed: bool,
    lost: u64,
    too_long: u64,
}

impl Queue {
    fn new(room: usize) -> Self {
        let bytes = vec![0; room].into_boxed_slice();
        Self { bytes, first: 0, used: 0, asleep: false, closed: false, lost: 0, too_long: 0 }
    }

    fn push(&mut self, frame: &[u8]) {
        match u16::try_from(frame.len()) {
            Ok(length) if self.bytes.len() - self.used >= frame.len() + 2 => {
                self.put(&length.to_ne_bytes());
                self.put(frame);
            }
            _ => self.lost += 1,
        }
    }

    fn pop(&mut self, buffer: &mut [u8]) -> Option<usize> {
        while self.used > 0 {
            let mut length = [0; 2];
            self.take(&mut length);
            let length = usize::from(u16::from_ne_bytes(length));
            if let Some(place) = buffer.get_mut(..length) {
                self.take(place);
                return Some(length);
            }
            self.skip(length);
            self.too_long += 1;
        }
        None
    }

    /// Appends bytes for which there is room.
    // PANIC: `first` is below the length, or both are zero; there is room, so what goes around the end
    // is shorter than the bytes.
    fn put(&mut self, bytes: &[u8]) {
        let start = (self.first + self.used) % self.bytes.len().max(1);
        let (front, back) = bytes.split_at(bytes.len().min(self.bytes.len() - start));
        self.bytes[start..start + front.len()].copy_from_slice(front);
        self.bytes[..back.len()].copy_from_slice(back);
        self.used += bytes.len();
    }

    /// Takes bytes that are there.
    // PANIC: as for `put`; only what was put is taken.
    fn take(&mut self, place: &mut [u8]) {
        let until_end = place.len().min(self.bytes.len() - self.first);
        let (front, back) = place.split_at_mut(until_end);
        front.copy_from_slice(&self.bytes[self.first..self.first + until_end]);
        back.copy_from_slice(&self.bytes[..back.len()]);
        self.skip(place.len());
    }

    fn skip(&mut self, length: usize) {
        self.first = (self.first + length) % self.bytes.len().max(1);
        self.used -= length;
    }
}

const NAME: &str = "the wire in this process";

#[cfg(test)]
mod tests {
    use super::super::MAX_FRAME;
    use super::*;

    #[test]
    fn frames_arrive_in_order_whole_and_once_around_the_end_of_the_room() {
        let (mut one, mut other) = pair(1000).unwrap();
        let mut buffer = [0; MAX_FRAME];
        for round in 0..500usize {
            let frames = [round % 300, (round * 7) % 251, 0, 14];
            for length in frames {
                one.send(Time::ZERO, &vec![length.to_le_bytes()[0]; length]).unwrap();
            }
            for length in frames {
                assert_eq!(other.receive(Time::ZERO, &mut buffer).unwrap(), Some(length));
                assert_eq!(buffer[..length], vec![length.to_le_bytes()[0]; length]);
            }
            assert_eq!(other.receive(Time::ZERO, &mut buffer).unwrap(), None);
        }
        assert_eq!((one.lost(), other.lost()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_is_lost_and_counted() {
        let (mut one, mut other) = pair(100).unwrap();
        for _ in 0..3 {
            one.send(Time::ZERO, &[7; 48]).unwrap();
        }
        assert_eq!(one.lost(), 1);
        let mut short = [0; 20];
        assert_eq!(other.receive(Time::ZERO, &mut short).unwrap(), None);
        assert_eq!(other.lost(), 2);
        one.send(Time::ZERO, &[8; 20]).unwrap();
        assert_eq!(other.receive(Time::ZERO, &mut short).unwrap(), Some(20));
        assert_eq!(short, [8; 20]);
        let error = one.send(Time::ZERO, &[0; MAX_FRAME + 1]).unwrap_err();
        assert!(matches!(error, WireError::FrameTooLong { length } if length == MAX_FRAME + 1));
        let (mut none, _other) = pair(0).unwrap();
        none.send(Time::ZERO, &[]).unwrap();
        assert_eq!(none.lost(), 1);
    }

    #[test]
    fn the_receiver_sleeps_until_a_frame_comes_or_the_other_end_is_gone() {
        let (mut one, mut other) = pair(10_000).unwrap();
        let sleeper = std::thread::spawn(move || {
            let mut buffer = [0; 100];
            let mut wakes = 0;
            let mut lengths = Vec::new();
            loop {
                match other.receive(Time::ZERO, &mut buffer) {
                    Ok(Some(length)) => lengths.push(length),
                    Ok(None) => {
                        other.wait(None, None).unwrap();
                        wakes += 1;
                    }
                    Err(WireError::Closed { .. }) => return (lengths, wakes),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        // It is asleep when these are sent, so that each of them must wake it.
        for length in 1..=20 {
            wait_until_it_sleeps(&one);
            one.send(Time::ZERO, &vec![0; length]).unwrap();
        }
        // And asleep, awake or between the two when these are.
        for length in 21..=70 {
            one.send(Time::ZERO, &vec![0; length]).unwrap();
            std::thread::yield_now();
        }
        wait_until_it_sleeps(&one);
        drop(one);
        let (lengths, wakes) = sleeper.join().unwrap();
        assert_eq!(lengths, (1..=70).collect::<Vec<_>>());
        // One for each that found it asleep and one for the end, and never two for one frame.
        assert!((21..=71).contains(&wakes), "{wakes}");
    }

    fn wait_until_it_sleeps(sender: &PairWire) {
        let begun = std::time::Instant::now();
        while !sender.outgoing.lock(|queue| queue.asleep) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not sleep");
            std::thread::yield_now();
        }
    }
}
