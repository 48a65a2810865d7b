//! Registers at the beginning of BAR 0.

use vdk_hal::register_block;

register_block! {
    /// The registers of a controller, at the beginning of BAR 0; the doorbells follow at
    /// [`DOORBELLS`](super::DOORBELLS).
    ///
    /// 64-bit registers are accessed as two words, low word first: all controllers take
    /// that.
    pub struct NvmeRegisters(0x1000) {
        /// Controller Capabilities: [`ControllerCapabilities`](super::ControllerCapabilities).
        CAP: u64 @ 0x00, ReadPure, split LowHigh;
        /// Version: [`Version`](super::Version).
        VS: u32 @ 0x08, ReadPure;
        /// Interrupt Mask Set, one bit for each vector. Not for use with MSI-X.
        INTMS: u32 @ 0x0c, ReadWrite;
        /// Interrupt Mask Clear, one bit for each vector. Not for use with MSI-X.
        INTMC: u32 @ 0x10, ReadWrite;
        /// Controller Configuration: [`ControllerConfiguration`](super::ControllerConfiguration).
        CC: u32 @ 0x14, ReadWrite;
        /// Controller Status: [`ControllerStatus`](super::ControllerStatus). Only NSSRO is
        /// cleared by writing a one.
        CSTS: u32 @ 0x1c, ReadWriteClear;
        /// NVM Subsystem Reset, if CAP.NSSRS: the value
        /// [`RESET_SUBSYSTEM`](super::RESET_SUBSYSTEM) begins one. Reads as zero.
        NSSR: u32 @ 0x20, ReadWrite;
        /// Admin Queue Attributes: [`AdminQueueAttributes`](super::AdminQueueAttributes).
        AQA: u32 @ 0x24, ReadWrite;
        /// Admin Submission Queue Base Address, on a page.
        ASQ: u64 @ 0x28, ReadWrite, split LowHigh;
        /// Admin Completion Queue Base Address, on a page.
        ACQ: u64 @ 0x30, ReadWrite, split LowHigh;
        /// Controller Memory Buffer Location:
        /// [`MemoryBufferLocation`](super::MemoryBufferLocation).
        CMBLOC: u32 @ 0x38, ReadPure;
        /// Controller Memory Buffer Size: [`MemoryBufferSize`](super::MemoryBufferSize).
        CMBSZ: u32 @ 0x3c, ReadPure;
        /// Boot Partition Information.
        BPINFO: u32 @ 0x40, ReadPure;
        /// Boot Partition Read Select.
        BPRSEL: u32 @ 0x44, ReadWrite;
        /// Boot Partition Memory Buffer Location.
        BPMBL: u64 @ 0x48, ReadWrite, split LowHigh;
        /// Controller Memory Buffer Memory Space Control: bit 0 the registers of the buffer
        /// are enabled, bit 1 its memory is, bits 63:12 where the controller sees it.
        CMBMSC: u64 @ 0x50, ReadWrite, split LowHigh;
        /// Controller Memory Buffer Status: bit 0 the address was not accepted.
        CMBSTS: u32 @ 0x58, ReadPure;
        /// Persistent Memory Region Capabilities.
        PMRCAP: u32 @ 0xe00, ReadPure;
        /// Persistent Memory Region Control: bit 0 enables it.
        PMRCTL: u32 @ 0xe04, ReadWrite;
        /// Persistent Memory Region Status.
        PMRSTS: u32 @ 0xe08, ReadPure;
        /// Persistent Memory Region Elasticity Buffer Size.
        PMREBS: u32 @ 0xe0c, ReadPure;
        /// Persistent Memory Region Sustained Write Throughput.
        PMRSWTP: u32 @ 0xe10, ReadPure;
        /// Persistent Memory Region Controller Memory Space Control.
        PMRMSC: u64 @ 0xe14, ReadWrite, split LowHigh;
    }
}

register_block! {
    /// The two doorbells of one queue number when they lie 4 bytes apart, at
    /// [`submission_doorbell`](super::submission_doorbell). When they lie further apart
    /// each has a block of its own and is its `TAIL`.
    pub struct NvmeDoorbells(0x8) {
        /// The new tail of the submission queue.
        TAIL: u32 @ 0x0, WriteOnly;
        /// The new head of the completion queue.
        HEAD: u32 @ 0x4, WriteOnly;
    }
}
