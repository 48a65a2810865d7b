//! Frames between an endpoint and its wire.

use super::super::{Endpoint, Time};
use super::{Port, Wire, WireError};

impl<W: Wire> Port<W> {
    /// Takes up to `most` frames from the wire to `endpoint`, lets its timers expire, and sends up
    /// to `most` frames of its own while the wire takes them. Returns how many frames went either
    /// way.
    ///
    /// `now` is the clock. `seen` is told of each frame, and whether the endpoint sent it, before
    /// it goes on. `buffer` has room for the longest frame ([`MAX_FRAME`](super::MAX_FRAME)).
    ///
    /// # Errors
    ///
    /// The wire is broken. What the endpoint has is as if the frames that are under way were lost.
    pub fn carry(
        &mut self,
        endpoint: &mut Endpoint,
        now: impl Fn() -> Time,
        buffer: &mut [u8],
        most: usize,
        mut seen: impl FnMut(bool, &[u8]),
    ) -> Result<usize, WireError> {
        let mut moved = 0;
        while moved < most {
            let time = now();
            let Some(length) = self.receive(time, buffer)? else { break };
            let frame = buffer.get(..length).unwrap_or_default();
            seen(false, frame);
            endpoint.receive(time, frame);
            moved += 1;
        }
        let time = now();
        endpoint.tick(time);
        for _ in 0..most {
            if !self.is_ready() {
                break;
            }
            let Some(length) = endpoint.transmit(time, buffer) else { break };
            let frame = buffer.get(..length).unwrap_or_default();
            seen(true, frame);
            self.send(time, frame)?;
            moved += 1;
        }
        Ok(moved)
    }
}
