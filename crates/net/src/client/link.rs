//! The link to the manager and the I/O servers of one pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::wire::{Kind, MAX_RUNS, encode};
use outcore_core::{
    Answer, Buffer, Clock, Error, ErrorKind, IoRequest, Link, ManagerReply, ManagerRequest, OnAnswer, Result,
    ServerId,
};
use outcore_memory::Region;

use crate::Address;
use crate::client::answers::io_reply;
use crate::client::call::{Call, Moves, Reply};
use crate::client::divide::{Joined, MOST_BYTES, PART_BYTES, divide};
use crate::client::options::Options;
use crate::client::places::{Places, check_control};
use crate::client::sending::call;

/// The servers of one pool, over the network. Dropping it fails unanswered calls.
pub struct NetLink {
    clock: Arc<dyn Clock>,
    pool: u128,
    places: Arc<Places>,
}

impl NetLink {
    /// Connects to the manager at any of `addresses`, and gets the addresses of the I/O servers from it.
    pub fn connect(addresses: &[Address], options: Options) -> Result<Self> {
        let clock = options.clock.clone();
        let mut link = Self { clock, pool: 0, places: Places::new(addresses, options)? };
        link.pool = link.places.refresh()?;
        Ok(link)
    }

    /// The pool's identity.
    pub fn pool(&self) -> u128 {
        self.pool
    }

    /// Maximum payload of one request to a server. Before the first connection, the
    /// protocol's maximum.
    pub fn payload_bytes(&self, server: ServerId) -> Result<u64> {
        self.places.peer(server).map(|peer| peer.payload_bytes.load(Ordering::Relaxed))
    }

    /// Sends one message.
    fn send(&self, server: ServerId, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let clock = self.clock.clone();
        let started_ns = clock.now_ns();
        let answer = move |result: Result<Reply>, buffer| {
            let finished_ns = clock.now_ns();
            let (reply, incarnation) = io_reply(result);
            done(Answer { reply, buffer, incarnation, started_ns, finished_ns });
        };
        let control = encode(&request);
        let ready = self.places.check_process().and_then(|()| check_control(&control)).and_then(|()| {
            let peer = self.places.peer(server)?;
            let most = peer.payload_bytes.load(Ordering::Relaxed);
            if buffer.len() as u64 > most {
                return Err(Error::new(
                    ErrorKind::Budget,
                    format!(
                        "need {} bytes at once, the server moves at most {most}; divide the request",
                        buffer.len()
                    ),
                ));
            }
            Ok(peer)
        });
        match ready {
            Err(error) => answer(Err(error), buffer),
            Ok(peer) => {
                let moves = match (request.is_read(), request.is_write()) {
                    (true, _) => Moves::In,
                    (_, true) => Moves::Out,
                    _ => Moves::Nothing,
                };
                // On a UNIX socket the server can identify the process that offers its memory.
                let is_for_local = matches!(request, IoRequest::Join { memory: Some(_), .. });
                let is_wait = matches!(request, IoRequest::Join { .. } | IoRequest::Await { .. });
                drop(request);
                let request = Call::new(Kind::IoRequest, control, buffer, moves, Box::new(answer));
                call(&peer, Call { is_for_local, is_wait, ..request });
            }
        }
    }
}

impl Link for NetLink {
    type Buffer = Region;

    /// Splits a request that is too large for one message. The caller gets one answer.
    fn io(&self, server: ServerId, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let (target, grant, regions, is_write) = match &request {
            IoRequest::Read { target, grant, regions } => (*target, *grant, regions, false),
            IoRequest::Write { target, grant, regions } => (*target, *grant, regions, true),
            _ => return self.send(server, request, buffer, done),
        };
        let most_bytes = self.payload_bytes(server).unwrap_or(MOST_BYTES).min(MOST_BYTES);
        let bytes = buffer.len() as u64;
        if bytes <= most_bytes && regions.run_count() <= MAX_RUNS {
            return self.send(server, request, buffer, done);
        }
        let Ok(parts) = divide(&target, regions, bytes, most_bytes.min(PART_BYTES)) else {
            // The normal path reports a better error.
            return self.send(server, request, buffer, done);
        };
        let joined = Joined::new(parts.len(), buffer.clone(), done);
        let mut rest = buffer;
        for regions in parts {
            let bytes = regions.total_bytes() as usize;
            let part = rest.part(0, bytes);
            rest.advance(bytes);
            let request = if is_write {
                IoRequest::Write { target, grant, regions }
            } else {
                IoRequest::Read { target, grant, regions }
            };
            self.send(server, request, part, joined.part());
        }
    }

    fn is_local(&self, server: ServerId) -> bool {
        self.places.is_local(server)
    }

    fn is_retired(&self, server: ServerId) -> bool {
        self.places.is_retired(server)
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        let retires = matches!(request, ManagerRequest::Retire { .. });
        let reply = self.places.ask(request)?;
        if retires || self.places.has_news(&reply) {
            self.places.refresh()?;
        }
        Ok(reply)
    }
}

impl Drop for NetLink {
    fn drop(&mut self) {
        self.places.close();
    }
}
