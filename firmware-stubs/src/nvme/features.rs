//! Set Features and Get Features.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use vdk_descriptors::nvme::{
    ALL_NAMESPACES, AsyncEventType, ErrorRecovery, FeatureDword, FeatureId, FeatureSelect, HealthEvent,
    InterruptVectorConfiguration, LogPage, NumberOfQueues, PowerManagement, Status, SubmissionEntry,
    TemperatureThreshold,
};
use vdk_iommu::soft::Burst;

use super::bus::Nvme;
use super::engine::Answer;
use super::logs::TEMPERATURE;
use super::transfer::Way;

/// The values that Set Features has set.
#[derive(Debug)]
pub(super) struct Features {
    words: [u32; WORDS.len()],
    /// Which vectors take no part in coalescing.
    uncoalesced: Vec<bool>,
    /// Milliseconds since the epoch, as set and when.
    time: Option<(u64, Instant)>,
}

/// What there is to know of a feature that is one word.
struct Word {
    id: FeatureId,
    default: u32,
    /// The bits that mean something.
    bits: u32,
    namespaced: bool,
}

impl Features {
    pub(super) fn new(vectors: u16) -> Self {
        Self { words: defaults(), uncoalesced: vec![false; usize::from(vectors)], time: None }
    }

    pub(super) fn reset(&mut self) {
        self.words = defaults();
        self.uncoalesced.fill(false);
        self.time = None;
    }

    /// Whether writes may be completed before they are durable.
    #[inline]
    pub(super) fn write_cache(&self) -> bool {
        self.words[WRITE_CACHE] & 1 != 0
    }

    /// The temperatures above and below which the host is told.
    pub(super) fn temperature_limits(&self) -> (u32, u32) {
        (self.words[OVER] & 0xffff, self.words[UNDER] & 0xffff)
    }

    fn milliseconds(&self) -> u64 {
        match self.time {
            Some((time, since)) => time.wrapping_add(milliseconds(since.elapsed())),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, milliseconds),
        }
    }
}

/// The host says that it lives from time to time.
#[derive(Debug, Default)]
pub(super) struct KeepAlive {
    timeout: Option<Duration>,
    due: Option<Instant>,
}

impl KeepAlive {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.due.is_some()
    }

    /// The host lives.
    pub(super) fn restart(&mut self) {
        self.due = self.timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    }

    fn set(&mut self, milliseconds: u32) {
        let timeout = Duration::from_millis(u64::from(milliseconds));
        self.timeout = (milliseconds > 0).then_some(timeout);
        self.restart();
    }

    fn milliseconds(&self) -> u32 {
        u32::try_from(milliseconds(self.timeout.unwrap_or_default())).unwrap_or(u32::MAX)
    }

    /// When the host is next due; an error when it is overdue, and `None` when the timer is
    /// off.
    pub(super) fn check(&mut self) -> Option<Result<Instant, ()>> {
        let due = self.due?;
        if Instant::now() < due {
            return Some(Ok(due));
        }
        self.due = None;
        Some(Err(()))
    }
}

