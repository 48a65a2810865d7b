//! What unmap and a closing gate promise while devices are at work.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::thread;

use super::*;
use vdk_hal::dma::{MapError, UnmapError};
use vdk_hal::memory::PinnedMemory;

struct SetOnDrop<'flag>(&'flag AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed; the flag carries no other data.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_stale_translation_is_never_used() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let place = range(0x10_0000, PAGE);
    let ring = memory(1);
    domain.map(iova(0x20_0000), &ring, Permissions::ReadWrite).unwrap();
    for round in 1..50u64 {
        let (old, new) = (memory(1), memory(1));
        old.fill(0, 4096, 0xee).unwrap();
        new.write_value(0, &round).unwrap();
        // All kinds of access fill the cache with the old memory.
        domain.map(place.start(), &old, Permissions::ReadWrite).unwrap();
        device.load_u64(place.start()).unwrap();
        device.store_u64(place.start(), u64::MAX).unwrap();
        device.copy(iova(0x10_0100), iova(0x10_0200), 64).unwrap();
        domain.unmap(place).unwrap();
        let unmapped = fault(FaultReason::NotMapped, 0x10_0000, false);
        assert_eq!(device.load_u64(place.start()), Err(unmapped));
        assert_eq!(device.copy(iova(0x20_0000), place.start(), 8), Err(unmapped));
        // The same address is now other memory.
        domain.map(place.start(), &new, Permissions::ReadWrite).unwrap();
        assert_eq!(device.load_u64(place.start()), Ok(round));
        device.copy(iova(0x20_0000), place.start(), 8).unwrap();
        assert_eq!(ring.read_value::<u64>(0).unwrap(), round);
        device.copy(iova(0x10_0008), iova(0x20_0000), 8).unwrap();
        device.write(iova(0x10_0010), &[3; 8]).unwrap();
        assert_eq!(new.read_value::<u64>(8).unwrap(), round);
        assert_eq!(old.read_value::<[u8; 8]>(16).unwrap(), [0xee; 8]);
        // And then read-only.
        domain.unmap(place).unwrap();
        domain.map(place.start(), &old, Permissions::Read).unwrap();
        let read_only = fault(FaultReason::NotWritable, 0x10_0000, true);
        assert_eq!(device.store_u64(place.start(), 1), Err(read_only));
        domain.unmap(place).unwrap();
        assert!(old.try_into_pinned().is_ok() && new.try_into_pinned().is_ok());
    }
}

#[test]
fn memory_taken_back_from_a_busy_device_does_not_change() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let source = memory(64);
    source.fill(0, 64 * 4096, 0xdd).unwrap();
    domain.map(iova(0x10_0000), &source, Permissions::Read).unwrap();
    let place = range(0x20_0000, 64 * PAGE);
    // A copy reaches the last page last: what comes too late shows there.
    let (tail, tail_bytes) = (0x20_0000 + 63 * PAGE, 63 * 4096..64 * 4096);
    let (stop, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let hammering = scope.spawn(|| {
            // ORDERING: Relaxed throughout; the flag and the count carry no other data.
            while !stop.load(Ordering::Relaxed) {
                let mut done = u64::from(device.copy(place.start(), iova(0x10_0000), 64 * PAGE).is_ok());
                let Ok(mut burst) = device.burst() else { continue };
                for index in 0..64 {
                    let address = iova(tail + 64 * index);
                    done += u64::from(burst.copy(address, iova(0x10_0000), 64).is_ok());
                    done += u64::from(burst.write(address, &[0xdd; 24]).is_ok());
                    done += u64::from(burst.store_u64(address, 0xdddd_dddd_dddd_dddd).is_ok());
                    done += u64::from(burst.fill(address, 48, 0xdddd_dddd_dddd_dddd).is_ok());
                }
                moved.fetch_add(done, Ordering::Relaxed);
            }
        });
        // Also when an assertion fails, or the scope would wait for ever.
        let stopping = SetOnDrop(&stop);
        let mut pinned = PinnedMemory::allocate(ByteLength::new(64 * PAGE), Pages::Base).unwrap();
        for cycle in 0..1000u32 {
            let host = pinned.share();
            let before = moved.load(Ordering::Relaxed);
            domain.map(place.start(), &host, Permissions::ReadWrite).unwrap();
            // Most cycles interrupt the device at its work; some before it has begun.
            while cycle % 4 != 0 && moved.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            assert_eq!(domain.unmap(place).unwrap(), ByteLength::new(64 * PAGE));
            pinned = host.try_into_pinned().unwrap();
            let mark = cycle.to_le_bytes()[0] & 0x7f;
            pinned[tail_bytes.clone()].fill(mark);
            for _ in 0..4 {
                thread::yield_now();
                assert!(pinned[tail_bytes.clone()].iter().all(|byte| *byte == mark), "cycle {cycle}");
            }
        }
        drop(stopping);
        hammering.join().unwrap();
    });
    assert!(moved.load(Ordering::Relaxed) > 1000);
    assert_eq!(domain.geometry().mappings_available, Some(65534));
}

