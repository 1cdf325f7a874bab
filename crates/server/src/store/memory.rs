//! The model store: a map in memory, for tests and simulations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::Result;

use super::sum::{check_sum, sum};
use super::{Guard, MAX_RANGE, Outcome, Store, Versioned, Write, check_commit};

/// A store in memory. Clones share it; it lives as long as one of them.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    map: Arc<Mutex<Map>>,
}

#[derive(Debug, Default)]
struct Map {
    /// Each value with its checksum.
    entries: BTreeMap<Vec<u8>, (Versioned, u32)>,
    version: u64,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Flips a bit in the value of one record, as a failing disk does. Returns the record's key. Both numbers are
    /// taken modulo the available count.
    pub fn flip(&self, record: u64, bit: u64) -> Option<Vec<u8>> {
        let mut map = self.lock();
        let count = map.entries.len() as u64;
        let at = record.checked_rem(count)? as usize;
        let (key, (found, _)) = map.entries.iter_mut().nth(at)?;
        let bit = bit.checked_rem(8 * found.value.len() as u64)?;
        found.value[(bit / 8) as usize] ^= 1 << (bit % 8);
        Some(key.clone())
    }

    /// Accepts the current value of a record by updating its checksum, like a store without checksums.
    pub fn forget_sum(&self, key: &[u8]) {
        if let Some((found, kept)) = self.lock().entries.get_mut(key) {
            *kept = sum(key, &found.value, found.version);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Map> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        let found = self.lock().entries.get(key).cloned();
        found.map(|(found, sum)| check_sum(key, found, sum)).transpose()
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        if from >= until {
            return Ok(Vec::new());
        }
        let map = self.lock();
        let found = map.entries.range(from.to_vec()..until.to_vec()).take(most.min(MAX_RANGE));
        let checked =
            found.map(|(key, (found, sum))| Ok((key.clone(), check_sum(key, found.clone(), *sum)?)));
        checked.collect()
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        check_commit(guards, writes)?;
        let mut map = self.lock();
        let version_of = |key: &[u8]| map.entries.get(key).map(|(found, _)| found.version);
        let holds = |guard: &Guard| version_of(&guard.key) == guard.version;
        if !guards.iter().all(holds) {
            return Ok(Outcome::Conflict);
        }
        map.version += 1;
        let version = map.version;
        for write in writes {
            match &write.value {
                Some(value) => {
                    let sum = sum(&write.key, value, version);
                    map.entries.insert(write.key.clone(), (Versioned { value: value.clone(), version }, sum));
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
    use outcore_core::ErrorKind;

    #[test]
    fn the_model_store_conforms() {
        let store = MemoryStore::new();
        conformance::store(&mut || store.clone());
    }

    #[test]
    fn a_flipped_bit_is_an_error_that_names_the_record() {
        let mut store = MemoryStore::new();
        assert_eq!(store.flip(0, 0), None);
        let _ = store.commit(&[], &[conformance::put(b"a", b"1"), conformance::put(b"b", b"22")]).unwrap();
        for bit in 0..16 {
            assert_eq!(store.flip(1, bit), Some(b"b".to_vec()));
            let error = store.get(b"b").unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt);
            assert!(error.message.contains("need the record b of"), "{error}");
            assert_eq!(store.range(b"a", b"z", 9).unwrap_err().kind, ErrorKind::Corrupt);
            assert_eq!(store.get(b"a").unwrap().unwrap().value, b"1");
            assert_eq!(store.flip(1, bit), Some(b"b".to_vec()));
            assert_eq!(store.get(b"b").unwrap().unwrap().value, b"22");
        }
    }
}
