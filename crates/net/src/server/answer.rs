//! A pending answer: every request gets one, whatever happens.

use std::sync::Arc;

use outcore_core::wire::{Kind, encode};
use outcore_core::{Error, ErrorKind, IoReply, ManagerReply};
use outcore_memory::Region;

use crate::server::admission::Lease;
use crate::server::connection::{Connection, Outgoing};
use crate::server::session::Session;

/// Answers a request exactly once. If it is dropped unanswered, it sends an error.
pub(crate) struct Due {
    pub(crate) connection: Arc<Connection>,
    pub(crate) session: Arc<Session<Arc<Connection>>>,
    /// Whether the request is for an I/O server, not the manager.
    pub(crate) is_io: bool,
    pub(crate) request: u64,
    /// Whether the session has recorded the request as running.
    pub(crate) is_remembered: bool,
    pub(crate) leases: Vec<Lease>,
    /// Whether an answer is required. It is not before the whole request has arrived, since the client then
    /// retries.
    pub(crate) is_owed: bool,
}

impl Due {
    pub(crate) fn io(self, reply: &IoReply, payload: Region) {
        self.send(encode(reply), payload);
    }

    pub(crate) fn manager(self, reply: &ManagerReply) {
        self.send(encode(reply), Region::empty());
    }

    pub(crate) fn failed(self, error: Error) {
        let control = self.failure(error);
        self.send(control, Region::empty());
    }

    /// Sends an earlier answer again.
    pub(crate) fn again(mut self, control: Arc<Vec<u8>>) {
        self.give(control, Region::empty());
    }

    fn failure(&self, error: Error) -> Vec<u8> {
        if self.is_io { encode(&IoReply::Failed(error)) } else { encode(&ManagerReply::Failed(error)) }
    }

    fn send(mut self, control: Vec<u8>, payload: Region) {
        self.give(Arc::new(control), payload);
    }

    fn give(&mut self, control: Arc<Vec<u8>>, payload: Region) {
        self.is_owed = false;
        let kind = if self.is_io { Kind::IoReply } else { Kind::ManagerReply };
        if self.is_remembered {
            for other in self.session.finish(self.request, control.clone()) {
                let (control, payload) = (control.clone(), Region::empty());
                other.answer(Outgoing { kind, request: self.request, control, payload, leases: vec![] });
            }
        }
        let leases = std::mem::take(&mut self.leases);
        self.connection.answer(Outgoing { kind, request: self.request, control, payload, leases });
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if self.is_owed {
            let why = "the server dropped the request; look at its log";
            let control = self.failure(Error::new(ErrorKind::Io, why));
            self.give(Arc::new(control), Region::empty());
        }
    }
}
