//! What the controller does wrong, and what the driver makes of it.

use core::time::Duration;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use vdk_descriptors::nvme::Status;
use vdk_driver::kit::Session;
use vdk_driver::nvme::{
    CommandError, CompletionMode, Controller, ControllerOptions, QueueError, QueueOptions, QueuePair,
    RecoverError, RejectReason, ResetError, WaitError,
};
use vdk_firmware_stubs::StubOptions;
use vdk_hal::function::PciNode;
use vdk_hal::reset::ResetKind;
use vdk_tests::tap::{Resets, Tap};

use crate::harness::*;

const SOON: Duration = Duration::from_millis(500);
/// How long an admin command is waited for that is never answered. All others have to be
/// answered within it, on a busy machine too.
const UNANSWERED: Duration = Duration::from_secs(3);

/// A stub that says soon that it does not start or stop any more.
fn soon_given_up() -> StubOptions {
    StubOptions { ready_timeout: UNANSWERED, ..Default::default() }
}

fn owners(ended: &[Ended]) -> Vec<u32> {
    let mut owners: Vec<u32> = ended.iter().map(|(owner, _)| *owner).collect();
    owners.sort_unstable();
    owners
}

#[test]
fn a_lost_completion_is_aborted_then_ended_by_a_reset() {
    let mut bed = Bed::new(SOON);
    bed.node.set_fault_plan(&plan("ch1.drop-completion@3"));
    for owner in 0..6 {
        bed.read(u64::from(owner), owner);
    }
    let (mut ended, failure) = bed.run();
    assert!(matches!(failure, Some(QueueError::Overdue { queue: 1, count: 1 })), "{failure:?}");
    assert_eq!(owners(&ended), [0, 1, 3, 4, 5]);
    assert!(ended.iter().all(|(_, result)| *result == Ok(0)), "{ended:?}");
    assert_eq!(bed.pair.statistics().aborts, 1);
    ended.extend(bed.recover());
    assert_eq!(ended.last(), Some(&(2, Err(CommandError::Reset))));
    assert_eq!(ended.len(), 6);
    bed.assert_usable(1);
    assert_eq!(bed.node.driver_faults(), []);
}

#[test]
fn a_completion_that_is_only_late_ends_its_command_with_success() {
    let mut bed = Bed::new(LONG);
    bed.node.set_fault_plan(&plan("ch1.delay-completion@2:30ms"));
    for owner in 0..4 {
        bed.read(u64::from(owner), owner);
    }
    let (ended, failure) = bed.run();
    assert_eq!((owners(&ended), failure), (vec![0, 1, 2, 3], None));
    bed.assert_usable(2);
}

#[test]
fn doubled_and_corrupt_completions_quarantine_the_queue_and_end_nobody_twice() {
    for (round, fault) in
        (0u8..).zip(["duplicate-completion", "corrupt-completion"].into_iter().cycle().take(24))
    {
        let mut bed = Bed::new(LONG);
        bed.node.set_fault_plan(&plan(&format!("ch1.{fault}@{}", 1 + round % 5)));
        for owner in 0..8 {
            bed.read(u64::from(owner), owner);
        }
        let (mut ended, mut failure) = bed.run();
        // What comes twice may come after the last command has ended.
        for owner in 8..12 {
            if failure.is_some() {
                break;
            }
            bed.read(0, owner);
            let (more, error) = bed.run();
            ended.extend(more);
            failure = error;
        }
        let failure = failure.unwrap_or_else(|| panic!("{fault} in round {round} was not found"));
        assert!(matches!(failure, QueueError::BadCompletion { queue: 1, .. }), "{failure}");
        let entry = part(&bed.memory, 0, 512);
        let rejected = bed.pair.read(&bed.namespace, 0, &[entry], 99).unwrap_err();
        assert_eq!((rejected.owner, rejected.reason), (99, RejectReason::Queue(failure)));
        let submitted = u32::try_from(bed.pair.statistics().commands).unwrap();
        ended.extend(bed.recover());
        assert_eq!(owners(&ended), (0..submitted).collect::<Vec<_>>(), "{fault} in round {round}");
        bed.node.set_fault_plan(&plan(""));
        bed.assert_usable(round);
    }
}

