//! A node in front of another, which lets a test reach the function behind its driver's back,
//! and has it refuse what hardware may not have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use vdk_hal::address::{BarIndex, Bdf};
use vdk_hal::bar::{Bar, BarAccess, BarError, BarInfo, BarPermissions, Liveness};
use vdk_hal::config::{ConfigError, ConfigSpace};
use vdk_hal::dma::DmaMapper;
use vdk_hal::event::DeviceEvents;
use vdk_hal::function::{OpenError, PciFunction, PciIdentity, PciNode};
use vdk_hal::interrupt::Interrupts;
use vdk_hal::mmio::Width;
use vdk_hal::reset::{ResetError, ResetKind};

/// What a function says of its resets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resets {
    /// What is behind it says.
    AsTheyAre,
    /// It has these kinds, and each fails.
    Fail(Vec<ResetKind>),
}

/// Called after each read of a register, with the BAR and the offset.
pub type ReadHook = Arc<dyn Fn(&Bar, u64) + Send + Sync>;

/// A node in front of another.
pub struct Tap {
    behind: Arc<dyn PciNode>,
    resets: Resets,
    read_hook: Option<ReadHook>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    function: Mutex<Option<Arc<dyn PciFunction>>>,
    asked: Mutex<Vec<ResetKind>>,
    /// See [`Tap::set_disobeys`].
    disobeys: AtomicBool,
}

impl Shared {
    fn disobeys(&self) -> bool {
        // ORDERING: SeqCst; nothing depends on its speed.
        self.disobeys.load(Ordering::SeqCst)
    }
}

struct TappedFunction {
    behind: Arc<dyn PciFunction>,
    resets: Resets,
    read_hook: Option<ReadHook>,
    shared: Arc<Shared>,
}

impl Tap {
    /// A node in front of `behind`.
    #[must_use]
    pub fn new(behind: Arc<dyn PciNode>, resets: Resets) -> Arc<Self> {
        Arc::new(Self { behind, resets, read_hook: None, shared: Arc::default() })
    }

    /// A node in front of `behind` that calls `hook` after each read of a register.
    #[must_use]
    pub fn with_read_hook(behind: Arc<dyn PciNode>, hook: ReadHook) -> Arc<Self> {
        let (resets, read_hook) = (Resets::AsTheyAre, Some(hook));
        Arc::new(Self { behind, resets, read_hook, shared: Arc::default() })
    }

    /// Whether no register answers and bus mastering does not go off from now on. Only a node
    /// with a read hook has its registers in its hand.
    pub fn set_disobeys(&self, disobeys: bool) {
        // ORDERING: SeqCst, as in `Shared::disobeys`.
        self.shared.disobeys.store(disobeys, Ordering::SeqCst);
    }

    /// The function that was opened last.
    #[must_use]
    pub fn function(&self) -> Option<Arc<dyn PciFunction>> {
        self.shared.function.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The resets that its driver has asked for.
    #[must_use]
    pub fn asked(&self) -> Vec<ResetKind> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl PciNode for Tap {
    fn name(&self) -> &str {
        self.behind.name()
    }

    fn address(&self) -> Bdf {
        self.behind.address()
    }

    fn identity(&self) -> Result<PciIdentity, ConfigError> {
        self.behind.identity()
    }

    fn open(&self) -> Result<Arc<dyn PciFunction>, OpenError> {
        let behind = self.behind.open()?;
        *self.shared.function.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&behind));
        let (resets, shared) = (self.resets.clone(), Arc::clone(&self.shared));
        let read_hook = self.read_hook.clone();
        Ok(Arc::new(TappedFunction { behind, resets, read_hook, shared }))
    }
}

impl PciFunction for TappedFunction {
    fn name(&self) -> &str {
        self.behind.name()
    }

    fn address(&self) -> Bdf {
        self.behind.address()
    }

    fn config(&self) -> &dyn ConfigSpace {
        self.behind.config()
    }

    fn bar_info(&self, index: BarIndex) -> Option<BarInfo> {
        self.behind.bar_info(index)
    }

    fn bar(&self, index: BarIndex) -> Result<Bar, BarError> {
        let behind = self.behind.bar(index)?;
        let (Some(info), Some(hook)) = (self.behind.bar_info(index), &self.read_hook) else {
            return Ok(behind);
        };
        let (hook, shared) = (Arc::clone(hook), Arc::clone(&self.shared));
        let access: Arc<dyn BarAccess> = Arc::new(TappedBar { behind, hook, shared });
        Ok(Bar::new(info, BarPermissions::READ_WRITE, Vec::new(), Some(access), Liveness::new()))
    }

    fn rom(&self) -> Result<Option<Vec<u8>>, BarError> {
        self.behind.rom()
    }

    fn interrupts(&self) -> &dyn Interrupts {
        self.behind.interrupts()
    }

    fn dma(&self) -> Arc<dyn DmaMapper> {
        self.behind.dma()
    }

    fn events(&self) -> &DeviceEvents {
        self.behind.events()
    }

    fn reset_kinds(&self) -> Vec<ResetKind> {
        match &self.resets {
            Resets::AsTheyAre => self.behind.reset_kinds(),
            Resets::Fail(kinds) => kinds.clone(),
        }
    }

    fn reset(&self, kind: ResetKind) -> Result<(), ResetError> {
        self.shared.asked.lock().unwrap_or_else(PoisonError::into_inner).push(kind);
        match &self.resets {
            Resets::AsTheyAre => self.behind.reset(kind),
            Resets::Fail(_) => Err(ResetError::NotSupported { function: self.name().to_owned(), kind }),
        }
    }

    fn set_bus_master(&self, on: bool) -> Result<(), ConfigError> {
        if self.shared.disobeys() { Ok(()) } else { self.behind.set_bus_master(on) }
    }

    fn close(&self) {
        self.behind.close();
    }
}

struct TappedBar {
    behind: Bar,
    hook: ReadHook,
    shared: Arc<Shared>,
}

impl TappedBar {
    fn check(&self) -> Result<(), BarError> {
        if self.shared.disobeys() {
            return Err(BarError::Asleep { bar: self.behind.info().index });
        }
        Ok(())
    }
}

impl BarAccess for TappedBar {
    fn read(&self, offset: u64, width: Width) -> Result<u64, BarError> {
        self.check()?;
        let value = match width {
            Width::U8 => self.behind.read::<u8>(offset).map(u64::from),
            Width::U16 => self.behind.read::<u16>(offset).map(u64::from),
            Width::U32 => self.behind.read::<u32>(offset).map(u64::from),
            Width::U64 => self.behind.read::<u64>(offset),
        };
        (self.hook)(&self.behind, offset);
        value
    }

    fn write(&self, offset: u64, width: Width, value: u64) -> Result<(), BarError> {
        self.check()?;
        let [b0, b1, b2, b3, ..] = value.to_le_bytes();
        match width {
            Width::U8 => self.behind.write(offset, b0),
            Width::U16 => self.behind.write(offset, u16::from_le_bytes([b0, b1])),
            Width::U32 => self.behind.write(offset, u32::from_le_bytes([b0, b1, b2, b3])),
            Width::U64 => self.behind.write(offset, value),
        }
    }
}
