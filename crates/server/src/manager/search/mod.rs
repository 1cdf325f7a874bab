//! Searches: the files and directories below a directory for which a query holds, page by page.
//!
//! A page reads a range of the index, or of all names if no condition of the query is in the index. It compares each
//! proposed file by the records themselves, with the rights of the user. So no query becomes text of a database: it
//! only chooses keys.

mod grammar;
mod mend;
mod query;
mod terms;
mod times;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use outcore_core::wire::{decode, encode};
use outcore_core::{Error, ErrorKind, Handle, Hit, ManagerReply, Result};

use super::access::{READ, SEARCH, allows, require};
use super::keys::KeyRange;
use super::paths::{MAX_PATH_BYTES, parts};
use super::record::{self, Node};
use super::step::Step;
use super::{MAX_PAGE, Manager, Now, ROOT, User, keys};
use crate::store::{MAX_RANGE, Store};
use query::{Comparison, DESCRIPTION, Field, Scalar, Stored, Tree};
use terms::{Term, terms};

pub use grammar::MAX_QUERY_BYTES;
pub(super) use mend::{index_all, indexed};
pub use query::DESCRIPTION as DESCRIBING_ATTRIBUTE;
pub(super) use terms::entries;

/// Conditions of which a search counts the entries, at most.
const MAX_COUNTED: usize = 8;
/// The finding for an index that does not fit its attributes.
pub(super) const OLD_INDEX: &str = "the search index does not fit its name or its attributes";
/// In place of the number of a condition: all names.
const ALL_NAMES: u16 = u16::MAX;

/// A place in a search: the number of the condition whose entries it reads, the number of the range of these, and
/// the last key.
type Cursor = ((u16, u16), Vec<u8>);

/// Whether a kind is in the manager's records, not in descriptions.
fn is_recorded_kind(kind: &str) -> bool {
    matches!(kind, "file" | "directory" | "link")
}

/// The searched directory, and the paths of directories below it; `None` for others, and for those whose names the
/// user may not see.
struct Scope {
    start: Node,
    /// Path of the start.
    path: String,
    below: HashMap<Handle, Option<String>>,
}

/// A file that may be in the result.
struct Candidate {
    node: Node,
    /// Path of its directory.
    above: String,
    name: Option<String>,
    may_read: bool,
    terms: BTreeMap<String, Vec<Term>>,
}

impl Candidate {
    fn path(&self) -> String {
        joined(&self.above, self.name.as_deref().unwrap_or_default())
    }
}

fn joined(above: &str, name: &str) -> String {
    if above.is_empty() { name.to_owned() } else { format!("{above}/{name}") }
}

