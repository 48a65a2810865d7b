use std::sync::Mutex;

use rustix::io::Errno;

use super::*;
use crate::vfio::kernel::Attached;
use crate::vfio::mock::{Asked, MockFile};

const NONE_TRIGGER: u32 = 0x21;
const EVENTFD_TRIGGER: u32 = 0x24;

/// A device with INTx, 8 MSI and 16 MSI-X vectors; vectors can be added as `grows` says.
fn device(
    grows: bool,
    mut set: impl FnMut(&Message) -> Result<u32, Errno> + Send + 'static,
) -> Arc<MockFile> {
    MockFile::new(move |call: Call, message: &mut Message, _: &mut Attached<'_>| match call {
        Call::IrqInfo => {
            let (flags, count) = match message.word(8).unwrap() {
                0 => (7, 1),
                1 => (9, 8),
                2 if grows => (1, 16),
                2 => (9, 16),
                _ => return Err(Errno::INVAL),
            };
            message.put(4, flags);
            message.put(12, count);
            Ok(0)
        }
        Call::SetIrqs => set(message),
        _ => Err(Errno::NOTTY),
    })
}

fn interrupts(grows: bool) -> (Arc<MockFile>, VfioInterrupts) {
    let file = device(grows, |_| Ok(0));
    let interrupts = VfioInterrupts::read(&file.device()).unwrap();
    file.take();
    (file, interrupts)
}

/// Flags, index, start and count of each call, and its descriptors.
fn said(file: &MockFile) -> Vec<([u32; 4], Vec<i32>)> {
    let word = |asked: &Asked, at| crate::vfio::message::word(&asked.bytes, at).unwrap();
    file.take()
        .iter()
        .map(|asked| {
            assert_eq!((asked.call, word(asked, 0)), (Call::SetIrqs, asked.bytes.len().try_into().unwrap()));
            let descriptors =
                asked.bytes[HEADER..].chunks(4).map(|fd| i32::from_ne_bytes(fd.try_into().unwrap()));
            ([4, 8, 12, 16].map(|at| word(asked, at)), descriptors.collect())
        })
        .collect()
}

#[test]
fn disabling_has_a_count_of_zero_and_only_a_test_signals() {
    let (file, interrupts) = interrupts(true);
    let event = EventFd::new().unwrap();
    let descriptor = event.as_fd().as_raw_fd();
    interrupts.enable(InterruptKind::Msix, &[None, Some(event.clone())]).unwrap();
    assert_eq!(said(&file), [([EVENTFD_TRIGGER, 2, 0, 2], vec![-1, descriptor])]);
    interrupts.self_test(InterruptKind::Msix, 1).unwrap();
    assert_eq!(said(&file), [([NONE_TRIGGER, 2, 1, 1], vec![])]);
    interrupts.detach(InterruptKind::Msix, 1).unwrap();
    assert_eq!(said(&file), [([EVENTFD_TRIGGER, 2, 1, 1], vec![-1])]);
    interrupts.disable_all(InterruptKind::Msix).unwrap();
    assert_eq!(said(&file), [([NONE_TRIGGER, 2, 0, 0], vec![])]);
    interrupts.disable_all(InterruptKind::Msix).unwrap();
    interrupts.detach(InterruptKind::Msix, 1).unwrap();
    assert_eq!(said(&file), [], "ending what has ended says nothing to the kernel");
}

/// A function that takes a vector only after the one before it, and forgets all in a reset.
#[test]
fn vectors_come_back_after_a_reset_in_one_call_and_ascending() {
    let file = device(true, {
        let mut next = 0;
        move |message| {
            let word = |at| message.word(at).unwrap();
            let (start, count) = (word(12), word(16));
            if count == 0 {
                next = 0;
            } else if start != next {
                return Err(Errno::INVAL);
            } else {
                next += count;
            }
            Ok(0)
        }
    });
    let interrupts = VfioInterrupts::read(&file.device()).unwrap();
    file.take();
    let kind = InterruptKind::Msix;
    let events: Vec<_> = (0..5).map(|_| Some(EventFd::new().unwrap())).collect();
    let descriptors: Vec<i32> = events.iter().flatten().map(|event| event.as_fd().as_raw_fd()).collect();
    interrupts.enable(kind, &events).unwrap();
    let connected = ([EVENTFD_TRIGGER, 2, 0, 5], descriptors);
    assert_eq!(said(&file), std::slice::from_ref(&connected));
    // Before a reset all are disabled, so that none is left half programmed.
    interrupts.disable_enabled();
    assert_eq!((said(&file), interrupts.enabled()), (vec![([NONE_TRIGGER, 2, 0, 0], vec![])], None));
    interrupts.enable(kind, &events).unwrap();
    assert_eq!(said(&file), [connected], "all of them, in their order, in one call");
}

