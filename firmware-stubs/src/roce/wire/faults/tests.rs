use vdk_descriptors::roce::{
    Bth, Ethernet, EthernetAddress, Extension, Frame, FrameError, Headers, Network, Opcode, Psn, Qpn,
};

use super::super::{PairWire, pair};
use super::*;

/// A SEND with this PSN.
fn frame(psn: u32) -> Vec<u8> {
    let own = EthernetAddress([2, 0, 0, 0, 0, 1]);
    let address = "10.0.0.1".parse().unwrap();
    let headers = Headers {
        ethernet: Ethernet::new(own, own),
        network: Network::new(address, address, 0xc000).unwrap(),
        bth: Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(0x11).unwrap(), Psn::new(psn)),
        extension: Extension::None,
    };
    let mut buffer = vec![0; 200];
    let length = Frame { headers, payload: &psn.to_le_bytes().repeat(16) }.build(&mut buffer).unwrap();
    buffer.truncate(length);
    buffer
}

fn faulty(plan: &str, seed: u64) -> (FaultyWire<PairWire>, PairWire) {
    let (one, other) = pair(1 << 20).unwrap();
    (FaultyWire::new(one, plan.parse().unwrap(), WireFaults::NONE, seed), other)
}

/// The PSNs that are there; `None` for one whose invariant CRC is wrong.
fn arrived(wire: &mut dyn Wire, now: Time) -> Vec<Option<u32>> {
    let mut buffer = [0; MAX_FRAME];
    let mut psns = Vec::new();
    while let Some(length) = wire.receive(now, &mut buffer).unwrap() {
        psns.push(match Frame::parse(&buffer[..length]) {
            Ok(frame) => Some(frame.headers.bth.psn.value()),
            Err(FrameError::Icrc { .. }) => None,
            Err(error) => panic!("{error}"),
        });
    }
    psns
}

fn after(milliseconds: u64) -> Time {
    Time::ZERO.after(Duration::from_millis(milliseconds))
}

#[test]
fn chances_come_about_as_often_as_asked_and_repeat_with_their_seed() {
    let run = |seed| {
        let (mut wire, mut other) = faulty("drop=5%,duplicate=2%,corrupt=1%", seed);
        let mut psns = Vec::new();
        for psn in 0..10_000 {
            wire.send(Time::ZERO, &frame(psn)).unwrap();
            psns.extend(arrived(&mut other, Time::ZERO));
        }
        let log = wire.sent().lock().unwrap().clone();
        (psns, log)
    };
    let (psns, log) = run(1);
    let counts = log.counts;
    assert_eq!(counts.frames, 10_000);
    assert!((400..600).contains(&counts.dropped), "{counts:?}");
    assert!((130..270).contains(&counts.duplicated), "{counts:?}");
    assert!((60..140).contains(&counts.corrupted), "{counts:?}");
    assert_eq!(psns.len() as u64 + counts.dropped, 10_000 + counts_of_passed(&log, WireFault::Duplicate));
    let bad = psns.iter().filter(|psn| psn.is_none()).count() as u64;
    assert!(bad >= counts_of_passed(&log, WireFault::Corrupt), "a damaged frame passes, and is damaged");
    assert_eq!(log.entries().len() as u64, counts.dropped + counts.duplicated + counts.corrupted);
    for entry in log.entries().iter().filter(|entry| entry.fault == WireFault::Drop) {
        assert_eq!(u64::from(entry.psn.value()) + 1, entry.number);
        assert!(!psns.contains(&Some(entry.psn.value())));
    }
    assert_eq!(run(1), (psns, log));
    assert_ne!(run(2).1, run(1).1);
}

/// How many faults of a kind struck frames that were not dropped: dropped frames have one entry.
fn counts_of_passed(log: &FaultLog, fault: WireFault) -> u64 {
    log.entries().iter().filter(|entry| entry.fault == fault).count() as u64
}

#[test]
fn a_frame_is_overtaken_by_the_next_one_or_goes_when_none_comes() {
    let (mut wire, mut other) = faulty("reorder=100%", 1);
    wire.send(after(0), &frame(1)).unwrap();
    assert_eq!(arrived(&mut other, after(0)), []);
    assert_eq!(wire.deadline(), Some(after(2)));
    wire.send(after(1), &frame(2)).unwrap();
    assert_eq!(arrived(&mut other, after(1)), [Some(1)]);
    // The wire is looked after by those who receive from it.
    assert_eq!(arrived(&mut wire, after(3)), []);
    assert_eq!(arrived(&mut other, after(3)), [Some(2)]);
    assert_eq!(wire.deadline(), None);

    let (mut wire, mut other) = faulty("reorder=30%", 5);
    let mut psns = Vec::new();
    for psn in 0..1000 {
        wire.send(after(0), &frame(psn)).unwrap();
        psns.extend(arrived(&mut other, after(0)));
    }
    assert_eq!(arrived(&mut wire, after(10)), []);
    psns.extend(arrived(&mut other, after(10)));
    assert_eq!(psns.len(), 1000);
    let back = psns.windows(2).filter(|pair| pair[1] < pair[0]).count();
    assert!((150..300).contains(&back), "{back}");
    psns.sort_unstable();
    assert_eq!(psns, (0..1000).map(Some).collect::<Vec<_>>());
}

