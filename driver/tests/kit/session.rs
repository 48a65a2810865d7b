//! The exclusive session: who may open, what is on, and what the end leaves behind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::fake::{BUS_MASTER, FakeNode, MEMORY_SPACE, Script};
use vdk_driver::hal::address::BarIndex;
use vdk_driver::hal::bar::BarError;
use vdk_driver::hal::config::ConfigError;
use vdk_driver::hal::function::OpenError;
use vdk_driver::hal::interrupt::{InterruptError, InterruptKind};
use vdk_driver::hal::reset::{ResetError, ResetKind};
use vdk_driver::kit::{Session, SessionError};

const BAR0: BarIndex = BarIndex::new(0).unwrap();

fn open(node: &Arc<FakeNode>) -> Session {
    Session::open(&node.as_node(), "tester").unwrap()
}

#[test]
fn open_twice_is_busy_and_names_the_holder() {
    let node = FakeNode::new("fake:busy", Script::default());
    let session = open(&node);
    let busy = OpenError::Busy { function: "fake:busy".to_owned(), holder: "tester".to_owned() };
    let second = Session::open(&node.as_node(), "other").unwrap_err();
    assert_eq!(second, SessionError::Open(busy));
    assert_eq!(second.to_string(), "fake:busy is open already, by tester");
    // The loser took nothing away: the holder still holds it.
    assert!(session.is_open());
    assert!(Session::open(&node.as_node(), "third").is_err());

    let clone = session.clone();
    drop(session);
    assert!(Session::open(&node.as_node(), "other").is_err(), "a clone keeps it open");
    drop(clone);
    let again = Session::open(&node.as_node(), "other").unwrap();
    assert!(again.is_open());
}

#[test]
fn a_node_that_refuses_to_open_can_be_tried_again() {
    let gone = OpenError::Gone { function: "fake:no".to_owned() };
    let node = FakeNode::new("fake:no", Script { open_error: Some(gone.clone()), ..Script::default() });
    assert_eq!(Session::open(&node.as_node(), "one").unwrap_err(), SessionError::Open(gone));
    node.hardware().script.open_error = None;
    assert!(Session::open(&node.as_node(), "two").is_ok());
}

#[test]
fn access_after_close_is_not_open_also_through_old_handles() {
    let node = FakeNode::new("fake:closed", Script::default());
    let session = open(&node);
    let bar = session.bar(BAR0).unwrap();
    assert_eq!(bar.read::<u32>(0x18), Ok(0x18));
    let clone = session.clone();
    let config = clone.config().unwrap();
    assert_eq!(config.read16(0), Ok(0x1234));
    let interrupts = clone.interrupts().unwrap();
    let guard = session.enable_bus_master().unwrap();

    session.close();
    session.close();
    let not_open = || SessionError::NotOpen { function: "fake:closed".to_owned() };
    assert_eq!(session.config().err(), Some(not_open()));
    assert_eq!(session.bar(BAR0).err(), Some(not_open()));
    assert_eq!(session.bar_info(BAR0).err(), Some(not_open()));
    assert_eq!(session.interrupts().err(), Some(not_open()));
    assert_eq!(session.dma().err(), Some(not_open()));
    assert_eq!(session.enable_memory().err(), Some(not_open()));
    assert_eq!(session.enable_bus_master().err(), Some(not_open()));
    assert_eq!(session.reset(ResetKind::FunctionLevel).err(), Some(not_open()));
    assert_eq!(session.configure_interrupts(InterruptKind::Msix, 1, 1).err(), Some(not_open()));
    assert_eq!(bar.read::<u32>(0), Err(BarError::NotOpen { bar: BAR0 }));
    assert_eq!(bar.write::<u32>(0, 1), Err(BarError::NotOpen { bar: BAR0 }));
    assert_eq!(config.read16(0), Err(ConfigError::NotOpen));
    assert_eq!(config.write16(4, 0xffff), Err(ConfigError::NotOpen));
    assert_eq!(interrupts.unmask(InterruptKind::Intx, 0), Err(InterruptError::NotOpen));

    // The next owner is not disturbed by what the last one left behind.
    let next = open(&node);
    let on = next.enable_bus_master().unwrap();
    drop(guard);
    drop(session);
    assert!(node.bus_master() && next.is_open());
    drop(on);
    assert!(!node.bus_master());
}

#[test]
fn bus_mastering_is_off_after_open_and_memory_decoding_untouched() {
    let node = FakeNode::new("fake:bme", Script { bus_master_at_open: true, ..Script::default() });
    node.hardware().command = MEMORY_SPACE;
    let session = open(&node);
    assert_eq!(node.command(), MEMORY_SPACE);
    session.close();
    assert_eq!(node.command(), 0);
}

#[test]
fn bus_mastering_that_stays_on_refuses_the_session() {
    let script = Script { bus_master_at_open: true, bus_master_stuck: true, ..Script::default() };
    let node = FakeNode::new("fake:stuck", script);
    let error = Session::open(&node.as_node(), "tester").unwrap_err();
    assert_eq!(error, SessionError::BusMasterStuck { function: "fake:stuck".to_owned() });
    assert!(!node.hardware().opened);
    node.hardware().script = Script::default();
    node.hardware().command = 0;
    assert!(Session::open(&node.as_node(), "tester").is_ok());
}

