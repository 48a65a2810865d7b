//! One client, from its first message to its end.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::io::Errno;
use vdk_hal::event::DeviceEvent;
use vdk_hal::function::{OpenError, PciFunction};
use vdk_hal::interrupt::EventFd;
use vdk_hal::reset::ResetKind;
use vdk_hal::vfio_user::message::{
    Command, DeviceInfo, DmaMap, DmaUnmap, Header, InterruptIndex, InterruptInfo, RegionDescription,
    argument_size, region,
};
use vdk_hal::vfio_user::transport::{Channel, Message, TransportError};
use vdk_iommu::soft::RemoteMemory;
use zerocopy::FromBytes;

use super::conversation::{Conversation, Over};
use super::description::Description;
use super::interrupts::InterruptSetup;
use super::memory::ClientMemory;
use super::negotiation::{Agreement, FIRST_TIME, error_header, refuse, reply_header};
use super::regions;
use super::reply::{Answer, Refusal, Reply};
use super::server::{ServerOptions, wait};
use crate::shell::{StubFunction, StubNode};

/// A client that has the device. The fields are dropped in their order: the device loses
/// its way to memory before the memory is let go.
pub(super) struct Session {
    function: Arc<StubFunction>,
    description: Description,
    interrupts: InterruptSetup,
    memory: ClientMemory,
    conversation: Arc<Conversation>,
    faults: u64,
}

/// Why a session ended.
#[derive(Debug)]
enum End {
    /// The server is to stop.
    Stopped,
    /// The function was removed.
    Removed,
    /// The client is gone.
    Gone,
    /// The client makes no sense.
    Broken(String),
}

impl Session {
    /// Serves a client until its end, whatever that is. The device is free again then, and
    /// nothing of the client's is held but `channel`.
    pub(super) fn serve(channel: &Arc<Channel>, node: &StubNode, options: ServerOptions, stop: &EventFd) {
        let function = match node.open_stub() {
            Ok(function) => function,
            Err(error) => {
                log::warn!("a client was refused: {error}");
                return refuse(channel, error_of_open(&error));
            }
        };
        let name = function.name().to_owned();
        match Self::begin(channel, function, options) {
            Ok(mut session) => {
                log::info!("{name}: a client has the device");
                let end = session.run(stop);
                session.finish();
                match end {
                    End::Broken(reason) => log::warn!("{name}: the client was dropped: {reason}"),
                    other => log::info!("{name}: the client's session ended: {other:?}"),
                }
            }
            Err(reason) => log::warn!("{name}: a client did not begin: {reason}"),
        }
    }

    /// Negotiates.
    fn begin(
        channel: &Arc<Channel>,
        function: Arc<StubFunction>,
        options: ServerOptions,
    ) -> Result<Self, String> {
        let first = channel.receive(FIRST_TIME).map_err(|error| error.to_string())?;
        let refused = |error: Errno, reason: String| {
            // The client may be gone; it is not served in either case.
            let _ = channel.send(error_header(&first.header, error), &[], &[]);
            reason
        };
        let agreement =
            Agreement::from_first(&first).map_err(|refusal| refused(refusal.error, refusal.reason))?;
        let description = Description::of(&*function, options.mapped_doorbells);
        if description.exports_doorbells() {
            function.expect_silent_doorbells();
        }
        let conversation = Conversation::new(Arc::clone(channel), agreement.max_transfer());
        let conversation = conversation.map_err(|error| refused(Errno::NFILE, error.to_string()))?;
        let remote = Arc::clone(&conversation) as Arc<dyn RemoteMemory>;
        let session = Self {
            interrupts: InterruptSetup::new(&*function),
            memory: ClientMemory::new(Arc::clone(function.domain()), remote, agreement.max_mappings()),
            faults: function.domain().iommu().fault_count(),
            description,
            function,
            conversation,
        };
        channel
            .send(reply_header(&first.header), &[&agreement.payload()], &[])
            .map_err(|error| error.to_string())?;
        Ok(session)
    }

    fn run(&mut self, stop: &EventFd) -> End {
        loop {
            let events = self.function.events().event().clone();
            // An event file that is not there is one that is never readable.
            let unmask = self.interrupts.unmask_event().cloned();
            let [socket, received] = self.conversation.files();
            let files =
                [socket, stop.as_fd(), events.as_fd(), unmask.as_ref().unwrap_or(&events).as_fd(), received];
            let ready = match wait(&files, None) {
                Ok(ready) => ready,
                Err(error) => return End::Broken(format!("cannot wait for it: {error}")),
            };
            self.report_faults();
            if ready[1] {
                return End::Stopped;
            }
            if ready[2] && self.pass_events_on() {
                return End::Removed;
            }
            if ready[3] && unmask.is_some() {
                self.interrupts.unmask_by_event(&*self.function);
            }
            if (ready[0] || ready[4])
                && let Err(end) = self.step()
            {
                return end;
            }
        }
    }

