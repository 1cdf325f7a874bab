//! One connection of a client: its pending answers, and the threads that send them.
//!
//! The thread that has a small answer sends it, as far as the system takes it without waiting and no other
//! answer precedes it. The connection's own thread sends everything else, so that no other thread waits for a
//! slow client.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outcore_core::wire::{Header, Kind};
use outcore_core::{Buffer, Error, ErrorKind, Result};
use outcore_memory::Region;

use crate::frames::{Frame, is_small};
use crate::server::admission::Lease;
use crate::server::channel::Channel;
use crate::socket::{Socket, Watch};

/// Maximum number of requests in flight on one connection; it reads no more.
const MOST_OWED: usize = 256;

/// A client below this rate is disconnected if it holds memory for which others wait.
const LEAST_BYTES_PER_S: f64 = 65_536.0;

/// An answer to send.
pub(crate) struct Outgoing {
    pub(crate) kind: Kind,
    pub(crate) request: u64,
    pub(crate) control: Arc<Vec<u8>>,
    pub(crate) payload: Region,
    /// The leases of the server's memory that it holds.
    pub(crate) leases: Vec<Lease>,
}

/// A frame to send, with its leases.
struct Unsent {
    frame: Frame,
    /// `None` for a sign of life.
    leases: Option<Vec<Lease>>,
}

impl Outgoing {
    fn is_small(&self) -> bool {
        is_small(self.control.len() + self.payload.len())
    }
}

impl Unsent {
    fn sign_of_life() -> Self {
        Self { frame: Frame::short(Header::of(Kind::Working, &[]), Arc::default()), leases: None }
    }

    fn answer(outgoing: Outgoing) -> Self {
        let Outgoing { kind, request, control, payload, leases } = outgoing;
        let header = Header {
            request,
            payload_bytes: payload.len() as u64,
            payload_crc: payload.crc32c(0, payload.len()),
            ..Header::of(kind, &control)
        };
        Self { frame: Frame { header, control, payload, sent: 0 }, leases: Some(leases) }
    }
}

pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) channel: Arc<Channel>,
    state: Mutex<State>,
    /// Wakes the sending thread.
    wake: Condvar,
    /// Wakes threads that wait until fewer answers are pending.
    settled: Condvar,
    /// The time for which the peer may receive nothing, or send nothing inside a frame.
    patience: Duration,
    working: Duration,
}

struct State {
    queue: VecDeque<Outgoing>,
    /// A frame that was sent in part. Its rest must go out before all other frames.
    begun: Option<Unsent>,
    is_sending: bool,
    owed: usize,
    /// Number of threads that wait until fewer answers are pending.
    waiting: usize,
    is_over: bool,
    /// Whether the client has proved that it has a key.
    is_admitted: bool,
    /// When the last pending answer was sent.
    idle_since: Instant,
}

impl State {
    fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            begun: None,
            is_sending: false,
            owed: 0,
            waiting: 0,
            is_over: false,
            is_admitted: false,
            idle_since: Instant::now(),
        }
    }
}

/// Disconnects a client that sends or receives nothing, or one that is slow with memory for which others
/// wait.
struct Stall<'a> {
    connection: &'a Connection,
    since: Cell<Instant>,
    began: Instant,
    bytes: Cell<u64>,
    /// The leases that are held meanwhile.
    held: &'a [Lease],
}

impl Stall<'_> {
    fn check_pace(&self) -> Result<()> {
        let seconds = self.began.elapsed().saturating_sub(self.connection.patience / 30).as_secs_f64();
        if self.bytes.get() as f64 >= seconds * LEAST_BYTES_PER_S || !self.held.iter().any(Lease::is_wanted) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "a client that moved less than {LEAST_BYTES_PER_S} bytes/s while others wait for memory was cut off"
            ),
        ))
    }
}

