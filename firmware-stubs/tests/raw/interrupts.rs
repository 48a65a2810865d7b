//! The verbs of interrupts, on the kinds that the devices have.

use vdk_firmware_stubs::{StubKind, StubOptions};
use vdk_hal::config::Msix;
use vdk_hal::interrupt::{EventFd, InterruptError, InterruptKind};

use crate::harness::*;

const RAISE: u64 = 0x60;
const ACKNOWLEDGE: u64 = 0x64;
/// The MSI-X table and pending bits of the ioat.
const TABLE: u64 = 0x2000;
const PENDING: u64 = 0x3000;

fn ioat() -> Bench {
    let options = StubOptions { channels: 4, ..StubOptions::default() };
    let bench = Bench::new(StubKind::Ioat, options);
    bench.write(0x03, 0x09u8);
    bench
}

/// Makes a channel send its interrupt: a chain that cannot be read halts it.
fn raise(bench: &Bench, channel: u64) {
    let at = 0x80 * (channel + 1);
    bench.write(at + CHANCMD, RESET);
    bench.write(at + CHANCTRL, 0x0011u16);
    bench.write(at + CHAINADDR, 0x40u32);
    bench.write(at + CHAINADDR + 4, 0u32);
    bench.write(at + DMACOUNT, 1u16);
    wait_until("the halt", || bench.read::<u64>(at + CHANSTS) & 7 == HALTED);
}

fn some(events: &[&EventFd]) -> Vec<Option<EventFd>> {
    events.iter().map(|event| Some((*event).clone())).collect()
}

#[test]
fn enable_raise_disable_raise_enable_gives_one_none_one() {
    for kind in [InterruptKind::Intx, InterruptKind::Msi] {
        let bench = Bench::edu();
        let interrupts = bench.function.interrupts();
        let event = EventFd::new().unwrap();
        interrupts.enable(kind, &some(&[&event])).unwrap();
        bench.write(RAISE, 1u32);
        assert_eq!(event.take(), 1, "{kind}");
        bench.write(ACKNOWLEDGE, 1u32);
        interrupts.disable_all(kind).unwrap();
        bench.write(RAISE, 1u32);
        assert_eq!(event.take(), 0, "{kind}");
        bench.write(ACKNOWLEDGE, 1u32);
        interrupts.enable(kind, &some(&[&event])).unwrap();
        assert_eq!(event.take(), 0, "{kind}");
        bench.write(RAISE, 1u32);
        assert_eq!(event.take(), 1, "{kind}");
        assert_eq!(bench.node.statistics().interrupts, [(kind, 0, 2)]);
    }
    let bench = ioat();
    let interrupts = bench.function.interrupts();
    let event = EventFd::new().unwrap();
    interrupts.enable(InterruptKind::Msix, &some(&[&event])).unwrap();
    raise(&bench, 0);
    assert_eq!(event.take(), 1);
    interrupts.disable_all(InterruptKind::Msix).unwrap();
    raise(&bench, 0);
    assert_eq!(event.take(), 0);
    interrupts.enable(InterruptKind::Msix, &some(&[&event])).unwrap();
    assert_eq!(event.take(), 0, "what came meanwhile is lost");
    raise(&bench, 0);
    assert_eq!(event.take(), 1);
}

#[test]
fn a_level_interrupt_is_masked_when_it_fires_and_unmasked_by_the_driver() {
    let bench = Bench::edu();
    let interrupts = bench.function.interrupts();
    let event = EventFd::new().unwrap();
    interrupts.enable(InterruptKind::Intx, &some(&[&event])).unwrap();
    for round in 0..3 {
        bench.write(RAISE, 1u32);
        bench.write(RAISE, 2u32);
        assert_eq!(event.take(), 1, "round {round}: masked from the first on");
        bench.write(ACKNOWLEDGE, 3u32);
        interrupts.unmask(InterruptKind::Intx, 0).unwrap();
        assert_eq!(event.take(), 0, "served");
    }
    bench.write(RAISE, 1u32);
    assert_eq!(event.take(), 1);
    interrupts.unmask(InterruptKind::Intx, 0).unwrap();
    assert_eq!(event.take(), 1, "unmasked without serving the device it fires at once");
}

#[test]
fn the_command_register_silences_the_line_and_status_still_shows_it() {
    let bench = Bench::edu();
    let config = bench.function.config();
    let event = EventFd::new().unwrap();
    bench.function.interrupts().enable(InterruptKind::Intx, &some(&[&event])).unwrap();
    config.write16(COMMAND, MEMORY | INTX_DISABLE).unwrap();
    bench.write(RAISE, 1u32);
    assert_eq!((event.take(), config.read16(STATUS).unwrap() & 0x8), (0, 0x8));
    config.write16(COMMAND, MEMORY).unwrap();
    assert_eq!(event.take(), 1);
    bench.write(ACKNOWLEDGE, 1u32);
    assert_eq!(config.read16(STATUS).unwrap() & 0x8, 0);
}

