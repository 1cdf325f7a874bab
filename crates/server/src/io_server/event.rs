//! What goes into the state machine of an I/O server, and what comes out.

use std::collections::BTreeMap;

use outcore_core::{
    Buffer, Completion, DataFile, Disk, ErrorKind, FileId, Handle, IoReply, IoRequest, Names, OpenMode,
    Request, Result,
};

use super::fetch::{Caller, Fetch, Fetched};
use super::format::{data_directory, handle_in};

/// What happened.
#[derive(Debug)]
pub enum Event<B> {
    /// Somebody calls. The number comes back with the answer.
    Call {
        /// Which call.
        call: u64,
        /// What is wanted.
        request: IoRequest,
        /// Its payload: of a write, the bytes, of a read, where they go.
        buffer: B,
        /// Whose memory the server may read, if the caller offers it.
        caller: Caller<B>,
    },
    /// Fetches are finished.
    Fetched {
        /// Of the effect.
        token: u64,
        /// What came of them.
        result: Fetched,
    },
    /// A disk request is finished.
    Disk {
        /// Of the request.
        token: u64,
        /// As the disk gave it.
        completion: Completion<B>,
    },
    /// An operation on names is finished.
    Name {
        /// Of the operation.
        token: u64,
        /// What came of it.
        result: Result<NameAnswer>,
    },
    /// The manager was asked what time it is.
    Time {
        /// Seconds since 1970, as it says; `None`: it cannot be reached.
        manager_s: Option<u64>,
        /// The same by the clock of this machine.
        own_s: u64,
    },
    /// Others had their turn.
    GoOn {
        /// Of who let them.
        token: u64,
    },
    /// Some time has passed: a few seconds.
    Tick,
    /// No more calls come, since the server is about to stop: collectives that need any are over.
    EndCollectives,
    /// The server is to finish what it has, and to stop.
    Stop,
}

/// What is to be done.
#[derive(Debug)]
pub enum Effect<B> {
    /// A request for the disk.
    Disk {
        /// Comes back with the completion.
        token: u64,
        /// The request.
        request: Request<B>,
    },
    /// Bytes are read from the memory of processes to places in a buffer, which nobody else uses meanwhile: see
    /// [`super::fetch`].
    Fetch {
        /// Comes back with the result.
        token: u64,
        /// Of which processes, and which bytes.
        fetches: Vec<Fetch<B>>,
        /// Where they go.
        buffer: B,
    },
    /// An operation on names, which blocks.
    Name {
        /// Comes back with the result.
        token: u64,
        /// The operation.
        operation: NameOperation,
    },
    /// Long work lets others have their turn: it goes on behind what has come meanwhile.
    LetOthers {
        /// Comes back when they had it.
        token: u64,
    },
    /// The manager is asked what time it is.
    AskTime,
    /// A call is answered.
    Answer {
        /// Which call.
        call: u64,
        /// The answer.
        reply: IoReply,
        /// The buffer of the call.
        buffer: B,
    },
    /// The log was read, and calls are served; or it could not be, and all of them fail.
    Started(Result<()>),
    /// The server has stopped: everything it took is durable, if the disk let it.
    Stopped,
}

/// An operation on the names of a disk: rare, small, and blocking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameOperation {
    /// Opens a file that exists, to write it where the disk allows that, else to read it.
    Open {
        /// Its path.
        path: String,
    },
    /// Makes an empty file that does not exist.
    Make {
        /// Its path.
        path: String,
    },
    /// Makes a file longer or shorter.
    Resize {
        /// Its path.
        path: String,
        /// Length in bytes.
        length: u64,
        /// Whether the room is taken from the disk now.
        reserve: bool,
    },
    /// Removes a file.
    Remove {
        /// Its path.
        path: String,
    },
    /// Closes an open file.
    Close {
        /// Which.
        file: FileId,
    },
    /// How long an open file is.
    Length {
        /// Which.
        file: FileId,
    },
    /// How much can still be written.
    Free,
    /// How much of the disk an open file has.
    Allocated {
        /// Which.
        file: FileId,
    },
    /// Which data files there are in one of the directories, after one.
    List {
        /// The directory: the last byte of their handles.
        directory: u8,
        /// The last one that is known.
        after: Handle,
        /// Most of them.
        most: usize,
    },
}

/// What came of an operation on names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// Done.
    Done,
    /// An open file.
    Opened {
        /// Which.
        file: FileId,
        /// Its length in bytes.
        length: u64,
        /// Whether it can be written.
        is_writable: bool,
    },
    /// Bytes: of `Length`, `Free` and `Allocated`.
    Bytes(u64),
    /// Data files in the order of their handles.
    Files(Vec<DataFile>),
}

/// Does an operation on the names of `disk`, which `names` names too.
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
        NameOperation::Remove { path } => names.remove(&path).map(|()| NameAnswer::Done),
        NameOperation::Close { file } => {
            disk.close(file);
            Ok(NameAnswer::Done)
        }
        NameOperation::Length { file } => disk.length(file).map(NameAnswer::Bytes),
        NameOperation::Free => disk.free_bytes().map(NameAnswer::Bytes),
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

fn opened<D: Disk>(disk: &D, file: FileId, is_writable: bool) -> Result<NameAnswer> {
    Ok(NameAnswer::Opened { file, length: disk.length(file)?, is_writable })
}
