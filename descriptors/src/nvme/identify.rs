//! Identify: which structure, and that of the controller.

use bitfield::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Version, open_numbers};

open_numbers! {
    /// CNS: what Identify returns.
    pub struct Cns(u8) {
        /// [`IdentifyNamespace`](super::IdentifyNamespace).
        NAMESPACE = 0x00, "Identify Namespace";
        /// [`IdentifyController`].
        CONTROLLER = 0x01, "Identify Controller";
        /// [`NamespaceList`](super::NamespaceList): active ones above the given.
        ACTIVE_NAMESPACES = 0x02, "Active Namespace ID list";
        /// [`NamespaceDescriptor`](super::NamespaceDescriptor) and what follows each.
        NAMESPACE_DESCRIPTORS = 0x03, "Namespace Identification Descriptor list";
        /// [`NamespaceList`](super::NamespaceList): allocated ones above the given.
        ALLOCATED_NAMESPACES = 0x10, "Allocated Namespace ID list";
        /// [`IdentifyNamespace`](super::IdentifyNamespace) of an allocated one.
        ALLOCATED_NAMESPACE = 0x11, "Identify Namespace, allocated";
        /// Controllers that a namespace is attached to.
        ATTACHED_CONTROLLERS = 0x12, "Controller list, attached to the namespace";
        /// Controllers of the subsystem.
        CONTROLLERS = 0x13, "Controller list";
    }
}

bitfield! {
    /// OACS: optional admin commands.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct AdminCommandSupport(pub u16);
    impl Debug;
    /// Security Send and Receive.
    pub security, set_security: 0;
    /// Format NVM.
    pub format, set_format: 1;
    /// Firmware Commit and Image Download.
    pub firmware, set_firmware: 2;
    /// Namespace Management and Attachment.
    pub namespace_management, set_namespace_management: 3;
    /// Device Self-test.
    pub self_test, set_self_test: 4;
    /// Directives.
    pub directives, set_directives: 5;
    /// NVMe-MI Send and Receive.
    pub management_interface, set_management_interface: 6;
    /// Virtualization Management.
    pub virtualization, set_virtualization: 7;
    /// Doorbell Buffer Config.
    pub doorbell_buffer, set_doorbell_buffer: 8;
    /// Get LBA Status.
    pub lba_status, set_lba_status: 9;
}

bitfield! {
    /// ONCS: optional NVM commands.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct NvmCommandSupport(pub u16);
    impl Debug;
    /// Compare.
    pub compare, set_compare: 0;
    /// Write Uncorrectable.
    pub write_uncorrectable, set_write_uncorrectable: 1;
    /// Dataset Management.
    pub dataset_management, set_dataset_management: 2;
    /// Write Zeroes.
    pub write_zeroes, set_write_zeroes: 3;
    /// Features can be saved and selected.
    pub save_features, set_save_features: 4;
    /// Reservations.
    pub reservations, set_reservations: 5;
    /// The feature Timestamp.
    pub timestamp, set_timestamp: 6;
    /// Verify.
    pub verify, set_verify: 7;
}

bitfield! {
    /// FNA: what Format NVM reaches.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct FormatNvmAttributes(pub u8);
    impl Debug;
    /// All namespaces are formatted, whichever is named.
    pub formats_all, set_formats_all: 0;
    /// All namespaces are erased, whichever is named.
    pub erases_all, set_erases_all: 1;
    /// Can erase by deleting the key.
    pub crypto_erase, set_crypto_erase: 2;
}

bitfield! {
    /// VWC: the volatile write cache.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct VolatileWriteCachePresent(pub u8);
    impl Debug;
    /// There is one, so Flush matters.
    pub present, set_present: 0;
    /// Flush with the namespace all ones: 2 not supported, 3 supported, 0 not told.
    pub u8, flush_all, set_flush_all: 2, 1;
}

bitfield! {
    /// LPA: log page attributes.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct LogPageAttributes(pub u8);
    impl Debug;
    /// The SMART page also by namespace.
    pub smart_by_namespace, set_smart_by_namespace: 0;
    /// The page Commands Supported and Effects.
    pub command_effects, set_command_effects: 1;
    /// Offsets, and lengths of 32 bits.
    pub extended, set_extended: 2;
    /// Telemetry pages.
    pub telemetry, set_telemetry: 3;
}

bitfield! {
    /// SGLS: what may be said with SGLs.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct SglSupport(pub u32);
    impl Debug;
    /// 0 no SGLs, 1 SGLs, 2 SGLs of whole dwords at addresses of whole dwords.
    pub u8, kind, set_kind: 1, 0;
    /// Keyed descriptors.
    pub keyed, set_keyed: 2;
    /// Bit buckets.
    pub bit_bucket, set_bit_bucket: 16;
    /// Metadata in one buffer at any byte.
    pub metadata_buffer, set_metadata_buffer: 17;
    /// The SGL may be longer than the data.
    pub excess_length, set_excess_length: 18;
    /// Metadata by an SGL segment.
    pub metadata_segment, set_metadata_segment: 19;
    /// Offsets.
    pub offsets, set_offsets: 20;
}

