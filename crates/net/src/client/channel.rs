//! One channel: a connection that reconnects whenever it is lost. One thread receives answers and one sends
//! calls, unless callers do so themselves.

use std::sync::Arc;
use std::thread;

use outcore_core::wire::Role;
use outcore_core::{Error, ErrorKind, Result};

use crate::Address;
use crate::client::answers::{stand_by, take_answers};
use crate::client::call::{Call, closed};
use crate::client::options::Options;
use crate::client::peer::{FIRST_PAUSE, LAST_PAUSE, Look, Peer};
use crate::client::sending::{send, was_sent};
use crate::client::timeout::Timeout;
use crate::client::wire::{Wire, open};

/// A server at these addresses, with channels to them.
pub(crate) fn reach(
    role: Role,
    addresses: &[Address],
    client: u128,
    options: &Options,
    look: Option<Look>,
) -> Result<Arc<Peer>> {
    if addresses.is_empty() {
        return Err(Error::invalid(format!("{role:?} has no address; give one to the manager")));
    }
    let peer = Peer::new(role, client, options, look);
    open_channels(&peer, addresses)?;
    Ok(peer)
}

/// Follows a server to the addresses that the manager states. Channels to other addresses stay in use until
/// they are lost.
pub(crate) fn move_to(peer: &Arc<Peer>, addresses: &[Address]) -> Result<()> {
    peer.was_found();
    open_channels(peer, addresses)
}

/// Opens channels to these addresses, and drops the others. If a thread cannot be started, keeps the old
/// channels.
fn open_channels(peer: &Arc<Peer>, addresses: &[Address]) -> Result<()> {
    if peer.is_closed() {
        return Ok(());
    }
    let begun = peer.add_channels(addresses);
    let threads = begun.iter().try_for_each(|(channel, address)| {
        let (peer, channel, address) = (peer.clone(), *channel, address.clone());
        let thread = thread::Builder::new().name("outcore-channel".to_owned()).stack_size(1 << 20);
        thread.spawn(move || keep_channel(&peer, channel, &address)).map(drop)
    });
    match &threads {
        Ok(()) => peer.drop_channels(|_, address| addresses.contains(address)),
        Err(_) => peer.drop_channels(|number, _| begun.iter().all(|(new, _)| *new != number)),
    }
    threads.map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
    })
}

/// Keeps one channel of a server open until the peer is closed, or the server has moved.
fn keep_channel(peer: &Arc<Peer>, channel: u64, address: &Address) {
    let mut pause = FIRST_PAUSE;
    let mut timeout = Timeout::default();
    while peer.has(channel) {
        match open(peer.role, peer.client, &peer.options, address, timeout) {
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
        if !peer.pause(channel, pause) {
            return;
        }
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Sends calls and receives answers until the connection or the peer ends. Returns whether there was an
/// answer.
fn use_channel(peer: &Arc<Peer>, wire: &Arc<Wire>) -> bool {
    let reader = {
        let (peer, wire) = (peer.clone(), wire.clone());
        let thread = thread::Builder::new().name("outcore-answers".to_owned()).stack_size(1 << 20);
        thread.spawn(move || {
            let (was_useful, why) = match &wire.reader {
                Some(reader) => stand_by(&peer, &wire, reader),
                None => take_answers(&peer, &wire),
            };
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
    if let (Err(_), Some(reader)) = (&reader, &wire.reader) {
        // Without a standby thread, callers detect the end of the connection themselves.
        reader.stand_by(|| true, || false);
    }
    let (was_useful, last) = match reader.map(thread::JoinHandle::join) {
        Ok(Ok(ended)) => ended,
        _ => (false, Error::new(ErrorKind::Io, "a thread of the network could not run")),
    };
    // A caller that is sending blocks only while the system takes a frame, and no other caller can start.
    let rest = wire.outgoing().0.take();
    if let Some(rest) = rest {
        was_sent(peer, wire, rest);
    }
    // Now no thread sends or receives in the memory of these calls.
    let unanswered: Vec<Call> = wire.lock().drain().map(|(_, flight)| flight.call).collect();
    peer.went_down(wire);
    if peer.is_closed() {
        unanswered.into_iter().for_each(|call| peer.finish(call, Err(closed())));
    } else {
        peer.send_again(unanswered, &why.unwrap_or(last));
    }
    was_useful
}
