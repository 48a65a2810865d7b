//! The bytes of configuration space and which of them can be written.

use vdk_hal::mmio::Width;

/// Configuration space as bytes with write masks. What a write means beyond that is the
/// business of [`Device`](super::device::Device).
#[derive(Clone, Debug)]
pub(crate) struct ConfigImage {
    bytes: Vec<u8>,
    writable: Vec<u8>,
    clearable: Vec<u8>,
}

impl ConfigImage {
    pub(crate) fn new(size: u16) -> Self {
        let size = usize::from(size);
        Self { bytes: vec![0; size], writable: vec![0; size], clearable: vec![0; size] }
    }

    /// Reads; bytes outside are all ones.
    pub(crate) fn read(&self, offset: u16, width: Width) -> u32 {
        let mut value = 0;
        for index in (0..width.bytes().min(4)).rev() {
            let byte = self.bytes.get(usize::from(offset) + index).copied().unwrap_or(0xff);
            value = value << 8 | u32::from(byte);
        }
        value
    }

    pub(crate) fn read16(&self, offset: u16) -> u16 {
        // CAST: the value of a 16-bit read; the mask makes it fit.
        (self.read(offset, Width::U16) & 0xffff) as u16
    }

    pub(crate) fn read32(&self, offset: u16) -> u32 {
        self.read(offset, Width::U32)
    }

    /// Writes as a driver does: writable bits are replaced, write-one-to-clear bits cleared.
    pub(crate) fn write(&mut self, offset: u16, width: Width, value: u32) {
        for (index, byte) in value.to_le_bytes().into_iter().enumerate().take(width.bytes()) {
            let place = usize::from(offset) + index;
            if let Some(old) = self.bytes.get_mut(place) {
                let (writable, clearable) = (self.writable[place], self.clearable[place]);
                *old = ((*old & !writable) | (byte & writable)) & !(byte & clearable);
            }
        }
    }

    /// Writes as the device does, without regard to masks.
    pub(crate) fn store(&mut self, offset: u16, width: Width, value: u32) {
        store(&mut self.bytes, offset, width, value);
    }

    pub(crate) fn store16(&mut self, offset: u16, value: u16) {
        self.store(offset, Width::U16, u32::from(value));
    }

    pub(crate) fn store32(&mut self, offset: u16, value: u32) {
        self.store(offset, Width::U32, value);
    }

    /// Replaces the bits under `mask` of a 16-bit word.
    pub(crate) fn set_bits16(&mut self, offset: u16, mask: u16, value: u16) {
        let old = self.read16(offset);
        self.store16(offset, (old & !mask) | (value & mask));
    }

    /// Says which bits of a 32-bit word a driver can write.
    pub(crate) fn allow_write(&mut self, offset: u16, mask: u32) {
        store(&mut self.writable, offset, Width::U32, mask);
    }

    /// Says which bits of a 16-bit word a driver can write.
    pub(crate) fn allow_write16(&mut self, offset: u16, mask: u16) {
        store(&mut self.writable, offset, Width::U16, u32::from(mask));
    }

    /// Says which bits of a 32-bit word a driver clears by writing ones.
    pub(crate) fn allow_clear(&mut self, offset: u16, mask: u32) {
        store(&mut self.clearable, offset, Width::U32, mask);
    }

    /// Says which bits of a 16-bit word a driver clears by writing ones.
    pub(crate) fn allow_clear16(&mut self, offset: u16, mask: u16) {
        store(&mut self.clearable, offset, Width::U16, u32::from(mask));
    }
}

fn store(bytes: &mut [u8], offset: u16, width: Width, value: u32) {
    for (index, byte) in value.to_le_bytes().into_iter().enumerate().take(width.bytes()) {
        if let Some(place) = bytes.get_mut(usize::from(offset) + index) {
            *place = byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_touch_only_what_a_driver_may_change() {
        let mut image = ConfigImage::new(256);
        image.store32(0x40, 0xaabb_ccdd);
        image.allow_write(0x40, 0x0000_ff0f);
        image.allow_clear(0x40, 0x00f0_0000);
        image.write(0x40, Width::U32, 0x0010_1200);
        assert_eq!(image.read32(0x40), 0xaaab_12d0);
        image.write(0x42, Width::U8, 0xff);
        assert_eq!(image.read32(0x40), 0xaa0b_12d0);
        assert_eq!(image.read(0xfe, Width::U32), 0xffff_0000, "bytes outside are all ones");
        image.write(0xfe, Width::U32, 0);
    }
}
