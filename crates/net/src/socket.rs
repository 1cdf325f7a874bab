//! One interface for all kinds of sockets: connecting, listening, and moving bytes between runs of memory.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use outcore_core::{Error, ErrorKind, Result};

use crate::Address;
use crate::tls::{Tls, TlsServer};

/// Maximum number of memory runs in one vectored call (Linux: `UIO_MAXIOV`).
pub(crate) const MAX_VECTORS: usize = 1024;

/// Seconds of silence after which the system probes a peer, and between probes.
const KEEPALIVE_S: i32 = 15;

/// Observer of a transfer, which decides how long to wait.
pub(crate) trait Watch {
    /// Reports that `bytes` bytes were moved. An error ends the wait.
    fn moved(&self, bytes: usize) -> Result<()>;

    /// Reports that no bytes were moved for a tick. An error ends the wait.
    fn idle(&self, is_inside_frame: bool) -> Result<()>;
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Tls>),
}

/// The peer of a UNIX socket, as the system identifies it.
#[derive(Debug)]
pub(crate) struct PeerIds {
    /// The process that connected; 0 if it is invisible to this process.
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    pub(crate) gids: Vec<u32>,
}

/// Converts the error of a system call.
pub(crate) fn lost(doing: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{doing}: {error}"))
}

impl Socket {
    /// Connects, within `timeout`.
    pub(crate) fn connect(address: &Address, timeout: Duration) -> Result<Self> {
        let failed = |e: &io::Error| lost(&format!("no connection to {address} (is the server running?)"), e);
        match address {
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix).map_err(|error| failed(&error)),
            Address::Tcp(place) => connect_tcp(place, timeout).map(Self::Tcp).map_err(|error| failed(&error)),
            Address::Tls(place) => {
                let stream = connect_tcp(place, timeout).map_err(|error| failed(&error))?;
                Tls::client(stream).map(|tls| Self::Tls(Box::new(tls)))
            }
        }
    }

    /// Negotiates keys with the peer, if the connection is encrypted. Must precede all transfers.
    pub(crate) fn begin(&self, watch: &dyn Watch) -> Result<()> {
        match self {
            Self::Tls(tls) => tls.begin(watch),
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
        }
    }

    /// A value that only the two ends of this connection know; empty without encryption.
    pub(crate) fn binding(&self) -> &[u8] {
        match self {
            Self::Tls(tls) => tls.binding(),
            Self::Tcp(_) | Self::Unix(_) => &[],
        }
    }

    /// Sets the options of every connection: no delay of short frames, and timeouts after every `tick`.
    pub(crate) fn prepare(&self, tick: Duration) -> Result<()> {
        let prepare_tcp = |stream: &TcpStream| {
            stream
                .set_nodelay(true)
                .and_then(|()| stream.set_read_timeout(Some(tick)))
                .and_then(|()| stream.set_write_timeout(Some(tick)))
                .and_then(|()| keep_alive(stream.as_raw_fd()))
        };
        let prepared = match self {
            Self::Tcp(stream) => prepare_tcp(stream),
            Self::Tls(tls) => prepare_tcp(tls.stream()),
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(tick)).and_then(|()| stream.set_write_timeout(Some(tick)))
            }
        };
        prepared.map_err(|error| lost("cannot prepare a connection", &error))
    }

    /// Ends the connection and wakes all threads that wait on it.
    pub(crate) fn shut(&self, how: Shutdown) {
        // It may have ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
            Self::Tls(tls) => tls.shut(how),
        };
    }

    /// Whether the peer is on this machine, according to the system.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Unix(_))
    }

    /// The peer's identity, for a UNIX socket.
    pub(crate) fn peer_ids(&self) -> Option<PeerIds> {
        let Self::Unix(stream) = self else { return None };
        let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as u32;
        // SAFETY: the call writes at most `length` bytes to `who`, which has as many.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut who).cast(),
                &mut length,
            )
        };
        if failed != 0 {
            return None;
        }
        let mut gids = vec![0_u32; 65_536];
        let mut length = size_of_val(&gids[..]) as u32;
        // SAFETY: the call writes at most `length` bytes to `gids`, which has as many.
        let failed = unsafe {
            libc::getsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                gids.as_mut_ptr().cast(),
                &mut length,
            )
        };
        gids.truncate(if failed == 0 { length as usize / size_of::<u32>() } else { 0 });
        gids.retain(|gid| *gid != who.gid);
        gids.insert(0, who.gid);
        Some(PeerIds { pid: who.pid, uid: who.uid, gids })
    }

    /// Sends all of `vectors`.
    ///
    /// # Safety
    /// They must be valid for reads during the call.
    pub(crate) unsafe fn send(&self, vectors: &mut [libc::iovec], watch: &dyn Watch) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Tcp(stream) => send(stream.as_raw_fd(), vectors, watch),
                Self::Unix(stream) => send(stream.as_raw_fd(), vectors, watch),
                Self::Tls(tls) => tls.send(vectors, watch),
            }
        }
    }

    /// Whether [`Socket::send_now`] can send anything. Encrypted bytes must go out as whole records.
    pub(crate) fn sends_now(&self) -> bool {
        !matches!(self, Self::Tls(_))
    }

    /// Sends as much of `vectors` as the system takes without waiting. Returns the number of bytes.
    ///
    /// # Safety
    /// They must be valid for reads during the call.
    pub(crate) unsafe fn send_now(&self, vectors: &mut [libc::iovec]) -> Result<usize> {
        let fd = match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tls(_) => return Ok(0),
        };
        let message = message(vectors);
        // SAFETY: the vectors are valid as the caller promised, and `message` outlives the call.
        let moved = unsafe { libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        if moved >= 0 {
            return Ok(moved as usize);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(0),
            _ => Err(lost("the connection was lost", &error)),
        }
    }

    /// Fills all of `vectors`. Returns false if the connection ended before the first byte, unless
    /// `is_inside_frame`.
    ///
    /// # Safety
    /// They must be valid for writes during the call.
    pub(crate) unsafe fn receive(
        &self,
        vectors: &mut [libc::iovec],
        is_inside_frame: bool,
        watch: &dyn Watch,
    ) -> Result<bool> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::Tcp(stream) => receive(stream.as_raw_fd(), vectors, is_inside_frame, watch),
                Self::Unix(stream) => {
                    if !is_inside_frame {
                        wait_for_input(stream, watch)?;
                    }
                    receive(stream.as_raw_fd(), vectors, is_inside_frame, watch)
                }
                Self::Tls(tls) => tls.receive(vectors, is_inside_frame, watch),
            }
        }
    }

    /// Waits until bytes arrive, or the connection ends.
    pub(crate) fn wait_for_bytes(&self, watch: &dyn Watch) -> Result<()> {
        let fd = match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
            Self::Tls(tls) => return tls.wait_for_bytes(watch),
        };
        let mut byte = 0_u8;
        loop {
            // SAFETY: one byte, which outlives the call.
            let seen = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
            if seen >= 0 {
                return Ok(());
            }
            wait_again(true, watch)?;
        }
    }
}

