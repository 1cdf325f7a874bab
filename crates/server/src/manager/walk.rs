//! From a path to what it names.

use outcore_core::{Error, ErrorKind, Handle, Hints, Inode, Result};

use super::access::{SEARCH, WRITE, require};
use super::layouts::merged;
use super::paths::names;
use super::record::Node;
use super::step::Step;
use super::{ROOT, keys};
use crate::store::Store;

/// Most directories that one request makes on its way.
pub const MAX_MADE_ON_THE_WAY: usize = 16;

/// A directory that a walk came to.
#[derive(Clone, Debug)]
pub(super) struct Stop {
    pub node: Node,
    /// What new files in it begin with: the defaults of it and those above it, the nearer first.
    pub hints: Hints,
}

/// A name in a directory, and what it is for, if anything.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The directory, guarded; the user may search it.
    pub parent: Node,
    pub hints: Hints,
    pub name: String,
    /// Guarded.
    pub entry: Option<Node>,
}

impl Place {
    /// What the name is for.
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

/// The directory that a path's last name is in.
pub(super) fn above(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

pub(super) fn is_root(what: &str) -> Error {
    Error::invalid(format!("need a name to {what}, have the pool's root; give a path"))
}

impl<S: Store> Step<'_, S> {
    fn root(&mut self) -> Result<Node> {
        self.look(&keys::inode(ROOT))?.ok_or_else(|| self.stale(ROOT))
    }

    /// What a name in a directory is for.
    fn look_up(&mut self, directory: Handle, name: &str) -> Result<Option<Node>> {
        let Some(handle) = self.look::<u64>(&keys::name(directory, name))?.map(Handle) else {
            return Ok(None);
        };
        self.look(&keys::inode(handle))?.ok_or_else(|| self.stale(handle)).map(Some)
    }

    /// As `look_up`, and it must still be so when the step is committed.
    fn get_named(&mut self, directory: Handle, name: &str) -> Result<Option<Node>> {
        let Some(handle) = self.get::<u64>(&keys::name(directory, name))?.map(Handle) else {
            return Ok(None);
        };
        self.get_node(handle)?.ok_or_else(|| self.stale(handle)).map(Some)
    }

    /// The directory at the end of `names`, every one on the way searched. With `make`, directories that are not there
    /// are made with that mode.
    pub(super) fn descend(&mut self, names: &[&str], make: Option<u32>) -> Result<Stop> {
        let node = self.root()?;
        let mut at = Stop { hints: node.defaults.clone(), node };
        let mut made = 0;
        for (depth, name) in names.iter().enumerate() {
            let path = || names[..=depth].join("/");
            require(&at.node.inode, self.who, SEARCH, &names[..depth].join("/"))?;
            let next = match (self.look_up(at.node.handle(), name)?, make) {
                (Some(node), _) if node.is_directory() => node,
                (Some(_), _) => {
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

    /// A directory as it must still be when the step is committed.
    fn guarded(&mut self, directory: Handle, path: &str) -> Result<Node> {
        self.get_node(directory)?.ok_or_else(|| not_found(path))
    }

    /// The last name of a path in its directory, whether there is something or not.
    pub(super) fn place(&mut self, path: &str, make: Option<u32>, what: &str) -> Result<Place> {
        let names = names(path)?;
        let (&name, above) = names.split_last().ok_or_else(|| is_root(what))?;
        let stop = self.descend(above, make)?;
        let parent = self.guarded(stop.node.handle(), path)?;
        let entry = self.get_named(parent.handle(), name)?;
        Ok(Place { parent, hints: stop.hints, name: name.to_owned(), entry })
    }

    /// What a path names; every directory above it is searched.
    pub(super) fn find(&mut self, path: &str) -> Result<Node> {
        let names = names(path)?;
        let Some((&name, above)) = names.split_last() else { return self.root() };
        let parent = self.descend(above, None)?.node;
        self.look_up(parent.handle(), name)?.ok_or_else(|| not_found(path))
    }

    /// As `find`, and it must still be as it is when the step is committed.
    pub(super) fn find_guarded(&mut self, path: &str) -> Result<Node> {
        let handle = self.find(path)?.handle();
        self.get_node(handle)?.ok_or_else(|| not_found(path))
    }

    /// Puts a new record under a new name, where nothing is, into a directory that the user may write.
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

    /// A new empty directory in a directory that the user may write.
    pub(super) fn make_directory(
        &mut self,
        parent: &Node,
        name: &str,
        mode: u32,
        path: &str,
    ) -> Result<Node> {
        let inode = self.new_inode(parent, mode)?;
        self.add(parent, name, inode, path)
    }

    /// The record of something new in a directory: the user's, of the user's first group, or else of the directory's.
    pub(super) fn new_inode(&mut self, parent: &Node, mode: u32) -> Result<Inode> {
        Ok(Inode {
            handle: self.new_handle()?,
            layout: None,
            owner: self.who.uid,
            group: self.who.gids.first().copied().unwrap_or(parent.inode.group),
            mode,
            modified_ns: self.now.unix_ns,
            changed_ns: self.now.unix_ns,
            durable: outcore_core::Durable::default(),
        })
    }

    /// Notes that names in a directory changed. So what is done to a directory because it is empty conflicts with what
    /// is put into it.
    pub(super) fn touch(&mut self, directory: Handle) -> Result<()> {
        let mut node = self.get_node(directory)?.ok_or_else(|| self.stale(directory))?;
        node.inode.modified_ns = self.now.unix_ns;
        node.inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(())
    }
}
