//! The exclusive session of one driver with one function.

mod error;
mod gate;
mod space;

pub use error::SessionError;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::gate::{BUS_MASTER, COMMAND, MEMORY_SPACE};
use crate::hal::address::{BarIndex, Bdf};
use crate::hal::bar::{Bar, BarInfo};
use crate::hal::config::{ConfigError, ConfigSpace};
use crate::hal::dma::DmaMapper;
use crate::hal::event::DeviceEvents;
use crate::hal::function::{OpenError, PciFunction, PciNode};
use crate::hal::interrupt::{EventFd, InterruptKind, Interrupts};
use crate::hal::reset::{ResetError, ResetKind};

/// An open function. Clones share the session; when the last is dropped, or with
/// [`close`](Self::close), it ends.
///
/// # What is promised
///
/// - A function has one session at a time.
/// - Bus mastering is off when a session begins and when it has ended, and on only while
///   somebody holds a [`BusMasterGuard`].
/// - Memory decoding is as it was when a session begins, and off when it has ended.
/// - After the end every handle that came from the session answers "not open", also when the
///   driver hangs or has panicked.
///
/// Access before a session is open cannot be written: there is nothing to call it on.
#[derive(Clone)]
pub struct Session {
    handle: Arc<Handle>,
}

struct Handle {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    holder: String,
    function: Arc<dyn PciFunction>,
    /// `None` when the session is closed.
    state: Mutex<Option<Open>>,
}

struct Open {
    memory: bool,
    bus_master_guards: u32,
    /// What `configure_interrupts` enabled; enabled again after a reset.
    vectors: Option<(InterruptKind, Vec<Option<EventFd>>)>,
    _reservation: Reservation,
}

/// The right to open a node; nobody else in this process has it.
struct Reservation {
    /// Kept alive, so that its address names nothing else.
    node: Arc<dyn PciNode>,
}

/// A vector that is enabled and signals an event file.
#[derive(Clone, Debug)]
pub struct InterruptVector {
    /// The kind.
    pub kind: InterruptKind,
    /// Its number.
    pub index: u16,
    /// What it signals.
    pub event: EventFd,
}

impl Session {
    /// Opens a function for `holder`, a name that others are told while it is open.
    ///
    /// Bus mastering is checked, and turned off if it is on. The rest of the Command
    /// register is left alone.
    ///
    /// # Errors
    ///
    /// - [`SessionError::Open`], with [`OpenError::Busy`] when it is open already;
    /// - [`SessionError::BusMasterStuck`], [`SessionError::Config`]: it was closed again.
    pub fn open(node: &Arc<dyn PciNode>, holder: &str) -> Result<Self, SessionError> {
        let reservation = Reservation::new(node, holder)?;
        let function = node.open()?;
        let open = Open { memory: false, bus_master_guards: 0, vectors: None, _reservation: reservation };
        let inner = Inner {
            name: function.name().to_owned(),
            holder: holder.to_owned(),
            function,
            state: Mutex::new(Some(open)),
        };
        let session = Self { handle: Arc::new(Handle { inner: Arc::new(inner) }) };
        session.handle.inner.start()?;
        Ok(session)
    }

