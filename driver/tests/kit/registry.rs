//! Which driver gets which function, and what is said about the others.

use std::sync::Arc;

use vdk_driver::hal::function::OpenError;
use vdk_driver::hal::poll::Deadline;
use vdk_driver::kit::{
    Context, Driver, DriverState, Failure, Outcome, PciMatch, Personality, RegisterError, Registry, Session,
    SessionError, StartError, StopReason,
};

use crate::fake::{FakeNode, Script};

/// A driver that only holds its function. The number makes types.
struct Holder<const N: usize> {
    _session: Session,
}

impl<const N: usize> Driver for Holder<N> {
    const PERSONALITIES: &'static [Personality] = &[];

    fn start(_context: &Context<Self>, session: Session) -> Result<Self, StartError> {
        Ok(Self { _session: session })
    }

    fn stop(&mut self, _reason: StopReason, _deadline: Deadline) {}
}

const EXACT: PciMatch = PciMatch::new().primary("0x11e81234");
const VENDOR: PciMatch = PciMatch::new().primary("0x1234&0xffff");
const OTHER: PciMatch = PciMatch::new().primary("0x20218086");

fn registry(personalities: &[Personality]) -> Registry {
    let registry = Registry::new().unwrap();
    registry.register_with::<Holder<0>>(personalities, Holder::start).unwrap();
    registry
}

fn node(name: &str) -> Arc<FakeNode> {
    FakeNode::new(name, Script::default())
}

#[test]
fn the_best_match_wins_and_the_others_are_told_why() {
    let registry = registry(&[
        Personality::new("vendor", VENDOR),
        Personality::new("other", OTHER),
        Personality::new("exact", EXACT),
    ]);
    let node = node("fake:why");
    let why = registry.offer(&node.as_node());
    assert!(why.is_driven());
    let expected = "fake:why at 0000:01:02.0 (1234:11e8)\
        \n  vendor: lost as vendor (score 0, 16 bits) to exact (score 0, 32 bits)\
        \n  other: does not match: key primary wants \"0x20218086\" but register 0x00 is 0x11e81234\
        \n  exact: running";
    assert_eq!(why.to_string(), expected);
    assert_eq!(registry.why("fake:why").unwrap().to_string(), expected);
    assert!(registry.why("fake:unknown").is_none());
    assert!(registry.running::<Holder<0>>("fake:why").is_some());
    assert!(registry.running::<Holder<1>>("fake:why").is_none(), "the driver is of another type");

    let running = registry.running::<Holder<0>>("fake:why").unwrap();
    assert_eq!((running.personality(), running.function()), ("exact", "fake:why"));
    let _ = running.stop();
    assert!(registry.running::<Holder<0>>("fake:why").is_none());
    let text = registry.why("fake:why").unwrap().to_string();
    assert!(text.ends_with("exact: stopped: terminated"), "{text}");
}

#[test]
fn the_winner_does_not_depend_on_the_order_of_registration() {
    let personalities = [
        Personality::new("a", VENDOR).score(1),
        Personality::new("b", EXACT).score(1),
        Personality::new("c", EXACT).score(1),
        Personality::new("d", EXACT),
    ];
    for turn in 0..personalities.len() {
        let mut turned = personalities;
        turned.rotate_left(turn);
        let registry = registry(&turned);
        let node = node("fake:order");
        let _ = registry.offer(&node.as_node());
        assert_eq!(registry.running::<Holder<0>>("fake:order").unwrap().personality(), "b");
    }
}

#[test]
fn each_category_has_a_winner_and_the_second_finds_the_function_busy() {
    let registry = registry(&[
        Personality::new("monitor", EXACT).category("monitor").score(5),
        Personality::new("weak-monitor", VENDOR).category("monitor"),
        Personality::new("owner", EXACT).score(10),
    ]);
    let node = node("fake:category");
    let why = registry.offer(&node.as_node());
    let expected = "fake:category at 0000:01:02.0 (1234:11e8)\
        \n  monitor: failed: the function was not opened: fake:category is open already, by owner\
        \n  weak-monitor: lost as weak-monitor (score 0, 16 bits) to monitor (score 5, 32 bits)\
        \n  owner: running";
    assert_eq!(why.to_string(), expected);
}

#[test]
fn a_driven_function_that_is_offered_again_is_busy_and_stays_driven() {
    let registry = registry(&[Personality::new("only", EXACT)]);
    let node = node("fake:again");
    assert!(registry.offer(&node.as_node()).is_driven());
    let why = registry.offer(&node.as_node());
    let busy = OpenError::Busy { function: "fake:again".to_owned(), holder: "only".to_owned() };
    match &why.verdicts[0].outcome {
        Outcome::Won { state: DriverState::Failed(Failure::Open(SessionError::Open(error))), .. } => {
            assert_eq!(*error, busy);
        }
        outcome => panic!("{outcome}"),
    }
    let running = registry.running::<Holder<0>>("fake:again").unwrap();
    assert!(matches!(running.state(), DriverState::Running));
    assert!(registry.why("fake:again").unwrap().is_driven());
    let _ = running.stop();
    assert!(registry.offer(&node.as_node()).is_driven());
    assert_eq!(registry.overview().len(), 1);
}

#[test]
fn a_function_that_does_not_open_says_so() {
    let refused = OpenError::Refused {
        function: "fake:refused".to_owned(),
        reason: "its group is not viable".to_owned(),
        fix: "bind all of it to vfio-pci".to_owned(),
    };
    let script = Script { open_error: Some(refused), ..Script::default() };
    let node = FakeNode::new("fake:refused", script);
    let registry = registry(&[Personality::new("only", EXACT)]);
    let why = registry.offer(&node.as_node());
    assert_eq!(
        why.to_string(),
        "fake:refused at 0000:01:02.0 (1234:11e8)\n  only: failed: the function was not opened: \
         fake:refused cannot be opened: its group is not viable; bind all of it to vfio-pci"
    );
    assert!(Registry::new().unwrap().offer(&node.as_node()).to_string().ends_with("no driver is registered"));
}

#[test]
fn a_registration_that_could_not_work_is_refused_whole() {
    let registry = registry(&[Personality::new("taken", EXACT)]);
    let second =
        |personalities: &[Personality]| registry.register_with::<Holder<1>>(personalities, Holder::start);
    let taken = RegisterError::NameTaken { personality: "taken" };
    assert_eq!(second(&[Personality::new("new", EXACT), Personality::new("taken", OTHER)]), Err(taken));
    let twice = RegisterError::NameTaken { personality: "new" };
    assert_eq!(second(&[Personality::new("new", EXACT), Personality::new("new", OTHER)]), Err(twice));
    let no_key = RegisterError::NoKey { personality: "all" };
    assert_eq!(
        second(&[Personality::new("new", EXACT), Personality::new("all", PciMatch::new())]),
        Err(no_key)
    );
    let error = registry.register::<Holder<1>>().unwrap_err();
    assert!(matches!(error, RegisterError::NoPersonality { .. }));
    // Nothing of these was added.
    assert_eq!(second(&[Personality::new("new", EXACT)]), Ok(()));
}
