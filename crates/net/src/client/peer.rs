//! One server, as its client has it: calls that wait, and the channels that take them.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::wire::{MAX_PAYLOAD_BYTES, Role};
use outcore_core::{Error, ErrorKind, Result};

use crate::Address;
use crate::client::call::{Call, Reply};
use crate::client::channel::{FIRST_PAUSE, LAST_PAUSE, keep_channel};
use crate::client::link::Options;
use crate::client::sending::send_now;
use crate::client::wire::Wire;
use crate::handshake::Unopened;

/// A call is sent at most so often: what breaks connection after connection is not the network.
const MOST_ATTEMPTS: u32 = 8;

/// Numbers from the oldest call that is not answered to the newest that was sent: servers remember no more answers.
const MOST_NUMBERS: u64 = 2048;

/// A server that was never reached may have another address.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);

/// What the thread of a channel sends next.
pub(crate) enum Next {
    Call(Call),
    /// The rest of a frame that is sent in part.
    Rest,
}

/// A way to the server, whether or not it is open.
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

/// The last try to open a channel.
#[derive(Clone)]
enum Try {
    /// There was none yet.
    Untried,
    /// The channel came up, or the network failed: trying again may help.
    Passing,
    /// A server said no: trying again is of no use.
    Refused(Error),
}

/// Has the manager say where the server is, without waiting for it; it is told by [`Peer::is_at`].
pub(crate) type Look = Box<dyn Fn() + Send + Sync>;

pub(crate) struct Peer {
    pub(crate) role: Role,
    pub(crate) client: u128,
    pub(crate) options: Options,
    /// Most bytes of a payload, as the server says.
    pub(crate) payload_bytes: AtomicU64,
    /// `None`: it does not move.
    look: Option<Look>,
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    queue: VecDeque<Call>,
    next_number: u64,
    /// Numbers of calls that may still be sent.
    unsettled: BTreeSet<u64>,
    /// The connections that are open.
    wires: Vec<Arc<Wire>>,
    channels: Vec<Channel>,
    next_channel: u64,
    down_since: Instant,
    was_up: bool,
    /// Whether it is where the manager says, as far as it was asked since a channel was open.
    is_found: bool,
    /// When the manager may be asked next where it is, and how long after that again.
    next_look: Instant,
    look_pause: Duration,
    /// Whether a call was refused since.
    has_refused: bool,
    is_closed: bool,
}

impl Peer {
    /// A server with these addresses; a channel each, and several where the options say so.
    pub(crate) fn new(
        role: Role,
        addresses: &[Address],
        client: u128,
        options: &Options,
        look: Option<Look>,
    ) -> Result<Arc<Self>> {
        if addresses.is_empty() {
            return Err(Error::invalid(format!("{role:?} has no address; give one to the manager")));
        }
        let peer = Arc::new(Self {
            role,
            client,
            options: options.clone(),
            payload_bytes: AtomicU64::new(MAX_PAYLOAD_BYTES),
            state: Mutex::new(State {
                queue: VecDeque::new(),
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
        });
        peer.reach(addresses)?;
        Ok(peer)
    }

    /// The manager says where it is. Channels to other places are used until they are lost.
    pub(crate) fn is_at(self: &Arc<Self>, addresses: &[Address]) -> Result<()> {
        self.lock().is_found = true;
        self.reach(addresses)
    }

    /// Has channels to these addresses, and no others. Where a thread cannot be started it keeps those that it had.
    fn reach(self: &Arc<Self>, addresses: &[Address]) -> Result<()> {
        let is_manager = self.role == Role::Manager;
        let each = if is_manager { 1 } else { self.options.connections_per_address.max(1) };
        let mut begun = vec![];
        let mut state = self.lock();
        if state.is_closed {
            return Ok(());
        }
        for address in addresses {
            if state.channels.iter().any(|channel| channel.address == *address) {
                continue;
            }
            for _ in 0..each {
                let number = state.next_channel;
                state.next_channel += 1;
                state.channels.push(Channel { number, address: address.clone(), last: Try::Untried });
                begun.push((number, address.clone()));
            }
        }
        drop(state);
        let threads = begun.iter().try_for_each(|(channel, address)| {
            let (peer, channel, address) = (self.clone(), *channel, address.clone());
            let thread = thread::Builder::new().name("outcore-channel".to_owned()).stack_size(1 << 20);
            thread.spawn(move || keep_channel(&peer, channel, &address)).map(drop)
        });
        let mut state = self.lock();
        match &threads {
            Ok(()) => state.channels.retain(|channel| addresses.contains(&channel.address)),
            Err(_) => state.channels.retain(|channel| begun.iter().all(|(new, _)| *new != channel.number)),
        }
        drop(state);
        // For those that are no more.
        self.wake.notify_all();
        threads.map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
        })
    }

