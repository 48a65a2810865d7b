//! `vdk copy` as a person runs it: identical bytes, or a clear error and no output.

use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A folder of its own for one test, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vdk-copy-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).expect("a folder for the test");
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes `length` bytes that never repeat at a distance that the copy uses.
    fn input(&self, length: usize) -> PathBuf {
        let path = self.path("in");
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state.to_le_bytes()[0]
            })
            .collect();
        fs::write(&path, bytes).expect("the input is written");
        path
    }

    /// Everything in the folder, to see that nothing was left behind.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("the folder is there");
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn vdk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vdk")).args(arguments).output().expect("vdk runs")
}

fn copy(input: &Path, output: &Path, more: &[&str]) -> Output {
    let mut arguments = vec!["copy", input.to_str().unwrap(), output.to_str().unwrap()];
    arguments.extend(more);
    vdk(&arguments)
}

fn error_of(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn files_of_every_awkward_size_come_out_identical() {
    let folder = Folder::new("sizes");
    let output = folder.path("out");
    for length in [0, 1, 4095, 4096, 4097, (1 << 20) + 13] {
        let input = folder.input(length);
        for more in
            [&["--chunk", "65536"][..], &["--chunk", "4097", "--segments", "300"], &["--segments", "1"]]
        {
            let done = copy(&input, &output, &[&["--verify", "--json"], more].concat());
            assert!(done.status.success(), "{length} {more:?}: {done:?}");
            let summary: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
            assert_eq!(summary["bytes"], length);
            assert_eq!(summary["verified"], true);
            assert_eq!(fs::read(&input).unwrap(), fs::read(&output).unwrap(), "{length} {more:?}");
        }
    }
    assert_eq!(folder.names(), ["in", "out"]);
}

#[test]
fn each_way_of_waiting_copies() {
    let folder = Folder::new("waits");
    let (input, output) = (folder.input(1 << 20), folder.path("out"));
    for mode in ["poll", "interrupt", "adaptive"] {
        assert!(
            copy(&input, &output, &["--wait", mode, "--chunk", "64KiB", "--verify"]).status.success(),
            "{mode}"
        );
    }
}

#[test]
fn wrong_files_are_refused_with_their_names() {
    let folder = Folder::new("files");
    let (input, output) = (folder.input(5000), folder.path("out"));
    let error = error_of(&copy(&folder.path("missing"), &output, &[]));
    assert!(error.contains("missing") && error.contains("No such file"), "{error}");
    let error = error_of(&copy(&input, &folder.path("no/folder"), &[]));
    assert!(error.contains("cannot write"), "{error}");
    let error = error_of(&copy(&input, &input, &[]));
    assert!(error.contains("are the same file"), "{error}");
    fs::hard_link(&input, folder.path("link")).unwrap();
    let error = error_of(&copy(&input, &folder.path("link"), &[]));
    assert!(error.contains("are the same file"), "{error}");
    let error = error_of(&copy(&input, &folder.0, &[]));
    assert!(error.contains("is a folder"), "{error}");
    let error = error_of(&copy(&input, Path::new("/dev/full"), &[]));
    assert!(error.contains("No space left") && error.contains("incomplete"), "{error}");
    assert_eq!(fs::metadata(&input).unwrap().len(), 5000);
    assert_eq!(folder.names(), ["in", "link"]);
}

#[test]
fn an_existing_output_stays_until_the_new_one_is_whole() {
    let folder = Folder::new("existing");
    let (input, output) = (folder.input(100_000), folder.path("out"));
    fs::write(&output, b"old").unwrap();
    error_of(&copy(&input, &output, &["--fault", "vanish@1"]));
    assert_eq!(fs::read(&output).unwrap(), b"old");
    assert!(copy(&input, &output, &[]).status.success());
    assert_eq!(fs::read(&input).unwrap(), fs::read(&output).unwrap());
    assert_eq!(folder.names(), ["in", "out"]);
}

#[test]
fn wrong_devices_are_refused_with_the_choice() {
    let folder = Folder::new("devices");
    let (input, output) = (folder.input(10), folder.path("out"));
    let error = error_of(&copy(&input, &output, &["--device", "stub:edu"]));
    assert!(error.contains("use stub:ioat"), "{error}");
    let error = error_of(&copy(&input, &output, &["--device", "fffe:fe:1e.7"]));
    assert!(error.contains("vdk list"), "{error}");
    for (more, text) in [
        (["--device", "stub:mlx5"], "stub:edu, stub:ioat, stub:nvme"),
        (["--device", "nonsense"], "write stub:NAME, vfio-user:PATH or a PCI address"),
        (["--fault", "foo"], "the faults are drop-completion@3, delay-completion@3:5ms"),
        (["--chunk", "0"], "at least 1 byte"),
        (["--deadline", "-1"], "invalid value '-1' for '--deadline <MS>'"),
    ] {
        let usage = copy(&input, &output, &more);
        let error = String::from_utf8_lossy(&usage.stderr).into_owned();
        assert!(usage.status.code() == Some(2) && error.contains(text), "{error}");
    }
    assert_eq!(folder.names(), ["in"]);
}

#[test]
fn a_device_that_errs_is_reset_and_nothing_is_lost() {
    let folder = Folder::new("errs");
    let (input, output) = (folder.input(1 << 20), folder.path("out"));
    let plans = ["halt@70:0x4", "corrupt-completion@3", "duplicate-completion@2", "drop-completion@2"];
    for plan in plans {
        let more =
            ["--fault", plan, "--chunk", "64KiB", "--segments", "16", "--deadline", "2000", "--verify"];
        let done = copy(&input, &output, &more);
        assert!(done.status.success(), "{plan}: {done:?}");
        assert_eq!(fs::read(&input).unwrap(), fs::read(&output).unwrap(), "{plan}");
    }
}

#[test]
fn the_help_lists_every_fault_and_its_example_shows_one() {
    for command in ["copy", "serve"] {
        let help = Command::new(env!("CARGO_BIN_EXE_vdk")).args([command, "--help"]).output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        for fault in vdk_firmware_stubs::fault::FAULTS {
            assert!(help.contains(fault.example), "{command}: {help}");
        }
        assert!(command == "serve" || help.contains("--fault halt@3:0x4"), "{help}");
    }
    let folder = Folder::new("example");
    let (input, output) = (folder.input(5000), folder.path("out"));
    let done = copy(&input, &output, &["--fault", "halt@3:0x4", "--json"]);
    let summary: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(summary["recoveries"], 1);
    assert_eq!(fs::read(&input).unwrap(), fs::read(&output).unwrap());
}

#[test]
fn a_device_that_goes_away_leaves_no_output() {
    let folder = Folder::new("gone");
    let (input, output) = (folder.input(1 << 20), folder.path("out"));
    for plan in ["vanish@100", "all-ones@100", "stop@100"] {
        let error =
            error_of(&copy(&input, &output, &["--fault", plan, "--chunk", "64KiB", "--deadline", "300"]));
        // A removal shows in its event or in what fails, whichever is seen first.
        let removed = plan.starts_with("vanish") && error.contains("error: the device was removed");
        assert!(removed || error.contains("error: the device cannot be brought back"), "{plan}: {error}");
        assert_eq!(folder.names(), ["in"], "{plan}");
    }
}

#[test]
fn an_input_that_shrinks_is_noticed() {
    let folder = Folder::new("shrinks");
    let (input, output) = (folder.input(64 << 20), folder.path("out"));
    let child = Command::new(env!("CARGO_BIN_EXE_vdk"))
        .args([
            "copy",
            input.to_str().unwrap(),
            output.to_str().unwrap(),
            "--chunk",
            "4096",
            "--segments",
            "64",
        ])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_partial(&folder);
    fs::File::options().write(true).open(&input).unwrap().set_len(1 << 20).unwrap();
    let error = error_of(&child.wait_with_output().unwrap());
    assert!(error.contains("became shorter") || error.contains("changed while it was read"), "{error}");
    assert_eq!(folder.names(), ["in"]);
}

#[test]
fn an_interrupted_copy_leaves_no_output_and_says_130() {
    let folder = Folder::new("interrupted");
    let (input, output) = (folder.input(64 << 20), folder.path("out"));
    let child = Command::new(env!("CARGO_BIN_EXE_vdk"))
        .args([
            "copy",
            input.to_str().unwrap(),
            output.to_str().unwrap(),
            "--chunk",
            "4096",
            "--segments",
            "64",
        ])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_partial(&folder);
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    let text = String::from_utf8(ended.stderr).unwrap();
    assert!(text.contains("interrupted: the device was stopped"), "{text}");
    assert_eq!(folder.names(), ["in"]);
}

/// Waits until the copy has begun to write.
fn wait_for_partial(folder: &Folder) {
    let begin = Instant::now();
    while !folder.names().iter().any(|name| name.contains(".vdk-partial-")) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the copy did not begin");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn owner_mode_and_links_of_an_existing_output_stay() {
    let folder = Folder::new("owner");
    let (input, output) = (folder.input(5000), folder.path("out"));
    fs::write(&output, b"old").unwrap();
    // Only root can give files away.
    let root = fs::metadata(&output).unwrap().uid() == 0;
    if root {
        chown(&output, Some(12345), Some(23456)).unwrap();
    }
    fs::set_permissions(&output, Permissions::from_mode(0o640)).unwrap();
    let before = fs::metadata(&output).unwrap();
    symlink("out", folder.path("link")).unwrap();
    assert!(copy(&input, &folder.path("link"), &[]).status.success());
    let after = fs::metadata(&output).unwrap();
    assert_eq!((after.uid(), after.gid(), after.mode()), (before.uid(), before.gid(), before.mode()));
    assert_eq!(fs::read(&output).unwrap(), fs::read(&input).unwrap());

    fs::create_dir(folder.path("sub")).unwrap();
    symlink("sub/first", folder.path("dangling")).unwrap();
    symlink("new", folder.path("sub/first")).unwrap();
    assert!(copy(&input, &folder.path("dangling"), &["--verify"]).status.success());
    assert!(fs::symlink_metadata(folder.path("dangling")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(folder.path("sub/first")).unwrap().is_symlink());
    assert_eq!(fs::read(folder.path("sub/new")).unwrap(), fs::read(&input).unwrap());
}

#[test]
fn an_output_beside_which_nothing_can_be_made_is_written_in_place() {
    let folder = Folder::new("in-place");
    let (input, output, program) = (folder.input(5000), folder.path("out"), folder.path("vdk"));
    fs::write(&output, [1; 6000]).unwrap();
    fs::set_permissions(&output, Permissions::from_mode(0o666)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_vdk"), &program).unwrap();
    fs::set_permissions(&folder.0, Permissions::from_mode(0o555)).unwrap();
    let before = fs::metadata(&output).unwrap();
    let mut command = Command::new(&program);
    command.arg("copy").args([&input, &output]).arg("--verify");
    if before.uid() == 0 {
        command.uid(12345).gid(12345);
    }
    let done = command.output().unwrap();
    fs::set_permissions(&folder.0, Permissions::from_mode(0o755)).unwrap();
    assert!(done.status.success(), "{done:?}");
    let after = fs::metadata(&output).unwrap();
    assert_eq!((after.ino(), after.uid(), after.mode()), (before.ino(), before.uid(), before.mode()));
    assert_eq!(fs::read(&output).unwrap(), fs::read(&input).unwrap());
    assert_eq!(folder.names(), ["in", "out", "vdk"]);
}

#[test]
fn bytes_on_the_standard_output_are_alone_there() {
    let folder = Folder::new("standard");
    let input = folder.input(200_000);
    for name in ["-", "/dev/stdout"] {
        let done = copy(&input, Path::new(name), &[]);
        assert!(done.status.success(), "{name}: {done:?}");
        assert!(done.stdout == fs::read(&input).unwrap(), "{name}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("CRC-32"), "{name}");
        let error = error_of(&copy(&input, Path::new(name), &["--json"]));
        assert!(error.contains("both go to the standard output"), "{error}");
    }
    let mut child = Command::new(env!("CARGO_BIN_EXE_vdk"))
        .args(["copy", input.to_str().unwrap(), "-"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut [0]).unwrap();
    // The rest has no place in the pipe.
    let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(folder.names(), ["in"]);
}
