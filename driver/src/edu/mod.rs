//! QEMU's educational device.
