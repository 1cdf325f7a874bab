//! Sockets of both kinds as one: connected, listened on, and moving bytes between runs of memory.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

use outcore_core::{Error, ErrorKind, Result};

use crate::Address;

/// Most runs of memory in one vectored call (Linux: `UIO_MAXIOV`).
pub(crate) const MAX_VECTORS: usize = 1024;

/// Seconds after which the system looks whether a silent peer is still there, and again.
const KEEPALIVE_S: i32 = 15;

/// Who waits for bytes, and for how long.
pub(crate) trait Watch {
    /// Some bytes went in or out.
    fn moved(&self) {}

    /// None did for a while. An error ends the wait.
    fn idle(&self, is_inside_frame: bool) -> Result<()>;
}

/// A connection.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// Whom the system says the other end of a UNIX socket to be.
#[derive(Debug)]
pub(crate) struct PeerIds {
    pub(crate) uid: u32,
    pub(crate) gids: Vec<u32>,
}

/// A failed call of the system as one of ours.
pub(crate) fn lost(doing: &str, error: &io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("{doing}: {error}"))
}

impl Socket {
    /// Connects, and waits at most so long for that.
    pub(crate) fn connect(address: &Address, timeout: Duration) -> Result<Self> {
        let failed = |e: &io::Error| lost(&format!("no connection to {address} (is the server running?)"), e);
        match address {
            Address::Unix(path) => UnixStream::connect(path).map(Self::Unix).map_err(|error| failed(&error)),
            Address::Tcp(place) => {
                let mut why = io::Error::from(io::ErrorKind::NotFound);
                for each in place.to_socket_addrs().map_err(|error| failed(&error))? {
                    match TcpStream::connect_timeout(&each, timeout) {
                        Ok(stream) => return Ok(Self::Tcp(stream)),
                        Err(error) => why = error,
                    }
                }
                Err(failed(&why))
            }
        }
    }

    /// Sets what every connection has: no delay of short frames, and waits that look up every `tick`.
    pub(crate) fn prepare(&self, tick: Duration) -> Result<()> {
        let prepared = match self {
            Self::Tcp(stream) => stream
                .set_nodelay(true)
                .and_then(|()| stream.set_read_timeout(Some(tick)))
                .and_then(|()| stream.set_write_timeout(Some(tick)))
                .and_then(|()| keep_alive(stream.as_raw_fd())),
            Self::Unix(stream) => {
                stream.set_read_timeout(Some(tick)).and_then(|()| stream.set_write_timeout(Some(tick)))
            }
        };
        prepared.map_err(|error| lost("cannot prepare a connection", &error))
    }

    fn fd(&self) -> RawFd {
        match self {
            Self::Tcp(stream) => stream.as_raw_fd(),
            Self::Unix(stream) => stream.as_raw_fd(),
        }
    }

    /// Ends the connection: all who wait on it wake up.
    pub(crate) fn shut(&self, how: Shutdown) {
        // It may have ended already.
        let _ = match self {
            Self::Tcp(stream) => stream.shutdown(how),
            Self::Unix(stream) => stream.shutdown(how),
        };
    }