impl<S: Store> Step<'_, S> {
    /// A page of the result, and the cursor of the next page.
    fn search(
        &mut self,
        path: &str,
        query: &Tree<Comparison>,
        after: &[u8],
        most: usize,
    ) -> Result<(Vec<Hit>, Option<Vec<u8>>)> {
        let start = self.find(path)?;
        self.meet(&start, path)?;
        let full_path = self.full_path(path)?;
        let mut scope = Scope { start, path: full_path, below: HashMap::new() };
        if !scope.start.is_directory() {
            let hit = self.hit_of(&mut scope, query, None, None)?;
            return Ok((hit.into_iter().collect(), None));
        }
        require(&scope.start.inode, self.who, READ | SEARCH, path)?;
        scope.below.insert(scope.start.handle(), Some(scope.path.clone()));
        let plans = plans(query);
        let ((plan, mut number), last) = match after {
            [] => ((self.shortest(&plans)?, 0), Vec::new()),
            after => read_cursor(after)?,
        };
        let ranges = match plans.get(usize::from(plan)) {
            Some(ranges) => ranges.clone(),
            None => vec![keys::all_names()],
        };
        let (mut last, mut left) = (last, most);
        let mut hits = Vec::new();
        let mut seen = BTreeSet::new();
        while let Some((first, until)) = ranges.get(usize::from(number)) {
            let from = [&last[..], &[0]].concat().max(first.clone());
            let found = self.store.range(&from, until, left)?;
            for (key, versioned) in &found {
                let (handle, name) = if plan == ALL_NAMES {
                    (Handle(record::read(key, &versioned.value)?), keys::name_in(key).map(str::to_owned))
                } else {
                    let Some((handle, _)) = terms::entry_in(key) else { continue };
                    (handle, None)
                };
                if seen.insert(handle) {
                    hits.extend(self.hit_of(&mut scope, query, Some(handle), name)?);
                }
            }
            left -= found.len();
            // A page reads so many records at most, so that other requests need not wait long.
            if let Some((key, _)) = found.into_iter().last().filter(|_| left == 0) {
                return Ok((hits, Some(encode::<Cursor>(&((plan, number), key)))));
            }
            (number, last) = (number + 1, Vec::new());
        }
        Ok((hits, None))
    }

    /// The path of a requested name from the root on.
    fn full_path(&mut self, path: &str) -> Result<String> {
        let (start, names) = parts(path)?;
        let above = match start {
            Some(handle) => self.path_of(handle)?.ok_or_else(|| self.stale(handle))?,
            None => String::new(),
        };
        Ok(if names.is_empty() { above } else { joined(&above, &names.join("/")) })
    }

    /// The number of the condition with the fewest entries.
    fn shortest(&self, plans: &[Vec<KeyRange>]) -> Result<u16> {
        let mut best = (usize::MAX, ALL_NAMES);
        for (plan, number) in plans.iter().zip(0..).take(MAX_COUNTED) {
            let mut count = 0;
            for (from, until) in plan {
                count += self.store.range(from, until, MAX_RANGE - count)?.len();
            }
            best = best.min((count, number));
        }
        Ok(best.1)
    }

    /// A file if the query holds for it, and the user may see it. Without a handle, it is the start.
    fn hit_of(
        &mut self,
        scope: &mut Scope,
        query: &Tree<Comparison>,
        handle: Option<Handle>,
        name: Option<String>,
    ) -> Result<Option<Hit>> {
        let start = scope.start.handle();
        let mut candidate = match handle.filter(|handle| *handle != start) {
            None if start == ROOT => return Ok(None),
            None => {
                let (above, name) = scope.path.rsplit_once('/').unwrap_or(("", &scope.path));
                let (above, name) = (above.to_owned(), Some(name.to_owned()));
                self.candidate(scope.start.clone(), above, name)
            }
            Some(handle) => {
                let Some(node) = self.look::<Node>(&keys::inode(handle))? else { return Ok(None) };
                let Some(above) = self.path_in(scope, node.parent)? else { return Ok(None) };
                self.candidate(node, above, name)
            }
        };
        if !query
            .holds(&mut |comparison| Ok(comparison.holds(&self.values(&mut candidate, &comparison.field)?)))?
        {
            return Ok(None);
        }
        // Another manager may have removed it meanwhile.
        let Some(_) = self.name_of_candidate(&mut candidate)? else { return Ok(None) };
        let description = match candidate.may_read {
            true => self.store.get(&keys::extended(candidate.node.handle(), DESCRIPTION))?,
            false => None,
        };
        let description = description.map(|found| found.value).unwrap_or_default();
        Ok(Some(Hit { path: candidate.path(), inode: candidate.node.inode, description }))
    }

    fn candidate(&self, node: Node, above: String, name: Option<String>) -> Candidate {
        let may_read = !node.inode.is_link() && allows(&node.inode, self.who, READ);
        Candidate { node, above, name, may_read, terms: BTreeMap::new() }
    }

    /// The path of a directory at or below the start, if the user may read and search all directories between.
    fn path_in(&self, scope: &mut Scope, directory: Handle) -> Result<Option<String>> {
        let (mut line, mut at) = (Vec::new(), directory);
        let mut path = loop {
            if let Some(known) = scope.below.get(&at) {
                break known.clone();
            }
            let Some(node) = self.look::<Node>(&keys::inode(at))? else { break None };
            let is_open = node.is_directory() && allows(&node.inode, self.who, READ | SEARCH);
            let parent = node.parent;
            line.push(node);
            if at == ROOT || !is_open || line.len() > MAX_PATH_BYTES {
                break None;
            }
            at = parent;
        };
        for node in line.iter().rev() {
            path = match path {
                Some(above) => self.entry_name(node)?.map(|name| joined(&above, &name)),
                None => None,
            };
            scope.below.insert(node.handle(), path.clone());
        }
        Ok(path)
    }

    /// The name of an entry: the noted one, or else that in the names of its directory.
    pub(super) fn entry_name(&self, node: &Node) -> Result<Option<String>> {
        if let Some(name) = self.look::<String>(&keys::noted_name(node.handle()))?
            && self.look::<u64>(&keys::name(node.parent, &name))? == Some(node.handle().0)
        {
            return Ok(Some(name));
        }
        self.name_of(node.parent, node.handle())
    }

    fn name_of_candidate(&self, candidate: &mut Candidate) -> Result<Option<String>> {
        if candidate.name.is_none() {
            candidate.name = self.entry_name(&candidate.node)?;
        }
        Ok(candidate.name.clone())
    }

    /// The values of a field. Fields of extended attributes have none if the user may not read the file.
    fn values(&self, candidate: &mut Candidate, field: &Field) -> Result<Vec<Scalar>> {
        let inode = &candidate.node.inode;
        let layout = inode.layout.as_ref();
        let number = |number: u64| Scalar::Number(number as f64);
        let time = |ns: u64| Scalar::Time(i64::try_from(ns).unwrap_or(i64::MAX));
        Ok(match field {
            Field::Name => self.name_of_candidate(candidate)?.map(Scalar::Text).into_iter().collect(),
            Field::Path => {
                self.name_of_candidate(candidate)?;
                vec![Scalar::Text(candidate.path())]
            }
            Field::Kind => {
                let recorded = match inode {
                    inode if inode.is_file() => "file",
                    inode if inode.is_link() => "link",
                    _ => "directory",
                };
                let described = self.stored(candidate, &Stored::described("kind"))?;
                if described.is_empty() { vec![Scalar::Text(recorded.to_owned())] } else { described }
            }
            Field::Size => {
                let recorded = inode.is_file().then(|| number(inode.durable_length()));
                let described = self.stored(candidate, &Stored::described("size"))?;
                if described.is_empty() { recorded.into_iter().collect() } else { described }
            }
            Field::Owner => vec![number(inode.owner.into())],
            Field::OwnerGroup => vec![number(inode.group.into())],
            Field::Modified => vec![time(inode.modified_ns)],
            Field::Changed => vec![time(inode.changed_ns)],
            Field::StripeUnit => {
                layout.map(|layout| number(layout.stripes.unit_bytes())).into_iter().collect()
            }
            Field::StripeCount => {
                layout.map(|layout| number(layout.servers.len() as u64)).into_iter().collect()
            }
            Field::Server => layout
                .iter()
                .flat_map(|layout| &layout.servers)
                .map(|server| number(server.0.into()))
                .collect(),
            Field::Stored(stored) => self.stored(candidate, stored)?,
        })
    }

    fn stored(&self, candidate: &mut Candidate, stored: &Stored) -> Result<Vec<Scalar>> {
        if !candidate.may_read {
            return Ok(Vec::new());
        }
        if !candidate.terms.contains_key(&stored.attribute) {
            let key = keys::extended(candidate.node.handle(), &stored.attribute);
            let value = self.store.get(&key)?;
            let found = value.map_or_else(Vec::new, |found| terms(&stored.attribute, &found.value));
            candidate.terms.insert(stored.attribute.clone(), found);
        }
        let is_of = |term: &&Term| {
            term.field == stored.field && stored.position.is_none_or(|position| term.position == position)
        };
        let terms = candidate.terms.get(&stored.attribute).into_iter().flatten();
        Ok(terms.filter(is_of).map(|term| term.value.clone()).collect())
    }
}

