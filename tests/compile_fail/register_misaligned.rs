//! A register off its natural alignment is found when it is compiled.
vdk_hal::register_block! {
    struct Registers(0x10) {
        ODD: u32 @ 0x02, ReadWrite;
    }
}

fn main() {}
