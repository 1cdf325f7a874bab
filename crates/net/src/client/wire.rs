//! An open connection to a server, and the calls in flight on it.

use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use outcore_core::wire::{Role, Welcome};
use outcore_core::{Error, ErrorKind, Incarnation, Result};

use crate::Address;
use crate::client::call::Call;
use crate::client::options::Options;
use crate::client::reader::Reader;
use crate::client::timeout::Timeout;
use crate::frames::Frame;
use crate::handshake::{TIME_TO_BEGIN, Unopened, introduce};
use crate::socket::{Socket, Watch};

/// Bytes in flight on a channel, in both directions together. Further calls wait for the first channel with
/// space.
const WINDOW_BYTES: u64 = 8 << 20;

/// Calls in flight on a channel, without waits, and as many waits. Servers read at most twice as many.
const MOST_CALLS: usize = 128;

/// An open connection, and the calls in flight on it.
pub(crate) struct Wire {
    pub(super) socket: Socket,
    pub(super) began: Instant,
    /// Nanoseconds from `began` to the last moved byte, or to the first call in flight.
    pub(super) moved_ns: AtomicU64,
    pub(super) weight: AtomicU64,
    /// Number of waits in flight. They take no space from calls whose answers depend on nothing.
    pub(super) waits: AtomicUsize,
    pub(super) is_dead: AtomicBool,
    /// Held by the sending thread.
    pub(super) outgoing: Mutex<Outgoing>,
    /// Whether the rest of a frame waits for the sending thread.
    pub(super) has_rest: AtomicBool,
    pub(super) flight: Mutex<HashMap<u64, Flight>>,
    /// The reader role, if callers receive answers.
    pub(super) reader: Option<Reader>,
    pub(super) timeout: Mutex<Timeout>,
    pub(super) least_silence: Duration,
    pub(super) working: Duration,
    /// The run of the server.
    pub(super) incarnation: Incarnation,
}

/// The rest of a frame of which the system took a part.
#[derive(Default)]
pub(crate) struct Outgoing(pub(super) Option<Frame>);

/// A call in flight.
pub(super) struct Flight {
    pub(super) call: Call,
    /// Whether a thread is sending the call and holds its memory.
    pub(super) is_sending: bool,
    /// An answer that arrived meanwhile.
    pub(super) answer: Option<Vec<u8>>,
}

impl Wire {
    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<u64, Flight>> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn timeout(&self) -> MutexGuard<'_, Timeout> {
        self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Whether a call may be sent now.
    pub(crate) fn has_room(&self, call: &Call) -> bool {
        let (held, waits) = (self.weight(), self.waits.load(Ordering::SeqCst));
        if call.is_wait {
            return waits < MOST_CALLS;
        }
        let calls = || self.lock().len().saturating_sub(waits);
        held == 0 || (held + call.weight() <= WINDOW_BYTES && calls() < MOST_CALLS)
    }

    /// Bytes in flight on this channel, in both directions together.
    pub(crate) fn weight(&self) -> u64 {
        self.weight.load(Ordering::SeqCst)
    }

    /// The right to send a frame now, unless another thread is sending.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, Outgoing>> {
        let turn = match self.outgoing.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (turn.0.is_none() && !self.is_dead()).then_some(turn)
    }

    pub(super) fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the sending thread must send the rest of a frame.
    pub(crate) fn has_rest(&self) -> bool {
        self.has_rest.load(Ordering::SeqCst)
    }

    /// Whether calling threads can send frames.
    pub(crate) fn sends_now(&self) -> bool {
        self.socket.sends_now()
    }

    /// Whether the server is on this machine, as both sides can see.
    pub(crate) fn is_local(&self) -> bool {
        self.socket.is_local()
    }

    /// Takes space for a call.
    pub(crate) fn takes(&self, call: &Call) {
        self.weight.fetch_add(call.weight(), Ordering::SeqCst);
        self.waits.fetch_add(usize::from(call.is_wait), Ordering::SeqCst);
    }

    /// Returns the space of an answered call.
    pub(super) fn gives_back(&self, call: &Call) {
        self.weight.fetch_sub(call.weight(), Ordering::SeqCst);
        self.waits.fetch_sub(usize::from(call.is_wait), Ordering::SeqCst);
    }

    /// Makes the standby thread check whether it is needed.
    pub(super) fn wake_reader(&self) {
        if let Some(reader) = &self.reader {
            reader.look_again();
        }
    }

    /// Whether a thread must receive answers, or detect the end.
    pub(super) fn needs_reader(&self) -> bool {
        self.is_dead() || !self.lock().is_empty()
    }

    pub(super) fn touch(&self) {
        self.moved_ns.store(self.began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    pub(super) fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.socket.shut(Shutdown::Both);
        self.wake_reader();
    }
}

impl Watch for Wire {
    fn moved(&self, _bytes: usize) -> Result<()> {
        self.touch();
        Ok(())
    }

    fn idle(&self, is_inside_frame: bool) -> Result<()> {
        if self.is_dead() {
            return Err(Error::new(ErrorKind::Io, "the client closed the connection"));
        }
        let is_waited_for = is_inside_frame || !self.lock().is_empty();
        let silence = self.timeout().silence(self.least_silence, self.working);
        let moved = Duration::from_nanos(self.moved_ns.load(Ordering::Relaxed));
        let silent = self.began.elapsed().saturating_sub(moved);
        if is_waited_for && silent > silence {
            return Err(Error::new(ErrorKind::Io, format!("no sign of life from a server for {silent:.1?}")));
        }
        Ok(())
    }
}

/// Connects to a server as `client`. Returns the connection, and the maximum bytes of a payload.
pub(super) fn open(
    role: Role,
    client: u128,
    options: &Options,
    address: &Address,
    timeout: Timeout,
) -> std::result::Result<(Wire, u64), Unopened> {
    let socket = Socket::connect(address, TIME_TO_BEGIN)?;
    socket.prepare(options.least_silence / 4)?;
    let Welcome { payload_bytes, working_ms, incarnation } =
        introduce(&socket, &options.credentials, client, role, TIME_TO_BEGIN).map_err(
            |Unopened { error, is_other }| {
                let error = Error::new(error.kind, format!("{address}: {}", error.message));
                Unopened { error, is_other }
            },
        )?;
    let sends_now = socket.sends_now();
    let wire = Wire {
        socket,
        began: Instant::now(),
        moved_ns: AtomicU64::new(0),
        weight: AtomicU64::new(0),
        waits: AtomicUsize::new(0),
        is_dead: AtomicBool::new(false),
        // All callers of the manager wait. With TLS a thread sends the calls, and would have to wake another
        // one.
        reader: (role == Role::Manager && sends_now).then(Reader::default),
        outgoing: Mutex::default(),
        has_rest: AtomicBool::new(false),
        flight: Mutex::default(),
        timeout: Mutex::new(timeout),
        least_silence: options.least_silence,
        working: Duration::from_millis(u64::from(working_ms)),
        incarnation,
    };
    Ok((wire, payload_bytes))
}
