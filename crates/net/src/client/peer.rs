//! A server from the client's view: the queue of calls, and the state of the channels that send them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outcore_core::wire::{MAX_PAYLOAD_BYTES, Role};
use outcore_core::{Error, ErrorKind, Result};

use crate::Address;
use crate::client::call::{Call, Reply, closed};
use crate::client::options::Options;
use crate::client::wire::{Outgoing, Wire};
use crate::handshake::Unopened;

/// Maximum number of attempts for a call. If it breaks connection after connection, the network is not the
/// cause.
const MOST_ATTEMPTS: u32 = 8;

/// Maximum distance between the numbers of the oldest unanswered call and the newest sent call, without waits.
/// Servers remember no more answers, and none of waits.
const MOST_NUMBERS: u64 = 2048;

/// Patience for a server that was never reached, because its address may be wrong.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// Pauses between attempts to connect: the first, doubled up to the last.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(20);
pub(crate) const LAST_PAUSE: Duration = Duration::from_secs(2);

/// The next work for the sending thread of a channel.
pub(crate) enum Next {
    Call(Call),
    /// The rest of a frame that was sent in part.
    Rest,
}

/// A channel to the server, open or not.
struct Channel {
    number: u64,
    address: Address,
    last: Try,
}

impl Channel {
    /// Whether it is a UNIX socket.
    fn is_local(&self) -> bool {
        matches!(self.address, Address::Unix(_))
    }
}

/// The result of the last attempt to open a channel.
#[derive(Clone)]
enum Try {
    /// No attempt yet.
    Untried,
    /// The channel opened, or the network failed: a retry may help.
    Passing,
    /// A server refused: a retry is useless.
    Refused(Error),
}

/// Asks the manager for the server's addresses, without waiting. The answer arrives through `channel::move_to`.
pub(crate) type Look = Box<dyn Fn() + Send + Sync>;

pub(crate) struct Peer {
    pub(crate) role: Role,
    pub(crate) client: u128,
    pub(crate) options: Options,
    /// Maximum bytes of a payload, as the server reported.
    pub(crate) payload_bytes: AtomicU64,
    /// `None` if the server never moves.
    look: Option<Look>,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    queue: VecDeque<Call>,
    /// The queue of waits: other calls pass them, because their answers may depend on those.
    waits: VecDeque<Call>,
    next_number: u64,
    /// Numbers of calls that may still be sent, without waits.
    unsettled: BTreeSet<u64>,
    /// The open connections.
    wires: Vec<Arc<Wire>>,
    channels: Vec<Channel>,
    next_channel: u64,
    down_since: Instant,
    was_up: bool,
    /// Whether the manager has confirmed the address since the last open channel.
    is_found: bool,
    /// Earliest time of the next request for the address, and the pause after it.
    next_look: Instant,
    look_pause: Duration,
    /// Whether a call was refused since then.
    has_refused: bool,
    is_closed: bool,
}

impl Peer {
    /// A server without channels yet.
    pub(crate) fn new(role: Role, client: u128, options: &Options, look: Option<Look>) -> Arc<Self> {
        Arc::new(Self {
            role,
            client,
            options: options.clone(),
            payload_bytes: AtomicU64::new(MAX_PAYLOAD_BYTES),
            state: Mutex::new(State {
                queue: VecDeque::new(),
                waits: VecDeque::new(),
                next_number: 1,
                unsettled: BTreeSet::new(),
                wires: vec![],
                channels: vec![],
                next_channel: 0,
                down_since: Instant::now(),
                was_up: false,
                is_found: look.is_none(),
                next_look: Instant::now(),
                look_pause: FIRST_PAUSE,
                has_refused: false,
                is_closed: false,
            }),
            look,
            wake: Condvar::new(),
        })
    }

    /// Notes that the manager has confirmed the address.
    pub(crate) fn was_found(&self) {
        self.lock().is_found = true;
    }

    /// Adds channels to the addresses that have none, and returns them with their numbers. Each address gets
    /// one channel, or several if the options say so.
    pub(crate) fn add_channels(&self, addresses: &[Address]) -> Vec<(u64, Address)> {
        let is_manager = self.role == Role::Manager;
        let each = if is_manager { 1 } else { self.options.connections_per_address.max(1) };
        let mut added = vec![];
        let mut state = self.lock();
        if state.is_closed {
            return added;
        }
        for address in addresses {
            if state.channels.iter().any(|channel| channel.address == *address) {
                continue;
            }
            for _ in 0..each {
                let number = state.next_channel;
                state.next_channel += 1;
                state.channels.push(Channel { number, address: address.clone(), last: Try::Untried });
                added.push((number, address.clone()));
            }
        }
        added
    }

    /// Drops the channels whose number or address is not wanted.
    pub(crate) fn drop_channels(&self, is_wanted: impl Fn(u64, &Address) -> bool) {
        self.lock().channels.retain(|channel| is_wanted(channel.number, &channel.address));
        // Wake the threads of dropped channels.
        self.wake.notify_all();
    }