#[test]
fn vectors_are_added_one_by_one_only_where_the_kernel_can() {
    let event = EventFd::new().unwrap();
    let (file, growing) = interrupts(true);
    growing.enable(InterruptKind::Msix, &[None]).unwrap();
    growing.attach(InterruptKind::Msix, 9, &event).unwrap();
    assert_eq!(said(&file)[1].0, [EVENTFD_TRIGGER, 2, 9, 1]);
    let (file, fixed) = interrupts(false);
    fixed.enable(InterruptKind::Msix, &[None, None]).unwrap();
    fixed.attach(InterruptKind::Msix, 1, &event).unwrap();
    let refused = fixed.attach(InterruptKind::Msix, 2, &event);
    assert_eq!(refused, Err(InterruptError::CannotGrow { kind: InterruptKind::Msix, vector: 2, enabled: 2 }));
    assert_eq!(said(&file).len(), 2);
    assert!(!fixed.can_attach_later(InterruptKind::Msix) && growing.can_attach_later(InterruptKind::Msix));
    assert!(!growing.can_attach_later(InterruptKind::Msi) && !growing.can_attach_later(InterruptKind::Intx));
}

#[test]
fn a_line_is_masked_and_unmasked_and_messages_are_not() {
    let (file, interrupts) = interrupts(true);
    interrupts.enable(InterruptKind::Intx, &[None]).unwrap();
    interrupts.mask(InterruptKind::Intx, 0).unwrap();
    interrupts.unmask(InterruptKind::Intx, 0).unwrap();
    let flags: Vec<[u32; 4]> = said(&file).into_iter().map(|(words, _)| words).collect();
    let (mask, unmask) = ([0x09, 0, 0, 1], [0x11, 0, 0, 1]);
    // A line that is up already is looked for as soon as somebody listens.
    assert_eq!(flags[1..], [mask, unmask, mask, unmask]);
    interrupts.disable_all(InterruptKind::Intx).unwrap();
    interrupts.enable(InterruptKind::Msi, &[None]).unwrap();
    let kind = InterruptKind::Msi;
    assert_eq!(interrupts.unmask(kind, 0), Err(InterruptError::NotMaskable { kind }));
}

#[test]
fn an_enable_that_fails_leaves_nothing_to_clean_up() {
    let answers = Arc::new(Mutex::new(vec![Ok(3), Err(Errno::NOSPC)]));
    let file = device(true, move |_| answers.lock().unwrap().pop().unwrap_or(Ok(0)));
    let interrupts = VfioInterrupts::read(&file.device()).unwrap();
    let kind = InterruptKind::Msi;
    for _ in 0..2 {
        // An error, and then a number: so many vectors are left, and none was given.
        let error = interrupts.enable(kind, &vec![None; 8]).unwrap_err();
        assert!(matches!(error, InterruptError::System { .. }), "{error}");
        assert_eq!(interrupts.enabled(), None);
        file.take();
        interrupts.disable_all(kind).unwrap();
        interrupts.disable_enabled();
        assert_eq!(file.calls(), []);
    }
    interrupts.enable(kind, &vec![None; 8]).unwrap();
    assert_eq!(interrupts.enabled(), Some(kind));
    assert_eq!(
        interrupts.enable(kind, &vec![None; 3]),
        Err(InterruptError::AlreadyEnabled { kind, enabled: kind })
    );
}

#[test]
fn absent_kinds_and_wrong_counts_never_reach_the_kernel() {
    let (file, interrupts) = interrupts(true);
    assert_eq!(
        interrupts.enable(InterruptKind::Msi, &[None, None, None]),
        Err(InterruptError::NotPowerOfTwo { count: 3 })
    );
    let many = vec![None; 17];
    let kind = InterruptKind::Msix;
    assert_eq!(
        interrupts.enable(kind, &many),
        Err(InterruptError::NoSuchVector { kind, vector: 16, count: 16 })
    );
    assert_eq!(interrupts.mask(kind, 0), Err(InterruptError::NotEnabled { kind }));
    assert_eq!(file.calls(), []);
    let nothing = MockFile::new(|_, _, _| Err(Errno::INVAL));
    let none = VfioInterrupts::read(&nothing.device()).unwrap();
    for kind in KINDS {
        assert_eq!(none.vector_count(kind), 0);
        assert_eq!(none.enable(kind, &[None]), Err(InterruptError::NotSupported { kind }));
    }
}

#[test]
fn forged_counts_are_cut_to_what_a_device_can_have() {
    for (index, most) in [(0, 1), (1, 32), (2, 2048), (3, 1)] {
        let answer = Message::new(16).with(4, 1).with(12, u32::MAX);
        assert_eq!(parse_irq_info(&answer, index).count, most);
        let no_events = Message::new(16).with(4, 0xfffe).with(12, 5);
        assert_eq!(parse_irq_info(&no_events, index), KindInfo::default());
    }
}

#[test]
fn a_closed_or_removed_device_says_so_and_ending_is_no_error() {
    let file = device(true, |_| Err(Errno::NODEV));
    let device = file.device();
    let interrupts = VfioInterrupts::read(&device).unwrap();
    let kind = InterruptKind::Msix;
    assert_eq!(interrupts.enable(kind, &[None]), Err(InterruptError::Gone));
    assert_eq!(interrupts.enable(kind, &[None]), Err(InterruptError::Gone));
    assert_eq!((interrupts.disable_all(kind), interrupts.detach(kind, 0)), (Ok(()), Ok(())));
    assert!(device.shut().is_some() && device.shut().is_none());
}
