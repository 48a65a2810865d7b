//! Drivers, functions, and which drives which.

mod why;

pub use why::{Outcome, Verdict, Why};

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use thiserror::Error;

use super::context::Context;
use super::driver::{Driver, StartError, StopReason};
use super::event_loop::EventLoop;
use super::instance::{Allowances, Factory, Instance};
use super::personality::{Personality, Rank};
use super::running::{CLOSE_ALLOWANCE, Running};
use super::session::Session;
use super::state::{DriverState, Failure};
use crate::hal::address::Bdf;
use crate::hal::config::ConfigError;
use crate::hal::function::{PciIdentity, PciNode};

/// Matches drivers with functions and starts them. Dropping it stops them all.
pub struct Registry {
    events: EventLoop,
    allowances: Allowances,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    entries: Vec<Entry>,
    records: Vec<Record>,
}

/// A personality and how to start its driver.
#[derive(Clone)]
struct Entry {
    personality: Personality,
    launch: Arc<Launch>,
}

type Launch =
    dyn Fn(&Arc<dyn PciNode>, &EventLoop, Allowances) -> Result<Box<dyn Started>, Failure> + Send + Sync;

/// What became of a function that was offered.
struct Record {
    function: String,
    address: Bdf,
    identity: Result<PciIdentity, ConfigError>,
    verdicts: Vec<Judged>,
}

struct Judged {
    personality: Personality,
    judgement: Judgement,
}

enum Judgement {
    Decided(Outcome),
    Started { rank: Rank, driver: Box<dyn Started> },
}

/// A started driver of any type.
trait Started: Send + Sync {
    fn state(&self) -> DriverState;
    fn request_stop(&self, reason: StopReason);
    fn wait(&self, timeout: Duration) -> DriverState;
    fn as_any(&self) -> &dyn Any;
}

impl<D: Driver> Started for Running<D> {
    fn state(&self) -> DriverState {
        Running::state(self)
    }

    fn request_stop(&self, reason: StopReason) {
        Running::request_stop(self, reason);
    }

