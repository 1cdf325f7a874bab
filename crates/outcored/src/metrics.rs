//! The metrics of a daemon for Prometheus: requests, channels, clients and memory, and those of its kind of server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use outcore_net::{ChannelCounts, Watcher};

use crate::exposition::Page;
use crate::requests::Requests;

/// The path of the metrics.
pub(crate) const METRICS_PATH: &str = "/metrics";

/// The answer to other paths.
pub(crate) const NO_PAGE: &str = "the metrics are at /metrics";

/// The daemon that the metrics describe.
pub(crate) struct Identity {
    pub(crate) role: &'static str,
    pub(crate) pool: u128,
    pub(crate) server: Option<u32>,
}

/// The metrics of a daemon.
pub(crate) struct Metrics {
    pub(crate) identity: Identity,
    pub(crate) started: Instant,
    pub(crate) requests: Arc<Requests>,
    pub(crate) watcher: Watcher,
}

impl Metrics {
    /// A page of the metrics that both kinds of daemons have.
    pub(crate) fn page(&self) -> Page {
        let mut page = Page::default();
        describe(&mut page, &self.identity, self.started);
        self.requests.describe(&mut page);
        describe_memory(&mut page, &self.watcher);
        describe_channels(&mut page, &self.watcher.channels());
        describe_clients(&mut page, self.watcher.clients());
        page
    }
}

/// Adds the lengths of a server's queues to a page.
pub(crate) fn describe_queues(page: &mut Page, queues: &[(&str, u64)]) {
    let name = "outcore_queue_length";
    page.metric(name, "gauge", "Entries of each queue; docs/operations.md says what they are.");
    for (queue, length) in queues {
        page.value(name, &[("queue", queue)], length);
    }
}
fn describe(page: &mut Page, identity: &Identity, started: Instant) {
    let name = "outcore_build_info";
    page.metric(name, "gauge", "Always 1; its labels say what runs.");
    let (pool, server) = (format!("{:032x}", identity.pool), identity.server.map(|id| id.to_string()));
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("role", identity.role),
        ("pool", &pool),
        ("server", server.as_deref().unwrap_or_default()),
    ];
    page.value(name, &labels, 1);
    let up_s = started.elapsed().as_secs_f64();
    page.single("outcore_uptime_seconds", "gauge", "Time since the daemon listens.", up_s);
}

fn describe_memory(page: &mut Page, watcher: &Watcher) {
    let (used, limit) = watcher.memory_bytes();
    page.single("outcore_memory_bytes", "gauge", "Bytes of payloads in memory.", used);
    page.single("outcore_memory_limit_bytes", "gauge", "Most bytes of payloads in memory.", limit);
    let help = "Requests that wait for memory.";
    page.single("outcore_requests_waiting", "gauge", help, watcher.waiting());
}

fn describe_channels(page: &mut Page, channels: &[ChannelCounts]) {
    let names: Vec<String> = channels.iter().map(|channel| channel.address.to_string()).collect();
    let each = || channels.iter().zip(&names);
    let name = "outcore_channel_connections";
    page.metric(name, "gauge", "Open connections of each address.");
    for (counts, address) in each() {
        page.value(name, &[("channel", address)], counts.open);
    }
    let name = "outcore_channel_connections_total";
    page.metric(name, "counter", "Connections that each address took in.");
    for (counts, address) in each() {
        page.value(name, &[("channel", address)], counts.accepted);
    }
    let name = "outcore_channel_bytes_total";
    page.metric(name, "counter", "Bytes of requests (in) and answers (out) over each address.");
    for (counts, address) in each() {
        page.value(name, &[("channel", address), ("direction", "in")], counts.received_bytes);
        page.value(name, &[("channel", address), ("direction", "out")], counts.sent_bytes);
    }
}

fn describe_clients(page: &mut Page, users: Vec<String>) {
    let mut clients: BTreeMap<String, u64> = BTreeMap::new();
    for user in users {
        *clients.entry(user).or_default() += 1;
    }
    let name = "outcore_clients";
    page.metric(
        name,
        "gauge",
        "Connected clients of each user. Mounts, processes and other daemons are clients.",
    );
    for (user, count) in clients {
        page.value(name, &[("user", &user)], count);
    }
}
