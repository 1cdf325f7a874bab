//! The page of a pool for people: a template filled from the recent past of its daemons.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use askama::Template;

use crate::charts::{Chart, Line, Unit, draw};
use crate::samples::{Labels, Sample, quantiles};
use crate::watch::{INTERVAL, Moment};

/// Rates are those since this many samples before the last one.
const WINDOW: usize = 5;

/// Requests that wait for other processes, or for a lock: their time is no latency of the server.
const WAITS: [&str; 7] = ["join", "await", "scrub", "set_lock", "metrics", "spans", "find"];

/// Shares of the requests that are at most as slow as the shown latencies.
const SHARES: [f64; 3] = [0.5, 0.95, 0.99];

/// Stands for a value that is unknown.
const UNKNOWN: &str = "–";

#[derive(Template)]
#[template(path = "pool.html")]
struct PoolPage {
    pool: String,
    version: &'static str,
    window: String,
    warnings: Vec<String>,
    daemons: Vec<DaemonRow>,
    charts: Vec<Chart>,
    collectives: Vec<CollectiveRow>,
    channels: Vec<ChannelRow>,
    clients: Vec<ClientRow>,
}

#[derive(Default)]
struct DaemonRow {
    name: String,
    state: String,
    is_well: bool,
    up: String,
    read: String,
    written: String,
    requests: String,
    latency: [String; SHARES.len()],
    in_work: String,
    queues: String,
    free: String,
    errors: String,
    damaged: String,
    checks: String,
    clients: String,
}

struct CollectiveRow {
    file: String,
    verb: String,
    joined: u64,
    ranks: u64,
    servers: usize,
    percent: u64,
}

struct ChannelRow {
    address: String,
    daemon: String,
    connections: String,
    received: String,
    sent: String,
}

struct ClientRow {
    user: String,
    count: u64,
}

/// Two samples of one run of a daemon, and the time between them.
#[derive(Clone, Copy)]
struct Pair<'a> {
    before: &'a Sample,
    after: &'a Sample,
    seconds: f64,
}

impl<'a> Pair<'a> {
    /// `None` if the daemon has restarted meanwhile.
    fn of(before: &'a Sample, after: &'a Sample, seconds: f64) -> Option<Self> {
        let up = |sample: &Sample| sample.value("outcore_uptime_seconds");
        (seconds > 0.0 && up(before)? < up(after)?).then_some(Self { before, after, seconds })
    }

    /// Increase of a counter per second.
    fn rate(&self, name: &str, is_wanted: impl Fn(&Labels) -> bool) -> f64 {
        (self.after.sum(name, &is_wanted) - self.before.sum(name, &is_wanted)) / self.seconds
    }

    fn moved(&self, direction: &str) -> f64 {
        self.rate("outcore_payload_bytes_total", |labels| is(labels, "direction", direction))
    }
}

fn is(labels: &Labels, name: &str, value: &str) -> bool {
    labels.get(name).is_some_and(|found| found == value)
}

/// Generates the page from some moments, the oldest first.
pub(crate) fn pool_page(moments: &[Arc<Moment>]) -> String {
    let Some(last) = moments.last() else {
        return "<!doctype html><meta http-equiv=\"refresh\" content=\"1\"><p>The manager starts.</p>".into();
    };
    let before = &moments[moments.len().saturating_sub(1 + WINDOW)];
    let seconds = (last.at - before.at).as_secs_f64();
    let manager = Pair::of(&before.manager, &last.manager, seconds);
    let mut daemons = vec![manager_row(last, manager)];
    let mut warnings = Vec::new();
    for (id, sample) in &last.servers {
        let name = format!("I/O server {id}");
        let earlier = before.servers.get(id).and_then(|sample| sample.as_ref().ok());
        daemons.push(match sample {
            Err(why) => {
                let places = last.addresses.get(id).map(|list| list.join(" ")).unwrap_or_default();
                warnings.push(format!("{name} at {places}: {why}"));
                DaemonRow { name, state: "does not answer".into(), ..DaemonRow::default() }
            }
            Ok(sample) => {
                warnings.extend(warnings_of(&name, sample));
                let pair = earlier.and_then(|earlier| Pair::of(earlier, sample, seconds));
                server_row(name, sample, pair)
            }
        });
    }
    if !last.retired.is_empty() {
        let list: Vec<String> = last.retired.iter().map(ToString::to_string).collect();
        warnings.push(format!("retired servers: {}", list.join(", ")));
    }
    let page = PoolPage {
        pool: last.manager.label("outcore_build_info", "pool"),
        version: env!("CARGO_PKG_VERSION"),
        window: time(INTERVAL.as_secs_f64() * WINDOW as f64),
        warnings,
        daemons,
        charts: charts(moments),
        collectives: collectives(last),
        channels: channels(last, before, seconds),
        clients: clients(&last.manager),
    };
    page.render().unwrap_or_else(|error| format!("<!doctype html><p>The page cannot be drawn: {error}</p>"))
}

