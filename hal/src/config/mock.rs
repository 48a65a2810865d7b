//! A function's configuration space for tests: bytes, which bits of them a write changes,
//! and which bits it clears.

use std::sync::{Mutex, PoisonError};

use super::{ConfigError, ConfigSpace};
use crate::mmio::Width;

pub(crate) struct MockConfig {
    state: Mutex<State>,
    size: u16,
}

struct State {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    write_one_to_clear: Vec<u8>,
    writes: Vec<(u16, Width, u32)>,
    gone: bool,
}

impl MockConfig {
    /// An endpoint 1234:5678 that is all zeros else, with a writable Command register and a
    /// Status register that is cleared by ones.
    pub(crate) fn endpoint(size: u16) -> Self {
        let state = State {
            bytes: vec![0; size.into()],
            writable: vec![0; size.into()],
            write_one_to_clear: vec![0; size.into()],
            writes: Vec::new(),
            gone: false,
        };
        let mock = Self { state: Mutex::new(state), size };
        mock.set32(0x00, 0x5678_1234);
        mock.set32(0x08, 0xff00_0001);
        mock.make_writable(0x04, &[0x47, 0x05]);
        mock.state().write_one_to_clear[6..8].copy_from_slice(&[0x00, 0xf9]);
        mock
    }

    pub(crate) fn set8(&self, offset: usize, value: u8) {
        self.state().bytes[offset] = value;
    }

    pub(crate) fn set16(&self, offset: usize, value: u16) {
        self.state().bytes[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn set32(&self, offset: usize, value: u32) {
        self.state().bytes[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn make_writable(&self, offset: usize, mask: &[u8]) {
        self.state().writable[offset..offset + mask.len()].copy_from_slice(mask);
    }

    /// Adds a capability and links it from the register or capability at `from`.
    pub(crate) fn link(&self, from: usize, offset: u8, id: u8) {
        self.set16(6, 0x10);
        self.set8(if from == 0x34 { 0x34 } else { from + 1 }, offset);
        self.set8(offset.into(), id);
    }

    /// From now on every read gives all ones and writes are lost.
    pub(crate) fn remove(&self) {
        self.state().gone = true;
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Every write so far, in order.
    pub(crate) fn writes(&self) -> Vec<(u16, Width, u32)> {
        self.state().writes.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConfigSpace for MockConfig {
    fn size(&self) -> u16 {
        self.size
    }

    fn read_raw(&self, offset: u16, width: Width) -> Result<u32, ConfigError> {
        let state = self.state();
        if state.gone {
            return Ok(u32::MAX);
        }
        let mut raw = [0; 4];
        raw[..width.bytes()]
            .copy_from_slice(&state.bytes[offset.into()..usize::from(offset) + width.bytes()]);
        Ok(u32::from_le_bytes(raw))
    }

    fn write_raw(&self, offset: u16, width: Width, value: u32) -> Result<(), ConfigError> {
        let mut state = self.state();
        state.writes.push((offset, width, value));
        if state.gone {
            return Ok(());
        }
        for (at, byte) in (usize::from(offset)..).zip(value.to_le_bytes()).take(width.bytes()) {
            let (writable, clear) = (state.writable[at], state.write_one_to_clear[at]);
            state.bytes[at] = (state.bytes[at] & !writable | byte & writable) & !(byte & clear);
        }
        Ok(())
    }
}
