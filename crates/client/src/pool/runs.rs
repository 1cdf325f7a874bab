//! Restarts of servers. The data files of a restarted server may be older copies, so a client compares them with the
//! generations that the manager knows.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::{Error, ErrorKind, Gather, Incarnation, Link, ManagerRequest, Result, ServerId};

use crate::pool::durable::AskedOf;
use crate::pool::file::PoolFile;
use crate::pool::shared::Shared;

/// The runs of the servers that answered last.
#[derive(Default)]
pub(crate) struct Runs {
    last: Mutex<BTreeMap<ServerId, Run>>,
    restarts: AtomicU64,
}

struct Run {
    incarnation: Incarnation,
    /// The number of restarts with which this run began; 0 if it is the first one that this client knows.
    restart: u64,
}

impl Runs {
    /// Number of times that another run of a server answered.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Acquire)
    }

    /// Records the run of a server that answered.
    pub(crate) fn answered(&self, server: ServerId, incarnation: Incarnation) {
        if incarnation == Incarnation::NONE {
            return;
        }
        let mut last = lock(&self.last);
        match last.get_mut(&server) {
            Some(run) if run.incarnation == incarnation => {}
            Some(run) => {
                let restart = self.restarts.load(Ordering::Acquire) + 1;
                *run = Run { incarnation, restart };
                self.restarts.store(restart, Ordering::Release);
            }
            None => drop(last.insert(server, Run { incarnation, restart: 0 })),
        }
    }

    /// Whether none of some servers has restarted since `restarts` restarts.
    pub(crate) fn are_same_since(&self, restarts: u64, servers: impl Iterator<Item = ServerId>) -> bool {
        if restarts == self.restarts() {
            return true;
        }
        let last = lock(&self.last);
        let mut runs = servers.filter_map(|server| last.get(&server));
        runs.all(|run| run.restart <= restarts)
    }
}

/// A question to the manager that several tasks may have at the same time.
#[derive(Default)]
pub(crate) struct Question {
    /// Number of questions that were answered, or failed.
    ended: AtomicU64,
    /// The error of the last one.
    last: Mutex<Option<Error>>,
}

impl Question {
    /// Number of questions that have ended so far.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }

    /// Asks, unless the answer is known. If a question has failed since `before` questions had ended, the error is that
    /// of this one. So tasks that wait for each other wait no longer than for one question.
    pub(crate) fn ask(
        &self,
        before: u64,
        is_known: impl FnOnce() -> bool,
        ask: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut last = lock(&self.last);
        if is_known() {
            return Ok(());
        }
        if self.ended() > before
            && let Some(error) = &*last
        {
            return Err(error.clone());
        }
        let answer = ask();
        *last = answer.clone().err();
        self.ended.fetch_add(1, Ordering::AcqRel);
        answer
    }
}