/// Waits until a frame starts, or the connection ends. A thread in `recvmsg` would also wake when the peer
/// receives bytes (in Linux, `unix_write_space`): twice for each request.
fn wait_for_input(stream: &UnixStream, watch: &dyn Watch) -> Result<()> {
    let tick = stream.read_timeout().map_err(|error| lost("cannot wait on a connection", &error))?;
    let tick_ms = tick.map_or(-1, |tick| tick.as_millis().clamp(1, 60_000) as i32);
    let mut waiting = libc::pollfd { fd: stream.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one descriptor, which outlives the call.
        match unsafe { libc::poll(&mut waiting, 1, tick_ms) } {
            0 => watch.idle(false)?,
            1.. => return Ok(()),
            _ => wait_again(false, watch)?,
        }
    }
}

fn connect_tcp(place: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut why = io::Error::from(io::ErrorKind::NotFound);
    for each in place.to_socket_addrs()? {
        match TcpStream::connect_timeout(&each, timeout) {
            Ok(stream) => return Ok(stream),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// The error for a connection that ended inside a frame.
pub(crate) fn ended() -> Error {
    Error::new(ErrorKind::Io, "the other side ended the connection")
}

/// Handles a system call that moved nothing. Returns if the caller should retry it.
fn wait_again(is_inside_frame: bool, watch: &dyn Watch) -> Result<()> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        io::ErrorKind::WouldBlock => watch.idle(is_inside_frame),
        _ => Err(lost("the connection was lost", &error)),
    }
}

/// Sends all of `vectors` without encryption.
///
/// # Safety
/// They must be valid for reads during the call.
pub(crate) unsafe fn send(fd: RawFd, mut vectors: &mut [libc::iovec], watch: &dyn Watch) -> Result<()> {
    loop {
        advance(&mut vectors, 0);
        if vectors.is_empty() {
            return Ok(());
        }
        let message = message(vectors);
        // SAFETY: the vectors are valid as the caller promised, and `message` outlives the call.
        let moved = unsafe { libc::sendmsg(fd, &message, libc::MSG_NOSIGNAL) };
        if moved < 0 {
            wait_again(true, watch)?;
        } else {
            watch.moved(moved as usize)?;
            advance(&mut vectors, moved as usize);
        }
    }
}

/// Fills all of `vectors` without decryption; see [`Socket::receive`].
///
/// # Safety
/// They must be valid for writes during the call.
unsafe fn receive(
    fd: RawFd,
    mut vectors: &mut [libc::iovec],
    mut is_inside_frame: bool,
    watch: &dyn Watch,
) -> Result<bool> {
    loop {
        advance(&mut vectors, 0);
        if vectors.is_empty() {
            return Ok(true);
        }
        // SAFETY: the caller's promise.
        let moved = unsafe { receive_some(fd, vectors, is_inside_frame, watch)? };
        if moved == 0 {
            return if is_inside_frame { Err(ended()) } else { Ok(false) };
        }
        is_inside_frame = true;
        advance(&mut vectors, moved);
    }
}

/// Waits for bytes, and receives the available ones. Returns 0 if the connection ended.
///
/// # Safety
/// The vectors must have space for at least one byte, and be valid for writes during the call.
pub(crate) unsafe fn receive_some(
    fd: RawFd,
    vectors: &mut [libc::iovec],
    is_inside_frame: bool,
    watch: &dyn Watch,
) -> Result<usize> {
    loop {
        let mut message = message(vectors);
        // SAFETY: the vectors are valid as the caller promised, and `message` outlives the call.
        let moved = unsafe { libc::recvmsg(fd, &mut message, 0) };
        if moved >= 0 {
            if moved > 0 {
                watch.moved(moved as usize)?;
            }
            return Ok(moved as usize);
        }
        wait_again(is_inside_frame, watch)?;
    }
}

/// The message structure for one system call with `vectors`.
fn message(vectors: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: `msghdr` is a plain C struct for which all zeros is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = vectors.as_mut_ptr();
    message.msg_iovlen = vectors.len().min(MAX_VECTORS);
    message
}

/// Advances past `bytes` moved bytes, and past empty vectors.
pub(crate) fn advance(vectors: &mut &mut [libc::iovec], mut bytes: usize) {
    while let Some(first) = vectors.first_mut() {
        let taken = bytes.min(first.iov_len);
        first.iov_base = first.iov_base.wrapping_byte_add(taken);
        first.iov_len -= taken;
        bytes -= taken;
        if first.iov_len > 0 {
            return;
        }
        *vectors = &mut std::mem::take(vectors)[1..];
    }
}

pub(crate) fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the call reads one integer.
    let failed =
        unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<i32>() as u32) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Enables keep-alive probes, which detect a lost peer even if this side sends nothing.
