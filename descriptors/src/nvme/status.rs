//! How a command ended: status code types and codes.

use core::fmt;

use super::open_numbers;

open_numbers! {
    /// SCT: what kind of code SC is.
    pub struct StatusCodeType(u8) {
        /// Of any command.
        GENERIC = 0, "generic";
        /// Of one command.
        COMMAND_SPECIFIC = 1, "command specific";
        /// Of media and the integrity of data.
        MEDIA_AND_DATA_INTEGRITY = 2, "media and data integrity";
        /// Of the path to the controller.
        PATH_RELATED = 3, "path related";
        /// Of the vendor.
        VENDOR_SPECIFIC = 7, "vendor specific";
    }
}

open_numbers! {
    /// A status: SCT in bits 10:8 and SC in bits 7:0. Open: a controller may say anything.
    pub struct Status(u16) {
        /// The command was executed.
        SUCCESS = 0x000, "Successful Completion";
        /// No such opcode.
        INVALID_OPCODE = 0x001, "Invalid Command Opcode";
        /// A field of the command is wrong.
        INVALID_FIELD = 0x002, "Invalid Field in Command";
        /// The command id is in use.
        COMMAND_ID_CONFLICT = 0x003, "Command ID Conflict";
        /// Data or metadata could not be moved.
        DATA_TRANSFER_ERROR = 0x004, "Data Transfer Error";
        /// Power is about to be lost.
        POWER_LOSS = 0x005, "Commands Aborted due to Power Loss Notification";
        /// An error inside the controller.
        INTERNAL_ERROR = 0x006, "Internal Error";
        /// The host asked for it.
        ABORT_REQUESTED = 0x007, "Command Abort Requested";
        /// Its queue was deleted.
        ABORTED_QUEUE_DELETION = 0x008, "Command Aborted due to SQ Deletion";
        /// The other of a fused pair failed.
        ABORTED_FAILED_FUSED = 0x009, "Command Aborted due to Failed Fused Command";
        /// The other of a fused pair is missing.
        ABORTED_MISSING_FUSED = 0x00a, "Command Aborted due to Missing Fused Command";
        /// No such namespace, or its format does not fit.
        INVALID_NAMESPACE = 0x00b, "Invalid Namespace or Format";
        /// Not in this order.
        COMMAND_SEQUENCE_ERROR = 0x00c, "Command Sequence Error";
        /// A last segment is not the last.
        INVALID_SGL_SEGMENT = 0x00d, "Invalid SGL Segment Descriptor";
        /// Wrong number of SGL descriptors.
        INVALID_SGL_COUNT = 0x00e, "Invalid Number of SGL Descriptors";
        /// The SGL is shorter or longer than the data.
        INVALID_SGL_DATA_LENGTH = 0x00f, "Data SGL Length Invalid";
        /// The SGL is shorter or longer than the metadata.
        INVALID_SGL_METADATA_LENGTH = 0x010, "Metadata SGL Length Invalid";
        /// An SGL descriptor of a type that is not supported.
        INVALID_SGL_TYPE = 0x011, "SGL Descriptor Type Invalid";
        /// The controller memory buffer cannot be used for that.
        INVALID_MEMORY_BUFFER_USE = 0x012, "Invalid Use of Controller Memory Buffer";
        /// A PRP entry has an offset where it may not.
        INVALID_PRP_OFFSET = 0x013, "PRP Offset Invalid";
        /// Longer than what is atomic.
        ATOMIC_WRITE_UNIT_EXCEEDED = 0x014, "Atomic Write Unit Exceeded";
        /// Lacks permission.
        OPERATION_DENIED = 0x015, "Operation Denied";
        /// An SGL offset is wrong.
        INVALID_SGL_OFFSET = 0x016, "SGL Offset Invalid";
        /// Two host identifiers of different size.
        HOST_ID_INCONSISTENT = 0x018, "Host Identifier Inconsistent Format";
        /// The keep-alive timer has expired.
        KEEP_ALIVE_EXPIRED = 0x019, "Keep Alive Timer Expired";
        /// The keep-alive timeout is wrong.
        KEEP_ALIVE_INVALID = 0x01a, "Keep Alive Timeout Invalid";
        /// A reservation was preempted.
        ABORTED_PREEMPT = 0x01b, "Command Aborted due to Preempt and Abort";
        /// The last sanitize failed.
        SANITIZE_FAILED = 0x01c, "Sanitize Failed";
        /// A sanitize is going on.
        SANITIZE_IN_PROGRESS = 0x01d, "Sanitize In Progress";
        /// An SGL length or address is not a multiple of what it must be.
        INVALID_SGL_GRANULARITY = 0x01e, "SGL Data Block Granularity Invalid";
        /// Not with a queue in the controller memory buffer.
        NOT_SUPPORTED_IN_MEMORY_BUFFER = 0x01f, "Command Not Supported for Queue in CMB";
        /// The namespace is write protected.
        NAMESPACE_WRITE_PROTECTED = 0x020, "Namespace is Write Protected";
        /// Interrupted; try again.
        COMMAND_INTERRUPTED = 0x021, "Command Interrupted";
        /// A transient error of the transport.
        TRANSIENT_TRANSPORT_ERROR = 0x022, "Transient Transport Error";
        /// A block is past the end of the namespace.
        LBA_OUT_OF_RANGE = 0x080, "LBA Out of Range";
        /// The namespace has used up its capacity.
        CAPACITY_EXCEEDED = 0x081, "Capacity Exceeded";
        /// The namespace is not ready.
        NAMESPACE_NOT_READY = 0x082, "Namespace Not Ready";
        /// Somebody else holds a reservation.
        RESERVATION_CONFLICT = 0x083, "Reservation Conflict";
        /// A format is going on.
        FORMAT_IN_PROGRESS = 0x084, "Format In Progress";
        /// The completion queue does not exist.
        COMPLETION_QUEUE_INVALID = 0x100, "Completion Queue Invalid";
        /// The queue number is wrong or in use.
        INVALID_QUEUE_ID = 0x101, "Invalid Queue Identifier";
        /// The queue size is wrong.
        INVALID_QUEUE_SIZE = 0x102, "Invalid Queue Size";
        /// Too many aborts at once.
        ABORT_LIMIT_EXCEEDED = 0x103, "Abort Command Limit Exceeded";
        /// Too many asynchronous event requests at once.
        ASYNC_EVENT_LIMIT_EXCEEDED = 0x105, "Asynchronous Event Request Limit Exceeded";
        /// No such firmware slot.
        INVALID_FIRMWARE_SLOT = 0x106, "Invalid Firmware Slot";
        /// The firmware image is wrong.
        INVALID_FIRMWARE_IMAGE = 0x107, "Invalid Firmware Image";
        /// No such interrupt vector.
        INVALID_INTERRUPT_VECTOR = 0x108, "Invalid Interrupt Vector";
        /// No such log page.
        INVALID_LOG_PAGE = 0x109, "Invalid Log Page";
        /// No such LBA format.
        INVALID_FORMAT = 0x10a, "Invalid Format";
        /// Firmware becomes active with a conventional reset.
        FIRMWARE_NEEDS_CONVENTIONAL_RESET = 0x10b, "Firmware Activation Requires Conventional Reset";
        /// The queue still has submission queues.
        INVALID_QUEUE_DELETION = 0x10c, "Invalid Queue Deletion";
        /// The feature cannot be saved.
        FEATURE_NOT_SAVEABLE = 0x10d, "Feature Identifier Not Saveable";
        /// The feature cannot be changed.
        FEATURE_NOT_CHANGEABLE = 0x10e, "Feature Not Changeable";
        /// The feature is not that of a namespace.
        FEATURE_NOT_NAMESPACE_SPECIFIC = 0x10f, "Feature Not Namespace Specific";
        /// Firmware becomes active with a subsystem reset.
        FIRMWARE_NEEDS_SUBSYSTEM_RESET = 0x110, "Firmware Activation Requires NVM Subsystem Reset";
        /// Firmware becomes active with a controller reset.
        FIRMWARE_NEEDS_RESET = 0x111, "Firmware Activation Requires Controller Level Reset";
        /// Ranges overlap.
        OVERLAPPING_RANGE = 0x114, "Overlapping Range";
        /// Not enough capacity for a namespace.
        NAMESPACE_INSUFFICIENT_CAPACITY = 0x115, "Namespace Insufficient Capacity";
        /// No namespace id is left.
        NAMESPACE_ID_UNAVAILABLE = 0x116, "Namespace Identifier Unavailable";
        /// It is attached already.
        NAMESPACE_ALREADY_ATTACHED = 0x118, "Namespace Already Attached";
        /// It is private to another controller.
        NAMESPACE_IS_PRIVATE = 0x119, "Namespace Is Private";
        /// It is not attached.
        NAMESPACE_NOT_ATTACHED = 0x11a, "Namespace Not Attached";
        /// A self-test is going on.
        SELF_TEST_IN_PROGRESS = 0x11d, "Device Self-test In Progress";
        /// Attributes that exclude each other.
        CONFLICTING_ATTRIBUTES = 0x180, "Conflicting Attributes";
        /// Protection information that does not fit the format.
        INVALID_PROTECTION_INFORMATION = 0x181, "Invalid Protection Information";
        /// A write to a range that is read only.
        WRITE_TO_READ_ONLY = 0x182, "Attempted Write to Read Only Range";
        /// More than the command may carry.
        COMMAND_SIZE_LIMIT_EXCEEDED = 0x183, "Command Size Limit Exceeded";
        /// The data could not be written.
        WRITE_FAULT = 0x280, "Write Fault";
        /// The data could not be read.
        UNRECOVERED_READ_ERROR = 0x281, "Unrecovered Read Error";
        /// The guard of the protection information is wrong.
        GUARD_CHECK_ERROR = 0x282, "End-to-end Guard Check Error";
        /// The application tag is wrong.
        APPLICATION_TAG_CHECK_ERROR = 0x283, "End-to-end Application Tag Check Error";
        /// The reference tag is wrong.
        REFERENCE_TAG_CHECK_ERROR = 0x284, "End-to-end Reference Tag Check Error";
        /// The data differs.
        COMPARE_FAILURE = 0x285, "Compare Failure";
        /// Access is denied.
        ACCESS_DENIED = 0x286, "Access Denied";
        /// The block was deallocated or never written.
        DEALLOCATED_BLOCK = 0x287, "Deallocated or Unwritten Logical Block";
        /// An error on the way inside the controller.
        INTERNAL_PATH_ERROR = 0x300, "Internal Path Error";
        /// An error on the way, seen by the controller.
        CONTROLLER_PATHING_ERROR = 0x360, "Controller Pathing Error";
        /// An error on the way, seen by the host.
        HOST_PATHING_ERROR = 0x370, "Host Pathing Error";
        /// The host has ended the command by itself.
        ABORTED_BY_HOST = 0x371, "Command Aborted By Host";
    }
}

impl Status {
    /// The status of this type and code.
    #[must_use]
    pub const fn new(code_type: StatusCodeType, code: u8) -> Self {
        Self((code_type.0 as u16 & 7) << 8 | code as u16)
    }

    /// SCT.
    #[must_use]
    pub const fn code_type(self) -> StatusCodeType {
        // CAST: three bits.
        StatusCodeType((self.0 >> 8 & 7) as u8)
    }

    /// SC.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0.to_le_bytes()[0]
    }

    /// Whether the command was executed.
    #[inline]
    #[must_use]
    pub const fn is_success(self) -> bool {
        self.0 == 0
    }
}

impl fmt::LowerHex for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