fn warnings_of(name: &str, sample: &Sample) -> Vec<String> {
    let mut found = Vec::new();
    let value = |metric| sample.value(metric).unwrap_or(0.0);
    if value("outcore_damaged_blocks") > 0.0 {
        found.push(format!(
            "{name} has {}: see outcore pool scrub",
            counted(value("outcore_damaged_blocks"), "damaged block")
        ));
    }
    if value("outcore_lost_files") > 0.0 {
        found.push(format!(
            "the disk of {name} may have lost writes of {}",
            counted(value("outcore_lost_files"), "file")
        ));
    }
    if sample.value("outcore_writable") == Some(0.0) {
        found.push(format!("{name} takes no writes: its disk is full, or read-only"));
    }
    found
}

fn manager_row(last: &Moment, pair: Option<Pair<'_>>) -> DaemonRow {
    let row = row_of("manager".into(), &last.manager, pair);
    let silent = last.servers.values().filter(|sample| sample.is_err()).count();
    if last.servers.is_empty() {
        return DaemonRow { state: "has no servers".into(), is_well: false, ..row };
    }
    if silent > 0 {
        return DaemonRow {
            state: format!("misses {silent} of {}", last.servers.len()),
            is_well: false,
            ..row
        };
    }
    row
}

fn server_row(name: String, sample: &Sample, pair: Option<Pair<'_>>) -> DaemonRow {
    let text = |metric| sample.value(metric).map_or(UNKNOWN.into(), |value| format!("{value}"));
    let scrubs = counted(sample.value("outcore_scrubs_total").unwrap_or(0.0), "scrub");
    let scrubbed = bytes(sample.value("outcore_scrubbed_bytes_total").unwrap_or(0.0)).replace(' ', "\u{a0}");
    let repaired = text("outcore_repaired_blocks_total");
    let warnings = warnings_of(&name, sample);
    DaemonRow {
        read: pair.map_or(UNKNOWN.into(), |pair| rate_of_bytes(pair.moved("out"))),
        written: pair.map_or(UNKNOWN.into(), |pair| rate_of_bytes(pair.moved("in"))),
        free: sample.value("outcore_disk_free_bytes").map_or(UNKNOWN.into(), bytes),
        damaged: text("outcore_damaged_blocks"),
        // This cell wraps, but not within a value.
        checks: format!("{scrubs}, {scrubbed}; {repaired}\u{a0}repaired"),
        is_well: warnings.is_empty(),
        state: if warnings.is_empty() { "well" } else { "see above" }.into(),
        ..row_of(name, sample, pair)
    }
}

