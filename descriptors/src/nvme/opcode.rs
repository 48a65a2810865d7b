//! Opcodes of commands. Bits 1:0 of most tell where data goes: 0 nowhere, 1 to the
//! controller, 2 to the host.

use super::open_numbers;

open_numbers! {
    /// An opcode of the admin queue.
    pub struct AdminOpcode(u8) {
        /// Delete an I/O submission queue.
        DELETE_SUBMISSION_QUEUE = 0x00, "Delete I/O Submission Queue";
        /// Create an I/O submission queue.
        CREATE_SUBMISSION_QUEUE = 0x01, "Create I/O Submission Queue";
        /// Read a log page.
        GET_LOG_PAGE = 0x02, "Get Log Page";
        /// Delete an I/O completion queue.
        DELETE_COMPLETION_QUEUE = 0x04, "Delete I/O Completion Queue";
        /// Create an I/O completion queue.
        CREATE_COMPLETION_QUEUE = 0x05, "Create I/O Completion Queue";
        /// Read what controller or namespace are.
        IDENTIFY = 0x06, "Identify";
        /// Abort one command.
        ABORT = 0x08, "Abort";
        /// Write a feature.
        SET_FEATURES = 0x09, "Set Features";
        /// Read a feature.
        GET_FEATURES = 0x0a, "Get Features";
        /// Completes when an event happens.
        ASYNC_EVENT_REQUEST = 0x0c, "Asynchronous Event Request";
        /// Create or delete a namespace.
        NAMESPACE_MANAGEMENT = 0x0d, "Namespace Management";
        /// Activate a firmware image.
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        /// Send a part of a firmware image.
        FIRMWARE_IMAGE_DOWNLOAD = 0x11, "Firmware Image Download";
        /// Begin a self-test.
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        /// Attach a namespace to controllers.
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        /// Restart the keep-alive timer.
        KEEP_ALIVE = 0x18, "Keep Alive";
        /// Write a directive.
        DIRECTIVE_SEND = 0x19, "Directive Send";
        /// Read a directive.
        DIRECTIVE_RECEIVE = 0x1a, "Directive Receive";
        /// Resources of virtual functions.
        VIRTUALIZATION_MANAGEMENT = 0x1c, "Virtualization Management";
        /// A management interface message to the controller.
        NVME_MI_SEND = 0x1d, "NVMe-MI Send";
        /// A management interface message from the controller.
        NVME_MI_RECEIVE = 0x1e, "NVMe-MI Receive";
        /// Tell where the shadow doorbells and event indices lie: data pointer 1 and 2, a
        /// page each, laid out like the doorbells.
        DOORBELL_BUFFER_CONFIG = 0x7c, "Doorbell Buffer Config";
        /// Erase and change the LBA format.
        FORMAT_NVM = 0x80, "Format NVM";
        /// A security protocol message to the controller.
        SECURITY_SEND = 0x81, "Security Send";
        /// A security protocol message from the controller.
        SECURITY_RECEIVE = 0x82, "Security Receive";
        /// Make all earlier data unreadable.
        SANITIZE = 0x84, "Sanitize";
        /// Which blocks may be unreadable.
        GET_LBA_STATUS = 0x86, "Get LBA Status";
    }
}

open_numbers! {
    /// An opcode of the NVM command set, on I/O queues.
    pub struct NvmOpcode(u8) {
        /// Make everything written before durable.
        FLUSH = 0x00, "Flush";
        /// Write blocks.
        WRITE = 0x01, "Write";
        /// Read blocks.
        READ = 0x02, "Read";
        /// Mark blocks as unreadable.
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        /// Compare blocks with data.
        COMPARE = 0x05, "Compare";
        /// Set blocks to zero without data.
        WRITE_ZEROES = 0x08, "Write Zeroes";
        /// Hints about ranges, deallocation among them.
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        /// Check blocks without data.
        VERIFY = 0x0c, "Verify";
        /// Register a reservation key.
        RESERVATION_REGISTER = 0x0d, "Reservation Register";
        /// Read who holds reservations.
        RESERVATION_REPORT = 0x0e, "Reservation Report";
        /// Take a reservation.
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        /// Give a reservation up.
        RESERVATION_RELEASE = 0x15, "Reservation Release";
    }
}