/// The ranges of the index that each contain the whole result, one for each condition that the index has.
fn plans(query: &Tree<Comparison>) -> Vec<Vec<KeyRange>> {
    let mut found: Vec<Vec<KeyRange>> = match query {
        Tree::All(trees) => trees.iter().filter_map(ranges).collect(),
        tree => ranges(tree).into_iter().collect(),
    };
    found.truncate(MAX_COUNTED);
    for plan in &mut found {
        plan.push(terms::entries_of_all());
    }
    found
}

fn ranges(query: &Tree<Comparison>) -> Option<Vec<KeyRange>> {
    match query {
        Tree::One(comparison) => terms::range(comparison).map(|range| vec![range]),
        Tree::All(trees) => trees.iter().filter_map(ranges).min_by_key(Vec::len),
        Tree::Any(trees) => Some(trees.iter().map(ranges).collect::<Option<Vec<_>>>()?.concat()),
        Tree::Not(_) => None,
    }
}

fn read_cursor(bytes: &[u8]) -> Result<Cursor> {
    decode::<Cursor>(bytes).map_err(|error| {
        Error::invalid(format!(
            "need the end of the previous page of a search, have other bytes ({}); search from the start",
            error.message
        ))
    })
}

impl<S: Store> Manager<S> {
    pub(super) fn search(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        query: &str,
        (after, most): (&[u8], u64),
    ) -> Result<ManagerReply> {
        let query = grammar::parse(query)?;
        if self.store.get(keys::INDEXED)?.is_none() {
            return Err(Error::new(
                ErrorKind::Busy,
                "need the index of the pool's attributes, have none: its disk was full when the manager started; make room on it, \
                 and start the manager again",
            ));
        }
        let most = most.clamp(1, MAX_PAGE) as usize;
        let (hits, next) = self.view(now, who, |step| step.search(path, &query, after, most))?;
        Ok(ManagerReply::Found { hits, next })
    }
}
