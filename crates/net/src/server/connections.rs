//! The connections of a server, and the choice of those that it ends for others.
//!
//! A connection is admitted once its client has proved that it has a key. Connections that are not admitted end
//! first, the oldest of them before the others. An admitted connection ends only for another admitted one, and only
//! if that needs the place of an admitted one, or no other connection is left whose descriptor it could have.

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
            end_oldest_unadmitted(&all, None);
        }
        all.push(Arc::downgrade(connection));
    }

    /// Admits a connection whose client has proved its key. At the limit, the admitted connection that was idle
    /// longest ends. If all are at work, this one is refused.
    pub(crate) fn admit(&self, connection: &Connection) -> Result<()> {
        self.admit_with(connection, self.keep_spare())
    }

    fn admit_with(&self, connection: &Connection, has_spare: bool) -> Result<()> {
        let all = lock(&self.all);
        let most = self.most - (self.most / 4).clamp(1, MOST_FREE);
        let is_full = live(&all).filter(|each| each.is_admitted()).count() >= most;
        if is_full {
            if !end_longest_idle(&all) {
                let message = format!("the server has {most} connections at work; try later");
                return Err(Error::new(ErrorKind::Busy, message));
            }
        } else if !has_spare && !end_oldest_unadmitted(&all, Some(connection)) {
            end_longest_idle(&all);
        }
        connection.admit()
    }

    /// Frees a file descriptor for one more connection. Returns whether it could.
    pub(crate) fn free_descriptor(&self) -> bool {
        end_oldest_unadmitted(&lock(&self.all), None) || lock(&self.spare).take().is_some()
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

/// Ends the oldest connection that is not admitted, other than `except`. Returns whether there was one.
fn end_oldest_unadmitted(all: &[Weak<Connection>], except: Option<&Connection>) -> bool {
    let is_other = |each: &Connection| except.is_none_or(|except| !std::ptr::eq(each, except));
    let oldest = live(all).find(|each| !each.is_admitted() && is_other(each));
    oldest.inspect(|each| each.end()).is_some()
}

/// Ends the admitted connection that was idle longest. Returns whether there was one.
fn end_longest_idle(all: &[Weak<Connection>]) -> bool {
    let idle = live(all).filter_map(|each| Some((each.idle_since()?, each)));
    let longest = idle.min_by_key(|(since, _)| *since);
    longest.inspect(|(_, connection)| connection.end()).is_some()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;
    use crate::Address;
    use crate::server::channel::Channel;
    use crate::socket::Socket;

    /// A new connection, and its client.
    fn come(connections: &Connections) -> (Arc<Connection>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = Socket::Tcp(listener.accept().unwrap().0);
        let channel = Arc::new(Channel::new(Address::Tcp(String::new())));
        let connection = Arc::new(Connection::new(socket, channel, Duration::MAX, Duration::MAX));
        connections.add(&connection);
        (connection, far)
    }

    #[test]
    fn who_proves_a_key_without_a_spare_descriptor_ends_clients_without_a_key_first() {
        let connections = Connections::new(100);
        let admitted = [(), ()].map(|()| come(&connections));
        for (connection, _) in &admitted {
            connections.admit(connection).unwrap();
        }
        let [comes, other, third] = [(), (), ()].map(|()| come(&connections));
        let over =
            || [&admitted[0], &admitted[1], &other, &third].map(|(connection, _)| connection.is_over());
        connections.admit_with(&comes.0, false).unwrap();
        assert_eq!(over(), [false, false, true, false], "the oldest other one");
        connections.admit_with(&third.0, false).unwrap();
        assert_eq!(over(), [true, false, true, false], "nothing else is left");
        assert!(!comes.0.is_over());
    }
}
