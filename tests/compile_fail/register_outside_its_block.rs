//! A register past the end of its set is found when it is compiled.
vdk_hal::register_block! {
    struct Registers(0x10) {
        LAST: u64 @ 0x0c, ReadWrite, split LowHigh;
    }
}

fn main() {}
