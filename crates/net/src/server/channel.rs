//! What goes over one of a server's addresses, counted.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Address;

/// Counts of one address.
#[derive(Debug)]
pub(crate) struct Channel {
    address: Address,
    accepted: AtomicU64,
    ended: AtomicU64,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// What went over one of a server's addresses since it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelCounts {
    /// Where it listens.
    pub address: Address,
    /// Connections that were taken in, refused ones too.
    pub accepted: u64,
    /// Connections that are open.
    pub open: u64,
    /// Bytes of requests that came in whole.
    pub received_bytes: u64,
    /// Bytes of answers that went out whole.
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
        // Ended before accepted, so that no more end than began.
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