    /// The name of the server, for messages.
    fn name(&self) -> String {
        self.role.to_string()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a call with `send_now` over a channel that is free, or queues it. The call completes with its answer,
    /// or with an error. Returns the channel over which it was sent.
    pub(crate) fn call(
        &self,
        mut call: Call,
        send_now: impl FnOnce(&Self, &Wire, MutexGuard<'_, Outgoing>, Call),
    ) -> Option<Arc<Wire>> {
        let mut state = self.lock();
        let error = if state.is_closed { Some(closed()) } else { state.refusal_now() };
        if let Some(error) = error {
            state.has_refused = true;
            drop(state);
            (call.done)(Err(error), call.region);
            return None;
        }
        call.header.request = state.next_number;
        state.next_number += 1;
        if !call.is_wait {
            state.unsettled.insert(call.number());
        }
        if let Some(wire) = state.free_wire(&call)
            && let Some(turn) = wire.turn()
        {
            call.header.settled = state.oldest();
            wire.takes(&call);
            drop(state);
            send_now(self, &wire, turn, call);
            return Some(wire.clone());
        }
        state.queue_of(&call).push_back(call);
        drop(state);
        self.wake.notify_all();
        None
    }

    /// Waits for the next work of a channel's sending thread: a call that fits the channel, or the rest of a
    /// frame. `None` ends the channel.
    pub(crate) fn next(&self, wire: &Wire) -> Option<Next> {
        let mut state = self.lock();
        loop {
            if state.is_closed || wire.is_dead() {
                return None;
            }
            if wire.has_rest() {
                return Some(Next::Rest);
            }
            if let Some(mut call) = state.take_next(wire) {
                call.header.settled = state.oldest();
                wire.takes(&call);
                return Some(Next::Call(call));
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes the channels, because one has space or is dead.
    pub(crate) fn look_again(&self) {
        // Take the lock, so that no thread misses this between its check and its wait.
        let state = self.lock();
        drop(state);
        self.wake.notify_all();
    }

    /// Completes a call with its answer or error.
    pub(crate) fn finish(&self, call: Call, result: Result<Reply>) {
        let mut state = self.lock();
        state.unsettled.remove(&call.number());
        // A queued call may be sent now.
        let is_more = state.is_any_queued();
        drop(state);
        if is_more {
            self.wake.notify_all();
        }
        (call.done)(result, call.region);
    }

    /// Queues the calls of a dead channel for a retry on others.
    pub(crate) fn send_again(&self, mut calls: Vec<Call>, why: &Error) {
        calls.sort_by_key(Call::number);
        let mut hopeless = Vec::new();
        let mut state = self.lock();
        let place = state.place();
        for mut call in calls.into_iter().rev() {
            call.attempts += 1;
            if call.attempts >= MOST_ATTEMPTS || state.is_closed {
                hopeless.push(call);
            } else {
                state.queue_of(&call).push_front(call);
            }
        }
        drop(state);
        self.wake.notify_all();
        for call in hopeless {
            let (name, why_not) = (self.name(), &why.message);
            let message =
                format!("{name} at {place}: {why_not}; {} attempts to send a request failed", call.attempts);
            self.finish(call, Err(Error::new(why.kind, message)));
        }
        self.look_again();
    }

    pub(crate) fn came_up(&self, channel: u64, payload_bytes: u64, wire: Arc<Wire>) {
        self.payload_bytes.store(payload_bytes, Ordering::Relaxed);
        let mut state = self.lock();
        state.wires.push(wire);
        state.was_up = true;
        state.is_found = self.look.is_none();
        state.look_pause = FIRST_PAUSE;
        state.tried(channel, Try::Passing);
    }

    pub(crate) fn went_down(&self, wire: &Arc<Wire>) {
        let mut state = self.lock();
        state.wires.retain(|other| !Arc::ptr_eq(other, wire));
        state.down_since = Instant::now();
    }

    /// Handles a failed attempt to open a channel. If no channel is open, fails the calls that have waited
    /// too long. For the others, asks the manager for the server's address, at most as often as one channel
    /// retries.
    pub(crate) fn did_not_come_up(&self, channel: u64, unopened: Unopened) {
        let Unopened { error, is_other } = unopened;
        let error = Error::new(error.kind, format!("{}: {}", self.name(), error.message));
        let mut state = self.lock();
        // Another server at the address of a server that has moved cannot refuse on its behalf.
        let is_passing = matches!(error.kind, ErrorKind::Io | ErrorKind::Busy)
            || !state.is_found
            || (is_other && state.was_up && self.look.is_some());
        state.tried(channel, if is_passing { Try::Passing } else { Try::Refused(error.clone()) });
        if !state.wires.is_empty() {
            return;
        }
        let is_wanted = state.is_any_queued() || state.has_refused;
        let now = Instant::now();
        let looks = is_wanted && now >= state.next_look;
        if looks {
            (state.next_look, state.has_refused) = (now + state.look_pause, false);
            state.look_pause = (state.look_pause * 2).min(LAST_PAUSE);
        }
        let (refusal, down_since) = (state.refusal_now(), state.down_since);
        let most = if state.was_up { Duration::MAX } else { FIRST_PATIENCE };
        let patience = self.options.patience.min(most);
        let is_over = |call: &Call| refusal.is_some() || call.called.max(down_since).elapsed() > patience;
        let mut over = vec![];
        let State { queue, waits, .. } = &mut *state;
        for queue in [queue, waits] {
            let (gone, waiting): (Vec<Call>, Vec<Call>) =
                std::mem::take(queue).into_iter().partition(&is_over);
            *queue = waiting.into();
            over.extend(gone);
        }
        drop(state);
        let error = refusal.unwrap_or(error);
        for call in over {
            self.finish(call, Err(error.clone()));
        }
        if let Some(look) = self.look.as_ref().filter(|_| looks) {
            look();
        }
    }

    /// Waits before the next attempt to open a channel. Returns false if the channel was dropped.
    pub(crate) fn pause(&self, channel: u64, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.lock();
        while state.has(channel) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return true;
            }
            state = self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        false
    }

    /// Whether a channel should stay open.
    pub(crate) fn has(&self, channel: u64) -> bool {
        self.lock().has(channel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Closes all channels. Unanswered calls fail.
    pub(crate) fn close(&self) {
        self.end(&closed());
    }

    /// Like `close`; queued calls fail with `why`.
    pub(crate) fn end(&self, why: &Error) {
        let mut state = self.lock();
        state.is_closed = true;
        let (waiting, waits) = (std::mem::take(&mut state.queue), std::mem::take(&mut state.waits));
        drop(state);
        self.wake.notify_all();
        for call in waiting.into_iter().chain(waits) {
            self.finish(call, Err(why.clone()));
        }
    }
}

impl State {
    fn has(&self, channel: u64) -> bool {
        !self.is_closed && self.channels.iter().any(|other| other.number == channel)
    }

    /// Records the result of an attempt, if the channel still exists.
    fn tried(&mut self, channel: u64, last: Try) {
        if let Some(channel) = self.channels.iter_mut().find(|other| other.number == channel) {
            channel.last = last;
        }
    }

    /// The addresses of the server, for messages.
    fn place(&self) -> String {
        let mut places: Vec<String> =
            self.channels.iter().map(|channel| channel.address.to_string()).collect();
        places.dedup();
        places.join(" ")
    }

    /// Whether a channel may send a call. A call that prefers a local channel takes another one only if no
    /// local channel is open or untried.
    fn may_take(&self, wire: &Wire, call: &Call) -> bool {
        let is_better = || {
            let is_untried = |channel: &Channel| channel.is_local() && matches!(channel.last, Try::Untried);
            self.wires.iter().any(|wire| wire.is_local()) || self.channels.iter().any(is_untried)
        };
        !call.is_for_local || wire.is_local() || !is_better()
    }

    /// The queue to which a call belongs.
    fn queue_of(&mut self, call: &Call) -> &mut VecDeque<Call> {
        if call.is_wait { &mut self.waits } else { &mut self.queue }
    }

    fn is_any_queued(&self) -> bool {
        !self.queue.is_empty() || !self.waits.is_empty()
    }

    /// Removes the first call of a queue that a channel may send, if the channel has space for it.
    fn take_next(&mut self, wire: &Wire) -> Option<Call> {
        let first = |queue: &VecDeque<Call>| {
            let place = queue.iter().position(|call| self.may_take(wire, call))?;
            let call = queue.get(place)?;
            (self.is_near(call) && wire.has_room(call)).then_some(place)
        };
        if let Some(place) = first(&self.waits) {
            return self.waits.remove(place);
        }
        let place = first(&self.queue)?;
        self.queue.remove(place)
    }

    /// Whether the server still remembers the answers of all unsettled calls when it gets this call.
    fn is_near(&self, call: &Call) -> bool {
        call.is_wait || call.number() < self.oldest() + MOST_NUMBERS
    }

    /// The number of the oldest call that may still be sent, without waits.
    fn oldest(&self) -> u64 {
        self.unsettled.first().copied().unwrap_or(self.next_number)
    }

    /// The channel over which the calling thread may send a new call immediately, if the call is small and
    /// its queue is empty.
    fn free_wire(&self, call: &Call) -> Option<Arc<Wire>> {
        let queue = if call.is_wait { &self.waits } else { &self.queue };
        let is_free = queue.is_empty() && call.is_small() && self.is_near(call);
        let is_good =
            |wire: &&Arc<Wire>| wire.sends_now() && wire.has_room(call) && self.may_take(wire, call);
        let wires = self.wires.iter().filter(is_good);
        wires.min_by_key(|wire| wire.weight()).filter(|_| is_free).cloned()
    }

    /// The reason why no call can be sent: no channel is open, all were tried, and a server refused.
    fn refusal_now(&self) -> Option<Error> {
        let is_tried = self.channels.iter().all(|channel| !matches!(channel.last, Try::Untried));
        if !self.wires.is_empty() || !is_tried {
            return None;
        }
        self.channels.iter().find_map(|channel| match &channel.last {
            Try::Refused(error) => Some(error.clone()),
            _ => None,
        })
    }
}
