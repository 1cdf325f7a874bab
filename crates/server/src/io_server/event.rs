//! Inputs and outputs of the I/O server's state machine.

use std::collections::BTreeMap;

use outcore_core::{
    Buffer, Completion, DataFile, Disk, DiskSize, ErrorKind, FileId, Handle, IoReply, IoRequest, Names,
    OpenMode, Request, Result,
};

use crate::io_server::blocks::format::{
    SUMS_PAGE_BYTES, data_directory, handle_in, plain_sums_path, sums_path,
};
use crate::io_server::check::seal::{Seal, digest_of};
use crate::io_server::collective::fetch::{Caller, Fetch, Fetched};

/// An input of the state machine.
#[derive(Debug)]
pub enum Event<B> {
    /// A call arrived.
    Call {
        /// Number of the call, which the answer repeats.
        call: u64,
        /// The request.
        request: IoRequest,
        /// Its payload: the bytes to write, or the buffer to read into.
        buffer: B,
        /// The caller's memory, if the caller offers it.
        caller: Caller<B>,
    },
    /// Fetches finished.
    Fetched {
        /// Token of the effect.
        token: u64,
        /// Their result.
        result: Fetched,
    },
    /// A disk request finished.
    Disk {
        /// Token of the request.
        token: u64,
        /// The disk's completion.
        completion: Completion<B>,
    },
    /// An operation on names finished.
    Name {
        /// Token of the operation.
        token: u64,
        /// Its result.
        result: Result<NameAnswer>,
    },
    /// The answer to [`Effect::AskTime`].
    Time {
        /// The manager's time in seconds since 1970; `None` if the manager is unreachable.
        manager_s: Option<u64>,
        /// This machine's time in seconds since 1970.
        own_s: u64,
    },
    /// The answer to [`Effect::LetOthers`]: other work had its turn.
    GoOn {
        /// Token of the effect.
        token: u64,
    },
    /// A few seconds have passed.
    Tick,
    /// No more calls arrive, since the server is about to stop. Collectives that need more calls end.
    EndCollectives,
    /// The server finishes its pending work and stops.
    Stop,
}

/// An output of the state machine.
#[derive(Debug)]
pub enum Effect<B> {
    /// A request for the disk.
    Disk {
        /// The completion repeats this number.
        token: u64,
        /// The request.
        request: Request<B>,
    },
    /// Reads bytes from the memory of processes into a buffer that nobody else uses meanwhile: see
    /// [`super::fetch`].
    Fetch {
        /// The result repeats this number.
        token: u64,
        /// The processes and their bytes.
        fetches: Vec<Fetch<B>>,
        /// The target buffer.
        buffer: B,
    },
    /// An operation on names, which blocks.
    Name {
        /// The result repeats this number.
        token: u64,
        /// The operation.
        operation: NameOperation,
    },
    /// Long work yields. It continues after the events that arrived meanwhile.
    LetOthers {
        /// The event [`Event::GoOn`] repeats this number.
        token: u64,
    },
    /// Asks the manager for its time.
    AskTime,
    /// Answers a call.
    Answer {
        /// Number of the call.
        call: u64,
        /// The answer.
        reply: IoReply,
        /// The buffer of the call.
        buffer: B,
    },
    /// The server has read the log and serves calls, or reading failed and every call fails.
    Started(Result<()>),
    /// The server has stopped. Everything it accepted is durable, unless the disk failed.
    Stopped,
}

/// A rare, small and blocking operation on the names of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameOperation {
    /// Opens an existing file, for writing if the disk allows it, otherwise for reading.
    Open {
        /// Its path.
        path: String,
    },
    /// Creates an empty file. It must not exist.
    Make {
        /// Its path.
        path: String,
    },
    /// Changes the length of a file.
    Resize {
        /// Its path.
        path: String,
        /// Length in bytes.
        length: u64,
        /// Whether to reserve the disk space now.
        reserve: bool,
    },
    /// Replaces a checksum file of format 1 by one with a page for seals.
    Seal {
        /// The handle of the file.
        handle: Handle,
        /// The length of the data file, for the first seal.
        length: u64,
    },
    /// Removes a file.
    Remove {
        /// Its path.
        path: String,
    },
    /// Closes an open file.
    Close {
        /// The file.
        file: FileId,
    },
    /// Gets the length of an open file.
    Length {
        /// The file.
        file: FileId,
    },
    /// Gets the free space in bytes.
    Free,
    /// Gets the size of the disk.
    Size,
    /// Gets the disk space that an open file occupies.
    Allocated {
        /// The file.
        file: FileId,
    },
    /// Lists the data files of one directory after a given handle.
    List {
        /// The directory: the last byte of the handles.
        directory: u8,
        /// The last handle that the caller already has.
        after: Handle,
        /// Number of entries, at most.
        most: usize,
    },
}

