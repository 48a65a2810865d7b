//! What a server says of its device, and accesses to its regions.

use std::fs::File;
use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::connection::{Connection, RequestError};
use super::message::{
    Command, DeviceInfo, InterruptIndex, InterruptInfo, RegionAccess, RegionDescription, argument_size,
    region,
};
use crate::address::BarIndex;
use crate::bar::{BarAccess, BarError, Liveness, LivenessState, RegionInfo, RegionInfoError};
use crate::mmio::Width;

/// A region and the file that its parts can be mapped from.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) info: RegionInfo,
    pub(super) file: Option<File>,
}

/// Everything that a server says of its device.
#[derive(Debug)]
pub(super) struct DeviceFacts {
    pub(super) resettable: bool,
    /// By number; `None` for those that are not there.
    pub(super) regions: Vec<Option<Region>>,
    /// By number.
    pub(super) interrupts: Vec<InterruptInfo>,
}

impl DeviceFacts {
    pub(super) fn ask(connection: &Connection) -> Result<Self, RequestError> {
        let command = Command::DEVICE_GET_INFO;
        let malformed = |what| RequestError::Malformed { command, what };
        let request = DeviceInfo { argument_size: argument_size::<DeviceInfo>(), ..DeviceInfo::default() };
        let (info, _) = connection.ask::<DeviceInfo>(command, &[request.as_bytes()])?;
        if info.flags & DeviceInfo::PCI == 0 {
            return Err(malformed("the device is not a PCI function"));
        }
        if info.regions <= region::CONFIG {
            return Err(malformed("there is no configuration space"));
        }
        // Regions beyond those of PCI are the device's own, and nothing here needs them.
        let regions = (0..info.regions.min(region::COUNT)).map(|index| Region::ask(connection, index));
        let regions = regions.collect::<Result<_, _>>()?;
        let interrupts = (0..InterruptIndex::COUNT).map(|index| {
            if index < info.interrupts {
                ask_interrupt(connection, index)
            } else {
                Ok(InterruptInfo::default())
            }
        });
        Ok(Self {
            resettable: info.flags & DeviceInfo::RESET != 0,
            regions,
            interrupts: interrupts.collect::<Result<_, _>>()?,
        })
    }

    /// A region that is there.
    pub(super) fn region(&self, index: u32) -> Option<&Region> {
        self.regions.get(usize::try_from(index).ok()?)?.as_ref()
    }

    pub(super) fn interrupt(&self, index: InterruptIndex) -> InterruptInfo {
        let number = usize::try_from(index.number()).unwrap_or(usize::MAX);
        self.interrupts.get(number).copied().unwrap_or_default()
    }
}

impl Region {
    fn ask(connection: &Connection, index: u32) -> Result<Option<Self>, RequestError> {
        let command = Command::DEVICE_GET_REGION_INFO;
        let malformed = |what| RequestError::Malformed { command, what };
        let mut room = FIRST_ROOM;
        for _ in 0..2 {
            let request = RegionDescription { argument_size: room, index, ..RegionDescription::default() };
            let reply = match connection.call(command, &[request.as_bytes()], &[]) {
                Ok(reply) => reply,
                // VFIO answers like this for regions that are not there.
                Err(RequestError::Refused { error: Errno::INVAL, .. }) => return Ok(None),
                Err(error) => return Err(error),
            };
            match RegionInfo::parse(&reply.payload) {
                Ok(info) if info.index != index => return Err(malformed("it describes another region")),
                Ok(info) => {
                    let file = reply.files.into_iter().next().map(File::from);
                    return Ok((info.size > 0).then_some(Self { info, file }));
                }
                Err(RegionInfoError::TooShort { needed, .. }) if needed <= MOST_ROOM => {
                    room = u32::try_from(needed).unwrap_or(FIRST_ROOM);
                }
                Err(error) => {
                    log::warn!("region {index}: {error}");
                    return Err(malformed("the region is described wrongly"));
                }
            }
        }
        Err(malformed("the description grows each time it is asked for"))
    }
}