/// The cells that all daemons have.
fn row_of(name: String, sample: &Sample, pair: Option<Pair<'_>>) -> DaemonRow {
    let whole = |value: f64| format!("{value:.0}");
    let failed = sample.sum("outcore_requests_total", is_fault);
    let queues: Vec<String> = sample
        .each("outcore_queue_length")
        .filter(|(_, length)| *length > 0.0)
        .map(|(labels, length)| format!("{} {length}", labels.get("queue").map_or("", String::as_str)))
        .collect();
    let latency = pair.and_then(|pair| {
        quantiles(&[(pair.before, pair.after)], "outcore_request_seconds", is_quick, SHARES)
    });
    DaemonRow {
        name,
        state: "well".into(),
        is_well: true,
        up: sample.value("outcore_uptime_seconds").map_or(UNKNOWN.into(), time),
        requests: pair
            .map_or(UNKNOWN.into(), |pair| format!("{:.1}/s", pair.rate("outcore_requests_total", |_| true))),
        latency: latency.map_or([(); SHARES.len()].map(|()| UNKNOWN.into()), |all| all.map(time)),
        in_work: sample.value("outcore_requests_in_work").map_or(UNKNOWN.into(), whole),
        queues: if queues.is_empty() { "empty".into() } else { queues.join(", ") },
        errors: whole(failed),
        clients: whole(sample.sum("outcore_clients", |_| true)),
        ..DaemonRow::default()
    }
}

/// Whether requests failed because something is wrong with the server. Others fail in sound pools, too: a program that
/// opens a file to write it asks first whether that exists.
fn is_fault(labels: &Labels) -> bool {
    ["io", "corrupt", "disk_full", "lost"].iter().any(|fault| is(labels, "outcome", fault))
}

/// Whether a request waits for nothing but the server.
fn is_quick(labels: &Labels) -> bool {
    labels.get("kind").is_none_or(|kind| !WAITS.contains(&kind.as_str()))
}

fn collectives(last: &Moment) -> Vec<CollectiveRow> {
    let mut found: BTreeMap<String, (CollectiveRow, f64)> = BTreeMap::new();
    for sample in last.servers.values().flatten() {
        for (labels, progress) in sample.each("outcore_collective_progress") {
            let text = |name: &str| labels.get(name).cloned().unwrap_or_default();
            let number = |name: &str| text(name).parse().unwrap_or(0);
            let handle = number("handle");
            let (row, sum) = found.entry(text("collective")).or_insert_with(|| {
                let file = last.paths.get(&handle).cloned().unwrap_or_else(|| format!("file {handle}"));
                let (verb, ranks) = (text("verb"), number("ranks"));
                (CollectiveRow { file, verb, joined: u64::MAX, ranks, servers: 0, percent: 0 }, 0.0)
            });
            row.joined = row.joined.min(number("joined"));
            row.servers += 1;
            *sum += progress;
        }
    }
    let rows = found.into_values().map(|(row, sum)| {
        let percent = (100.0 * sum / row.servers as f64) as u64;
        CollectiveRow { percent, ..row }
    });
    rows.collect()
}

fn channels(last: &Moment, before: &Moment, seconds: f64) -> Vec<ChannelRow> {
    let mut rows = Vec::new();
    let mut add = |daemon: String, sample: &Sample, earlier: Option<&Sample>| {
        let pair = earlier.and_then(|earlier| Pair::of(earlier, sample, seconds));
        for (labels, open) in sample.each("outcore_channel_connections") {
            let address = labels.get("channel").cloned().unwrap_or_default();
            let rate = |direction: &str| {
                let is_it =
                    |labels: &Labels| is(labels, "channel", &address) && is(labels, "direction", direction);
                pair.map_or(UNKNOWN.into(), |pair| {
                    rate_of_bytes(pair.rate("outcore_channel_bytes_total", is_it))
                })
            };
            let (received, sent) = (rate("in"), rate("out"));
            rows.push(ChannelRow {
                address,
                daemon: daemon.clone(),
                connections: format!("{open}"),
                received,
                sent,
            });
        }
    };
    add("manager".into(), &last.manager, Some(&before.manager));
    for (id, sample) in &last.servers {
        if let Ok(sample) = sample {
            let earlier = before.servers.get(id).and_then(|sample| sample.as_ref().ok());
            add(format!("I/O server {id}"), sample, earlier);
        }
    }
    rows
}

