//! Counters of the traffic on each address of a server.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Address;

/// Counters of one address.
#[derive(Debug)]
pub(crate) struct Channel {
    address: Address,
    accepted: AtomicU64,
    ended: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// The traffic on one address since the server started to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelCounts {
    /// The address.
    pub address: Address,
    /// Accepted connections, including refused ones.
    pub accepted: u64,
    /// Open connections.
    pub open: u64,
    /// Bytes of requests that were received in whole.
    pub received_bytes: u64,
    /// Bytes of answers that were sent in whole.
    pub sent_bytes: u64,
}

impl Channel {
    pub(crate) fn new(address: Address) -> Self {
        let zero = AtomicU64::default;
        Self { address, accepted: zero(), ended: zero(), received_bytes: zero(), sent_bytes: zero() }
    }

    pub(crate) fn began(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn received(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> ChannelCounts {
        // Read `ended` first, so that it never exceeds `accepted`.
        let ended = self.ended.load(Ordering::Acquire);
        let accepted = self.accepted.load(Ordering::Acquire);
        ChannelCounts {
            address: self.address.clone(),
            accepted,
            open: accepted.saturating_sub(ended),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
        }
    }
}
