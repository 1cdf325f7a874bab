//! One page over HTTP/1.1: `GET /metrics`, and nothing else. Each connection has a thread, so that a silent client
//! delays no other. If there are too many connections, the oldest one is closed.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outcore_core::{Error, ErrorKind, Result};

use crate::exposition::CONTENT_TYPE;

/// Bytes of a request's head, at most.
const MOST_BYTES: usize = 8 << 10;

/// Time limit for one client, from its connection to the end of its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Concurrent connections, at most.
const MOST_CONNECTIONS: usize = 16;

/// Generates the page.
type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// A connection, and the thread that answers it.
type Served = (Arc<TcpStream>, JoinHandle<()>);

/// A server of the page, which runs until it is dropped.
#[derive(Debug)]
pub struct PageServer {
    address: SocketAddr,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PageServer {
    /// Listens at `HOST:PORT`. `page` generates the page for each request.
    pub(crate) fn start(address: &str, page: impl Fn() -> String + Send + Sync + 'static) -> Result<Self> {
        let cannot = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::AddrInUse => ErrorKind::Busy,
                _ => ErrorKind::Invalid,
            };
            Error::new(
                kind,
                format!(
                    "cannot serve metrics at {address}: {error}; need metrics = \"HOST:PORT\" of this machine"
                ),
            )
        };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stops = is_stopping.clone();
        let page: Page = Arc::new(page);
        let serve = move || {
            let mut served = VecDeque::new();
            for stream in listener.incoming() {
                if stops.load(Ordering::SeqCst) {
                    break;
                }
                served.retain(|(_, thread): &Served| !thread.is_finished());
                if served.len() >= MOST_CONNECTIONS
                    && let Some(oldest) = served.pop_front()
                {
                    end(oldest);
                }
                match stream.and_then(|stream| begin(stream, page.clone())) {
                    Ok(begun) => served.push_back(begun),
                    // No descriptors or threads are available; some become free later.
                    Err(_) => thread::sleep(Duration::from_millis(200)),
                }
            }
            served.into_iter().for_each(end);
        };
        let thread = thread::Builder::new().name("outcore-metrics".into()).spawn(serve).map_err(cannot)?;
        Ok(Self { address, is_stopping, thread: Some(thread) })
    }

    /// The address at which it listens, with the actual port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.is_stopping.store(true, Ordering::SeqCst);
        // Wakes the thread, which waits for a connection.
        let woken = TcpStream::connect_timeout(&self.address, PATIENCE);
        if let (Ok(_), Some(thread)) = (woken, self.thread.take()) {
            let _ = thread.join();
        }
    }
}

/// Answers a connection in a separate thread. A client that disconnects early gets no answer.
fn begin(stream: TcpStream, page: Page) -> std::io::Result<Served> {
    let stream = Arc::new(stream);
    let answered = stream.clone();
    let answer = move || drop(answer(&answered, &page));
    let thread = thread::Builder::new().name("outcore-page".into()).spawn(answer)?;
    Ok((stream, thread))
}

/// Closes a connection, and waits for its thread.
fn end((stream, thread): Served) {
    let _ = stream.shutdown(Shutdown::Both);
    let _ = thread.join();
}

fn answer(mut stream: &TcpStream, page: &Page) -> std::io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let (status, body) = match read_head(stream, until)? {
        Some(head) => respond(&head, page),
        None => ("431 Request Header Fields Too Large", String::new()),
    };
    let allow = if status.starts_with("405") { "Allow: GET\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\n{allow}Content-Type: {CONTENT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all((head + &body).as_bytes())?;
    stream.shutdown(Shutdown::Write)?;
    // Closing with unread bytes would reset the connection, and the client might lose the answer.
    let mut rest = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left(until)?))?;
        if stream.read(&mut rest)? == 0 {
            return Ok(());
        }
    }
}

fn respond(head: &str, page: &Page) -> (&'static str, String) {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let is_http = version.is_some_and(|version| version.starts_with("HTTP/1.")) && words.next().is_none();
    match (is_http, method, target) {
        (false, ..) => ("400 Bad Request", String::new()),
        (true, Some("GET"), Some(target)) if target.split('?').next() == Some("/metrics") => {
            ("200 OK", page())
        }
        (true, Some("GET"), _) => ("404 Not Found", "the metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", String::new()),
    }
}

/// The head of a request; `None` if it is too long.
fn read_head(mut stream: &TcpStream, until: Instant) -> std::io::Result<Option<String>> {
    let mut head = Vec::new();
    let mut some = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if head.len() >= MOST_BYTES {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut some)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            bytes => head.extend_from_slice(&some[..bytes]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&head).into_owned()))
}

/// The remaining time, or an error if there is none.
fn left(until: Instant) -> std::io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}
