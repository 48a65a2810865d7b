//! The host of the attacked queue pair, and the judge of what it does.
//!
//! The memory is the real table of keys. Beside it stands what was granted, in plain lists,
//! and a copy of all bytes: an access that succeeds must have been granted, and in the end
//! nothing but what it wrote may have changed.

use std::collections::VecDeque;

use vdk_firmware_stubs::roce::{
    Atomic, Completion, Event, Host, KeyTable, Memory, MemoryError, ProtectionDomain, Reach, Registration,
    Rights, ScatterGatherEntry, Side, Status,
};

use super::Script;

/// The domain of the queue pair, and one that it is not in.
pub(crate) const DOMAIN: ProtectionDomain = ProtectionDomain(1);
const ELSEWHERE: ProtectionDomain = ProtectionDomain(2);
/// The length of each region.
pub(crate) const LENGTH: u64 = 4096;
/// What a call may do at most: accesses to memory, and completions.
const MOST_ACCESSES: u32 = 16;
const MOST_COMPLETIONS: u32 = 8 + 4 + 2;

/// A posted request that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) entries: Vec<ScatterGatherEntry>,
    pub(crate) signaled: bool,
    /// Whether its memory is written.
    pub(crate) answered: bool,
}

struct Region {
    registration: Registration,
    domain: ProtectionDomain,
    rights: Rights,
    alive: bool,
    invalidated: bool,
    copy: Vec<u8>,
}

/// Memory, completions and what was granted.
pub(crate) struct Ward {
    table: KeyTable,
    /// Local memory, memory open to the peer, memory closed to it, and another domain's.
    regions: [Region; 4],
    /// What the queue pair lets the peer do.
    access: Rights,
    pub(crate) sends: VecDeque<Posted>,
    pub(crate) receives: VecDeque<Posted>,
    accesses: u32,
    completions: u32,
    /// Whether memory fails although its key is good.
    faulty: bool,
    /// Nobody else touches anything: memory is as good as its keys.
    quiet: bool,
}

impl Ward {
    pub(crate) fn new(open: Rights, access: Rights) -> Self {
        let mut table = KeyTable::default();
        let length = usize::try_from(LENGTH).expect("small");
        let mut region = |domain, rights, filling| {
            let copy = vec![filling; length];
            let registration = table.register(domain, rights, copy.clone()).expect("there is room");
            Region { registration, domain, rights, alive: true, invalidated: false, copy }
        };
        let regions = [
            region(DOMAIN, Rights::LOCAL_WRITE, 0x10),
            region(DOMAIN, open, 0x20),
            region(DOMAIN, Rights::NONE, 0x5e),
            region(ELSEWHERE, Rights::ALL, 0x6f),
        ];
        Self {
            table,
            regions,
            access,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            accesses: 0,
            completions: 0,
            faulty: false,
            quiet: false,
        }
    }

    /// The region that the peer may know.
    pub(crate) fn open(&self) -> Registration {
        self.regions[1].registration
    }

    pub(crate) fn regions(&self) -> [Registration; 4] {
        [0, 1, 2, 3].map(|index: usize| self.regions[index].registration)
    }

    /// A piece of local memory; seldom one that may not be used.
    pub(crate) fn entry(&self, script: &mut Script<'_>) -> ScatterGatherEntry {
        let region = match script.byte() {
            240.. => script.pick(&self.regions()),
            _ => self.regions[0].registration,
        };
        let offset = script.below(256) * 8;
        let length = match script.byte() {
            255 => script.half(),
            byte => u32::from(byte) * 8,
        };
        ScatterGatherEntry { address: region.address + offset, length, key: region.key }
    }

    /// Eight bytes of local memory.
    pub(crate) fn word(&self, script: &mut Script<'_>) -> ScatterGatherEntry {
        ScatterGatherEntry { length: 8, ..self.entry(script) }
    }

    /// Makes memory fail, or a key die.
    pub(crate) fn trouble(&mut self, script: &mut Script<'_>) {
        let index = usize::try_from(script.below(2)).unwrap_or(0);
        let region = &mut self.regions[index];
        match script.below(16) {
            0 if region.alive => {
                let bytes = self.table.deregister(region.registration.key).expect("it is alive");
                assert!(bytes == region.copy, "only what was written has changed");
                region.alive = false;
            }
            1..4 => self.faulty = !self.faulty,
            _ => {}
        }
    }

    /// Lets memory work again.
    pub(crate) fn calm(&mut self) {
        (self.faulty, self.quiet) = (false, true);
    }

    /// A call is over: it must have done little.
    pub(crate) fn check_call(&mut self) {
        assert!(self.accesses <= MOST_ACCESSES, "{} accesses in one call", self.accesses);
        assert!(self.completions <= MOST_COMPLETIONS, "{} completions in one call", self.completions);
        (self.accesses, self.completions) = (0, 0);
    }

    /// What is posted was dropped with the change to Reset.
    pub(crate) fn forget(&mut self) {
        self.sends.clear();
        self.receives.clear();
    }

