//! NVM Express: controllers of non-volatile memory, revision 1.4 of the base specification
//! with the NVM command set.
//!
//! Layout only: [registers](NvmeRegisters) and their [words](ControllerCapabilities),
//! [submission](SubmissionEntry) and [completion](CompletionEntry) queue entries, the
//! dwords of commands, [identify](IdentifyController) and [log](SmartLog) structures,
//! [features](FeatureId) and [events](AsyncEvent). Names are those of the specification,
//! spelled out where it abbreviates. Offsets and bits were checked against the definitions
//! that Linux 6.12 uses.
//!
//! # How a controller works
//!
//! 1. BAR 0 begins with [`NvmeRegisters`]; from [`DOORBELLS`] on lie the doorbells, one for
//!    the tail of each submission queue and one for the head of each completion queue, at
//!    [`submission_doorbell`] and [`completion_doorbell`]. CAP tells their distance.
//! 2. With CC.EN clear and CSTS.RDY clear the host writes AQA, ASQ and ACQ, then CC with EN
//!    set, and waits for RDY, at most as long as CAP.TO says.
//! 3. A queue is contiguous memory of `depth` entries. Sizes are given less one. One slot
//!    of a submission queue stays empty, so a depth of 2 holds one command.
//! 4. The host writes a [`SubmissionEntry`], then the new tail to the doorbell. The
//!    controller answers with a [`CompletionEntry`] whose phase bit differs from what the
//!    slot held in the round before: one in the first round through a zeroed queue. The
//!    host gives slots back by writing its head to the doorbell; a controller never posts
//!    to a full completion queue.
//! 5. A completion names the submission queue, its new head and the command, in any order.
//! 6. Clearing CC.EN ends all queues. RDY clear is the promise that no access to memory
//!    follows.

mod completion;
mod dwords;
mod event;
mod feature;
mod format;
mod identify;
mod log;
mod namespace;
mod opcode;
mod registers;
mod sgl;
mod status;
mod submission;
mod words;

pub use completion::{CompletionEntry, PHASE_BIT, StatusField};
pub use dwords::{
    AbortDword, AbortResult, CompletionQueueFlags, DatasetAttributes, DatasetManagementDword, DatasetRange,
    FormatDword, IdentifyDword, LogPageDword, LogPageUpperDword, MAX_DATASET_RANGES, QueueDword,
    ReadWriteDword, SubmissionQueueFlags,
};
pub use event::{AsyncEvent, AsyncEventType, ErrorEvent, HealthEvent, NoticeEvent};
pub use feature::{
    Arbitration, AsyncEventConfiguration, ErrorRecovery, FeatureDword, FeatureId, FeatureSelect,
    InterruptCoalescing, InterruptVectorConfiguration, NumberOfQueues, PowerManagement, TemperatureThreshold,
    VolatileWriteCache,
};
pub use format::{FormatAttributes, LbaFormat, ProtectionCapabilities, ProtectionSettings};
pub use identify::{
    AdminCommandSupport, Cns, EntrySize, FormatNvmAttributes, IdentifyController, LogPageAttributes,
    NvmCommandSupport, PowerState, SglSupport, VolatileWriteCachePresent, text,
};
pub use log::{ChangedNamespaces, CriticalWarning, ErrorLogEntry, FirmwareSlotLog, LogPage, SmartLog};
pub use namespace::{
    ALL_NAMESPACES, IdentifyNamespace, NamespaceDescriptor, NamespaceFeatures, NamespaceIdType, NamespaceList,
};
pub use opcode::{AdminOpcode, NvmOpcode};
pub use registers::{NvmeDoorbells, NvmeRegisters};
pub use sgl::{SglDescriptor, SglIdentifier};
pub use status::{Status, StatusCodeType};
pub use submission::{CommandFlags, SubmissionEntry};
pub use words::{
    AdminQueueAttributes, ControllerCapabilities, ControllerConfiguration, ControllerStatus,
    MemoryBufferLocation, MemoryBufferSize, RESET_SUBSYSTEM, ShutdownNotification, ShutdownStatus, Version,
};

use vdk_hal::address::ByteLength;

/// Base class, subclass and programming interface: mass storage, non-volatile memory, NVM
/// Express I/O controller.
pub const CLASS_CODE: u32 = 0x01_0802;
/// The BAR with the registers.
pub const BAR: u8 = 0;
/// Where the doorbells begin in the BAR.
pub const DOORBELLS: u64 = 0x1000;
/// The size of a submission queue entry.
pub const SUBMISSION_ENTRY_LENGTH: ByteLength = ByteLength::new(64);
/// The size of a completion queue entry.
pub const COMPLETION_ENTRY_LENGTH: ByteLength = ByteLength::new(16);
/// Binary logarithm of the size of a submission queue entry, for CC.IOSQES.
pub const SUBMISSION_ENTRY_LOG2: u8 = 6;
/// Binary logarithm of the size of a completion queue entry, for CC.IOCQES.
pub const COMPLETION_ENTRY_LOG2: u8 = 4;
/// The size of the structures that Identify returns.
pub const IDENTIFY_LENGTH: ByteLength = ByteLength::new(4096);
/// The number of the admin queues.
pub const ADMIN_QUEUE: u16 = 0;
/// The fewest entries of a queue.
pub const MIN_QUEUE_DEPTH: u32 = 2;
/// The most entries of an admin queue.
pub const MAX_ADMIN_QUEUE_DEPTH: u32 = 4096;
/// A command identifier that names no command in an error log entry.
pub const NO_COMMAND: u16 = 0xffff;

/// Where the tail doorbell of submission queue `queue` lies in the BAR, in bytes; `stride`
/// is the distance of two doorbells: [`ControllerCapabilities::doorbell_stride`].
#[must_use]
pub const fn submission_doorbell(queue: u16, stride: ByteLength) -> u64 {
    DOORBELLS + 2 * queue as u64 * stride.as_u64()
}

/// Where the head doorbell of completion queue `queue` lies in the BAR, in bytes.
#[must_use]
pub const fn completion_doorbell(queue: u16, stride: ByteLength) -> u64 {
    DOORBELLS + (2 * queue as u64 + 1) * stride.as_u64()
}

/// Declares an open set of numbers with names: values that are not among them are kept.
macro_rules! open_numbers {
    (
        $(#[$outer:meta])*
        pub struct $set:ident($number:ty) {
            $($(#[$inner:meta])* $name:ident = $value:expr, $text:expr;)*
        }
    ) => {
        $(#[$outer])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $set(pub $number);

        impl $set {
            $($(#[$inner])* pub const $name: Self = Self($value);)*

            /// The name in the specification, if the value has one.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $set {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#x}", self.0),
                }
            }
        }
    };
}
use open_numbers;

#[cfg(test)]
mod tests;