impl Nvme {
    pub(super) fn write_feature(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
    ) -> Result<Answer, Status> {
        let dword = FeatureDword(command.dword10);
        let feature = dword.feature();
        let value = command.dword11;
        self.check_feature(feature)?;
        if dword.save() {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        match feature {
            FeatureId::NUMBER_OF_QUEUES => return self.set_number_of_queues(NumberOfQueues(value)),
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let wanted = InterruptVectorConfiguration(value);
                let place = self.admin.features.uncoalesced.get_mut(usize::from(wanted.vector()));
                *place.ok_or(Status::INVALID_FIELD)? = wanted.coalescing_disabled();
                return Ok(Answer::Done(0));
            }
            FeatureId::TIMESTAMP => {
                let page = self.registers.page_length();
                self.transfer.describe(command, 8, Way::FromHost, page, burst)?;
                let mut bytes = [0; 8];
                self.transfer.fetch(&mut bytes, burst)?;
                let time = u64::from_le_bytes(bytes) & TIME_BITS;
                self.admin.features.time = Some((time, Instant::now()));
                return Ok(Answer::Done(0));
            }
            FeatureId::KEEP_ALIVE_TIMER => {
                self.admin.keep_alive.set(value);
                return Ok(Answer::Done(0));
            }
            FeatureId::POWER_MANAGEMENT if PowerManagement(value).state() != 0 => {
                return Err(Status::INVALID_FIELD);
            }
            FeatureId::ERROR_RECOVERY if ErrorRecovery(value).deallocated_error() => {
                return Err(Status::INVALID_FIELD);
            }
            _ => {}
        }
        let place = place(feature, value)?;
        // PANIC: a place in the same table.
        let word = &WORDS[place];
        if word.namespaced {
            if command.namespace != ALL_NAMESPACES {
                Self::namespace(&mut self.namespaces, command)?;
            }
        } else if command.namespace != 0 && command.namespace != ALL_NAMESPACES {
            return Err(Status::FEATURE_NOT_NAMESPACE_SPECIFIC);
        }
        if value & !word.bits != 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.admin.features.words[place] = value;
        if feature == FeatureId::ASYNC_EVENT_CONFIGURATION {
            self.admin.events.configuration.0 = value;
        }
        if matches!(feature, FeatureId::TEMPERATURE_THRESHOLD | FeatureId::ASYNC_EVENT_CONFIGURATION) {
            self.watch_temperature();
        }
        Ok(Answer::Done(0))
    }

