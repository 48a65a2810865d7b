//! Messages to the kernel: bytes with numbers at offsets, in the byte order of the host.
//!
//! Every message of VFIO and iommufd begins with a word that says how long it is. The
//! offsets are those of the structures in `vfio-bindings` and `iommufd-bindings`.

/// A message. It does not shrink below the word of its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// The most that the kernel is let say.
    pub(super) const LIMIT: usize = 1 << 20;

    /// A message of `length` zero bytes.
    pub(super) fn new(length: usize) -> Self {
        Self { bytes: vec![0; length.clamp(4, Self::LIMIT)] }
    }

    /// Sets a word. Offsets outside the message are ignored: they are constants, which the
    /// tests of this folder go through.
    pub(super) fn put(&mut self, at: usize, value: u32) {
        self.put_bytes(at, &value.to_ne_bytes());
    }

    /// Sets a double word.
    pub(super) fn put64(&mut self, at: usize, value: u64) {
        self.put_bytes(at, &value.to_ne_bytes());
    }

    /// Sets bytes.
    pub(super) fn put_bytes(&mut self, at: usize, value: &[u8]) {
        let field = at.checked_add(value.len()).and_then(|end| self.bytes.get_mut(at..end));
        debug_assert!(field.is_some(), "{at:#x} is outside the message");
        if let Some(field) = field {
            field.copy_from_slice(value);
        }
    }

    /// The same message with a word set.
    pub(super) fn with(mut self, at: usize, value: u32) -> Self {
        self.put(at, value);
        self
    }

    /// The same message with a double word set.
    pub(super) fn with64(mut self, at: usize, value: u64) -> Self {
        self.put64(at, value);
        self
    }

    /// The same message with bytes set.
    pub(super) fn with_bytes(mut self, at: usize, value: &[u8]) -> Self {
        self.put_bytes(at, value);
        self
    }

    /// Says how long it is in the first word.
    pub(super) fn set_size(&mut self) {
        // The length is at most `LIMIT`.
        let length = u32::try_from(self.bytes.len()).unwrap_or(u32::MAX);
        self.put(0, length);
    }

    /// A word.
    pub(super) fn word(&self, at: usize) -> Option<u32> {
        word(&self.bytes, at)
    }

    /// A double word.
    pub(super) fn double_word(&self, at: usize) -> Option<u64> {
        double_word(&self.bytes, at)
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
}

/// A 16-bit number in an answer.
pub(super) fn half_word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

/// A 32-bit number in an answer.
pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// A 64-bit number in an answer.
pub(super) fn double_word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}
