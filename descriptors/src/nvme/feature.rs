//! Features: what Set Features writes and Get Features reads, mostly one dword.

use bitfield::bitfield;

use super::open_numbers;

open_numbers! {
    /// FID: the feature.
    pub struct FeatureId(u8) {
        /// [`Arbitration`].
        ARBITRATION = 0x01, "Arbitration";
        /// [`PowerManagement`].
        POWER_MANAGEMENT = 0x02, "Power Management";
        /// Types of ranges, as a data structure.
        LBA_RANGE_TYPE = 0x03, "LBA Range Type";
        /// [`TemperatureThreshold`].
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        /// [`ErrorRecovery`].
        ERROR_RECOVERY = 0x05, "Error Recovery";
        /// [`VolatileWriteCache`].
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        /// [`NumberOfQueues`].
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        /// [`InterruptCoalescing`].
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        /// [`InterruptVectorConfiguration`].
        INTERRUPT_VECTOR_CONFIGURATION = 0x09, "Interrupt Vector Configuration";
        /// Bit 0: the atomicity of AWUN is not needed.
        WRITE_ATOMICITY_NORMAL = 0x0a, "Write Atomicity Normal";
        /// [`AsyncEventConfiguration`].
        ASYNC_EVENT_CONFIGURATION = 0x0b, "Asynchronous Event Configuration";
        /// Autonomous power states, as a data structure.
        AUTONOMOUS_POWER_STATE_TRANSITION = 0x0c, "Autonomous Power State Transition";
        /// Memory of the host that the controller may use.
        HOST_MEMORY_BUFFER = 0x0d, "Host Memory Buffer";
        /// The time, as a data structure.
        TIMESTAMP = 0x0e, "Timestamp";
        /// The timeout in milliseconds.
        KEEP_ALIVE_TIMER = 0x0f, "Keep Alive Timer";
        /// Temperatures at which the controller slows itself down.
        HOST_CONTROLLED_THERMAL_MANAGEMENT = 0x10, "Host Controlled Thermal Management";
        /// Whether non-operational states may use more power for a while.
        NON_OPERATIONAL_POWER_STATE = 0x11, "Non-Operational Power State Config";
        /// How hard a read tries.
        READ_RECOVERY_LEVEL = 0x12, "Read Recovery Level Config";
        /// What the host can deal with, as a data structure.
        HOST_BEHAVIOR_SUPPORT = 0x16, "Host Behavior Support";
        /// How sanitize behaves.
        SANITIZE_CONFIG = 0x17, "Sanitize Config";
        /// How often an operating system has begun to load.
        SOFTWARE_PROGRESS_MARKER = 0x80, "Software Progress Marker";
        /// Who the host is, as a data structure.
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        /// Which reservation notices are masked.
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        /// Whether reservations survive a loss of power.
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        /// Whether a namespace is write protected.
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
    }
}

open_numbers! {
    /// SEL of Get Features: which value to return.
    pub struct FeatureSelect(u8) {
        /// What is in force.
        CURRENT = 0, "current";
        /// What is in force after a reset when nothing was saved.
        DEFAULT = 1, "default";
        /// What was saved.
        SAVED = 2, "saved";
        /// What can be done with it: bit 0 saved, bit 1 by namespace, bit 2 changed.
        SUPPORTED_CAPABILITIES = 3, "supported capabilities";
    }
}

bitfield! {
    /// Dword 10 of Set Features and Get Features.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct FeatureDword(pub u32);
    impl Debug;
    u8, feature_bits, set_feature_bits: 7, 0;
    u8, select_bits, set_select_bits: 10, 8;
    /// SV: keep the value over power cycles, of Set Features.
    pub save, set_save: 31;
}

impl FeatureDword {
    /// The feature.
    #[must_use]
    pub fn feature(self) -> FeatureId {
        FeatureId(self.feature_bits())
    }

    /// Replaces the feature.
    pub fn set_feature(&mut self, feature: FeatureId) {
        self.set_feature_bits(feature.0);
    }