    /// Of a UNIX socket, who is at the other end.
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
        Some(PeerIds { uid: who.uid, gids })
    }

    /// Sends all of `vectors`.
    ///
    /// # Safety
    /// They must be valid for reads during the call.
    pub(crate) unsafe fn send(&self, vectors: &mut [libc::iovec], watch: &dyn Watch) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.transfer(vectors, true, true, watch).map(|_| ()) }
    }

    /// Fills all of `vectors`. False if the connection ended before the first byte, and that is allowed.
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
        unsafe { self.transfer(vectors, false, is_inside_frame, watch) }
    }

    /// Waits until there is something to receive, or the end.
    pub(crate) fn wait_for_bytes(&self, watch: &dyn Watch) -> Result<()> {
        let mut byte = 0_u8;
        loop {
            // SAFETY: one byte, which outlives the call.
            let seen = unsafe { libc::recv(self.fd(), (&raw mut byte).cast(), 1, libc::MSG_PEEK) };
            if seen >= 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => watch.idle(true)?,
                _ => return Err(lost("the connection was lost", &error)),
            }
        }
    }

    /// # Safety
    /// The vectors must be valid during the call: for reads if `is_send`, else for writes.
    unsafe fn transfer(
        &self,
        mut vectors: &mut [libc::iovec],
        is_send: bool,
        mut is_inside_frame: bool,
        watch: &dyn Watch,
    ) -> Result<bool> {
        while let Some(first) = vectors.first_mut() {
            if first.iov_len == 0 {
                vectors = &mut vectors[1..];
                continue;
            }
            // SAFETY: `msghdr` is a plain C struct for which all zeros is a valid value.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = vectors.as_mut_ptr();
            message.msg_iovlen = vectors.len().min(MAX_VECTORS);
            // SAFETY: the vectors are valid as the caller promised, and `message` outlives the call.
            let moved = unsafe {
                if is_send {
                    libc::sendmsg(self.fd(), &message, libc::MSG_NOSIGNAL)
                } else {
                    libc::recvmsg(self.fd(), &mut message, 0)
                }
            };
            if moved < 0 {
                let error = io::Error::last_os_error();
                match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => watch.idle(is_inside_frame)?,
                    _ => return Err(lost("the connection was lost", &error)),
                }
                continue;
            }
            if moved == 0 {
                if is_inside_frame {
                    return Err(Error::new(ErrorKind::Io, "the other side ended the connection"));
                }
                return Ok(false);
            }
            is_inside_frame = true;
            watch.moved();
            let mut left = moved as usize;
            while left > 0 {
                let vector = &mut vectors[0];
                let taken = left.min(vector.iov_len);
                vector.iov_base = vector.iov_base.wrapping_byte_add(taken);
                vector.iov_len -= taken;
                left -= taken;
                if vector.iov_len == 0 {
                    vectors = &mut vectors[1..];
                }
            }
        }
        Ok(true)
    }
}

fn set_option(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    // SAFETY: the call reads one integer.
    let failed =
        unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<i32>() as u32) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A peer that is gone without a word is noticed, also where nobody sends it anything.
fn keep_alive(fd: RawFd) -> io::Result<()> {
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, KEEPALIVE_S)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, KEEPALIVE_S)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 3)
}

/// A place at which connections come in.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
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
            Address::Unix(path) => {
                // A socket that nobody listens on is left over from a server that was killed.
                let is_left_over = UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
                if is_left_over {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                let listener = UnixListener::bind(path).map_err(failed)?;
                // Everybody may knock: who they are decides what they get.
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
                Self::Unix(listener, path.clone())
            }
        };
        let prepared = match &listener {
            Self::Tcp(listener) => listener.set_nonblocking(true),
            Self::Unix(listener, _) => listener.set_nonblocking(true),
        };
        prepared.map_err(failed)?;
        Ok(listener)
    }

    /// Where it listens; the port that was taken, if any was allowed.
    pub(crate) fn address(&self) -> Result<Address> {
        match self {
            Self::Tcp(listener) => match listener.local_addr() {
                Ok(place) => Ok(Address::Tcp(place.to_string())),
                Err(error) => Err(lost("a socket without an address", &error)),
            },
            Self::Unix(_, path) => Ok(Address::Unix(path.clone())),
        }
    }

    /// The next connection, if one comes before `tick` is over.
    pub(crate) fn accept(&self, tick: Duration) -> io::Result<Option<Socket>> {
        let fd = match self {
            Self::Tcp(listener) => listener.as_raw_fd(),
            Self::Unix(listener, _) => listener.as_raw_fd(),
        };
        let mut waiting = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one descriptor, which outlives the call.
        unsafe { libc::poll(&mut waiting, 1, tick.as_millis() as i32) };
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(stream, _)| {
                let blocking = stream.set_nonblocking(false);
                blocking.map(|()| Socket::Tcp(stream))
            }),
            Self::Unix(listener, _) => listener.accept().map(|(stream, _)| {
                let blocking = stream.set_nonblocking(false);
                blocking.map(|()| Socket::Unix(stream))
            }),
        };
        match accepted {
            Ok(socket) => socket.map(Some),
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