    /// What a person calls the function.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.handle.inner.name
    }

    /// Where the function sits.
    #[must_use]
    pub fn address(&self) -> Bdf {
        self.handle.inner.function.address()
    }

    /// Whether the session is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.handle.inner.is_open()
    }

    /// Configuration space. Memory Space Enable and Bus Master Enable of the Command register
    /// keep their values whatever is written: use [`enable_memory`](Self::enable_memory) and
    /// [`enable_bus_master`](Self::enable_bus_master).
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`].
    pub fn config(&self) -> Result<&dyn ConfigSpace, SessionError> {
        self.open_inner().map(|inner| inner as &dyn ConfigSpace)
    }

    /// The BAR with a number; `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`].
    pub fn bar_info(&self, index: BarIndex) -> Result<Option<BarInfo>, SessionError> {
        Ok(self.open_inner()?.function.bar_info(index))
    }

    /// Access to a BAR. It answers "not open" after the end of the session.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`], [`SessionError::Bar`].
    pub fn bar(&self, index: BarIndex) -> Result<Bar, SessionError> {
        Ok(self.open_inner()?.function.bar(index)?)
    }

    /// The expansion ROM image; `None` when there is none.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`], [`SessionError::Bar`].
    pub fn rom(&self) -> Result<Option<Vec<u8>>, SessionError> {
        Ok(self.open_inner()?.function.rom()?)
    }

    /// The interrupts themselves, for masking and the like.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`].
    pub fn interrupts(&self) -> Result<&dyn Interrupts, SessionError> {
        Ok(self.open_inner()?.function.interrupts())
    }

    /// Enables up to `wanted` vectors of a kind, `required` at least, each with an event file
    /// of its own. All at once, since most backends cannot add any later. They are enabled
    /// again after a [`reset`](Self::reset).
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`], [`SessionError::TooFewVectors`], [`SessionError::EventFile`],
    /// [`SessionError::Interrupt`], mostly "already enabled".
    pub fn configure_interrupts(
        &self,
        kind: InterruptKind,
        required: u16,
        wanted: u16,
    ) -> Result<Vec<InterruptVector>, SessionError> {
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        let open = state.as_mut().ok_or_else(|| inner.not_open())?;
        let interrupts = inner.function.interrupts();
        let available = interrupts.vector_count(kind);
        let mut count = available.min(wanted.max(required));
        if kind == InterruptKind::Msi && count > 0 {
            // MSI comes in powers of two; the largest that is not too many.
            count = 1 << count.ilog2();
        }
        if count < required.max(1) {
            let (function, required) = (inner.name.clone(), required.max(1));
            return Err(SessionError::TooFewVectors { function, kind, available, required });
        }
        let vectors = (0..count)
            .map(|index| Ok(InterruptVector { kind, index, event: EventFd::new()? }))
            .collect::<std::io::Result<Vec<_>>>()
            .map_err(|error| SessionError::EventFile { error: error.kind() })?;
        let events: Vec<_> = vectors.iter().map(|vector| Some(vector.event.clone())).collect();
        interrupts.enable(kind, &events)?;
        open.vectors = Some((kind, events));
        Ok(vectors)
    }

    /// Disables what [`configure_interrupts`](Self::configure_interrupts) enabled, so that
    /// another kind or count can be enabled. Without any it succeeds.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`], [`SessionError::Interrupt`].
    pub fn disable_interrupts(&self) -> Result<(), SessionError> {
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        let open = state.as_mut().ok_or_else(|| inner.not_open())?;
        let interrupts = inner.function.interrupts();
        if let Some(kind) = interrupts.enabled() {
            interrupts.disable_all(kind)?;
        }
        open.vectors = None;
        Ok(())
    }

    /// Lets a level-triggered or masked vector fire again.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`], [`SessionError::Interrupt`].
    pub fn unmask(&self, kind: InterruptKind, index: u16) -> Result<(), SessionError> {
        Ok(self.open_inner()?.function.interrupts().unmask(kind, index)?)
    }

    /// The address space that the function's DMA goes through. DMA needs bus mastering too.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`].
    pub fn dma(&self) -> Result<Arc<dyn DmaMapper>, SessionError> {
        Ok(self.open_inner()?.function.dma())
    }

    /// Turns memory decoding on; it goes off with the session.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`], [`SessionError::Config`].
    pub fn enable_memory(&self) -> Result<(), SessionError> {
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        let open = state.as_mut().ok_or_else(|| inner.not_open())?;
        inner.set_memory_space(true)?;
        open.memory = true;
        Ok(())
    }

    /// Turns bus mastering on for as long as a guard is held.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`], [`SessionError::Config`].
    pub fn enable_bus_master(&self) -> Result<BusMasterGuard, SessionError> {
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        let open = state.as_mut().ok_or_else(|| inner.not_open())?;
        // Also when others hold a guard: a reset that failed may have turned it off.
        inner.function.set_bus_master(true)?;
        open.bus_master_guards += 1;
        Ok(BusMasterGuard { inner: Arc::clone(inner) })
    }

    /// The kinds of reset that work, best first.
    ///
    /// # Errors
    ///
    /// [`SessionError::NotOpen`].
    pub fn reset_kinds(&self) -> Result<Vec<ResetKind>, SessionError> {
        Ok(self.open_inner()?.function.reset_kinds())
    }

    /// Resets the function, then puts back memory decoding, the vectors of
    /// [`configure_interrupts`](Self::configure_interrupts), and bus mastering last. What
    /// the device itself was set up for is gone; mappings stay.
    ///
    /// # Errors
    ///
    /// - [`SessionError::NotOpen`];
    /// - [`SessionError::Reset`]: the function was not reset, or, with
    ///   [`ResetError::LinkDown`], it was. What is put back after a reset was put back, but not
    ///   after [`ResetError::TimedOut`];
    /// - [`SessionError::Config`], [`SessionError::Interrupt`]: the reset was done, but what
    ///   comes after it was not; bus mastering is off.
    pub fn reset(&self, kind: ResetKind) -> Result<(), SessionError> {
        let inner = &self.handle.inner;
        let mut state = inner.lock();
        let open = state.as_mut().ok_or_else(|| inner.not_open())?;
        let Err(error) = inner.function.reset(kind) else { return inner.put_back(open) };
        let is_silent = matches!(error, ResetError::TimedOut { .. });
        // One that does not answer stays off the bus.
        let put_back = if is_silent { Ok(()) } else { inner.put_back(open) };
        put_back.unwrap_or_else(|left| log::warn!("{error}, and after that: {left}"));
        Err(error.into())
    }

    /// Turns interrupts and bus mastering off for good, but leaves the rest usable, so that
    /// a driver that has stopped can free its memory before the close.
    pub(crate) fn quiesce(&self) {
        let inner = &self.handle.inner;
        if let Some(open) = &mut *inner.lock() {
            open.vectors = None;
            inner.interrupts_off();
            inner.bus_master_off();
        }
    }

    /// Ends the session: interrupts off, bus mastering off, memory decoding off, the
    /// function closed. Closing twice is harmless.
    pub fn close(&self) {
        self.handle.inner.close();
    }

    /// Unmasks a vector from elsewhere without keeping the session open.
    pub(crate) fn unmasker(&self, kind: InterruptKind, index: u16) -> impl FnMut() + Send + use<> {
        let inner = Arc::downgrade(&self.handle.inner);
        move || {
            let Some(inner) = inner.upgrade().filter(|inner| inner.is_open()) else { return };
            if let Err(error) = inner.function.interrupts().unmask(kind, index) {
                log::warn!("{}: {kind} vector {index} stays masked: {error}", inner.name);
            }
        }
    }

    /// What the function tells out of band: that it is gone, that the kernel wants it back,
    /// that it had an error. Where the kit runs the driver, it takes these and tells it.
    #[must_use]
    pub fn events(&self) -> &DeviceEvents {
        self.handle.inner.function.events()
    }

    fn open_inner(&self) -> Result<&Inner, SessionError> {
        let inner = &*self.handle.inner;
        if inner.is_open() { Ok(inner) } else { Err(inner.not_open()) }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.handle.inner;
        write!(f, "Session({} for {}, open: {})", inner.name, inner.holder, inner.is_open())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.close();
    }
}

