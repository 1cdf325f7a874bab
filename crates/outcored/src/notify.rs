//! Tells systemd that a daemon listens: the protocol of `sd_notify(3)`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Says `READY=1` to who started this process and waits for it, if anybody does. A daemon that cannot say so works all the
/// same, and systemd gives up waiting by itself.
pub fn notify_ready() {
    let Ok(name) = std::env::var("NOTIFY_SOCKET") else { return };
    let address = match name.strip_prefix('@') {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&name),
    };
    if let (Ok(address), Ok(socket)) = (address, UnixDatagram::unbound()) {
        let _ = socket.send_to_addr(b"READY=1\n", &address);
    }
}
