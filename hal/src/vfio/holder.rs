//! Who has a device node open.

use std::fs;
use std::path::Path;

/// The processes that have `path` open, as far as this user can see: "qemu (process 412)".
/// This process is named last, as "this process".
pub(super) fn of(path: &Path) -> Option<String> {
    let own = std::process::id();
    find(Path::new("/proc"), path, own).map(|(others, ours)| {
        let ours = ours.then(|| "this process".to_owned());
        others.into_iter().chain(ours).collect::<Vec<_>>().join(", ")
    })
}

/// As [`of`], without this process.
pub(super) fn other_than_us(path: &Path) -> Option<String> {
    let (others, _) = find(Path::new("/proc"), path, std::process::id())?;
    (!others.is_empty()).then(|| others.join(", "))
}

/// The same, one by one, with the folder that has an entry for each process.
pub(crate) fn others(processes: &Path, path: &Path) -> Vec<String> {
    find(processes, path, std::process::id()).map_or_else(Vec::new, |(others, _)| others)
}

/// Somebody whom this user cannot see.
pub(super) fn unknown() -> String {
    "a process that this user cannot see; as root, `vdk` names it".to_owned()
}

/// The others by their number, and whether this process is one of the holders.
fn find(processes: &Path, path: &Path, own: u32) -> Option<(Vec<String>, bool)> {
    let mut others = Vec::new();
    let mut ours = false;
    for process in fs::read_dir(processes).ok()?.flatten() {
        let Some(id) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if !has_open(&process.path(), path) {
            continue;
        }
        if id == own {
            ours = true;
            continue;
        }
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        others.push((id, name.trim_end().to_owned()));
    }
    others.sort_unstable();
    let names: Vec<String> = others.iter().map(|(id, name)| format!("{name} (process {id})")).collect();
    (ours || !names.is_empty()).then_some((names, ours))
}

fn has_open(process: &Path, path: &Path) -> bool {
    // A process may end meanwhile, or belong to somebody else.
    let Ok(files) = fs::read_dir(process.join("fd")) else { return false };
    files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target == path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn holders_are_named_and_this_process_is_told_apart() {
        let root = std::env::temp_dir().join(format!("vdk-holder-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for (id, name, target) in [
            (30, "qemu", "/dev/vfio/7"),
            (4, "spdk_tgt", "/dev/vfio/7"),
            (5, "other", "/dev/vfio/70"),
            (9, "own", "/dev/vfio/7"),
        ] {
            let files = root.join(id.to_string()).join("fd");
            fs::create_dir_all(&files).unwrap();
            fs::write(root.join(id.to_string()).join("comm"), format!("{name}\n")).unwrap();
            symlink(target, files.join("3")).unwrap();
        }
        fs::create_dir_all(root.join("self")).unwrap();
        let found = |path: &str| find(&root, Path::new(path), 9);
        let both = vec!["spdk_tgt (process 4)".to_owned(), "qemu (process 30)".to_owned()];
        assert_eq!(found("/dev/vfio/7").unwrap(), (both, true));
        assert_eq!(found("/dev/vfio/70").unwrap(), (vec!["other (process 5)".to_owned()], false));
        assert_eq!(found("/dev/vfio/1"), None);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(found("/dev/vfio/7"), None);
    }
}