impl<L: Link + ?Sized + 'static> Shared<L>
where
    L::Buffer: Gather + Sync,
{
    /// Whether some calls named the generations that the manager knew after the last restart of each server that
    /// answered.
    pub(crate) fn is_compared(&self, file: &PoolFile, asked_of: &AskedOf) -> bool {
        let servers = asked_of.entries.iter().filter_map(|&entry| file.layout.servers.get(entry as usize));
        asked_of
            .compared
            .is_some_and(|compared| self.servers.runs().are_same_since(compared, servers.copied()))
    }

    /// Checks a file after answers of restarted servers: their data files must have the generations that the manager
    /// knows. Waits for the manager; if it does not answer, nobody knows whether they are older copies.
    pub(crate) fn check_runs(&self, file: &PoolFile, asked_of: &AskedOf) -> Result<()> {
        if self.is_compared(file, asked_of) {
            return Ok(());
        }
        self.know(file)?;
        let later = file.tracked().later_than(asked_of);
        if later.is_empty() {
            return Ok(());
        }
        let retired = file.retired(self.servers.link());
        let (asked_of, replies) = self.granted(file, |grant| {
            let mut calls = file.length_calls_of_others(grant, &retired, &self.none);
            calls.retain(|call| later.contains(&call.entry));
            Ok((file.asked_of(&calls), self.servers.wait_all(calls)?))
        })?;
        if asked_of.is_in_doubt(&replies) { self.check_is_there(file, asked_of, &replies) } else { Ok(()) }
    }

    /// Waits until the client knows the generations after the restarts so far.
    pub(crate) fn know(&self, file: &PoolFile) -> Result<()> {
        let before = file.question.ended();
        let restarts = self.servers.runs().restarts();
        let is_known = || file.restarts.load(Ordering::Acquire) >= restarts;
        file.question.ask(before, is_known, || self.learn(file))
    }

    /// Learns the lengths and the generations of the data files that the manager knows.
    fn learn(&self, file: &PoolFile) -> Result<()> {
        let restarts = self.servers.runs().restarts();
        match self.inode(ManagerRequest::Describe { handle: file.handle }) {
            Ok(inode) => file.tracked().add(inode.durable),
            // A removed file has nothing to compare.
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Error::new(
                    error.kind,
                    format!(
                        "need the manager's record of {} to compare it with the data of an I/O server that restarted, \
                         have no answer ({}); start the manager, then repeat the call",
                        file.path, error.message
                    ),
                ));
            }
        }
        file.restarts.fetch_max(restarts, Ordering::AcqRel);
        Ok(())
    }
}

/// Calls `then` with the result of `ask`. A separate thread waits for the manager, because the calling one must not.
pub(crate) fn ask_apart<T: Send + 'static>(
    ask: impl FnOnce() -> Result<T> + Send + 'static,
    then: impl FnOnce(Result<T>) + Send + 'static,
) {
    let then = Arc::new(Mutex::new(Some(then)));
    let apart = {
        let then = then.clone();
        move || {
            let answer = ask();
            if let Some(then) = take(&then) {
                then(answer);
            }
        }
    };
    if let Err(error) = std::thread::Builder::new().name("outcore-absent".into()).spawn(apart)
        && let Some(then) = take(&then)
    {
        let text = format!("cannot start a thread to ask the manager: {error}; end other programs");
        then(Err(Error::new(ErrorKind::Io, text)));
    }
}

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    lock(from).take()
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_restart_concerns_the_files_on_its_server() {
        let runs = Runs::default();
        let on = |servers: &'static [u32]| servers.iter().copied().map(ServerId);
        for (server, run) in [(0, 1), (1, 2), (0, 1), (0, 0), (1, 2)] {
            runs.answered(ServerId(server), Incarnation(run));
        }
        assert_eq!(runs.restarts(), 0);
        runs.answered(ServerId(1), Incarnation(3));
        runs.answered(ServerId(2), Incarnation(3));
        assert_eq!(runs.restarts(), 1);
        assert!(runs.are_same_since(0, on(&[0, 2])) && !runs.are_same_since(0, on(&[0, 1])));
        runs.answered(ServerId(0), Incarnation(4));
        assert!(runs.are_same_since(1, on(&[1, 2, 3])) && !runs.are_same_since(1, on(&[0, 1])));
        assert!(runs.are_same_since(2, on(&[0, 1])));
    }

    #[test]
    fn tasks_that_wait_share_the_failure_of_a_question() {
        let question = Question::default();
        let fails = || Err(Error::new(ErrorKind::Io, "away"));
        let (first, second) = (question.ended(), question.ended());
        assert_eq!(question.ask(first, || false, fails), fails());
        assert_eq!(question.ask(second, || false, || panic!("asks again")), fails());
        assert_eq!(question.ask(second, || true, || panic!("asks again")), Ok(()));
        assert_eq!(question.ask(question.ended(), || false, || Ok(())), Ok(()), "a later task asks");
        assert_eq!(question.ask(first, || false, || Ok(())), Ok(()), "no failure is shared after an answer");
    }
}
