//! Names in a pool with the lengths of their files, page by page: one request to the manager, and one to each
//! I/O server.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use outcore_core::{
    Error, ErrorKind, Gather, Hit, Inode, IoReply, IoRequest, LengthGrant, Link, ManagerReply,
    ManagerRequest, Named, Result, ServerId, Target, files_among,
};

use crate::PoolVolume;
use crate::pool::call::unexpected;
use crate::pool::shared::{Shared, TRIES, checked};

/// Records that the manager compares for one page of a search.
const PAGE_OF_SEARCH: u64 = 1000;

/// A name with its record and length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name in its directory; empty for the requested path itself.
    pub name: String,
    /// The manager's record.
    pub inode: Inode,
    /// Length of a file in bytes; 0 for a directory.
    pub length: u64,
    /// The reason why the file may be longer: a server with a part of it did not report its length.
    pub unknown: Option<Error>,
}

impl Listed {
    /// Itself, if its length is known; otherwise the error.
    pub fn known(self) -> Result<Self> {
        match self.unknown {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

/// Servers that did not answer during a listing, and the reasons. The listing does not wait for them again.
#[derive(Debug, Default)]
pub struct Silent(Mutex<BTreeMap<ServerId, Error>>);

impl Silent {
    fn why(&self, server: ServerId) -> Option<Error> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&server).cloned()
    }

    fn add(&self, server: ServerId, error: Error) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(server, error);
    }
}

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    /// The files and directories at and below a path for which a query holds, sorted by path. With an empty query, all
    /// of them.
    ///
    /// # Errors
    ///
    /// If the query cannot be read; the message says at which character. If the user may not list the directory.
    pub fn find(&self, path: &str, query: &str) -> Result<Vec<Hit>> {
        let path = checked(path)?;
        let (mut found, mut after) = (BTreeMap::new(), Vec::new());
        loop {
            let request =
                ManagerRequest::Find { path: path.clone(), query: query.into(), after, most: PAGE_OF_SEARCH };
            match self.0.manager(request)? {
                ManagerReply::Found { hits, next } => {
                    found.extend(hits.into_iter().map(|hit| (hit.path.clone(), hit)));
                    let Some(next) = next else { return Ok(found.into_values().collect()) };
                    after = next;
                }
                reply => return Err(unexpected(&reply)),
            }
        }
    }

    /// At most `most` names of a directory after `after`, sorted, and whether more follow. For a file, the
    /// file itself.
    ///
    /// Sends no requests to the `silent` servers.
    pub fn page(&self, path: &str, after: &str, most: u64, silent: &Silent) -> Result<(Vec<Listed>, bool)> {
        self.0.page(&checked(path)?, after, most, silent)
    }
}

impl<L: Link + ?Sized + 'static> Shared<L>
where
    L::Buffer: Gather + Sync,
{
    pub(crate) fn page(
        &self,
        path: &str,
        after: &str,
        most: u64,
        silent: &Silent,
    ) -> Result<(Vec<Listed>, bool)> {
        let mut tries = 1;
        loop {
            let request = ManagerRequest::Look { path: path.into(), after: after.into(), most };
            let (names, more, grant) = match self.manager(request)? {
                ManagerReply::Looked { names, more, grant } => (names, more, grant),
                reply => return Err(unexpected(&reply)),
            };
            match self.with_lengths(names, grant, silent) {
                Err(error) if error.kind == ErrorKind::Denied && tries < TRIES => tries += 1,
                listed => return listed.map(|listed| (listed, more)),
            }
        }
    }

    fn with_lengths(&self, names: Vec<Named>, grant: LengthGrant, silent: &Silent) -> Result<Vec<Listed>> {
        let handles = files_among(&names);
        // For each server, the numbers of the names to query, with their targets.
        let mut asked: BTreeMap<ServerId, Vec<(usize, Target)>> = BTreeMap::new();
        for (number, Named { inode, .. }) in names.iter().enumerate() {
            let Some(layout) = &inode.layout else { continue };
            for (&server, entry) in layout.servers.iter().zip(0..) {
                let target = Target { handle: inode.handle, stripes: layout.stripes, entry, generation: 0 };
                asked.entry(server).or_default().push((number, target));
            }
        }
        let unlooked =
            |Named { name, inode }| Listed { length: inode.durable_length(), name, inode, unknown: None };
        let mut listed: Vec<Listed> = names.into_iter().map(unlooked).collect();
        asked.retain(|&server, targets| {
            let why = silent.why(server);
            why.iter().for_each(|error| leave_unknown(&mut listed, targets, error));
            why.is_none()
        });
        let asked: Vec<_> = asked.into_iter().collect();
        let request = |(server, targets): &(ServerId, Vec<(usize, Target)>)| {
            let targets = targets.iter().map(|&(_, target)| target).collect();
            (*server, IoRequest::Lengths { handles: handles.clone(), grant, targets })
        };
        let replies = self.servers.wait_each(asked.iter().map(request).collect(), &self.none);
        for ((server, targets), reply) in asked.iter().zip(replies) {
            let reply = match reply {
                // This server is unreachable, or its disk fails. That does not concern the others.
                Err(error) if error.kind == ErrorKind::Io => {
                    leave_unknown(&mut listed, targets, &error);
                    silent.add(*server, error);
                    continue;
                }
                reply => reply?,
            };
            let IoReply::Lengths(lengths) = &reply else { return Err(unexpected(&reply)) };
            if lengths.len() != targets.len() {
                return Err(unexpected(&reply));
            }
            for (&(number, target), &local) in targets.iter().zip(lengths) {
                let least = target.stripes.length_from(target.entry, local).ok_or_else(|| {
                    let name = &listed[number].name;
                    let text =
                        format!("a data file of {name:?} is said to be {local} bytes long, which cannot be");
                    Error::new(ErrorKind::Corrupt, text)
                })?;
                listed[number].length = listed[number].length.max(least);
            }
        }
        Ok(listed)
    }
}

fn leave_unknown(listed: &mut [Listed], asked: &[(usize, Target)], why: &Error) {
    asked.iter().for_each(|&(number, _)| listed[number].unknown = Some(why.clone()));
}