#[test]
fn with_messages_enabled_there_is_no_line() {
    let bench = Bench::edu();
    let event = EventFd::new().unwrap();
    let config = bench.function.config();
    bench.write(RAISE, 1u32);
    assert_eq!(config.read16(STATUS).unwrap() & 0x8, 0x8);
    bench.function.interrupts().enable(InterruptKind::Msi, &some(&[&event])).unwrap();
    assert_eq!(config.read16(STATUS).unwrap() & 0x8, 0);
    assert_eq!(event.take(), 0, "an old cause is not a message");
    assert_eq!(config.read16(0x42).unwrap() & 1, 1, "MSI enable");
    bench.function.interrupts().disable_all(InterruptKind::Msi).unwrap();
    assert_eq!(config.read16(0x42).unwrap() & 1, 0);
}

#[test]
fn only_the_self_test_signals_by_itself() {
    let bench = ioat();
    let interrupts = bench.function.interrupts();
    let (first, second) = (EventFd::new().unwrap(), EventFd::new().unwrap());
    interrupts.enable(InterruptKind::Msix, &some(&[&first, &second])).unwrap();
    interrupts.mask(InterruptKind::Msix, 0).unwrap();
    interrupts.unmask(InterruptKind::Msix, 0).unwrap();
    interrupts.detach(InterruptKind::Msix, 1).unwrap();
    interrupts.attach(InterruptKind::Msix, 1, &second).unwrap();
    assert_eq!((first.take(), second.take()), (0, 0));
    interrupts.self_test(InterruptKind::Msix, 1).unwrap();
    assert_eq!((first.take(), second.take()), (0, 1));
    interrupts.disable_all(InterruptKind::Msix).unwrap();
    assert_eq!((first.take(), second.take()), (0, 0));
    let kind = InterruptKind::Msix;
    assert_eq!(interrupts.self_test(kind, 1), Err(InterruptError::NotEnabled { kind }));
    assert_eq!(bench.node.statistics().interrupt_count(), 0, "a self-test is not an interrupt");
}

#[test]
fn ending_what_was_never_begun_is_silent() {
    let bench = ioat();
    let interrupts = bench.function.interrupts();
    let kind = InterruptKind::Msix;
    let events = vec![None; 5];
    let error = interrupts.enable(kind, &events).unwrap_err();
    assert_eq!(error, InterruptError::NoSuchVector { kind, vector: 4, count: 4 });
    assert_eq!(interrupts.enabled(), None, "a failed enable changes nothing");
    for kind in [InterruptKind::Intx, InterruptKind::Msi, InterruptKind::Msix] {
        for _ in 0..2 {
            interrupts.disable_all(kind).unwrap();
            interrupts.detach(kind, 0).unwrap();
        }
    }
    assert!(interrupts.detach(kind, 4).is_err());
}

#[test]
fn wrong_requests_are_refused_and_change_nothing() {
    let bench = ioat();
    let interrupts = bench.function.interrupts();
    let event = EventFd::new().unwrap();
    let (msi, msix) = (InterruptKind::Msi, InterruptKind::Msix);
    assert_eq!(interrupts.enable(msi, &[]), Err(InterruptError::NotPowerOfTwo { count: 0 }));
    assert_eq!(interrupts.mask(msix, 0), Err(InterruptError::NotEnabled { kind: msix }));
    interrupts.enable(msix, &some(&[&event])).unwrap();
    let again = InterruptError::AlreadyEnabled { kind: msi, enabled: msix };
    assert_eq!(interrupts.enable(msi, &some(&[&event])), Err(again));
    let none = InterruptError::NoSuchVector { kind: msix, vector: 9, count: 4 };
    assert_eq!(interrupts.attach(msix, 9, &event), Err(none.clone()));
    assert_eq!(interrupts.mask(msix, 9), Err(none));
    assert_eq!(interrupts.mask(msi, 0), Err(InterruptError::NotEnabled { kind: msi }));
    interrupts.disable_all(msi).unwrap();
    assert_eq!(interrupts.enabled(), Some(msix), "the other kind was not disabled");
    raise(&bench, 0);
    assert_eq!(event.take(), 1);
    let edu = Bench::edu();
    let interrupts = edu.function.interrupts();
    assert_eq!(interrupts.enable(msix, &[]), Err(InterruptError::NotSupported { kind: msix }));
    interrupts.enable(msi, &some(&[&event])).unwrap();
    assert_eq!(interrupts.mask(msi, 0), Err(InterruptError::NotMaskable { kind: msi }));
}