    /// Which value Get Features returns.
    #[must_use]
    pub fn select(self) -> FeatureSelect {
        FeatureSelect(self.select_bits())
    }

    /// Replaces which value Get Features returns.
    pub fn set_select(&mut self, select: FeatureSelect) {
        self.set_select_bits(select.0);
    }
}

bitfield! {
    /// How commands of several queues take turns.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Arbitration(pub u32);
    impl Debug;
    /// AB: `1 << n` commands of a queue at once, 7 for no limit.
    pub u8, burst, set_burst: 2, 0;
    /// LPW: weight of low priority, less one.
    pub u8, low_weight, set_low_weight: 15, 8;
    /// MPW: weight of medium priority, less one.
    pub u8, medium_weight, set_medium_weight: 23, 16;
    /// HPW: weight of high priority, less one.
    pub u8, high_weight, set_high_weight: 31, 24;
}

bitfield! {
    /// The power state.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct PowerManagement(pub u32);
    impl Debug;
    /// PS: the number of the state.
    pub u8, state, set_state: 4, 0;
    /// WH: the kind of work.
    pub u8, workload, set_workload: 7, 5;
}

bitfield! {
    /// When the temperature raises an event.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct TemperatureThreshold(pub u32);
    impl Debug;
    /// TMPTH: in kelvin.
    pub u16, kelvin, set_kelvin: 15, 0;
    /// TMPSEL: 0 the composite temperature, 1 to 8 a sensor.
    pub u8, sensor, set_sensor: 19, 16;
    /// THSEL: 0 over, 1 under.
    pub u8, kind, set_kind: 21, 20;
}

bitfield! {
    /// How errors of a namespace are dealt with.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ErrorRecovery(pub u32);
    impl Debug;
    /// TLER: for how long to retry, in units of 100 ms; zero for no limit.
    pub u16, time_limit, set_time_limit: 15, 0;
    /// DULBE: reading deallocated blocks is an error.
    pub deallocated_error, set_deallocated_error: 16;
}

bitfield! {
    /// Whether writes may be completed before they are durable.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct VolatileWriteCache(pub u32);
    impl Debug;
    /// WCE: they may.
    pub enabled, set_enabled: 0;
}

bitfield! {
    /// How many I/O queues the host asks for and, in the completion, gets; each less one.
    /// The host uses no more than it got, and no more than it asked for.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct NumberOfQueues(pub u32);
    impl Debug;
    /// NSQR and NSQA: submission queues, less one.
    pub u16, submission, set_submission: 15, 0;
    /// NCQR and NCQA: completion queues, less one.
    pub u16, completion, set_completion: 31, 16;
}

bitfield! {
    /// How interrupts are held back so that several become one.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InterruptCoalescing(pub u32);
    impl Debug;
    /// THR: at most so many completions, less one.
    pub u8, threshold, set_threshold: 7, 0;
    /// TIME: at most so long, in units of 100 microseconds; zero for no delay.
    pub u8, time, set_time: 15, 8;
}

bitfield! {
    /// Whether a vector takes part in coalescing.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct InterruptVectorConfiguration(pub u32);
    impl Debug;
    /// IV: the vector.
    pub u16, vector, set_vector: 15, 0;
    /// CD: it does not.
    pub coalescing_disabled, set_coalescing_disabled: 16;
}

bitfield! {
    /// Which events are told. Bits 7:0 are those of
    /// [`CriticalWarning`](super::CriticalWarning).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AsyncEventConfiguration(pub u32);
    impl Debug;
    /// Critical warnings.
    pub u8, health, set_health: 7, 0;
    /// Namespaces came, went or changed.
    pub namespace_attributes, set_namespace_attributes: 8;
    /// Firmware is being activated.
    pub firmware_activation, set_firmware_activation: 9;
    /// The telemetry log has changed.
    pub telemetry_log, set_telemetry_log: 10;
    /// Access to namespaces has changed.
    pub asymmetric_access, set_asymmetric_access: 11;
}