/// Bus mastering is on while at least one guard is held and the session is open. A
/// [reset](Session::reset) that fails may leave it off until the next guard.
///
/// A driver declares it above the memory that the device reaches: fields are dropped in
/// order, so the device is off the bus when the memory goes.
#[must_use = "bus mastering goes off when the guard is dropped"]
pub struct BusMasterGuard {
    inner: Arc<Inner>,
}

impl fmt::Debug for BusMasterGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BusMasterGuard").field(&self.inner.name).finish()
    }
}

impl Drop for BusMasterGuard {
    fn drop(&mut self) {
        let mut state = self.inner.lock();
        let Some(open) = &mut *state else { return };
        open.bus_master_guards = open.bus_master_guards.saturating_sub(1);
        if open.bus_master_guards == 0 {
            self.inner.bus_master_off();
        }
    }
}

impl Inner {
    /// What comes after a reset: memory decoding, vectors, and bus mastering last.
    fn put_back(&self, open: &Open) -> Result<(), SessionError> {
        if open.memory {
            self.set_memory_space(true)?;
        }
        let interrupts = self.function.interrupts();
        if let Some((kind, events)) = open.vectors.as_ref().filter(|_| interrupts.enabled().is_none()) {
            interrupts.enable(*kind, events)?;
        }
        if open.bus_master_guards > 0 {
            self.function.set_bus_master(true)?;
        }
        Ok(())
    }

