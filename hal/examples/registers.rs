//! Typed register access beside raw volatile access, to compare what they compile to.
//!
//! Run it to see both agree; `tests/tests/assembly.rs` compares the instructions.

// UNSAFETY: the raw half of the comparison dereferences a pointer.
#![expect(unsafe_code, reason = "raw volatile accesses to compare with")]
#![expect(clippy::unnecessary_safety_comment, reason = "takes UNSAFETY for SAFETY in the root of a crate")]

use vdk_hal::address::ByteLength;
use vdk_hal::memory::{Pages, SharedMemory};
use vdk_hal::mmio::{MappedBlock, RegisterSet};

vdk_hal::register_block! {
    /// One register of each width.
    pub struct Registers(0x40) {
        /// Eight bits.
        BYTE: u8 @ 0x03, ReadWrite;
        /// Sixteen bits.
        HALF: u16 @ 0x0a, ReadWrite;
        /// Thirty-two bits.
        WORD: u32 @ 0x14, ReadWrite;
        /// Sixty-four bits.
        LONG: u64 @ 0x28, ReadWrite;
    }
}

/// Declares the functions that are compared, for one register.
macro_rules! pair {
    ($register:ident: $type:ty, $typed_read:ident, $raw_read:ident, $typed_write:ident, $raw_write:ident) => {
        #[inline(never)]
        fn $typed_read(block: &Typed) -> $type {
            block.registers.read(Registers::$register)
        }

        #[inline(never)]
        fn $raw_read(block: &Raw) -> $type {
            // SAFETY: `first` is the beginning of a live set of registers, aligned to 8.
            let register = unsafe { block.first.add(Registers::$register.offset()) };
            // SAFETY: inside the set and aligned, as its declaration asserts.
            unsafe { register.cast::<$type>().read_volatile() }
        }

        #[inline(never)]
        fn $typed_write(block: &Typed, value: $type) {
            block.registers.write(Registers::$register, value);
        }

        #[inline(never)]
        fn $raw_write(block: &Raw, value: $type) {
            // SAFETY: as in the read.
            let register = unsafe { block.first.add(Registers::$register.offset()) };
            // SAFETY: as in the read.
            unsafe { register.cast::<$type>().write_volatile(value) }
        }
    };
}

pair!(BYTE: u8, typed_read_byte, raw_read_byte, typed_write_byte, raw_write_byte);
pair!(HALF: u16, typed_read_half, raw_read_half, typed_write_half, raw_write_half);
pair!(WORD: u32, typed_read_word, raw_read_word, typed_write_word, raw_write_word);
pair!(LONG: u64, typed_read_long, raw_read_long, typed_write_long, raw_write_long);

/// Registers as vdk offers them.
struct Typed {
    registers: MappedBlock<Registers>,
}

/// Registers as a pointer.
struct Raw {
    first: *mut u8,
}

fn main() {
    let memory = SharedMemory::allocate(ByteLength::SIZE_4K, Pages::Base).expect("one page of memory");
    let typed = Typed { registers: MappedBlock::new(&memory).expect("a page holds the registers") };
    let slice = memory.volatile_slice(0, Registers::LENGTH).expect("a page holds the registers");
    let raw = Raw { first: slice.ptr_guard_mut().as_ptr() };

    typed_write_byte(&typed, core::hint::black_box(0x12));
    typed_write_half(&typed, core::hint::black_box(0x3456));
    typed_write_word(&typed, core::hint::black_box(0x789a_bcde));
    typed_write_long(&typed, core::hint::black_box(0x0123_4567_89ab_cdef));
    let read = (raw_read_byte(&raw), raw_read_half(&raw), raw_read_word(&raw), raw_read_long(&raw));
    assert_eq!(read, (0x12, 0x3456, 0x789a_bcde, 0x0123_4567_89ab_cdef));

    raw_write_byte(&raw, core::hint::black_box(!0x12));
    raw_write_half(&raw, core::hint::black_box(!0x3456));
    raw_write_word(&raw, core::hint::black_box(!0x789a_bcde));
    raw_write_long(&raw, core::hint::black_box(!0x0123_4567_89ab_cdef));
    let read =
        (typed_read_byte(&typed), typed_read_half(&typed), typed_read_word(&typed), typed_read_long(&typed));
    assert_eq!(read, (!0x12, !0x3456, !0x789a_bcde, !0x0123_4567_89ab_cdef));
    println!("typed and raw accesses agree on registers of 8, 16, 32 and 64 bits");
}
