//! Numbers from a seed.

use vdk_firmware_stubs::random::SplitMix64;

/// What the tests choose at random.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// The numbers of a seed.
    pub(crate) const fn new(seed: u64) -> Self {
        Self(SplitMix64::new(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0.next()
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True `percent` times of a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            *byte = self.next().to_le_bytes()[0];
        }
    }
}

/// Flips one to three bits of a frame over IPv4 that its invariant CRC covers: not those of Ethernet,
/// and not those that routers change.
pub(crate) fn damage(random: &mut Random, frame: &mut [u8]) {
    let mut left = 1 + random.below(3);
    let mut struck = Vec::new();
    while left > 0 {
        let place = usize::try_from(random.below(frame.len() as u64)).unwrap();
        if place >= 14 && ![15, 22, 24, 25, 40, 41, 46].contains(&place) && !struck.contains(&place) {
            frame[place] ^= 1 << random.below(8);
            struck.push(place);
            left -= 1;
        }
    }
}
