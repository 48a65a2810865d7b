//! Creation, deletion, commands and resets of queue pairs in any order.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use vdk_driver::nvme::{Controller, QueueError, QueueOptions, QueuePair};
use vdk_firmware_stubs::{StubNode, StubOptions};
use vdk_iommu::{Bidirectional, DmaRegion};

use crate::harness::*;

/// What is done, and to which of the queue pairs.
#[derive(Clone, Copy, Debug)]
enum Step {
    Open(usize, u32),
    Read(usize, u32),
    Commit(usize),
    Poll(usize),
    Check(usize),
    Recover(usize),
    Close(usize),
    Drop(usize),
    Reset,
    Restart,
}

fn any_step() -> impl Strategy<Value = Step> {
    let pair = 0usize..3;
    prop_oneof![
        3 => (pair.clone(), 1u32..40).prop_map(|(pair, depth)| Step::Open(pair, depth)),
        6 => (pair.clone(), 1u32..20).prop_map(|(pair, count)| Step::Read(pair, count)),
        4 => pair.clone().prop_map(Step::Commit),
        4 => pair.clone().prop_map(Step::Poll),
        1 => pair.clone().prop_map(Step::Check),
        2 => pair.clone().prop_map(Step::Recover),
        1 => pair.clone().prop_map(Step::Close),
        1 => pair.prop_map(Step::Drop),
        2 => Just(Step::Reset),
        1 => Just(Step::Restart),
    ]
}

/// Owners count themselves, so that each end shows.
type Owner = Arc<()>;

/// A queue pair, and what it should know.
struct Known {
    pair: QueuePair<Owner>,
    /// The controller was reset since it was created.
    is_stale: bool,
}

impl Known {
    fn outstanding(&self) -> usize {
        usize::try_from(self.pair.outstanding()).unwrap()
    }
}

struct Parts {
    memory: DmaRegion<Bidirectional>,
    controller: Controller,
}

impl Parts {
    fn start(node: &Arc<StubNode>) -> Self {
        let controller = start(node);
        Self { memory: region(&controller, 4096), controller }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, rng_seed: RngSeed::Fixed(27), ..ProptestConfig::default() })]

    #[test]
    fn resets_are_legal_in_every_state(steps in prop::collection::vec(any_step(), 1..80)) {
        let node = stub(StubOptions::default());
        let mut parts = Parts::start(&node);
        let namespace = parts.controller.namespace(1).unwrap();
        let mut pairs: [Option<Known>; 3] = [None, None, None];
        let owner: Owner = Arc::new(());
        for step in steps {
            match step {
                Step::Open(place, depth) => {
                    if pairs[place].is_none() {
                        let options = QueueOptions { depth, ..QueueOptions::default() };
                        let pair = parts.controller.queue_pair(options).unwrap();
                        pairs[place] = Some(Known { pair, is_stale: false });
                    }
                }
                Step::Reset => {
                    parts.controller.reset().unwrap();
                    pairs.iter_mut().flatten().for_each(|known| known.is_stale = true);
                }
                Step::Restart => {
                    parts.controller.stop().unwrap();
                    pairs = [None, None, None];
                    drop(parts);
                    parts = Parts::start(&node);
                }
                Step::Close(place) => {
                    if let Some(known) = pairs[place].take() {
                        let outstanding = known.outstanding();
                        prop_assert_eq!(known.pair.close().unwrap().len(), outstanding);
                    }
                }
                Step::Drop(place) => drop(pairs[place].take()),
                Step::Recover(place) => {
                    let Some(known) = &mut pairs[place] else { continue };
                    let (outstanding, mut ended) = (known.outstanding(), 0);
                    known.pair.recover(|_| ended += 1).unwrap();
                    prop_assert_eq!((ended, known.outstanding()), (outstanding, 0));
                    // Who finds itself reset resets nobody else.
                    if !std::mem::take(&mut known.is_stale) {
                        pairs.iter_mut().flatten().for_each(|known| known.is_stale = true);
                        if let Some(known) = &mut pairs[place] {
                            known.is_stale = false;
                        }
                    }
                }
                Step::Read(place, _) | Step::Commit(place) | Step::Poll(place) | Step::Check(place) => {
                    let Some(known) = &mut pairs[place] else { continue };
                    let pair = &mut known.pair;
                    let reset = QueueError::Reset { queue: pair.number() };
                    let expected = if known.is_stale { Err(reset.clone()) } else { Ok(()) };
                    match step {
                        Step::Read(_, count) => {
                            for _ in 0..count {
                                let fits = pair.free() > 0 && pair.failure().is_none();
                                let entry = part(&parts.memory, 0, 512);
                                let read = pair.read(&namespace, 0, &[entry], Arc::clone(&owner));
                                prop_assert_eq!(read.is_ok(), fits);
                            }
                        }
                        Step::Commit(_) => prop_assert_eq!(pair.commit(), expected),
                        Step::Check(_) => prop_assert_eq!(pair.check(), expected),
                        _ => {
                            let failed = pair.failure().cloned();
                            let mut failures = 0;
                            let polled = pair.poll(u32::MAX, |end| failures += u32::from(end.result.is_err()));
                            prop_assert_eq!(polled.err(), failed);
                            prop_assert_eq!(failures, 0);
                        }
                    }
                    prop_assert!(pair.failure().is_none_or(|failure| known.is_stale && *failure == reset));
                }
            }
            let outstanding: usize = pairs.iter().flatten().map(Known::outstanding).sum();
            prop_assert_eq!(Arc::strong_count(&owner), outstanding + 1, "after {:?}", step);
        }
        drop(pairs);
        prop_assert_eq!(Arc::strong_count(&owner), 1);
        prop_assert_eq!(node.driver_faults(), []);
        prop_assert_eq!(node.iommu().faults(), []);
    }
}
