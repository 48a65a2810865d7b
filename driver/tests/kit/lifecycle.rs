//! From start to end: pairs, deadlines, panics, device events, and the order of each end.

use std::time::{Duration, Instant};

use vdk_driver::hal::event::DeviceEvent;
use vdk_driver::hal::interrupt::InterruptKind::{Intx, Msix};
use vdk_driver::kit::{Allowances, DriverState, Failure, RunError, StopReason, WithError};

use crate::probe::{Bench, Fault, PATIENT, SHORT};
use crate::queue::LONG;

/// What a stop does, in order: the device is off the bus before its memory goes.
const GRACEFUL_END: [&str; 7] = [
    "disable MSI-X",
    "bus master off",
    "dropped",
    "bus master off",
    "unmap 4 KiB",
    "bus master off",
    "command 0x0000",
];

#[test]
fn start_and_stop_come_in_pairs_and_the_end_is_in_order() {
    let bench = Bench::new("fake:pair", Msix, Fault::None, PATIENT);
    let running = bench.start();
    assert!(matches!(running.state(), DriverState::Running));
    assert_eq!(running.with(|probe| probe.interrupts).unwrap(), 0);
    assert!(bench.node.bus_master());
    let begun = ["open", "start", "command 0x0002", "enable 1 MSI-X", "map 4 KiB", "bus master on"];
    assert_eq!(bench.node.log(), begun);

    assert!(matches!(running.stop(), DriverState::Stopped(StopReason::Terminated)));
    let log = bench.log_after("stop: terminated");
    assert_eq!(log[1..log.len() - 1], GRACEFUL_END);
    assert_eq!(log.last().unwrap(), "close");
    assert_eq!(bench.node.command(), 0);

    // Twice is once.
    running.terminate();
    assert!(matches!(running.stop(), DriverState::Stopped(StopReason::Terminated)));
    bench.node.events().raise(DeviceEvent::Removed);
    assert_eq!(bench.count("stop: terminated") + bench.count("stop: the device was removed"), 1);
    let gone = running.with(|_| ()).unwrap_err();
    assert_eq!(gone.to_string(), "probe on fake:pair is stopped: terminated");
}

#[test]
fn a_start_that_fails_leaves_nothing_behind() {
    let bench = Bench::new("fake:nostart", Msix, Fault::StartFails, PATIENT);
    let why = bench.registry.start::<crate::probe::Probe>(&bench.node.as_node()).unwrap_err();
    assert_eq!(
        why.to_string(),
        "fake:nostart at 0000:01:02.0 (1234:11e8)\n  probe: failed: start failed: the probe was told to fail"
    );
    assert!(!why.is_driven());
    let log = bench.node.log();
    assert_eq!(log.last().unwrap(), "close");
    assert_eq!(bench.count("unmap 4 KiB"), 1);
    assert_eq!(bench.count("interrupt"), 0, "one came, but there is nobody to tell");
    assert!(!log.iter().any(|line| line.starts_with("stop")), "no stop without a start");
    let hardware = bench.node.hardware();
    assert_eq!((hardware.command, hardware.opened, hardware.enabled.is_none()), (0, false, true));
}

#[test]
fn a_panic_in_start_closes_the_function_and_the_process_goes_on() {
    let bench = Bench::new("fake:panicstart", Msix, Fault::StartPanics, PATIENT);
    let why = bench.registry.offer(&bench.node.as_node());
    let text = why.to_string();
    assert!(
        text.ends_with("the driver panicked: the probe was told to panic in start; the function was closed"),
        "{text}"
    );
    assert_eq!((bench.node.command(), bench.node.hardware().opened), (0, false));
    // It can be offered again.
    assert!(!bench.registry.offer(&bench.node.as_node()).is_driven());
    assert_eq!(bench.count("open"), 2);
}

#[test]
fn a_handler_that_panics_fails_the_driver_and_nothing_else() {
    let bench = Bench::new("fake:panic", Msix, Fault::None, PATIENT);
    let running = bench.start();
    let outcome = running.with(|probe| {
        probe.note("about to panic");
        assert!(probe.interrupts > 0, "in a handler");
    });
    assert!(matches!(outcome, Err(WithError::Run(RunError::Panicked { .. }))), "{outcome:?}");
    let state = running.wait(LONG);
    assert!(
        matches!(&state, DriverState::Failed(Failure::Panicked { message }) if message == "in a handler"),
        "{state}"
    );
    // Closed first, with bus mastering off; then the driver goes, and its memory with it.
    assert_eq!(
        bench.log_after("about to panic")[1..],
        ["disable MSI-X", "bus master off", "command 0x0000", "close", "dropped", "unmap 4 KiB"]
    );
    assert_eq!(bench.count("stop: terminated"), 0);
    assert!(matches!(running.with(|_| ()), Err(WithError::Ended { .. })));
    assert!(bench.registry.offer(&bench.node.as_node()).is_driven(), "and it can be started again");
}

