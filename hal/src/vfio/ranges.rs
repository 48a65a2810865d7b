//! Address ranges as the kernel reports them.

use crate::address::{Iova, IovaRange};

/// The ranges in order, joined where they overlap or touch. Both ends belong to a range;
/// one that ends before it begins is left out.
pub(super) fn usable_ranges(reported: &[(u64, u64)]) -> Vec<IovaRange> {
    let mut sorted: Vec<(u64, u64)> =
        reported.iter().copied().filter(|(start, last)| start <= last).collect();
    sorted.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::with_capacity(sorted.len());
    for (start, last) in sorted {
        match joined.last_mut() {
            Some(previous) if start <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
            _ => joined.push((start, last)),
        }
    }
    joined
        .into_iter()
        .filter_map(|(start, last)| IovaRange::from_bounds(Iova::new(start), Iova::new(last)))
        .collect()
}

/// The ranges as a person reads them.
pub(super) fn listed(ranges: &[IovaRange]) -> String {
    match ranges {
        [] => "nothing".to_owned(),
        ranges => ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_in_order_joined_and_with_their_last_byte() {
        let reported =
            [(0xfef0_0000, 0x7f_ffff_ffff), (0, 0xfedf_ffff), (7, 3), (0x80_0000_0000, u64::MAX), (9, 20)];
        let ranges = usable_ranges(&reported);
        assert_eq!(listed(&ranges), "[0x0, 0xfedfffff] [0xfef00000, 0xffffffffffffffff]");
        assert_eq!(listed(&usable_ranges(&[])), "nothing");
        assert_eq!(usable_ranges(&[(0, u64::MAX), (u64::MAX, u64::MAX)]).len(), 1);
    }
}
