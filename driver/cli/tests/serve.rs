//! `vdk serve` and a device behind its socket, as two processes.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A server, ended when it is dropped.
struct Server {
    child: Child,
    path: PathBuf,
}

impl Server {
    fn start(stub: &str, extra: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        // ORDERING: Relaxed; only the number matters.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("vdk-cli-{stub}-{}-{number}.sock", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut child = Command::new(env!("CARGO_BIN_EXE_vdk"))
            .args(["serve", stub, "--json", "--socket"])
            .arg(&path)
            .args(extra)
            .stdout(Stdio::piped())
            .spawn()
            .expect("vdk runs");
        // It says when clients can connect.
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains('{'), "{line}");
        Self { child, path }
    }

    fn device(&self) -> String {
        format!("vfio-user:{}", self.path.display())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.path);
    }
}

fn vdk(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vdk")).args(arguments).output().expect("vdk runs")
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn a_file_is_copied_by_a_device_in_another_process() {
    let server = Server::start("ioat", &[]);
    let folder = std::env::temp_dir().join(format!("vdk-cli-served-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (input, output) = (folder.join("in"), folder.join("out"));
    let bytes: Vec<u8> = (0..=250).cycle().take(9_000_001).collect();
    std::fs::write(&input, &bytes).unwrap();
    for wait in ["poll", "interrupt", "adaptive"] {
        let run = vdk(&[
            "copy",
            text(&input),
            text(&output),
            "--device",
            &server.device(),
            "--verify",
            "--wait",
            wait,
            "--json",
        ]);
        assert!(run.status.success(), "{wait}: {run:?}");
        assert!(std::fs::read(&output).unwrap() == bytes, "{wait}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_served_device_is_described_like_any_other() {
    let server = Server::start("edu", &["--trapped"]);
    let run = vdk(&["info", &server.device(), "--json"]);
    assert!(run.status.success(), "{run:?}");
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["ids"], "1234:11e8");
    assert_eq!(report["bars"][0]["size"], 1 << 20);
}

#[test]
fn what_is_wrong_with_a_socket_is_said_with_the_way_to_mend_it() {
    let run = vdk(&["info", "vfio-user:/nowhere/at-all.sock"]);
    let error = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(1));
    assert!(error.contains("there is no such socket") && error.contains("vdk serve"), "{error}");
    let server = Server::start("nvme", &[]);
    let again = vdk(&["serve", "edu", "--socket", text(&server.path)]);
    let error = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(error.contains("in use by another program"), "{error}");
    let missing = vdk(&["serve", "toaster", "--socket", "/tmp/x.sock"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("toaster"));
}

#[test]
fn an_input_without_room_is_refused_before_a_block_is_written() {
    let folder = std::env::temp_dir().join(format!("vdk-cli-room-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (disk, input) = (folder.join("disk"), folder.join("in"));
    std::fs::write(&disk, vec![0; 1 << 20]).unwrap();
    std::fs::write(&input, vec![7; (1 << 20) - 511]).unwrap();
    let server = Server::start("nvme", &["--disk", text(&disk)]);
    let device = server.device();
    let write = |lba: &str| vdk(&["nvme", "write", &device, "--lba", lba, "-i", text(&input), "--yes"]);
    for (lba, reason) in [("1", "nothing was written"), ("2048", "LBA 2048 is not inside namespace 1")] {
        let run = write(lba);
        let error = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(run.status.code() == Some(1) && error.contains(reason), "{error}");
        assert!(std::fs::read(&disk).unwrap() == vec![0; 1 << 20], "blocks were written");
    }
    // The last block is filled up with zeros.
    assert!(write("0").status.success());
    let mut expected = vec![7; (1 << 20) - 511];
    expected.resize(1 << 20, 0);
    assert!(std::fs::read(&disk).unwrap() == expected, "it was not written");
    drop(server);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_doctor_tells_a_free_device_from_a_busy_and_a_silent_one() {
    let server = Server::start("nvme", &[]);
    let doctor = |device: &str| {
        let run = vdk(&["doctor", device, "--json"]);
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        let said = String::from_utf8(run.stderr).unwrap();
        (run.status.code(), report["findings"][0]["text"].as_str().unwrap().to_owned(), said)
    };
    let (code, text, said) = doctor(&server.device());
    assert!(code == Some(0) && text.contains("1234:4e56") && text.ends_with("it is free"), "{text}");
    assert_eq!(said, "");
    let mut client = Command::new(env!("CARGO_BIN_EXE_vdk"))
        .args(["nvme", "write", &server.device(), "--yes"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // More than a pipe holds: once it is gone the client has the device.
    let mut input = client.stdin.take().unwrap();
    input.write_all(&[7; (64 << 10) + 1]).unwrap();
    let (code, text, said) = doctor(&server.device());
    assert!(code == Some(0) && text.ends_with("another client has its device"), "{text}");
    assert_eq!(said, "");
    let info = vdk(&["info", &server.device()]);
    let said = String::from_utf8(info.stderr).unwrap();
    assert!(said.contains("another client") && !said.contains("is lost"), "{said}");
    client.kill().unwrap();
    client.wait().unwrap();
    let path = std::env::temp_dir().join(format!("vdk-cli-silent-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (code, text, said) = doctor(&format!("vfio-user:{}", path.display()));
    assert!(code == Some(1) && text.contains("did not answer"), "{text}");
    assert_eq!(said, "");
    drop(silent);
    std::fs::remove_file(&path).unwrap();
}
