//! The names of files behind a link in memory.

use std::collections::BTreeMap;

use outcore_core::{Durable, Error, ErrorKind, Handle, Inode, Layout, Result};

#[derive(Default)]
pub struct Names {
    pub inodes: BTreeMap<String, Inode>,
    pub orphans: BTreeMap<u64, Inode>,
    /// Descriptions of directories, by path.
    pub descriptions: BTreeMap<String, Vec<u8>>,
    pub next: u64,
    pub renewals: u64,
}

impl Names {
    pub fn of(&mut self, handle: Handle) -> Result<&mut Inode> {
        let found = self.inodes.values_mut().find(|inode| inode.handle == handle);
        found.ok_or_else(|| Error::new(ErrorKind::NotFound, "there is no such file"))
    }

    pub fn inode(&mut self, layout: Option<Layout>) -> Inode {
        self.next += 1;
        Inode {
            handle: Handle(self.next),
            layout,
            owner: 0,
            group: 0,
            mode: 0o644,
            modified_ns: self.next,
            changed_ns: 0,
            durable: Durable::default(),
            target: None,
        }
    }

    pub fn make_above(&mut self, path: &str) {
        for (at, _) in path.match_indices('/') {
            if !self.inodes.contains_key(&path[..at]) {
                let directory = self.inode(None);
                self.inodes.insert(path[..at].into(), directory);
            }
        }
    }

    pub fn rename(&mut self, from: &str, to: &str) {
        self.forget(to);
        self.make_above(to);
        let below = format!("{from}/");
        let is_moved = |name: &&String| **name == from || name.starts_with(&below);
        let moved: Vec<String> = self.inodes.keys().filter(is_moved).cloned().collect();
        for name in moved {
            let inode = self.inodes.remove(&name).unwrap();
            self.inodes.insert(format!("{to}{}", &name[from.len()..]), inode);
        }
    }

    pub fn forget(&mut self, path: &str) {
        let below = format!("{path}/");
        let gone: Vec<String> =
            self.inodes.keys().filter(|name| *name == path || name.starts_with(&below)).cloned().collect();
        for name in gone {
            let inode = self.inodes.remove(&name).unwrap();
            if inode.layout.is_some() {
                self.orphans.insert(inode.handle.0, inode);
            }
        }
    }
}