    /// Which server it is, for people.
    fn name(&self) -> String {
        self.role.to_string()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a call, or queues it. It is done when it is answered, or when it cannot be. Returns the channel over which it
    /// was sent.
    pub(crate) fn call(&self, mut call: Call) -> Option<Arc<Wire>> {
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
        state.unsettled.insert(call.number());
        if let Some(wire) = state.free_wire(&call)
            && let Some(turn) = wire.turn()
        {
            call.header.settled = state.oldest();
            wire.takes(call.weight());
            drop(state);
            send_now(self, &wire, turn, call);
            return Some(wire.clone());
        }
        state.queue.push_back(call);
        drop(state);
        self.wake.notify_all();
        None
    }

    /// What the thread of a channel is to send next: waits until there is a call that the channel has room for, or the
    /// rest of one. `None` if the channel is to end.
    pub(crate) fn next(&self, wire: &Wire) -> Option<Next> {
        let mut state = self.lock();
        loop {
            if state.is_closed || wire.is_dead() {
                return None;
            }
            if wire.has_rest() {
                return Some(Next::Rest);
            }
            let oldest = state.oldest();
            let first = state.queue.iter().position(|call| state.may_take(wire, call));
            if let Some(place) = first
                && let Some(first) = state.queue.get(place)
                && first.number() < oldest + MOST_NUMBERS
                && wire.has_room(first.weight())
                && let Some(mut call) = state.queue.remove(place)
            {
                call.header.settled = oldest;
                wire.takes(call.weight());
                return Some(Next::Call(call));
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Channels look again: one has room, or is dead.
    pub(crate) fn look_again(&self) {
        // Under the lock, so that nobody who has just looked misses it.
        let state = self.lock();
        drop(state);
        self.wake.notify_all();
    }

    /// A call has its answer, or will never have one.
    pub(crate) fn finish(&self, call: Call, result: Result<Reply>) {
        let mut state = self.lock();
        state.unsettled.remove(&call.number());
        // One of those that wait may be sent now.
        let is_more = !state.queue.is_empty();
        drop(state);
        if is_more {
            self.wake.notify_all();
        }
        (call.done)(result, call.region);
    }

    /// Calls of a channel that died: others send them again.
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
                state.queue.push_front(call);
            }
        }
        drop(state);
        self.wake.notify_all();
        for call in hopeless {
            let (name, why_not) = (self.name(), &why.message);
            let message =
                format!("{name} at {place}: {why_not}; a request was sent {} times in vain", call.attempts);
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

    /// A channel could not be opened. Where no other is open, calls that waited for too long are given up, and for the
    /// others the manager is asked where the server is, as seldom as one channel is tried.
    pub(crate) fn did_not_come_up(&self, channel: u64, unopened: Unopened) {
        let Unopened { error, is_other } = unopened;
        let error = Error::new(error.kind, format!("{}: {}", self.name(), error.message));
        let mut state = self.lock();
        // Who says no in the place of a server that has moved, or will, does not stand for it.
        let is_passing = matches!(error.kind, ErrorKind::Io | ErrorKind::Busy)
            || !state.is_found
            || (is_other && state.was_up && self.look.is_some());
        state.tried(channel, if is_passing { Try::Passing } else { Try::Refused(error.clone()) });
        if !state.wires.is_empty() {
            return;
        }
        let is_wanted = !state.queue.is_empty() || state.has_refused;
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
        let (over, waiting) = std::mem::take(&mut state.queue).into_iter().partition(is_over);
        state.queue = waiting;
        drop(state);
        let over: VecDeque<Call> = over;
        let error = refusal.unwrap_or(error);
        for call in over {
            self.finish(call, Err(error.clone()));
        }
        if let Some(look) = self.look.as_ref().filter(|_| looks) {
            look();
        }
    }

    /// Waits before the next try to open a channel. False if there is none.
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

    /// Whether a channel is to be kept open.
    pub(crate) fn has(&self, channel: u64) -> bool {
        self.lock().has(channel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Ends all channels. Calls that were not answered fail.
    pub(crate) fn close(&self) {
        self.end(&closed());
    }

    /// As `close`; what waits to be sent fails with `why`.
    pub(crate) fn end(&self, why: &Error) {
        let mut state = self.lock();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.queue);
        drop(state);
        self.wake.notify_all();
        for call in waiting {
            self.finish(call, Err(why.clone()));
        }
    }
}

impl State {
    fn has(&self, channel: u64) -> bool {
        !self.is_closed && self.channels.iter().any(|other| other.number == channel)
    }

    /// Notes what came of a try, unless the server is not there any more.
    fn tried(&mut self, channel: u64, last: Try) {
        if let Some(channel) = self.channels.iter_mut().find(|other| other.number == channel) {
            channel.last = last;
        }
    }

    /// Where it is, for people.
    fn place(&self) -> String {
        let mut places: Vec<String> =
            self.channels.iter().map(|channel| channel.address.to_string()).collect();
        places.dedup();
        places.join(" ")
    }

    /// Whether a call may go over a channel: any, if there is none of the kind that it is for, nor will be soon.
    fn may_take(&self, wire: &Wire, call: &Call) -> bool {
        let is_better = || {
            let is_untried = |channel: &Channel| channel.is_local() && matches!(channel.last, Try::Untried);
            self.wires.iter().any(|wire| wire.is_local()) || self.channels.iter().any(is_untried)
        };
        !call.is_for_local || wire.is_local() || !is_better()
    }

    /// The oldest call that may still be sent.
    fn oldest(&self) -> u64 {
        self.unsettled.first().copied().unwrap_or(self.next_number)
    }

    /// Where a new call may be sent at once by who makes it, if it is small and none waits.
    fn free_wire(&self, call: &Call) -> Option<Arc<Wire>> {
        let is_free =
            self.queue.is_empty() && call.is_small() && call.number() < self.oldest() + MOST_NUMBERS;
        let is_good =
            |wire: &&Arc<Wire>| wire.sends_now() && wire.has_room(call.weight()) && self.may_take(wire, call);
        let wires = self.wires.iter().filter(is_good);
        wires.min_by_key(|wire| wire.weight()).filter(|_| is_free).cloned()
    }

    /// Why no call can be sent: no channel is up, all were tried, and a server said no.
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

pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the pool was closed; connect again")
}
