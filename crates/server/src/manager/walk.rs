//! Resolution of paths.

use outcore_core::{Error, ErrorKind, Handle, Hints, Inode, Result, path_at};

use super::access::{SEARCH, SET_GROUP, WRITE, require, settable};
use super::layouts::merged;
use super::paths::{MAX_PATH_BYTES, parts};
use super::record::Node;
use super::step::Step;
use super::{ROOT, keys};
use crate::store::Store;

/// Directories that one request creates on its way, at most.
pub const MAX_MADE_ON_THE_WAY: usize = 16;

/// A directory reached by a walk.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub node: Node,
    /// Default hints of new files in it: its own, completed by those of the directories above it.
    pub hints: Hints,
}

/// A name in a directory, and its entry, if any.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The directory. It is guarded, and the user may search it.
    pub parent: Node,
    pub hints: Hints,
    pub name: String,
    /// The guarded entry.
    pub entry: Option<Node>,
}

impl Place {
    /// The entry of the name.
    pub(super) fn entry(&self, path: &str) -> Result<&Node> {
        self.entry.as_ref().ok_or_else(|| not_found(path))
    }
}

pub(super) fn not_found(path: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("need {path:?} in the pool, have nothing of that name; check the path"),
    )
}

/// The path of the directory that contains a path's last name.
pub(super) fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

pub(super) fn is_root(what: &str) -> Error {
    Error::invalid(format!("need a name to {what}, have the pool's root; give a path"))
}