bitfield! {
    /// SQES and CQES: sizes of queue entries, as powers of two.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
    #[repr(transparent)]
    pub struct EntrySize(pub u8);
    impl Debug;
    /// The smallest, which every controller of this command set has.
    pub u8, required, set_required: 3, 0;
    /// The largest.
    pub u8, max, set_max: 7, 4;
}

/// PSD: one power state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PowerState {
    /// MP: the most power, in centiwatts, or in 0.1 mW when bit 0 of `flags` is set.
    pub max_power: u16,
    /// Reserved, zero.
    pub reserved: u8,
    /// Bit 0 MXPS: the scale of `max_power`. Bit 1 NOPS: no I/O in this state.
    pub flags: u8,
    /// ENLAT: microseconds to enter it.
    pub entry_latency: u32,
    /// EXLAT: microseconds to leave it.
    pub exit_latency: u32,
    /// RRT: relative read throughput, lower is better.
    pub read_throughput: u8,
    /// RRL: relative read latency.
    pub read_latency: u8,
    /// RWT: relative write throughput.
    pub write_throughput: u8,
    /// RWL: relative write latency.
    pub write_latency: u8,
    /// IDLP: power when idle.
    pub idle_power: u16,
    /// IPS in bits 7:6: the scale of `idle_power`.
    pub idle_scale: u8,
    /// Reserved, zero.
    pub reserved2: u8,
    /// ACTP: power when active.
    pub active_power: u16,
    /// APW in bits 2:0, APS in bits 7:6: workload and scale of `active_power`.
    pub active_scale: u8,
    /// Reserved, zero.
    pub reserved3: [u8; 9],
}

const _: () = assert!(size_of::<PowerState>() == 32);

