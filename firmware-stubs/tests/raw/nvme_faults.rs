//! An emulated NVMe controller: fault plans, interrupts, and what a driver must not do.

use vdk_firmware_stubs::StubOptions;
use vdk_hal::dma::Permissions;
use vdk_hal::interrupt::{EventFd, InterruptKind};
use vdk_hal::reset::ResetKind;

use super::harness::{BUS_MASTER, COMMAND, MEMORY, wait_until};
use super::nvme_host::{
    CAP, CC, Command, FLUSH, Host, INTMC, INTMS, completion_iova, small, submission_iova, tail_doorbell,
};

fn flush() -> Command {
    Command::new(FLUSH).namespace(1)
}

fn host(plan: &str) -> Host {
    Host::new(StubOptions { fault_plan: plan.parse().unwrap(), ..small() })
}

#[test]
fn completions_are_lost_doubled_and_late() {
    let mut host = host("ch1.drop-completion@1, ch1.duplicate-completion@2, ch1.delay-completion@3:2s");
    let mut pair = host.pair(1, 8);
    for id in 1..=4 {
        pair.post(id, flush());
    }
    pair.ring(&host.bench);
    let done: Vec<u16> = (0..4).map(|_| pair.take(&host.bench).command).collect();
    assert_eq!(done, [2, 2, 4, 3]);
    assert!(!pair.is_ready(), "the first never comes");
    let abort = host.admin(Command::new(0x08).dword(10, 1 | 1 << 16));
    assert_eq!((abort.status, abort.result), (0, 1), "nor is there anything to abort");
}

#[test]
fn a_late_command_can_be_aborted_and_its_queue_deleted() {
    let mut host = host("ch1.delay-completion@1:1000s, ch1.delay-completion@2:1000s");
    let mut pair = host.pair(1, 8);
    pair.post(77, flush());
    pair.post(78, flush());
    pair.post(79, flush());
    pair.ring(&host.bench);
    assert_eq!(pair.take(&host.bench).command, 79);
    assert_eq!(host.admin(Command::new(0x08).dword(10, 1 | 77 << 16)).result, 0);
    let done = pair.take(&host.bench);
    assert_eq!((done.command, done.status), (77, 0x07));
    assert_eq!(host.admin(Command::new(0x00).dword(10, 1)).status, 0);
    assert_eq!(host.admin(Command::new(0x04).dword(10, 1)).status, 0);
    assert!(!pair.is_ready());
}

#[test]
fn completions_are_corrupted_and_commands_fail() {
    let mut host = host("ch1.corrupt-completion@1, ch1.fail@2:0x281");
    let mut pair = host.pair(1, 8);
    pair.post(5, flush());
    pair.ring(&host.bench);
    let done = pair.take(&host.bench);
    let right = (done.command, done.queue, done.head) == (5, 1, 1);
    assert!(!right, "{done:?}");
    let done = host.io(&mut pair, flush());
    assert_eq!((done.status, done.do_not_retry), (0x281, false));
    assert_eq!(host.io(&mut pair, flush()).status, 0);
}

#[test]
fn a_fatal_error_ends_with_a_controller_reset() {
    let mut host = host("ch1.halt@2:1");
    let mut pair = host.pair(1, 8);
    assert_eq!(host.io(&mut pair, flush()).status, 0);
    pair.post(9, flush());
    pair.ring(&host.bench);
    wait_until("the fatal error", || host.status() == 3);
    assert!(!pair.is_ready());
    host.disable();
    host.enable(0x0046_0001);
    pair.restart();
    assert_eq!(host.create_completion(1, 8, 1), 0);
    assert_eq!(host.create_submission(1, 8, 1 | 1 << 16), 0);
    assert_eq!(host.io(&mut pair, flush()).status, 0);
}

#[test]
fn a_controller_that_stopped_obeys_only_a_function_reset() {
    let mut host = host("ch1.stop@1");
    let mut pair = host.pair(1, 8);
    pair.post(9, flush());
    let before = host.bench.node.statistics().doorbells;
    pair.ring(&host.bench);
    wait_until("the doorbell is seen", || host.bench.node.statistics().doorbells > before);
    host.bench.write::<u32>(CC, 0x0046_0000);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert_eq!(host.status(), 1, "it does not follow");
    assert!(!pair.is_ready());
    host.bench.function.reset(ResetKind::FunctionLevel).unwrap();
    host.bench.function.config().write16(COMMAND, MEMORY | BUS_MASTER).unwrap();
    assert_eq!((host.status(), host.bench.read::<u32>(CC)), (0, 0));
    host.enable(0x0046_0001);
    assert_eq!(host.admin(Command::new(0x18)).status, 0);
}

#[test]
fn a_function_vanishes_or_answers_all_ones() {
    for plan in ["ch1.vanish@1", "ch1.all-ones@1"] {
        let mut host = host(plan);
        let mut pair = host.pair(1, 8);
        pair.post(9, flush());
        // The write may find that it is gone.
        let _ = host.bench.bar.write::<u32>(tail_doorbell(1), 1);
        wait_until("it is gone", || host.bench.bar.read::<u64>(CAP).map_or(true, |value| value == u64::MAX));
        assert!(!pair.is_ready());
    }
}

