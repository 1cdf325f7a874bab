//! One channel: a connection that is made again whenever it is lost. One thread takes answers, and one sends calls, where
//! who makes them has not done so: small ones are sent at once, as far as the system takes them without waiting.

use std::collections::HashMap;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::wire::{Header, Kind, Refused, Welcome, decode};
use outcore_core::{Buffer, Error, ErrorKind, Incarnation, IoReply, Result};
use outcore_memory::Region;

use crate::Address;
use crate::client::call::{Call, Moves, Reply};
use crate::client::peer::{Next, Peer, closed};
use crate::client::timeout::Timeout;
use crate::frames::Frame;
use crate::handshake::{TIME_TO_BEGIN, introduce};
use crate::socket::{Socket, Watch};

/// Bytes that a channel has under way, both ways together; what is more waits for whichever channel is free first.
const WINDOW_BYTES: u64 = 8 << 20;

/// Calls that a channel has under way. Servers read no more than twice as many.
const MOST_CALLS: usize = 128;

/// Waits between tries to connect: doubled from the first to the last.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(2);

/// An open connection, and the calls that were sent over it.
pub(crate) struct Wire {
    socket: Socket,
    began: Instant,
    /// Nanoseconds after `began` at which bytes moved last, or there was first something to wait for.
    moved_ns: AtomicU64,
    weight: AtomicU64,
    is_dead: AtomicBool,
    /// Held by who sends.
    outgoing: Mutex<Outgoing>,
    /// Whether the rest of a frame waits there for the thread that sends.
    has_rest: AtomicBool,
    flight: Mutex<HashMap<u64, Flight>>,
    timeout: Mutex<Timeout>,
    least_silence: Duration,
    working: Duration,
    /// The run of the server at the other end.
    incarnation: Incarnation,
}

/// The rest of a frame of which the system took a part.
#[derive(Default)]
pub(crate) struct Outgoing(Option<Frame>);

struct Flight {
    call: Call,
    /// A thread sends it, and has its memory.
    is_sending: bool,
    /// An answer that came meanwhile.
    answer: Option<Vec<u8>>,
}

impl Wire {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Flight>> {
        self.flight.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn timeout(&self) -> MutexGuard<'_, Timeout> {
        self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Whether a call of this weight may be sent now.
    pub(crate) fn has_room(&self, weight: u64) -> bool {
        let held = self.weight();
        held == 0 || (held + weight <= WINDOW_BYTES && self.lock().len() < MOST_CALLS)
    }

    /// What this channel has under way, both ways together, in bytes.
    pub(crate) fn weight(&self) -> u64 {
        self.weight.load(Ordering::SeqCst)
    }

    /// The right to send a frame now, if nobody else is sending.
    pub(crate) fn turn(&self) -> Option<MutexGuard<'_, Outgoing>> {
        let turn = match self.outgoing.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        (turn.0.is_none() && !self.is_dead()).then_some(turn)
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        self.outgoing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the thread that sends is to send the rest of a frame.
    pub(crate) fn has_rest(&self) -> bool {
        self.has_rest.load(Ordering::SeqCst)
    }

    /// Whether frames can be sent by who has them.
    pub(crate) fn sends_now(&self) -> bool {
        self.socket.sends_now()
    }

    pub(crate) fn takes(&self, weight: u64) {
        self.weight.fetch_add(weight, Ordering::SeqCst);
    }