impl Watch for Stall<'_> {
    fn moved(&self, bytes: usize) -> Result<()> {
        self.since.set(Instant::now());
        self.bytes.set(self.bytes.get() + bytes as u64);
        self.check_pace()
    }

    fn idle(&self, is_inside_frame: bool) -> Result<()> {
        if self.connection.lock().is_over {
            return Err(Error::new(ErrorKind::Io, "the connection was ended"));
        }
        if is_inside_frame && self.since.get().elapsed() > self.connection.patience {
            return Err(Error::new(
                ErrorKind::Io,
                format!("a client that moved nothing for {:?} was cut off", self.connection.patience),
            ));
        }
        self.check_pace()
    }
}

impl Connection {
    pub(crate) fn new(socket: Socket, channel: Arc<Channel>, patience: Duration, working: Duration) -> Self {
        channel.began();
        let (state, wake, settled) = (Mutex::new(State::new()), Condvar::new(), Condvar::new());
        Self { socket, channel, state, wake, settled, patience, working }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch for one frame, starting now.
    pub(crate) fn watch(&self) -> impl Watch + '_ {
        self.watch_holding(&[])
    }

    /// The same for a frame that holds memory. It must move at the minimum rate while others wait for that
    /// memory.
    pub(crate) fn watch_holding<'a>(&'a self, held: &'a [Lease]) -> impl Watch + 'a {
        let now = Instant::now();
        Stall { connection: self, since: Cell::new(now), began: now, bytes: Cell::new(0), held }
    }

    /// Records a request. Waits while too many are in flight.
    pub(crate) fn owe(&self) -> Result<()> {
        let mut state = self.lock();
        while state.owed >= MOST_OWED && !state.is_over {
            state.waiting += 1;
            state = self.settled.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if state.is_over {
            return Err(Error::new(ErrorKind::Io, "the connection was ended"));
        }
        state.owed += 1;
        Ok(())
    }

    /// Sends an answer without waiting for the client.
    pub(crate) fn answer(&self, outgoing: Outgoing) {
        let mut state = self.lock();
        if state.is_over {
            // Return its memory without holding the lock: another thread may be waiting for the lock.
            drop(state);
            return drop(outgoing);
        }
        let is_next = !state.is_sending && state.begun.is_none() && state.queue.is_empty();
        if !is_next || !self.socket.sends_now() || !outgoing.is_small() {
            state.queue.push_back(outgoing);
            self.wake.notify_all();
            return;
        }
        state.is_sending = true;
        drop(state);
        let mut unsent = Unsent::answer(outgoing);
        match self.socket.send_frame_now(&mut unsent.frame) {
            Err(_) => self.end(),
            Ok(is_all) => self.sent(unsent, is_all),
        }
    }

    /// Records a frame that was sent in whole or in part.
    fn sent(&self, unsent: Unsent, is_all: bool) {
        let Unsent { frame, leases } = unsent;
        let is_answer = leases.is_some();
        let begun = if is_all {
            let bytes = frame.header.frame_bytes();
            // Return the memory first, before others learn of the answer, and without holding the lock.
            drop((frame, leases));
            if is_answer {
                self.channel.sent(bytes);
            }
            None
        } else {
            Some(Unsent { frame, leases })
        };
        let mut state = self.lock();
        state.is_sending = false;
        if state.is_over {
            drop(state);
            return drop(begun);
        }
        state.owed -= usize::from(is_all && is_answer);
        state.idle_since = Instant::now();
        let is_more = begun.is_some() || !state.queue.is_empty();
        state.begun = begun;
        if is_more {
            self.wake.notify_all();
        }
        if state.waiting > 0 {
            self.settled.notify_all();
        }
    }

    /// Records that the client has proved its key, unless the connection has ended.
    pub(crate) fn admit(&self) -> Result<()> {
        let mut state = self.lock();
        if state.is_over {
            return Err(Error::new(ErrorKind::Io, "the connection was ended"));
        }
        state.is_admitted = true;
        state.idle_since = Instant::now();
        Ok(())
    }

    pub(crate) fn is_admitted(&self) -> bool {
        self.lock().is_admitted
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// The time since which an admitted connection has no pending answer; `None` if it has one, or has ended.
    pub(crate) fn idle_since(&self) -> Option<Instant> {
        let state = self.lock();
        (state.is_admitted && state.owed == 0 && !state.is_over).then_some(state.idle_since)
    }

    /// Ends the connection: it sends no more answers and reads nothing.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        // A second caller must not cut off the last message of the first, the `close_notify` of TLS.
        if std::mem::replace(&mut state.is_over, true) {
            return;
        }
        let left = (std::mem::take(&mut state.queue), state.begun.take());
        self.wake.notify_all();
        self.settled.notify_all();
        drop(state);
        self.socket.shut(Shutdown::Both);
        drop(left);
    }

    /// Waits until all answers are sent, or until the deadline.
    pub(crate) fn drain(&self, until: Instant) {
        let mut state = self.lock();
        while state.owed > 0 && !state.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state.waiting += 1;
            state = self.settled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
        }
    }

