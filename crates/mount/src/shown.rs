//! Attributes that the kernel may cache. A program that gets a lock must not see them: others may have changed the files.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::INodeNo;

/// The files and directories whose attributes the kernel got within a short time.
pub(crate) struct Shown {
    /// How long the kernel caches attributes.
    fresh: Duration,
    recent: Mutex<VecDeque<(Instant, INodeNo)>>,
}

impl Shown {
    pub fn new(fresh: Duration) -> Self {
        Self { fresh, recent: Mutex::default() }
    }

    fn recent(&self) -> MutexGuard<'_, VecDeque<(Instant, INodeNo)>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the kernel gets attributes now.
    pub fn add(&self, number: INodeNo) {
        let (now, mut recent) = (Instant::now(), self.recent());
        let is_old = |(at, _): &(Instant, INodeNo)| now.duration_since(*at) > self.fresh;
        while recent.front().is_some_and(is_old) {
            recent.pop_front();
        }
        recent.push_back((now, number));
    }

    /// The numbers whose attributes the kernel may still cache, once each; from then on, none.
    pub fn take(&self) -> Vec<INodeNo> {
        let mut numbers: Vec<_> = std::mem::take(&mut *self.recent()).into_iter().map(|(_, n)| n).collect();
        numbers.sort_unstable_by_key(|number| number.0);
        numbers.dedup();
        numbers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_taken_once() {
        let shown = Shown::new(Duration::from_secs(3600));
        for number in [3, 1, 3] {
            shown.add(INodeNo(number));
        }
        assert_eq!(shown.take(), [INodeNo(1), INodeNo(3)]);
        assert_eq!(shown.take(), []);
    }

    #[test]
    fn numbers_that_the_kernel_no_longer_caches_take_no_memory() {
        let shown = Shown::new(Duration::ZERO);
        for number in 1..1000 {
            shown.add(INodeNo(number));
            // The clock may not have moved.
            while shown.recent()[0].0 == Instant::now() {}
        }
        assert!(shown.take().len() <= 2);
    }
}