    fn touch(&self) {
        self.moved_ns.store(self.began.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    fn die(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
        self.socket.shut(Shutdown::Both);
    }
}

impl Watch for Wire {
    fn moved(&self) -> Result<()> {
        self.touch();
        Ok(())
    }

    fn idle(&self, is_inside_frame: bool) -> Result<()> {
        if self.is_dead() {
            return Err(Error::new(ErrorKind::Io, "the connection was given up"));
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

/// Keeps one channel of a server open until the peer is closed.
pub(crate) fn keep_channel(peer: &Arc<Peer>, channel: usize, address: &Address) {
    let mut pause = FIRST_PAUSE;
    let mut timeout = Timeout::default();
    while !peer.is_closed() {
        match open(peer, address, timeout) {
            Err(error) => peer.did_not_come_up(channel, error),
            Ok((wire, payload_bytes)) => {
                let wire = Arc::new(wire);
                peer.came_up(channel, payload_bytes, wire.clone());
                let was_useful = use_channel(peer, &wire);
                timeout = *wire.timeout();
                if was_useful {
                    pause = FIRST_PAUSE;
                }
            }
        }
        if !peer.pause(pause) {
            return;
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

fn open(peer: &Peer, address: &Address, timeout: Timeout) -> Result<(Wire, u64)> {
    let options = &peer.options;
    let socket = Socket::connect(address, TIME_TO_BEGIN)?;
    socket.prepare(options.least_silence / 4)?;
    let Welcome { payload_bytes, working_ms, incarnation } =
        introduce(&socket, &options.credentials, peer.client, peer.role, TIME_TO_BEGIN)
            .map_err(|error| Error::new(error.kind, format!("{address}: {}", error.message)))?;
    let wire = Wire {
        socket,
        began: Instant::now(),
        moved_ns: AtomicU64::new(0),
        weight: AtomicU64::new(0),
        is_dead: AtomicBool::new(false),
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

/// Sends calls and takes answers until the connection or the peer ends. Whether there was an answer.
fn use_channel(peer: &Arc<Peer>, wire: &Arc<Wire>) -> bool {
    let reader = {
        let (peer, wire) = (peer.clone(), wire.clone());
        let thread = thread::Builder::new().name("outcore-answers".to_owned()).stack_size(1 << 20);
        thread.spawn(move || {
            let (was_useful, why) = take_answers(&peer, &wire);
            wire.die();
            peer.look_again();
            (was_useful, why)
        })
    };
    let mut why = None;
    if reader.is_ok() {
        while let Some(next) = peer.next(wire) {
            if let Err(error) = send(peer, wire, next) {
                why = Some(error);
                break;
            }
        }
    }
    wire.die();
    let (was_useful, last) = match reader.map(thread::JoinHandle::join) {
        Ok(Ok(ended)) => ended,
        _ => (false, Error::new(ErrorKind::Io, "a thread of the network could not run")),
    };
    // Who has the turn has it no longer than the system takes a frame, and nobody gets it any more.
    let rest = wire.outgoing().0.take();
    if let Some(rest) = rest {
        was_sent(peer, wire, rest);
    }
    // Now nobody sends or receives what these calls have.
    let unanswered: Vec<Call> = wire.lock().drain().map(|(_, flight)| flight.call).collect();
    peer.went_down(wire);
    if peer.is_closed() {
        unanswered.into_iter().for_each(|call| peer.finish(call, Err(closed())));
    } else {
        peer.send_again(unanswered, &why.unwrap_or(last));
    }
    was_useful
}

/// Sends what the thread that sends is told to.
fn send(peer: &Peer, wire: &Wire, next: Next) -> Result<()> {
    let mut outgoing = wire.outgoing();
    if let Some(rest) = outgoing.0.take() {
        wire.has_rest.store(false, Ordering::SeqCst);
        let sent = wire.socket.send_frame(&rest, wire);
        was_sent(peer, wire, rest);
        sent?;
    }
    let Next::Call(call) = next else { return Ok(()) };
    let frame = depart(wire, call);
    let sent = wire.socket.send_frame(&frame, wire);
    drop(outgoing);
    was_sent(peer, wire, frame);
    sent
}

/// Sends a small call, as far as the system takes it without waiting. The rest, if any, is left to the thread that sends.
pub(crate) fn send_now(peer: &Peer, wire: &Wire, mut turn: MutexGuard<'_, Outgoing>, call: Call) {
    let mut frame = depart(wire, call);
    match wire.socket.send_frame_now(&mut frame) {
        Ok(true) => {
            wire.touch();
            drop(turn);
            was_sent(peer, wire, frame);
        }
        Ok(false) => {
            turn.0 = Some(frame);
            wire.has_rest.store(true, Ordering::SeqCst);
            drop(turn);
            peer.look_again();
        }
        // The call is sent again with all others of this connection.
        Err(_) => {
            wire.die();
            drop(turn);
            was_sent(peer, wire, frame);
            peer.look_again();
        }
    }
}

/// Notes that a call is under way, and makes its frame.
fn depart(wire: &Wire, mut call: Call) -> Frame {
    let (number, is_write) = (call.number(), call.header.payload_bytes > 0);
    // Of a write, the memory stays here until it is sent: who gets the answer gets all of it.
    let payload =
        if is_write { std::mem::replace(&mut call.region, Region::empty()) } else { Region::empty() };
    call.sent = Instant::now();
    let frame = Frame { header: call.header, control: call.control.clone(), payload, sent: 0 };
    let mut flight = wire.lock();
    if flight.is_empty() {
        wire.touch();
    }
    flight.insert(number, Flight { call, is_sending: is_write, answer: None });
    frame
}

/// A frame was sent, or never will be: its memory is its call's again.
fn was_sent(peer: &Peer, wire: &Wire, frame: Frame) {
    if frame.payload.is_empty() {
        return;
    }
    let number = frame.header.request;
    let mut flight = wire.lock();
    if let Some(found) = flight.get_mut(&number)
        && found.is_sending
    {
        found.call.region = frame.payload;
        found.is_sending = false;
        if let Some(answer) = found.answer.take()
            && let Some(found) = flight.remove(&number)
        {
            drop(flight);
            finish(peer, wire, found.call, Ok(answer));
        }
    }
}

fn finish(peer: &Peer, wire: &Wire, call: Call, control: Result<Vec<u8>>) {
    wire.timeout().sample(call.sent.elapsed());
    wire.weight.fetch_sub(call.weight(), Ordering::SeqCst);
    peer.finish(call, control.map(|control| Reply { control, incarnation: wire.incarnation }));
}

/// Whether there was an answer, and why no more come.
fn take_answers(peer: &Peer, wire: &Wire) -> (bool, Error) {
    let mut was_useful = false;
    loop {
        let taken = match wire.socket.receive_header(wire) {
            Ok(Some(header)) => take_answer(peer, wire, &header),
            Ok(None) => Err(Error::new(ErrorKind::Io, "the server ended the connection")),
            Err(error) => Err(error),
        };
        match taken {
            Ok(is_answer) => was_useful |= is_answer,
            Err(error) => return (was_useful, error),
        }
    }
}

fn take_answer(peer: &Peer, wire: &Wire, header: &Header) -> Result<bool> {
    match header.kind {
        Kind::Working => return Ok(false),
        Kind::IoReply | Kind::ManagerReply => {}
        Kind::Refused => {
            let control = wire.socket.receive_control(header, wire)?;
            return Err(decode::<Refused>(&control)?.error);
        }
        kind => {
            return Err(Error::new(ErrorKind::Corrupt, format!("a server sent a frame of kind {kind:?}")));
        }
    }
    let control = wire.socket.receive_control(header, wire)?;
    let mut flight = wire.lock();
    let Some(found) = flight.get_mut(&header.request) else {
        drop(flight);
        return Err(Error::new(ErrorKind::Corrupt, "a server answered what nobody asked"));
    };
    if found.call.answered_by() != header.kind {
        return Err(Error::new(ErrorKind::Corrupt, "a server answered a request with another's answer"));
    }
    if found.is_sending {
        // Who sends it finishes it.
        found.answer = Some(control);
        drop(flight);
        wire.socket.discard(header.payload_bytes, wire)?;
        return Ok(true);
    }
    let Some(found) = flight.remove(&header.request) else { return Ok(false) };
    drop(flight);
    let received = receive(wire, header, &control, &found.call);
    match received {
        Err(error) => {
            // Where it is found when the calls of this connection are sent again.
            wire.lock().insert(header.request, found);
            Err(error)
        }
        Ok(fits) => {
            finish(peer, wire, found.call, fits.map(|()| control));
            Ok(true)
        }
    }
}

/// Receives a payload into the memory of its call. The inner error is the call's, the outer one the connection's.
fn receive(wire: &Wire, header: &Header, control: &[u8], call: &Call) -> Result<Result<()>> {
    let sent = header.payload_bytes;
    let reply = if call.moves == Moves::In { decode(control).ok() } else { None };
    if reply == Some(IoReply::Absent) {
        let mut region = call.region.clone();
        region.zero(0, call.region_bytes);
    }
    let is_filled = reply == Some(IoReply::Done);
    let expected = if is_filled { call.region_bytes as u64 } else { 0 };
    if sent != expected {
        wire.socket.discard(sent, wire)?;
        let message =
            format!("need {expected} bytes, the server sent {sent}; use the same outcore everywhere");
        return Ok(Err(Error::new(ErrorKind::Corrupt, message)));
    }
    if sent > 0 {
        wire.socket.receive_payload(header, &call.region, wire)?;
    }
    Ok(Ok(()))
}

/// The reply of an I/O server, or that of nobody; and the run of it.
pub(crate) fn io_reply(result: Result<Reply>) -> (IoReply, Incarnation) {
    let read = |reply: Reply| Ok((decode::<IoReply>(&reply.control)?, reply.incarnation));
    result.and_then(read).unwrap_or_else(|error| (IoReply::Failed(error), Incarnation::NONE))
}