/// What [`Cns::CONTROLLER`] returns. Texts are ASCII, filled up with spaces: [`text`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct IdentifyController {
    /// VID: the PCI vendor id.
    pub vendor: u16,
    /// SSVID: the PCI subsystem vendor id.
    pub subsystem_vendor: u16,
    /// SN: the serial number.
    pub serial_number: [u8; 20],
    /// MN: the model number.
    pub model_number: [u8; 40],
    /// FR: the firmware revision.
    pub firmware_revision: [u8; 8],
    /// RAB: recommended arbitration burst, as a power of two.
    pub arbitration_burst: u8,
    /// IEEE: the vendor's OUI, lowest byte first.
    pub oui: [u8; 3],
    /// CMIC: bit 0 several ports, bit 1 several controllers, bit 2 a virtual function,
    /// bit 3 asymmetric access.
    pub multi_path: u8,
    /// MDTS: the longest transfer is `page_min << n` bytes; zero: no limit.
    pub max_transfer_exponent: u8,
    /// CNTLID: the number of the controller in its subsystem.
    pub controller_id: u16,
    /// VER: as the register VS.
    pub version: u32,
    /// RTD3R: microseconds to resume from D3.
    pub resume_latency: u32,
    /// RTD3E: microseconds to enter D3.
    pub entry_latency: u32,
    /// OAES: optional asynchronous events, bits as in
    /// [`AsyncEventConfiguration`](super::AsyncEventConfiguration).
    pub optional_events: u32,
    /// CTRATT: attributes of the controller.
    pub attributes: u32,
    /// RRLS: read recovery levels.
    pub read_recovery_levels: u16,
    /// Reserved, zero.
    pub reserved102: [u8; 9],
    /// CNTRLTYPE: 1 for an I/O controller, 0 not told.
    pub controller_type: u8,
    /// FGUID: a unique id of the unit.
    pub fru_guid: [u8; 16],
    /// CRDT1 to CRDT3: delays before a retry, in units of 100 ms.
    pub retry_delays: [u16; 3],
    /// Reserved, zero.
    pub reserved134: [u8; 122],
    /// OACS: optional admin commands.
    pub admin_commands: AdminCommandSupport,
    /// ACL: how many Abort commands at once, less one.
    pub abort_limit: u8,
    /// AERL: how many Asynchronous Event Requests at once, less one.
    pub async_event_limit: u8,
    /// FRMW: bit 0 slot 1 is read only, bits 3:1 how many slots, bit 4 activation without a
    /// reset.
    pub firmware_updates: u8,
    /// LPA: log page attributes.
    pub log_pages: LogPageAttributes,
    /// ELPE: error log entries, less one.
    pub error_log_entries: u8,
    /// NPSS: power states, less one.
    pub power_states: u8,
    /// AVSCC: bit 0 vendor admin commands have the standard format.
    pub vendor_admin_format: u8,
    /// APSTA: bit 0 autonomous power state transitions.
    pub autonomous_power: u8,
    /// WCTEMP: warning temperature in kelvin.
    pub warning_temperature: u16,
    /// CCTEMP: critical temperature in kelvin.
    pub critical_temperature: u16,
    /// MTFA: the longest activation of firmware, in units of 100 ms.
    pub firmware_activation_time: u16,
    /// HMPRE: preferred host memory buffer, in pages of 4 KiB.
    pub host_memory_preferred: u32,
    /// HMMIN: smallest host memory buffer, in pages of 4 KiB.
    pub host_memory_min: u32,
    /// TNVMCAP: capacity in bytes, little-endian.
    pub total_capacity: [u8; 16],
    /// UNVMCAP: capacity without a namespace, in bytes, little-endian.
    pub unallocated_capacity: [u8; 16],
    /// RPMBS: replay protected memory blocks.
    pub replay_protected: u32,
    /// EDSTT: minutes of an extended self-test.
    pub self_test_time: u16,
    /// DSTO: bit 0 one self-test at a time in the subsystem.
    pub self_test_options: u8,
    /// FWUG: granularity of firmware parts in units of 4 KiB.
    pub firmware_granularity: u8,
    /// KAS: granularity of the keep-alive timer in units of 100 ms, zero for none.
    pub keep_alive: u16,
    /// HCTMA: bit 0 host controlled thermal management.
    pub thermal_management: u16,
    /// MNTMT: lowest temperature of thermal management in kelvin.
    pub thermal_min: u16,
    /// MXTMT: highest temperature of thermal management in kelvin.
    pub thermal_max: u16,
    /// SANICAP: how it can sanitize.
    pub sanitize: u32,
    /// HMMINDS: smallest part of a host memory buffer, in pages of 4 KiB.
    pub host_memory_part_min: u32,
    /// HMMAXD: most parts of a host memory buffer.
    pub host_memory_parts_max: u16,
    /// NSETIDMAX: highest NVM set.
    pub nvm_sets: u16,
    /// ENDGIDMAX: highest endurance group.
    pub endurance_groups: u16,
    /// ANATT: longest change of asymmetric access in seconds.
    pub asymmetric_access_time: u8,
    /// ANACAP: asymmetric access.
    pub asymmetric_access: u8,
    /// ANAGRPMAX: highest group.
    pub asymmetric_group_max: u32,
    /// NANAGRPID: how many groups.
    pub asymmetric_groups: u32,
    /// PELS: size of the persistent event log in units of 64 KiB.
    pub persistent_event_log: u32,
    /// Reserved, zero.
    pub reserved356: [u8; 156],
    /// SQES: sizes of submission queue entries.
    pub submission_entry: EntrySize,
    /// CQES: sizes of completion queue entries.
    pub completion_entry: EntrySize,
    /// MAXCMD: most commands of a queue at once, zero: not told.
    pub max_commands: u16,
    /// NN: how many namespaces there can be; the highest id.
    pub namespaces: u32,
    /// ONCS: optional NVM commands.
    pub nvm_commands: NvmCommandSupport,
    /// FUSES: bit 0 Compare and Write fused.
    pub fused: u16,
    /// FNA: what Format NVM reaches.
    pub format: FormatNvmAttributes,
    /// VWC: the volatile write cache.
    pub write_cache: VolatileWriteCachePresent,
    /// AWUN: blocks that are written atomically, less one.
    pub atomic_write: u16,
    /// AWUPF: blocks that are written atomically when power fails, less one.
    pub atomic_write_power_fail: u16,
    /// NVSCC: bit 0 vendor NVM commands have the standard format.
    pub vendor_nvm_format: u8,
    /// NWPC: namespace write protection.
    pub write_protection: u8,
    /// ACWU: blocks of a fused Compare and Write that are atomic, less one.
    pub atomic_compare_write: u16,
    /// Reserved, zero.
    pub reserved534: [u8; 2],
    /// SGLS: what may be said with SGLs.
    pub sgl: SglSupport,
    /// MNAN: most namespaces at once, zero: NN.
    pub max_allowed_namespaces: u32,
    /// Reserved, zero.
    pub reserved544: [u8; 224],
    /// SUBNQN: the qualified name of the subsystem, UTF-8, ended by zero.
    pub subsystem_name: [u8; 256],
    /// Reserved, zero; fabrics have fields from byte 1792 on.
    pub reserved1024: [u8; 1024],
    /// PSD0 to PSD31: power states.
    pub power_state: [PowerState; 32],
    /// Of the vendor.
    pub vendor_specific: [u8; 1024],
}

const _: () = assert!(size_of::<IdentifyController>() == 4096);

impl IdentifyController {
    /// VER as a version.
    #[must_use]
    pub fn revision(&self) -> Version {
        Version(self.version)
    }
}

/// An ASCII text without the spaces and zeros that fill it up. What is not printable
/// becomes `?`: a controller may say anything.
#[must_use]
pub fn text(field: &[u8]) -> String {
    let end = field.iter().rposition(|byte| !matches!(byte, b' ' | 0)).map_or(0, |last| last + 1);
    field[..end]
        .iter()
        .map(|byte| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '?' })
        .collect()
}