#[test]
fn a_device_that_does_not_leave_keeps_range_and_memory_taken() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let place = range(0x10_0000, PAGE);
    let host = memory(1);
    domain.map(place.start(), &host, Permissions::ReadWrite).unwrap();
    let mut burst = device.burst().unwrap();
    burst.store_u64(place.start(), 1).unwrap();
    let error = domain.unmap(place).unwrap_err();
    assert!(matches!(error, UnmapError::DeviceBusy { range, .. } if range == place), "{error}");
    // The burst still has what it had, safely: the memory is not free.
    burst.store_u64(place.start(), 2).unwrap();
    let host = host.try_into_pinned().unwrap_err();
    let taken = MapError::AlreadyMapped { range: place, existing: place };
    assert_eq!(domain.map(place.start(), &memory(1), Permissions::Read), Err(taken));
    assert_eq!(domain.geometry().mappings_available, Some(65534));
    // No new translation, not even in the same burst once it is renewed.
    burst.renew().unwrap();
    assert_eq!(burst.load_u64(place.start()), Err(fault(FaultReason::NotMapped, 0x10_0000, false)));
    drop(burst);
    assert_eq!(domain.unmap(place), Ok(ByteLength::SIZE_4K));
    assert!(host.try_into_pinned().is_ok());
    domain.map(place.start(), &memory(1), Permissions::Read).unwrap();
}

#[test]
fn a_long_burst_lets_an_unmap_go_on() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    let (large, other) = (memory(1024), memory(1));
    domain.map(iova(0x100_0000), &large, Permissions::ReadWrite).unwrap();
    domain.map(iova(0x1000), &other, Permissions::ReadWrite).unwrap();
    // Begun before the unmap and never left: only its own renewals let the unmap go on.
    let mut burst = device.burst().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let unmapping = scope.spawn(|| {
            let _done = SetOnDrop(&done);
            domain.unmap(range(0x1000, PAGE))
        });
        // ORDERING: Relaxed; nothing is read after it.
        while !done.load(Ordering::Relaxed) {
            burst.copy(iova(0x100_0000), iova(0x120_0000), 2 << 20).unwrap();
        }
        assert_eq!(unmapping.join().unwrap(), Ok(ByteLength::SIZE_4K));
        assert!(burst.load_u64(iova(0x1000)).is_err());
    });
    assert!(other.try_into_pinned().is_ok());
}

#[test]
fn words_alone_renew_a_burst() {
    let (domain, _, mut device) = machine(SoftIommuOptions::default());
    domain.map(iova(0x1000), &memory(1), Permissions::ReadWrite).unwrap();
    domain.map(iova(0x2000), &memory(1), Permissions::ReadWrite).unwrap();
    let mut burst = device.burst().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let unmapping = scope.spawn(|| {
            let _done = SetOnDrop(&done);
            domain.unmap(range(0x2000, PAGE))
        });
        // ORDERING: Relaxed; nothing is read after it.
        while !done.load(Ordering::Relaxed) {
            burst.load_u64(iova(0x1000)).unwrap();
        }
        assert_eq!(unmapping.join().unwrap(), Ok(ByteLength::SIZE_4K));
    });
}

#[test]
fn a_closed_gate_refuses_everything_until_it_is_opened() {
    let domain = SoftIommu::new(SoftIommuOptions::default()).domain();
    let gate = BusMasterGate::new();
    let mut device = domain.bus_master(REQUESTER, Arc::clone(&gate));
    domain.map(iova(0x1000), &memory(1), Permissions::ReadWrite).unwrap();
    let off = |address, write| Err(fault(FaultReason::BusMasterOff, address, write));
    assert!(!gate.is_open());
    assert_eq!(device.burst().map(drop), off(0, false));
    assert_eq!(device.read(iova(0x1001), &mut [0]), off(0x1001, false));
    assert_eq!(device.write(iova(0x1001), &[0]), off(0x1001, true));
    assert_eq!(device.copy(iova(0x1000), iova(0x1008), 8), off(0x1008, false));
    assert_eq!(device.fill(iova(0x1000), 8, 1), off(0x1000, true));
    assert_eq!(device.load_u64(iova(0x1000)).map(drop), off(0x1000, false));
    assert_eq!(device.store_u64(iova(0x1000), 1), off(0x1000, true));
    assert_eq!(device.translate(iova(0x1000), true).map(drop), off(0x1000, true));
    assert_eq!(domain.iommu().fault_count(), 8);
    gate.open();
    device.store_u64(iova(0x1000), 1).unwrap();
    gate.close().unwrap();
    assert_eq!(device.load_u64(iova(0x1000)).map(drop), off(0x1000, false));
    gate.open();
    assert_eq!(device.load_u64(iova(0x1000)), Ok(1));
}