    fn wait(&self, timeout: Duration) -> DriverState {
        Running::wait(self, timeout)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Registry {
    /// A registry without drivers, and its event loop.
    ///
    /// # Errors
    ///
    /// What the system reports, mostly "too many open files".
    pub fn new() -> io::Result<Self> {
        Self::with_allowances(Allowances::default())
    }

    /// As [`new`](Self::new), with other times for start and stop.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn with_allowances(allowances: Allowances) -> io::Result<Self> {
        Ok(Self { events: EventLoop::new()?, allowances, tables: Mutex::default() })
    }

    /// The event loop that the drivers share.
    #[must_use]
    pub fn events(&self) -> &EventLoop {
        &self.events
    }

    /// Adds a driver with the personalities that it declares.
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; nothing is added then.
    pub fn register<D: Driver>(&self) -> Result<(), RegisterError> {
        self.register_with(D::PERSONALITIES, D::start)
    }

    /// Adds a driver with other personalities, or one whose start needs more than a session:
    /// `factory` is called instead of [`Driver::start`].
    ///
    /// # Errors
    ///
    /// [`RegisterError`]; nothing is added then.
    pub fn register_with<D: Driver>(
        &self,
        personalities: &[Personality],
        factory: impl Fn(&Context<D>, Session) -> Result<D, StartError> + Send + Sync + 'static,
    ) -> Result<(), RegisterError> {
        let factory: Arc<Factory<D>> = Arc::new(factory);
        if personalities.is_empty() {
            return Err(RegisterError::NoPersonality { driver: std::any::type_name::<D>() });
        }
        let mut tables = self.tables();
        for (index, personality) in personalities.iter().enumerate() {
            let name = personality.name();
            if personality.matching().keys().next().is_none() {
                return Err(RegisterError::NoKey { personality: name });
            }
            let mut others =
                tables.entries.iter().map(|entry| &entry.personality).chain(&personalities[..index]);
            if others.any(|other| other.name() == name) {
                return Err(RegisterError::NameTaken { personality: name });
            }
        }
        tables.entries.extend(personalities.iter().map(|&personality| {
            let factory = Arc::clone(&factory);
            let launch: Arc<Launch> = Arc::new(move |node, events, allowances| {
                let instance = Instance::launch(node, personality, events, allowances, Arc::clone(&factory))?;
                Ok(Box::new(Running::new(instance)))
            });
            Entry { personality, launch }
        }));
        Ok(())
    }

    /// Offers a function: of the personalities that match, the one that ranks highest in each
    /// category has its driver started. Returns when `start` has returned or failed.
    ///
    /// A function that is driven already is busy, and stays driven.
    pub fn offer(&self, node: &Arc<dyn PciNode>) -> Why {
        let entries = self.tables().entries.clone();
        // Not locked: a driver's `start` may use the registry.
        let record = self.judge(node, &entries);
        let why = record.why();
        let mut tables = self.tables();
        let same = tables.records.iter_mut().find(|old| old.is_of(&**node));
        let replaced = match same {
            // Its driver stays; the caller is told why there is no second.
            Some(old) if old.why().is_driven() => Some(record),
            Some(old) => Some(std::mem::replace(old, record)),
            None => {
                tables.records.push(record);
                None
            }
        };
        drop(tables);
        drop(replaced);
        why
    }

    /// Offers a function that is expected to be driven by `D`.
    ///
    /// # Errors
    ///
    /// [`Why`] no driver of this type is running on it.
    pub fn start<D: Driver>(&self, node: &Arc<dyn PciNode>) -> Result<Running<D>, Why> {
        let why = self.offer(node);
        self.running(node.name()).ok_or(why)
    }

    /// The driver on a function, unless it has ended, is of another type, or never was.
    #[must_use]
    pub fn running<D: Driver>(&self, function: &str) -> Option<Running<D>> {
        let tables = self.tables();
        let records = tables.records.iter().filter(|record| record.function == function);
        let mut drivers = records.flat_map(Record::drivers).filter(|driver| !driver.state().is_final());
        drivers.find_map(|driver| driver.as_any().downcast_ref::<Running<D>>().cloned())
    }

    /// Why a function is driven, or is not; `None` when it was never offered.
    #[must_use]
    pub fn why(&self, function: &str) -> Option<Why> {
        self.tables().records.iter().find(|record| record.function == function).map(Record::why)
    }

    /// The same for every function that was offered, in order.
    #[must_use]
    pub fn overview(&self) -> Vec<Why> {
        self.tables().records.iter().map(Record::why).collect()
    }

    /// Stops all drivers at once and waits for them, as long as their time allows.
    pub fn shut_down(&self) {
        let records = std::mem::take(&mut self.tables().records);
        for driver in records.iter().flat_map(Record::drivers) {
            driver.request_stop(StopReason::Shutdown);
        }
        let begin = Instant::now();
        let allowed = self.allowances.stop.saturating_add(CLOSE_ALLOWANCE);
        for driver in records.iter().flat_map(Record::drivers) {
            let state = driver.wait(allowed.saturating_sub(begin.elapsed()));
            if !state.is_final() {
                log::error!("a driver is still {state} at shutdown");
            }
        }
    }

    fn judge(&self, node: &Arc<dyn PciNode>, entries: &[Entry]) -> Record {
        let identity = node.identity();
        let mut record = Record {
            function: node.name().to_owned(),
            address: node.address(),
            identity: identity.clone(),
            verdicts: Vec::new(),
        };
        let Ok(identity) = identity else { return record };
        let ranks: Vec<_> = entries.iter().map(|entry| entry.personality.rank(&identity)).collect();
        let mut winners: BTreeMap<&str, Rank> = BTreeMap::new();
        for (entry, rank) in entries.iter().zip(&ranks) {
            if let Ok(rank) = rank {
                let best = winners.entry(entry.personality.category_name()).or_insert(*rank);
                *best = (*best).max(*rank);
            }
        }
        let mut started: BTreeMap<&str, Result<Box<dyn Started>, Failure>> = BTreeMap::new();
        let mut order: Vec<Rank> = winners.values().copied().collect();
        order.sort_by(|one, other| other.cmp(one));
        for rank in order {
            if let Some(entry) = entries.iter().find(|entry| entry.personality.name() == rank.name) {
                started.insert(rank.name, (entry.launch)(node, &self.events, self.allowances));
            }
        }
        for (entry, rank) in entries.iter().zip(ranks) {
            let personality = entry.personality;
            let judgement = match rank {
                Err(miss) => Judgement::Decided(Outcome::Missed(miss)),
                Ok(rank) => match (started.remove(rank.name), winners.get(personality.category_name())) {
                    (Some(Ok(driver)), _) => Judgement::Started { rank, driver },
                    (Some(Err(failure)), _) => {
                        Judgement::Decided(Outcome::Won { rank, state: DriverState::Failed(failure) })
                    }
                    (None, winner) => {
                        Judgement::Decided(Outcome::Lost { rank, winner: winner.copied().unwrap_or(rank) })
                    }
                },
            };
            record.verdicts.push(Judged { personality, judgement });
        }
        record
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.overview()).finish()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shut_down();
    }
}

impl Record {
    fn is_of(&self, node: &dyn PciNode) -> bool {
        self.function == node.name() && self.address == node.address()
    }

    fn drivers(&self) -> impl Iterator<Item = &dyn Started> {
        self.verdicts.iter().filter_map(|judged| match &judged.judgement {
            Judgement::Started { driver, .. } => Some(&**driver),
            Judgement::Decided(_) => None,
        })
    }

    fn why(&self) -> Why {
        let verdicts = self.verdicts.iter().map(|judged| Verdict {
            personality: judged.personality.name(),
            category: judged.personality.category_name(),
            outcome: match &judged.judgement {
                Judgement::Decided(outcome) => outcome.clone(),
                Judgement::Started { rank, driver } => Outcome::Won { rank: *rank, state: driver.state() },
            },
        });
        Why {
            function: self.function.clone(),
            address: self.address,
            identity: self.identity.clone(),
            verdicts: verdicts.collect(),
        }
    }
}

/// Why a driver was not registered.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The driver has no personality.
    #[error("{driver} has no personality, so it would never be started")]
    NoPersonality {
        /// The type of the driver.
        driver: &'static str,
    },
    /// The personality has no key.
    #[error("personality {personality} has no match key: to match every function, say class \"0&0\"")]
    NoKey {
        /// The personality.
        personality: &'static str,
    },
    /// The name is not unique.
    #[error("there is a personality {personality} already: the name decides ties, so it must be unique")]
    NameTaken {
        /// The personality.
        personality: &'static str,
    },
}
