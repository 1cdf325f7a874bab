//! Damage by disks and by people: bits that flip, writes that are lost, older copies, and longer files.

use outcore_core::{Handle, IoReply};
use outcore_server::io_server::data_path;

use super::{Plant, World};

impl World {
    /// Flips a bit of a file, or appends zeros to a data file, now and then.
    pub(super) fn damage(&mut self) {
        if !(self.faults.flips || self.faults.zeros) || !self.random.once_in(20) {
            return;
        }
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let disk = &self.nodes[node].disk;
        let mut paths = disk.paths();
        paths.retain(|path| path.starts_with("data/") && !disk.content(path).is_none_or(|c| c.is_empty()));
        if self.faults.zeros {
            paths.retain(|path| !path.contains('.'));
        }
        if paths.is_empty() {
            return;
        }
        let path = self.random.pick(&paths);
        if self.faults.zeros {
            let zeros = self.random.between(1, 200_000) as usize;
            self.flipped |= disk.lengthen(path, zeros);
            return;
        }
        let length = disk.content(path).map_or(0, |content| content.len());
        let (at, bit) = (self.random.below(length as u64) as usize, self.random.below(8) as u8);
        self.flipped |= disk.flip(path, at, bit);
    }

    /// Makes a disk lose a pending write, once in a run.
    pub(super) fn lose_write(&mut self, server: usize, token: u64) {
        if self.faults.lost_writes
            && !self.is_calm
            && !self.flipped
            && self.nodes[server].is_write(token)
            && self.random.once_in(100)
        {
            self.say(|| format!("the disk of server {server} loses a write"));
            self.nodes[server].lost = Some(token);
            self.flipped = true;
        }
    }

    /// Copies the files of a server that is down, or puts an earlier copy of them back.
    pub(super) fn put_back(&mut self, server: usize) {
        if !self.faults.old_copies || self.is_calm || self.random.once_in(3) {
            return;
        }
        let node = &mut self.nodes[server];
        match node.copy.take() {
            Some(copy) => {
                node.disk.put_back(&copy);
                self.flipped = true;
                self.say(|| format!("an older copy of server {server} is put back"));
            }
            None => node.copy = Some(node.disk.copy()),
        }
    }

    /// Records the generation that a server reported for a file.
    pub(super) fn learn(&mut self, file: usize, server: outcore_core::ServerId, reply: &IoReply) {
        if let IoReply::Synced { generation, .. } = reply
            && self.plant != Some(Plant::IgnoreGenerations)
        {
            let known = self.files[file].generations.entry(server).or_default();
            *known = (*known).max(*generation);
        }
    }

    /// The length of a data file on the disk.
    pub(super) fn on_disk(&self, server: usize, handle: Handle) -> u64 {
        self.nodes[server].disk.content(&data_path(handle)).map_or(0, |content| content.len() as u64)
    }
}
