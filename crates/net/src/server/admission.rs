//! Bounded memory for requests and answers in flight. A connection without memory waits in a queue, and reads
//! no further.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use outcore_core::{Error, ErrorKind, Result};

/// An account of bytes. Each client and each user has a share, so that a slow sender or receiver does not
/// hold everything.
#[derive(Debug)]
pub(crate) struct Admission {
    limit: usize,
    share: usize,
    /// The share of one user, over all of its clients: a user may have any number of clients.
    user_share: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    used: usize,
    of_clients: HashMap<u64, usize>,
    of_users: HashMap<u32, usize>,
    queue: VecDeque<Waiting>,
    is_closed: bool,
}

/// The client and the user that take memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    /// The number of the client's session.
    pub(crate) client: u64,
    /// The authenticated user; `None` for a client with all rights, which has no limit per user.
    pub(crate) user: Option<u32>,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    owner: Owner,
    turn: Arc<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    has_come: Mutex<bool>,
    wake: Condvar,
}

/// Bytes that return to the account when the lease is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    admission: Arc<Admission>,
    owner: Owner,
    bytes: usize,
}

/// Returns bytes of one holder in a table.
fn give_back<K: Eq + Hash>(table: &mut HashMap<K, usize>, key: K, bytes: usize) {
    if let Entry::Occupied(mut held) = table.entry(key) {
        *held.get_mut() -= bytes;
        if *held.get() == 0 {
            held.remove();
        }
    }
}

impl State {
    /// Whether another lease stays within the shares. The first lease always does.
    fn is_in_share(&self, of: &Admission, owner: Owner, bytes: usize) -> bool {
        self.is_in_share_without(0, of, owner, bytes)
    }

    /// The same, as if the user held `less` bytes less through other clients.
    fn is_in_share_without(&self, less: usize, of: &Admission, owner: Owner, bytes: usize) -> bool {
        let fits = |held: usize, share| held == 0 || held + bytes <= share;
        let of_client = self.of_clients.get(&owner.client).copied().unwrap_or(0);
        let of_user = owner.user.and_then(|user| self.of_users.get(&user)).copied().unwrap_or(0);
        fits(of_client, of.share) && fits(of_user - less, of.user_share)
    }

    fn take(&mut self, owner: Owner, bytes: usize) {
        self.used += bytes;
        *self.of_clients.entry(owner.client).or_default() += bytes;
        if let Some(user) = owner.user {
            *self.of_users.entry(user).or_default() += bytes;
        }
    }

    fn give_back(&mut self, owner: Owner, bytes: usize) {
        self.used -= bytes;
        give_back(&mut self.of_clients, owner.client, bytes);
        if let Some(user) = owner.user {
            give_back(&mut self.of_users, user, bytes);
        }
    }
}

