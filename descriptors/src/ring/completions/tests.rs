//! Owners come back once, whatever the device says.

use std::collections::HashMap;

use super::*;
use proptest::prelude::*;

#[test]
fn completions_that_name_nothing_in_flight_are_errors() {
    let mut table = Completions::new(5, 16).unwrap();
    let cookie = table.post("a").unwrap();
    for slot in [5, 6, 65_535, u32::MAX] {
        let wrong = Cookie { slot, generation: 0 };
        assert_eq!(table.complete(wrong), Err(CompletionError::Unknown { slot, depth: 5 }));
    }
    let idle = Cookie { slot: 3, generation: 0 };
    assert_eq!(table.complete(idle), Err(CompletionError::NotInFlight { slot: 3 }));
    assert_eq!(table.complete(cookie), Ok("a"));
    assert_eq!(table.complete(cookie), Err(CompletionError::NotInFlight { slot: 0 }), "a duplicate");
    let again = table.post("b").unwrap();
    assert_eq!((again.slot(), again.generation()), (0, 1));
    let stale = CompletionError::Stale { slot: 0, generation: 0, current: 1 };
    assert_eq!(table.complete(cookie), Err(stale), "a duplicate after the slot was used again");
    assert_eq!(table.complete(Cookie::from_bits(again.to_bits())), Ok("b"));
    assert_eq!((table.in_flight(), table.free()), (0, 5));
}

#[test]
fn a_full_table_gives_the_owner_back() {
    let mut table = Completions::new(1, 0).unwrap();
    let cookie = table.post("a").unwrap();
    assert_eq!(table.post("b"), Err(Full("b")));
    assert_eq!(table.complete(cookie), Ok("a"));
    assert!(table.post("c").is_ok());
}

#[test]
fn abandoned_work_keeps_its_slot_until_the_late_completion() {
    let mut table = Completions::new(2, 16).unwrap();
    let slow = table.post("slow").unwrap();
    assert_eq!(table.abandon(slow), Ok("slow"));
    assert_eq!(table.abandon(slow), Err(CompletionError::NotInFlight { slot: 0 }));
    assert_eq!((table.in_flight(), table.abandoned(), table.free()), (0, 1, 1));
    let other = table.post("other").unwrap();
    assert_ne!(other.slot(), slow.slot());
    assert_eq!(table.post("third"), Err(Full("third")));
    assert_eq!(table.complete(slow), Err(CompletionError::Abandoned { slot: 0 }));
    assert_eq!(table.post("third").map(Cookie::slot), Ok(0));
    assert_eq!(table.complete(slow), Err(CompletionError::Stale { slot: 0, generation: 0, current: 1 }));
    assert_eq!(table.complete(other), Ok("other"));
}

#[test]
fn a_reset_gives_every_owner_back_and_late_results_are_stale() {
    let mut table = Completions::new(4, 16).unwrap();
    let cookies: Vec<_> = (0..4).map(|owner| table.post(owner).unwrap()).collect();
    assert_eq!(table.complete(cookies[1]), Ok(1));
    assert_eq!(table.abandon(cookies[2]), Ok(2));
    let mut returned = Vec::new();
    table.reset(|cookie, owner| returned.push((cookie, owner)));
    assert_eq!(returned, [(cookies[0], 0), (cookies[3], 3)]);
    assert_eq!((table.in_flight(), table.abandoned(), table.free()), (0, 0, 4));
    for cookie in &cookies {
        let slot = cookie.slot();
        assert_eq!(table.complete(*cookie), Err(CompletionError::NotInFlight { slot }));
    }
    for owner in 10..14 {
        table.post(owner).unwrap();
    }
    for cookie in &cookies {
        let slot = cookie.slot();
        let error = CompletionError::Stale { slot, generation: 0, current: 1 };
        assert_eq!(table.complete(*cookie), Err(error));
    }
    assert_eq!(table.in_flight(), 4);
}

