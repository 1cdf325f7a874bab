//! Checks of the final state.

use outcore_core::{
    Handle, IoReply, IoRequest, Known, ManagerReply, ManagerRequest, Regions, ScrubPlace, ServerId,
};

use super::{Faults, Finding, World, said};
use crate::client::Kind;
use crate::node::Node;

impl World {
    /// Cuts the power everywhere, and checks that all promised data are there and stay there.
    pub(super) fn judge(&mut self) -> Result<(), Finding> {
        self.is_calm = true;
        self.go_on(|world| world.manager.is_up() && world.nodes.iter().all(Node::is_up))?;
        self.give_up_the_gone()?;
        for kind in [Kind::Read, Kind::Sync, Kind::Read] {
            for file in 0..self.files.len() {
                if self.whole(file, kind.clone())? && self.whole(file, kind.clone())? {
                    return Err(format!(
                        "the manager reported twice to client 0 that file {file} may have lost writes"
                    ));
                }
            }
            if kind == Kind::Sync && self.faults.crashes {
                for server in 0..self.nodes.len() {
                    self.crash(server);
                    self.start(server)?;
                }
            }
        }
        self.go_on(|world| world.queue.is_empty())?;
        (0..self.nodes.len()).try_for_each(|server| self.scrub(server))?;
        self.clean_up()?;
        self.judge_names()?;
        let orphans = ManagerRequest::Orphans { gone: vec![], after: Handle(0), most: 10 };
        let reply = self.ask(orphans);
        if !matches!(&reply, ManagerReply::Orphans(left) if left.is_empty()) {
            return Err(format!("all removals are finished, and the manager says {reply:?}"));
        }
        (0..self.nodes.len()).try_for_each(|server| self.strays(server))
    }

    /// Removes the orphans, as the next client would, and cuts the power again.
    fn clean_up(&mut self) -> Result<(), Finding> {
        while !self.orphans.is_empty() {
            self.begin(0, 0, Kind::Remove, Regions::default());
            self.go_on(|world| world.clients[0].is_idle())?;
        }
        self.go_on(|world| world.queue.is_empty())?;
        if self.faults.crashes {
            for server in 0..self.nodes.len() {
                self.crash(server);
                self.start(server)?;
            }
            self.go_on(|world| world.queue.is_empty())?;
        }
        Ok(())
    }

    /// Checks that every data file belongs to a file whose layout includes this server. If disks were full or had
    /// errors, data files of removed files may be left; the manager then reports them as gone.
    fn strays(&mut self, server: usize) -> Result<(), Finding> {
        let (mut after, mut is_more) = (Handle(0), true);
        while is_more {
            let request = IoRequest::DataFiles { after, most: 3 };
            let Some(IoReply::DataFiles { files, more }) = self.nodes[server].ask(self.now_ns, request)
            else {
                return Err(format!("server {server} does not say which data files it has"));
            };
            let handles: Vec<Handle> = files.iter().map(|file| file.handle).collect();
            let ManagerReply::Known { known, .. } = self.ask(ManagerRequest::Know { handles }) else {
                return Err("the manager does not say what it knows".into());
            };
            for (file, known) in files.iter().zip(known) {
                let is_here =
                    |layout: &outcore_core::Layout| layout.servers.contains(&ServerId(server as u32));
                let is_fine = match &known {
                    Known::Inode(inode) => inode.layout.as_ref().is_some_and(is_here),
                    Known::Gone(_) => {
                        let Faults { full, errors, sync_errors, old_copies, .. } = self.faults;
                        full || errors || sync_errors || old_copies
                    }
                    _ => false,
                };
                if !is_fine {
                    return Err(format!(
                        "server {server} keeps {file:?}, of which the manager says {known:?}"
                    ));
                }
                after = file.handle;
            }
            is_more = more;
        }
        Ok(())
    }

    /// Checks that every block has the right checksum, unless disks flip bits or have errors.
    fn scrub(&mut self, server: usize) -> Result<(), Finding> {
        let mut next = Some(ScrubPlace { handle: Handle(0), offset: 0 });
        while let Some(from) = next {
            let request = IoRequest::Scrub { from, most_bytes: 100_000 };
            let Some(IoReply::Scrubbed(found)) = self.nodes[server].ask(self.now_ns, request) else {
                return Err(format!("server {server} cannot be scrubbed from {from:?} on"));
            };
            if !self.flipped && !self.faults.errors && !found.damage.is_empty() {
                return Err(format!("a scrub of server {server} found {:?}", found.damage));
            }
            next = found.next;
        }
        Ok(())
    }

    /// Performs an operation of client 0 on a whole file. Returns whether the client learned that writes may be
    /// lost.
    fn whole(&mut self, file: usize, kind: Kind) -> Result<bool, Finding> {
        let handle = self.files[file].handle;
        let before = self.clients[0].unsynced.losses(handle);
        let all = Regions::contiguous(0, self.files[file].model.length()).map_err(said)?;
        self.begin(0, file, kind, all);
        self.go_on(|world| world.clients[0].is_idle())?;
        Ok(self.clients[0].unsynced.losses(handle) > before)
    }
}
