//! Stopping under queue pairs: who gets what back, and when.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use vdk_descriptors::nvme::{self, ControllerConfiguration, NvmeRegisters};
use vdk_driver::block::{BlockDevice, BlockOperation, BlockRequest};
use vdk_driver::kit::Session;
use vdk_driver::nvme::{
    BlockQueue, CommandError, CompletionMode, Controller, ControllerOptions, QueueOptions, QueuePair,
    RecoverError, ResetError,
};
use vdk_hal::address::BarIndex;
use vdk_hal::bar::Bar;
use vdk_hal::function::PciNode;
use vdk_iommu::{Bidirectional, DmaRegion};
use vdk_tests::tap::{ReadHook, Tap};

use crate::harness::*;

/// How long a test waits for what must not happen.
const FOR_A_WHILE: Duration = Duration::from_millis(200);

/// A controller behind a tap whose reads of registers call `hook`.
fn start_tapped(hook: ReadHook) -> (Arc<Tap>, Controller) {
    let tap = Tap::with_read_hook(stub(Default::default()), hook);
    let node: Arc<dyn PciNode> = tap.clone();
    let options = ControllerOptions { admin_limit: LONG, ..ControllerOptions::default() };
    let controller = Controller::start(Session::open(&node, "test").unwrap(), options).unwrap();
    (tap, controller)
}

/// Whether CC.EN is on, asked behind the back of the driver.
fn is_enabled(tap: &Tap) -> bool {
    let bar = tap.function().unwrap().bar(BarIndex::new(nvme::BAR).unwrap()).unwrap();
    let registers = bar.registers::<NvmeRegisters>(0).unwrap();
    ControllerConfiguration(registers.read(NvmeRegisters::CC).unwrap()).enable()
}

/// Has a thread stop the controller, and another one run `end` on a queue pair of it while
/// the stop is under way and the controller runs. Returns what the second gives, and whether
/// the controller was enabled when it gave it.
fn end_during_a_stop<R: Send + 'static>(end: impl FnOnce(QueuePair<u32>) -> R + Send + 'static) -> (R, bool) {
    let (armed, reached, pass) = (AtomicBool::new(false), Barrier::new(2), Barrier::new(2));
    let gate = Arc::new((armed, reached, pass));
    let hook = {
        let gate = Arc::clone(&gate);
        // A stop begins with a look at CC.
        move |_: &Bar, offset: u64| {
            if offset == NvmeRegisters::CC.offset() as u64 && gate.0.swap(false, Ordering::SeqCst) {
                gate.1.wait();
                gate.2.wait();
            }
        }
    };
    let (tap, controller) = start_tapped(Arc::new(hook));
    let controller = Arc::new(controller);
    let mut pair = controller.queue_pair(QueueOptions::default()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let memory = region(&controller, 4096);
    for owner in 0..5 {
        pair.read(&namespace, 0, &[part(&memory, 0, 512)], owner).unwrap();
    }
    gate.0.store(true, Ordering::SeqCst);
    let stop = std::thread::spawn({
        let controller = Arc::clone(&controller);
        move || controller.stop()
    });
    gate.1.wait();
    assert!(is_enabled(&tap));
    let end = std::thread::spawn(move || {
        let ended = end(pair);
        (ended, is_enabled(&tap))
    });
    let begun = Instant::now();
    while !end.is_finished() && begun.elapsed() < FOR_A_WHILE {
        std::thread::yield_now();
    }
    gate.2.wait();
    stop.join().unwrap().unwrap();
    end.join().unwrap()
}

#[test]
fn a_close_during_a_stop_gives_owners_back_only_when_the_controller_is_off() {
    let (ended, enabled) = end_during_a_stop(|pair| pair.close().unwrap());
    assert!(!enabled, "owners came back while the controller ran");
    let ended: Vec<Ended> = ended.into_iter().map(pair_of).collect();
    assert_eq!(ended, (0..5).map(|owner| (owner, Err(CommandError::Gone))).collect::<Vec<_>>());
}

#[test]
fn a_recovery_during_a_stop_gives_owners_back_only_when_the_controller_is_off() {
    let (ended, enabled) = end_during_a_stop(|mut pair| {
        let mut ended = Vec::new();
        let recovered = pair.recover(|completion| ended.push(pair_of(completion)));
        assert!(matches!(recovered, Err(RecoverError::Reset(ResetError::Gone))), "{recovered:?}");
        ended
    });
    assert!(!enabled, "owners came back while the controller ran");
    assert_eq!(ended, (0..5).map(|owner| (owner, Err(CommandError::Gone))).collect::<Vec<_>>());
}

#[test]
fn a_controller_that_nothing_stops_keeps_owners_and_memory() {
    let (tap, controller) = start_tapped(Arc::new(|_, _| {}));
    let domain = controller.domain().clone();
    let namespace = controller.namespace(1).unwrap();
    let memory = region(&controller, 4096);
    let mut pairs = [0; 2].map(|_| controller.queue_pair(QueueOptions::default()).unwrap());
    let owner = Arc::new(());
    for pair in &mut pairs {
        pair.read(&namespace, 0, &[part(&memory, 0, 512)], Arc::clone(&owner)).unwrap();
    }
    let options = QueueOptions::default();
    let mut blocks: BlockQueue<DmaRegion<Bidirectional>> =
        BlockQueue::open(&controller, namespace, options, CompletionMode::Poll).unwrap();
    let of_request = region(&controller, 4096);
    let request =
        BlockRequest { operation: BlockOperation::Read, lba: 0, blocks: 1, memory: Some(of_request) };
    assert!(blocks.submit(request).is_ok());
    let before = domain.statistics().mappings;
    tap.set_disobeys(true);
    controller.stop().unwrap_err();
    let [mut recovered, closed] = pairs;
    let error = recovered.recover(|_| panic!("given back while the controller may run")).unwrap_err();
    assert!(matches!(error, RecoverError::Reset(ResetError::NotStopped(_))), "{error}");
    let error = closed.close().unwrap_err();
    assert!(matches!(error, ResetError::NotStopped(_)), "{error}");
    drop((recovered, blocks, controller));
    assert_eq!(Arc::strong_count(&owner), 3);
    assert_eq!(domain.statistics().mappings, before);
}

#[test]
fn a_stop_that_failed_is_done_by_the_next_who_ends_something() {
    let (tap, controller) = start_tapped(Arc::new(|_, _| {}));
    let namespace = controller.namespace(1).unwrap();
    let memory = region(&controller, 4096);
    let mut pair: QueuePair<u32> = controller.queue_pair(QueueOptions::default()).unwrap();
    pair.read(&namespace, 0, &[part(&memory, 0, 512)], 7).unwrap();
    tap.set_disobeys(true);
    controller.stop().unwrap_err();
    tap.set_disobeys(false);
    assert!(is_enabled(&tap));
    let ended: Vec<Ended> = pair.close().unwrap().into_iter().map(pair_of).collect();
    assert!(!is_enabled(&tap));
    assert_eq!(ended, [(7, Err(CommandError::Gone))]);
    controller.stop().unwrap();
}