#[test]
fn statuses_reach_their_commands_and_no_others() {
    let mut bed = Bed::new(LONG);
    bed.node.set_fault_plan(&plan(&format!("ch1.fail@2:{:#x}", Status::UNRECOVERED_READ_ERROR.0)));
    for owner in 0..4 {
        bed.read(u64::from(owner), owner);
    }
    let (ended, failure) = bed.run();
    assert_eq!((owners(&ended), failure), (vec![0, 1, 2, 3], None));
    for (owner, result) in ended {
        match result {
            Err(CommandError::Status { status, .. }) => {
                assert_eq!((owner, status), (1, Status::UNRECOVERED_READ_ERROR));
            }
            result => assert_eq!(result, Ok(0), "command {owner}"),
        }
    }
    assert_eq!(bed.pair.failure(), None);
    bed.assert_usable(3);
}

#[test]
fn a_controller_that_does_nothing_any_more_is_found_and_given_up() {
    let node = stub(soon_given_up());
    // The abort is not answered either.
    let options = ControllerOptions { admin_limit: UNANSWERED, ..Default::default() };
    let controller = start_with(&node, options);
    let mut bed = Bed::started(node, controller, SOON);
    bed.node.set_fault_plan(&plan("ch1.stop@2"));
    for owner in 0..4 {
        bed.read(u64::from(owner), owner);
    }
    let (mut ended, failure) = bed.run();
    assert!(failure.is_some() && ended.len() <= 1, "{failure:?}");
    // Only the reset of the function helps, and the recovery tries that as well.
    ended.extend(bed.recover());
    assert_eq!(owners(&ended), [0, 1, 2, 3]);
    bed.assert_usable(4);
}

#[test]
fn a_controller_that_answers_all_ones_is_gone() {
    let mut bed = Bed::new(SOON);
    bed.node.set_fault_plan(&plan("ch1.all-ones@2"));
    for owner in 0..4 {
        bed.read(u64::from(owner), owner);
    }
    let (mut ended, failure) = bed.run();
    assert!(matches!(failure, Some(QueueError::Gone { queue: 1 })), "{failure:?}");
    let recovered = bed.pair.recover(|completion| ended.push(pair_of(completion)));
    assert!(matches!(recovered, Err(RecoverError::Reset(ResetError::Gone))), "{recovered:?}");
    assert_eq!(owners(&ended), [0, 1, 2, 3]);
    assert!(ended.iter().any(|(_, result)| *result == Err(CommandError::Gone)));
}

#[test]
fn a_removal_under_load_ends_every_command_once() {
    for vanishes in [1u32, 7, 50] {
        let mut bed = Bed::new(LONG);
        bed.node.set_fault_plan(&plan(&format!("ch1.vanish@{vanishes}")));
        let (mut submitted, mut ended) = (0u32, Vec::new());
        let failure = loop {
            while bed.pair.free() > 0 && bed.pair.failure().is_none() {
                bed.read(u64::from(submitted % 100), submitted);
                submitted += 1;
            }
            let (more, failure) = bed.run();
            ended.extend(more);
            if let Some(failure) = failure {
                break failure;
            }
        };
        assert!(matches!(failure, QueueError::Gone { .. }), "{failure}");
        assert_eq!(bed.controller.next_device_event(), Some(vdk_hal::event::DeviceEvent::Removed));
        let recovered = bed.pair.recover(|completion| ended.push(pair_of(completion)));
        assert!(matches!(recovered, Err(RecoverError::Reset(ResetError::Gone))), "{recovered:?}");
        assert_eq!(owners(&ended), (0..submitted).collect::<Vec<_>>());
    }
}

