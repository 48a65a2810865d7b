//! Random accesses through random mappings against a flat model.

use proptest::prelude::*;

use super::*;

/// A window of the address space: the bytes that a device should see, and what each page
/// allows; nothing where nothing is mapped.
struct Model {
    bytes: Vec<u8>,
    pages: Vec<Option<Permissions>>,
}

impl Model {
    /// Why byte `at` of the window cannot be accessed.
    fn refusal(&self, at: usize, write: bool) -> Option<TranslationFault> {
        let reason = match self.pages.get(at / 4096).copied().flatten() {
            None => FaultReason::NotMapped,
            Some(permissions) if write && !permissions.allows_write() => FaultReason::NotWritable,
            Some(permissions) if !write && !permissions.allows_read() => FaultReason::NotReadable,
            Some(_) => return None,
        };
        Some(fault(reason, WINDOW + u64::try_from(at).unwrap(), write))
    }

    fn copy(&mut self, to: usize, from: usize, length: usize) -> Result<(), TranslationFault> {
        for at in 0..length {
            let refusal = self.refusal(from + at, false).or_else(|| self.refusal(to + at, true));
            refusal.map_or(Ok(()), Err)?;
            self.bytes[to + at] = self.bytes[from + at];
        }
        Ok(())
    }

    fn write(&mut self, to: usize, bytes: impl Iterator<Item = u8>) -> Result<(), TranslationFault> {
        for (at, byte) in bytes.enumerate() {
            self.refusal(to + at, true).map_or(Ok(()), Err)?;
            self.bytes[to + at] = byte;
        }
        Ok(())
    }

    fn read(&self, from: usize, length: usize) -> Result<Vec<u8>, TranslationFault> {
        (from..from + length).map(|at| self.refusal(at, false).map_or(Ok(self.bytes[at]), Err)).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Copy(usize, usize, usize),
    Write(usize, Vec<u8>),
    Read(usize, usize),
    Fill(usize, usize, u64),
}

fn step() -> impl Strategy<Value = Step> {
    let place = || prop_oneof![0..BYTES, (0..PAGES, 0..64usize).prop_map(|(page, at)| page * 4096 + at)];
    let length = || prop_oneof![4 => 0..200usize, 2 => 0..3 * 4096usize, 1 => 0..BYTES, 1 => Just(64)];
    let bytes = prop::collection::vec(any::<u8>(), 0..300);
    prop_oneof![
        3 => (place(), place(), length()).prop_map(|(to, from, length)| Step::Copy(to, from, length)),
        1 => (place(), bytes).prop_map(|(to, bytes)| Step::Write(to, bytes)),
        1 => (place(), length()).prop_map(|(from, length)| Step::Read(from, length)),
        1 => (place(), length(), any::<u64>()).prop_map(|(to, length, word)| Step::Fill(to, length, word)),
    ]
}

/// Mappings, one after the other from the start of the window: pages, and what they allow.
fn layout() -> impl Strategy<Value = Vec<(u64, Option<Permissions>)>> {
    let permissions = prop_oneof![
        1 => Just(None),
        1 => Just(Some(Permissions::Read)),
        1 => Just(Some(Permissions::Write)),
        6 => Just(Some(Permissions::ReadWrite)),
    ];
    let pages = prop_oneof![3 => 1..6u64, 1 => 20..120u64];
    prop::collection::vec((pages, permissions), 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn accesses_agree_with_a_flat_model(
        layout in layout(),
        steps in prop::collection::vec(step(), 1..60),
        one_burst in any::<bool>(),
    ) {
        let (domain, _, mut device) = machine(SoftIommuOptions::default());
        let mut model = Model { bytes: vec![0; 2 * BYTES], pages: Vec::new() };
        let mut hosts = Vec::new();
        for (pages, permissions) in layout {
            let start = model.pages.len();
            let pages = pages.min(u64::try_from(PAGES.saturating_sub(start)).unwrap());
            if pages == 0 {
                break;
            }
            model.pages.extend((0..pages).map(|_| permissions));
            let Some(permissions) = permissions else { continue };
            let host = memory(pages);
            for at in 0..usize::try_from(pages).unwrap() * 64 {
                let word = u64::try_from((start * 64 + at) * 0x1_0001).unwrap();
                host.write_value(at * 64, &word).unwrap();
                model.bytes[start * 4096 + at * 64..][..8].copy_from_slice(&word.to_le_bytes());
            }
            domain.map(iova(WINDOW + u64::try_from(start).unwrap() * PAGE), &host, permissions).unwrap();
            hosts.push((start * 4096, host));
        }
        let at = |offset: usize| iova(WINDOW + u64::try_from(offset).unwrap());
        let size = |length: usize| u64::try_from(length).unwrap();
        let mut steps = steps.into_iter().peekable();
        while steps.peek().is_some() {
            let mut burst = device.burst().unwrap();
            let count = if one_burst { usize::MAX } else { 1 };
            for step in steps.by_ref().take(count) {
                match step {
                    // A copy that is divided moves overlapping bytes in parts.
                    Step::Copy(to, from, length) if to.abs_diff(from) < length => {}
                    Step::Copy(to, from, length) => prop_assert_eq!(
                        burst.copy(at(to), at(from), size(length)),
                        model.copy(to, from, length)
                    ),
                    Step::Write(to, bytes) => prop_assert_eq!(
                        burst.write(at(to), &bytes),
                        model.write(to, bytes.iter().copied())
                    ),
                    Step::Read(from, length) => {
                        let mut bytes = vec![0; length];
                        let result = burst.read(at(from), &mut bytes).map(|()| bytes);
                        prop_assert_eq!(result, model.read(from, length));
                    }
                    Step::Fill(to, length, word) => {
                        let bytes = word.to_le_bytes().into_iter().cycle().take(length);
                        prop_assert_eq!(burst.fill(at(to), size(length), word), model.write(to, bytes));
                    }
                }
            }
        }
        for (start, host) in hosts {
            let mut bytes = vec![0; host.length().to_usize().unwrap()];
            host.read(0, &mut bytes).unwrap();
            prop_assert!(bytes == model.bytes[start..start + bytes.len()]);
        }
    }
}

/// More than a burst moves at once.
const PAGES: usize = 200;
const BYTES: usize = PAGES * 4096;
const WINDOW: u64 = 0x7_ffe0_0000;
