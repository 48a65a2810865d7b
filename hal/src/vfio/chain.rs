//! Lists of capabilities that the kernel appends to an answer.
//!
//! A capability has a header of 8 bytes: number (16 bits), version (16 bits) and the offset
//! of the next one from the beginning of the answer, zero at the end. The kernel appends
//! them one after the other, so that a list which does not move forward is malformed, and
//! no list can be endless.

use thiserror::Error;

use super::message::{half_word, word};

/// A capability in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerCapability<'a> {
    pub(super) id: u16,
    pub(super) version: u16,
    /// Everything from its header to the end of the answer: the header does not say how
    /// long it is.
    pub(super) bytes: &'a [u8],
}

/// A list of capabilities that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the list of capabilities is malformed at {offset:#x}: {what}")]
pub(super) struct MalformedChain {
    pub(super) offset: usize,
    pub(super) what: &'static str,
}

/// The capabilities of `answer`, whose fixed part has `fixed` bytes. The first one is at
/// `first`, zero for none.
pub(super) fn answer_capabilities(
    answer: &[u8],
    fixed: usize,
    first: u32,
) -> Result<Vec<AnswerCapability<'_>>, MalformedChain> {
    let mut found = Vec::new();
    let mut next = usize::try_from(first).unwrap_or(usize::MAX);
    let mut end_of_last = fixed;
    while next != 0 {
        let malformed = |what| MalformedChain { offset: next, what };
        if next < end_of_last {
            return Err(malformed("it does not move forward"));
        }
        let bytes = answer.get(next..).unwrap_or_default();
        let (Some(id), Some(version), Some(link)) =
            (half_word(bytes, 0), half_word(bytes, 2), word(bytes, 4))
        else {
            return Err(malformed("a capability is outside the answer"));
        };
        found.push(AnswerCapability { id, version, bytes });
        end_of_last = next + HEADER_LENGTH;
        next = usize::try_from(link).unwrap_or(usize::MAX);
    }
    Ok(found)
}

const HEADER_LENGTH: usize = 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header(id: u16, version: u16, next: u32) -> Vec<u8> {
        let mut bytes = id.to_ne_bytes().to_vec();
        bytes.extend(version.to_ne_bytes());
        bytes.extend(next.to_ne_bytes());
        bytes
    }

    #[test]
    fn every_capability_is_found_in_order() {
        let mut answer = vec![0; 16];
        answer.extend(header(1, 1, 28));
        answer.extend([7; 4]);
        answer.extend(header(9, 2, 0));
        let found = answer_capabilities(&answer, 16, 16).unwrap();
        let ids: Vec<_> = found.iter().map(|one| (one.id, one.version, one.bytes.len())).collect();
        assert_eq!(ids, [(1, 1, 20), (9, 2, 8)]);
        assert_eq!(answer_capabilities(&answer, 16, 0), Ok(vec![]));
    }

    #[test]
    fn lists_that_loop_or_leave_the_answer_are_malformed() {
        let list = |next: u32| [vec![0; 16], header(1, 1, next), header(2, 1, 0)].concat();
        for (first, next, at) in
            [(16, 16, 16), (16, 8, 8), (16, 23, 23), (8, 0, 8), (16, 25, 25), (16, 0x1000, 0x1000)]
        {
            let error = answer_capabilities(&list(next), 16, first).unwrap_err();
            assert_eq!(error.offset, at, "{first} {next}: {error}");
        }
        assert_eq!(answer_capabilities(&list(24), 16, 16).unwrap().len(), 2);
        assert!(answer_capabilities(&[], 0, u32::MAX).is_err());
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "slow under Miri")]
        fn a_forged_list_ends(answer in prop::collection::vec(any::<u8>(), 0..256), first: u32, fixed in 0..64usize) {
            if let Ok(found) = answer_capabilities(&answer, fixed, first % 300) {
                prop_assert!(found.len() <= answer.len() / 8 + 1);
                prop_assert!(found.iter().all(|one| one.bytes.len() >= 8));
            }
        }
    }
}
