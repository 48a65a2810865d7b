//! The words in the registers.

use core::fmt;
use core::time::Duration;

use bitfield::bitfield;
use vdk_hal::address::ByteLength;

use super::open_numbers;

/// What to write to NSSR to reset the subsystem: the letters "NVMe".
pub const RESET_SUBSYSTEM: u32 = 0x4e56_4d65;

bitfield! {
    /// CAP: what the controller can do.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ControllerCapabilities(pub u64);
    impl Debug;
    /// MQES: the most entries of an I/O queue, less one. Zero is not valid.
    pub u16, max_queue_entries, set_max_queue_entries: 15, 0;
    /// CQR: queues must be physically contiguous.
    pub contiguous_queues_required, set_contiguous_queues_required: 16;
    /// AMS: arbitration beside round robin; bit 0 weighted with urgent class, bit 1 vendor's.
    pub u8, arbitration, set_arbitration: 18, 17;
    /// TO: how long RDY may take to follow EN, in units of 500 ms.
    pub u8, timeout_units, set_timeout_units: 31, 24;
    /// DSTRD: the doorbells lie `4 << n` bytes apart.
    pub u8, doorbell_stride_exponent, set_doorbell_stride_exponent: 35, 32;
    /// NSSRS: has NSSR.
    pub subsystem_reset, set_subsystem_reset: 36;
    /// CSS bit 0: the NVM command set.
    pub nvm_command_set, set_nvm_command_set: 37;
    /// CSS bit 7: no I/O command set, only admin commands.
    pub admin_only, set_admin_only: 44;
    /// BPS: has boot partitions.
    pub boot_partitions, set_boot_partitions: 45;
    /// MPSMIN: the smallest page is `4096 << n` bytes.
    pub u8, page_exponent_min, set_page_exponent_min: 51, 48;
    /// MPSMAX: the largest page is `4096 << n` bytes.
    pub u8, page_exponent_max, set_page_exponent_max: 55, 52;
    /// PMRS: has a persistent memory region.
    pub persistent_memory, set_persistent_memory: 56;
    /// CMBS: has a controller memory buffer whose registers CMBMSC enables.
    pub memory_buffer, set_memory_buffer: 57;
}

impl ControllerCapabilities {
    /// The distance of two doorbells, from DSTRD.
    #[must_use]
    pub fn doorbell_stride(self) -> ByteLength {
        ByteLength::new(4 << self.doorbell_stride_exponent())
    }

    /// How long RDY may take to follow EN, from TO.
    #[must_use]
    pub fn timeout(self) -> Duration {
        Duration::from_millis(500 * u64::from(self.timeout_units()))
    }

    /// The smallest page, from MPSMIN.
    #[must_use]
    pub fn page_min(self) -> ByteLength {
        ByteLength::new(4096 << self.page_exponent_min())
    }

    /// The largest page, from MPSMAX.
    #[must_use]
    pub fn page_max(self) -> ByteLength {
        ByteLength::new(4096 << self.page_exponent_max())
    }
}

bitfield! {
    /// VS: the revision of the specification that the controller follows.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
    pub struct Version(pub u32);
    impl Debug;
    /// MJR.
    pub u16, major, set_major: 31, 16;
    /// MNR.
    pub u8, minor, set_minor: 15, 8;
    /// TER.
    pub u8, tertiary, set_tertiary: 7, 0;
}

impl Version {
    /// Revision 1.0. A controller of 1.0 has no list of active namespaces.
    pub const V1_0: Self = Self(0x0001_0000);
    /// Revision 1.1.
    pub const V1_1: Self = Self(0x0001_0100);
    /// Revision 1.3.
    pub const V1_3: Self = Self(0x0001_0300);
    /// Revision 1.4.
    pub const V1_4: Self = Self(0x0001_0400);
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())?;
        match self.tertiary() {
            0 => Ok(()),
            tertiary => write!(f, ".{tertiary}"),
        }
    }
}

open_numbers! {
    /// CC.SHN: what the host asks for before power is lost.
    pub struct ShutdownNotification(u8) {
        /// Nothing.
        NONE = 0, "none";
        /// A normal shutdown.
        NORMAL = 1, "normal shutdown";
        /// As fast as possible, without care.
        ABRUPT = 2, "abrupt shutdown";
    }
}

open_numbers! {
    /// CSTS.SHST: how far a shutdown has come.
    pub struct ShutdownStatus(u8) {
        /// None was asked for.
        NORMAL_OPERATION = 0, "normal operation";
        /// It is going on.
        OCCURRING = 1, "shutdown occurring";
        /// It is complete.
        COMPLETE = 2, "shutdown complete";
    }
}