#[test]
fn a_panic_on_another_queue_of_the_driver_fails_it_too() {
    let bench = Bench::new("fake:otherqueue", Msix, Fault::None, PATIENT);
    let running = bench.start();
    let other = running.with(|probe| probe.context.new_queue("rx").unwrap()).unwrap();
    other.dispatch(|| panic!("on rx")).unwrap();
    let state = running.wait(LONG);
    assert!(
        matches!(&state, DriverState::Failed(Failure::Panicked { message }) if message == "on rx"),
        "{state}"
    );
    assert!(!bench.node.bus_master());

    let second = bench.start();
    let other = second.with(|probe| probe.context.new_queue("rx").unwrap()).unwrap();
    assert!(matches!(second.stop(), DriverState::Stopped(_)));
    assert!(other.is_cancelled(), "the queue ends with the driver");
}

#[test]
fn panics_in_stop_and_in_drop_still_close_the_function() {
    for (fault, message) in [
        (Fault::StopPanics, "the probe was told to panic in stop"),
        (Fault::DropPanics, "the probe was told to panic in drop"),
    ] {
        let bench = Bench::new("fake:panicend", Msix, fault, PATIENT);
        let running = bench.start();
        let state = running.stop();
        let text = state.to_string();
        assert!(
            matches!(&state, DriverState::Failed(Failure::Panicked { message: said }) if said.contains(message)),
            "{text}"
        );
        assert_eq!((bench.node.command(), bench.node.hardware().opened), (0, false));
        assert_eq!((bench.count("dropped"), bench.count("unmap 4 KiB")), (1, 1), "{fault:?}");
        let log = bench.node.log();
        let at = |what: &str| log.iter().position(|line| line == what).unwrap();
        assert!(at("bus master off") < at("unmap 4 KiB"), "{log:?}");
    }
}

#[test]
fn a_stop_past_its_deadline_has_the_function_closed_under_it() {
    for stop in SHORT {
        let mut bench = Bench::new("fake:latestop", Msix, Fault::StopHangs, Allowances { stop, ..PATIENT });
        let running = bench.start();
        running.terminate();
        let state = running.wait(LONG);
        let terminated = StopReason::Terminated;
        assert!(
            matches!(state, DriverState::Failed(Failure::StopOverrun { reason, allowed })
                if reason == terminated && allowed == stop),
            "{state}"
        );
        // Interrupts and bus mastering are off, the function is free.
        assert_eq!((bench.node.command(), bench.node.hardware().opened), (0, false));
        assert!(bench.node.hardware().enabled.is_none());
        assert!(matches!(running.with(|_| ()), Err(WithError::Ended { .. })));
        if bench.hung.try_recv().is_err() {
            continue;
        }
        // `stop` is in the gate, with the driver; both end when it opens.
        assert_eq!(bench.count("dropped"), 0);
        drop(bench.open_gate.take());
        bench.wait_for("unmap 4 KiB", 1);
        assert_eq!((bench.count("dropped"), bench.count("close")), (1, 1));
        assert!(matches!(running.state(), DriverState::Failed(Failure::StopOverrun { .. })), "final");
        return;
    }
    panic!("stop never began");
}

#[test]
fn a_handler_that_hangs_counts_against_the_deadline_of_stop() {
    let mut bench = Bench::new("fake:hang", Msix, Fault::None, Allowances { stop: SHORT[0], ..PATIENT });
    let running = bench.start();
    running.with(|probe| probe.context.dispatch(|probe| probe.hang()).unwrap()).unwrap();
    bench.hung.recv_timeout(LONG).unwrap();
    bench.node.events().raise(DeviceEvent::ReleaseRequested);
    let state = running.wait(LONG);
    assert_eq!(
        state.to_string(),
        "failed: stop (the system asked for the device) did not return within 20ms; the function was closed"
    );
    assert!(!bench.node.bus_master());
    drop(bench.open_gate.take());
    bench.wait_for("unmap 4 KiB", 1);
    assert_eq!(bench.count("stop: the system asked for the device"), 0, "too late for that");
}

