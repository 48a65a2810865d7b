//! What tests read of the captures beside this file.

/// The frames of a pcap file of microseconds, little-endian.
#[must_use]
pub fn frames(mut file: &[u8]) -> Vec<&[u8]> {
    assert_eq!(file[..4], [0xd4, 0xc3, 0xb2, 0xa1]);
    file = &file[24..];
    let mut frames = Vec::new();
    while !file.is_empty() {
        let length = u32::from_le_bytes(file[8..12].try_into().expect("four bytes"));
        let (frame, rest) = file[16..].split_at(usize::try_from(length).expect("a usize has 32 bits"));
        frames.push(frame);
        file = rest;
    }
    frames
}
