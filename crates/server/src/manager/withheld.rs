//! Answers that wait for the disk. While it makes durable what was done, the manager goes on; but what it answers then may
//! come from what is not durable yet, reads too. So every answer waits until all is durable that was done before it.

use std::collections::VecDeque;

/// Answers `T` of batches of requests, in the order in which these were done.
#[derive(Debug)]
pub struct Withheld<T> {
    /// Batches that may have changed something.
    done: u64,
    /// So many of these are durable.
    durable: u64,
    /// So many will be, when the sync that is under way has ended.
    syncing: Option<u64>,
    /// With how many must be durable before.
    waiting: VecDeque<(u64, T)>,
}

impl<T> Default for Withheld<T> {
    fn default() -> Self {
        Self { done: 0, durable: 0, syncing: None, waiting: VecDeque::new() }
    }
}

impl<T> Withheld<T> {
    /// A batch was done. Gives its answers back if they may be given now.
    pub fn done(&mut self, is_change: bool, answers: T) -> Option<T> {
        self.done += u64::from(is_change);
        if self.done == self.durable {
            return Some(answers);
        }
        self.waiting.push_back((self.done, answers));
        None
    }

    /// How many batches wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether answers wait and no sync is under way.
    pub fn needs_sync(&self) -> bool {
        self.syncing.is_none() && !self.waiting.is_empty()
    }

    /// A sync begins, of all that was done: it is committed.
    pub fn begin_sync(&mut self) {
        self.syncing = Some(self.done);
    }

    /// It has ended well. Gives the answers that may be given now.
    pub fn synced(&mut self) -> Vec<T> {
        self.durable = self.syncing.take().unwrap_or(self.durable);
        let free = self.waiting.partition_point(|(needed, _)| *needed <= self.durable);
        self.waiting.drain(..free).map(|(_, answers)| answers).collect()
    }

    /// It has failed, or the commit before it. Gives all answers: nobody may be told of what they say.
    pub fn failed(&mut self) -> Vec<T> {
        self.syncing = None;
        self.waiting.drain(..).map(|(_, answers)| answers).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_wait_for_the_changes_before_them() {
        let mut withheld = Withheld::default();
        assert_eq!(withheld.done(false, "read"), Some("read"), "nothing to wait for");
        assert!(!withheld.needs_sync());
        assert_eq!(withheld.done(true, "a"), None);
        assert!(withheld.needs_sync());
        withheld.begin_sync();
        assert!(!withheld.needs_sync(), "one at a time");
        assert_eq!(withheld.done(false, "read a"), None);
        assert_eq!(withheld.done(true, "b"), None);
        assert_eq!(withheld.done(false, "read b"), None);
        assert_eq!(withheld.synced(), ["a", "read a"]);
        assert_eq!(withheld.done(false, "read b again"), None, "b was done after the sync began");
        withheld.begin_sync();
        assert_eq!(withheld.synced(), ["b", "read b", "read b again"]);
        assert_eq!(withheld.done(false, "read"), Some("read"));
    }

    #[test]
    fn after_a_sync_that_failed_every_answer_waits_for_another() {
        let mut withheld = Withheld::default();
        assert_eq!(withheld.done(true, "a"), None);
        withheld.begin_sync();
        assert_eq!(withheld.done(true, "b"), None);
        assert_eq!(withheld.failed(), ["a", "b"]);
        assert!(!withheld.needs_sync());
        assert_eq!(withheld.done(false, "read"), None);
        assert!(withheld.needs_sync());
    }
}