#[test]
fn tags_carry_as_much_of_the_generation_as_fits() {
    let mut table = Completions::new(5, 8).unwrap();
    let first = table.post(()).unwrap();
    let first_tag = table.tag(first);
    assert_eq!(first_tag, 0);
    assert_eq!(table.complete_tag(first_tag), Ok(()));
    let second = table.post(()).unwrap();
    assert_eq!(table.tag(second), 0b1000);
    assert_eq!(
        table.complete_tag(first_tag),
        Err(CompletionError::Stale { slot: 0, generation: 0, current: 1 })
    );
    assert_eq!(table.complete_tag(0x100), Err(CompletionError::Unknown { slot: 0x100, depth: 5 }));
    assert_eq!(table.complete_tag(7), Err(CompletionError::Unknown { slot: 7, depth: 5 }));
    assert_eq!(table.complete_tag(0b1000), Ok(()));
    assert!(Completions::<()>::new(5, 2).is_none());
    assert!(Completions::<()>::new(0, 8).is_none());
    assert!(Completions::<()>::new(5, 33).is_none());
    let mut wide = Completions::new(3, 32).unwrap();
    let cookie = wide.post(()).unwrap();
    assert_eq!(wide.complete_tag(wide.tag(cookie)), Ok(()));
}

#[test]
fn a_length_beyond_what_was_posted_is_an_error() {
    assert_eq!(written_length(4096, 4096), Ok(4096));
    let error = written_length(4097, 4096).unwrap_err();
    assert_eq!(error.to_string(), "the device reports 0x1001 bytes, it was given 0x1000");
}

#[derive(Clone, Debug)]
enum Step {
    Post,
    Complete(usize),
    Abandon(usize),
    Noise(u64),
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Post),
        4 => any::<usize>().prop_map(Step::Complete),
        1 => any::<usize>().prop_map(Step::Abandon),
        2 => (0u64..4, 0u64..12).prop_map(|(generation, slot)| Step::Noise(generation << 32 | slot)),
        1 => Just(Step::Reset),
    ];
    proptest::collection::vec(step, 0..200)
}

proptest! {
    #[test]
    fn every_owner_comes_back_exactly_once(depth in 1u32..9, steps in steps()) {
        let mut table = Completions::new(depth, 32).unwrap();
        let mut model: HashMap<Cookie, u32> = HashMap::new();
        let mut abandoned: Vec<Cookie> = Vec::new();
        let mut history: Vec<Cookie> = Vec::new();
        let mut next = 0;
        for step in steps {
            match step {
                Step::Post => {
                    let fits = model.len() + abandoned.len() < depth as usize;
                    match table.post(next) {
                        Ok(cookie) => {
                            prop_assert!(fits);
                            prop_assert_eq!(model.insert(cookie, next), None);
                            history.push(cookie);
                        }
                        Err(Full(owner)) => prop_assert!(!fits && owner == next),
                    }
                    next += 1;
                }
                Step::Complete(pick) | Step::Abandon(pick) if history.is_empty() => {
                    let _ = pick;
                }
                Step::Complete(pick) => {
                    let cookie = history[pick % history.len()];
                    prop_assert_eq!(table.complete(cookie).ok(), model.remove(&cookie));
                    abandoned.retain(|other| *other != cookie);
                }
                Step::Abandon(pick) => {
                    let cookie = history[pick % history.len()];
                    let owner = model.remove(&cookie);
                    prop_assert_eq!(table.abandon(cookie).ok(), owner);
                    if owner.is_some() {
                        abandoned.push(cookie);
                    }
                }
                Step::Noise(bits) => {
                    let cookie = Cookie::from_bits(bits);
                    prop_assert_eq!(table.complete(cookie).ok(), model.remove(&cookie));
                    abandoned.retain(|other| *other != cookie);
                }
                Step::Reset => {
                    let mut returned = HashMap::new();
                    table.reset(|cookie, owner| {
                        returned.insert(cookie, owner);
                    });
                    prop_assert_eq!(&returned, &model);
                    model.clear();
                    abandoned.clear();
                }
            }
            prop_assert_eq!(table.in_flight() as usize, model.len());
            prop_assert_eq!(table.abandoned() as usize, abandoned.len());
        }
    }
}
