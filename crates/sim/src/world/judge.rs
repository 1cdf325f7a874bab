//! What must be so when all is over.

use outcore_core::{Handle, IoReply, IoRequest, Regions, ScrubPlace};

use super::{Finding, World, said};
use crate::client::Kind;
use crate::node::Node;

impl World {
    /// The power fails everywhere once more; what is there then must be what was promised, and stay.
    pub(super) fn judge(&mut self) -> Result<(), Finding> {
        self.is_calm = true;
        self.go_on(|world| world.nodes.iter().all(Node::is_up))?;
        for kind in [Kind::Read, Kind::Sync, Kind::Read] {
            for file in 0..self.files.len() {
                if self.whole(file, kind.clone())? && self.whole(file, kind.clone())? {
                    return Err(format!("client 0 was told twice that file {file} may have lost writes"));
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
        (0..self.nodes.len()).try_for_each(|server| self.scrub(server))
    }

    /// Every block that a server has fits its checksum, unless disks change bits.
    fn scrub(&mut self, server: usize) -> Result<(), Finding> {
        let mut next = Some(ScrubPlace { handle: Handle(0), offset: 0 });
        while let Some(from) = next {
            let request = IoRequest::Scrub { from, most_bytes: 100_000 };
            let Some(IoReply::Scrubbed(found)) = self.nodes[server].ask(self.now_ns, request) else {
                return Err(format!("server {server} cannot be scrubbed from {from:?} on"));
            };
            if !self.flipped && !found.damage.is_empty() {
                return Err(format!("a scrub of server {server} found {:?}", found.damage));
            }
            next = found.next;
        }
        Ok(())
    }

    /// Client 0 does something with a whole file. Whether it is told that writes may be lost.
    fn whole(&mut self, file: usize, kind: Kind) -> Result<bool, Finding> {
        let handle = self.files[file].handle;
        let before = self.clients[0].unsynced.losses(handle);
        let all = Regions::contiguous(0, self.files[file].model.length()).map_err(said)?;
        self.begin(0, file, kind, all);
        self.go_on(|world| world.clients[0].op.is_none())?;
        Ok(self.clients[0].unsynced.losses(handle) > before)
    }
}