fn keep_alive(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_S)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_S)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)
}

/// A socket that accepts connections.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
    Tls(TcpListener, TlsServer),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self> {
        let failed = |error: io::Error| {
            let busy = error.kind() == io::ErrorKind::AddrInUse;
            let fix = if busy {
                "another server listens there; stop it, or choose another address"
            } else {
                "choose another address"
            };
            Error::new(
                if busy { ErrorKind::Busy } else { ErrorKind::Io },
                format!("cannot listen on {address}: {error}; {fix}"),
            )
        };
        let listener = match address {
            Address::Tcp(place) => TcpListener::bind(place.as_str()).map(Self::Tcp).map_err(failed)?,
            Address::Tls(place) => {
                Self::Tls(TcpListener::bind(place.as_str()).map_err(failed)?, TlsServer::new()?)
            }
            Address::Unix(path) => {
                // A socket file without a listener remains after a server was killed.
                let is_left_over = UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if is_left_over {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                let listener = UnixListener::bind(path).map_err(failed)?;
                // All users may connect; their identity determines their rights.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
                Self::Unix(listener, path.clone())
            }
        };
        let prepared = match &listener {
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.set_nonblocking(true),
            Self::Unix(listener, _) => listener.set_nonblocking(true),
        };
        prepared.map_err(failed)?;
        Ok(listener)
    }

    /// The address, with the actual port if port 0 was requested.
    pub(crate) fn address(&self) -> Result<Address> {
        let place = |listener: &TcpListener| match listener.local_addr() {
            Ok(place) => Ok(place.to_string()),
            Err(error) => Err(lost("a socket without an address", &error)),
        };
        match self {
            Self::Tcp(listener) => place(listener).map(Address::Tcp),
            Self::Tls(listener, _) => place(listener).map(Address::Tls),
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    fn fd(&self) -> RawFd {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.as_raw_fd(),
            Self::Unix(listener, _) => listener.as_raw_fd(),
        }
    }

    /// Accepts no more connections: a thread in `accept`, and each later call, gets an error at once.
    pub(crate) fn shut(&self) {
        // SAFETY: the descriptor is open as long as `self`. If this fails, `accept` ends by its tick.
        unsafe { libc::shutdown(self.fd(), libc::SHUT_RDWR) };
    }

    /// The next connection, if one arrives within `tick`.
    pub(crate) fn accept(&self, tick: Duration) -> io::Result<Option<Socket>> {
        let mut waiting = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which outlives the call.
        unsafe { libc::poll(&mut waiting, 1, tick.as_millis() as i32) };
        if waiting.revents & libc::POLLHUP != 0 {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let accept_tcp = |listener: &TcpListener| {
            let (stream, _) = listener.accept()?;
            stream.set_nonblocking(false).map(|()| stream)
        };
        let accepted = match self {
            Self::Tcp(listener) => accept_tcp(listener).map(Socket::Tcp),
            Self::Tls(listener, server) => accept_tcp(listener)
                .and_then(|stream| server.accept(stream).map(|tls| Socket::Tls(Box::new(tls)))),
            Self::Unix(listener, _) => listener
                .accept()
                .and_then(|(stream, _)| stream.set_nonblocking(false).map(|()| Socket::Unix(stream))),
        };
        match accepted {
            Ok(socket) => Ok(Some(socket)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_that_waits_for_clients_ends_at_once() {
        let directory = tempfile::tempdir().unwrap();
        let place = String::from("127.0.0.1:0");
        for address in
            [Address::Tcp(place.clone()), Address::Tls(place), Address::Unix(directory.path().join("s"))]
        {
            let listener = Listener::bind(&address).unwrap();
            thread::scope(|scope| {
                // Without an error it would end without a client, a minute later.
                let waiting = scope.spawn(|| listener.accept(Duration::from_secs(60)));
                listener.shut();
                assert!(waiting.join().unwrap().is_err(), "{address}");
            });
            assert!(listener.accept(Duration::from_secs(60)).is_err(), "{address}");
        }
    }
}
