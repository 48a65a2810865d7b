//! Size classes: which list a hole is on, and which list to look at first.

/// The class of holes of `units` units, `units > 0`.
///
/// Below 32 units each size has its class; above, each power of two is cut into 16.
#[inline]
pub(super) fn class_of(units: u64) -> usize {
    let class = if units < EXACT {
        units
    } else {
        let exponent = u64::from(units.ilog2());
        let step = (units >> (exponent - 4)) & 15;
        EXACT + (exponent - 5) * 16 + step
    };
    // PANIC: the class of 2^64 - 1 units is below `COUNT`, which fits.
    usize::try_from(class).expect("a class number fits")
}

/// A set of classes that finds the next member in two steps.
#[derive(Clone, Debug)]
pub(super) struct ClassSet {
    words: [u64; WORDS],
    summary: u64,
}

impl ClassSet {
    pub(super) const fn new() -> Self {
        Self { words: [0; WORDS], summary: 0 }
    }

    #[inline]
    pub(super) fn insert(&mut self, class: usize) {
        self.words[class / 64] |= 1 << (class % 64);
        self.summary |= 1 << (class / 64);
    }

    #[inline]
    pub(super) fn remove(&mut self, class: usize) {
        let word = &mut self.words[class / 64];
        *word &= !(1 << (class % 64));
        if *word == 0 {
            self.summary &= !(1 << (class / 64));
        }
    }

    /// The smallest member that is at least `class`.
    #[inline]
    pub(super) fn next_from(&self, class: usize) -> Option<usize> {
        let word = class / 64;
        if word >= WORDS {
            return None;
        }
        let here = self.words[word] >> (class % 64);
        if here != 0 {
            // CAST: at most 63.
            return Some(class + here.trailing_zeros() as usize);
        }
        // `word < WORDS <= 63`, so the shift is below 64.
        let above = self.summary >> word >> 1;
        if above == 0 {
            return None;
        }
        // CAST: at most 63, twice.
        let word = word + 1 + above.trailing_zeros() as usize;
        Some(word * 64 + self.words[word].trailing_zeros() as usize)
    }

    /// The largest member.
    pub(super) fn largest(&self) -> Option<usize> {
        // CAST: at most 63, twice.
        let word = self.summary.checked_ilog2()? as usize;
        Some(word * 64 + self.words[word].checked_ilog2()? as usize)
    }
}

/// Sizes below this many units have classes of their own.
const EXACT: u64 = 32;

/// How many classes there are: sizes up to 2^64 - 1 units.
pub(super) const COUNT: usize = 32 + (64 - 5) * 16;

const WORDS: usize = COUNT.div_ceil(64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_ascend_and_cover_every_size() {
        let mut sizes: Vec<u64> = (0..64)
            .flat_map(|shift| [1u64 << shift, (3 << shift) / 2 + 1, (1 << shift) + ((1 << shift) - 1)])
            .collect();
        sizes.sort_unstable();
        for pair in sizes.windows(2) {
            let [small, large] = [class_of(pair[0]), class_of(pair[1])];
            assert!(small <= large && large < COUNT, "{pair:?}");
            assert!(small < large || pair[1] - pair[0] <= pair[0] / 16, "{pair:?} share a class");
        }
        assert_eq!(class_of(u64::MAX), COUNT - 1);
        assert_eq!((class_of(31), class_of(32), class_of(34)), (31, 32, 33));
    }

    #[test]
    fn the_next_and_the_largest_member_are_found() {
        let mut set = ClassSet::new();
        assert_eq!((set.next_from(0), set.largest()), (None, None));
        for class in [3, 64, 200, COUNT - 1] {
            set.insert(class);
        }
        assert_eq!(set.next_from(0), Some(3));
        assert_eq!(set.next_from(4), Some(64));
        assert_eq!(set.next_from(64), Some(64));
        assert_eq!(set.next_from(65), Some(200));
        assert_eq!(set.next_from(201), Some(COUNT - 1));
        assert_eq!(set.largest(), Some(COUNT - 1));
        assert_eq!(set.next_from(COUNT), None);
        set.remove(200);
        set.remove(COUNT - 1);
        assert_eq!((set.next_from(65), set.largest()), (None, Some(64)));
    }
}