fn ask_interrupt(connection: &Connection, index: u32) -> Result<InterruptInfo, RequestError> {
    let command = Command::DEVICE_GET_IRQ_INFO;
    let argument_size = argument_size::<InterruptInfo>();
    let request = InterruptInfo { argument_size, index, ..InterruptInfo::default() };
    match connection.ask::<InterruptInfo>(command, &[request.as_bytes()]) {
        Ok((info, _)) if info.index == index => Ok(info),
        Ok(_) => Err(RequestError::Malformed { command, what: "it describes other interrupts" }),
        Err(RequestError::Refused { error: Errno::INVAL, .. }) => Ok(InterruptInfo::default()),
        Err(error) => Err(error),
    }
}

/// Reads up to 8 bytes of a region.
pub(super) fn read(
    connection: &Connection,
    region: u32,
    offset: u64,
    width: Width,
) -> Result<u64, RequestError> {
    let command = Command::REGION_READ;
    let access = access(region, offset, width);
    let (answered, reply) = connection.ask::<RegionAccess>(command, &[access.as_bytes()])?;
    let bytes = reply.payload.get(size_of::<RegionAccess>()..).unwrap_or_default();
    let bytes = bytes.get(..width.bytes()).filter(|_| answered.count == access.count);
    let Some(bytes) = bytes else {
        return Err(RequestError::Malformed { command, what: "it has another length" });
    };
    let mut value = [0; 8];
    value[..bytes.len()].copy_from_slice(bytes);
    Ok(u64::from_le_bytes(value))
}

/// Writes up to 8 bytes of a region. A write that is `posted` is not waited for.
pub(super) fn write(
    connection: &Connection,
    region: u32,
    offset: u64,
    width: Width,
    value: u64,
    posted: bool,
) -> Result<(), RequestError> {
    let access = access(region, offset, width);
    let bytes = value.to_le_bytes();
    let parts = [access.as_bytes(), &bytes[..width.bytes()]];
    if posted {
        connection.post(Command::REGION_WRITE, &parts)
    } else {
        connection.call(Command::REGION_WRITE, &parts, &[]).map(drop)
    }
}

fn access(region: u32, offset: u64, width: Width) -> RegionAccess {
    let count = match width {
        Width::U8 => 1,
        Width::U16 => 2,
        Width::U32 => 4,
        Width::U64 => 8,
    };
    RegionAccess { offset, region, count }
}

/// A BAR that is reached by messages. Writes are posted, as on a bus.
pub(super) struct MessageBar {
    pub(super) connection: Arc<Connection>,
    pub(super) bar: BarIndex,
}

impl MessageBar {
    fn region(&self) -> u32 {
        u32::from(self.bar.as_u8())
    }

    fn error(&self, offset: u64, error: &RequestError) -> BarError {
        let bar = self.bar;
        match (state_after(&self.connection.liveness, error), error) {
            (LivenessState::Closed, _) => BarError::NotOpen { bar },
            (LivenessState::Gone, _) => BarError::DeviceGone { bar },
            (LivenessState::Live | LivenessState::Asleep, other) => {
                BarError::System { bar, offset, error: other.kind() }
            }
        }
    }
}

impl BarAccess for MessageBar {
    fn read(&self, offset: u64, width: Width) -> Result<u64, BarError> {
        read(&self.connection, self.region(), offset, width).map_err(|error| self.error(offset, &error))
    }

    fn write(&self, offset: u64, width: Width, value: u64) -> Result<(), BarError> {
        write(&self.connection, self.region(), offset, width, value, true)
            .map_err(|error| self.error(offset, &error))
    }
}

/// Whether handles still work after an access failed.
pub(super) fn state_after(liveness: &Liveness, error: &RequestError) -> LivenessState {
    match (liveness.state(), error) {
        (LivenessState::Live, RequestError::Gone) => LivenessState::Gone,
        (state, _) => state,
    }
}

/// How much room a description has at first.
const FIRST_ROOM: u32 = 1024;
/// How long a description may be.
const MOST_ROOM: usize = 64 << 10;
