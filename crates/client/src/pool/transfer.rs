//! Reads, writes and syncs of a pool's files: one message to each server that holds a part of them.

use std::sync::Arc;

use outcore_core::{
    Buffer, Completion, Error, ErrorKind, FileId, Gather, Grant, IoReply, IoRequest, Link, OnDone, Operation,
    Regions, Result,
};

use crate::pool::call::{Outcome, gone};
use crate::pool::file::{PoolFile, ends_of};
use crate::pool::runs::ask_apart;
use crate::pool::shared::{Shared, TRIES, is_done, is_moved};

/// A transfer, and its completion callback.
struct Transfer<B> {
    operation: Operation,
    regions: Regions,
    buffer: B,
    done: OnDone<B>,
    /// Number of grants used so far.
    tries: u32,
}

impl<L: Link + ?Sized + 'static> Shared<L>
where
    L::Buffer: Gather + Sync,
{
    /// Moves bytes, and calls `done` after the last server answered.
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
            Ok(grant) => {
                shared.begin(&granted, grant, Transfer { operation, regions, buffer, done, tries: 1 })
            }
        });
    }

    fn begin(self: &Arc<Self>, file: &Arc<PoolFile>, grant: Grant, transfer: Transfer<L::Buffer>) {
        let Transfer { operation, regions, .. } = &transfer;
        if *operation == Operation::Read && regions.end() > file.known_length() {
            self.read_if_long_enough(file.clone(), grant, transfer);
        } else {
            self.transfer(file, grant, transfer);
        }
    }

    /// Continues with the servers' answers. If they refused the grant, restarts with a new one.
    fn when_taken(
        self: &Arc<Self>,
        file: &Arc<PoolFile>,
        grant: Grant,
        mut transfer: Transfer<L::Buffer>,
        outcome: Outcome,
        then: impl FnOnce(Transfer<L::Buffer>, Outcome),
    ) {
        let is_denied = matches!(&outcome.replies, Err(error) if error.kind == ErrorKind::Denied);
        if !is_denied || transfer.tries == TRIES {
            return then(transfer, outcome);
        }
        transfer.tries += 1;
        file.refused(&grant);
        let (shared, renewed) = (self.clone(), file.clone());
        self.with_grant(file, move |grant| match grant {
            Err(error) => (transfer.done)(Completion::failed(transfer.buffer, error, outcome.finished_ns)),
            Ok(grant) => shared.begin(&renewed, grant, transfer),
        });
    }

    /// Requests the current length of the file before a read past the known length. If a server of the file
    /// is retired, the others give a minimum length.
    fn read_if_long_enough(
        self: &Arc<Self>,
        file: Arc<PoolFile>,
        grant: Grant,
        transfer: Transfer<L::Buffer>,
    ) {
        let (shared, looking, looked_at) = (self.clone(), self.clone(), file.clone());
        let retired = file.retired(self.servers.link());
        let calls = file.length_calls_of_others(grant, &retired, &self.none);
        let asked_of = file.asked_of(&calls);
        let finish = move |transfer: Transfer<L::Buffer>, replies: Result<Vec<IoReply>>, finished_ns| {
            let regions = &transfer.regions;
            let length = replies.and_then(|replies| {
                let mut replies = replies.into_iter();
                let each = retired.iter().map(|retired| match retired {
                    Some(_) => Some(IoReply::Length(0)),
                    None => replies.next(),
                });
                file.length_from(&each.flatten().collect::<Vec<_>>())
            });
            let enough = length.and_then(|length| {
                file.is_at_least(length);
                if regions.end() <= length {
                    return Ok(());
                }
                if let Some(&server) = retired.iter().flatten().next() {
                    return Err(gone(&file.path, server));
                }
                Err(Error::new(
                    ErrorKind::Truncated,
                    format!(
                        "need the bytes of {} up to {}; the file ends at {length}; read up to there",
                        file.path,
                        regions.end()
                    ),
                ))
            });
            match enough {
                Ok(()) => shared.transfer(&file, grant, transfer),
                Err(error) => (transfer.done)(Completion::failed(transfer.buffer, error, finished_ns)),
            }
        };
        let then = move |outcome: Outcome| {
            let (shared, file) = (looking.clone(), looked_at.clone());
            shared.when_taken(&file, grant, transfer, outcome, move |transfer, outcome| {
                let Outcome { replies, finished_ns, .. } = outcome;
                looking.when_there(&looked_at, asked_of, replies, move |replies| {
                    finish(transfer, replies, finished_ns);
                });
            });
        };
        self.servers.call_all(calls, Box::new(then));
    }

    /// Sends one message to each server with a part of the transfer.
    fn transfer(self: &Arc<Self>, file: &Arc<PoolFile>, grant: Grant, transfer: Transfer<L::Buffer>) {
        let Transfer { operation, regions, buffer, .. } = &transfer;
        let turn = file.tracked().turn();
        let calls = match operation {
            Operation::Sync => file.sync_calls(grant, &self.none),
            Operation::Write => {
                file.parts(regions, buffer, |target, regions| IoRequest::Write { target, grant, regions })
            }
            Operation::Read => {
                file.parts(regions, buffer, |target, regions| IoRequest::Read { target, grant, regions })
            }
        };
        let asked_of = file.asked_of(&calls);
        let (shared, file) = (self.clone(), file.clone());
        if *operation != Operation::Read && !self.is_compared(&file, &asked_of) {
            // Otherwise an older copy would take the change, and a sync could raise its generation to the known one.
            drop(calls);
            let (asking, asked) = (self.clone(), file.clone());
            return ask_apart(
                move || asking.know(&asked),
                move |known| match known {
                    Ok(()) => shared.transfer(&file, grant, transfer),
                    Err(error) => (transfer.done)(Completion::failed(transfer.buffer, error, 0)),
                },
            );
        }
        let (looking, looked_at) = (self.clone(), file.clone());
        let finish = move |transfer: Transfer<L::Buffer>, outcome: Outcome| {
            let Transfer { operation, regions, buffer, done, .. } = transfer;
            let Outcome { replies, started_ns, finished_ns } = outcome;
            let mut moved = replies.and_then(|replies| match operation {
                Operation::Read => replies.iter().try_for_each(is_moved),
                Operation::Write => replies.iter().try_for_each(is_done),
                Operation::Sync => {
                    shared.note_synced(&file, turn, &ends_of(&replies)?);
                    Ok(())
                }
            });
            let is_told = !matches!(&moved, Err(error) if error.kind != ErrorKind::Lost);
            if operation == Operation::Sync && is_told {
                // The first sync finds the loss; all other users of the file get the error too.
                moved = moved.and(file.told(shared.servers.losses(file.handle)));
            }
            if operation == Operation::Write {
                // A failed write may have written some of the bytes.
                shared.note_written(&file);
                if moved.is_ok() {
                    file.is_at_least(regions.end());
                }
            }
            let result = moved.map(|()| regions.total_bytes() as usize);
            done(Completion { buffer, result, started_ns, finished_ns });
        };
        let then = move |outcome: Outcome| {
            let (shared, file) = (looking.clone(), looked_at.clone());
            shared.when_taken(&file, grant, transfer, outcome, move |transfer, outcome| {
                let Outcome { replies, started_ns, finished_ns } = outcome;
                looking.when_there(&looked_at, asked_of, replies, move |replies| {
                    finish(transfer, Outcome { replies, started_ns, finished_ns });
                });
            });
        };
        self.servers.call_all(calls, Box::new(then));
    }
}
