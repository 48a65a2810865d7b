use proptest::prelude::*;

use super::*;
use crate::vfio::mock::MockFile;
use crate::vfio::ranges::listed;

/// An answer of a 6.12 kernel behind VT-d: page sizes, then ranges, then mappings left.
fn recorded(ranges: &[(u64, u64)], available: u32) -> Vec<u8> {
    let mut answer = vec![0; 24];
    let mut put = |at: usize, bytes: &[u8]| answer[at..at + bytes.len()].copy_from_slice(bytes);
    put(4, &3u32.to_ne_bytes());
    put(8, &0x4020_1000u64.to_ne_bytes());
    put(16, &24u32.to_ne_bytes());
    let next = 24 + 16 + 16 * ranges.len();
    answer.extend([1u16, 1].map(u16::to_ne_bytes).concat());
    answer.extend(u32::try_from(next).unwrap().to_ne_bytes());
    answer.extend([u32::try_from(ranges.len()).unwrap(), 0].map(u32::to_ne_bytes).concat());
    answer.extend(ranges.iter().flat_map(|(start, end)| [*start, *end]).flat_map(u64::to_ne_bytes));
    answer.extend([3u16, 1].map(u16::to_ne_bytes).concat());
    answer.extend([0u32, available].map(u32::to_ne_bytes).concat());
    let length = u32::try_from(answer.len()).unwrap();
    answer[..4].copy_from_slice(&length.to_ne_bytes());
    answer
}

const VT_D: [(u64, u64); 2] = [(0, 0xfedf_ffff), (0xfef0_0000, 0x7f_ffff_ffff)];

#[test]
fn ranges_page_sizes_and_mappings_left_are_read_and_ends_are_inclusive() {
    let geometry = parse_info(&recorded(&VT_D, 65535));
    assert_eq!(listed(&geometry.ranges), "[0x0, 0xfedfffff] [0xfef00000, 0x7fffffffff]");
    assert_eq!((geometry.page_sizes, geometry.mappings_available), (0x4020_1000, Some(65535)));
}

#[test]
fn without_capabilities_a_small_iommu_is_assumed() {
    let mut plain = recorded(&VT_D, 1);
    plain[4..8].copy_from_slice(&1u32.to_ne_bytes());
    let mut looped = recorded(&VT_D, 1);
    looped[28..32].copy_from_slice(&24u32.to_ne_bytes());
    let mut cut = recorded(&VT_D, 1);
    cut[32..36].copy_from_slice(&1000u32.to_ne_bytes());
    for answer in [plain, looped, cut, vec![], vec![0xff; 8]] {
        let geometry = parse_info(&answer);
        assert_eq!(
            listed(&geometry.ranges),
            "[0x10000, 0xfedfffff] [0xfef00000, 0x7fffffffff]",
            "{answer:x?}"
        );
        assert!(geometry.page_sizes != 0);
    }
}

#[test]
fn an_answer_that_does_not_fit_is_asked_for_again_and_not_for_ever() {
    let answer = recorded(&VT_D, 7);
    let file = MockFile::new(move |call, message, _| match call {
        Call::ApiVersion => Ok(0),
        Call::CheckExtension => Ok(1),
        Call::IommuInfo => {
            let fits = message.bytes().len() >= answer.len();
            message.put_bytes(0, if fits { &answer } else { &answer[..4] });
            Ok(0)
        }
        _ => Err(Errno::NOTTY),
    });
    let container = Container::over(file.clone()).unwrap();
    assert_eq!(container.geometry().unwrap().mappings_available, Some(7));
    assert_eq!(file.calls().iter().filter(|call| **call == Call::IommuInfo).count(), 2);

    let mut needed = 24;
    let growing = MockFile::new(move |call, message, _| match call {
        Call::ApiVersion => Ok(0),
        Call::CheckExtension => Ok(1),
        _ => {
            needed += 100;
            message.put(0, needed);
            Ok(0)
        }
    });
    assert_eq!(Container::over(growing).unwrap().geometry(), Err(Errno::MSGSIZE));
}

#[test]
fn a_kernel_without_version_two_of_type_one_is_refused_with_the_module() {
    let old = MockFile::new(|_, _, _| Ok(0));
    let text = Container::over(old).map(|_| ()).unwrap_err().text();
    assert!(text.contains("modprobe vfio_iommu_type1"), "{text}");
    let other = MockFile::new(|_, _, _| Ok(5));
    assert!(Container::over(other).map(|_| ()).unwrap_err().text().contains("version 5"));
}

#[test]
fn the_iommu_comes_with_the_first_group_and_again_after_the_last_has_left() {
    let file = MockFile::new(|call, _, _| Ok(u32::from(call == Call::CheckExtension)));
    let container = Container::over(file.clone()).unwrap();
    file.take();
    let set = |file: &MockFile| file.calls().contains(&Call::SetIommu);
    let group = MockFile::new(|_, _, _| Ok(0));
    container.join(&*group).unwrap();
    assert!(set(&file));
    container.join(&*group).unwrap();
    assert!(!set(&file));
    container.leave(&*group);
    container.leave(&*MockFile::new(|_, _, _| Err(Errno::BUSY)));
    assert_eq!(container.join(&*MockFile::new(|_, _, _| Err(Errno::NODEV))), Err(Errno::NODEV));
    assert!(!set(&file), "a group that did not join brings nothing");
    container.join(&*group).unwrap();
    assert!(set(&file));
}

#[test]
fn a_group_that_joined_is_taken_out_again_when_the_iommu_does_not_come() {
    let mut broken = true;
    let file = MockFile::new(move |call, _, _| match call {
        Call::CheckExtension => Ok(1),
        Call::SetIommu if core::mem::replace(&mut broken, false) => Err(Errno::NOMEM),
        _ => Ok(0),
    });
    let container = Container::over(file.clone()).unwrap();
    let group = MockFile::new(|_, _, _| Ok(0));
    assert_eq!(container.join(&*group), Err(Errno::NOMEM));
    assert_eq!(group.calls(), [Call::GroupSetContainer, Call::GroupUnsetContainer]);
    file.take();
    container.join(&*group).unwrap();
    assert_eq!(group.calls(), [Call::GroupSetContainer]);
    assert_eq!(file.calls(), [Call::SetIommu], "the next group is the first one again");
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "slow under Miri")]
    fn a_forged_answer_gives_ranges_in_order(
        mut answer in prop::collection::vec(any::<u8>(), 0..200),
        place in 0..200usize,
        noise: u8,
        recorded_one: bool,
    ) {
        if recorded_one {
            answer = recorded(&VT_D, 9);
            let place = place % answer.len();
            answer[place] = noise;
        }
        let geometry = parse_info(&answer);
        prop_assert!(geometry.page_sizes != 0);
        for pair in geometry.ranges.windows(2) {
            prop_assert!(pair[0].last() < pair[1].start());
        }
    }
}
