//! Bounded memory for what is on its way: who finds none waits for its turn, and reads no further.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use outcore_core::{Error, ErrorKind, Result};

/// An account of bytes, of which each client has a share, so that one who is slow to send or to take does not hold
/// everything.
#[derive(Debug)]
pub(crate) struct Admission {
    limit: usize,
    share: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    of_clients: HashMap<u64, usize>,
    queue: VecDeque<Waiting>,
    is_closed: bool,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    client: u64,
    turn: Arc<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    has_come: Mutex<bool>,
    wake: Condvar,
}

/// Bytes that are given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    admission: Arc<Admission>,
    client: u64,
    bytes: usize,
}

impl State {
    fn is_in_share(&self, share: usize, client: u64, bytes: usize) -> bool {
        let held = self.of_clients.get(&client).copied().unwrap_or(0);
        held == 0 || held + bytes <= share
    }

    fn take(&mut self, client: u64, bytes: usize) {
        self.used += bytes;
        *self.of_clients.entry(client).or_default() += bytes;
    }
}

impl Admission {
    /// `limit` bytes, of which each client holds at most `share` in more than one lease.
    pub(crate) fn new(limit: usize, share: usize) -> Arc<Self> {
        Arc::new(Self { limit, share, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `bytes` bytes for `client`, in turn: those who came before are served before, unless their share is used up.
    pub(crate) fn take(self: &Arc<Self>, client: u64, bytes: usize) -> Result<Lease> {
        if bytes > self.limit {
            return Err(Error::new(
                ErrorKind::Budget,
                format!(
                    "need {bytes} bytes of the server's memory, it has {}; divide the request",
                    self.limit
                ),
            ));
        }
        let mut state = self.lock();
        let turn = Arc::<Turn>::default();
        state.queue.push_back(Waiting { bytes, client, turn: turn.clone() });
        self.serve(&mut state);
        drop(state);
        let mut has_come = turn.has_come.lock().unwrap_or_else(PoisonError::into_inner);
        while !*has_come {
            has_come = turn.wake.wait(has_come).unwrap_or_else(PoisonError::into_inner);
        }
        let lease = Lease { admission: self.clone(), client, bytes };
        if self.lock().is_closed {
            return Err(Error::new(ErrorKind::Io, "the server is stopping"));
        }
        Ok(lease)
    }

    /// Gives memory to those whose turn it is.
    fn serve(&self, state: &mut State) {
        let mut i = 0;
        while let Some(next) = state.queue.get(i) {
            let (client, bytes) = (next.client, next.bytes);
            if !state.is_closed {
                if !state.is_in_share(self.share, client, bytes) {
                    i += 1;
                    continue;
                }
                if state.used + bytes > self.limit {
                    return;
                }
            }
            state.take(client, bytes);
            if let Some(waiting) = state.queue.remove(i) {
                *waiting.turn.has_come.lock().unwrap_or_else(PoisonError::into_inner) = true;
                waiting.turn.wake.notify_all();
            }
        }
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// Nobody waits any more.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.serve(&mut state);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.used -= self.bytes;
        if let Some(held) = state.of_clients.get_mut(&self.client) {
            *held -= self.bytes;
            if *held == 0 {
                state.of_clients.remove(&self.client);
            }
        }
        self.admission.serve(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn who_came_first_is_served_first_and_a_greedy_one_waits_alone() {
        let admission = Admission::new(100, 50);
        let greedy = admission.take(1, 40).unwrap();
        let (sender, served) = mpsc::channel();
        let ask = |client, bytes| {
            let (admission, sender) = (admission.clone(), sender.clone());
            thread::spawn(move || {
                let lease = admission.take(client, bytes);
                sender.send((client, bytes)).unwrap();
                drop(lease);
            });
            thread::sleep(Duration::from_millis(50));
        };
        ask(1, 30);
        assert!(served.try_recv().is_err(), "over its share");
        ask(2, 60);
        assert_eq!(served.recv(), Ok((2, 60)), "others do not wait for it");
        let other = admission.take(3, 50).unwrap();
        ask(4, 20);
        ask(5, 10);
        assert!(served.try_recv().is_err(), "in turn, though the later one would fit");
        drop(other);
        let mut both = [served.recv().unwrap(), served.recv().unwrap()];
        both.sort_unstable();
        assert_eq!(both, [(4, 20), (5, 10)]);
        drop(greedy);
        assert_eq!(served.recv(), Ok((1, 30)));
    }

    #[test]
    fn what_never_fits_is_refused_and_closing_wakes_all() {
        let admission = Admission::new(100, 100);
        assert_eq!(admission.take(1, 101).unwrap_err().kind, ErrorKind::Budget);
        let _all = admission.take(1, 100).unwrap();
        let waiting = {
            let admission = admission.clone();
            thread::spawn(move || admission.take(2, 1).is_err())
        };
        thread::sleep(Duration::from_millis(50));
        admission.close();
        assert!(waiting.join().unwrap());
    }
}
