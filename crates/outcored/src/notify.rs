//! Notification of systemd that a daemon listens, by the protocol of `sd_notify(3)`.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `READY=1` to the service manager, if one waits for it. If that fails, the daemon works nevertheless, and
/// the service manager's timeout expires.
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
