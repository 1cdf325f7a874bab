//! Pages over HTTP/1.1, by `GET` only. Each connection has a thread, so that a silent client delays no other. If
//! there are too many connections, the oldest one is closed.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outcore_core::{Error, ErrorKind, Result};

/// Bytes of a request's head, at most.
const MOST_BYTES: usize = 8 << 10;

/// Time limit for one client, from its connection to the end of its answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// The content type of short remarks.
const TEXT: &str = "text/plain; charset=utf-8";

/// Concurrent connections, at most.
const MOST_CONNECTIONS: usize = 16;

/// A request for a page.
pub(crate) struct Get<'a> {
    /// The path, without a query.
    pub(crate) path: &'a str,
    /// The value of the header `Authorization`.
    pub(crate) authorization: Option<&'a str>,
    /// The value of the header `Host`: the name by which the client knows this server.
    pub(crate) host: Option<&'a str>,
}

/// The answer to a request.
pub(crate) enum Got {
    /// A page, with its content type.
    Page(&'static str, String),
    /// There is no such page; a line says what there is.
    Missing(&'static str),
    /// The request needs a password.
    Locked,
}

/// Answers requests.
type Site = Arc<dyn Fn(&Get<'_>) -> Got + Send + Sync>;

/// A connection, and the thread that answers it.
type Served = (Arc<TcpStream>, JoinHandle<()>);

/// A server of pages, which runs until it is dropped.
#[derive(Debug)]
pub struct PageServer {
    address: SocketAddr,
    is_stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl PageServer {
    /// Listens at `HOST:PORT`, which the `setting` of the daemon names. `site` answers each request.
    pub(crate) fn start(
        setting: &str,
        address: &str,
        site: impl Fn(&Get<'_>) -> Got + Send + Sync + 'static,
    ) -> Result<Self> {
        let cannot = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::AddrInUse => ErrorKind::Busy,
                _ => ErrorKind::Invalid,
            };
            Error::new(
                kind,
                format!(
                    "cannot serve the {setting} at {address}: {error}; need {setting} = \"HOST:PORT\" of this machine"
                ),
            )
        };
        let listener = TcpListener::bind(address).map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stops = is_stopping.clone();
        let site: Site = Arc::new(site);
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
                match stream.and_then(|stream| begin(stream, site.clone())) {
                    Ok(begun) => served.push_back(begun),
                    // No descriptors or threads are available; some become free later.
                    Err(_) => thread::sleep(Duration::from_millis(200)),
                }
            }
            served.into_iter().for_each(end);
        };
        let thread = thread::Builder::new().name("outcore-pages".into()).spawn(serve).map_err(cannot)?;
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
fn begin(stream: TcpStream, site: Site) -> std::io::Result<Served> {
    let stream = Arc::new(stream);
    let answered = stream.clone();
    let answer = move || drop(answer(&answered, &site));
    let thread = thread::Builder::new().name("outcore-page".into()).spawn(answer)?;
    Ok((stream, thread))
}

/// Closes a connection, and waits for its thread.
fn end((stream, thread): Served) {
    let _ = stream.shutdown(Shutdown::Both);
    let _ = thread.join();
}

fn answer(mut stream: &TcpStream, site: &Site) -> std::io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let (status, content_type, body) = match read_head(stream, until)? {
        Some(head) => respond(&head, site),
        None => ("431 Request Header Fields Too Large", TEXT, String::new()),
    };
    let more = match status.split(' ').next() {
        Some("405") => "Allow: GET\r\n",
        Some("401") => "WWW-Authenticate: Basic realm=\"outcore\"\r\n",
        _ => "",
    };
    let head = format!(
        "HTTP/1.1 {status}\r\n{more}Content-Type: {content_type}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         Connection: close\r\n\r\n",
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

fn respond(head: &str, site: &Site) -> (&'static str, &'static str, String) {
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let is_http = version.is_some_and(|version| version.starts_with("HTTP/1.")) && words.next().is_none();
    match (is_http, method, target) {
        (false, ..) => ("400 Bad Request", TEXT, String::new()),
        (true, Some("GET"), Some(target)) => {
            let path = target.split('?').next().unwrap_or_default();
            let header = |wanted| {
                head.lines().skip(1).find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case(wanted).then(|| value.trim())
                })
            };
            match site(&Get { path, authorization: header("authorization"), host: header("host") }) {
                Got::Page(content_type, page) => ("200 OK", content_type, page),
                Got::Missing(place) => ("404 Not Found", TEXT, format!("{place}\n")),
                Got::Locked => ("401 Unauthorized", TEXT, "need the key as the password\n".into()),
            }
        }
        _ => ("405 Method Not Allowed", TEXT, String::new()),
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