/// The result of an operation on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// Done.
    Done,
    /// An open file.
    Opened {
        /// The file.
        file: FileId,
        /// Its length in bytes.
        length: u64,
        /// Whether it is open for writing.
        is_writable: bool,
    },
    /// A number of bytes: the answer to `Length`, `Free` and `Allocated`.
    Bytes(u64),
    /// The size of the disk.
    Size(DiskSize),
    /// Data files in the order of their handles.
    Files(Vec<DataFile>),
}

/// Performs an operation on the names of `disk`. `names` refers to the same directory.
pub fn perform<D: Disk>(disk: &D, names: &dyn Names, operation: NameOperation) -> Result<NameAnswer>
where
    D::Buffer: Buffer,
{
    match operation {
        NameOperation::Open { path } => match disk.open(&path, OpenMode::ReadWrite) {
            Err(error) if error.kind == ErrorKind::ReadOnly => {
                opened(disk, disk.open(&path, OpenMode::Read)?, false)
            }
            file => opened(disk, file?, true),
        },
        NameOperation::Make { path } => {
            opened(disk, disk.open(&path, OpenMode::Create { length: 0, reserve: false })?, true)
        }
        NameOperation::Resize { path, length, reserve } => {
            disk.close(disk.open(&path, OpenMode::Resize { length, reserve })?);
            Ok(NameAnswer::Done)
        }
        NameOperation::Seal { handle, length } => seal(names, handle, length).map(|()| NameAnswer::Done),
        NameOperation::Remove { path } => names.remove(&path).map(|()| NameAnswer::Done),
        NameOperation::Close { file } => {
            disk.close(file);
            Ok(NameAnswer::Done)
        }
        NameOperation::Length { file } => disk.length(file).map(NameAnswer::Bytes),
        NameOperation::Free => disk.free_bytes().map(NameAnswer::Bytes),
        NameOperation::Size => disk.size().map(NameAnswer::Size),
        NameOperation::Allocated { file } => disk.allocated_bytes(file).map(NameAnswer::Bytes),
        NameOperation::List { directory, after, most } => {
            list(names, directory, after, most).map(NameAnswer::Files)
        }
    }
}

fn list(names: &dyn Names, directory: u8, after: Handle, most: usize) -> Result<Vec<DataFile>> {
    let entries = match names.list(&data_directory(directory)) {
        Ok(entries) => entries,
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(error),
    };
    let mut files = BTreeMap::new();
    for entry in entries {
        let Some((handle, is_data)) = handle_in(&entry.name) else { continue };
        if handle > after && handle.0 as u8 == directory {
            let length = files.entry(handle).or_insert(None);
            *length = if is_data { Some(entry.length) } else { *length };
        }
    }
    let found = files.into_iter().map(|(handle, length)| DataFile { handle, length });
    Ok(found.take(most).collect())
}

/// The new file is complete before the old one goes, so a crash leaves one that is valid.
fn seal(names: &dyn Names, handle: Handle, length: u64) -> Result<()> {
    let mut file = names.read_small(&plain_sums_path(handle))?;
    let seal = Seal { sequence: 1, generation: 0, asked: 0, length, digest: digest_of(0, &file) };
    let mut page = [0; SUMS_PAGE_BYTES];
    seal.put(&mut page, handle);
    drop(file.splice(0..0, page));
    names.replace_small(&sums_path(handle), &file)?;
    names.remove(&plain_sums_path(handle))
}

fn opened<D: Disk>(disk: &D, file: FileId, is_writable: bool) -> Result<NameAnswer> {
    Ok(NameAnswer::Opened { file, length: disk.length(file)?, is_writable })
}