    /// What a session begins with: bus mastering off, whoever had it on before.
    fn start(&self) -> Result<(), SessionError> {
        let config = self.function.config();
        if config.read16(COMMAND)? & BUS_MASTER == 0 {
            return Ok(());
        }
        log::warn!("{}: bus mastering was on after open; turning it off", self.name);
        self.function.set_bus_master(false)?;
        if config.read16(COMMAND)? & BUS_MASTER != 0 {
            return Err(SessionError::BusMasterStuck { function: self.name.clone() });
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        locked(&self.state)
    }

    fn is_open(&self) -> bool {
        self.lock().is_some()
    }

    fn not_open(&self) -> SessionError {
        SessionError::NotOpen { function: self.name.clone() }
    }

    fn close(&self) {
        let mut state = self.lock();
        if state.is_none() {
            return;
        }
        self.interrupts_off();
        self.bus_master_off();
        if let Err(error) = self.set_memory_space(false) {
            log::debug!("{}: memory decoding was not turned off: {error}", self.name);
        }
        self.function.close();
        // The reservation ends last: whoever opens the node next finds the function closed.
        *state = None;
    }

    fn interrupts_off(&self) {
        let interrupts = self.function.interrupts();
        if let Some(kind) = interrupts.enabled()
            && let Err(error) = interrupts.disable_all(kind)
        {
            log::debug!("{}: interrupts were not turned off: {error}", self.name);
        }
    }

    fn bus_master_off(&self) {
        match self.function.set_bus_master(false) {
            Ok(()) => {}
            // It cannot master the bus any more.
            Err(ConfigError::DeviceGone | ConfigError::NotOpen) => {}
            Err(error) => log::error!("{}: bus mastering was not turned off: {error}", self.name),
        }
    }

    fn set_memory_space(&self, on: bool) -> Result<(), SessionError> {
        let config = self.function.config();
        let command = config.read16(COMMAND)?;
        let wanted = if on { command | MEMORY_SPACE } else { command & !MEMORY_SPACE };
        if wanted != command {
            config.write16(COMMAND, wanted)?;
        }
        Ok(())
    }
}

impl Reservation {
    fn new(node: &Arc<dyn PciNode>, holder: &str) -> Result<Self, OpenError> {
        match locked(&HOLDERS).entry(node_key(node)) {
            Entry::Vacant(entry) => entry.insert(holder.to_owned()),
            Entry::Occupied(entry) => {
                let (function, holder) = (node.name().to_owned(), entry.get().clone());
                return Err(OpenError::Busy { function, holder });
            }
        };
        Ok(Self { node: Arc::clone(node) })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        locked(&HOLDERS).remove(&node_key(&self.node));
    }
}

fn node_key(node: &Arc<dyn PciNode>) -> usize {
    Arc::as_ptr(node).cast::<()>().addr()
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Who has which node open in this process, by the address of the node.
static HOLDERS: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());