#[test]
fn a_masked_vector_becomes_pending_and_fires_when_unmasked() {
    let bench = ioat();
    let interrupts = bench.function.interrupts();
    let event = EventFd::new().unwrap();
    interrupts.enable(InterruptKind::Msix, &some(&[&event])).unwrap();
    interrupts.mask(InterruptKind::Msix, 0).unwrap();
    assert_eq!(bench.read::<u32>(TABLE + 12), 1);
    raise(&bench, 0);
    raise(&bench, 0);
    assert_eq!((event.take(), bench.read::<u64>(PENDING)), (0, 1));
    interrupts.unmask(InterruptKind::Msix, 0).unwrap();
    assert_eq!((event.take(), bench.read::<u64>(PENDING)), (1, 0));
    interrupts.unmask(InterruptKind::Msix, 0).unwrap();
    assert_eq!(event.take(), 0);

    let msi = Bench::new(StubKind::Ioat, StubOptions::default());
    msi.write(0x03, 0x09u8);
    msi.function.interrupts().enable(InterruptKind::Msi, &some(&[&event])).unwrap();
    msi.function.interrupts().mask(InterruptKind::Msi, 0).unwrap();
    raise(&msi, 1);
    let capability = vdk_hal::config::Msi::find(msi.function.config()).unwrap().unwrap();
    let at = capability.offset;
    let (mask, pending) = (at + capability.mask().unwrap(), at + capability.pending().unwrap());
    assert_eq!(msi.function.config().read32(mask), Ok(1));
    assert_eq!((event.take(), msi.function.config().read32(pending)), (0, Ok(1)));
    msi.function.config().write32(mask, 0).unwrap();
    assert_eq!((event.take(), msi.function.config().read32(pending)), (1, Ok(0)));
}

#[test]
fn only_bit_zero_of_vector_control_masks_and_the_rest_is_kept() {
    let bench = ioat();
    let interrupts = bench.function.interrupts();
    let event = EventFd::new().unwrap();
    assert_eq!(bench.read::<u32>(TABLE + 16 + 12), 1, "masked before it is enabled");
    interrupts.enable(InterruptKind::Msix, &some(&[&event, &event])).unwrap();
    bench.write(TABLE + 16 + 12, 0xffff_fffeu32);
    raise(&bench, 1);
    assert_eq!(event.take(), 1);
    interrupts.mask(InterruptKind::Msix, 1).unwrap();
    assert_eq!(bench.read::<u32>(TABLE + 16 + 12), u32::MAX);
    interrupts.unmask(InterruptKind::Msix, 1).unwrap();
    assert_eq!(bench.read::<u32>(TABLE + 16 + 12), 0xffff_fffe);
    bench.write(TABLE, 0x1122_3344_fee0_0003u64);
    bench.write(TABLE + 8, 0x4041u32);
    assert_eq!(bench.read::<u64>(TABLE), 0x1122_3344_fee0_0000);
    assert_eq!(bench.read::<u32>(TABLE + 8), 0x4041);
    assert_eq!(bench.faults(), Vec::<String>::new());
    assert_eq!(bench.read::<u16>(TABLE), 0xffff);
    bench.write(PENDING, 1u32);
    let expected = ["the register has no 16-bit access", "the register is read only"];
    assert_eq!(bench.faults(), expected);
}

#[test]
fn the_function_mask_holds_every_vector() {
    let bench = ioat();
    let event = EventFd::new().unwrap();
    bench.function.interrupts().enable(InterruptKind::Msix, &some(&[&event, &event])).unwrap();
    let config = bench.function.config();
    let msix = Msix::find(config).unwrap().unwrap();
    assert_eq!((msix.table.offset, msix.pending.offset, msix.vectors()), (0x2000, 0x3000, 4));
    let control = msix.offset + 2;
    let value = config.read16(control).unwrap();
    assert_eq!(value, 0x8003);
    config.write16(control, 0x4000).unwrap();
    assert_eq!(config.read16(control).unwrap(), 0xc003, "enable is not the driver's to write");
    raise(&bench, 0);
    raise(&bench, 1);
    assert_eq!((event.take(), bench.read::<u32>(PENDING)), (0, 3));
    config.write16(control, 0).unwrap();
    assert_eq!((event.take(), bench.read::<u32>(PENDING)), (2, 0));
}

#[test]
fn vectors_are_added_later_only_where_the_backend_says_so() {
    for fixed_vectors in [false, true] {
        let bench = Bench::new(StubKind::Ioat, StubOptions { fixed_vectors, ..StubOptions::default() });
        bench.write(0x03, 0x09u8);
        let interrupts = bench.function.interrupts();
        let (first, second) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        assert_eq!(interrupts.can_attach_later(InterruptKind::Msix), !fixed_vectors);
        assert!(!interrupts.can_attach_later(InterruptKind::Msi));
        interrupts.enable(InterruptKind::Msix, &some(&[&first])).unwrap();
        let added = interrupts.attach(InterruptKind::Msix, 1, &second);
        raise(&bench, 1);
        if fixed_vectors {
            let kind = InterruptKind::Msix;
            assert_eq!(added, Err(InterruptError::CannotGrow { kind, vector: 1, enabled: 1 }));
            assert_eq!(second.take(), 0);
        } else {
            assert_eq!((added, second.take()), (Ok(()), 1));
        }
        interrupts.detach(InterruptKind::Msix, 0).unwrap();
        interrupts.attach(InterruptKind::Msix, 0, &second).unwrap();
        raise(&bench, 0);
        assert_eq!((first.take(), second.take()), (0, 1));
    }
}