    pub(super) fn read_feature(
        &mut self,
        command: &SubmissionEntry,
        burst: &mut Burst<'_>,
    ) -> Result<Answer, Status> {
        let dword = FeatureDword(command.dword10);
        let feature = dword.feature();
        self.check_feature(feature)?;
        let current = match dword.select() {
            FeatureSelect::CURRENT => true,
            // Nothing is saved, so that what was saved is the default.
            FeatureSelect::DEFAULT | FeatureSelect::SAVED => false,
            FeatureSelect::SUPPORTED_CAPABILITIES => {
                let namespaced = WORDS.iter().any(|word| word.id == feature && word.namespaced);
                return Ok(Answer::Done(CHANGEABLE | if namespaced { NAMESPACED } else { 0 }));
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        let features = &self.admin.features;
        let value = match feature {
            FeatureId::NUMBER_OF_QUEUES => {
                let count = if current { self.admin.granted } else { self.pairs };
                queues(count).0
            }
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION => {
                let mut value = InterruptVectorConfiguration(command.dword11 & 0xffff);
                let disabled = features.uncoalesced.get(usize::from(value.vector()));
                value.set_coalescing_disabled(current && *disabled.ok_or(Status::INVALID_FIELD)?);
                value.0
            }
            FeatureId::TIMESTAMP => {
                let set = u64::from(current && features.time.is_some());
                let time = features.milliseconds() & TIME_BITS | set << 49;
                self.reply(command, &time.to_le_bytes(), 8, burst)?;
                0
            }
            FeatureId::KEEP_ALIVE_TIMER if current => self.admin.keep_alive.milliseconds(),
            FeatureId::KEEP_ALIVE_TIMER => 0,
            _ => {
                let place = place(feature, command.dword11)?;
                // PANIC: a place in the same table.
                if current { features.words[place] } else { WORDS[place].default }
            }
        };
        Ok(Answer::Done(value))
    }

    /// Tells the host when the temperature is beyond what it has set.
    pub(super) fn watch_temperature(&mut self) {
        let (over, under) = self.admin.features.temperature_limits();
        let beyond = u32::from(TEMPERATURE) >= over || u32::from(TEMPERATURE) <= under;
        if beyond && self.admin.events.configuration.health() & TEMPERATURE_WARNING != 0 {
            let event = HealthEvent::TEMPERATURE_THRESHOLD.0;
            self.admin.events.raise(AsyncEventType::HEALTH, event, LogPage::SMART);
        }
    }

    /// Whether there is a feature. Of the write cache there is nothing to say without one.
    fn check_feature(&self, feature: FeatureId) -> Result<(), Status> {
        let apart = [
            FeatureId::NUMBER_OF_QUEUES,
            FeatureId::INTERRUPT_VECTOR_CONFIGURATION,
            FeatureId::TIMESTAMP,
            FeatureId::KEEP_ALIVE_TIMER,
        ];
        let known = apart.contains(&feature) || WORDS.iter().any(|word| word.id == feature);
        let cached = self.namespaces.iter().any(super::namespace::Namespace::is_cached);
        if known && (cached || feature != FeatureId::VOLATILE_WRITE_CACHE) {
            Ok(())
        } else {
            Err(Status::INVALID_FIELD)
        }
    }

    /// Grants as many queues as are asked for and there. Only before the first is created.
    fn set_number_of_queues(&mut self, wanted: NumberOfQueues) -> Result<Answer, Status> {
        if self.queues.has_io() {
            return Err(Status::COMMAND_SEQUENCE_ERROR);
        }
        if wanted.submission() == u16::MAX || wanted.completion() == u16::MAX {
            return Err(Status::INVALID_FIELD);
        }
        let most = wanted.submission().max(wanted.completion()) + 1;
        self.admin.granted = most.min(self.pairs);
        Ok(Answer::Done(queues(self.admin.granted).0))
    }
}

fn queues(count: u16) -> NumberOfQueues {
    let mut value = NumberOfQueues(0);
    value.set_submission(count - 1);
    value.set_completion(count - 1);
    value
}

/// Which word of the table a feature means; temperatures have two.
fn place(feature: FeatureId, value: u32) -> Result<usize, Status> {
    if feature == FeatureId::TEMPERATURE_THRESHOLD {
        let threshold = TemperatureThreshold(value);
        return match (threshold.sensor(), threshold.kind()) {
            (0, 0) => Ok(OVER),
            (0, 1) => Ok(UNDER),
            _ => Err(Status::INVALID_FIELD),
        };
    }
    WORDS.iter().position(|word| word.id == feature).ok_or(Status::INVALID_FIELD)
}

fn defaults() -> [u32; WORDS.len()] {
    WORDS.map(|word| word.default)
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

const fn word(id: FeatureId, default: u32, bits: u32) -> Word {
    Word { id, default, bits, namespaced: false }
}

/// The features that are one word.
const WORDS: [Word; 9] = [
    word(FeatureId::ARBITRATION, 0x7, 0xffff_ff07),
    word(FeatureId::POWER_MANAGEMENT, 0, 0xff),
    word(FeatureId::TEMPERATURE_THRESHOLD, super::logs::WARNING_TEMPERATURE as u32, 0x003f_ffff),
    word(FeatureId::TEMPERATURE_THRESHOLD, 0x0010_0000, 0x003f_ffff),
    Word { id: FeatureId::ERROR_RECOVERY, default: 0, bits: 0x0001_ffff, namespaced: true },
    word(FeatureId::VOLATILE_WRITE_CACHE, 1, 0x1),
    word(FeatureId::INTERRUPT_COALESCING, 0, 0xffff),
    word(FeatureId::WRITE_ATOMICITY_NORMAL, 0, 0x1),
    word(FeatureId::ASYNC_EVENT_CONFIGURATION, 0, 0x0fff),
];
/// The temperature to stay below, and that to stay above.
const OVER: usize = 2;
const UNDER: usize = 3;
const WRITE_CACHE: usize = 5;
/// A timestamp has 48 bits.
const TIME_BITS: u64 = 0xffff_ffff_ffff;
/// Bits of the supported capabilities.
const NAMESPACED: u32 = 0x2;
const CHANGEABLE: u32 = 0x4;
/// The temperature bit of critical warnings.
const TEMPERATURE_WARNING: u8 = 0x02;
