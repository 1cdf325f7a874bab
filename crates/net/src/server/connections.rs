//! The connections of a server, and the choice of those that it ends for others.
//!
//! A connection is admitted once its client has proved that it has a key. Connections that are not admitted end
//! first, the oldest of them before the others. An admitted connection ends only for another admitted one.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use outcore_core::{Error, ErrorKind, Result};

use crate::server::connection::Connection;

/// Maximum number of connections that are kept free for clients that prove their key.
const MOST_FREE: usize = 16;

pub(crate) struct Connections {
    /// In the order in which the server accepted them.
    all: Mutex<Vec<Weak<Connection>>>,
    most: usize,
    /// A file descriptor with which the server accepts one more client when no other is left.
    spare: Mutex<Option<File>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// At most `most` connections at a time, at least two.
    pub(crate) fn new(most: usize) -> Self {
        let connections = Self { all: Mutex::default(), most: most.max(2), spare: Mutex::default() };
        connections.keep_spare();
        connections
    }

    /// All connections that have not ended.
    pub(crate) fn live(&self) -> Vec<Arc<Connection>> {
        live(&lock(&self.all)).collect()
    }

    /// Whether a connection still exists, although it may have ended.
    pub(crate) fn any_exists(&self) -> bool {
        lock(&self.all).iter().any(|each| each.strong_count() > 0)
    }

    /// Adds a connection whose client has proved nothing yet. At the limit, the oldest such connection ends.
    pub(crate) fn add(&self, connection: &Arc<Connection>) {
        let mut all = lock(&self.all);
        all.retain(|other| other.strong_count() > 0);
        if live(&all).count() >= self.most {
            // There is one: some connections stay free of admitted clients.
            end_oldest_unadmitted(&all);
        }
        all.push(Arc::downgrade(connection));
    }

    /// Admits a connection whose client has proved its key. At the limit, the admitted connection that was idle
    /// longest ends. If all are at work, this one is refused.
    pub(crate) fn admit(&self, connection: &Connection) -> Result<()> {
        let all = lock(&self.all);
        let most = self.most - (self.most / 4).clamp(1, MOST_FREE);
        let is_full = live(&all).filter(|each| each.is_admitted()).count() >= most;
        let needs_room = is_full || !self.keep_spare();
        let has_ended = needs_room && end_longest_idle(&all);
        if is_full && !has_ended {
            let message = format!("the server has {most} connections at work; try later");
            return Err(Error::new(ErrorKind::Busy, message));
        }
        connection.admit()
    }

    /// Frees a file descriptor for one more connection. Returns whether it could.
    pub(crate) fn free_descriptor(&self) -> bool {
        end_oldest_unadmitted(&lock(&self.all)) || lock(&self.spare).take().is_some()
    }

    /// Opens the spare descriptor if it was used. Returns whether there is one.
    pub(crate) fn keep_spare(&self) -> bool {
        let mut spare = lock(&self.spare);
        if spare.is_none() {
            *spare = File::open("/dev/null").ok();
        }
        spare.is_some()
    }
}

fn live(all: &[Weak<Connection>]) -> impl Iterator<Item = Arc<Connection>> + '_ {
    all.iter().filter_map(Weak::upgrade).filter(|each| !each.is_over())
}

fn end_oldest_unadmitted(all: &[Weak<Connection>]) -> bool {
    live(all).find(|each| !each.is_admitted()).inspect(|each| each.end()).is_some()
}

/// Ends the admitted connection that was idle longest. Returns whether there was one.
fn end_longest_idle(all: &[Weak<Connection>]) -> bool {
    let idle = live(all).filter_map(|each| Some((each.idle_since()?, each)));
    let longest = idle.min_by_key(|(since, _)| *since);
    longest.inspect(|(_, connection)| connection.end()).is_some()
}
