use proptest::prelude::*;

use super::*;
use crate::vfio::mock::MockFile;

/// Function 0, which asks.
const OWN: Bdf = Bdf::new(0, 3, 1, 0).unwrap();
/// A list of functions that has none.
const NOWHERE: &str = "/nowhere";

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
    assert_eq!(by_group.outsiders(OWN, &[7], NOWHERE.as_ref()), ["0000:03:01.1"]);
    assert!(by_group.outsiders(OWN, &[9, 7], NOWHERE.as_ref()).is_empty());

    let by_device = parse(&answer(1, &[0, u32::MAX, 5])).unwrap();
    assert_eq!((by_device.owned, by_device.groups()), (Some(false), vec![]));
    assert_eq!(by_device.outsiders(OWN, &[], NOWHERE.as_ref()), ["0000:03:01.1"]);
    assert_eq!(parse(&answer(3, &[0, 5])).unwrap().owned, Some(true));
    let silent = parse(&answer(1, &[0, 5, 0])).unwrap();
    let all = ["0000:03:01.1", "0000:03:01.2"];
    assert_eq!(silent.outsiders(OWN, &[], NOWHERE.as_ref()), all, "the kernel says no and not why");
}

#[test]
#[cfg_attr(miri, ignore = "needs a file system")]
fn what_a_reset_hits_is_named_with_who_has_it() {
    let root = std::env::temp_dir().join(format!("vdk-hot-reset-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&root);
    for (function, driver) in
        [("0", Some("vfio-pci")), ("1", None), ("2", Some("nvme")), ("3", Some("vfio-pci"))]
    {
        let folder = root.join(format!("0000:03:01.{function}"));
        std::fs::create_dir_all(&folder).unwrap();
        for (file, text) in [("vendor", "0x1234\n"), ("device", "0x11e8\n"), ("class", "0x00ff00\n")] {
            std::fs::write(folder.join(file), text).unwrap();
        }
        if let Some(driver) = driver {
            std::os::unix::fs::symlink(Path::new("/drivers").join(driver), folder.join("driver")).unwrap();
        }
    }
    // All in one group of the caller: that is enough for none that VFIO does not have.
    let info = parse(&answer(0, &[7, 7, 7, 7])).unwrap();
    let named = info.outsiders(OWN, &[7], &root);
    assert_eq!(named, ["0000:03:01.1 (bound to no driver)", "0000:03:01.2 (bound to nvme)"]);
    let foreign = parse(&answer(0, &[7, 8, 7, 9])).unwrap().outsiders(OWN, &[7], &root);
    assert_eq!(foreign[2], "0000:03:01.3 (not opened)");
    std::fs::write(root.join("0000:03:01.3/physfn"), "").unwrap();
    let virtual_one = parse(&answer(0, &[7, 7, 7, 7])).unwrap().outsiders(OWN, &[7], &root);
    assert_eq!(virtual_one[2], "0000:03:01.3 (a virtual function)");
    std::fs::remove_dir_all(&root).unwrap();
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
