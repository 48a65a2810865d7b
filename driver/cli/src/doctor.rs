//! `vdk doctor`: what is right and wrong with this machine or a device, and how to mend it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde::Serialize;
use thiserror::Error;
use vdk_driver::hal::address::Bdf;
use vdk_driver::hal::machine::{Finding, Level, Machine};
use vdk_driver::hal::sysfs::SysfsError;
use vdk_firmware_stubs::StubKind;

use crate::arguments::DoctorArguments;
use crate::device;
use crate::output;

mod probe;

/// A device that can be examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Patient {
    /// An emulated device.
    Stub(StubKind),
    /// A device behind a vfio-user socket.
    Socket(PathBuf),
    /// A PCI function of this machine.
    Pci(Bdf),
}

/// Problems were found, and have been told.
#[derive(Debug, Error)]
#[error("problems were found")]
pub(crate) struct ProblemsFound;

#[derive(Debug, Serialize)]
struct Report {
    device: Option<String>,
    findings: Vec<Row>,
    problems: usize,
    warnings: usize,
}

/// One finding.
#[derive(Debug, Serialize)]
struct Row {
    level: String,
    subject: String,
    text: String,
    fix: Option<String>,
}

/// Runs the command.
pub(crate) fn run(arguments: &DoctorArguments, json: bool) -> Result<()> {
    let machine = Machine::this();
    let (device, findings) = match &arguments.device {
        None => (None, machine.diagnose()),
        Some(patient) => (Some(patient.to_string()), examine(&machine, patient)?),
    };
    let of = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let (problems, warnings) = (of(Level::Problem), of(Level::Warning));
    let findings = findings.into_iter().map(Row::from).collect();
    let report = Report { device, findings, problems, warnings };
    if json { output::print_json(&report) } else { output::print(&render(&report)) }?;
    if problems > 0 { Err(ProblemsFound.into()) } else { Ok(()) }
}

/// Reads a DEV argument.
pub(crate) fn parse(text: &str) -> Result<Patient, String> {
    if let Some(name) = text.strip_prefix("stub:") {
        let known = || StubKind::ALL.iter().map(|kind| format!("stub:{kind}")).collect::<Vec<_>>().join(", ");
        let kind =
            name.parse().map_err(|_| format!("there is no emulated device: choose one of {}", known()))?;
        return Ok(Patient::Stub(kind));
    }
    match text.strip_prefix("vfio-user:") {
        Some("") => Err("name the socket, as in vfio-user:/run/x.sock".to_owned()),
        Some(path) => Ok(Patient::Socket(path.into())),
        None => {
            text.parse().map(Patient::Pci).map_err(|error| format!("{error}, or stub:NAME or vfio-user:PATH"))
        }
    }
}

fn examine(machine: &Machine, patient: &Patient) -> Result<Vec<Finding>> {
    match patient {
        Patient::Stub(kind) => {
            device::open(&*device::stub(*kind, Default::default())?)?;
            let text =
                "it is emulated in this process: it needs no IOMMU, no rights and no driver, and it opens";
            Ok(vec![finding(Level::Ok, "emulated device", text, None)])
        }
        Patient::Socket(path) => {
            let sockets = fs::read_to_string("/proc/net/unix").unwrap_or_default();
            Ok(vec![socket(path, &sockets, probe::server)])
        }
        Patient::Pci(address) => function(machine, *address),
    }
}

/// The findings of a function, after what is wrong with the whole machine.
fn function(machine: &Machine, address: Bdf) -> Result<Vec<Finding>> {
    let of_function = match machine.diagnose_function(address) {
        Ok(found) => found,
        Err(SysfsError::Read { error: io::ErrorKind::NotFound, .. }) => {
            let text = format!("there is no PCI function {address} on this machine");
            let fix = "vdk list shows what there is; echo 1 > /sys/bus/pci/rescan looks for new ones";
            return Ok(vec![finding(Level::Problem, "function", &text, Some(fix))]);
        }
        Err(error) => return Err(error.into()),
    };
    let usable = of_function.iter().all(|finding| finding.level != Level::Problem);
    let offered = usable.then(|| probe::features(address));
    let wrong = machine.diagnose().into_iter().filter(|finding| finding.level != Level::Ok);
    let of_machine =
        wrong.map(|finding| Finding { subject: format!("this machine: {}", finding.subject), ..finding });
    Ok(of_machine.chain(of_function).chain(offered).collect())
}

