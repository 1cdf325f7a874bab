//! Searches: the files and directories below a directory for which a query holds, page by page.
//!
//! A page reads a part of the index, or of all names if no condition of the query is in the index. It compares each
//! proposed file by the records themselves, with the rights of the user. So no query becomes text of a database: it
//! only chooses keys.

mod grammar;
mod mend;
mod plans;
mod query;
mod terms;
mod times;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use outcore_core::wire::{decode, encode};
use outcore_core::{Error, ErrorKind, Handle, Hit, ManagerReply, Result};

use super::access::{READ, SEARCH, allows, require};
use super::paths::{MAX_PATH_BYTES, parts};
use super::record::{self, Node};
use super::step::Step;
use super::{MAX_PAGE, Manager, Now, ROOT, User, keys};
use crate::store::Store;
use plans::plans;
use query::{Comparison, DESCRIPTION, Field, Scalar, Stored, Term, Tree};
use terms::terms;

pub use grammar::MAX_QUERY_BYTES;
pub(super) use mend::{index_all, indexed};
pub use query::DESCRIPTION as DESCRIBING_ATTRIBUTE;
pub(super) use terms::entries;

/// The finding for an index that does not fit its attributes.
pub(super) const OLD_INDEX: &str = "the search index does not fit its name or its attributes";
/// Bytes of paths and descriptions after which a page ends.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// The values of `kind` of files without a description.
const RECORDED_KINDS: [&str; 3] = ["file", "directory", "link"];

/// A place in a search: the number of the plan by which it reads, and the last key.
type Cursor = (u16, Vec<u8>);

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
        let (number, last) = match after {
            [] => (self.shortest(&plans)?, Vec::new()),
            after => read_cursor(after)?,
        };
        let plan = plans.get(usize::from(number));
        let (mut left, mut room, mut hits, mut seen) = (most, MAX_PAGE_BYTES, Vec::new(), BTreeSet::new());
        for (from, until) in self.ranges(plan, &[&last[..], &[0]].concat())? {
            for (key, versioned) in self.store.range(&from, &until, left)? {
                let proposed = match plan {
                    Some(_) => terms::entry_in(&key).map(|(handle, _)| (handle, None)),
                    None => {
                        let name = keys::name_in(&key).map(str::to_owned);
                        Some((Handle(record::read(&key, &versioned.value)?), name))
                    }
                };
                if let Some((handle, name)) = proposed.filter(|(handle, _)| seen.insert(*handle))
                    && let Some(hit) = self.hit_of(&mut scope, query, Some(handle), name)?
                {
                    room = room.saturating_sub(hit.path.len() + hit.description.len());
                    hits.push(hit);
                }
                // A page reads so many records at most, so that other requests need not wait long.
                left -= 1;
                if left == 0 || room == 0 {
                    return Ok((hits, Some(encode::<Cursor>(&(number, key)))));
                }
            }
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
                let [file, directory, link] = RECORDED_KINDS;
                let recorded = match inode {
                    inode if inode.is_file() => file,
                    inode if inode.is_link() => link,
                    _ => directory,
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
            Field::Group => {
                let is_in_group = self.is_described(candidate)? && self.is_group(candidate.node.parent)?;
                is_in_group.then(|| Scalar::Text(candidate.above.clone())).into_iter().collect()
            }
            Field::Stored(stored) => self.stored(candidate, stored)?,
        })
    }

    /// Whether an array or a group is described.
    fn is_described(&self, candidate: &mut Candidate) -> Result<bool> {
        let kinds = self.stored(candidate, &Stored::described("kind"))?;
        Ok(["array", "group"].iter().any(|kind| kinds.contains(&Scalar::Text((*kind).to_owned()))))
    }

    /// Whether a directory is a Zarr group, as far as the user may know.
    fn is_group(&self, directory: Handle) -> Result<bool> {
        let Some(node) = self.look::<Node>(&keys::inode(directory))? else { return Ok(false) };
        if !allows(&node.inode, self.who, READ) {
            return Ok(false);
        }
        let found = self.store.get(&keys::extended(directory, DESCRIPTION))?;
        let terms = found.map_or_else(Vec::new, |found| terms(DESCRIPTION, &found.value));
        Ok(Stored::described("kind").values(&terms).contains(&Scalar::Text("group".to_owned())))
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
        Ok(candidate.terms.get(&stored.attribute).map_or_else(Vec::new, |terms| stored.values(terms)))
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
