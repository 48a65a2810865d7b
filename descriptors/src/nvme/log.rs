//! Log pages.

use bitfield::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{StatusField, open_numbers};

open_numbers! {
    /// LID: the log page.
    pub struct LogPage(u8) {
        /// [`ErrorLogEntry`], newest first.
        ERROR_INFORMATION = 0x01, "Error Information";
        /// [`SmartLog`].
        SMART = 0x02, "SMART / Health Information";
        /// [`FirmwareSlotLog`].
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        /// [`ChangedNamespaces`].
        CHANGED_NAMESPACES = 0x04, "Changed Namespace List";
        /// What each command does: a dword for each of 256 admin and 256 I/O opcodes, 4096
        /// bytes with a reserved rest.
        COMMANDS_SUPPORTED = 0x05, "Commands Supported and Effects";
        /// Results of self-tests.
        DEVICE_SELF_TEST = 0x06, "Device Self-test";
        /// Telemetry that the host began.
        TELEMETRY_HOST = 0x07, "Telemetry Host-Initiated";
        /// Telemetry that the controller began.
        TELEMETRY_CONTROLLER = 0x08, "Telemetry Controller-Initiated";
        /// Wear of one endurance group.
        ENDURANCE_GROUP = 0x09, "Endurance Group Information";
        /// Access to namespaces.
        ASYMMETRIC_ACCESS = 0x0c, "Asymmetric Namespace Access";
        /// Notices about reservations.
        RESERVATION_NOTIFICATION = 0x80, "Reservation Notification";
        /// How a sanitize goes on.
        SANITIZE_STATUS = 0x81, "Sanitize Status";
    }
}

/// One entry of [`LogPage::ERROR_INFORMATION`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ErrorLogEntry {
    /// Counts all errors of the controller's life; zero: the entry is not used.
    pub error_count: u64,
    /// The submission queue.
    pub submission_queue: u16,
    /// The command, [`NO_COMMAND`](super::NO_COMMAND) for none.
    pub command_id: u16,
    /// Its status, with the phase bit.
    pub status: StatusField,
    /// Where in the command the fault lies: byte in bits 7:0, bit in bits 10:8.
    pub parameter_location: u16,
    /// The first block with the error.
    pub lba: u64,
    /// The namespace.
    pub namespace: u32,
    /// A log page of the vendor with more.
    pub vendor_page: u8,
    /// The transport, zero for PCI Express.
    pub transport: u8,
    /// Reserved, zero.
    pub reserved: [u8; 2],
    /// Specific to the command.
    pub command_specific: u64,
    /// Specific to the transport.
    pub transport_specific: u16,
    /// Reserved, zero.
    pub reserved2: [u8; 22],
}

const _: () = assert!(size_of::<ErrorLogEntry>() == 64);

bitfield! {
    /// Why the controller is in danger.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct CriticalWarning(pub u8);
    impl Debug;
    /// Spare blocks are below the threshold.
    pub spare, set_spare: 0;
    /// Too hot or too cold.
    pub temperature, set_temperature: 1;
    /// Less reliable.
    pub reliability, set_reliability: 2;
    /// Media are read only.
    pub read_only, set_read_only: 3;
    /// The backup of volatile memory has failed.
    pub volatile_backup, set_volatile_backup: 4;
    /// The persistent memory region is unreliable or read only.
    pub persistent_memory, set_persistent_memory: 5;
}

/// [`LogPage::SMART`]. Counters of 16 bytes are little-endian numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SmartLog {
    /// Why the controller is in danger.
    pub critical_warning: CriticalWarning,
    /// The composite temperature in kelvin, little-endian.
    pub temperature: [u8; 2],
    /// Spare blocks that are left, in percent.
    pub available_spare: u8,
    /// Below this an event is told.
    pub available_spare_threshold: u8,
    /// How much of the estimated life is used, in percent; may be above 100.
    pub percentage_used: u8,
    /// Warnings of endurance groups.
    pub endurance_group_warning: u8,
    /// Reserved, zero.
    pub reserved: [u8; 25],
    /// Read by the host, in units of 1000 times 512 bytes.
    pub data_units_read: [u8; 16],
    /// Written by the host, in units of 1000 times 512 bytes.
    pub data_units_written: [u8; 16],
    /// Read commands.
    pub host_read_commands: [u8; 16],
    /// Write commands.
    pub host_write_commands: [u8; 16],
    /// Minutes with commands in I/O queues.
    pub controller_busy_time: [u8; 16],
    /// Power cycles.
    pub power_cycles: [u8; 16],
    /// Hours of power.
    pub power_on_hours: [u8; 16],
    /// Losses of power without notice.
    pub unsafe_shutdowns: [u8; 16],
    /// Errors of media and integrity.
    pub media_errors: [u8; 16],
    /// How many error log entries there were in the controller's life.
    pub error_log_entries: [u8; 16],
    /// Minutes above the warning temperature.
    pub warning_temperature_time: u32,
    /// Minutes above the critical temperature.
    pub critical_temperature_time: u32,
    /// Sensors in kelvin, zero when not there.
    pub temperature_sensors: [u16; 8],
    /// Transitions of thermal management 1 and 2.
    pub thermal_transitions: [u32; 2],
    /// Seconds in thermal management 1 and 2.
    pub thermal_time: [u32; 2],
    /// Reserved, zero.
    pub reserved2: [u8; 280],
}

const _: () = assert!(size_of::<SmartLog>() == 512);

/// [`LogPage::FIRMWARE_SLOT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// AFI: the slot in use in bits 2:0, that after the next reset in bits 6:4.
    pub active: u8,
    /// Reserved, zero.
    pub reserved: [u8; 7],
    /// The revision in each slot, ASCII, the first of slot 1.
    pub revisions: [[u8; 8]; 7],
    /// Reserved, zero.
    pub reserved2: [u8; 448],
}

const _: () = assert!(size_of::<FirmwareSlotLog>() == 512);

/// [`LogPage::CHANGED_NAMESPACES`]: ascending, ended by zero; all ones in the first when
/// there are more than 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ChangedNamespaces {
    /// The namespaces.
    pub namespaces: [u32; 1024],
}

const _: () = assert!(size_of::<ChangedNamespaces>() == 4096);
