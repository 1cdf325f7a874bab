//! The files and directories that the kernel knows by number, and their paths in the pool.
//!
//! A number is the handle that the manager gave, so it stays the same in all mounts. The kernel refers to the
//! mounted directory as number 1; the file whose handle that is takes the handle of the mounted directory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, INodeNo};
use outcore_core::{Handle, path_at};

use crate::errors::Answer;

/// The numbers that the kernel has looked up and not yet forgotten.
pub(crate) struct Nodes {
    root: Handle,
    root_path: String,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    nodes: HashMap<u64, Node>,
    numbers: HashMap<(u64, String), u64>,
}

struct Node {
    parent: u64,
    name: String,
    lookups: u64,
    /// The time of the last change in the attributes that the kernel got.
    changed: SystemTime,
}

impl Nodes {
    /// The nodes of a mount of the directory `root_path`, which has the handle `root`.
    pub fn new(root: Handle, root_path: String) -> Self {
        Self { root, root_path, known: Mutex::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a handle.
    pub fn number(&self, handle: Handle) -> INodeNo {
        if handle == self.root {
            INodeNo::ROOT
        } else if handle.0 == INodeNo::ROOT.0 {
            INodeNo(self.root.0)
        } else {
            INodeNo(handle.0)
        }
    }

    /// The handle of a number.
    pub fn handle(&self, number: INodeNo) -> Handle {
        if number == INodeNo::ROOT {
            self.root
        } else if number.0 == self.root.0 {
            Handle(INodeNo::ROOT.0)
        } else {
            Handle(number.0)
        }
    }

    /// The path by which requests refer to a number, whatever its name is now.
    pub fn at(&self, number: INodeNo) -> String {
        path_at(self.handle(number))
    }

    /// The path by which requests refer to a name in a directory.
    pub fn at_in(&self, parent: INodeNo, name: &str) -> String {
        format!("{}/{name}", self.at(parent))
    }

    /// The path of a number in the pool. It is stale if another client has renamed the file.
    pub fn path(&self, number: INodeNo) -> Answer<String> {
        let known = self.known();
        let (mut names, mut at) = (Vec::new(), number.0);
        while at != INodeNo::ROOT.0 {
            let node = known.nodes.get(&at).filter(|node| !node.name.is_empty()).ok_or(Errno::ESTALE)?;
            names.push(node.name.as_str());
            at = node.parent;
        }
        let root = Some(self.root_path.as_str()).filter(|path| !path.is_empty());
        Ok(root.into_iter().chain(names.into_iter().rev()).collect::<Vec<_>>().join("/"))
    }

    /// The number of a name in a directory, if the kernel knows it.
    pub fn find(&self, parent: INodeNo, name: &str) -> Option<INodeNo> {
        self.known().numbers.get(&(parent.0, name.to_owned())).copied().map(INodeNo)
    }

    /// Records that the kernel looked up a name, and gets these attributes.
    pub fn looked_up(&self, attributes: &FileAttr, parent: INodeNo, name: &str) {
        let mut known = self.known();
        known.place(attributes.ino.0, parent.0, name);
        if let Some(node) = known.nodes.get_mut(&attributes.ino.0) {
            node.lookups += 1;
            node.changed = attributes.ctime;
        }
    }

    /// Records that the kernel gets attributes of a number.
    pub fn shown(&self, attributes: &FileAttr) {
        if let Some(node) = self.known().nodes.get_mut(&attributes.ino.0) {
            node.changed = attributes.ctime;
        }
    }

    /// Whether a file has changed since the kernel got its attributes, if its last change was at `changed`.
    pub fn has_changed(&self, number: INodeNo, changed: SystemTime) -> bool {
        self.known().nodes.get(&number.0).is_none_or(|node| node.changed != changed)
    }

    /// Records that a name has a new place. The file that had this place before loses its name.
    pub fn renamed(&self, number: INodeNo, parent: INodeNo, name: &str) {
        let mut known = self.known();
        if known.nodes.contains_key(&number.0) {
            known.place(number.0, parent.0, name);
        } else {
            known.displace(parent.0, name);
        }
    }

    /// Records that a name is gone.
    pub fn removed(&self, parent: INodeNo, name: &str) {
        self.known().displace(parent.0, name);
    }

    /// Forgets `lookups` lookups of a number.
    pub fn forget(&self, number: INodeNo, lookups: u64) {
        let mut known = self.known();
        let Some(node) = known.nodes.get_mut(&number.0) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0 {
            known.unplace(number.0);
            known.nodes.remove(&number.0);
        }
    }
}

impl Known {
    fn place(&mut self, number: u64, parent: u64, name: &str) {
        if self.numbers.get(&(parent, name.to_owned())) != Some(&number) {
            self.displace(parent, name);
            self.unplace(number);
            self.numbers.insert((parent, name.to_owned()), number);
        }
        let new = Node { parent, name: String::new(), lookups: 0, changed: UNIX_EPOCH };
        let node = self.nodes.entry(number).or_insert(new);
        (node.parent, node.name) = (parent, name.to_owned());
    }

    /// Takes the place of the file at this name.
    fn displace(&mut self, parent: u64, name: &str) {
        if let Some(number) = self.numbers.remove(&(parent, name.to_owned()))
            && let Some(node) = self.nodes.get_mut(&number)
        {
            node.name.clear();
        }
    }

    /// Removes the name of a number from the index.
    fn unplace(&mut self, number: u64) {
        if let Some(node) = self.nodes.get(&number) {
            let key = (node.parent, node.name.clone());
            if self.numbers.get(&key) == Some(&number) {
                self.numbers.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::entries::of_directory;

    const ROOT: INodeNo = INodeNo::ROOT;

    fn attributes(number: u64) -> FileAttr {
        FileAttr { ctime: UNIX_EPOCH + Duration::from_secs(number), ..of_directory(INodeNo(number)) }
    }

    fn nodes() -> Nodes {
        Nodes::new(Handle(40), "sub".into())
    }

    #[test]
    fn the_mounted_directory_is_number_1() {
        let nodes = nodes();
        assert_eq!(nodes.number(Handle(40)), ROOT);
        assert_eq!(nodes.number(Handle(1)), INodeNo(40));
        assert_eq!(nodes.number(Handle(7)), INodeNo(7));
        assert_eq!(nodes.path(ROOT).unwrap(), "sub");
        for handle in [40, 1, 7].map(Handle) {
            assert_eq!(nodes.handle(nodes.number(handle)), handle);
        }
        assert_eq!(nodes.at_in(ROOT, "a"), format!("{}/a", path_at(Handle(40))));
    }

    #[test]
    fn paths_follow_renames_of_directories() {
        let nodes = nodes();
        nodes.looked_up(&attributes(2), ROOT, "d");
        nodes.looked_up(&attributes(3), INodeNo(2), "f");
        assert_eq!(nodes.path(INodeNo(3)).unwrap(), "sub/d/f");
        nodes.renamed(INodeNo(2), ROOT, "e");
        assert_eq!(nodes.path(INodeNo(3)).unwrap(), "sub/e/f");
        assert_eq!(nodes.find(ROOT, "d"), None);
        assert_eq!(nodes.find(ROOT, "e"), Some(INodeNo(2)));
    }

    #[test]
    fn a_replaced_file_has_no_path() {
        let nodes = nodes();
        nodes.looked_up(&attributes(2), ROOT, "a");
        nodes.looked_up(&attributes(3), ROOT, "b");
        nodes.renamed(INodeNo(2), ROOT, "b");
        assert_eq!(nodes.path(INodeNo(2)).unwrap(), "sub/b");
        assert_eq!(nodes.path(INodeNo(3)).unwrap_err().code(), libc::ESTALE);
        // A number without a name does not hide the file that has its place now.
        nodes.forget(INodeNo(3), 1);
        assert_eq!(nodes.find(ROOT, "b"), Some(INodeNo(2)));
    }

    #[test]
    fn a_number_is_forgotten_after_as_many_lookups() {
        let nodes = nodes();
        nodes.looked_up(&attributes(2), ROOT, "a");
        nodes.looked_up(&attributes(2), ROOT, "a");
        nodes.forget(INodeNo(2), 1);
        assert_eq!(nodes.path(INodeNo(2)).unwrap(), "sub/a");
        nodes.forget(INodeNo(2), 1);
        assert!(nodes.path(INodeNo(2)).is_err());
        assert_eq!(nodes.find(ROOT, "a"), None);
    }

    #[test]
    fn another_file_at_a_known_name_takes_its_place() {
        let nodes = nodes();
        nodes.looked_up(&attributes(2), ROOT, "a");
        nodes.looked_up(&attributes(9), ROOT, "a");
        assert_eq!(nodes.find(ROOT, "a"), Some(INodeNo(9)));
        assert!(nodes.path(INodeNo(2)).is_err());
    }

    #[test]
    fn a_change_after_the_kernel_got_the_attributes_is_known() {
        let nodes = nodes();
        nodes.looked_up(&attributes(2), ROOT, "a");
        let (before, after) = (attributes(2), FileAttr { ctime: attributes(9).ctime, ..attributes(2) });
        assert!(!nodes.has_changed(INodeNo(2), before.ctime) && nodes.has_changed(INodeNo(2), after.ctime));
        nodes.shown(&after);
        assert!(nodes.has_changed(INodeNo(2), before.ctime) && !nodes.has_changed(INodeNo(2), after.ctime));
    }
}
