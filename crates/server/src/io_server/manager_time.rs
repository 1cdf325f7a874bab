//! Queries for the manager's time, on a thread of their own: the manager may be unreachable for long.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::config::ManagerTime;

/// Longest wait of requests for an answer of the manager. After that, the server decides by the time that it knows.
const PATIENCE: Duration = Duration::from_secs(5);

/// The query in progress, of which there is at most one.
pub(super) struct Queries {
    thread: Sender<()>,
    /// When the query began that has no answer yet.
    asked: Option<Instant>,
    /// Whether requests wait for its answer.
    is_awaited: bool,
}

impl Queries {
    /// Starts the thread, and asks for the time: the server then knows it even if the manager leaves before the first
    /// request. The thread passes each answer to `answered`, and ends when that returns false or this value is dropped.
    pub fn start(
        manager_time: ManagerTime,
        answered: impl Fn(Option<u64>) -> bool + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel::<()>();
        let work = move || {
            for () in receiver {
                if !answered(manager_time()) {
                    return;
                }
            }
        };
        thread::Builder::new().name("outcore-io-time".into()).spawn(work)?;
        let mut queries = Self { thread: sender, asked: None, is_awaited: false };
        queries.begin();
        Ok(queries)
    }

    fn begin(&mut self) {
        if self.asked.is_none() {
            self.asked = Some(Instant::now());
            // The thread lives as long as this value, or the server stops.
            let _ = self.thread.send(());
        }
    }

    /// Begins a query, or waits for the answer to the one in progress.
    pub fn ask(&mut self) {
        self.is_awaited = true;
        self.begin();
    }

    /// Records that the manager has answered, or cannot be reached.
    pub fn answered(&mut self) {
        (self.asked, self.is_awaited) = (None, false);
    }

    /// The rest of the time for which requests wait.
    pub fn left(&self) -> Option<Duration> {
        self.asked.filter(|_| self.is_awaited).map(|asked| PATIENCE.saturating_sub(asked.elapsed()))
    }

    /// Whether requests have waited too long. They then stop waiting, but the query continues.
    pub fn is_over(&mut self) -> bool {
        let is_over = self.left().is_some_and(|left| left.is_zero());
        self.is_awaited &= !is_over;
        is_over
    }
}
