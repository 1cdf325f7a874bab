//! A PostgreSQL server for tests, and a socket before it that can lose what passes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use outcore_server::store::Database;

/// A running server. It ends with this process, even if that is killed.
pub struct Server {
    _child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
    directory: String,
}

static DATABASES: AtomicUsize = AtomicUsize::new(0);

impl Server {
    /// Starts a server. Without PostgreSQL, prints why, and returns `None`.
    pub fn start() -> Option<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/postgres-server");
        let mut child =
            Command::new(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let mut output = BufReader::new(output);
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let Some((_, directory)) = line.trim().split_once("?host=") else {
            // The macros of the test harness keep it for failing tests.
            writeln!(std::io::stderr(), "left out: {}", line.trim()).expect("written");
            child.wait().expect("its end");
            return None;
        };
        Some(Self { _child: child, directory: directory.to_owned(), pipes: Mutex::new((input, output)) })
    }

    /// Sends a command, and returns the answer.
    pub fn tell(&self, command: &str) -> String {
        let mut pipes = self.pipes.lock().unwrap();
        writeln!(pipes.0, "{}", command.replace('\n', " ")).expect("a running server");
        let mut line = String::new();
        pipes.1.read_line(&mut line).expect("an answer");
        line.trim().to_owned()
    }

    /// Makes an empty database, and returns its name.
    pub fn database(&self) -> String {
        let name = format!("test{}", DATABASES.fetch_add(1, Ordering::Relaxed));
        assert_eq!(self.tell(&format!("create {name}")), "done");
        name
    }

    /// A database by its name.
    pub fn url(&self, database: &str) -> Database {
        url_of("outcore", database, &self.directory)
    }

    /// The same for another user.
    pub fn url_for(&self, user: &str, database: &str) -> Database {
        url_of(user, database, &self.directory)
    }

    /// Opens a session of a database, outside the store.
    pub fn session(&self, database: &str) -> postgres::Client {
        let settings = format!("host={} user=outcore dbname={database}", self.directory);
        postgres::Client::connect(&settings, postgres::NoTls).expect("a session")
    }

    /// Runs SQL in a database.
    pub fn sql(&self, database: &str, sql: &str) -> String {
        self.tell(&format!("psql {database} {sql}"))
    }
}

fn url_of(user: &str, database: &str, directory: &str) -> Database {
    format!("postgres://{user}@/{database}?host={directory}").parse().expect("a URL")
}

/// The fate of the next COMMIT.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// It passes.
    Nothing,
    /// The connection ends before it arrives.
    Commit,
    /// The connection ends before the answer arrives.
    Answer,
}

/// A socket before a server.
pub struct Gate {
    directory: tempfile::TempDir,
    next: Arc<Mutex<Loss>>,
    waits: Arc<AtomicUsize>,
}

impl Gate {
    pub fn before(server: &Server) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(".s.PGSQL.5432")).unwrap();
        let next = Arc::new(Mutex::new(Loss::Nothing));
        let waits = Arc::new(AtomicUsize::new(0));
        let (target, loss, count) =
            (format!("{}/.s.PGSQL.5432", server.directory), next.clone(), waits.clone());
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                // While the server is stopped, the client finds a connection that ends.
                if let Ok(server) = UnixStream::connect(&target) {
                    pass(client, server, loss.clone(), count.clone());
                }
            }
        });
        Self { directory, next, waits }
    }

    pub fn url(&self, database: &str) -> Database {
        url_of("outcore", database, &self.directory.path().display().to_string())
    }

    /// How often clients have waited for an answer.
    pub fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Says what the next COMMIT meets.
    pub fn lose(&self, loss: Loss) {
        *self.next.lock().unwrap() = loss;
    }
}

/// Counts the messages after which a client waits for an answer: queries ("Q") and the ends of others ("S").
#[derive(Default)]
struct Waits {
    /// The bytes of an incomplete message.
    begun: Vec<u8>,
    /// Whether the first message, which has no type, is over.
    is_started: bool,
}

impl Waits {
    fn count(&mut self, bytes: &[u8]) -> usize {
        self.begun.extend(bytes);
        let mut waits = 0;
        loop {
            let kind = usize::from(self.is_started);
            let Some(length) = self.begun.get(kind..kind + 4) else { return waits };
            let length = kind + u32::from_be_bytes(length.try_into().unwrap()) as usize;
            if self.begun.len() < length {
                return waits;
            }
            waits += usize::from(self.is_started && [b'Q', b'S'].contains(&self.begun[0]));
            self.begun.drain(..length);
            self.is_started = true;
        }
    }
}

/// Passes bytes both ways, until a COMMIT that must not pass.
fn pass(mut client: UnixStream, mut server: UnixStream, loss: Arc<Mutex<Loss>>, count: Arc<AtomicUsize>) {
    let (mut to_client, mut from_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    let is_silent = Arc::new(Mutex::new(false));
    let silent = is_silent.clone();
    thread::spawn(move || {
        let mut bytes = [0; 1 << 16];
        while let Ok(count @ 1..) = from_server.read(&mut bytes) {
            if *silent.lock().unwrap() || to_client.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = to_client.shutdown(std::net::Shutdown::Both);
        let _ = from_server.shutdown(std::net::Shutdown::Both);
    });
    thread::spawn(move || {
        let (mut bytes, mut waits) = ([0; 1 << 16], Waits::default());
        while let Ok(length @ 1..) = client.read(&mut bytes) {
            count.fetch_add(waits.count(&bytes[..length]), Ordering::Relaxed);
            if bytes[..length].windows(7).any(|found| found == b"COMMIT\0") {
                match std::mem::replace(&mut *loss.lock().unwrap(), Loss::Nothing) {
                    Loss::Nothing => {}
                    Loss::Commit => break,
                    Loss::Answer => *is_silent.lock().unwrap() = true,
                }
            }
            if server.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(std::net::Shutdown::Both);
        let _ = server.shutdown(std::net::Shutdown::Write);
    });
}
