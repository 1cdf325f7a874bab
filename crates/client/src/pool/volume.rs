//! A pool as a [`Volume`]: names from its manager, bytes from its I/O servers.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use outcore_core::{
    Alignment, Entry, Error, ErrorKind, FileId, Gather, Handle, Hints, Inode, IoReply, IoRequest, IoStatus,
    Layout, Link, ManagerReply, ManagerRequest, Named, OnDone, OpenMode, Operation, Preference, Regions,
    Result, ServerId, ServerSpans, Volume, VolumeRequest,
};

use crate::Ticket;
use crate::pool::call::unexpected;
use crate::pool::shared::{Shared, checked};
use crate::ticket::after;

/// Permission bits of new directories, before the umask.
const DIRECTORY_MODE: u32 = 0o777;
/// Chunks of arrays in a pool are aligned to the checksum blocks of its servers.
const SLOT_ALIGN_BYTES: u64 = 64 << 10;
/// The alignment for direct I/O on the servers' disks.
const ALIGNMENT: Alignment = Alignment { offset_bytes: 4096, memory_bytes: 512 };

/// Skipping a gap costs client and server about 100 ns (measured). In that time, a link of 1 Gbit/s moves 12
/// bytes, and a link of 10 Gbit/s moves 120. This value lies between them.
const READ_GAP_BYTES: u64 = 32;

/// Nanoseconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The clock of this machine.
pub fn system_clock() -> WallClock {
    Arc::new(|| {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
    })
}

