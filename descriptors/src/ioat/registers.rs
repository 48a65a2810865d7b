//! Registers of the device and of a channel.

use vdk_hal::register_block;

register_block! {
    /// The registers of the device, at the beginning of BAR 0.
    pub struct IoatRegisters(0x80) {
        /// How many channels there are, in bits 4:0.
        CHANCNT: u8 @ 0x00, ReadPure;
        /// The largest transfer, as a power of two in bits 4:0; see
        /// [`transfer_cap`](super::transfer_cap).
        XFERCAP: u8 @ 0x01, ReadPure;
        /// General control; bit 0 enables debugging. Drivers leave it alone.
        GENCTRL: u8 @ 0x02, ReadWrite;
        /// See [`InterruptControl`](super::InterruptControl). Writing it back at the end of
        /// a handler allows the next interrupt where all channels share one vector.
        INTRCTRL: u8 @ 0x03, ReadWrite;
        /// Which channels want attention, one bit each. Reading clears it.
        ATTNSTATUS: u32 @ 0x04, ReadSideEffects;
        /// See [`Version`](super::Version).
        CBVER: u8 @ 0x08, ReadPure;
        /// Where the registers of the first port lie, if there are any.
        PERPORTOFFSET: u16 @ 0x0a, ReadPure;
        /// See [`InterruptDelay`](super::InterruptDelay).
        INTRDELAY: u16 @ 0x0c, ReadWrite;
        /// State of the chip set: bit 0 degraded mode, bit 1 register access restricted,
        /// bit 2 memory bypass, bit 3 addresses are remapped.
        CSSTATUS: u16 @ 0x0e, ReadPure;
        /// See [`Capabilities`](super::Capabilities).
        DMACAPABILITY: u32 @ 0x10, ReadPure;
        /// Where the registers for direct cache access lie; zero when there are none.
        DCAOFFSET: u16 @ 0x14, ReadPure;
    }
}

register_block! {
    /// The registers of one channel, at [`channel_offset`](super::channel_offset).
    ///
    /// The 64-bit registers take two 32-bit accesses, low word first: one 64-bit write
    /// does not work on all devices.
    pub struct IoatChannelRegisters(0x80) {
        /// See [`ChannelControl`](super::ChannelControl).
        CHANCTRL: u16 @ 0x00, ReadWrite;
        /// Which older interfaces the channel can follow: bit 0 version 1, bit 1 version 2.
        DMA_COMP: u16 @ 0x02, ReadPure;
        /// See [`ChannelCommand`](super::ChannelCommand).
        CHANCMD: u8 @ 0x04, ReadWrite;
        /// The doorbell: descriptors made ready since CHAINADDR was written, modulo 2^16.
        DMACOUNT: u16 @ 0x06, ReadWrite;
        /// See [`ChannelStatus`](super::ChannelStatus).
        CHANSTS: u64 @ 0x08, ReadPure, split LowHigh;
        /// Address of the first descriptor, a multiple of 64.
        CHAINADDR: u64 @ 0x10, ReadWrite, split LowHigh;
        /// Address of the completion word, a multiple of 8.
        CHANCMP: u64 @ 0x18, ReadWrite, split LowHigh;
        /// Address of the descriptor that is being executed.
        CDAR: u64 @ 0x20, ReadPure, split LowHigh;
        /// What went wrong; see [`ChannelErrors`](super::ChannelErrors). Write ones to clear.
        CHANERR: u32 @ 0x28, ReadWriteClear;
        /// Which errors do not halt the channel: ones mask, bits as in CHANERR.
        CHANERRMASK: u32 @ 0x2c, ReadWrite;
        /// Direct cache access: bit 16 enables it for completion writes, bits 15:0 the
        /// APIC id of the processor.
        DCACTRL: u32 @ 0x30, ReadWrite;
        /// The most descriptors that are fetched ahead.
        CHWPREFLMT: u32 @ 0x4c, ReadWrite;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vdk_hal::mmio::{RegisterInfo, RegisterSet};

    /// Name, offset and width in bits, from a second source: the C structure of SPDK's
    /// driver lays the first channel out behind the device at 0x80.
    const EXPECTED: [(&str, usize, usize); 16] = [
        ("CHANCNT", 0x00, 8),
        ("XFERCAP", 0x01, 8),
        ("GENCTRL", 0x02, 8),
        ("INTRCTRL", 0x03, 8),
        ("ATTNSTATUS", 0x04, 32),
        ("CBVER", 0x08, 8),
        ("INTRDELAY", 0x0c, 16),
        ("CSSTATUS", 0x0e, 16),
        ("DMACAPABILITY", 0x10, 32),
        ("CHANCTRL", 0x80, 16),
        ("CHANCMD", 0x84, 8),
        ("DMACOUNT", 0x86, 16),
        ("CHANSTS", 0x88, 64),
        ("CHAINADDR", 0x90, 64),
        ("CHANCMP", 0x98, 64),
        ("CHANERR", 0xa8, 32),
    ];

    #[test]
    fn offsets_agree_with_a_second_source() {
        let declared = |name: &str| -> Option<(usize, usize)> {
            let place =
                |block: usize| move |info: &RegisterInfo| (block + info.offset, info.width.bytes() * 8);
            let find =
                |set: &[RegisterInfo], block| set.iter().find(|info| info.name == name).map(place(block));
            find(IoatRegisters::REGISTERS, 0).or_else(|| find(IoatChannelRegisters::REGISTERS, 0x80))
        };
        for (name, offset, bits) in EXPECTED {
            assert_eq!(declared(name), Some((offset, bits)), "{name}");
        }
    }

    #[test]
    fn registers_do_not_overlap() {
        for set in [IoatRegisters::REGISTERS, IoatChannelRegisters::REGISTERS] {
            for pair in set.windows(2) {
                assert!(pair[0].offset + pair[0].width.bytes() <= pair[1].offset, "{}", pair[1].name);
            }
        }
    }
}
