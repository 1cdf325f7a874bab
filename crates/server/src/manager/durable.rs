//! The durable lengths of files, as clients report them. They distinguish lost data files from holes.

use outcore_core::{Durable, Error, Handle, Inode, ManagerReply, Result};

use super::files::check_is_file;
use super::record::Node;
use super::step::Step;
use super::walk::not_found;
use super::{Manager, Now, User};
use crate::store::Store;

/// The durable state of the data files of a file, as a client reports it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached<'a> {
    /// Their lengths in bytes; may be empty.
    pub lengths: &'a [u64],
    /// Their generations; may be empty.
    pub generations: &'a [u64],
}

/// Merges reported generations into the stored ones.
fn merge_generations(durable: &mut Durable, node_entries: usize, generations: &[u64]) {
    if generations.iter().any(|generation| *generation > 0) {
        durable.generations.resize(node_entries, 0);
        for (kept, &generation) in durable.generations.iter_mut().zip(generations) {
            *kept = generation.max(*kept);
        }
    }
}

/// Merges reported lengths into the stored ones; `choose` gets the stored and the reported length.
fn merge(durable: &mut Durable, node_entries: usize, lengths: &[u64], choose: fn(u64, u64) -> u64) {
    durable.lengths.resize(node_entries, 0);
    for (kept, &length) in durable.lengths.iter_mut().zip(lengths) {
        *kept = choose(*kept, length);
    }
    if durable.lengths.iter().all(|length| *length == 0) {
        durable.lengths.clear();
    }
}

/// Refuses numbers of another count than the file has data files.
fn check_reached(node: &Node, reached: Reached<'_>) -> Result<usize> {
    let entries = check_lengths(node, reached.lengths)?;
    if reached.generations.len() > entries {
        return Err(Error::invalid(format!(
            "need the generations of {entries} data files, have {}; ask with those of the file",
            reached.generations.len()
        )));
    }
    Ok(entries)
}

/// Refuses lengths that the data files of a file cannot have. The manager asks no I/O server, so it trusts other
/// lengths from a client that may write the file. A false length does no more harm than such a client can do
/// anyway: the file counts as damaged until its length is set.
fn check_lengths(node: &Node, lengths: &[u64]) -> Result<usize> {
    let Some(layout) = node.inode.layout.as_ref() else { return Ok(0) };
    let entries = layout.servers.len();
    let fits = |(entry, length): (usize, &u64)| {
        let least = layout.stripes.length_from(entry as u64, *length);
        least.is_some_and(|least| i64::try_from(least).is_ok())
    };
    if lengths.len() > entries || !lengths.iter().enumerate().all(fits) {
        return Err(Error::invalid(format!(
            "need the lengths of {entries} data files of a file below 2^63 bytes, have {lengths:?}; ask with those of the file"
        )));
    }
    Ok(entries)
}

impl<S: Store> Step<'_, S> {
    /// The record of an open file that the user may read or, with `write`, write.
    fn open_node(&mut self, handle: Handle, write: bool) -> Result<Node> {
        self.check_renewal(handle, write)?;
        self.get_node(handle)?.ok_or_else(|| not_found(&format!("the open file {}", handle.0)))
    }

    /// Sets the first durable lengths of a file that gets its name once it is durable.
    pub(super) fn told_durable(&self, node: &mut Node, reached: Reached<'_>) -> Result<()> {
        if !reached.lengths.is_empty() || !reached.generations.is_empty() {
            check_is_file(node, "the renamed path")?;
            let entries = check_reached(node, reached)?;
            if node.inode.durable.cuts == 0 {
                merge(&mut node.inode.durable, entries, reached.lengths, u64::max);
                merge_generations(&mut node.inode.durable, entries, reached.generations);
            }
        }
        Ok(())
    }

    fn wrote(
        &mut self,
        handle: Handle,
        modified_ns: Option<u64>,
        cuts: u64,
        reached: Reached<'_>,
    ) -> Result<Inode> {
        let mut node = self.open_node(handle, true)?;
        let entries = check_reached(&node, reached)?;
        let inode = &mut node.inode;
        if let Some(modified_ns) = modified_ns {
            // The time increases with each write, so two contents never have the same time. It does not run ahead
            // of this machine's clock otherwise.
            let least = inode.modified_ns.saturating_add(1);
            inode.modified_ns = modified_ns.min(self.now.unix_ns).max(least);
        }
        // After or during a truncation, these lengths may be outdated.
        if inode.durable.cuts == cuts && inode.durable.cuts_done == cuts {
            merge(&mut inode.durable, entries, reached.lengths, u64::max);
            merge_generations(&mut inode.durable, entries, reached.generations);
        }
        inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(node.inode)
    }

    fn begin_cut(&mut self, handle: Handle, lengths: &[u64]) -> Result<Inode> {
        let mut node = self.open_node(handle, true)?;
        let entries = check_lengths(&node, lengths)?;
        let mut all = lengths.to_vec();
        all.resize(entries, 0);
        merge(&mut node.inode.durable, entries, &all, u64::min);
        node.inode.durable.cuts += 1;
        // So a user who sets the length of a file accepts an older copy of its data.
        node.inode.durable.generations.clear();
        self.put_node(&node);
        Ok(node.inode)
    }

    fn end_cut(&mut self, handle: Handle) -> Result<Inode> {
        let mut node = self.open_node(handle, true)?;
        let inode = &mut node.inode;
        inode.durable.cuts_done = inode.durable.cuts.min(inode.durable.cuts_done + 1);
        // A truncation is a write, too. The client needs no request of its own to report it.
        inode.modified_ns = self.now.unix_ns.max(inode.modified_ns.saturating_add(1));
        inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(node.inode)
    }
}

fn reply(inode: Inode) -> ManagerReply {
    ManagerReply::Inode(Box::new(inode))
}

impl<S: Store> Manager<S> {
    pub(super) fn wrote(
        &mut self,
        now: Now,
        who: &User,
        handle: Handle,
        modified_ns: Option<u64>,
        (cuts, reached): (u64, Reached<'_>),
    ) -> Result<ManagerReply> {
        self.change(now, who, |step| step.wrote(handle, modified_ns, cuts, reached)).map(reply)
    }

    pub(super) fn begin_cut(
        &mut self,
        now: Now,
        who: &User,
        handle: Handle,
        lengths: &[u64],
    ) -> Result<ManagerReply> {
        self.change(now, who, |step| step.begin_cut(handle, lengths)).map(reply)
    }

    pub(super) fn end_cut(&mut self, now: Now, who: &User, handle: Handle) -> Result<ManagerReply> {
        self.change(now, who, |step| step.end_cut(handle)).map(reply)
    }

    pub(super) fn describe(&mut self, now: Now, who: &User, handle: Handle) -> Result<ManagerReply> {
        self.view(now, who, |step| step.open_node(handle, false)).map(|node| reply(node.inode))
    }
}