/// A pool, accessed through a link.
pub struct PoolVolume<L: Link + ?Sized>(pub(crate) Arc<Shared<L>>);

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    /// Opens the pool of `link`.
    pub fn new(link: Arc<L>, clock: WallClock) -> Result<Self> {
        Shared::new(link, clock).map(|shared| Self(Arc::new(shared)))
    }

    /// The pool's identity: a random number from its creation.
    pub fn id(&self) -> u128 {
        self.0.pool
    }

    /// Messages sent to I/O servers so far.
    pub fn messages(&self) -> u64 {
        self.0.servers.messages()
    }

    /// The I/O servers in use when the pool was opened.
    pub fn server_ids(&self) -> Vec<ServerId> {
        self.0.numbers().in_use
    }

    /// The retired I/O servers.
    pub fn retired_ids(&self) -> Vec<ServerId> {
        self.0.numbers().retired
    }

    /// Creates a file with the layout that `hints` select.
    pub fn create_with(&self, path: &str, length: u64, reserve: bool, hints: Hints) -> Result<FileId> {
        self.0.create(path, length, reserve, hints).map(|file| self.0.add(file))
    }

    /// Like `create_with`, with other permission bits, before the umask.
    pub fn create_as(&self, path: &str, hints: Hints, mode: u32) -> Result<FileId> {
        self.create_known(path, hints, mode).map(|(file, _)| file)
    }

    /// Like `create_as`. Returns the manager's record, too.
    pub fn create_known(&self, path: &str, hints: Hints, mode: u32) -> Result<(FileId, Inode)> {
        self.0.create_as(path, 0, false, hints, mode).map(|(file, inode)| (self.0.add(file), inode))
    }

    /// Opens a file, and returns its record.
    pub fn open_known(&self, path: &str, write: bool) -> Result<(FileId, Inode)> {
        self.0.open_known(path, write).map(|(file, inode)| (self.0.add(file), inode))
    }

    /// Starts moving the bytes of any regions of a file from or to a buffer of the same length. Each of the
    /// file's servers that holds some of them gets one message.
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

    /// Starts a sync of a file once `writes` are done.
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

    /// Reserves the disk space of the first `length` bytes of a file on its servers, and makes it so long if it is
    /// shorter. It never makes a file shorter, so it cuts nothing that another client appends meanwhile. A server
    /// whose file system cannot reserve only makes it longer.
    pub fn reserve(&self, file: FileId, length: u64) -> Result<()> {
        let file = self.0.file(file)?;
        file.check_writable()?;
        self.0.reserve(&file, length)
    }

    /// The handle of an open file. Its name may belong to another file by now.
    pub fn handle(&self, file: FileId) -> Result<Handle> {
        self.0.file(file).map(|file| file.handle)
    }

    /// The layout of an open file.
    pub fn layout(&self, file: FileId) -> Result<Layout> {
        self.0.file(file).map(|file| file.layout.clone())
    }

    /// The manager's record of a name; of a symbolic link that of the link itself.
    pub fn stat(&self, path: &str) -> Result<Inode> {
        self.0.stat(&checked(path)?)
    }

    /// Creates a directory, and the directories above it.
    pub fn make_directory(&self, path: &str) -> Result<()> {
        self.make_directory_as(path, DIRECTORY_MODE)
    }

    /// Like `make_directory`, with other permission bits, before the umask.
    pub fn make_directory_as(&self, path: &str, mode: u32) -> Result<()> {
        let request = ManagerRequest::MakeDirectory { path: checked(path)?, mode: self.0.masked(mode) };
        match self.0.manager(request)? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Sets the default layout of new files in a directory.
    pub fn set_default_layout(&self, path: &str, hints: Hints) -> Result<()> {
        match self.0.manager(ManagerRequest::SetDefaultLayout { path: checked(path)?, hints })? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Removes a file, a link, or an empty directory.
    pub fn remove_one(&self, path: &str) -> Result<()> {
        self.0.remove(&checked(path)?, false)
    }

    /// Renames a file over another file, or a directory over another directory with its contents. After a
    /// crash, either all of the new contents exist or all of the old.
    pub fn replace(&self, from: &str, to: &str) -> Result<()> {
        self.0.replace(&checked(from)?, &checked(to)?)
    }

    /// Renames without removing a file: one that has the new name gets the path `kept` in the same commit. Without
    /// `kept`, the new name must be free.
    pub fn relocate(&self, from: &str, to: &str, kept: Option<&str>) -> Result<()> {
        let kept = kept.map(checked).transpose()?;
        match self.0.manager(ManagerRequest::Move { from: checked(from)?, to: checked(to)?, kept })? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// The names in a directory, sorted, with their records. The servers know the lengths.
    pub fn names(&self, path: &str) -> Result<Vec<Named>> {
        self.0.names(&checked(path)?)
    }

    /// The report of each I/O server on itself, or the error.
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

    /// The last transfers of each I/O server, or the error.
    pub fn spans(&self) -> Vec<(ServerId, Result<ServerSpans>)> {
        let servers = self.server_ids();
        let asked = servers.iter().map(|&server| (server, IoRequest::Spans)).collect();
        let replies = self.0.servers.wait_each(asked, &self.0.none);
        let each = servers.into_iter().zip(replies).map(|(id, reply)| match reply {
            Ok(IoReply::Spans(spans)) => (id, Ok(*spans)),
            Ok(reply) => (id, Err(unexpected(&reply))),
            Err(error) => (id, Err(error)),
        });
        each.collect()
    }

    /// Retires an I/O server that does not answer, or reverses that. All data of a retired server count as
    /// lost.
    pub fn retire(&self, server: ServerId, undo: bool) -> Result<()> {
        let may_answer = !undo && self.server_ids().contains(&server);
        if may_answer && self.status_of(vec![server]).iter().any(|(_, status)| status.is_ok()) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "need a server that is gone, I/O server {} answers: its data would count as lost; stop it first",
                    server.0
                ),
            ));
        }
        self.0.retire(server, undo)
    }

    /// A unique number for a new I/O server.
    pub fn new_server(&self) -> Result<ServerId> {
        match self.0.manager(ManagerRequest::NewServer)? {
            ManagerReply::NewServer(id) => Ok(id),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Reports the last writes of this client to one file to the manager, if it does not know them.
    pub fn tell_written_to(&self, handle: Handle) -> Result<()> {
        self.0.tell(handle)
    }

    /// Whether the manager does not know the time of this client's last write to a file. Asks nobody.
    pub fn is_untold(&self, handle: Handle) -> bool {
        self.0.is_untold(handle)
    }

    /// Reports the last writes of this client to the manager, as far as it does not know them.
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
        let path = checked(path)?;
        let found = match self.0.stat(&path) {
            Ok(inode) if inode.is_link() && self.0.follows() => {
                self.0.follow(path).and_then(|real| self.0.stat(&real))
            }
            found => found,
        };
        match found {
            Ok(_) => Ok(true),
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Loop) => Ok(false),
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
        let path = checked(path)?;
        let mut inode = self.0.tell_written(&path)?;
        if inode.is_link() && self.0.follows() {
            inode = self.0.tell_written(&self.0.follow(path)?)?;
        }
        Ok(inode.modified_ns)
    }

    fn settle(&self, path: &str) -> Result<()> {
        let file = self.0.open(path, false)?;
        self.0.settled(&file)?;
        self.0.tell_written(&file.path).map(|_| ())
    }

    fn free_bytes(&self) -> Result<u64> {
        let each = self.status().into_iter().map(|(_, status)| Ok(status?.free_bytes));
        let each = each.collect::<Result<Vec<u64>>>()?;
        // Files are striped over all servers, so the fullest server limits them.
        let least = each.iter().min().copied().unwrap_or(0);
        Ok(least.saturating_mul(each.len() as u64))
    }
}