#[test]
fn a_lost_admin_completion_fails_the_command_and_a_reset_brings_the_queue_back() {
    let node = stub(Default::default());
    let options = ControllerOptions { admin_limit: UNANSWERED, ..Default::default() };
    let controller = start_with(&node, options);
    node.set_fault_plan(&plan("ch0.drop-completion@1"));
    let error = controller.identify().unwrap_err().to_string();
    assert!(error.contains("Identify") && error.contains("did not happen within"), "{error}");
    let error = controller.smart().unwrap_err().to_string();
    assert!(error.contains("out of service"), "{error}");
    controller.reset().unwrap();
    assert_eq!(controller.namespaces().unwrap(), [1]);
}

#[test]
fn random_faults_lose_no_command_and_end_none_twice() {
    for seed in 1..6u64 {
        let node = stub(vdk_firmware_stubs::StubOptions {
            seed,
            fault_plan: plan(
                "ch1.duplicate-completion@1%, ch1.corrupt-completion@1%, ch1.drop-completion@1%, ch1.fail@2%:0x281",
            ),
            ..Default::default()
        });
        let mut bed = Bed::on(node, SOON);
        let (mut submitted, mut seen) = (0u32, BTreeSet::new());
        while submitted < 400 {
            while bed.pair.free() > 0 && bed.pair.failure().is_none() {
                bed.read(u64::from(submitted % 100), submitted);
                submitted += 1;
            }
            let (mut ended, failure) = bed.run();
            if failure.is_some() {
                ended.extend(bed.recover());
            }
            for (owner, _) in ended {
                assert!(seen.insert(owner), "command {owner} ended twice with seed {seed}");
            }
        }
        if bed.pair.outstanding() > 0 {
            for (owner, _) in bed.recover() {
                assert!(seen.insert(owner), "command {owner} ended twice with seed {seed}");
            }
        }
        assert_eq!(seen.len(), submitted as usize, "with seed {seed}");
    }
}

#[test]
fn a_queue_pair_that_is_refused_leaves_the_others_alone() {
    let mut bed = Bed::new(LONG);
    // The first command creates the completion queue, the second the submission queue.
    for refused in ["ch0.fail@1:0x102", "ch0.fail@2:0x102"] {
        for owner in 0..4 {
            bed.read(u64::from(owner), owner);
        }
        bed.pair.commit().unwrap();
        bed.node.set_fault_plan(&plan(refused));
        let opened = bed.controller.queue_pair::<u32>(QueueOptions::default());
        let error = opened.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains("Invalid Queue Size"), "{refused}: {error}");
        bed.node.set_fault_plan(&plan(""));
        let (ended, failure) = bed.run();
        assert_eq!((owners(&ended), failure), (vec![0, 1, 2, 3], None), "{refused}");
        assert!(ended.iter().all(|(_, result)| *result == Ok(0)), "{refused}: {ended:?}");
        // The number is free, and nothing of it is left in the controller.
        let pair = bed.controller.queue_pair::<u32>(QueueOptions::default()).unwrap();
        assert_eq!((pair.number(), pair.close().unwrap().len()), (2, 0), "{refused}");
    }
    assert_eq!(bed.node.driver_faults(), []);
}

#[test]
fn a_deletion_of_what_the_controller_does_not_have_is_one() {
    let mut bed = Bed::new(LONG);
    let pair = bed.controller.queue_pair::<u32>(QueueOptions::default()).unwrap();
    bed.node.set_fault_plan(&plan(&format!("ch0.fail@2:{:#x}", Status::INVALID_QUEUE_ID.0)));
    assert_eq!(pair.close().unwrap().len(), 0);
    bed.node.set_fault_plan(&plan(""));
    bed.assert_usable(7);
}

#[test]
fn a_controller_off_the_bus_that_no_reset_can_help_gives_every_owner_back() {
    // A hot reset would hit its neighbours, so it is as good as none.
    given_back_without_a_reset(&[ResetKind::Hot], &[]);
}

#[test]
fn a_controller_off_the_bus_whose_reset_fails_gives_every_owner_back() {
    given_back_without_a_reset(&[ResetKind::Hot, ResetKind::PowerManagement], &[ResetKind::PowerManagement]);
}