    /// Answers one message, if there is one.
    fn step(&mut self) -> Result<(), End> {
        let message = match self.conversation.command() {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(Over::Transport(TransportError::Closed)) => return Err(End::Gone),
            Err(error) => return Err(End::Broken(error.to_string())),
        };
        let command = message.header;
        let answer = self.answer(message);
        let sent = match answer {
            _ if !command.wants_reply() => {
                if let Err(refusal) = answer {
                    self.log_refusal(&command, &refusal);
                }
                return Ok(());
            }
            Ok(Reply { payload, memory }) => {
                let file = memory.as_ref().and_then(|memory| memory.file());
                let files: Vec<_> = file.iter().map(|(file, _)| file.as_fd()).collect();
                self.conversation.channel().send(reply_header(&command), &[&payload], &files)
            }
            Err(refusal) => {
                self.log_refusal(&command, &refusal);
                self.conversation.channel().send(error_header(&command, refusal.error), &[], &[])
            }
        };
        match sent {
            Ok(()) => Ok(()),
            Err(TransportError::Closed) => Err(End::Gone),
            Err(error) => Err(End::Broken(error.to_string())),
        }
    }

    fn answer(&mut self, message: Message) -> Answer {
        let command = Command(message.header.command);
        if !message.files.is_empty() && !matches!(command, Command::DMA_MAP | Command::DEVICE_SET_IRQS) {
            return Err(Refusal::invalid("file descriptors came along that mean nothing here"));
        }
        match command {
            Command::DMA_MAP => {
                let (request, _) = parse::<DmaMap>(&message)?;
                self.memory.map(&request, message.files)
            }
            Command::DMA_UNMAP => {
                let (request, _) = parse::<DmaUnmap>(&message)?;
                self.memory.unmap(&request)
            }
            Command::DEVICE_GET_INFO => {
                parse::<DeviceInfo>(&message)?;
                Ok(Reply::of(&self.device_info()))
            }
            Command::DEVICE_GET_REGION_INFO => {
                let (request, _) = parse::<RegionDescription>(&message)?;
                self.description.region_info(&request)
            }
            Command::DEVICE_GET_IRQ_INFO => {
                let (request, _) = parse::<InterruptInfo>(&message)?;
                self.interrupts.info(&*self.function, &request)
            }
            Command::DEVICE_SET_IRQS => self.interrupts.set(&self.function, message),
            Command::REGION_READ => regions::read(&self.description, &*self.function, &message),
            Command::REGION_WRITE => {
                let answer = regions::write(&self.description, &*self.function, &message);
                self.interrupts.restore(&*self.function);
                answer
            }
            Command::REGION_WRITE_MULTI => {
                let answer = regions::write_many(&self.description, &*self.function, &message);
                self.interrupts.restore(&*self.function);
                answer
            }
            Command::DEVICE_RESET => self.reset(),
            Command::VERSION => Err(Refusal::invalid("the version was agreed on already")),
            other => Err(Refusal::new(Errno::OPNOTSUPP, format!("{other} is not supported"))),
        }
    }

    fn device_info(&self) -> DeviceInfo {
        let reset = if self.function.reset_kinds().is_empty() { 0 } else { DeviceInfo::RESET };
        DeviceInfo {
            argument_size: argument_size::<DeviceInfo>(),
            flags: DeviceInfo::PCI | reset,
            regions: region::COUNT,
            interrupts: InterruptIndex::COUNT,
        }
    }

    fn reset(&mut self) -> Answer {
        let kinds = self.function.reset_kinds();
        let Some(kind) = kinds.first().copied() else {
            let reason = format!("the device has no reset, not even {}", ResetKind::FunctionLevel);
            return Err(Refusal::new(Errno::OPNOTSUPP, reason));
        };
        self.function.reset(kind).map_err(|error| Refusal::new(Errno::IO, error.to_string()))?;
        self.interrupts.restore(&*self.function);
        Ok(Reply::done())
    }

    /// Tells the client what the function said; true when the function is gone.
    fn pass_events_on(&self) -> bool {
        let mut removed = false;
        while let Some(event) = self.function.events().next() {
            match event {
                DeviceEvent::Error => self.interrupts.signal(InterruptIndex::Error),
                DeviceEvent::ReleaseRequested => self.interrupts.signal(InterruptIndex::Request),
                DeviceEvent::Removed => removed = true,
                other => log::debug!("{}: {other:?}", self.function.name()),
            }
        }
        removed
    }

    /// Says which accesses of the device were refused since the last time.
    fn report_faults(&mut self) {
        let iommu = self.function.domain().iommu();
        let count = iommu.fault_count();
        if count == self.faults {
            return;
        }
        let new = count.saturating_sub(self.faults);
        self.faults = count;
        let Some(last) = iommu.faults().last().copied() else { return };
        log::warn!("{}: {last} ({new} refused since the last report)", self.function.name());
    }

    fn log_refusal(&self, command: &Header, refusal: &Refusal) {
        let (name, command) = (self.function.name(), Command(command.command));
        log::debug!("{name}: {command} was refused: {} ({})", refusal.reason, refusal.error);
    }

    /// Gives the device back.
    fn finish(mut self) {
        self.report_faults();
        // Bus mastering is off and the device thread gone when this returns.
        self.function.close();
        self.memory.unmap_all();
    }
}

/// The structure that the payload of a command begins with.
pub(super) fn parse<T: FromBytes>(message: &Message) -> Result<(T, &[u8]), Refusal> {
    message.parse().ok_or_else(|| {
        let (needed, length) = (size_of::<T>(), message.payload.len());
        Refusal::invalid(format!("the payload has {length:#x} bytes, {needed:#x} are needed"))
    })
}

fn error_of_open(error: &OpenError) -> Errno {
    match error {
        OpenError::Busy { .. } => Errno::BUSY,
        OpenError::NotFound { .. } | OpenError::Gone { .. } => Errno::NODEV,
        _ => Errno::NOMEM,
    }
}