/// Whether a server listens at a socket, and what it says when it is asked.
fn socket(path: &Path, sockets: &str, ask: impl Fn(&Path, &str) -> Finding) -> Finding {
    let subject = format!("socket {}", path.display());
    let serve = format!("vdk serve ioat --socket {}", path.display());
    let problem = |text: &str| finding(Level::Problem, &subject, text, Some(&serve));
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            problem("it is not there: no server has made it")
        }
        Err(error) => problem(&format!("it cannot be looked at: {error}")),
        Ok(metadata) if !metadata.file_type().is_socket() => problem("this is a file of another kind"),
        Ok(_) if is_listening(path, sockets) => ask(path, &subject),
        Ok(_) => problem("nobody listens there in this network namespace: the server has ended"),
    }
}

/// Whether a line of `/proc/net/unix` is that of a listening socket with this path.
fn is_listening(path: &Path, sockets: &str) -> bool {
    // `__SO_ACCEPTCON` of Linux's `include/uapi/linux/net.h`.
    const LISTENING: &str = "00010000";
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    sockets.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let place = fields.get(7).map(Path::new);
        fields.get(3) == Some(&LISTENING) && place.is_some_and(|place| place == path || place == real)
    })
}

fn finding(level: Level, subject: &str, text: &str, fix: Option<&str>) -> Finding {
    let owned = |text: &str| text.to_owned();
    Finding { level, subject: owned(subject), text: owned(text), fix: fix.map(owned) }
}

impl std::fmt::Display for Patient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stub(kind) => write!(f, "stub:{kind}"),
            Self::Socket(path) => write!(f, "vfio-user:{}", path.display()),
            Self::Pci(address) => write!(f, "{address}"),
        }
    }
}

impl From<Finding> for Row {
    fn from(finding: Finding) -> Self {
        let Finding { level, subject, text, fix } = finding;
        Self { level: level.to_string(), subject, text, fix }
    }
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    for row in &report.findings {
        let _ = writeln!(text, "{:8} {}: {}", row.level, row.subject, row.text);
        if let Some(fix) = &row.fix {
            let _ = writeln!(text, "{:8}   {}: {fix}", "", if row.level == "ok" { "hint" } else { "fix" });
        }
    }
    let count =
        |number: usize, thing: &str| format!("{number} {thing}{}", if number == 1 { "" } else { "s" });
    let _ = match (report.problems, report.warnings) {
        (0, 0) => writeln!(text, "\nNothing is wrong."),
        (0, warnings) => writeln!(text, "\nNothing is wrong; {}.", count(warnings, "warning")),
        (problems, warnings) => {
            writeln!(text, "\n{}, {}.", count(problems, "problem"), count(warnings, "warning"))
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_patient_is_a_stub_a_socket_or_an_address() {
        for name in ["stub:ioat", "vfio-user:/run/x.sock", "0000:01:00.0"] {
            assert_eq!(parse(name).unwrap().to_string(), name);
        }
        for bad in ["", "stub:none", "vfio-user:", "ioat", "1:2:3:4"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_socket_is_fine_only_while_a_server_listens() {
        let path = std::env::temp_dir().join(format!("vdk-doctor-{}.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let asked = |_: &Path, subject: &str| finding(Level::Ok, subject, "it was asked", None);
        let look = || socket(&path, &fs::read_to_string("/proc/net/unix").unwrap(), asked);
        assert!(look().text.contains("not there") && look().fix.unwrap().starts_with("vdk serve"));
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!((look().level, look().text.as_str()), (Level::Ok, "it was asked"));
        drop(listener);
        assert!(look().text.contains("the server has ended"));
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(look().text.contains("another kind"));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn each_finding_is_a_line_and_its_fix_another() {
        let findings = [
            finding(Level::Ok, "IOMMU", "on", None),
            finding(Level::Problem, "driver", "nvme has it", Some("vdk bind 0000:01:00.0")),
        ];
        let findings = findings.map(Row::from).into();
        let text = render(&Report { device: None, findings, problems: 1, warnings: 0 });
        assert_eq!(
            text,
            "ok       IOMMU: on\nproblem  driver: nvme has it\n           fix: vdk bind 0000:01:00.0\n\n\
             1 problem, 0 warnings.\n"
        );
    }
}