#[test]
fn a_gate_that_closes_stops_a_long_copy_and_nothing_follows() {
    let (domain, gate, mut device) = machine(SoftIommuOptions::default());
    // In another domain too: closing waits for each.
    let other = domain.iommu().domain();
    let _idle = other.bus_master(REQUESTER, Arc::clone(&gate));
    let host = memory(4096);
    domain.map(iova(0x100_0000), &host, Permissions::ReadWrite).unwrap();
    let (rounds, closed) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let mut burst = device.burst().unwrap();
            let mut late = 0;
            let fault = loop {
                // ORDERING: Relaxed; a count for the other thread to wait for, and a flag.
                rounds.fetch_add(1, Ordering::Relaxed);
                late += u32::from(closed.load(Ordering::Relaxed));
                assert!(late < 10, "the gate is closed");
                if let Err(fault) = burst.copy(iova(0x180_0000), iova(0x100_0000), 8 << 20) {
                    break fault;
                }
                burst.store_u64(iova(0x180_0000), 0x5555).unwrap_or(());
            };
            // The same burst stays refused, cached translations or not.
            let small = burst.copy(iova(0x180_0000), iova(0x100_0000), 8).unwrap_err();
            let word = burst.load_u64(iova(0x180_0000)).unwrap_err();
            let fill = burst.fill(iova(0x180_0000), 8, 0).unwrap_err();
            (fault, [small.reason, word.reason, fill.reason])
        });
        // ORDERING: Relaxed, as above.
        while rounds.load(Ordering::Relaxed) < 3 {
            thread::yield_now();
        }
        gate.close().unwrap();
        // ORDERING: Relaxed, as above.
        closed.store(true, Ordering::Relaxed);
        host.write_value(0x80_0000, &7u64).unwrap();
        thread::sleep(Duration::from_millis(5));
        assert_eq!(host.read_value::<u64>(0x80_0000).unwrap(), 7);
        let (fault, after) = copying.join().unwrap();
        assert_eq!(fault.reason, FaultReason::BusMasterOff);
        assert_eq!(after, [FaultReason::BusMasterOff; 3]);
    });
    gate.open();
    assert_eq!(device.load_u64(iova(0x180_0000)), Ok(7));
}

#[test]
fn an_absurd_length_does_not_open_a_gate_that_a_burst_found_closed() {
    let (domain, gate, mut device) = machine(SoftIommuOptions::default());
    let host = memory(1);
    domain.map(iova(0x1000), &host, Permissions::ReadWrite).unwrap();
    gate.close().unwrap();
    gate.open();
    let mut burst = device.burst().unwrap();
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| gate.close());
        while burst.renew().is_ok() {}
        for short_of_all in [0, 63, 64, 65, BURST_BYTES, BURST_BYTES + 127, BURST_BYTES + 128] {
            let length = u64::MAX - short_of_all;
            assert!(burst.fill(iova(0x1000), length, 1).is_err(), "{length:#x}");
            assert!(burst.copy(iova(0x1000), iova(0x1800), length).is_err(), "{length:#x}");
            assert_eq!(burst.write(iova(0x1000), &[1]).unwrap_err().reason, FaultReason::BusMasterOff);
        }
        drop(burst);
        closing.join().unwrap().unwrap();
    });
    assert_eq!(host.read_value::<u64>(0), Ok(0));
}

#[test]
fn closing_a_gate_while_a_burst_is_stuck_is_an_error() {
    let (domain, gate, mut device) = machine(SoftIommuOptions::default());
    let burst = device.burst().unwrap();
    let error = gate.close().unwrap_err();
    assert_eq!(error.what, "the end of a device's burst");
    assert!(!gate.is_open());
    drop(burst);
    assert_eq!(gate.close(), Ok(()));
    drop(domain);
}
