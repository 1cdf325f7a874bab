//! One connection of a client: what it is still owed, and the thread that sends it.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outcore_core::wire::{Header, Kind};
use outcore_core::{Buffer, Error, ErrorKind, Result, crc32c};
use outcore_memory::Region;

use crate::server::admission::Lease;
use crate::server::channel::Channel;
use crate::socket::{Socket, Watch};

/// Requests of one connection that may be under way at once; no more are read.
const MOST_OWED: usize = 256;

/// An answer on its way.
pub(crate) struct Outgoing {
    pub(crate) kind: Kind,
    pub(crate) request: u64,
    pub(crate) control: Arc<Vec<u8>>,
    pub(crate) payload: Region,
    /// What it holds of the server's memory.
    pub(crate) leases: Vec<Lease>,
}

pub(crate) struct Connection {
    pub(crate) socket: Socket,
    pub(crate) channel: Arc<Channel>,
    state: Mutex<State>,
    wake: Condvar,
    /// How long the other side may take nothing, or send nothing inside a frame.
    patience: Duration,
    working: Duration,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Outgoing>,
    owed: usize,
    is_over: bool,
}

/// Who sends or takes too slowly is cut off.
struct Stall<'a> {
    connection: &'a Connection,
    since: std::cell::Cell<Instant>,
}

impl Watch for Stall<'_> {
    fn moved(&self) -> Result<()> {
        self.since.set(Instant::now());
        Ok(())
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
        Ok(())
    }
}

impl Connection {
    pub(crate) fn new(socket: Socket, channel: Arc<Channel>, patience: Duration, working: Duration) -> Self {
        channel.began();
        Self { socket, channel, state: Mutex::default(), wake: Condvar::new(), patience, working }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The watch for one frame, from now on.
    pub(crate) fn watch(&self) -> impl Watch + '_ {
        Stall { connection: self, since: std::cell::Cell::new(Instant::now()) }
    }

    /// A request came in. Waits while too many are under way.
    pub(crate) fn owe(&self) -> Result<()> {
        let mut state = self.lock();
        while state.owed >= MOST_OWED && !state.is_over {
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.is_over {
            return Err(Error::new(ErrorKind::Io, "the connection was ended"));
        }
        state.owed += 1;
        Ok(())
    }

    /// Sends an answer, in the background.
    pub(crate) fn answer(&self, outgoing: Outgoing) {
        let mut state = self.lock();
        if state.is_over {
            // Its memory is given back without the lock: somebody may be waiting for it.
            drop(state);
            return drop(outgoing);
        }
        state.queue.push_back(outgoing);
        self.wake.notify_all();
    }

    /// Answers are not sent any more, and nothing is read.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.is_over = true;
        let unsent = std::mem::take(&mut state.queue);
        self.wake.notify_all();
        drop(state);
        self.socket.shut(Shutdown::Both);
        drop(unsent);
    }

    /// Waits until all answers were sent, or the time is over.
    pub(crate) fn drain(&self, until: Instant) {
        let mut state = self.lock();
        while state.owed > 0 && !state.is_over {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends answers, and signs of life while there are none, until the connection ends.
    pub(crate) fn send_answers(&self) {
        while let Some(next) = self.next_answer() {
            if self.send(next).is_err() {
                return self.end();
            }
        }
    }

    /// `Some(None)` if it is time for a sign of life.
    fn next_answer(&self) -> Option<Option<Outgoing>> {
        let mut state = self.lock();
        loop {
            if state.is_over {
                return None;
            }
            if let Some(outgoing) = state.queue.pop_front() {
                return Some(Some(outgoing));
            }
            // Also with nothing to do: who brings a request need not wake this thread.
            let waited = self.wake.wait_timeout(state, self.working);
            let (again, result) = waited.unwrap_or_else(PoisonError::into_inner);
            if result.timed_out() && again.queue.is_empty() && again.owed > 0 && !again.is_over {
                return Some(None);
            }
            state = again;
        }
    }

    fn send(&self, next: Option<Outgoing>) -> Result<()> {
        let Some(Outgoing { kind, request, control, payload, leases }) = next else {
            return self.socket.send_frame(
                &Header::of(Kind::Working, &[]),
                &[],
                &Region::empty(),
                &self.watch(),
            );
        };
        let header = Header {
            request,
            payload_bytes: payload.len() as u64,
            payload_crc: payload.crc32c(0, payload.len()),
            ..Header::of(kind, &control)
        };
        debug_assert_eq!(header.control_crc, crc32c(&control));
        let sent = self.socket.send_frame(&header, &control, &payload, &self.watch());
        if sent.is_ok() {
            self.channel.sent(header.frame_bytes());
        }
        drop(payload);
        drop(leases);
        self.lock().owed -= 1;
        self.wake.notify_all();
        sent
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.channel.ended();
    }
}