bitfield! {
    /// CC: what the host makes of the controller.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ControllerConfiguration(pub u32);
    impl Debug;
    /// EN: enabled. Clearing it resets the controller.
    pub enable, set_enable: 0;
    /// CSS: the command set, 0 for NVM, 7 for admin only.
    pub u8, command_set, set_command_set: 6, 4;
    /// MPS: pages are `4096 << n` bytes.
    pub u8, page_exponent, set_page_exponent: 10, 7;
    /// AMS: arbitration, 0 for round robin.
    pub u8, arbitration, set_arbitration: 13, 11;
    u8, shutdown_bits, set_shutdown_bits: 15, 14;
    /// IOSQES: I/O submission queue entries have `1 << n` bytes.
    pub u8, submission_entry_exponent, set_submission_entry_exponent: 19, 16;
    /// IOCQES: I/O completion queue entries have `1 << n` bytes.
    pub u8, completion_entry_exponent, set_completion_entry_exponent: 23, 20;
}

impl ControllerConfiguration {
    /// SHN: the notification.
    #[must_use]
    pub fn shutdown(self) -> ShutdownNotification {
        ShutdownNotification(self.shutdown_bits())
    }

    /// Replaces the notification.
    pub fn set_shutdown(&mut self, notification: ShutdownNotification) {
        self.set_shutdown_bits(notification.0);
    }
}

bitfield! {
    /// CSTS: the state of the controller. All ones: it is gone.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ControllerStatus(pub u32);
    impl Debug;
    /// RDY: takes commands.
    pub ready, set_ready: 0;
    /// CFS: a fatal error that could not be told by a completion. Only a reset helps.
    pub fatal, set_fatal: 1;
    u8, shutdown_bits, set_shutdown_bits: 3, 2;
    /// NSSRO: the subsystem was reset. Write a one to clear.
    pub subsystem_reset_occurred, set_subsystem_reset_occurred: 4;
    /// PP: commands are held back for a while, such as during activation of firmware.
    pub processing_paused, set_processing_paused: 5;
}

impl ControllerStatus {
    /// SHST: how far a shutdown has come.
    #[must_use]
    pub fn shutdown(self) -> ShutdownStatus {
        ShutdownStatus(self.shutdown_bits())
    }

    /// Replaces how far a shutdown has come.
    pub fn set_shutdown(&mut self, status: ShutdownStatus) {
        self.set_shutdown_bits(status.0);
    }
}

bitfield! {
    /// AQA: the sizes of the admin queues, each less one.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AdminQueueAttributes(pub u32);
    impl Debug;
    /// ASQS: entries of the submission queue, less one.
    pub u16, submission_size, set_submission_size: 11, 0;
    /// ACQS: entries of the completion queue, less one.
    pub u16, completion_size, set_completion_size: 27, 16;
}

bitfield! {
    /// CMBLOC: where the controller memory buffer lies.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MemoryBufferLocation(pub u32);
    impl Debug;
    /// BIR: the BAR, 0 or 2 to 5.
    pub u8, bar, set_bar: 2, 0;
    /// OFST: the offset in the BAR, in units of [`MemoryBufferSize::unit`].
    pub u32, offset, set_offset: 31, 12;
}

bitfield! {
    /// CMBSZ: the size of the controller memory buffer and what may lie in it. Zero: there
    /// is none.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct MemoryBufferSize(pub u32);
    impl Debug;
    /// SQS: submission queues.
    pub submission_queues, set_submission_queues: 0;
    /// CQS: completion queues.
    pub completion_queues, set_completion_queues: 1;
    /// LISTS: PRP lists and SGL segments.
    pub lists, set_lists: 2;
    /// RDS: data of commands that read.
    pub read_data, set_read_data: 3;
    /// WDS: data of commands that write.
    pub write_data, set_write_data: 4;
    /// SZU: the unit is `4096 << 4n` bytes.
    pub u8, unit_exponent, set_unit_exponent: 11, 8;
    /// SZ: the size in units.
    pub u32, size, set_size: 31, 12;
}

impl MemoryBufferSize {
    /// The unit of size and offset; `None` when the register says a reserved one.
    #[must_use]
    pub fn unit(self) -> Option<ByteLength> {
        let exponent = self.unit_exponent();
        (exponent <= 6).then(|| ByteLength::new(4096 << (4 * exponent)))
    }
}
