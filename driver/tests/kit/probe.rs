//! A driver that writes down what is done to it, and goes wrong where it is told to.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use vdk_driver::hal::address::ByteLength;
use vdk_driver::hal::event::DeviceEvent;
use vdk_driver::hal::interrupt::InterruptKind;
use vdk_driver::hal::memory::{Pages, SharedMemory};
use vdk_driver::hal::poll::{Deadline, SystemClock};
use vdk_driver::iommu::{AddressWidth, Bidirectional, DmaRegion, Domain};
use vdk_driver::kit::{
    Allowances, BusMasterGuard, Context, Driver, InterruptSource, PciMatch, Personality, Registry, Running,
    Session, StartError, StopReason, TimerSource,
};

use crate::fake::{FakeNode, Script};
use crate::queue::LONG;

/// Where the driver goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    StartFails,
    StartPanics,
    StartHangs,
    StopHangs,
    StopPanics,
    DropPanics,
}

pub(crate) struct Probe {
    note: Note,
    fault: Fault,
    gate: Gate,
    pub(crate) context: Context<Self>,
    session: Session,
    pub(crate) timer: TimerSource,
    pub(crate) interrupts: u64,
    _source: InterruptSource,
    _bus_master: BusMasterGuard,
    _region: DmaRegion<Bidirectional>,
}

type Note = Arc<dyn Fn(&str) + Send + Sync>;

/// Hangs until it is opened, and says that it hangs.
#[derive(Clone)]
pub(crate) struct Gate {
    hung: Sender<()>,
    opened: Arc<Mutex<Receiver<()>>>,
}

impl Gate {
    fn pass(&self) {
        let _ = self.hung.send(());
        let _ = self.opened.lock().unwrap().recv();
    }
}

/// A registry with a probe, a function, and what the test needs of both.
pub(crate) struct Bench {
    pub(crate) node: Arc<FakeNode>,
    pub(crate) registry: Registry,
    /// Dropping it opens the gate.
    pub(crate) open_gate: Option<Sender<()>>,
    pub(crate) hung: Receiver<()>,
}

/// Times to try one after the other where something has to begin within a time and then
/// not end: how soon it begins is the machine's business.
pub(crate) const SHORT: [Duration; 4] =
    [Duration::from_millis(20), Duration::from_millis(200), Duration::from_secs(2), Duration::from_secs(20)];
pub(crate) const PATIENT: Allowances = Allowances { start: LONG, stop: LONG, call: LONG };

impl Bench {
    pub(crate) fn new(name: &str, kind: InterruptKind, fault: Fault, allowances: Allowances) -> Self {
        let node = FakeNode::new(name, Script::default());
        let registry = Registry::with_allowances(allowances).unwrap();
        let (open_gate, opened) = channel();
        let (hung, hung_receiver) = channel();
        let gate = Gate { hung, opened: Arc::new(Mutex::new(opened)) };
        let note: Note = Arc::new(node.noter());
        let factory = move |context: &Context<Probe>, session: Session| {
            Probe::build(context, session, kind, fault, Arc::clone(&note), gate.clone())
        };
        registry.register_with(Probe::PERSONALITIES, factory).unwrap();
        Self { node, registry, open_gate: Some(open_gate), hung: hung_receiver }
    }

    pub(crate) fn start(&self) -> Running<Probe> {
        self.registry.start::<Probe>(&self.node.as_node()).unwrap_or_else(|why| panic!("{why}"))
    }

    /// The log without what was written before `start` of the driver.
    pub(crate) fn log_after(&self, what: &str) -> Vec<String> {
        let log = self.node.log();
        let from = log.iter().position(|line| line == what).unwrap_or_else(|| panic!("{what}: {log:?}"));
        log[from..].to_vec()
    }

    /// Waits until a line is in the log.
    pub(crate) fn wait_for(&self, what: &str, times: usize) {
        let begin = Instant::now();
        while self.count(what) < times {
            assert!(begin.elapsed() < LONG, "{what}: {:?}", self.node.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn count(&self, what: &str) -> usize {
        self.node.log().iter().filter(|line| *line == what).count()
    }
}

impl Probe {
    fn build(
        context: &Context<Self>,
        session: Session,
        kind: InterruptKind,
        fault: Fault,
        note: Note,
        gate: Gate,
    ) -> Result<Self, StartError> {
        note("start");
        session.enable_memory()?;
        let vectors = session.configure_interrupts(kind, 1, 1)?;
        let source = context.on_interrupt(&session, &vectors[0], |probe: &mut Self, interrupt| {
            probe.interrupts += interrupt.count;
            (probe.note)("interrupt");
        });
        let domain = Domain::new(session.dma()?, AddressWidth::FULL)?;
        let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).map_err(StartError::other)?;
        let region = domain.map(memory)?;
        let bus_master = session.enable_bus_master()?;
        match fault {
            Fault::StartFails => {
                vectors[0].event.signal(1);
                return Err(StartError::device("the probe was told to fail"));
            }
            Fault::StartPanics => panic!("the probe was told to panic in start"),
            Fault::StartHangs => gate.pass(),
            _ => {}
        }
        Ok(Self {
            timer: context.timer(|probe: &mut Self, _| (probe.note)("timer")),
            note,
            fault,
            gate,
            context: context.clone(),
            session,
            interrupts: 0,
            _source: source.map_err(StartError::other)?,
            _bus_master: bus_master,
            _region: region,
        })
    }

    pub(crate) fn note(&self, what: &str) {
        (self.note)(what);
    }

    pub(crate) fn hang(&self) {
        self.gate.pass();
    }
}

impl Driver for Probe {
    const PERSONALITIES: &'static [Personality] =
        &[Personality::new("probe", PciMatch::new().primary("0x11e81234"))];

    fn start(_context: &Context<Self>, _session: Session) -> Result<Self, StartError> {
        Err(StartError::device("probes are made by a factory"))
    }

    fn stop(&mut self, reason: StopReason, deadline: Deadline) {
        assert!(deadline.remaining(&SystemClock::new()) <= deadline.allowed());
        self.note(&format!("stop: {reason}"));
        assert!(self.session.is_open() || self.fault != Fault::None, "stopped before it is closed");
        match self.fault {
            Fault::StopHangs => self.gate.pass(),
            Fault::StopPanics => panic!("the probe was told to panic in stop"),
            _ => {}
        }
    }

    fn on_device_event(&mut self, event: DeviceEvent) {
        self.note(&format!("{event:?}"));
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.note("dropped");
        assert_ne!(self.fault, Fault::DropPanics, "the probe was told to panic in drop");
    }
}