fn clients(manager: &Sample) -> Vec<ClientRow> {
    let row = |(labels, count): (&Labels, f64)| ClientRow {
        user: labels.get("user").cloned().unwrap_or_default(),
        count: count as u64,
    };
    manager.each("outcore_clients").map(row).collect()
}

/// Charts of all I/O servers together.
fn charts(moments: &[Arc<Moment>]) -> Vec<Chart> {
    let Some(last) = moments.last() else { return vec![] };
    let mut lines: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
    for two in moments.windows(2) {
        let seconds = (two[1].at - two[0].at).as_secs_f64();
        let pairs: Vec<Pair<'_>> = two[1]
            .servers
            .iter()
            .filter_map(|(id, after)| {
                let (before, after) = (two[0].servers.get(id)?.as_ref().ok()?, after.as_ref().ok()?);
                Pair::of(before, after, seconds)
            })
            .collect();
        let at = -(last.at - two[1].at).as_secs_f64();
        let mut add = |name, value| lines.entry(name).or_default().push((at, value));
        add("read", pairs.iter().map(|pair| pair.moved("out")).sum());
        add("written", pairs.iter().map(|pair| pair.moved("in")).sum());
        add("requests", pairs.iter().map(|pair| pair.rate("outcore_requests_total", is_quick)).sum());
        let samples: Vec<_> = pairs.iter().map(|pair| (pair.before, pair.after)).collect();
        if let Some(found) = quantiles(&samples, "outcore_request_seconds", is_quick, SHARES) {
            for (name, seconds) in ["p50", "p95", "p99"].into_iter().zip(found) {
                add(name, seconds);
            }
        }
    }
    let mut of =
        |name: &'static str, colour| Line { name, colour, points: lines.remove(name).unwrap_or_default() };
    vec![
        draw(
            "Bytes that I/O servers move for clients",
            vec![of("read", (0x25, 0x88, 0xc8)), of("written", (0xe6, 0x9f, 0x00))],
            |value| unit_of_bytes(value, RATES),
        ),
        draw(
            "Latency of requests to I/O servers",
            vec![of("p50", (0x00, 0x9e, 0x73)), of("p95", (0xcc, 0x79, 0xa7)), of("p99", (0xd5, 0x5e, 0x00))],
            unit_of_time,
        ),
        draw("Requests to I/O servers per second", vec![of("requests", (0x44, 0x44, 0x44))], |_| (1.0, "")),
    ]
}

/// Units of bytes and of bytes per second: powers of 1024.
const BYTES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const RATES: [&str; 6] = ["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s", "PiB/s"];

/// The largest unit that is at most `count`.
fn unit_of_bytes(count: f64, names: [&'static str; 6]) -> Unit {
    let size = |power: usize| 1024_f64.powi(power as i32);
    let power = (1..names.len()).rev().find(|power| count >= size(*power)).unwrap_or(0);
    (size(power), names[power])
}

fn unit_of_time(seconds: f64) -> Unit {
    match seconds {
        s if s < 1e-3 => (1e-6, "µs"),
        s if s < 1.0 => (1e-3, "ms"),
        _ => (1.0, "s"),
    }
}

fn bytes(count: f64) -> String {
    let (size, unit) = unit_of_bytes(count, BYTES);
    let value = count / size;
    if size == 1.0 || value >= 100.0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// A number of things, with their name in the singular.
fn counted(count: f64, name: &str) -> String {
    format!("{count} {name}{}", if count == 1.0 { "" } else { "s" })
}

fn rate_of_bytes(per_second: f64) -> String {
    format!("{}/s", bytes(per_second))
}

/// A time in a unit that suits it.
fn time(seconds: f64) -> String {
    let duration = Duration::from_secs_f64(seconds.max(0.0));
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.1} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{} min", duration.as_secs() / 60),
        s if s < 172_800.0 => format!("{} h", duration.as_secs() / 3600),
        _ => format!("{} days", duration.as_secs() / 86_400),
    }
}