#[test]
fn a_call_behind_a_handler_that_hangs_is_given_up() {
    let mut bench = Bench::new("fake:call", Msix, Fault::None, Allowances { call: SHORT[0], ..PATIENT });
    let running = bench.start();
    loop {
        match running.with(|probe| probe.context.dispatch(|probe| probe.hang()).unwrap()) {
            Ok(()) | Err(WithError::Run(RunError::TimedOut { begun: true, .. })) => break,
            // A machine that is busy may not have begun it in time.
            Err(WithError::Run(RunError::TimedOut { begun: false, .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
    bench.hung.recv_timeout(LONG).unwrap();
    let error = running.with(|_| ()).unwrap_err();
    assert!(matches!(&error, WithError::Run(RunError::TimedOut { begun: false, .. })), "{error}");
    drop(bench.open_gate.take());
    assert!(running.stop().is_final());
}

#[test]
fn a_start_past_its_deadline_has_the_function_closed_under_it() {
    for start in SHORT {
        let mut bench =
            Bench::new("fake:latestart", Msix, Fault::StartHangs, Allowances { start, ..PATIENT });
        let text = bench.registry.offer(&bench.node.as_node()).to_string();
        let expected = format!("start did not return within {start:?}; the function was closed");
        assert!(text.ends_with(&expected), "{text}");
        assert_eq!((bench.node.command(), bench.node.hardware().opened), (0, false));
        if bench.hung.try_recv().is_err() {
            continue;
        }
        drop(bench.open_gate.take());
        bench.wait_for("unmap 4 KiB", 1);
        assert_eq!(bench.count("dropped"), 1);
        assert!(bench.node.log().iter().all(|line| !line.starts_with("stop")));
        return;
    }
    panic!("start never began");
}

#[test]
fn an_event_reaches_a_driver_whose_queue_is_full() {
    let mut bench = Bench::new("fake:full", Msix, Fault::None, PATIENT);
    let running = bench.start();
    let context = running.with(|probe| probe.context.clone()).unwrap();
    context.dispatch(|probe| probe.hang()).unwrap();
    bench.hung.recv_timeout(LONG).unwrap();
    while context.dispatch(|_| ()).is_ok() {}
    bench.node.events().raise(DeviceEvent::Error);
    let begun = std::time::Instant::now();
    while bench.node.events().event().wait(Duration::ZERO).unwrap() {
        assert!(begun.elapsed() < LONG, "nobody takes the event");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(bench.open_gate.take());
    bench.wait_for("Error", 1);
    assert!(matches!(running.stop(), DriverState::Stopped(StopReason::Terminated)));
}

#[test]
fn removal_and_release_stop_the_driver_and_an_error_does_not() {
    for (event, note, reason) in [
        (DeviceEvent::Removed, "Removed", StopReason::Removed),
        (DeviceEvent::ReleaseRequested, "ReleaseRequested", StopReason::ReleaseRequested),
    ] {
        let bench = Bench::new("fake:events", Msix, Fault::None, PATIENT);
        let running = bench.start();
        bench.node.events().raise(DeviceEvent::Error);
        bench.wait_for("Error", 1);
        assert!(matches!(running.state(), DriverState::Running));
        bench.node.events().raise(event);
        let state = running.wait(LONG);
        assert!(matches!(state, DriverState::Stopped(why) if why == reason), "{state}");
        let log = bench.log_after("Error");
        assert_eq!(log[..3], ["Error".to_owned(), note.to_owned(), format!("stop: {reason}")]);
        assert_eq!(log[3..log.len() - 1], GRACEFUL_END);
    }
}

#[test]
fn interrupts_and_timers_reach_the_driver_on_its_queue() {
    let bench = Bench::new("fake:irq", Intx, Fault::None, PATIENT);
    let running = bench.start();
    for fired in 1..=3 {
        // A line that was not unmasked would not fire again.
        bench.node.fire(0);
        bench.wait_for("unmask INTx 0", fired);
    }
    assert_eq!(running.with(|probe| probe.interrupts).unwrap(), 3);
    let log = bench.log_after("interrupt");
    assert_eq!(log, ["interrupt", "unmask INTx 0"].repeat(3));

    running.with(|probe| probe.timer.wake_at(Instant::now(), Duration::ZERO)).unwrap().unwrap();
    bench.wait_for("timer", 1);
    let clone = running.clone();
    let outcome = running.with(move |_| clone.with(|_| ())).unwrap();
    assert!(matches!(outcome, Err(WithError::Run(RunError::InsideHandler { .. }))), "{outcome:?}");
}

#[test]
fn a_driver_may_end_itself_and_dropping_the_registry_ends_it() {
    let bench = Bench::new("fake:own", Msix, Fault::None, PATIENT);
    let running = bench.start();
    running.with(|probe| probe.context.terminate()).unwrap();
    assert!(matches!(running.wait(LONG), DriverState::Stopped(StopReason::Terminated)));

    let running = bench.start();
    let Bench { node, registry, .. } = bench;
    drop(registry);
    assert!(matches!(running.state(), DriverState::Stopped(StopReason::Shutdown)));
    assert!(!node.hardware().opened);
}

#[test]
fn a_driver_that_cancels_its_own_queue_is_closed() {
    let bench = Bench::new("fake:cancel", Msix, Fault::None, PATIENT);
    let running = bench.start();
    running.with(|probe| drop(probe.context.queue().cancel())).unwrap();
    let state = running.wait(LONG);
    assert!(matches!(state, DriverState::Failed(Failure::QueueCancelled)), "{state}");
    assert_eq!((bench.node.command(), bench.count("dropped")), (0, 1));
}
