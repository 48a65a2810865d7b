use std::fs::{self, File};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::symlink;

use super::*;
use crate::vfio::mock::MockFile;
use crate::vfio::space::Space;

/// A folder like sysfs with a function in a group beside others, removed at the end.
struct Machine(PathBuf);

impl Machine {
    fn new(group: u32, others: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("vdk-group-{group}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let machine = Self(root);
        let members = machine.0.join("groups").join(group.to_string());
        fs::create_dir_all(members.join("devices")).unwrap();
        for (address, driver) in others.iter().chain(&[("0000:01:00.0", "vfio-pci")]) {
            let folder = machine.0.join("devices").join(address);
            fs::create_dir_all(&folder).unwrap();
            for (file, text) in [("vendor", "0x1234\n"), ("device", "0x11e8\n"), ("class", "0x00ff00\n")] {
                fs::write(folder.join(file), text).unwrap();
            }
            symlink(&members, folder.join("iommu_group")).unwrap();
            symlink(Path::new("/drivers").join(driver), folder.join("driver")).unwrap();
            symlink(&folder, members.join("devices").join(address)).unwrap();
        }
        machine
    }

    fn function(&self) -> SysfsFunction {
        SysfsFunction::read(&self.0.join("devices"), "0000:01:00.0".parse().unwrap()).unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A container, and its file.
fn container() -> (Arc<MockFile>, Arc<Container>) {
    let file = MockFile::new(|call, _, _| Ok(u32::from(call == Call::CheckExtension)));
    let container = Arc::new(Container::over(file.clone()).unwrap());
    file.take();
    (file, container)
}

/// The file of a group that is viable and joins.
fn viable() -> Arc<MockFile> {
    answering(Ok(0))
}

/// The same with another answer to joining.
fn answering(joined: Result<u32, Errno>) -> Arc<MockFile> {
    MockFile::new(move |call, message, _| match call {
        Call::GroupStatus => {
            message.put(offset_of!(abi::vfio_group_status, flags), abi::VFIO_GROUP_FLAGS_VIABLE);
            Ok(0)
        }
        Call::GroupSetContainer => joined,
        _ => Ok(0),
    })
}

#[test]
fn functions_of_a_group_share_it_and_the_last_one_lets_it_go() {
    let machine = Machine::new(9001, &[]);
    let (file, container) = container();
    let (space, group) = (Arc::new(Space::default()), viable());
    let join = |space: &Arc<Space>| {
        Group::join_by(&machine.function(), 9001, &container, space, |path| {
            assert_eq!(path, Path::new("/dev/vfio/9001"));
            Ok(group.clone())
        })
    };
    let first = join(&space).unwrap();
    assert_eq!(group.calls(), [Call::GroupStatus, Call::GroupSetContainer]);
    assert_eq!(file.calls(), [Call::SetIommu]);
    let second = join(&space).unwrap();
    assert!(Arc::ptr_eq(&first, &second) && group.calls().is_empty(), "it was joined twice");
    assert!(owned_groups().contains(&9001) && owned_group(9001).is_some());

    let other = join(&Arc::default()).map(|_| ()).unwrap_err().text();
    assert!(other.contains("group 9001 is in another address space of this process"), "{other}");
    drop(first);
    assert!(group.calls().is_empty(), "it was let go under a function");
    drop(second);
    assert_eq!(group.calls(), [Call::GroupUnsetContainer]);
    assert!(!owned_groups().contains(&9001) && owned_group(9001).is_none());

    // The container has lost its IOMMU with the group; the next one brings it again.
    let again = join(&Arc::default()).unwrap();
    assert_eq!(file.calls(), [Call::SetIommu]);
    drop(again);
}

#[test]
fn a_group_that_is_not_viable_is_not_joined_and_its_members_are_named() {
    let machine = Machine::new(9002, &[("0000:01:00.1", "nvme"), ("0000:01:00.2", "vfio-pci")]);
    let (file, container) = container();
    let group = MockFile::new(|_, _, _| Ok(0));
    let refused =
        Group::join_by(&machine.function(), 9002, &container, &Arc::default(), |_| Ok(group.clone()));
    let text = refused.map(|_| ()).unwrap_err().text();
    assert!(text.contains("IOMMU group 9002 also holds 0000:01:00.1 (nvme)"), "{text}");
    assert!(text.contains("echo 0000:01:00.1 > /sys/bus/pci/drivers/nvme/unbind"), "{text}");
    assert_eq!((group.calls(), file.calls()), (vec![Call::GroupStatus], vec![]));

    // One that sysfs does not explain.
    let machine = Machine::new(9002, &[]);
    let text = not_viable(9002, &machine.function()).text();
    assert!(text.contains("iommu_groups/9002/devices"), "{text}");
    assert!(!owned_groups().contains(&9002));
}

#[test]
fn a_group_that_does_not_join_leaves_everything_as_it_was() {
    let machine = Machine::new(9003, &[]);
    let text = |error: Errno| {
        let (file, container) = container();
        let group = answering(Err(error));
        let joined = Group::join_by(&machine.function(), 9003, &container, &Arc::default(), |_| Ok(group));
        assert_eq!(file.calls(), [], "the container was given an IOMMU for a group that is not in it");
        assert!(!owned_groups().contains(&9003));
        joined.map(|_| ()).unwrap_err().text()
    };
    assert!(text(Errno::BUSY).contains("is open already, by"));
    for error in [Errno::PERM, Errno::INVAL] {
        assert!(text(error).contains("allow_unsafe_interrupts"), "{error}");
    }
    assert!(text(Errno::NOMEM).contains("the kernel refused the group in a container"));

    // The group has joined, and then the container gets no IOMMU.
    let file = MockFile::new(|call, _, _| match call {
        Call::CheckExtension => Ok(1),
        Call::SetIommu => Err(Errno::NODEV),
        _ => Ok(0),
    });
    let container = Arc::new(Container::over(file).unwrap());
    let group = viable();
    let joined =
        Group::join_by(&machine.function(), 9003, &container, &Arc::default(), |_| Ok(group.clone()));
    assert!(joined.map(|_| ()).unwrap_err().text().contains("group 9003"));
    assert_eq!(group.calls(), [Call::GroupStatus, Call::GroupSetContainer, Call::GroupUnsetContainer]);
    assert_eq!(Arc::strong_count(&group), 1, "the file of the group is closed");
}

#[test]
fn a_device_is_asked_for_by_name_and_token_and_refusals_are_told_apart() {
    let machine = Machine::new(9004, &[]);
    let (_, container) = container();
    let token = Some(VfToken([0x11; 16]));
    let answer = Arc::new(Mutex::new(Ok(0)));
    let answers = Arc::clone(&answer);
    let file = MockFile::new(move |call, message, _| match call {
        Call::GroupStatus => {
            message.put(offset_of!(abi::vfio_group_status, flags), abi::VFIO_GROUP_FLAGS_VIABLE);
            Ok(0)
        }
        Call::GroupDevice => *answers.lock().unwrap(),
        _ => Ok(0),
    });
    let group =
        Group::join_by(&machine.function(), 9004, &container, &Arc::default(), |_| Ok(file.clone())).unwrap();
    let ask = |kernel: Result<u32, Errno>, token: Option<VfToken>| {
        *answer.lock().unwrap() = kernel;
        file.take();
        let refused = group.device("0000:01:00.0", token).map(|_| ()).map_err(Refusal::text);
        (refused, file.take().remove(0).bytes)
    };
    let descriptor = File::open("/dev/null").unwrap().into_raw_fd();
    let (opened, name) = ask(Ok(descriptor.try_into().unwrap()), None);
    assert_eq!((opened, name.as_slice()), (Ok(()), &b"0000:01:00.0\0"[..]));
    let (refused, name) = ask(Err(Errno::ACCESS), token);
    assert_eq!(name, b"0000:01:00.0 vf_token=11111111-1111-1111-1111-111111111111\0");
    assert!(refused.unwrap_err().contains("the VF token is not the one"));
    let text = |error| ask(Err(error), None).0.unwrap_err();
    assert!(text(Errno::ACCESS).contains("give the token"));
    assert!(text(Errno::BUSY).contains("is open already"));
    assert!(text(Errno::NODEV).contains("gone"));
    assert!(text(Errno::INVAL).contains("the file of the device"));
}
