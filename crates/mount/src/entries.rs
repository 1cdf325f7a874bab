//! Names of a directory with their attributes, for `readdirplus`: one request for many names.

use std::collections::HashMap;
use std::time::UNIX_EPOCH;

use fuser::{FileAttr, FileType, INodeNo};
use outcore_client::Silent;

use crate::errors::{Answer, OrErrno};
use crate::tree::{Listed, Tree};

/// Names whose attributes the first request gets. Each one after it gets twice as many: the kernel may have room for
/// few or many.
const FIRST: usize = 32;
/// Names of a request, at most.
const MOST: usize = 1024;
/// The first names of each listing, `.` and `..`. The kernel ignores their attributes.
const DOTS: usize = 2;

/// A name with its attributes.
pub(crate) struct Entry<'a> {
    pub name: &'a str,
    pub attributes: FileAttr,
    /// Whether the length and the time are known. The length is not if a server does not answer, the time is not after a
    /// write that the manager does not know.
    pub is_known: bool,
}

/// A part of a directory as it is now.
struct Page {
    attributes: HashMap<String, (FileAttr, bool)>,
    /// The last name; `None` at the end of the directory.
    last: Option<String>,
}

impl Page {
    /// Whether a name is in the page if it is in the directory.
    fn reaches(&self, name: &str) -> bool {
        self.last.as_deref().is_none_or(|last| name <= last)
    }
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
        for (number, dot) in names.iter().enumerate().take(DOTS).skip(from) {
            let entry = Entry { name: &dot.name, attributes: of_directory(dot.number), is_known: true };
            if add(entry, number as u64 + 1) {
                return Ok(());
            }
        }
        let mut at = from.max(DOTS);
        let mut after = names[..at.min(names.len())]
            .last()
            .filter(|_| at > DOTS)
            .map_or("", |last| &last.name)
            .to_owned();
        let mut count = FIRST;
        while at < names.len() {
            let page =
                match self.page_after(directory, &after, count, &names[at..names.len().min(at + count)]) {
                    // The next call gets the error.
                    Err(_) if at > from => return Ok(()),
                    page => page?,
                };
            // The page also has hidden names and new ones, so it may end before as many of these names.
            while let Some(listed) = names.get(at).filter(|listed| page.reaches(&listed.name)) {
                at += 1;
                let Some((attributes, is_known)) = page.attributes.get(&listed.name) else { continue };
                let entry = Entry { name: &listed.name, attributes: *attributes, is_known: *is_known };
                if add(entry, at as u64) {
                    return Ok(());
                }
                self.nodes.looked_up(attributes, directory, &listed.name);
            }
            let Some(last) = page.last else { break };
            after = last;
            count = MOST.min(2 * count);
        }
        Ok(())
    }

    /// The attributes of at most `count` names after a name, and whether they are known. `expected` are the names of a
    /// listing that may be among them.
    fn page_after(&self, directory: INodeNo, after: &str, count: usize, expected: &[Listed]) -> Answer<Page> {
        // This comes first: writes may reach the servers meanwhile, and the manager may learn of them.
        let pending = expected.iter().map(|Listed { number, .. }| {
            let end = self.files.pending_end(*number);
            (*number, (end, end > 0 || self.client.is_untold(self.nodes.handle(*number))))
        });
        let pending: HashMap<_, _> = pending.collect();
        let page = self.client.page(&self.nodes.at(directory), after, count as u64, &Silent::default());
        let (page, more) = page.or_errno()?;
        let last = page.last().filter(|_| more).map(|last| last.name.clone());
        let attributes = page.into_iter().map(|listed| {
            let length = listed.inode.target.as_ref().map_or(listed.length, |target| target.len() as u64);
            let number = self.nodes.number(listed.inode.handle);
            let (end, is_written) = pending.get(&number).copied().unwrap_or_default();
            let attributes = self.attributes_of(&listed.inode, length.max(end));
            (listed.name, (attributes, listed.unknown.is_none() && !is_written))
        });
        Ok(Page { attributes: attributes.collect(), last })
    }
}

/// The attributes of a directory of which only the number matters.
pub(crate) fn of_directory(number: INodeNo) -> FileAttr {
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
