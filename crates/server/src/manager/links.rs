//! Symbolic links. The manager stores them and never follows them: it answers a request whose path leads through
//! one with the link's path and target, and the client follows it or refuses.

use outcore_core::{Error, ManagerReply, Result};

use super::record::Node;
use super::step::Step;
use super::{Manager, Now, User};
use crate::store::Store;

/// Bytes of the target of a link, at most: with its zero byte it fits into `PATH_MAX` of Linux.
pub const MAX_TARGET_BYTES: usize = 4095;
/// The mode of a link, as on Linux. It grants nothing.
const LINK_MODE: u32 = 0o777;

/// A link that a request met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Met {
    pub path: String,
    pub target: String,
}

impl<S: Store> Step<'_, S> {
    /// If the node is a link, records it as met and returns an error. The manager answers with the link instead
    /// of that error.
    pub(super) fn meet(&mut self, node: &Node, path: &str) -> Result<()> {
        let Some(target) = &node.inode.target else { return Ok(()) };
        self.memory.met = Some(Met { path: path.to_owned(), target: target.clone() });
        Err(Error::invalid(format!(
            "need a file or directory at {path:?}, have a symbolic link to {target:?}; give the path of its target"
        )))
    }

    fn make_link(&mut self, path: &str, target: &str) -> Result<()> {
        check_target(target)?;
        let place = self.place(path, None, "make a link")?;
        let mut inode = self.new_inode(&place.parent, LINK_MODE)?;
        inode.target = Some(target.to_owned());
        self.add(&place.parent, &place.name, inode, path).map(|_| ())
    }
}

fn check_target(target: &str) -> Result<()> {
    if target.is_empty() || target.len() > MAX_TARGET_BYTES || target.contains('\0') {
        return Err(Error::invalid(format!(
            "need a target of 1 to {MAX_TARGET_BYTES} bytes for a symbolic link, have {} bytes or a zero byte; choose \
             another",
            target.len()
        )));
    }
    Ok(())
}

impl<S: Store> Manager<S> {
    pub(super) fn make_link(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        target: &str,
    ) -> Result<ManagerReply> {
        self.change(now, who, |step| step.make_link(path, target))?;
        Ok(ManagerReply::Done)
    }

    /// The answer to a request that failed: the link that it met, or else the error.
    pub(super) fn link_or(&mut self, error: Error) -> ManagerReply {
        match self.memory.met.take() {
            Some(Met { path, target }) => ManagerReply::Link { path, target },
            None => ManagerReply::Failed(error),
        }
    }
}