    /// What destroying gave back must be all that did not end, and memory must be as it was
    /// apart from what was written by right.
    pub(crate) fn finish(mut self, left: &[(Side, u64)], sides: [Side; 2]) {
        for side in sides {
            let given = left.iter().filter(|(of, _)| *of == side).map(|(_, id)| *id).collect::<Vec<_>>();
            let posted = if side == Side::Send { &mut self.sends } else { &mut self.receives };
            // Those without a signal may have ended and said nothing.
            while posted.len() > given.len() && posted.front().is_some_and(|first| !first.signaled) {
                posted.pop_front();
            }
            assert!(
                given.iter().eq(posted.iter().map(|posted| &posted.id)),
                "given back: {given:?} of {posted:?}"
            );
        }
        for region in self.regions.iter().filter(|region| region.alive) {
            let bytes = self.table.bytes(region.registration.key);
            assert!(bytes == Some(region.copy.as_slice()), "only what was written has changed");
        }
    }

    /// Whether `reach` was granted, by the lists and not by the table.
    fn is_granted(&self, reach: &Reach) -> bool {
        let inside = |entry: &ScatterGatherEntry| {
            let end = |address: u64, length: u32| u128::from(address) + u128::from(length);
            entry.key == reach.key
                && entry.address <= reach.address
                && end(reach.address, reach.length) <= end(entry.address, entry.length)
        };
        if reach.rights == Rights::NONE {
            return self.sends.iter().any(|posted| !posted.answered && posted.entries.iter().any(inside));
        }
        if reach.rights == Rights::LOCAL_WRITE {
            let answers = self.sends.iter().filter(|posted| posted.answered);
            return self
                .receives
                .front()
                .into_iter()
                .chain(answers)
                .any(|posted| posted.entries.iter().any(inside));
        }
        self.access.allow(reach.rights)
    }

    /// Where `reach` is: in the one region that has its key, alive, with the rights.
    fn place(&mut self, reach: &Reach) -> Option<&mut [u8]> {
        let region = self.regions.iter_mut().find(|region| region.registration.key == reach.key)?;
        let local = reach.rights == Rights::NONE || reach.rights == Rights::LOCAL_WRITE;
        let open = region.alive
            && region.domain == reach.domain
            && region.rights.allow(reach.rights)
            && (local || !region.invalidated);
        let start = usize::try_from(reach.address.checked_sub(region.registration.address)?).ok()?;
        let end = start.checked_add(usize::try_from(reach.length).ok()?)?;
        region.copy.get_mut(start..end).filter(|_| open)
    }

    /// Counts an access, and lets it fail when memory does.
    fn begin(&mut self, reach: &Reach) -> Result<(), MemoryError> {
        self.accesses += 1;
        assert!(self.is_granted(reach), "{reach:?} was not granted");
        if self.faulty { Err(MemoryError::Fault { address: reach.address }) } else { Ok(()) }
    }
}

impl Memory for Ward {
    fn check(&self, reach: &Reach) -> Result<(), MemoryError> {
        self.table.check(reach)
    }

    fn read(&mut self, reach: &Reach, bytes: &mut [u8]) -> Result<(), MemoryError> {
        self.begin(reach)?;
        let result = self.table.read(reach, bytes);
        let place = self.place(reach);
        assert_eq!(result.is_ok(), place.is_some(), "{reach:?}: {result:?}");
        assert!(place.is_none_or(|place| place == bytes), "what is read is what is there");
        result
    }

    fn write(&mut self, reach: &Reach, bytes: &[u8]) -> Result<(), MemoryError> {
        self.begin(reach)?;
        let result = self.table.write(reach, bytes);
        let place = self.place(reach);
        assert_eq!(result.is_ok(), place.is_some(), "{reach:?}: {result:?}");
        if let Some(place) = place {
            place.copy_from_slice(bytes);
        }
        result
    }

    fn atomic(&mut self, reach: &Reach, operation: Atomic) -> Result<u64, MemoryError> {
        self.begin(reach)?;
        assert!(reach.length == 8 && reach.address.is_multiple_of(8), "{reach:?}");
        let result = self.table.atomic(reach, operation);
        let place = self.place(reach);
        assert_eq!(result.is_ok(), place.is_some(), "{reach:?}: {result:?}");
        if let Some(place) = place.and_then(|place| place.first_chunk_mut()) {
            let original = u64::from_ne_bytes(*place);
            assert_eq!(result, Ok(original));
            *place = operation.apply(original).to_ne_bytes();
        }
        result
    }

    fn invalidate(&mut self, domain: ProtectionDomain, key: u32) -> Result<(), MemoryError> {
        self.accesses += 1;
        let result = self.table.invalidate(domain, key);
        let region = self.regions.iter_mut().find(|region| region.registration.key == key);
        let region = region.filter(|region| {
            region.alive && region.domain == domain && region.rights.allow(Rights::REMOTE_INVALIDATE)
        });
        assert_eq!(result.is_ok(), region.is_some(), "{key:#x}: {result:?}");
        if let Some(region) = region {
            region.invalidated = true;
        }
        result
    }
}

impl Host for Ward {
    fn complete(&mut self, side: Side, completion: Completion) {
        self.completions += 1;
        let posted = if side == Side::Send { &mut self.sends } else { &mut self.receives };
        while let Some(first) = posted.pop_front() {
            if first.id == completion.id() {
                let silent = !first.signaled && completion.status().is_none();
                assert!(!silent, "{completion:?} was not asked for");
                return;
            }
            // Before a success or an error, those without a signal have ended well.
            let flushed = completion.status() == Some(Status::Flushed);
            assert!(!first.signaled && (!flushed || side == Side::Send), "{completion:?} before {first:?}");
        }
        panic!("{completion:?} of nothing that is posted");
    }

    fn event(&mut self, _: Event) {}
}