#[test]
fn bus_mastering_is_on_exactly_while_a_guard_is_held() {
    let node = FakeNode::new("fake:guard", Script::default());
    let session = open(&node);
    session.enable_memory().unwrap();
    assert_eq!(node.command(), MEMORY_SPACE);
    let one = session.enable_bus_master().unwrap();
    let two = session.enable_bus_master().unwrap();
    drop(one);
    assert!(node.bus_master());
    // Writes to Command cannot change what the session keeps, and change the rest.
    let config = session.config().unwrap();
    config.write16(4, 1 << 10).unwrap();
    assert_eq!(node.command(), MEMORY_SPACE | BUS_MASTER | 1 << 10);
    config.write8(4, 0).unwrap();
    assert_eq!(node.command(), MEMORY_SPACE | BUS_MASTER | 1 << 10);
    drop(two);
    assert!(!node.bus_master());
    config.write32(4, 0xffff).unwrap();
    assert_eq!(node.command(), !BUS_MASTER);
}

#[test]
fn the_end_turns_off_interrupts_then_bus_mastering_then_memory_then_closes() {
    let node = FakeNode::new("fake:order", Script::default());
    let session = open(&node);
    session.enable_memory().unwrap();
    let vectors = session.configure_interrupts(InterruptKind::Msix, 2, 4).unwrap();
    let _guard = session.enable_bus_master().unwrap();
    assert_eq!(vectors.iter().map(|vector| vector.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    node.hardware().log.clear();
    drop(session);
    assert_eq!(node.log(), ["disable MSI-X", "bus master off", "command 0x0000", "close"]);
}

#[test]
fn a_panic_closes_the_session_on_its_way() {
    let node = FakeNode::new("fake:panic", Script::default());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let session = open(&node);
        session.enable_memory().unwrap();
        let _guard = session.enable_bus_master().unwrap();
        assert!(!node.bus_master(), "on purpose");
    }));
    assert!(outcome.is_err());
    let hardware = node.hardware();
    assert_eq!((hardware.command, hardware.opened), (0, false));
}

#[test]
fn a_reset_puts_back_what_was_on_with_bus_mastering_last() {
    let node = FakeNode::new("fake:reset", Script::default());
    let session = open(&node);
    session.enable_memory().unwrap();
    let vectors = session.configure_interrupts(InterruptKind::Msi, 1, 7).unwrap();
    assert_eq!(vectors.len(), 4, "MSI comes in powers of two");
    let guard = session.enable_bus_master().unwrap();
    node.hardware().log.clear();
    session.reset(ResetKind::FunctionLevel).unwrap();
    assert_eq!(node.log(), ["reset", "command 0x0002", "enable 4 MSI", "bus master on"]);
    node.fire(3);
    assert_eq!(vectors[3].event.take(), 1, "the same event files");

    drop(guard);
    session.reset(ResetKind::FunctionLevel).unwrap();
    assert_eq!(node.command(), MEMORY_SPACE, "no guard, no bus mastering");

    node.hardware().script.reset_fails = true;
    node.hardware().log.clear();
    let refused = ResetError::NotSupported { function: "fake:reset".to_owned(), kind: ResetKind::Hot };
    assert_eq!(session.reset(ResetKind::Hot), Err(SessionError::Reset(refused)));
    assert_eq!((node.command(), node.log()), (MEMORY_SPACE, vec!["enable 4 MSI".to_owned()]));
    node.fire(3);
    assert_eq!(vectors[3].event.take(), 1, "the interrupts go on where nothing was reset");

    let _guard = session.enable_bus_master().unwrap();
    node.hardware().script.reset_fails = false;
    node.hardware().script.reset_times_out = true;
    assert!(matches!(
        session.reset(ResetKind::FunctionLevel),
        Err(SessionError::Reset(ResetError::TimedOut { .. }))
    ));
    assert_eq!(node.command(), 0, "what does not answer stays off the bus");
    let _other = session.enable_bus_master().unwrap();
    assert!(node.bus_master(), "a new guard turns it on, although another is held");
}

#[test]
fn too_few_vectors_is_an_error_that_enables_nothing() {
    let node = FakeNode::new("fake:vectors", Script::default());
    let session = open(&node);
    let error = session.configure_interrupts(InterruptKind::Msix, 6, 8).unwrap_err();
    assert_eq!(error.to_string(), "fake:vectors has 5 MSI-X vectors, the driver needs 6");
    assert!(node.hardware().enabled.is_none());
    assert_eq!(session.configure_interrupts(InterruptKind::Msix, 1, 8).unwrap().len(), 5);
    let twice = session.configure_interrupts(InterruptKind::Msi, 1, 1).unwrap_err();
    assert_eq!(twice.to_string(), "cannot enable MSI: MSI-X is enabled; disable it first");
    session.disable_interrupts().unwrap();
    session.disable_interrupts().unwrap();
    assert_eq!(session.configure_interrupts(InterruptKind::Msi, 1, 1).unwrap().len(), 1);
    session.disable_interrupts().unwrap();
    session.reset(ResetKind::FunctionLevel).unwrap();
    assert!(node.hardware().enabled.is_none(), "what was disabled stays so");
}
