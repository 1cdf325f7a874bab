//! Searches: the files and directories below a directory for which a query holds, page by page.
//!
//! A page reads a part of the index, or of all names if no condition of the query is in the index. It compares each
//! proposed file by the records themselves, with the rights of the user. So no query becomes text of a database: it
//! only chooses keys. Many records at once are read ahead of the comparison, which reads whatever is missing.

mod ahead;
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
/// Records of a page that are compared together.
const AT_ONCE: usize = 250;
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

/// A file that a record of the index or of the names proposes, with its name if the record has it.
type Proposed = (Handle, Option<String>);

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
            let proposed = vec![Ok(Some((scope.start.handle(), None)))];
            let chosen = self.choose(&mut scope, query, proposed)?.into_iter().collect::<Result<Vec<_>>>()?;
            let hits = chosen.into_iter().flatten().map(|candidate| self.hit_of(candidate));
            return Ok((hits.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect(), None));
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
            for records in self.store.range(&from, &until, left)?.chunks(AT_ONCE) {
                let proposed = records.iter().map(|(key, found)| {
                    let proposed = proposed_by(plan.is_some(), key, &found.value)?;
                    Ok(proposed.filter(|(handle, _)| seen.insert(*handle)))
                });
                let chosen = self.choose(&mut scope, query, proposed.collect())?;
                for ((key, _), chosen) in records.iter().zip(chosen) {
                    if let Some(candidate) = chosen?
                        && let Some(hit) = self.hit_of(candidate)?
                    {
                        room = room.saturating_sub(hit.path.len() + hit.description.len());
                        hits.push(hit);
                    }
                    // A page reads so many records at most, so that other requests need not wait long.
                    left -= 1;
                    if left == 0 || room == 0 {
                        return Ok((hits, Some(encode::<Cursor>(&(number, key.clone())))));
                    }
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

    /// The proposed files for which the query holds, if the user may see them.
    fn choose(
        &mut self,
        scope: &mut Scope,
        query: &Tree<Comparison>,
        proposed: Vec<Result<Option<Proposed>>>,
    ) -> Result<Vec<Result<Option<Candidate>>>> {
        self.read_files_ahead(scope, proposed.iter().flatten().flatten().map(|(handle, _)| *handle))?;
        let candidate = |proposed: Result<Option<Proposed>>| match proposed? {
            Some((handle, name)) => self.candidate(scope, handle, name),
            None => Ok(None),
        };
        let candidates: Vec<_> = proposed.into_iter().map(candidate).collect();
        self.read_fields_ahead(query, candidates.iter().flatten().flatten())?;
        let fits = |candidate: Result<Option<Candidate>>| match candidate? {
            Some(mut candidate) => Ok(self.fits(query, &mut candidate)?.then_some(candidate)),
            None => Ok(None),
        };
        let chosen: Vec<_> = candidates.into_iter().map(fits).collect();
        self.read_hits_ahead(chosen.iter().flatten().flatten())?;
        Ok(chosen)
    }

    fn fits(&self, query: &Tree<Comparison>, candidate: &mut Candidate) -> Result<bool> {
        query.holds(&mut |comparison| Ok(comparison.holds(&self.values(candidate, &comparison.field)?)))
    }

    /// The candidate of a handle; `None` if it is not below the start, or if the user may not see it.
    fn candidate(
        &self,
        scope: &mut Scope,
        handle: Handle,
        name: Option<String>,
    ) -> Result<Option<Candidate>> {
        let (node, above, name) = if handle != scope.start.handle() {
            let Some(node) = self.look::<Node>(&keys::inode(handle))? else { return Ok(None) };
            let Some(above) = self.path_in(scope, node.parent)? else { return Ok(None) };
            (node, above, name)
        } else if handle == ROOT {
            return Ok(None);
        } else {
            let (above, name) = scope.path.rsplit_once('/').unwrap_or(("", &scope.path));
            (scope.start.clone(), above.to_owned(), Some(name.to_owned()))
        };
        let may_read = !node.inode.is_link() && allows(&node.inode, self.who, READ);
        Ok(Some(Candidate { node, above, name, may_read, terms: BTreeMap::new() }))
    }

    /// The answer for a candidate for which the query holds.
    fn hit_of(&self, mut candidate: Candidate) -> Result<Option<Hit>> {
        // Another manager may have removed it meanwhile.
        let Some(_) = self.name_of_candidate(&mut candidate)? else { return Ok(None) };
        let description = match candidate.may_read {
            true => self.value(&keys::extended(candidate.node.handle(), DESCRIPTION))?,
            false => None,
        };
        let (path, inode) = (candidate.path(), candidate.node.inode);
        Ok(Some(Hit { path, inode, description: description.unwrap_or_default() }))
    }

    /// The path of a directory at or below the start, if the user may read and search all directories between.
    fn path_in(&self, scope: &mut Scope, directory: Handle) -> Result<Option<String>> {
        let (mut line, mut at) = (Vec::new(), directory);
        let mut path = loop {
            if let Some(known) = scope.below.get(&at) {
                break known.clone();
            }
            let Some(node) = self.look::<Node>(&keys::inode(at))? else { break None };
            let is_open = self.is_open(&node);
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

    /// Whether the user may see the entries of a directory.
    fn is_open(&self, node: &Node) -> bool {
        node.is_directory() && allows(&node.inode, self.who, READ | SEARCH)
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
        let found = self.value(&keys::extended(directory, DESCRIPTION))?;
        let terms = found.map_or_else(Vec::new, |found| terms(DESCRIPTION, &found));
        Ok(Stored::described("kind").values(&terms).contains(&Scalar::Text("group".to_owned())))
    }

    fn stored(&self, candidate: &mut Candidate, stored: &Stored) -> Result<Vec<Scalar>> {
        if !candidate.may_read {
            return Ok(Vec::new());
        }
        if !candidate.terms.contains_key(&stored.attribute) {
            let key = keys::extended(candidate.node.handle(), &stored.attribute);
            let found = self.value(&key)?.map_or_else(Vec::new, |value| terms(&stored.attribute, &value));
            candidate.terms.insert(stored.attribute.clone(), found);
        }
        Ok(candidate.terms.get(&stored.attribute).map_or_else(Vec::new, |terms| stored.values(terms)))
    }
}

/// The file that a record of the index, or a name, proposes.
fn proposed_by(is_entry: bool, key: &[u8], value: &[u8]) -> Result<Option<Proposed>> {
    if is_entry {
        return Ok(terms::entry_in(key).map(|(handle, _)| (handle, None)));
    }
    let name = keys::name_in(key).map(str::to_owned);
    Ok(Some((Handle(record::read(key, value)?), name)))
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
