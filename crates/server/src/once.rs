//! Each request is done once, however often it arrives.
//!
//! A client that lost a connection sends again what was not answered, while what it sent before may still lie in a
//! socket of the server. Were that done later, it would undo what the client has written since. So requests have
//! numbers, which a client counts up, and each says which is the client's oldest that is not answered: what is older
//! is late and not done at all, and what is done or being done already is not done again.

use std::collections::{BTreeMap, HashMap};

/// A client: a number that it chose at random when it began.
pub type ClientId = u128;

/// What is to be done with a request that arrived.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<A> {
    /// It is new: do it, and tell [`Once::done`].
    New,
    /// It is being done. Whoever sent it again waits for the answer with the others.
    Again,
    /// It was done, with this answer.
    Done(A),
    /// The client knows its answer: nobody waits for another.
    Late,
    /// The client has more requests under way than it may.
    TooMany,
}

#[derive(Debug)]
struct Client<A> {
    /// Requests below this are answered.
    oldest: u64,
    /// What was done since: `None` is being done.
    requests: BTreeMap<u64, Option<A>>,
}

/// Requests of all clients, as far as they may arrive again.
#[derive(Debug)]
pub struct Once<A> {
    clients: HashMap<ClientId, Client<A>>,
    most: usize,
}

impl<A: Clone> Once<A> {
    /// With at most `most` requests of a client that are not known to be answered.
    pub fn new(most: usize) -> Self {
        Self { clients: HashMap::new(), most: most.max(1) }
    }

    /// A request arrived; `oldest` is the client's oldest that is not answered, of this one at the latest.
    pub fn arrived(&mut self, client: ClientId, request: u64, oldest: u64) -> Arrival<A> {
        let state =
            self.clients.entry(client).or_insert_with(|| Client { oldest: 0, requests: BTreeMap::new() });
        if oldest > state.oldest {
            state.oldest = oldest.min(request);
            // What is still being done stays until it is: its place in line is taken.
            let first = state.oldest;
            state.requests.retain(|&number, answer| number >= first || answer.is_none());
        }
        if request < state.oldest {
            return Arrival::Late;
        }
        match state.requests.get(&request) {
            Some(Some(answer)) => Arrival::Done(answer.clone()),
            Some(None) => Arrival::Again,
            None if state.requests.len() >= self.most => Arrival::TooMany,
            None => {
                state.requests.insert(request, None);
                Arrival::New
            }
        }
    }

    /// A request was done. Of one that the client does not wait for any more, nothing is kept.
    pub fn done(&mut self, client: ClientId, request: u64, answer: A) {
        if let Some(state) = self.clients.get_mut(&client) {
            if request < state.oldest {
                state.requests.remove(&request);
            } else if let Some(place) = state.requests.get_mut(&request) {
                *place = Some(answer);
            }
        }
    }

    /// Forgets a client, of which nothing can arrive any more.
    pub fn forget(&mut self, client: ClientId) {
        self.clients.remove(&client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: ClientId = 7;

    #[test]
    fn a_request_is_done_once() {
        let mut once = Once::new(8);
        assert_eq!(once.arrived(C, 1, 1), Arrival::New);
        assert_eq!(once.arrived(C, 1, 1), Arrival::Again);
        assert_eq!(once.arrived(8, 1, 1), Arrival::New, "another client's");
        once.done(C, 1, "a");
        assert_eq!(once.arrived(C, 1, 1), Arrival::Done("a"));
        assert_eq!(once.arrived(C, 2, 2), Arrival::New);
        assert_eq!(once.arrived(C, 1, 1), Arrival::Late, "its answer is known");
    }

    #[test]
    fn what_is_late_is_not_done_while_its_first_copy_still_is() {
        let mut once = Once::new(8);
        assert_eq!(once.arrived(C, 1, 1), Arrival::New);
        assert_eq!(once.arrived(C, 5, 3), Arrival::New);
        assert_eq!(once.arrived(C, 1, 1), Arrival::Late);
        once.done(C, 1, "a");
        once.done(C, 5, "b");
        assert_eq!(once.arrived(C, 5, 5), Arrival::Done("b"));
    }

    #[test]
    fn memory_is_bounded() {
        let mut once = Once::new(2);
        assert_eq!(once.arrived(C, 1, 1), Arrival::New);
        assert_eq!(once.arrived(C, 2, 1), Arrival::New);
        assert_eq!(once.arrived(C, 3, 1), Arrival::TooMany);
        once.done(C, 1, ());
        assert_eq!(once.arrived(C, 3, 2), Arrival::New, "1 is answered");
        once.forget(C);
        assert_eq!(once.arrived(C, 1, 1), Arrival::New);
        assert_eq!(once.arrived(C, 1, 9), Arrival::Again, "none is older than itself");
    }
}
