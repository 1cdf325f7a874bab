//! Names in a pool, and its small files. Each small file lies on one server.

use std::hash::{BuildHasher, RandomState};
use std::time::SystemTime;

use outcore_core::{
    Buffer, Entry, Error, ErrorKind, Gather, Handle, Hints, IoRequest, Link, ManagerReply, ManagerRequest,
    Named, Opened, Regions, Result, Target,
};

use crate::pool::call::{Call, unexpected};
use crate::pool::description::{MAX_METADATA_BYTES, describes, description_of};
use crate::pool::durable::DataEnd;
use crate::pool::file::{PoolFile, ends_of};
use crate::pool::listing::{Listed, Silent};
use crate::pool::shared::{Shared, TRIES, is_done, is_moved, separate};

/// Number of names and orphans per request.
const PAGE: u64 = 1000;
/// Maximum length of a file that is read as a small file.
const MOST_SMALL_BYTES: u64 = 1 << 30;

impl<L: Link + ?Sized + 'static> Shared<L>
where
    L::Buffer: Gather + Sync,
{
    pub(crate) fn read_small(&self, path: &str) -> Result<Vec<u8>> {
        loop {
            let file = self.open(path, false)?;
            match self.read_all(&file) {
                // The file was replaced or removed meanwhile.
                Err(error) if error.kind == ErrorKind::NotFound => {}
                found => return found,
            }
        }
    }

    fn read_all(&self, file: &PoolFile) -> Result<Vec<u8>> {
        let length = self.length(file)?;
        if length > MOST_SMALL_BYTES {
            return Err(Error::invalid(format!(
                "{} is {length} bytes, too large to be read at once; open it and read parts",
                file.path
            )));
        }
        if length == 0 {
            return Ok(vec![]);
        }
        let buffer = L::Buffer::allocate(length as usize)?;
        let regions = Regions::contiguous(0, length)?;
        self.granted(file, |grant| {
            let calls =
                file.parts(&regions, &buffer, |target, regions| IoRequest::Read { target, grant, regions });
            self.wait_there(file, calls)?.iter().try_for_each(is_moved)
        })?;
        let mut bytes = vec![0; length as usize];
        buffer.copy_out(0, &mut bytes);
        Ok(bytes)
    }

    pub(crate) fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        // A forked process may have the same random state.
        let token = RandomState::new().hash_one((path, std::process::id(), SystemTime::now()));
        let fresh = format!("{path}.{token}.new");
        // The first write creates its data file with the right length.
        let file = self.create(&fresh, 0, false, on_one_server())?;
        let path = crate::pool::shared::checked(path)?;
        let replaced = self.write_durably(&file, 0, bytes).and_then(|()| {
            // Reported together with the new name, it needs no separate commit.
            let durable = self.take_durable(file.handle);
            let description = describes(&path).then(|| description_of(bytes).unwrap_or_default());
            self.rename_reporting(&file.path, &path, &durable, description)
        });
        if replaced.is_err() {
            // Report the first error.
            let _ = self.remove(&file.path, false);
        }
        replaced
    }

    pub(crate) fn append_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let opened = self.open(path, true);
        let file = match opened {
            Err(error) if error.kind == ErrorKind::NotFound => {
                self.create(path, 0, false, on_one_server())?
            }
            opened => opened?,
        };
        let length = self.length(&file)?;
        self.write_durably(&file, length, bytes)
    }

    fn write_durably(&self, file: &PoolFile, at: u64, bytes: &[u8]) -> Result<()> {
        if !bytes.is_empty() {
            let mut buffer = L::Buffer::allocate(bytes.len())?;
            buffer.copy_in(0, bytes);
            let regions = Regions::contiguous(at, bytes.len() as u64)?;
            self.granted(file, |grant| {
                let calls = file.parts(&regions, &buffer, |target, regions| IoRequest::Write {
                    target,
                    grant,
                    regions,
                });
                self.servers.wait_all(calls)?.iter().try_for_each(is_done)
            })?;
            self.note_written(file);
        }
        self.settled(file)
    }

    /// Syncs a file.
    pub(crate) fn settled(&self, file: &PoolFile) -> Result<()> {
        let turn = file.tracked().turn();
        let replies =
            self.granted(file, |grant| self.wait_there(file, file.sync_calls(grant, &self.none)))?;
        self.note_synced(file, turn, &ends_of(&replies)?);
        Ok(())
    }

    /// All names in a directory, page by page.
    pub(crate) fn names(&self, path: &str) -> Result<Vec<Named>> {
        let mut all: Vec<Named> = Vec::new();
        loop {
            let after = all.last().map_or(String::new(), |last| last.name.clone());
            let request = ManagerRequest::List { path: path.into(), after, most: PAGE };
            match self.manager(request)? {
                ManagerReply::Names { names, more } => {
                    let is_last = !more || names.is_empty();
                    all.extend(names);
                    if is_last {
                        return Ok(all);
                    }
                }
                reply => return Err(unexpected(&reply)),
            }
        }
    }

    /// All names in a directory, and the lengths of its files, which the servers know. Each page is one
    /// request to the manager and one to each server.
    pub(crate) fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let mut entries: Vec<Entry> = Vec::new();
        loop {
            let after = entries.last().map_or("", |last| last.name.as_str());
            let (page, more) = self.page(path, after, PAGE, &Silent::default())?;
            if page.iter().any(|listed| listed.name.is_empty()) {
                return Err(Error::invalid(format!("{path} is a file, not a directory; check the path")));
            }
            let is_last = !more || page.is_empty();
            for listed in page {
                let Listed { name, inode, length, .. } = listed.known()?;
                entries.push(Entry { name, is_directory: inode.is_directory(), length });
            }
            if is_last {
                return Ok(entries);
            }
        }
    }

    /// Removes a file, a link or an empty directory; if `recursive`, also a directory with its contents, and the data
    /// files of all files without a name that the user may remove.
    pub(crate) fn remove(&self, path: &str, recursive: bool) -> Result<()> {
        let request = ManagerRequest::Remove { path: path.into(), recursive };
        self.remove_data(request, recursive)
    }

    /// Renames. A file that becomes the metadata of an array or a group describes its directory.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        let description = if describes(to) { self.description_in(from) } else { None };
        self.rename_reporting(from, to, &[], description)
    }

    /// The description in a file, if the client can read it. The rename reports other errors.
    fn description_in(&self, path: &str) -> Option<Vec<u8>> {
        let file = self.open(path, false).ok()?;
        let is_small = self.length(&file).ok()? <= MAX_METADATA_BYTES;
        let metadata = if is_small { self.read_all(&file).ok()? } else { Vec::new() };
        Some(description_of(&metadata).unwrap_or_default())
    }

    /// Renames a file with the durable state `durable`, and describes the directory of its new name.
    fn rename_reporting(
        &self,
        from: &str,
        to: &str,
        durable: &[DataEnd],
        description: Option<Vec<u8>>,
    ) -> Result<()> {
        let (durable, generations) = separate(durable);
        let (from, to) = (from.into(), to.into());
        let request = ManagerRequest::Rename { from, to, durable, generations, description };
        self.remove_data(request, false)
    }

    /// Renames over a file, or over a directory with its contents.
    pub(crate) fn replace(&self, from: &str, to: &str) -> Result<()> {
        let reply = self.manager(ManagerRequest::Replace { from: from.into(), to: to.into() })?;
        // The rename is done. Data files that cannot be removed now, because a server does not answer, stay
        // listed. The next removal of a directory with its contents, or check of the pool, removes them.
        let _ = self.remove_orphans(reply, true);
        Ok(())
    }

    /// Removes the data files of all files without a name that the user may remove.
    pub(crate) fn finish_removals(&self) -> Result<()> {
        let first = ManagerRequest::Orphans { gone: vec![], after: Handle(0), most: PAGE };
        self.remove_data(first, true)
    }

    /// Sends a request that leaves files without a name, and removes their data files, with `all` those of earlier
    /// requests too. Data files that cannot be removed now stay listed with the manager.
    fn remove_data(&self, request: ManagerRequest, all: bool) -> Result<()> {
        self.remove_orphans(self.manager(request)?, all)
    }

    fn remove_orphans(&self, mut reply: ManagerReply, all: bool) -> Result<()> {
        let mut tries = 1;
        loop {
            let orphans = match reply {
                ManagerReply::Done => return Ok(()),
                ManagerReply::Orphans(orphans) => orphans,
                reply => return Err(unexpected(&reply)),
            };
            if orphans.is_empty() {
                return Ok(());
            }
            let gone = match self.remove_data_files(&orphans) {
                // Get this page again, with new grants.
                Err(error) if error.kind == ErrorKind::Denied && tries < TRIES => {
                    let first = orphans.iter().map(|orphan| orphan.inode.handle.0).min().unwrap_or(0);
                    let after = Handle(first.saturating_sub(1));
                    let most = if all { PAGE } else { orphans.len() as u64 };
                    reply = self.manager(ManagerRequest::Orphans { gone: vec![], after, most })?;
                    tries += 1;
                    continue;
                }
                gone => gone?,
            };
            tries = 1;
            let after = gone.iter().copied().max().unwrap_or(Handle(0));
            let most = if all { PAGE } else { 1 };
            reply = self.manager(ManagerRequest::Orphans { gone, after, most })?;
            if !all {
                return Ok(());
            }
        }
    }

    fn remove_data_files(&self, orphans: &[Opened]) -> Result<Vec<Handle>> {
        let mut calls = Vec::new();
        for Opened { inode, grant } in orphans {
            let Some(layout) = &inode.layout else { continue };
            for (&server, entry) in layout.servers.iter().zip(0..) {
                // These data are lost. If the server returns, a check finds them there as stray data.
                if self.servers.link().is_retired(server) {
                    continue;
                }
                let target = Target { handle: inode.handle, stripes: layout.stripes, entry, generation: 0 };
                let request = IoRequest::Remove { target, grant: *grant };
                calls.push(Call::new(server, request, self.none.clone()));
            }
        }
        self.servers.wait_all(calls)?.iter().try_for_each(is_done)?;
        Ok(orphans.iter().map(|orphan| orphan.inode.handle).collect())
    }
}

fn on_one_server() -> Hints {
    Hints { stripe_count: Some(1), ..Hints::default() }
}
