//! What only an open device tells: what kernel and device offer beyond the ordinary, and what is
//! behind a socket.

use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use vdk_driver::hal::address::Bdf;
use vdk_driver::hal::config::{self, ConfigError};
use vdk_driver::hal::function::{OpenError, PciFunction, PciIdentity};
use vdk_driver::hal::machine::{Finding, Level};
use vdk_driver::hal::vfio::{ChosenInterface, DeviceFeature, VfioNode, VfioOptions};
use vdk_driver::hal::vfio_user::{VfioUserNode, VfioUserOptions};

use crate::names;

/// What was asked for and found out.
type Answer = Result<(ChosenInterface, Result<Vec<DeviceFeature>, ConfigError>), OpenError>;

/// The finding about a function that can be opened. One that somebody has open is left alone:
/// the kernel refuses a second owner before anything is done to the device.
pub(super) fn features(address: Bdf) -> Finding {
    asked(LIMIT, move || {
        let function = VfioNode::new(address, VfioOptions::default()).open_function()?;
        Ok((function.interface().clone(), function.features()))
    })
}

/// Asks on a thread of its own, since the kernel may wait long for a device that is broken.
fn asked(limit: Duration, ask: impl FnOnce() -> Answer + Send + 'static) -> Finding {
    let (sender, receiver) = mpsc::channel();
    let asking = thread::Builder::new().name("vdk doctor".to_owned());
    // When nobody waits any more the answer is of no use.
    let started = asking.spawn(move || drop(sender.send(ask())));
    let answer = match started {
        Ok(_) => receiver.recv_timeout(limit),
        Err(error) => return warning(format!("they were not asked for: {error}")),
    };
    match answer {
        Ok(Ok((interface, Ok(features)))) => told(&interface, &features),
        Ok(Ok((_, Err(error)))) => warning(format!("the device did not answer: {error}")),
        Ok(Err(OpenError::Busy { holder, .. })) => {
            finding(Level::Ok, format!("not asked for, since the device is in use by {holder}"))
        }
        Ok(Err(error)) => warning(format!("not asked for, since it does not open: {error}")),
        Err(RecvTimeoutError::Timeout) => {
            warning(format!("the kernel did not open the device within {} s; see `dmesg`", limit.as_secs()))
        }
        Err(RecvTimeoutError::Disconnected) => warning("asking for them failed".to_owned()),
    }
}

/// The finding about a socket at which somebody listens: it is opened for a moment.
pub(super) fn server(path: &Path, subject: &str) -> Finding {
    let node = VfioUserNode::with_options(path, VfioUserOptions { timeout: ANSWER });
    let (sender, receiver) = mpsc::channel();
    let ask = move || -> Result<_, OpenError> {
        let function = node.open_function()?;
        Ok(config::identity(function.config()))
    };
    let started = thread::Builder::new().name("vdk doctor".to_owned()).spawn(move || {
        // When nobody waits any more the answer is of no use.
        drop(sender.send(ask()));
    });
    let answer = match started {
        Ok(_) => receiver.recv_timeout(LIMIT).ok(),
        Err(error) => Some(Err(OpenError::Refused {
            function: String::new(),
            reason: format!("it was not asked: {error}"),
            fix: "end threads".to_owned(),
        })),
    };
    heard(answer, subject)
}

fn heard(answer: Option<Result<Result<PciIdentity, ConfigError>, OpenError>>, subject: &str) -> Finding {
    const LOOK: &str = "look at the log of the server, and end it and start it again";
    let (level, text, fix) = match answer {
        Some(Ok(Ok(identity))) => {
            let name = names::function(&identity);
            return Finding {
                level: Level::Ok,
                subject: subject.to_owned(),
                text: format!("a vfio-user server offers {name} ({identity}) there, and it is free"),
                fix: None,
            };
        }
        Some(Ok(Err(error))) => (Level::Problem, format!("the device does not answer: {error}"), LOOK),
        Some(Err(OpenError::Busy { .. })) => (
            Level::Warning,
            "a vfio-user server is there, and another client has its device".to_owned(),
            "wait for the end of that client, or end it",
        ),
        Some(Err(OpenError::Refused { reason, .. })) => {
            (Level::Problem, format!("who listens there does not speak vfio-user: {reason}"), LOOK)
        }
        Some(Err(error)) => (Level::Problem, error.to_string(), LOOK),
        None => {
            let text = format!("who listens there does not answer within {} s", LIMIT.as_secs());
            (Level::Problem, text, LOOK)
        }
    };
    Finding { level, subject: subject.to_owned(), text, fix: Some(fix.to_owned()) }
}

fn told(interface: &ChosenInterface, features: &[DeviceFeature]) -> Finding {
    let names = |offered: bool| {
        let names: Vec<&str> =
            features.iter().filter(|one| one.offered == offered).map(|one| one.name).collect();
        if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
    };
    let (there, absent) = (names(true), names(false));
    finding(Level::Ok, format!("{there}; not offered: {absent} (asked through {})", interface.interface))
}

fn warning(text: String) -> Finding {
    finding(Level::Warning, text)
}

fn finding(level: Level, text: String) -> Finding {
    Finding { level, subject: "kernel features".to_owned(), text, fix: None }
}

/// How long a server may take for one answer.
const ANSWER: Duration = Duration::from_secs(2);
/// How long the kernel may take to open the device, reset included.
const LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use vdk_driver::hal::vfio::KernelInterface;

    use super::*;

    fn chosen() -> ChosenInterface {
        ChosenInterface { interface: KernelInterface::Type1, reason: "it was asked for".to_owned() }
    }

    #[test]
    fn what_is_offered_and_what_is_not_are_told_apart() {
        let features = |offered: [bool; 2]| {
            let names = ["low power", "migration"].into_iter().zip(offered);
            names.map(|(name, offered)| DeviceFeature { name, offered }).collect::<Vec<_>>()
        };
        let text = |offered| asked(LIMIT, move || Ok((chosen(), Ok(features(offered))))).text;
        assert_eq!(text([true, false]), "low power; not offered: migration (asked through type1)");
        assert_eq!(text([true, true]), "low power, migration; not offered: nothing (asked through type1)");
    }

    #[test]
    fn a_device_in_use_is_no_warning_and_one_that_does_not_open_is() {
        let function = "0000:01:00.0".to_owned();
        let busy = OpenError::Busy { function: function.clone(), holder: "qemu (process 7)".to_owned() };
        let found = asked(LIMIT, move || Err(busy));
        assert_eq!(found.level, Level::Ok);
        assert!(found.text.contains("in use by qemu (process 7)"), "{}", found.text);
        let gone = asked(LIMIT, move || Err(OpenError::Gone { function }));
        assert_eq!(gone.level, Level::Warning);
        let silent = asked(LIMIT, || Ok((chosen(), Err(ConfigError::DeviceGone))));
        assert!(silent.text.contains("did not answer"), "{}", silent.text);
    }

    #[test]
    fn a_kernel_that_does_not_answer_is_not_waited_for() {
        let (_keep, never) = mpsc::channel::<()>();
        let found = asked(Duration::ZERO, move || {
            let _ = never.recv();
            Err(OpenError::Gone { function: String::new() })
        });
        assert!(found.text.contains("did not open the device within 0 s"), "{}", found.text);
    }
}
