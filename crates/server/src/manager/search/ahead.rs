//! The records that a search reads ahead, many at once: those of the files that a part of the index proposes.
//!
//! The comparison itself decides what it needs, and reads each record that is not here alone. So reading ahead changes the
//! time of a search, never its answer.

use std::collections::BTreeSet;

use outcore_core::wire::Record;
use outcore_core::{ErrorKind, Handle, Result};

use super::super::record::{self, Node};
use super::super::step::Step;
use super::super::{ROOT, keys};
use super::query::{Comparison, DESCRIPTION, Field, Tree};
use super::{Candidate, Scope};
use crate::store::Store;

/// Attributes of a file that are read ahead, at most: each may be long.
const MAX_ATTRIBUTES: usize = 4;

impl<S: Store> Step<'_, S> {
    /// Reads the records of files, and those of the directories above them up to the start.
    pub(super) fn read_files_ahead(
        &mut self,
        scope: &Scope,
        files: impl Iterator<Item = Handle>,
    ) -> Result<()> {
        // Attributes may be long, so those of earlier files make room.
        self.ahead.retain(|key, _| !keys::is_extended(key));
        let files: Vec<Handle> = files.filter(|file| *file != scope.start.handle()).collect();
        self.read_ahead(files.iter().map(|file| keys::inode(*file)))?;
        let is_unknown = |directory: &Handle| !scope.below.contains_key(directory);
        let parents = files.iter().filter_map(|file| Some(self.ahead_node(*file)?.parent));
        let mut level: BTreeSet<Handle> = parents.filter(is_unknown).collect();
        let (mut seen, mut names) = (level.clone(), Vec::new());
        while !level.is_empty() {
            let records = |directory: &Handle| [keys::inode(*directory), keys::noted_name(*directory)];
            self.read_ahead(level.iter().flat_map(records))?;
            let mut next = BTreeSet::new();
            for directory in level {
                let Some(node) = self.ahead_node(directory).filter(|node| self.is_open(node)) else {
                    continue;
                };
                names.extend(self.ahead_name(&node));
                if directory != ROOT && is_unknown(&node.parent) && seen.insert(node.parent) {
                    next.insert(node.parent);
                }
            }
            level = next;
        }
        self.read_ahead(names)
    }

    /// Reads the fields that a query compares.
    pub(super) fn read_fields_ahead<'c>(
        &mut self,
        query: &Tree<Comparison>,
        candidates: impl Iterator<Item = &'c Candidate> + Clone,
    ) -> Result<()> {
        let fields: Vec<&Field> =
            query.comparisons().into_iter().map(|comparison| &comparison.field).collect();
        let attributes: BTreeSet<&str> = fields.iter().filter_map(|field| field.attribute()).collect();
        let has = |candidate: &'c Candidate| {
            let wanted = attributes.iter().take(MAX_ATTRIBUTES).filter(move |_| candidate.may_read);
            wanted.map(move |name| keys::extended(candidate.node.handle(), name))
        };
        self.read_ahead(candidates.clone().flat_map(has))?;
        if fields.contains(&&Field::Group) {
            let parents: BTreeSet<Handle> =
                candidates.clone().map(|candidate| candidate.node.parent).collect();
            let records = |parent: &Handle| [keys::inode(*parent), keys::extended(*parent, DESCRIPTION)];
            self.read_ahead(parents.iter().flat_map(records))?;
        }
        if fields.iter().any(|field| matches!(field, Field::Name | Field::Path)) {
            self.read_names_ahead(candidates)?;
        }
        Ok(())
    }

    /// Reads the names and the descriptions of the result.
    pub(super) fn read_hits_ahead<'c>(
        &mut self,
        candidates: impl Iterator<Item = &'c Candidate> + Clone,
    ) -> Result<()> {
        let readable = candidates.clone().filter(|candidate| candidate.may_read);
        self.read_ahead(readable.map(|candidate| keys::extended(candidate.node.handle(), DESCRIPTION)))?;
        self.read_names_ahead(candidates)
    }

    fn read_names_ahead<'c>(
        &mut self,
        candidates: impl Iterator<Item = &'c Candidate> + Clone,
    ) -> Result<()> {
        let unnamed = candidates.filter(|candidate| candidate.name.is_none());
        self.read_ahead(unnamed.clone().map(|candidate| keys::noted_name(candidate.node.handle())))?;
        let names: Vec<_> = unnamed.filter_map(|candidate| self.ahead_name(&candidate.node)).collect();
        self.read_ahead(names)
    }

    /// A record that was read ahead.
    fn ahead_record<R: Record>(&self, key: &[u8]) -> Option<R> {
        record::read(key, self.ahead.get(key)?.as_deref()?).ok()
    }

    fn ahead_node(&self, file: Handle) -> Option<Node> {
        self.ahead_record(&keys::inode(file))
    }

    /// The key of the name of a file, from its noted name.
    fn ahead_name(&self, node: &Node) -> Option<Vec<u8>> {
        let name: String = self.ahead_record(&keys::noted_name(node.handle()))?;
        Some(keys::name(node.parent, &name))
    }

    fn read_ahead(&mut self, keys: impl IntoIterator<Item = Vec<u8>>) -> Result<()> {
        let new: BTreeSet<Vec<u8>> = keys.into_iter().filter(|key| !self.ahead.contains_key(key)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let new: Vec<Vec<u8>> = new.into_iter().collect();
        match self.store.get_many(&new) {
            Ok(found) => {
                let values = found.into_iter().map(|found| found.map(|found| found.value));
                self.ahead.extend(new.into_iter().zip(values));
                Ok(())
            }
            // If the search needs the damaged record, it reports this error when it reads that record alone.
            Err(error) if error.kind == ErrorKind::Corrupt => Ok(()),
            Err(error) => Err(error),
        }
    }
}
