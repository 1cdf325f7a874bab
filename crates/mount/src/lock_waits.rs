//! Programs that wait for locks. One thread asks for all of them, again and again, since the manager never waits.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fuser::{Errno, ReplyEmpty};

use crate::lock_calls::{Wanted, is_interrupted};
use crate::locks::Locks;

/// Between two attempts, at least and at most. A lock that this mount releases is asked for at once.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));

/// All programs of a mount that wait.
#[derive(Default)]
pub(crate) struct Waits {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// Whether the thread runs.
    is_served: bool,
    /// Whether locks were released since the last attempts.
    is_woken: bool,
    is_over: bool,
}

/// A program that waits for a lock.
pub(crate) struct Waiting {
    pub wanted: Wanted,
    /// The waiting thread.
    pub thread: u32,
    /// Called before the answer.
    pub granted: Box<dyn Fn() + Send>,
    pub reply: ReplyEmpty,
}

impl Waits {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all attempts soon.
    pub fn wake(&self) {
        self.queue().is_woken = true;
        self.changed.notify_all();
    }

    /// Ends all waits with an error, now and later.
    pub fn end(&self) {
        self.queue().is_over = true;
        self.wake();
    }
}

impl Locks {
    /// Waits for a lock in another thread, which then answers. A signal to the program ends the wait with `EINTR`. A
    /// program whose signals this process cannot see gets `ENOLCK`: nothing could end its wait.
    pub fn wait(self: &Arc<Self>, waiting: Waiting) {
        if is_interrupted(waiting.thread).is_none() {
            return waiting.reply.error(Errno::ENOLCK);
        }
        let mut queue = self.waits.queue();
        queue.waiting.push(waiting);
        if !queue.is_served {
            let locks = self.clone();
            let thread = thread::Builder::new().name("mount-waits".into()).spawn(move || locks.serve_waits());
            queue.is_served = thread.is_ok();
            if thread.is_err() {
                // Dropped replies are errors.
                queue.waiting.clear();
            }
        }
    }

    fn serve_waits(self: &Arc<Self>) {
        let mut pause = PAUSES.0;
        let mut left = vec![];
        loop {
            let mut queue = self.waits.queue();
            queue.waiting.splice(0..0, left);
            if queue.waiting.is_empty() {
                queue.is_served = false;
                return;
            }
            let sleeps = |queue: &mut Queue| !queue.is_woken;
            let woken = self.waits.changed.wait_timeout_while(queue, pause, sleeps);
            (queue, _) = woken.unwrap_or_else(PoisonError::into_inner);
            let is_woken = std::mem::take(&mut queue.is_woken);
            pause = if is_woken { PAUSES.0 } else { (pause * 2).min(PAUSES.1) };
            let (waiting, is_over) = (std::mem::take(&mut queue.waiting), queue.is_over);
            drop(queue);
            // The manager may not answer for long. No program whose wait is over waits for that.
            let waiting = waiting.into_iter().filter_map(|each| each.unless_ended(is_over)).collect();
            left = self.attempts(waiting);
        }
    }

    /// Asks for the locks of programs, up to the first failure. Returns the programs that wait on.
    fn attempts(self: &Arc<Self>, waiting: Vec<Waiting>) -> Vec<Waiting> {
        let mut left = vec![];
        let mut waiting = waiting.into_iter();
        for each in waiting.by_ref() {
            match self.set(&each.wanted) {
                Ok(false) => left.push(each),
                Ok(true) => {
                    (each.granted)();
                    each.reply.ok();
                }
                Err(error) => {
                    each.reply.error(error);
                    break;
                }
            }
        }
        left.extend(waiting);
        left
    }
}

impl Waiting {
    /// The program, unless its wait has ended: by the end of the mount or by a signal.
    fn unless_ended(self, is_over: bool) -> Option<Self> {
        let error = match is_over {
            true => Errno::ENOLCK,
            false if is_interrupted(self.thread) == Some(true) => Errno::EINTR,
            false => return Some(self),
        };
        self.reply.error(error);
        None
    }
}
