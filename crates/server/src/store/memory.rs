//! The model store: a map in memory, for tests and simulations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::Result;

use super::{Guard, MAX_RANGE, Outcome, Store, Versioned, Write, check_commit};

/// A store in memory. Clones are handles of the same store, which lives as long as one of them.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    map: Arc<Mutex<Map>>,
}

#[derive(Debug, Default)]
struct Map {
    entries: BTreeMap<Vec<u8>, Versioned>,
    version: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        Ok(self.lock().entries.get(key).cloned())
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        if from >= until {
            return Ok(Vec::new());
        }
        let map = self.lock();
        let found = map.entries.range(from.to_vec()..until.to_vec()).take(most.min(MAX_RANGE));
        Ok(found.map(|(key, versioned)| (key.clone(), versioned.clone())).collect())
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        check_commit(guards, writes)?;
        let mut map = self.lock();
        let holds =
            |guard: &Guard| map.entries.get(&guard.key).map(|versioned| versioned.version) == guard.version;
        if !guards.iter().all(holds) {
            return Ok(Outcome::Conflict);
        }
        map.version += 1;
        let version = map.version;
        for write in writes {
            match &write.value {
                Some(value) => {
                    let versioned = Versioned { value: value.clone(), version };
                    map.entries.insert(write.key.clone(), versioned);
                }
                None => drop(map.entries.remove(&write.key)),
            }
        }
        Ok(Outcome::Done(version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::conformance;

    #[test]
    fn the_model_store_conforms() {
        let store = MemoryStore::new();
        conformance::store(&mut || store.clone());
    }
}
