//! Ports that nobody else takes.

use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// A port of UDP and TCP that is free and stays so: the kernel chooses for others from 32768 on,
/// each call gives another one, and processes begin at different places.
pub(crate) fn free() -> u16 {
    const FIRST: u16 = 10_000;
    const COUNT: u16 = 22_000;
    static NEXT: AtomicU16 = AtomicU16::new(0);
    loop {
        // ORDERING: Relaxed; only the number itself is shared.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = (u64::from(std::process::id()) * 97 + u64::from(number)) % u64::from(COUNT);
        let port = FIRST + u16::try_from(place).unwrap();
        let any = ("0.0.0.0", port);
        if TcpListener::bind(any).is_ok() && UdpSocket::bind(any).is_ok() {
            return port;
        }
    }
}
