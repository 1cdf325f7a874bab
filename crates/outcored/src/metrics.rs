//! The metrics of a daemon for Prometheus: requests, channels and memory, and those of its kind of server.

use std::sync::Arc;
use std::time::Instant;

use outcore_core::Result;
use outcore_net::{ChannelCounts, Watcher};

use crate::exposition::Page;
use crate::http::PageServer;
use crate::requests::Requests;

/// The daemon that the metrics describe.
pub(crate) struct Identity {
    pub(crate) role: &'static str,
    pub(crate) pool: u128,
    pub(crate) server: Option<u32>,
}

/// Serves the metrics of a daemon at an address. `more` adds those of its kind of server.
pub(crate) fn serve_metrics(
    address: &str,
    identity: Identity,
    requests: Arc<Requests>,
    watcher: Watcher,
    more: impl Fn(&mut Page) + Send + Sync + 'static,
) -> Result<PageServer> {
    let started = Instant::now();
    PageServer::start(address, move || {
        let mut page = Page::default();
        describe(&mut page, &identity, started);
        requests.describe(&mut page);
        describe_memory(&mut page, &watcher);
        describe_channels(&mut page, &watcher.channels());
        more(&mut page);
        page.into_text()
    })
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
