//! Calls to several servers at once, until the last is answered.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use outcore_core::{Error, ErrorKind, Gather, IoReply, IoRequest, Link, Result, ServerId};

/// A message to one I/O server.
pub(crate) struct Call<B> {
    pub(crate) server: ServerId,
    pub(crate) request: IoRequest,
    pub(crate) buffer: B,
}

/// What became of some calls: the replies in the order of the calls, or the first error.
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
    started_ns: u64,
    finished_ns: u64,
    then: Option<Then>,
}

impl Pending {
    fn answered(pending: &Mutex<Self>, number: usize, reply: IoReply, started_ns: u64, finished_ns: u64) {
        let mut state = pending.lock().unwrap_or_else(PoisonError::into_inner);
        state.left -= 1;
        state.started_ns = state.started_ns.min(started_ns);
        state.finished_ns = state.finished_ns.max(finished_ns);
        match reply {
            IoReply::Failed(error) => drop(state.error.get_or_insert(error)),
            reply => state.replies[number] = Some(reply),
        }
        if state.left > 0 {
            return;
        }
        let replies = match state.error.take() {
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

/// The way to the servers, which counts what goes it.
pub(crate) struct Counted<L: ?Sized> {
    link: Arc<L>,
    messages: AtomicU64,
}

impl<L: Link + ?Sized> Counted<L>
where
    L::Buffer: Gather,
{
    pub(crate) fn new(link: Arc<L>) -> Self {
        Self { link, messages: AtomicU64::new(0) }
    }

    pub(crate) fn link(&self) -> &L {
        &self.link
    }

    /// Messages sent to I/O servers so far.
    pub(crate) fn messages(&self) -> u64 {
        self.messages.load(Ordering::Relaxed)
    }

    /// Sends all calls; `then` is called once, when the last is answered, and must not block.
    pub(crate) fn call_all(&self, calls: Vec<Call<L::Buffer>>, then: Then) {
        if calls.is_empty() {
            return then(Outcome { replies: Ok(vec![]), started_ns: 0, finished_ns: 0 });
        }
        self.messages.fetch_add(calls.len() as u64, Ordering::Relaxed);
        let pending = Arc::new(Mutex::new(Pending {
            replies: calls.iter().map(|_| None).collect(),
            left: calls.len(),
            error: None,
            started_ns: u64::MAX,
            finished_ns: 0,
            then: Some(then),
        }));
        for (number, Call { server, request, buffer }) in calls.into_iter().enumerate() {
            let pending = pending.clone();
            let done = Box::new(move |answer: outcore_core::Answer<L::Buffer>| {
                // Who learns that the work is done may count on its memory being free.
                drop(answer.buffer);
                Pending::answered(&pending, number, answer.reply, answer.started_ns, answer.finished_ns);
            });
            self.link.io(server, request, buffer, done);
        }
    }

    /// Sends all calls and waits for the answers.
    pub(crate) fn wait_all(&self, calls: Vec<Call<L::Buffer>>) -> Result<Vec<IoReply>> {
        let (sender, receiver) = mpsc::channel();
        self.call_all(calls, Box::new(move |outcome| drop(sender.send(outcome.replies))));
        receiver.recv().unwrap_or_else(|_| Err(lost()))
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Io, "a request to the pool was dropped unanswered; open the pool again")
}

/// The error for an answer of the wrong kind.
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
