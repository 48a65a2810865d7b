//! Every scene, by what it is about.

mod edu;
mod ioat;
mod nvme;
mod nvme_stub;
mod oracle;
mod roce;
mod vfio;

use super::scene::Scene;

/// The interface of the kernel; words of this form become the environment of the guest's init.
const TYPE1: &str = "interface=type1";
const IOMMUFD: &str = "interface=iommufd";

/// Every scene.
pub fn scenes() -> impl Iterator<Item = &'static Scene> {
    let areas = [
        edu::SCENES,
        vfio::SCENES,
        nvme::SCENES,
        nvme_stub::SCENES,
        ioat::SCENES,
        roce::SCENES,
        oracle::SCENES,
    ];
    areas.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn scenes_have_names_of_their_own_and_say_what_they_show() {
        let names: BTreeSet<&str> = scenes().map(|scene| scene.name).collect();
        assert_eq!(names.len(), scenes().count());
        for scene in scenes() {
            assert!(
                !scene.name.is_empty() && !scene.shows.is_empty() && !scene.script.is_empty(),
                "{}",
                scene.name
            );
            let given = |file: &str| {
                let stubs = scene.stubs.iter().flat_map(|stub| stub.arguments);
                scene.machine.iter().chain(stubs).any(|argument| argument.contains(file))
            };
            assert!(scene.drives.iter().all(|drive| given(drive.file)), "{}", scene.name);
            assert!(scene.stubs.iter().all(|stub| given(&stub.socket())), "{}", scene.name);
        }
    }

    #[test]
    fn a_scene_may_take_several_times_what_it_takes() {
        for scene in scenes() {
            assert!(scene.limit >= 4 * scene.takes, "{} has no time to spare", scene.name);
        }
    }
}
