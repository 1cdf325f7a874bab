//! Symbolic links: the client follows them within the pool.

use outcore_core::{Error, ErrorKind, Gather, Inode, Link, ManagerReply, ManagerRequest, Result, handle_in};

use crate::PoolVolume;
use crate::pool::call::unexpected;
use crate::pool::shared::{Shared, checked};

/// Links that a path leads through, at most, as on Linux.
pub const MAX_LINKS: usize = 40;

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    /// Creates a symbolic link in an existing directory. `target` is any text; clients that follow the link read
    /// it relative to the link's directory.
    ///
    /// # Errors
    ///
    /// If the name exists, the directory does not, or no link can have this target.
    pub fn make_link(&self, path: &str, target: &str) -> Result<()> {
        let request = ManagerRequest::MakeLink { path: checked(path)?, target: target.into() };
        match self.0.manager(request)? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// The path without symbolic links, also in its last name. That name itself need not exist.
    ///
    /// # Errors
    ///
    /// If a link leads outside of the pool, through more than [`MAX_LINKS`] links, or through a name that is
    /// missing or no directory.
    pub fn follow(&self, path: &str) -> Result<String> {
        self.0.follow(checked(path)?)
    }

    /// The manager's record of a name; of a symbolic link that of its target.
    ///
    /// # Errors
    ///
    /// Those of [`Self::follow`], and if nothing is there.
    pub fn stat_followed(&self, path: &str) -> Result<Inode> {
        let inode = self.stat(path)?;
        if inode.is_link() { self.stat(&self.follow(path)?) } else { Ok(inode) }
    }

    /// From now on, refuses paths through symbolic links, and does not apply the umask of this process. A mount does
    /// so: the kernel follows links itself, and applies the umask of each program.
    pub fn leave_to_kernel(&self) {
        self.0.leave_to_kernel();
    }
}

impl<L: Link + ?Sized + 'static> Shared<L>
where
    L::Buffer: Gather + Sync,
{
    /// Repeats a request whose paths lead through the link `path`, with its target in their places.
    pub(crate) fn through_links(
        &self,
        mut request: ManagerRequest,
        (mut path, mut target): (String, String),
    ) -> Result<ManagerReply> {
        let mut links = 0;
        loop {
            if !self.follows() {
                return Err(Error::new(
                    ErrorKind::Loop,
                    format!("need a path without symbolic links, have one at {path:?}; look up its target"),
                ));
            }
            let place = self.target_of(&path, &target, &mut links)?;
            let follows_last = follows_last(&request);
            for each in paths_of(&mut request) {
                if let Some(rest) = below(each, &path).filter(|rest| follows_last || !rest.is_empty()) {
                    *each = joined(&place, rest);
                }
            }
            match self.servers.link().manager(request.clone())? {
                ManagerReply::Link { path: next, target: of_next } => (path, target) = (next, of_next),
                ManagerReply::Failed(error) => return Err(error),
                reply => return Ok(reply),
            }
        }
    }

    /// The path that a link leads to.
    fn target_of(&self, path: &str, target: &str, links: &mut usize) -> Result<String> {
        *links += 1;
        if *links > MAX_LINKS {
            return Err(Error::new(
                ErrorKind::Loop,
                format!(
                    "need a path through at most {MAX_LINKS} symbolic links, have more from {path:?} on; remove a link \
                     that leads back to itself"
                ),
            ));
        }
        let outside = || {
            Error::new(
                ErrorKind::NotFound,
                format!(
                    "need a target inside the pool, have the symbolic link {path:?} to {target:?}, which leads outside; \
                     use it in a mount, or replace it"
                ),
            )
        };
        let nameless = || {
            Error::invalid(format!(
                "need names from the pool's root for the symbolic link {path:?} to {target:?}, have a handle, whose \
                 directory is unknown; give such a path"
            ))
        };
        if target.starts_with('/') {
            return Err(outside());
        }
        if is_handle(path) {
            return Err(nameless());
        }
        let mut at = path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
        // All names of `at` are those of directories until one of the target is added.
        let mut is_known = true;
        for name in target.split('/').filter(|name| !matches!(*name, "" | ".")) {
            if name != ".." {
                at = joined(&at, name);
                is_known = false;
                continue;
            }
            if !is_known {
                at = self.followed(at, links)?;
                if !self.stat(&at)?.is_directory() {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!(
                            "need a directory at {at:?}, for the symbolic link {path:?} to {target:?}, have a file; \
                             replace the link"
                        ),
                    ));
                }
                is_known = true;
            }
            if at.is_empty() {
                return Err(outside());
            }
            if is_handle(&at) {
                return Err(nameless());
            }
            at.truncate(at.rfind('/').unwrap_or(0));
        }
        Ok(at)
    }

    /// See [`PoolVolume::follow`].
    pub(crate) fn follow(&self, path: String) -> Result<String> {
        let mut links = 0;
        self.followed(path, &mut links)
    }

    fn followed(&self, mut path: String, links: &mut usize) -> Result<String> {
        loop {
            let reply = self.servers.link().manager(ManagerRequest::Stat { path: path.clone() })?;
            let (link, target) = match reply {
                ManagerReply::Link { path, target } => (path, target),
                ManagerReply::Inode(inode) => match inode.target {
                    Some(target) => (path.clone(), target),
                    None => return Ok(path),
                },
                ManagerReply::Failed(error) if error.kind == ErrorKind::NotFound => {
                    return self.missing(path, error);
                }
                ManagerReply::Failed(error) => return Err(error),
                reply => return Err(unexpected(&reply)),
            };
            let place = self.target_of(&link, &target, links)?;
            path = joined(&place, below(&path, &link).unwrap_or_default());
        }
    }

    /// A path whose last name does not exist, if its directory does.
    fn missing(&self, path: String, error: Error) -> Result<String> {
        if is_handle(&path) {
            return Err(error);
        }
        let above = path.rsplit_once('/').map_or("", |(above, _)| above).to_owned();
        if self.stat(&above)?.is_directory() { Ok(path) } else { Err(error) }
    }
}

