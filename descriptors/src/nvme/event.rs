//! Dword 0 of the completion of an Asynchronous Event Request.

use bitfield::bitfield;

use super::{LogPage, open_numbers};

open_numbers! {
    /// What kind of event it is.
    pub struct AsyncEventType(u8) {
        /// [`ErrorEvent`].
        ERROR = 0, "error status";
        /// [`HealthEvent`].
        HEALTH = 1, "SMART / health status";
        /// [`NoticeEvent`].
        NOTICE = 2, "notice";
        /// Of the I/O command set.
        IO_COMMAND_SET = 6, "I/O command set specific";
        /// Of the vendor.
        VENDOR = 7, "vendor specific";
    }
}

open_numbers! {
    /// An event of type [`AsyncEventType::ERROR`].
    pub struct ErrorEvent(u8) {
        /// A doorbell of a queue that does not exist was written.
        INVALID_DOORBELL_REGISTER = 0, "write to invalid doorbell register";
        /// A value that is no place in the queue was written to a doorbell.
        INVALID_DOORBELL_VALUE = 1, "invalid doorbell write value";
        /// A self-test has failed.
        DIAGNOSTIC_FAILURE = 2, "diagnostic failure";
        /// Does not go away.
        PERSISTENT_INTERNAL_ERROR = 3, "persistent internal error";
        /// Goes away.
        TRANSIENT_INTERNAL_ERROR = 4, "transient internal error";
        /// A firmware image could not be loaded.
        FIRMWARE_IMAGE_LOAD_ERROR = 5, "firmware image load error";
    }
}

open_numbers! {
    /// An event of type [`AsyncEventType::HEALTH`].
    pub struct HealthEvent(u8) {
        /// The subsystem has become less reliable.
        RELIABILITY = 0, "NVM subsystem reliability";
        /// Too hot or too cold.
        TEMPERATURE_THRESHOLD = 1, "temperature threshold";
        /// Few spare blocks are left.
        SPARE_BELOW_THRESHOLD = 2, "spare below threshold";
    }
}

open_numbers! {
    /// An event of type [`AsyncEventType::NOTICE`].
    pub struct NoticeEvent(u8) {
        /// Namespaces came, went or changed; the log page says which.
        NAMESPACE_ATTRIBUTE_CHANGED = 0, "namespace attribute changed";
        /// New firmware is being activated; commands are held back.
        FIRMWARE_ACTIVATION_STARTING = 1, "firmware activation starting";
        /// The telemetry log has changed.
        TELEMETRY_LOG_CHANGED = 2, "telemetry log changed";
        /// Access to namespaces has changed.
        ASYMMETRIC_ACCESS_CHANGE = 3, "asymmetric namespace access change";
    }
}

bitfield! {
    /// Dword 0 of the completion of an Asynchronous Event Request.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct AsyncEvent(pub u32);
    impl Debug;
    u8, kind_bits, set_kind_bits: 2, 0;
    /// What happened: an [`ErrorEvent`], [`HealthEvent`] or [`NoticeEvent`].
    pub u8, information, set_information: 15, 8;
    u8, page_bits, set_page_bits: 23, 16;
}

impl AsyncEvent {
    /// An event.
    #[must_use]
    pub fn new(kind: AsyncEventType, information: u8, page: LogPage) -> Self {
        let mut event = Self(0);
        event.set_kind_bits(kind.0);
        event.set_information(information);
        event.set_page_bits(page.0);
        event
    }

    /// What kind of event it is.
    #[must_use]
    pub fn kind(self) -> AsyncEventType {
        AsyncEventType(self.kind_bits())
    }

    /// The log page that has more; reading it lets the event happen again.
    #[must_use]
    pub fn page(self) -> LogPage {
        LogPage(self.page_bits())
    }
}
