//! Reads ahead for a group of requests: the records along their paths, a level of all paths at once.
//!
//! A store in another process answers many reads in about the time of one. Each request then finds its records in the
//! cache of the group. It reads any that is missing, and reports the errors.

use std::collections::{BTreeMap, BTreeSet};

use outcore_core::Handle;

use super::paths::parts;
use super::{Asked, Manager, ROOT, keys, record};
use crate::store::Store;

/// Paths of a group that are read ahead, at most: the caches of stores have room for the records of so many.
const MAX_PATHS: usize = 512;

/// A directory or a file on a path, and the names that follow.
struct Walk<'a> {
    at: Handle,
    names: std::vec::IntoIter<&'a str>,
}

impl<'a> Walk<'a> {
    fn new(path: &'a str) -> Option<Self> {
        let (start, names) = parts(path).ok()?;
        Some(Self { at: start.unwrap_or(ROOT), names: names.into_iter() })
    }

    /// The key of the next name; `None` at the end of the path.
    fn next_name(&self) -> Option<Vec<u8>> {
        self.names.as_slice().first().map(|name| keys::name(self.at, name))
    }

    /// The keys that a request reads here.
    fn keys(&self) -> [Vec<u8>; 2] {
        [keys::inode(self.at), self.next_name().unwrap_or_else(|| keys::noted_name(self.at))]
    }

    /// Goes to the next name; `None` at the end of the path, and at a missing name.
    fn step(mut self, found: &BTreeMap<Vec<u8>, Handle>) -> Option<Self> {
        self.at = *found.get(&self.next_name()?)?;
        self.names.next();
        Some(self)
    }
}

impl<S: Store> Manager<S> {
    /// Reads the records along the paths of some requests into the cache of the open group.
    pub(super) fn read_paths_ahead(&self, requests: &[Asked]) {
        let paths = requests.iter().flat_map(|asked| asked.request.paths());
        let mut walks: Vec<Walk<'_>> = paths.take(MAX_PATHS).filter_map(Walk::new).collect();
        while !walks.is_empty() {
            let keys: Vec<Vec<u8>> =
                walks.iter().flat_map(Walk::keys).collect::<BTreeSet<_>>().into_iter().collect();
            // A request that needs the records meets the same error.
            let Ok(found) = self.store.get_many(&keys) else { return };
            let handles = keys.into_iter().zip(found).filter_map(|(key, found)| {
                let handle = record::read(&key, &found?.value).ok()?;
                Some((key, Handle(handle)))
            });
            let handles = handles.collect();
            walks = walks.into_iter().filter_map(|walk| walk.step(&handles)).collect();
        }
    }
}
