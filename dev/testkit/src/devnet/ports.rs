//! Ports for servers that are killed and started again on the same port.

use std::{
    io,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    process,
    sync::atomic::{AtomicU16, Ordering},
};

use super::process::cannot;

/// Below the range from which systems choose the ports of outgoing connections. A client that
/// repeatedly connects to a killed server on a port of that range may be given the same port for
/// itself, and then connects to itself.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A TCP port of the loopback address that is reserved while this exists.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    /// A UDP port with the same number. It reserves the number among processes that use this type,
    /// and a server can still listen on the TCP port.
    _reservation: UdpSocket,
}

impl Port {
    pub(crate) fn reserve() -> io::Result<Self> {
        // It spreads the first attempts of concurrent processes.
        static NEXT: AtomicU16 = AtomicU16::new(0);
        let start = u16::try_from(process::id() % u32::from(COUNT)).unwrap_or(0);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
            let number = FIRST + (start + step) % COUNT;
            let Ok(reservation) = UdpSocket::bind((Ipv4Addr::LOCALHOST, number)) else { continue };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        Err(cannot("find a free port")(io::ErrorKind::AddrInUse.into()))
    }

    pub(crate) const fn number(&self) -> u16 {
        self.number
    }
}