#[test]
fn unreachable_queues_are_a_fatal_error() {
    let mut host = Host::small();
    let mut pair = host.pair(1, 8);
    host.bench.unmap(completion_iova(1), 4096);
    pair.post(9, flush());
    pair.ring(&host.bench);
    wait_until("the fatal error", || host.status() & 2 != 0);
    assert_eq!(host.bench.node.iommu().faults()[0].address.as_u64(), completion_iova(1));

    let host = Host::small();
    host.bench.unmap(submission_iova(0), 4096);
    host.bench.write::<u32>(tail_doorbell(0), 1);
    wait_until("the fatal error", || host.status() & 2 != 0);

    let mut host = Host::small();
    host.bench.function.set_bus_master(false).unwrap();
    host.admin.post(1, flush());
    host.admin.ring(&host.bench);
    wait_until("the fatal error", || host.status() & 2 != 0);
    assert_eq!(host.bench.faults(), ["work was handed over while bus mastering is off"]);
}

#[test]
fn a_full_completion_queue_holds_commands_back() {
    let mut host = Host::small();
    let mut pair = host.pair(1, 4);
    let memory = host.bench.map(0x800_0000, 4096, Permissions::ReadWrite);
    assert_eq!(host.create_submission(2, 4, 1 | 1 << 16), 0);
    let mut second = super::nvme_host::Pair::map(&host.bench, 2, 4);
    for id in 1..=3 {
        pair.post(id, flush());
    }
    pair.ring(&host.bench);
    wait_until("three completions", || host.bench.node.statistics().completions == 6);
    second.post(20, Command::read(0, 1).pages(0x800_0000, 0));
    memory.fill(0, 512, 0xee).unwrap();
    second.ring(&host.bench);
    std::thread::sleep(std::time::Duration::from_millis(10));
    assert_eq!(memory.read_value::<u8>(0), Ok(0xee), "it waits for an entry");
    let done: Vec<(u16, u16)> =
        (0..4).map(|_| pair.take(&host.bench)).map(|done| (done.command, done.queue)).collect();
    assert_eq!(done, [(1, 1), (2, 1), (3, 1), (20, 2)]);
    assert_eq!(memory.read_value::<u8>(0), Ok(0));
}

#[test]
fn each_queue_has_its_message() {
    for kind in [InterruptKind::Msix, InterruptKind::Msi] {
        let mut host = Host::small();
        let events: Vec<Option<EventFd>> = (0..4).map(|_| EventFd::new().ok()).collect();
        host.bench.function.interrupts().enable(kind, &events).unwrap();
        let mut pair = host.pair(2, 8);
        wait_until("the admin queue", || events[0].as_ref().unwrap().take() > 0);
        assert_eq!(host.io(&mut pair, flush()).status, 0);
        wait_until("the I/O queue", || events[2].as_ref().unwrap().take() > 0);
        let raised = host.bench.node.statistics().interrupts;
        assert!(
            raised.iter().any(|(of, vector, count)| (*of, *vector, *count) == (kind, 2, 1)),
            "{raised:?}"
        );
        host.bench.write::<u32>(INTMS, 4);
        let masked = host.bench.read::<u32>(INTMS);
        if kind == InterruptKind::Msix {
            assert_eq!(
                (masked, host.bench.faults()),
                (0, vec!["the interrupt mask is not for use with MSI-X".to_owned()])
            );
            continue;
        }
        assert_eq!(masked, 4);
        assert_eq!(host.io(&mut pair, flush()).status, 0);
        assert_eq!(host.admin(Command::new(0x18)).status, 0);
        assert!(events[2].as_ref().unwrap().take() == 0);
        host.bench.write::<u32>(INTMC, 4);
        wait_until("the message", || events[2].as_ref().unwrap().take() > 0);
    }
}

#[test]
fn the_line_stays_asserted_until_the_host_has_served() {
    let mut host = Host::small();
    let event = EventFd::new().unwrap();
    host.bench.function.interrupts().enable(InterruptKind::Intx, &[Some(event.clone())]).unwrap();
    assert_eq!(host.create_completion(1, 8, 3 | 1 << 16), 0x108, "there is no such vector");
    assert_eq!(host.create_completion(1, 8, 3), 0);
    assert_eq!(host.create_submission(1, 8, 1 | 1 << 16), 0);
    let mut pair = super::nvme_host::Pair::map(&host.bench, 1, 8);
    let is_asserted = |host: &Host| host.bench.function.config().read16(0x06).unwrap() & 8 != 0;
    wait_until("the admin queue is served", || !is_asserted(&host));
    pair.post(1, flush());
    pair.ring(&host.bench);
    wait_until("the line", || is_asserted(&host));
    host.bench.write::<u32>(INTMS, 1);
    assert!(!is_asserted(&host));
    host.bench.write::<u32>(INTMC, 1);
    assert!(is_asserted(&host));
    assert_eq!(pair.take(&host.bench).command, 1);
    wait_until("the line is let go", || !is_asserted(&host));
}

#[test]
fn doorbells_before_the_controller_is_ready_are_taken_back() {
    let host = Host::small();
    host.disable();
    host.bench.write::<u32>(tail_doorbell(0), 1);
    wait_until("it is found", || host.bench.node.driver_fault_count() == 1);
    assert_eq!(host.bench.faults(), ["queue 0 got doorbell value 0x1: there is no such queue"]);
    assert_eq!(host.bench.read::<u32>(0x2000), u32::MAX);
    assert_eq!(host.bench.read::<u32>(0x18), u32::MAX);
    assert_eq!(host.bench.faults().len(), 2);
}
