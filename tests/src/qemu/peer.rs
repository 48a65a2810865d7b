//! A process of the host at the other end of the guest's wire.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::machine::{Ended, until};

/// The TCP ports and the wire between a guest and programs of the host.
///
/// In the arguments of QEMU and of the programs `{wire}` is the unix socket of the wire, at
/// which QEMU listens; `{guest}` the port of the host that leads to port 18515 of the guest;
/// `{host}` the port of the host that a program may take; `{tcp}` the TCP port of a second wire;
/// `{udp}` and `{udp-peer}` the UDP ports of a third, at QEMU and at the program.
#[derive(Clone, Debug)]
pub(super) struct Link {
    wire: PathBuf,
    guest: u16,
    host: u16,
    tcp: u16,
    udp: (u16, u16),
}

impl Link {
    /// Ports that nobody has now.
    ///
    /// # Errors
    ///
    /// There are none.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (guest, host, tcp) = (free()?, free()?, free()?);
        let free = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
        let udp = (free()?, free()?);
        Ok(Self {
            wire: folder.join("wire.sock"),
            guest: guest.local_addr()?.port(),
            host: host.local_addr()?.port(),
            tcp: tcp.local_addr()?.port(),
            udp: (udp.0.local_addr()?.port(), udp.1.local_addr()?.port()),
        })
    }

    /// An argument with the places of the link in it.
    pub(super) fn fill(&self, argument: &str) -> String {
        argument
            .replace("{wire}", &self.wire.to_string_lossy())
            .replace("{guest}", &self.guest.to_string())
            .replace("{host}", &self.host.to_string())
            .replace("{tcp}", &self.tcp.to_string())
            .replace("{udp}", &self.udp.0.to_string())
            .replace("{udp-peer}", &self.udp.1.to_string())
    }
}

/// The programs of the host, one at a time.
pub(super) struct Peers<'a> {
    binaries: &'a Path,
    folder: &'a Path,
    link: Link,
    running: Option<Ended>,
}

/// How long a program may take to listen.
const LISTENS: Duration = Duration::from_secs(20);

impl<'a> Peers<'a> {
    /// No program runs yet.
    pub(super) const fn new(binaries: &'a Path, folder: &'a Path, link: Link) -> Self {
        Self { binaries, folder, link, running: None }
    }

    /// Starts a program of ours: its name and arguments, with blanks between. It replaces the
    /// one that ran before. Its output goes to a file of the run.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub(super) fn start(&mut self, line: &str) -> Result<()> {
        self.running = None;
        let mut words = line.split_whitespace();
        let name = words.next().context("no program is named")?;
        ensure!(!name.contains('/'), "{name} is no program of ours");
        let (output, errors) = (File::create(self.output())?, File::create(self.errors())?);
        let child = Command::new(self.binaries.join(name))
            .args(words.map(|word| self.link.fill(&super::machine::in_folder(word, self.folder))))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        self.running = Some(Ended(child));
        Ok(())
    }

    /// Waits until the program listens at its TCP port; gives the port.
    ///
    /// # Errors
    ///
    /// It ends before, or does not listen in time.
    pub(super) fn listening(&mut self) -> Result<u16> {
        let port = self.link.host;
        until(LISTENS, || self.has_ended() || listens(port))?;
        if self.has_ended() {
            bail!(
                "the program has ended: {}",
                self.wait(Duration::ZERO)
                    .map_or_else(|error| format!("{error:#}"), |_| "without an error".to_owned())
            );
        }
        Ok(port)
    }

    /// Waits for the end of the program; gives its output, on one line.
    ///
    /// # Errors
    ///
    /// It fails, or does not end in time; then it is ended.
    pub(super) fn wait(&mut self, limit: Duration) -> Result<String> {
        let mut running = self.running.take().context("no program runs")?;
        let deadline = Instant::now() + limit;
        let mut status = running.0.try_wait()?;
        while status.is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            status = running.0.try_wait()?;
        }
        let said = one_line(&self.errors());
        match status {
            Some(status) if status.success() => Ok(one_line(&self.output())),
            Some(status) => bail!("{status}: {said}"),
            None => bail!("it did not end within {limit:?}: {said}"),
        }
    }

    /// The checksum of a part of the file `peer.memory`.
    ///
    /// # Errors
    ///
    /// The file is shorter.
    pub(super) fn memory(&self, offset: usize, length: usize) -> Result<String> {
        let file = self.folder.join("peer.part");
        fs::write(&file, self.part(offset, length)?)?;
        let output = Command::new("sha256sum").arg(&file).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split_whitespace().next().context("sha256sum printed nothing")?.to_owned())
    }

    /// The sum of the 64-bit words of a part of the file `peer.memory`.
    ///
    /// # Errors
    ///
    /// The file is shorter.
    pub(super) fn sum(&self, offset: usize, length: usize) -> Result<String> {
        let part = self.part(offset, length)?;
        let words = part.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
        Ok(words.fold(0, u64::wrapping_add).to_string())
    }

    fn part(&self, offset: usize, length: usize) -> Result<Vec<u8>> {
        let bytes = fs::read(self.folder.join("peer.memory"))?;
        let part = bytes.get(offset..).and_then(|bytes| bytes.get(..length));
        Ok(part.context("the memory is shorter")?.to_vec())
    }

    fn has_ended(&mut self) -> bool {
        self.running.as_mut().is_none_or(|running| running.0.try_wait().is_ok_and(|ended| ended.is_some()))
    }

    fn output(&self) -> PathBuf {
        self.folder.join("peer.out")
    }

    fn errors(&self) -> PathBuf {
        self.folder.join("peer.log")
    }
}

/// What a file has, its lines joined.
fn one_line(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a TCP port of this machine is listened at, by IPv4 or by IPv6, as `/proc/net` has it.
fn listens(port: u16) -> bool {
    /// TCP_LISTEN.
    const LISTEN: &str = "0A";
    let table = |name| fs::read_to_string(name).unwrap_or_default();
    let tables = [table("/proc/net/tcp"), table("/proc/net/tcp6")];
    tables.iter().flat_map(|table| table.lines().skip(1)).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|local| local.split_once(':'));
        let is_port = local.is_some_and(|(_, number)| u16::from_str_radix(number, 16) == Ok(port));
        is_port && fields.nth(1) == Some(LISTEN)
    })
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn a_port_that_is_listened_at_is_seen() {
        let wide = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
        assert!(listens(wide.local_addr().unwrap().port()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listens(port));
        drop(listener);
        // A process that another test starts has it too, for the moment between fork and exec.
        until(Duration::from_secs(20), || !listens(port)).unwrap();
    }

    #[test]
    fn a_program_ends_with_its_output_or_its_error() {
        let folder = std::env::temp_dir().join(format!("vdk-peer-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let link = Link::new(&folder).unwrap();
        let port = link.fill("{host}");
        let mut peers = Peers::new(Path::new("/bin"), &folder, link);
        let second = Duration::from_secs(10);
        peers.start("echo {host} two").unwrap();
        assert_eq!(peers.wait(second).unwrap(), format!("{port} two"));
        peers.start("ls {folder}/none").unwrap();
        assert!(peers.wait(second).unwrap_err().to_string().contains("none"));
        peers.start("sleep 60").unwrap();
        assert!(peers.wait(Duration::from_millis(10)).unwrap_err().to_string().contains("did not end"));
        peers.start("true").unwrap();
        assert!(peers.listening().is_err());
        assert!(peers.start("/bin/true").is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