    /// Sends the frames that other threads left, and signs of life in between, until the connection ends.
    pub(crate) fn send_answers(&self) {
        while let Some(unsent) = self.next_unsent() {
            let held = unsent.leases.as_deref().unwrap_or_default();
            let sent = self.socket.send_frame(&unsent.frame, &self.watch_holding(held));
            match sent {
                Err(_) => return self.end(),
                Ok(()) => self.sent(unsent, true),
            }
        }
    }

    fn next_unsent(&self) -> Option<Unsent> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if !state.is_sending {
                if let Some(begun) = state.begun.take() {
                    state.is_sending = true;
                    return Some(begun);
                }
                if let Some(outgoing) = state.queue.pop_front() {
                    state.is_sending = true;
                    drop(state);
                    return Some(Unsent::answer(outgoing));
                }
            }
            // The timeout also runs while the connection is idle. So the thread that reads a request need not
            // wake this one.
            let waited = self.wake.wait_timeout(state, self.working);
            let (mut again, result) = waited.unwrap_or_else(PoisonError::into_inner);
            let is_quiet = again.queue.is_empty() && again.begun.is_none() && !again.is_sending;
            if result.timed_out() && is_quiet && again.owed > 0 && !again.is_over {
                again.is_sending = true;
                return Some(Unsent::sign_of_life());
            }
            state = again;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.channel.ended();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use crate::tls::{Tls, TlsServer};
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::sync::Barrier;
    use std::thread;

    /// A TLS connection after the handshake, and its peer.
    fn encrypted(server: &TlsServer) -> (Connection, Tls) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = Tls::client(TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let near = Socket::Tls(Box::new(server.accept(listener.accept().unwrap().0).unwrap()));
        let channel = Arc::new(Channel::new(Address::Tls(String::new())));
        let near = Connection::new(near, channel, Duration::from_secs(9), Duration::from_secs(9));
        thread::scope(|scope| {
            let begun = scope.spawn(|| near.socket.begin(&near.watch()));
            far.begin(&near.watch()).unwrap();
            begun.join().unwrap().unwrap();
        });
        (near, far)
    }

    #[test]
    fn who_ends_an_encrypted_connection_second_does_not_cut_off_its_last_record() {
        let server = TlsServer::new().unwrap();
        for _ in 0..600 {
            let (near, far) = encrypted(&server);
            let start = Barrier::new(2);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| {
                        start.wait();
                        near.end();
                    });
                }
            });
            let mut last = vec![];
            far.stream().read_to_end(&mut last).unwrap();
            // RFC 8446, section 5.2: a header of five bytes, an alert with its type, and 16 bytes of
            // authentication.
            assert_eq!(last.len(), 5 + 2 + 1 + 16);
        }
    }
}