impl Admission {
    /// An account of `limit` bytes. With more than one lease, a client holds at most `share` bytes, and a user
    /// at most half of `limit`.
    pub(crate) fn new(limit: usize, share: usize) -> Arc<Self> {
        Arc::new(Self { limit, share, user_share: limit / 2, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `bytes` bytes for `owner`. Waits in a queue, in which clients and users that have used up their
    /// share are overtaken.
    pub(crate) fn take(self: &Arc<Self>, owner: Owner, bytes: usize) -> Result<Lease> {
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
        state.queue.push_back(Waiting { bytes, owner, turn: turn.clone() });
        self.serve(&mut state);
        drop(state);
        let mut has_come = turn.has_come.lock().unwrap_or_else(PoisonError::into_inner);
        while !*has_come {
            has_come = turn.wake.wait(has_come).unwrap_or_else(PoisonError::into_inner);
        }
        let lease = Lease { admission: self.clone(), owner, bytes };
        if self.lock().is_closed {
            return Err(Error::new(ErrorKind::Io, "the server is stopping"));
        }
        Ok(lease)
    }

    /// Grants memory to the queue, in order.
    fn serve(&self, state: &mut State) {
        let mut i = 0;
        while let Some(next) = state.queue.get(i) {
            let (owner, bytes) = (next.owner, next.bytes);
            if !state.is_closed {
                if !state.is_in_share(self, owner, bytes) {
                    i += 1;
                    continue;
                }
                if state.used + bytes > self.limit {
                    return;
                }
            }
            state.take(owner, bytes);
            if let Some(waiting) = state.queue.remove(i) {
                *waiting.turn.has_come.lock().unwrap_or_else(PoisonError::into_inner) = true;
                waiting.turn.wake.notify_all();
            }
        }
    }

    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// Ends all waits.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        self.serve(&mut state);
    }
}

impl Lease {
    /// Whether another client waits that could use this memory.
    pub(crate) fn is_wanted(&self) -> bool {
        let of = &self.admission;
        let state = of.lock();
        let could = |Waiting { owner, bytes, .. }: &Waiting| {
            let is_of_user = owner.user.is_some() && owner.user == self.owner.user;
            let less = if is_of_user { self.bytes } else { 0 };
            owner.client != self.owner.client && state.is_in_share_without(less, of, *owner, *bytes)
        };
        state.queue.iter().any(could)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut state = self.admission.lock();
        state.give_back(self.owner, self.bytes);
        self.admission.serve(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    fn root(client: u64) -> Owner {
        Owner { client, user: None }
    }

    fn until_waiting(admission: &Admission, count: usize) {
        while admission.waiting() < count {
            thread::yield_now();
        }
    }

    #[test]
    fn clients_of_one_user_leave_memory_to_other_users() {
        let admission = Admission::new(100, 25);
        let of = |user, client| Owner { client, user: Some(user) };
        let held: Vec<_> = (0..2).map(|client| admission.take(of(7, client), 25).unwrap()).collect();
        let waits: Vec<_> = (2..12)
            .map(|client| {
                let admission = admission.clone();
                thread::spawn(move || admission.take(of(7, client), 25).map(drop))
            })
            .collect();
        until_waiting(&admission, waits.len());
        let other = admission.take(of(8, 100), 25).unwrap();
        drop(admission.take(root(101), 25).unwrap());
        assert_eq!(admission.waiting(), waits.len(), "they wait for each other only");
        assert!(held.iter().all(Lease::is_wanted), "by other clients of the same user");
        assert!(!other.is_wanted());
        let late = {
            let admission = admission.clone();
            thread::spawn(move || admission.take(root(102), 60).map(drop))
        };
        while !other.is_wanted() {
            thread::yield_now();
        }
        drop((held, other));
        late.join().unwrap().unwrap();
        waits.into_iter().for_each(|each| each.join().unwrap().unwrap());
        assert!(admission.lock().of_users.is_empty() && admission.lock().of_clients.is_empty());
        drop(admission.take(of(7, 1), 100).unwrap());
    }

    #[test]
    fn who_came_first_is_served_first_and_a_greedy_one_waits_alone() {
        let admission = Admission::new(100, 50);
        let greedy = admission.take(root(1), 40).unwrap();
        let (sender, served) = mpsc::channel();
        let ask = |client, bytes| {
            let (admission, sender) = (admission.clone(), sender.clone());
            thread::spawn(move || {
                let lease = admission.take(root(client), bytes);
                sender.send((client, bytes)).unwrap();
                drop(lease);
            });
        };
        ask(1, 30);
        until_waiting(&admission, 1);
        ask(2, 60);
        assert_eq!(served.recv(), Ok((2, 60)), "others do not wait for it");
        let other = admission.take(root(3), 50).unwrap();
        ask(4, 20);
        until_waiting(&admission, 2);
        ask(5, 10);
        until_waiting(&admission, 3);
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
        assert_eq!(admission.take(root(1), 101).unwrap_err().kind, ErrorKind::Budget);
        let _all = admission.take(root(1), 100).unwrap();
        let waiting = {
            let admission = admission.clone();
            thread::spawn(move || admission.take(root(2), 1).is_err())
        };
        until_waiting(&admission, 1);
        admission.close();
        assert!(waiting.join().unwrap());
    }
}
