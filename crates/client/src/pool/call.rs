//! Concurrent calls to several servers, which complete with the last answer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use outcore_core::{
    Answer, Error, ErrorKind, Gather, Handle, Incarnation, IoReply, IoRequest, Link, OnAnswer, Result,
    ServerId, Unsynced,
};

use crate::pool::runs::Runs;

/// A message to one I/O server.
pub(crate) struct Call<B> {
    pub(crate) server: ServerId,
    /// The path of the file, for error messages.
    pub(crate) path: Arc<str>,
    pub(crate) request: IoRequest,
    pub(crate) buffer: B,
    /// The server's entry among the file's servers.
    pub(crate) entry: u64,
    /// The generation of the data file that the request names.
    pub(crate) generation: u64,
}

impl<B> Call<B> {
    /// A call that concerns no file that a user has open.
    pub(crate) fn new(server: ServerId, request: IoRequest, buffer: B) -> Self {
        Self { server, path: "".into(), request, buffer, entry: 0, generation: 0 }
    }
}

/// The outcome of some calls: the replies in the order of the calls, or the first error.
pub(crate) struct Outcome {
    pub(crate) replies: Result<Vec<IoReply>>,
    pub(crate) started_ns: u64,
    pub(crate) finished_ns: u64,
}

type Then = Box<dyn FnOnce(Outcome) + Send>;

struct Pending {
    replies: Vec<Option<IoReply>>,
    left: usize,
    error: Option<Error>,
    /// The file and the servers for which a sync found that writes may be lost. This is reported only once,
    /// so it replaces errors that may be temporary.
    lost: Option<(Arc<str>, Vec<ServerId>)>,
    started_ns: u64,
    finished_ns: u64,
    then: Option<Then>,
}

impl Pending {
    fn answered<B>(
        pending: &Mutex<Self>,
        number: usize,
        answer: Answer<B>,
        lost: Option<(Arc<str>, ServerId)>,
    ) {
        let mut state = pending.lock().unwrap_or_else(PoisonError::into_inner);
        state.left -= 1;
        state.started_ns = state.started_ns.min(answer.started_ns);
        state.finished_ns = state.finished_ns.max(answer.finished_ns);
        if let Some((path, server)) = lost {
            state.lost.get_or_insert((path, vec![])).1.push(server);
        }
        match answer.reply {
            IoReply::Failed(error) => drop(state.error.get_or_insert(error)),
            reply => state.replies[number] = Some(reply),
        }
        if state.left > 0 {
            return;
        }
        let loss = state.lost.take().map(|(path, servers)| loss(&path, &servers));
        let replies = match loss.or(state.error.take()) {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut state.replies).into_iter().flatten().collect()),
        };
        let (started_ns, finished_ns) = (state.started_ns, state.finished_ns.max(state.started_ns));
        if let Some(then) = state.then.take() {
            drop(state);
            then(Outcome { replies, started_ns, finished_ns });
        }
    }
}

/// Sends requests to the servers. It counts them, and records changes that are not durable yet.
pub(crate) struct Servers<L: ?Sized> {
    link: Arc<L>,
    messages: AtomicU64,
    unsynced: Arc<Mutex<Unsynced>>,
    runs: Arc<Runs>,
}

