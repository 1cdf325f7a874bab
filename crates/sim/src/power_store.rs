//! A metadata store that loses power: afterwards, only some first ones of the unsynced groups are left.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::Result;
use outcore_core::crash_disk::Random;
use outcore_server::store::{Guard, MemoryStore, Outcome, Store, Versioned, Write};

/// A metadata store that loses power. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct PowerStore {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    store: MemoryStore,
    /// Groups of commits, in order. Each survives wholly or not at all.
    groups: Vec<Vec<Vec<Write>>>,
    /// Number of groups that are durable.
    durable: usize,
    /// The open group.
    open: Option<Vec<Vec<Write>>>,
}

impl PowerStore {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Flips a bit of a record on the disk; a crash restores it. Without `is_seen`, the checksum is made to match
    /// the damaged record.
    pub fn flip(&self, random: &mut Random, is_seen: bool) {
        let (record, bit) = (random.bits(), random.bits());
        let store = &mut self.lock().store;
        if let Some(key) = store.flip(record, bit)
            && !is_seen
        {
            store.forget_sum(&key);
        }
    }

    /// Number of groups that a sync beginning now makes durable.
    pub fn sync_begins(&self) -> usize {
        self.lock().groups.len()
    }

    /// Records that a sync has made `groups` groups durable.
    pub fn sync_ended(&self, groups: usize) {
        let mut state = self.lock();
        state.durable = state.durable.max(groups);
    }

    /// Cuts the power. A random number of the unsynced groups survives, in order.
    pub fn crash(&self, random: &mut Random) {
        let mut state = self.lock();
        let kept = random.between(state.durable as u64, state.groups.len() as u64) as usize;
        state.groups.truncate(kept);
        (state.durable, state.open) = (kept, None);
        let mut store = MemoryStore::new();
        for writes in state.groups.iter().flatten() {
            // The commits succeed as they did the first time.
            let _ = store.commit(&[], writes);
        }
        state.store = store;
    }
}

impl Store for PowerStore {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.lock().store.get(key)
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.lock().store.range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        let mut state = self.lock();
        let outcome = state.store.commit(guards, writes)?;
        if let Outcome::Done(_) = outcome {
            match &mut state.open {
                Some(group) => group.push(writes.to_vec()),
                None => {
                    state.groups.push(vec![writes.to_vec()]);
                    state.durable = state.groups.len();
                }
            }
        }
        Ok(outcome)
    }

    fn begin_group(&mut self) -> Result<()> {
        self.lock().open = Some(vec![]);
        Ok(())
    }

    fn end_group(&mut self) -> Result<()> {
        self.end_group_unsynced()?;
        self.sync_ended(self.sync_begins());
        Ok(())
    }

    fn end_group_unsynced(&mut self) -> Result<()> {
        let mut state = self.lock();
        if let Some(group) = state.open.take() {
            state.groups.push(group);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_server::store::conformance::{self, put};

    #[test]
    fn it_conforms() {
        let store = PowerStore::default();
        conformance::store(&mut || store.clone());
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_in_its_order_or_not() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let mut store = PowerStore::default();
            for key in [b"a", b"b", b"c", b"d"] {
                store.begin_group().expect("begins");
                let _ = store.commit(&[], &[put(key, b"")]).expect("a commit");
                store.end_group_unsynced().expect("ends");
                if key == b"b" {
                    store.sync_ended(store.sync_begins());
                }
            }
            store.crash(&mut Random::new(seed));
            seen.insert(store.range(b"a", b"z", 9).expect("a range").len());
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [2, 3, 4]);
    }
}