/// The paths of a request.
fn paths_of(request: &mut ManagerRequest) -> Vec<&mut String> {
    use ManagerRequest as R;
    match request {
        R::Open { path, .. }
        | R::Create { path, .. }
        | R::Stat { path }
        | R::List { path, .. }
        | R::MakeDirectory { path, .. }
        | R::MakeLink { path, .. }
        | R::Remove { path, .. }
        | R::SetAttributes { path, .. }
        | R::SetDefaultLayout { path, .. }
        | R::GetExtended { path, .. }
        | R::SetExtended { path, .. }
        | R::Look { path, .. }
        | R::Find { path, .. }
        | R::Touch { path } => vec![path],
        R::Rename { from, to, .. } | R::Replace { from, to } => vec![from, to],
        R::Move { from, to, kept } => [from, to].into_iter().chain(kept).collect(),
        R::Servers
        | R::Renew { .. }
        | R::Orphans { .. }
        | R::AddServer { .. }
        | R::NewServer
        | R::Retire { .. }
        | R::Files { .. }
        | R::Check { .. }
        | R::Mend { .. }
        | R::Know { .. }
        | R::Paths { .. }
        | R::Time
        | R::Wrote { .. }
        | R::BeginCut { .. }
        | R::EndCut { .. }
        | R::Describe { .. }
        | R::RenewLease { .. }
        | R::EndLease { .. }
        | R::SetLock { .. }
        | R::TestLock { .. } => vec![],
    }
}

/// Whether a request is about the target of a link at the end of its path. The others are about the link itself, even if
/// another of their paths leads through it.
fn follows_last(request: &ManagerRequest) -> bool {
    use ManagerRequest as R;
    !matches!(
        request,
        R::MakeLink { .. } | R::Remove { .. } | R::Rename { .. } | R::Replace { .. } | R::Move { .. }
    )
}

/// Whether a path is a handle without names.
fn is_handle(path: &str) -> bool {
    matches!(handle_in(path), Some((_, "")))
}

/// The part of a path below `above`; empty for `above` itself, `None` for another path.
fn below<'a>(path: &'a str, above: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(above)?;
    if rest.is_empty() { Some(rest) } else { rest.strip_prefix('/') }
}

fn joined(above: &str, below: &str) -> String {
    match (above, below) {
        ("", only) | (only, "") => only.to_owned(),
        (above, below) => format!("{above}/{below}"),
    }
}