impl<L: Link + ?Sized> Servers<L>
where
    L::Buffer: Gather,
{
    pub(crate) fn new(link: Arc<L>) -> Self {
        Self { link, messages: AtomicU64::new(0), unsynced: Arc::default(), runs: Arc::default() }
    }

    pub(crate) fn link(&self) -> &L {
        &self.link
    }

    /// The runs of the servers.
    pub(crate) fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Messages sent to I/O servers so far.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Number of reports that writes to a file may be lost.
    pub(crate) fn losses(&self, handle: Handle) -> u64 {
        lock(&self.unsynced).losses(handle)
    }

    /// Sends one request about a file, and records the run that answers. `changes` is the file that needs a sync after
    /// the request, which must be a request for the end of a collective.
    pub(crate) fn send(
        &self,
        server: ServerId,
        (path, changes): (&str, Option<Handle>),
        request: IoRequest,
        buffer: L::Buffer,
        done: OnAnswer<L::Buffer>,
    ) {
        if self.link.is_retired(server) {
            return done(unsent(buffer, gone(path, server)));
        }
        self.messages.fetch_add(1, Ordering::Relaxed);
        let (runs, unsynced) = (self.runs.clone(), self.unsynced.clone());
        let sent = changes.map(|handle| lock(&unsynced).ends_collective(server, handle));
        let answered = move |answer: Answer<L::Buffer>| {
            runs.answered(server, answer.incarnation);
            if let Some(sent) = sent {
                // No change but a sync reports losses.
                let _ = lock(&unsynced).answered(sent, answer.incarnation, &answer.reply);
            }
            done(answer);
        };
        self.link.io(server, request, buffer, Box::new(answered));
    }

    /// Sends all calls. Calls `then` once, after the last answer; `then` must not block.
    pub(crate) fn call_all(&self, calls: Vec<Call<L::Buffer>>, then: Then) {
        if calls.is_empty() {
            return then(Outcome { replies: Ok(vec![]), started_ns: 0, finished_ns: 0 });
        }
        let pending = Arc::new(Mutex::new(Pending {
            replies: calls.iter().map(|_| None).collect(),
            left: calls.len(),
            error: None,
            lost: None,
            started_ns: u64::MAX,
            finished_ns: 0,
            then: Some(then),
        }));
        for (number, Call { server, path, request, buffer, .. }) in calls.into_iter().enumerate() {
            if self.link.is_retired(server) {
                let answer = unsent(buffer, gone(&path, server));
                Pending::answered(&pending, number, answer, None);
                continue;
            }
            self.messages.fetch_add(1, Ordering::Relaxed);
            let (pending, unsynced, runs) = (pending.clone(), self.unsynced.clone(), self.runs.clone());
            let sent = lock(&unsynced).sent(server, &request);
            let done = Box::new(move |answer: Answer<L::Buffer>| {
                let Answer { reply, buffer, incarnation, started_ns, finished_ns } = answer;
                // The caller may reuse the memory as soon as it learns that the work is done.
                drop(buffer);
                runs.answered(server, incarnation);
                let is_lost = lock(&unsynced).answered(sent, incarnation, &reply);
                let answer = Answer { reply, buffer: (), incarnation, started_ns, finished_ns };
                Pending::answered(&pending, number, answer, is_lost.then_some((path, server)));
            });
            self.link.io(server, request, buffer, done);
        }
    }

    /// Sends all calls and waits for the answers.
    pub(crate) fn wait_all(&self, calls: Vec<Call<L::Buffer>>) -> Result<Vec<IoReply>> {
        let (sender, receiver) = mpsc::channel();
        self.call_all(calls, Box::new(move |outcome| drop(sender.send(outcome.replies))));
        receiver.recv().unwrap_or_else(|_| Err(dropped()))
    }

    /// Sends all requests, and waits for the answer of each server. They must not make changes that need a
    /// sync.
    pub(crate) fn wait_each(
        &self,
        requests: Vec<(ServerId, IoRequest)>,
        none: &L::Buffer,
    ) -> Vec<Result<IoReply>> {
        let (sender, receiver) = mpsc::channel();
        let mut replies: Vec<_> = requests.iter().map(|_| Err(dropped())).collect();
        for (number, (server, request)) in requests.into_iter().enumerate() {
            let sender = sender.clone();
            let done = Box::new(move |answer: Answer<L::Buffer>| drop(sender.send((number, answer.reply))));
            self.send(server, ("", None), request, none.clone(), done);
        }
        drop(sender);
        for (number, reply) in receiver {
            replies[number] = match reply {
                IoReply::Failed(error) => Err(error),
                reply => Ok(reply),
            };
        }
        replies
    }
}

fn lock(unsynced: &Mutex<Unsynced>) -> MutexGuard<'_, Unsynced> {
    unsynced.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer to a call that was not sent.
fn unsent<B>(buffer: B, error: Error) -> Answer<B> {
    let (reply, incarnation) = (IoReply::Failed(error), Incarnation::NONE);
    Answer { reply, buffer, incarnation, started_ns: 0, finished_ns: 0 }
}

/// The error for a file with a part on a retired server. With an empty path, it concerns any file.
pub(crate) fn gone(path: &str, server: ServerId) -> Error {
    let part = if path.is_empty() {
        "its part of the file".into()
    } else {
        format!("the part of {path} that lay there")
    };
    Error::new(
        ErrorKind::Io,
        format!(
            "I/O server {} was retired, and {part} is gone; remove the file, and restore it from a copy",
            server.0
        ),
    )
}

/// The error for a sync after a restart of servers with unsynced writes.
pub(crate) fn loss(path: &str, servers: &[ServerId]) -> Error {
    let numbers: Vec<String> = servers.iter().map(|server| server.0.to_string()).collect();
    let which = match servers {
        [] => String::from("an I/O server was"),
        [_] => format!("I/O server {} was", numbers[0]),
        _ => format!("I/O servers {} were", numbers.join(", ")),
    };
    Error::new(
        ErrorKind::Lost,
        format!(
            "{which} restarted after a write to {path} and before its sync, and may have lost that write; repeat the writes since the last sync, and sync again"
        ),
    )
}

fn dropped() -> Error {
    Error::new(ErrorKind::Io, "a request to the pool was dropped unanswered; open the pool again")
}

/// The error for a reply of the wrong kind.
pub(crate) fn unexpected(reply: &impl std::fmt::Debug) -> Error {
    let mut text = format!("{reply:?}");
    text.truncate(text.char_indices().nth(200).map_or(text.len(), |(at, _)| at));
    Error::new(
        ErrorKind::Io,
        format!(
            "a server answered {text}, which is no answer to the request; are all parts of the pool of one version?"
        ),
    )
}
