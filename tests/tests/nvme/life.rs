//! Starting, resetting, closing and stopping.

use core::time::Duration;
use std::sync::Arc;

use vdk_driver::kit::{Registry, Session};
use vdk_driver::nvme::{
    CommandError, Controller, QueueError, QueueOptions, QueuePair, RecoverError, ResetError,
};
use vdk_firmware_stubs::StubOptions;
use vdk_hal::function::PciNode;

use crate::harness::*;

#[test]
fn a_hundred_resets_with_commands_in_flight_end_each_once() {
    let mut bed = Bed::new(Duration::from_secs(60));
    let mut other: QueuePair<u32> = bed.controller.queue_pair(QueueOptions::default()).unwrap();
    for round in 0..100u32 {
        let count = 1 + round % 16;
        for owner in 0..count {
            bed.read(u64::from(owner), owner);
        }
        if round % 3 != 0 {
            bed.pair.commit().unwrap();
        }
        let entry = part(&bed.memory, 0, 512);
        other.read(&bed.namespace, 0, &[entry], 5).unwrap();
        other.commit().unwrap();
        bed.controller.reset().unwrap();
        assert_eq!(bed.pair.commit(), Err(QueueError::Reset { queue: 1 }));
        let mut ended = bed.recover();
        ended.sort_unstable_by_key(|(owner, _)| *owner);
        assert_eq!(ended.iter().map(|(owner, _)| *owner).collect::<Vec<_>>(), (0..count).collect::<Vec<_>>());
        assert!(
            ended.iter().all(|(_, result)| matches!(result, Ok(0) | Err(CommandError::Reset))),
            "{ended:?}"
        );
        let mut others = Vec::new();
        other.recover(|completion| others.push(pair_of(completion))).unwrap();
        assert_eq!(others.len(), 1);
        bed.assert_usable(u8::try_from(round).unwrap());
    }
    assert_eq!(bed.node.driver_faults(), []);
}

#[test]
fn a_close_gives_every_owner_back_and_frees_the_number() {
    let bed = Bed::new(LONG);
    for round in 0..20u32 {
        let mut pair: QueuePair<u32> = bed.controller.queue_pair(QueueOptions::default()).unwrap();
        assert_eq!(pair.number(), 2);
        for owner in 0..round {
            let entry = part(&bed.memory, 0, 512);
            pair.read(&bed.namespace, 0, &[entry], owner).unwrap();
        }
        if round % 2 == 0 {
            pair.commit().unwrap();
        }
        let mut owners: Vec<u32> = pair.close().unwrap().into_iter().map(|end| end.owner).collect();
        owners.sort_unstable();
        assert_eq!(owners, (0..round).collect::<Vec<_>>());
    }
    assert_eq!(bed.node.driver_faults(), []);
}

#[test]
fn a_stop_under_a_queue_gives_its_commands_back() {
    let mut bed = Bed::new(LONG);
    for owner in 0..5 {
        bed.read(0, owner);
    }
    bed.pair.commit().unwrap();
    bed.controller.stop().unwrap();
    bed.controller.stop().unwrap();
    let mut ended = Vec::new();
    let recovered = bed.pair.recover(|completion| ended.push(pair_of(completion)));
    assert!(matches!(recovered, Err(RecoverError::Reset(ResetError::Gone))), "{recovered:?}");
    let mut owners: Vec<u32> = ended.iter().map(|(owner, _)| *owner).collect();
    owners.sort_unstable();
    assert_eq!(owners, [0, 1, 2, 3, 4]);
    assert!(bed.controller.identify().unwrap_err().to_string().contains("stopped"));
}

#[test]
fn many_starts_leave_nothing_behind() {
    let node = stub(StubOptions::default());
    for round in 0..30 {
        let mut bed = Bed::on(Arc::clone(&node), LONG);
        for owner in 0..round % 4 {
            bed.read(0, owner);
        }
        if round % 2 == 0 {
            bed.run();
        }
        drop(bed);
        assert_eq!(node.driver_faults(), [], "round {round}");
    }
}

#[test]
fn the_kit_matches_starts_and_stops_the_driver() {
    let node: Arc<dyn PciNode> = stub(StubOptions::default());
    let registry = Registry::new().unwrap();
    registry.register::<Controller>().unwrap();
    let running = registry.start::<Controller>(&node).unwrap();
    let found = running.with(|controller| controller.namespaces().map_err(|error| error.to_string()));
    assert_eq!(found.unwrap(), Ok(vec![1]));
    assert!(running.stop().is_final());
    drop(Session::open(&node, "test").unwrap());
}