impl<S: Store> Step<'_, S> {
    /// The entry of a name in a directory.
    fn look_up(&mut self, directory: Handle, name: &str) -> Result<Option<Node>> {
        let Some(handle) = self.look::<u64>(&keys::name(directory, name))?.map(Handle) else {
            return Ok(None);
        };
        self.look(&keys::inode(handle))?.ok_or_else(|| self.stale(handle)).map(Some)
    }

    /// Finds an entry like `look_up`, and guards it: it must be unchanged when the step is committed.
    fn get_named(&mut self, directory: Handle, name: &str) -> Result<Option<Node>> {
        let Some(handle) = self.get::<u64>(&keys::name(directory, name))?.map(Handle) else {
            return Ok(None);
        };
        self.get_node(handle)?.ok_or_else(|| self.stale(handle)).map(Some)
    }

    /// The records of a file or directory, and of all directories above it up to the root.
    fn line(&self, handle: Handle) -> Result<Vec<Node>> {
        let gone = || not_found(&format!("the file or directory {}", handle.0));
        let mut line: Vec<Node> = Vec::new();
        let mut at = handle;
        loop {
            let node: Node = self.look(&keys::inode(at))?.ok_or_else(gone)?;
            let parent = node.parent;
            line.push(node);
            if at == ROOT {
                return Ok(line);
            }
            if line.len() > MAX_PATH_BYTES {
                return Err(gone());
            }
            at = parent;
        }
    }

    /// Whether a directory is `above`, or somewhere below it.
    pub(super) fn is_within(&self, directory: Handle, above: Handle) -> Result<bool> {
        Ok(self.line(directory)?.iter().any(|node| node.handle() == above))
    }

    /// The file or directory with a handle. The user must have the right to search every directory above it.
    fn at(&mut self, handle: Handle) -> Result<Stop> {
        let mut line = self.line(handle)?;
        let mut hints = Hints::default();
        for node in line.iter().rev() {
            if node.handle() != handle {
                require(&node.inode, self.who, SEARCH, "a directory above an open one")?;
            }
            hints = merged(&node.defaults, &hints);
        }
        Ok(Stop { node: line.swap_remove(0), hints })
    }

    /// The directory at the end of `names`, from `start` or else the root on. The user must have the right to search
    /// each one. With `make`, missing directories are created with that mode.
    pub(super) fn descend(
        &mut self,
        start: Option<Handle>,
        names: &[&str],
        make: Option<u32>,
    ) -> Result<Stop> {
        let mut at = self.at(start.unwrap_or(ROOT))?;
        if !at.node.is_directory() {
            self.meet(&at.node, &path_at(at.node.handle()))?;
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("need a directory above {:?}, have a file; check the path", names.join("/")),
            ));
        }
        let mut made = 0;
        for (depth, name) in names.iter().enumerate() {
            let path = || names[..=depth].join("/");
            require(&at.node.inode, self.who, SEARCH, &names[..depth].join("/"))?;
            let next = match (self.look_up(at.node.handle(), name)?, make) {
                (Some(node), _) if node.is_directory() => node,
                (Some(node), _) => {
                    // The answer is the beginning of the requested path.
                    let met = start.map_or_else(path, |handle| format!("{}/{}", path_at(handle), path()));
                    self.meet(&node, &met)?;
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!("need a directory at {:?}, have a file; check the path", path()),
                    ));
                }
                (None, None) => return Err(not_found(&path())),
                (None, Some(_)) if made == MAX_MADE_ON_THE_WAY => {
                    return Err(Error::invalid(format!(
                        "need at most {MAX_MADE_ON_THE_WAY} new directories at once, have more above {:?}; make some \
                         of them first",
                        names.join("/")
                    )));
                }
                (None, Some(mode)) => {
                    made += 1;
                    let parent = self.guarded(at.node.handle(), &path())?;
                    self.make_directory(&parent, name, mode, &path())?
                }
            };
            at = Stop { hints: merged(&next.defaults, &at.hints), node: next };
        }
        require(&at.node.inode, self.who, SEARCH, &names.join("/"))?;
        Ok(at)
    }

    /// The guarded record of a directory.
    fn guarded(&mut self, directory: Handle, path: &str) -> Result<Node> {
        self.get_node(directory)?.ok_or_else(|| not_found(path))
    }

    /// The last name of a path in its directory, with its entry if there is one.
    pub(super) fn place(&mut self, path: &str, make: Option<u32>, what: &str) -> Result<Place> {
        let (start, names) = parts(path)?;
        let (&name, above) = names.split_last().ok_or_else(|| is_root(what))?;
        let stop = self.descend(start, above, make)?;
        let parent = self.guarded(stop.node.handle(), path)?;
        let entry = self.get_named(parent.handle(), name)?;
        Ok(Place { parent, hints: stop.hints, name: name.to_owned(), entry })
    }

    /// The entry of a path. The user must have the right to search every directory above it.
    pub(super) fn find(&mut self, path: &str) -> Result<Node> {
        let (start, names) = parts(path)?;
        let Some((&name, above)) = names.split_last() else {
            return Ok(self.at(start.unwrap_or(ROOT))?.node);
        };
        let parent = self.descend(start, above, None)?.node;
        self.look_up(parent.handle(), name)?.ok_or_else(|| not_found(path))
    }

    /// Finds an entry like `find`, and guards it: it must be unchanged when the step is committed.
    pub(super) fn find_guarded(&mut self, path: &str) -> Result<Node> {
        let handle = self.find(path)?.handle();
        self.get_node(handle)?.ok_or_else(|| not_found(path))
    }

    /// Adds a record under a new name to a directory that the user may write.
    pub(super) fn add(&mut self, parent: &Node, name: &str, inode: Inode, path: &str) -> Result<Node> {
        require(&parent.inode, self.who, WRITE, above(path))?;
        let key = keys::name(parent.handle(), name);
        if self.get::<u64>(&key)?.is_some() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "need a new name, have something at {path:?} already; choose another, or remove that"
                ),
            ));
        }
        let node = Node { inode, parent: parent.handle(), defaults: Hints::default() };
        self.put(key, &node.handle().0);
        self.put_node(&node);
        self.touch(parent.handle())?;
        Ok(node)
    }

    /// Creates an empty directory in a directory that the user may write.
    pub(super) fn make_directory(
        &mut self,
        parent: &Node,
        name: &str,
        mode: u32,
        path: &str,
    ) -> Result<Node> {
        let mut inode = self.new_inode(parent, mode)?;
        // As on Linux, the bit of the directory above counts even if the user is not of the group.
        inode.mode = settable(mode, &inode, self.who) | parent.inode.mode & SET_GROUP;
        let node = self.add(parent, name, inode, path)?;
        self.note_name(&node, name)?;
        Ok(node)
    }

    /// The record of a new entry. It belongs to the user, and to the user's first group. In a directory with the
    /// set-group-ID bit, and for a user without groups, it gets the directory's group.
    pub(super) fn new_inode(&mut self, parent: &Node, mode: u32) -> Result<Inode> {
        let own = self.who.gids.first().filter(|_| parent.inode.mode & SET_GROUP == 0);
        Ok(Inode {
            handle: self.new_handle()?,
            layout: None,
            owner: self.who.uid,
            group: own.copied().unwrap_or(parent.inode.group),
            mode,
            modified_ns: self.now.unix_ns,
            changed_ns: self.now.unix_ns,
            durable: outcore_core::Durable::default(),
            target: None,
        })
    }

    /// Records that the names in a directory changed. An operation that needs an empty directory then conflicts
    /// with a concurrent addition.
    pub(super) fn touch(&mut self, directory: Handle) -> Result<()> {
        let mut node = self.get_node(directory)?.ok_or_else(|| self.stale(directory))?;
        node.inode.modified_ns = self.now.unix_ns;
        node.inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(())
    }
}