#[test]
fn a_late_frame_comes_when_its_time_is_over() {
    let (mut wire, mut other) = faulty("delay=100%:5ms", 1);
    wire.send(after(0), &frame(1)).unwrap();
    wire.send(after(1), &frame(2)).unwrap();
    assert_eq!(wire.deadline(), Some(after(5)));
    for (time, psns) in [(4, vec![]), (5, vec![Some(1)]), (6, vec![Some(2)])] {
        assert_eq!(arrived(&mut wire, after(time)), []);
        assert_eq!(arrived(&mut other, after(time)), psns);
    }
}

#[test]
fn a_rate_spreads_frames_and_loses_what_waits_too_long() {
    let length = frame(0).len() as u64;
    let plan = format!("rate={}", length * 1000);
    let (mut wire, mut other) = faulty(&plan, 1);
    for psn in 0..100 {
        wire.send(after(0), &frame(psn)).unwrap();
    }
    let mut psns = Vec::new();
    for time in 0..60 {
        assert_eq!(arrived(&mut wire, after(time)), []);
        let now = arrived(&mut other, after(time));
        assert!(now.len() <= 1);
        psns.extend(now);
    }
    assert_eq!(psns, (0..=50).map(Some).collect::<Vec<_>>());
    let log = wire.sent();
    assert_eq!(log.lock().unwrap().counts.overrun, 49);
}

#[test]
fn damaged_frames_are_counted_as_often_as_they_pass() {
    let (mut wire, mut other) = faulty("corrupt=30%,duplicate=50%,drop=20%", 1);
    let mut damaged = 0;
    let mut buffer = [0; 200];
    for psn in 0..500 {
        wire.send(after(0), &frame(psn)).unwrap();
        while let Some(length) = other.receive(after(0), &mut buffer).unwrap() {
            damaged += u64::from(Frame::parse(&buffer[..length]).is_err());
        }
    }
    let counts = wire.sent().lock().unwrap().counts;
    assert_eq!(counts.damaged, damaged);
    assert!(counts.corrupted < damaged && damaged < 2 * counts.corrupted, "{counts:?}");
}

#[test]
fn what_comes_in_goes_wrong_too_and_what_is_not_roce_never() {
    let (one, mut other) = pair(1 << 20).unwrap();
    let mut wire = FaultyWire::new(one, WireFaults::NONE, "drop=100%".parse().unwrap(), 7);
    other.send(Time::ZERO, &frame(1)).unwrap();
    other.send(Time::ZERO, &[0xff; 60]).unwrap();
    let mut buffer = [0; 200];
    assert_eq!(wire.receive(Time::ZERO, &mut buffer).unwrap(), Some(60));
    assert_eq!(wire.receive(Time::ZERO, &mut buffer).unwrap(), None);
    assert_eq!(
        wire.received().lock().unwrap().counts,
        FaultCounts { frames: 1, dropped: 1, ..FaultCounts::default() }
    );
    wire.send(Time::ZERO, &frame(2)).unwrap();
    assert_eq!(arrived(&mut other, Time::ZERO), [Some(2)]);
    assert_eq!(wire.sent().lock().unwrap().counts, FaultCounts::default());
}

#[test]
fn plans_are_read_and_nonsense_is_refused() {
    let plan: WireFaults = "drop=1%, delay=12.5%:2ms,rate=1000".parse().unwrap();
    assert_eq!(plan.drop.parts_per_million(), 10_000);
    assert_eq!((plan.delay.parts_per_million(), plan.delay_by), (125_000, Duration::from_millis(2)));
    assert_eq!(plan.rate.map(std::num::NonZeroU64::get), Some(1000));
    assert!("".parse::<WireFaults>().unwrap().is_none() && !plan.is_none());
    for text in ["drop", "drop=1", "drop=101%", "drop=-1%", "delay=1%", "rate=0", "lose=1%", "drop=1.00001%"]
    {
        let error = text.parse::<WireFaults>().unwrap_err();
        assert!(error.to_string().contains("use drop=1%"), "{error}");
    }
}

#[test]
fn a_call_gives_up_when_frame_after_frame_is_lost() {
    let (one, mut other) = pair(1 << 20).unwrap();
    let mut wire = FaultyWire::new(one, WireFaults::NONE, "drop=100%".parse().unwrap(), 1);
    for psn in 0..100 {
        other.send(Time::ZERO, &frame(psn)).unwrap();
    }
    let mut buffer = [0; MAX_FRAME];
    for lost in [64, 100] {
        assert_eq!(wire.receive(Time::ZERO, &mut buffer).unwrap(), None);
        assert_eq!(wire.received().lock().unwrap().counts.dropped, lost);
    }
}
