//! Sends calls: in the calling thread, if they are small and the system takes them immediately; otherwise in
//! a channel's thread.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use outcore_core::{Buffer, Result};
use outcore_memory::Region;

use crate::client::answers::finish;
use crate::client::call::Call;
use crate::client::peer::{Next, Peer};
use crate::client::wire::{Flight, Outgoing, Wire};
use crate::frames::Frame;

/// Sends or queues a call. The call completes with its answer, or with an error. Returns the channel over which
/// it was sent.
pub(crate) fn call(peer: &Peer, call: Call) -> Option<Arc<Wire>> {
    peer.call(call, send_now)
}

/// Sends the next work of the sending thread.
pub(super) fn send(peer: &Peer, wire: &Wire, next: Next) -> Result<()> {
    let mut outgoing = wire.outgoing();
    if let Some(rest) = outgoing.0.take() {
        wire.has_rest.store(false, Ordering::SeqCst);
        let sent = wire.socket.send_frame(&rest, wire);
        was_sent(peer, wire, rest);
        sent?;
    }
    let Next::Call(call) = next else { return Ok(()) };
    let frame = depart(wire, call);
    wire.wake_reader();
    let sent = wire.socket.send_frame(&frame, wire);
    drop(outgoing);
    was_sent(peer, wire, frame);
    sent
}

/// Sends a small call, as far as the system takes it without waiting. The sending thread sends the rest, if
/// any.
fn send_now(peer: &Peer, wire: &Wire, mut turn: MutexGuard<'_, Outgoing>, call: Call) {
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
        // The call is retried with the others of this connection.
        Err(_) => {
            wire.die();
            drop(turn);
            was_sent(peer, wire, frame);
            peer.look_again();
        }
    }
}

/// Records that a call is in flight, and creates its frame.
fn depart(wire: &Wire, mut call: Call) -> Frame {
    let (number, is_write) = (call.number(), call.header.payload_bytes > 0);
    // The frame holds a write's memory until it is sent, so that the callback gets the only view.
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

/// Returns the memory of a frame to its call, after the frame was sent or dropped.
pub(super) fn was_sent(peer: &Peer, wire: &Wire, frame: Frame) {
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
