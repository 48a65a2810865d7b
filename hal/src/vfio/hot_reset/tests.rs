use proptest::prelude::*;

use super::*;
use crate::vfio::mock::MockFile;

/// An answer with functions 0 to n of device 1 on bus 3.
fn answer(flags: u32, owners: &[u32]) -> Vec<u8> {
    let mut bytes = [0, flags, u32::try_from(owners.len()).unwrap()].map(u32::to_ne_bytes).concat();
    for (function, owner) in (0u8..).zip(owners) {
        bytes.extend(owner.to_ne_bytes());
        bytes.extend(0u16.to_ne_bytes());
        bytes.extend([3, 8 | function]);
    }
    bytes
}

#[test]
fn groups_and_device_numbers_are_told_apart_by_the_flag() {
    let by_group = parse(&answer(0, &[7, 9, 7])).unwrap();
    assert_eq!((by_group.owned, by_group.groups()), (None, vec![7, 9]));
    assert_eq!(listed(&by_group.foreign(&[7])), "0000:03:01.1");
    assert_eq!(by_group.foreign(&[9, 7]), []);

    let by_device = parse(&answer(1, &[0, u32::MAX, 5])).unwrap();
    assert_eq!((by_device.owned, by_device.groups()), (Some(false), vec![]));
    assert_eq!(listed(&by_device.foreign(&[])), "0000:03:01.1");
    assert_eq!(parse(&answer(3, &[0, 5])).unwrap().owned, Some(true));
}

#[test]
fn an_answer_that_grows_is_asked_for_again_and_one_that_lies_is_nothing() {
    let mut count = 10;
    let file = MockFile::new(move |_, message, _| {
        message.put(8, count);
        if message.bytes().len() < HEADER + usize::try_from(count).unwrap() * ENTRY {
            count += 10;
            return Err(Errno::NOSPC);
        }
        message.put_bytes(0, &answer(0, &vec![4; usize::try_from(count).unwrap()]));
        Ok(0)
    });
    let info = HotResetInfo::read(&file.device());
    assert_eq!(info.map(|info| info.map(|info| info.affected.len())), Ok(None), "it grew every time");
    let lying = MockFile::new(|_, message, _| {
        message.put(8, 1000);
        Ok(0)
    });
    assert_eq!(HotResetInfo::read(&lying.device()), Ok(None));
    for absent in [Errno::NODEV, Errno::NOTTY] {
        let file = MockFile::new(move |_, _, _| Err(absent));
        assert_eq!(HotResetInfo::read(&file.device()), Ok(None));
    }
}

#[test]
fn the_call_shows_the_groups_or_nothing() {
    let file = MockFile::new(|_, _, _| Ok(0));
    hot_reset(&file.device(), &[5i32.to_ne_bytes(), 6i32.to_ne_bytes()]).unwrap();
    hot_reset(&file.device(), &[]).unwrap();
    let asked: Vec<Vec<u8>> = file.take().into_iter().map(|asked| asked.bytes).collect();
    assert_eq!(asked[0], [20, 0, 2, 5, 6].map(u32::to_ne_bytes).concat());
    assert_eq!(asked[1], [12, 0, 0].map(u32::to_ne_bytes).concat());
}

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "slow under Miri")]
    fn a_forged_answer_is_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0..40u32) {
        let mut bytes = bytes;
        if bytes.len() >= 12 {
            bytes[8..12].copy_from_slice(&count.to_ne_bytes());
        }
        if let Some(info) = parse(&bytes) {
            prop_assert_eq!(info.affected.len(), usize::try_from(count).unwrap());
        }
    }
}
