//! Reads, writes and syncs of a pool's files: one message to each server that has a part of them.

use std::sync::Arc;

use outcore_core::{
    Buffer, Completion, Error, ErrorKind, FileId, Gather, Grant, IoReply, IoRequest, Link, OnDone, Operation,
    Regions, Result,
};

use crate::pool_call::Outcome;
use crate::pool_file::PoolFile;
use crate::pool_shared::{Shared, is_done, is_moved};

impl<L: Link + ?Sized + 'static> Shared<L>
where
    L::Buffer: Gather + Sync,
{
    /// Moves bytes, and calls `done` when the last server answered.
    pub(crate) fn submit(
        self: &Arc<Self>,
        file: FileId,
        operation: Operation,
        regions: Regions,
        buffer: L::Buffer,
        done: OnDone<L::Buffer>,
    ) {
        let checked = self.file(file).and_then(|file| {
            if operation == Operation::Write {
                file.check_writable()?;
            }
            let (need, have) = (regions.total_bytes(), buffer.len() as u64);
            if need != have {
                return Err(Error::invalid(format!("the regions hold {need} bytes, the buffer {have}")));
            }
            Ok(file)
        });
        let file = match checked {
            Ok(file) => file,
            Err(error) => return done(Completion::failed(buffer, error, 0)),
        };
        let shared = self.clone();
        let granted = file.clone();
        self.with_grant(&file, move |grant| match grant {
            Err(error) => done(Completion::failed(buffer, error, 0)),
            Ok(grant) if operation == Operation::Read && regions.end() > granted.known_length() => {
                shared.read_if_long_enough(granted, grant, regions, buffer, done);
            }
            Ok(grant) => shared.transfer(&granted, grant, operation, regions, buffer, done),
        });
    }

    /// Asks how long the file has become before a read past the length that is known.
    fn read_if_long_enough(
        self: &Arc<Self>,
        file: Arc<PoolFile>,
        grant: Grant,
        regions: Regions,
        buffer: L::Buffer,
        done: OnDone<L::Buffer>,
    ) {
        let (shared, looking, looked_at) = (self.clone(), self.clone(), file.clone());
        let calls = file.length_calls(grant, &self.none);
        let finish = move |replies: Result<Vec<IoReply>>, finished_ns| {
            let length = replies.and_then(|replies| file.length_from(&replies));
            let enough = length.and_then(|length| {
                file.is_at_least(length);
                if regions.end() <= length {
                    return Ok(());
                }
                Err(Error::new(
                    ErrorKind::Truncated,
                    format!(
                        "need the bytes of {} up to {}; the file ends at {length}; restore it from a copy, or make it anew",
                        file.path,
                        regions.end()
                    ),
                ))
            });
            match enough {
                Ok(()) => shared.transfer(&file, grant, Operation::Read, regions, buffer, done),
                Err(error) => done(Completion::failed(buffer, error, finished_ns)),
            }
        };
        let then = move |Outcome { replies, finished_ns, .. }: Outcome| {
            looking.when_there(&looked_at, replies, move |replies| finish(replies, finished_ns));
        };
        self.servers.call_all(calls, Box::new(then));
    }

    /// One message to each server that has a part of it.
    fn transfer(
        self: &Arc<Self>,
        file: &Arc<PoolFile>,
        grant: Grant,
        operation: Operation,
        regions: Regions,
        buffer: L::Buffer,
        done: OnDone<L::Buffer>,
    ) {
        let calls = match operation {
            Operation::Sync => {
                file.calls(|target| Some((IoRequest::Sync { target, grant }, self.none.clone())))
            }
            Operation::Write => {
                file.parts(&regions, &buffer, |target, regions| IoRequest::Write { target, grant, regions })
            }
            Operation::Read => {
                file.parts(&regions, &buffer, |target, regions| IoRequest::Read { target, grant, regions })
            }
        };
        let (shared, file) = (self.clone(), file.clone());
        let (looking, looked_at) = (self.clone(), file.clone());
        let finish = move |replies: Result<Vec<IoReply>>, started_ns, finished_ns| {
            let good = if operation == Operation::Read { is_moved } else { is_done };
            let mut moved = replies.and_then(|replies| replies.iter().try_for_each(good));
            let is_told = !matches!(&moved, Err(error) if error.kind != ErrorKind::Lost);
            if operation == Operation::Sync && is_told {
                // Who syncs first finds it; all others who have the file open are told as well.
                moved = moved.and(file.told(shared.servers.losses(file.handle)));
            }
            if operation == Operation::Write {
                // Some of it may be written even where not all is.
                shared.note_written(&file);
                if moved.is_ok() {
                    file.is_at_least(regions.end());
                }
            }
            let result = moved.map(|()| regions.total_bytes() as usize);
            done(Completion { buffer, result, started_ns, finished_ns });
        };
        let then = move |Outcome { replies, started_ns, finished_ns }: Outcome| {
            let finish = move |replies| finish(replies, started_ns, finished_ns);
            looking.when_there(&looked_at, replies, finish);
        };
        self.servers.call_all(calls, Box::new(then));
    }
}
