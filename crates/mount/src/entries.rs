//! Names of a directory with their attributes, for `readdirplus`: one request for many names.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};
use outcore_client::Silent;

use crate::errors::{Answer, OrErrno};
use crate::tree::{Listed, Tree};

/// Names whose attributes one request gets.
const PAGE: usize = 256;
/// The first names of each listing, `.` and `..`. The kernel ignores their attributes.
const DOTS: usize = 2;

/// A name with its attributes.
pub(crate) struct Entry<'a> {
    pub name: &'a str,
    pub attributes: FileAttr,
    /// Whether the length is known. It is not if a server does not answer.
    pub is_known: bool,
}

impl Tree {
    /// Adds the names of a listing, from number `from` on, until `add` returns that there is no more room. Names that
    /// are gone meanwhile are left out. The kernel forgets each added name later. `add` also gets the number of the next
    /// name.
    pub fn fill(
        &self,
        directory: INodeNo,
        names: &[Listed],
        from: usize,
        mut add: impl FnMut(Entry<'_>, u64) -> bool,
    ) -> Answer<()> {
        let mut at = from;
        while at < names.len() {
            let end = names.len().min(at + PAGE);
            let found = match self.attributes_among(directory, names, at..end) {
                // The next call gets the error.
                Err(_) if at > from => return Ok(()),
                found => found?,
            };
            for listed in &names[at..end] {
                at += 1;
                let Some((attributes, is_known)) = found.get(listed.name.as_str()) else { continue };
                let entry = Entry { name: &listed.name, attributes: *attributes, is_known: *is_known };
                if add(entry, at as u64) {
                    return Ok(());
                }
                if at > DOTS {
                    self.nodes.looked_up(attributes.ino, directory, &listed.name);
                }
            }
        }
        Ok(())
    }

    /// The attributes of some names of a listing, and whether their lengths are known.
    fn attributes_among(
        &self,
        directory: INodeNo,
        names: &[Listed],
        range: std::ops::Range<usize>,
    ) -> Answer<HashMap<String, (FileAttr, bool)>> {
        // This comes first: writes may reach the servers meanwhile.
        let of_page = &names[range.clone()];
        let pending: HashMap<_, _> =
            of_page.iter().map(|listed| (listed.number, self.files.pending_end(listed.number))).collect();
        let after = if range.start > DOTS { names[range.start - 1].name.as_str() } else { "" };
        let page = self.client.page(&self.nodes.at(directory), after, PAGE as u64, &Silent::default());
        let (page, _) = page.or_errno()?;
        let dots = of_page.iter().take(DOTS.saturating_sub(range.start));
        let dots = dots.map(|listed| (listed.name.clone(), (of_directory(listed.number), true)));
        let others = page.into_iter().map(|listed| {
            let length = listed.inode.target.as_ref().map_or(listed.length, |target| target.len() as u64);
            let number = self.nodes.number(listed.inode.handle);
            let length = length.max(pending.get(&number).copied().unwrap_or(0));
            let attributes = self.attributes_of(&listed.inode, length);
            (listed.name, (attributes, listed.unknown.is_none()))
        });
        Ok(dots.chain(others).collect())
    }
}

/// The attributes of a directory of which only the number matters.
fn of_directory(number: INodeNo) -> FileAttr {
    FileAttr {
        ino: number,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}
