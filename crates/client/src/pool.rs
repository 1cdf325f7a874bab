//! A pool as a [`Volume`]: names from its manager, bytes from its I/O servers.

use std::sync::Arc;

use outcore_core::{
    Alignment, Entry, Error, ErrorKind, FileId, Gather, Handle, Hints, Inode, IoReply, IoRequest, IoStatus,
    Link, ManagerReply, ManagerRequest, Named, OnDone, OpenMode, Operation, Preference, Regions, Result,
    ServerId, Volume, VolumeRequest,
};

use outcore_disk::umask;

use crate::Ticket;
use crate::pool_call::unexpected;
use crate::pool_shared::{Shared, checked};
use crate::ticket::after;

/// Permission bits of new directories, but for those of the umask.
const DIRECTORY_MODE: u32 = 0o777;
/// Chunks of arrays in a pool are aligned to the blocks that its servers keep checksums of.
const SLOT_ALIGN_BYTES: u64 = 64 << 10;
/// What direct I/O of the servers' disks wants.
const ALIGNMENT: Alignment = Alignment { offset_bytes: 4096, memory_bytes: 512 };

/// To leave a gap out takes client and server about 100 ns (measured), in which a link of 1 Gbit/s moves 12 bytes and one
/// of 10 Gbit/s 120. Between them.
const READ_GAP_BYTES: u64 = 32;

/// Nanoseconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// A pool, reached by a link.
pub struct PoolVolume<L: Link + ?Sized>(pub(crate) Arc<Shared<L>>);

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    /// The pool at the other end of `link`.
    pub fn new(link: Arc<L>, clock: WallClock) -> Result<Self> {
        Shared::new(link, clock).map(|shared| Self(Arc::new(shared)))
    }

    /// Which pool it is: a number made once, at random, when the pool was.
    pub fn id(&self) -> u128 {
        self.0.pool
    }

    /// Messages sent to I/O servers so far.
    pub fn messages(&self) -> u64 {
        self.0.servers.messages()
    }

    /// The I/O servers in use that the pool had when it was opened.
    pub fn server_ids(&self) -> Vec<ServerId> {
        self.0.numbers().in_use
    }

    /// Those that were retired.
    pub fn retired_ids(&self) -> Vec<ServerId> {
        self.0.numbers().retired
    }

    /// Makes a file laid out as `hints` say.
    pub fn create_with(&self, path: &str, length: u64, reserve: bool, hints: Hints) -> Result<FileId> {
        self.0.create(path, length, reserve, hints).map(|file| self.0.add(file))
    }

    /// As `create_with`, with other permission bits, but for those of the umask.
    pub fn create_as(&self, path: &str, hints: Hints, mode: u32) -> Result<FileId> {
        self.0.create_as(path, 0, false, hints, mode).map(|file| self.0.add(file))
    }

    /// Starts moving the bytes of any regions of a file from or to a buffer of as many: one message to each of its
    /// servers that has some of them.
    pub fn submit_regions(
        &self,
        file: FileId,
        operation: Operation,
        regions: Regions,
        buffer: L::Buffer,
    ) -> Ticket {
        let ticket = Ticket::new(1);
        let work = ticket.clone();
        let done: OnDone<L::Buffer> = Box::new(move |completion| {
            drop(completion.buffer);
            work.part_done(completion.result.map(|_| ()));
        });
        self.0.submit(file, operation, regions, buffer, done);
        ticket
    }

    /// Starts making durable what is written to a file once `writes` are done.
    pub fn submit_sync_after(&self, file: FileId, writes: &[Ticket]) -> Ticket {
        let (ticket, shared) = (Ticket::new(1), self.0.clone());
        let work = ticket.clone();
        after(writes, move || {
            let done: OnDone<L::Buffer> =
                Box::new(move |completion| work.part_done(completion.result.map(|_| ())));
            let none = shared.none.clone();
            shared.submit(file, Operation::Sync, Regions::default(), none, done);
        });
        ticket
    }

    /// Makes a file longer or shorter.
    pub fn set_length(&self, file: FileId, length: u64) -> Result<()> {
        let file = self.0.file(file)?;
        file.check_writable()?;
        self.0.set_length(&file, length, false)
    }

    /// Which file an open one is. Its name may be another's by now.
    pub fn handle(&self, file: FileId) -> Result<Handle> {
        self.0.file(file).map(|file| file.handle)
    }

    /// What the manager knows of a name.
    pub fn stat(&self, path: &str) -> Result<Inode> {
        self.0.stat(&checked(path)?)
    }

    /// Makes a directory, and those above it.
    pub fn make_directory(&self, path: &str) -> Result<()> {
        self.make_directory_as(path, DIRECTORY_MODE)
    }

    /// As `make_directory`, with other permission bits, but for those of the umask.
    pub fn make_directory_as(&self, path: &str, mode: u32) -> Result<()> {
        let request = ManagerRequest::MakeDirectory { path: checked(path)?, mode: mode & !umask() };
        match self.0.manager(request)? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Says how new files in a directory are laid out, where they are not told otherwise.
    pub fn set_default_layout(&self, path: &str, hints: Hints) -> Result<()> {
        match self.0.manager(ManagerRequest::SetDefaultLayout { path: checked(path)?, hints })? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Removes a file, or a directory that nothing is in.
    pub fn remove_one(&self, path: &str) -> Result<()> {
        self.0.remove(&checked(path)?, false)
    }

    /// Renames a file over another, or a directory over another with all that is in it: all of the new is there, or all of
    /// the old.
    pub fn replace(&self, from: &str, to: &str) -> Result<()> {
        self.0.replace(&checked(from)?, &checked(to)?)
    }

    /// The names in a directory, sorted, and what they are; their lengths are with the servers.
    pub fn names(&self, path: &str) -> Result<Vec<Named>> {
        self.0.names(&checked(path)?)
    }

    /// What each I/O server says of itself, or why it does not.
    pub fn status(&self) -> Vec<(ServerId, Result<IoStatus>)> {
        self.status_of(self.server_ids())
    }

    fn status_of(&self, servers: Vec<ServerId>) -> Vec<(ServerId, Result<IoStatus>)> {
        let asked = servers.iter().map(|&server| (server, IoRequest::Status)).collect();
        let replies = self.0.servers.wait_each(asked, &self.0.none);
        let each = servers.into_iter().zip(replies).map(|(id, reply)| match reply {
            Ok(IoReply::Status(status)) => (id, Ok(status)),
            Ok(reply) => (id, Err(unexpected(&reply))),
            Err(error) => (id, Err(error)),
        });
        each.collect()
    }

    /// Retires an I/O server that does not answer, or takes that back: it counts as gone, with all that lay on it.
    pub fn retire(&self, server: ServerId, undo: bool) -> Result<()> {
        let may_answer = !undo && self.server_ids().contains(&server);
        if may_answer && self.status_of(vec![server]).iter().any(|(_, status)| status.is_ok()) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "need a server that is gone, I/O server {} answers: what lies there would count as lost; stop it first",
                    server.0
                ),
            ));
        }
        self.0.retire(server, undo)
    }

    /// A number for a new I/O server, which nobody else gets.
    pub fn new_server(&self) -> Result<ServerId> {
        match self.0.manager(ManagerRequest::NewServer)? {
            ManagerReply::NewServer(id) => Ok(id),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Tells the manager when files were last written to from here, as far as it does not know.
    pub fn tell_written(&self) {
        self.0.tell_all_written();
    }
}

impl<L: Link + ?Sized + 'static> Volume for PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    type Buffer = L::Buffer;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        let file = match mode {
            OpenMode::Read => self.0.open(path, false)?,
            OpenMode::ReadWrite => self.0.open(path, true)?,
            OpenMode::Create { length, reserve } => self.0.create(path, length, reserve, Hints::default())?,
            OpenMode::Resize { length, reserve } => {
                let file = self.0.open(path, true)?;
                self.0.set_length(&file, length, reserve)?;
                file
            }
        };
        Ok(self.0.add(file))
    }

    fn create(&self, path: &str, length: u64, reserve: bool, hints: Hints) -> Result<FileId> {
        self.create_with(path, length, reserve, hints)
    }

    fn slot_align_bytes(&self) -> u64 {
        SLOT_ALIGN_BYTES
    }

    fn preference(&self) -> Preference {
        Preference { read_gap_bytes: READ_GAP_BYTES, gathers: true }
    }

    fn close(&self, file: FileId) {
        self.0.close(file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        self.0.length(self.0.file(file)?.as_ref())
    }

    fn submit(&self, request: VolumeRequest<Self::Buffer>, done: OnDone<Self::Buffer>) {
        let VolumeRequest { file, operation, regions, buffer } = request;
        self.0.submit(file, operation, regions, buffer, done);
    }

    fn alignment(&self, _file: FileId) -> Alignment {
        ALIGNMENT
    }

    fn read_small(&self, path: &str) -> Result<Vec<u8>> {
        self.0.read_small(path)
    }

    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.0.replace_small(path, bytes)
    }

    fn append_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.0.append_small(path, bytes)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.0.list(&checked(path)?)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        match self.0.stat(&checked(path)?) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.0.remove(&checked(path)?, true)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.0.rename(&checked(from)?, &checked(to)?)
    }

    fn modified_ns(&self, path: &str) -> Result<u64> {
        self.0.tell_written(&checked(path)?)
    }

    fn settle(&self, path: &str) -> Result<()> {
        let file = self.0.open(path, false)?;
        self.0.settled(&file)?;
        self.0.tell_written(&file.path).map(|_| ())
    }

    fn free_bytes(&self) -> Result<u64> {
        let each = self.status().into_iter().map(|(_, status)| Ok(status?.free_bytes));
        let each = each.collect::<Result<Vec<u64>>>()?;
        // Files go round all servers: the fullest is where they end.
        let least = each.iter().min().copied().unwrap_or(0);
        Ok(least.saturating_mul(each.len() as u64))
    }
}