fn given_back_without_a_reset(kinds: &[ResetKind], asked: &[ResetKind]) {
    let node = stub(soon_given_up());
    let tap = Tap::new(node.clone(), Resets::Fail(kinds.to_vec()));
    let opened: Arc<dyn PciNode> = tap.clone();
    let options = ControllerOptions { admin_limit: UNANSWERED, ..Default::default() };
    let controller = Controller::start(Session::open(&opened, "test").unwrap(), options).unwrap();
    let mut bed = Bed::started(node, controller, SOON);
    let mut other: QueuePair<u32> = bed.controller.queue_pair(QueueOptions::default()).unwrap();
    bed.node.set_fault_plan(&plan("ch1.stop@2"));
    for owner in 0..4 {
        bed.read(u64::from(owner), owner);
    }
    let entry = part(&bed.memory, 0, 512);
    let (mut ended, failure) = bed.run();
    assert!(failure.is_some() && ended.len() <= 1, "{failure:?}");
    other.read(&bed.namespace, 0, &[entry], 9).unwrap();
    let recovered = bed.pair.recover(|completion| ended.push(pair_of(completion)));
    assert!(matches!(recovered, Err(RecoverError::Reset(ResetError::NotStarted(_)))), "{recovered:?}");
    assert_eq!(tap.asked(), asked);
    assert_eq!(owners(&ended), [0, 1, 2, 3]);
    let mut others = Vec::new();
    assert!(other.recover(|completion| others.push(pair_of(completion))).is_err());
    assert_eq!(others, [(9, Err(CommandError::Reset))]);
    assert_eq!(bed.pair.close().unwrap().len(), 0);
    assert_eq!(other.close().unwrap().len(), 0);
}

#[test]
fn a_lost_command_is_found_while_others_complete_all_the_time() {
    let mut bed = Bed::new(SOON);
    bed.node.set_fault_plan(&plan("ch1.drop-completion@20"));
    let (mut submitted, mut ended) = (0u32, Vec::new());
    let began = Instant::now();
    let failure = loop {
        while bed.pair.free() > 0 && bed.pair.failure().is_none() {
            bed.read(u64::from(submitted % 100), submitted);
            submitted += 1;
        }
        assert!(began.elapsed() < LONG, "{submitted} commands, and the lost one was not found");
        if let Err(WaitError::Queue(failure)) = bed.pair.wait(CompletionMode::Adaptive, LONG) {
            break failure;
        }
        // One at a time, so that some are always left to be polled.
        bed.pair.poll(1, |completion| ended.push(pair_of(completion))).unwrap();
    };
    assert!(matches!(failure, QueueError::Overdue { queue: 1, .. }), "{failure}");
    assert!(bed.pair.statistics().aborts >= 1);
    ended.extend(bed.recover());
    assert_eq!(owners(&ended), (0..submitted).collect::<Vec<_>>());
    assert!(ended.contains(&(19, Err(CommandError::Reset))), "{failure}");
    bed.assert_usable(6);
}

#[test]
fn an_abort_that_is_never_answered_holds_nobody_up() {
    let node = stub(StubOptions::default());
    let options = ControllerOptions { admin_limit: UNANSWERED, ..Default::default() };
    let controller = start_with(&node, options);
    let mut bed = Bed::started(node, controller, SOON);
    bed.node.set_fault_plan(&plan("ch1.drop-completion@2, ch0.drop-completion@1"));
    for owner in 0..3 {
        bed.read(u64::from(owner), owner);
    }
    let (mut ended, failure) = bed.run();
    assert!(matches!(failure, Some(QueueError::Overdue { queue: 1, .. })), "{failure:?}");
    assert!(bed.pair.statistics().aborts >= 1);
    // Nobody waited for the answer until the time was over, which would have ended the queue.
    bed.controller.identify().unwrap();
    ended.extend(bed.recover());
    assert_eq!(owners(&ended), [0, 1, 2]);
    bed.assert_usable(8);
}
