//! The folders of runs: one for each scene and process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where a scene is run by this process.
#[must_use]
pub fn run_folder(parent: &Path, scene: &str) -> PathBuf {
    parent.join(format!("{PREFIX}{scene}-{}", std::process::id()))
}

/// Leaves the folder of a run that has ended to people: no later run removes it.
///
/// # Errors
///
/// It cannot be written to.
pub fn keep_folder(folder: &Path) -> io::Result<()> {
    fs::write(folder.join(KEPT), "")
}

/// Removes the folders of runs that were killed; tells what could not be removed.
pub fn remove_abandoned(parent: &Path) -> Vec<String> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let abandoned = folders.map(|entry| entry.path()).filter(|path| is_abandoned(path));
    abandoned
        .filter_map(|path| {
            let error = fs::remove_dir_all(&path).err()?;
            Some(format!("{}, which a killed run left, was not removed: {error}", path.display()))
        })
        .collect()
}

fn is_abandoned(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    let process = name.and_then(|name| name.strip_prefix(PREFIX)?.rsplit_once('-')?.1.parse::<u32>().ok());
    process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
        && !folder.join(KEPT).exists()
}

const PREFIX: &str = "vdk-guest-";
/// The file in a folder that is for people.
const KEPT: &str = "kept";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_runs_that_were_killed_are_removed() {
        let parent = std::env::temp_dir().join(format!("vdk-folders-{}", std::process::id()));
        // No process has this number: the system allows 2^22.
        let [killed, kept, other, no_run] =
            ["vdk-guest-a-b-4194305", "vdk-guest-c-4194305", "other-4194305", "vdk-guest-x-y"]
                .map(|name| parent.join(name));
        let own = run_folder(&parent, "edu");
        for folder in [&killed, &kept, &other, &no_run, &own] {
            fs::create_dir_all(folder).unwrap();
        }
        fs::write(killed.join("disk"), "blocks").unwrap();
        keep_folder(&kept).unwrap();
        assert_eq!(remove_abandoned(&parent), Vec::<String>::new());
        let there = [&killed, &kept, &other, &no_run, &own].map(|folder| folder.exists());
        assert_eq!(there, [false, true, true, true, true]);
        fs::remove_dir_all(parent).unwrap();
    }
}
