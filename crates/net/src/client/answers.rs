//! Receives answers, in a channel's thread or in the callers that wait for them.

use std::sync::Arc;

use outcore_core::wire::{Header, Kind, Refused, decode};
use outcore_core::{Buffer, Error, ErrorKind, Incarnation, IoReply, Result};

use crate::client::call::{Call, Moves, Reply};
use crate::client::peer::Peer;
use crate::client::reader::{Claim, Given, Reader};
use crate::client::wire::Wire;

/// Completes a call with its answer.
pub(super) fn finish(peer: &Peer, wire: &Wire, call: Call, control: Result<Vec<u8>>) {
    wire.timeout().sample(call.sent.elapsed());
    wire.gives_back(&call);
    peer.finish(call, control.map(|control| Reply { control, incarnation: wire.incarnation }));
}

/// Receives answers until none can follow. Returns whether there was one, and the reason for the end.
pub(super) fn take_answers(peer: &Peer, wire: &Wire) -> (bool, Error) {
    let mut was_useful = false;
    loop {
        match take_next(peer, wire) {
            Ok(is_answer) => was_useful |= is_answer,
            Err(error) => return (was_useful, error),
        }
    }
}

/// Does the same on a channel whose callers receive most of the answers.
pub(super) fn stand_by(peer: &Peer, wire: &Wire, reader: &Reader) -> (bool, Error) {
    while reader.stand_by(|| wire.is_dead(), || !wire.lock().is_empty()) {
        take_until(peer, wire, reader, || wire.lock().is_empty());
    }
    reader.ended()
}

/// Receives answers until `is_so` holds or none can follow. Then another thread takes over.
fn take_until(peer: &Peer, wire: &Wire, reader: &Reader, mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        let taken = take_next(peer, wire);
        reader.note(&taken);
        if taken.is_err() {
            // This thread is still the reader; the reader role ends when it leaves.
            wire.die();
            break;
        }
    }
    reader.leave(|| wire.needs_reader());
}

/// Waits for the answer to a call on this channel. Meanwhile it passes other answers to their callers.
pub(crate) fn wait_for_answer(peer: &Peer, wire: Option<&Wire>, claim: &Arc<Claim>) -> Result<Reply> {
    let reader = wire.and_then(|wire| wire.reader.as_ref().map(|reader| (wire, reader)));
    let mut has_part = reader.is_some_and(|(_, reader)| reader.enter(claim));
    loop {
        if let (Some((wire, reader)), true) = (reader, has_part) {
            take_until(peer, wire, reader, || claim.is_settled());
        }
        match claim.wait() {
            Given::Answer(answer) => return answer,
            Given::Part => has_part = true,
        }
    }
}

/// Receives the next frame. Returns whether it is an answer.
fn take_next(peer: &Peer, wire: &Wire) -> Result<bool> {
    match wire.socket.receive_header(wire)? {
        Some(header) => take_answer(peer, wire, &header),
        None => Err(Error::new(ErrorKind::Io, "the server ended the connection")),
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
        return Err(Error::new(
            ErrorKind::Corrupt,
            "a server answered a request that the client did not send",
        ));
    };
    if found.call.answered_by() != header.kind {
        return Err(Error::new(ErrorKind::Corrupt, "a server answered a request with another's answer"));
    }
    if found.is_sending {
        // The sending thread completes the call.
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
            // Put the call back, so that it is retried with the other calls of this connection.
            wire.lock().insert(header.request, found);
            Err(error)
        }
        Ok(fits) => {
            finish(peer, wire, found.call, fits.map(|()| control));
            Ok(true)
        }
    }
}

/// Receives a payload into the memory of its call. The inner error concerns the call, the outer one the
/// connection.
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

/// The reply of an I/O server, or an error reply, and the server's run.
pub(crate) fn io_reply(result: Result<Reply>) -> (IoReply, Incarnation) {
    let read = |reply: Reply| Ok((decode::<IoReply>(&reply.control)?, reply.incarnation));
    result.and_then(read).unwrap_or_else(|error| (IoReply::Failed(error), Incarnation::NONE))
}
