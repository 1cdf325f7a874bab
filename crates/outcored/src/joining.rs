//! An I/O server joins its pool: it reports its addresses and its highest handle to each run of the manager.
//! Otherwise a manager whose store is an older copy could assign these handles to other files.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use outcore_core::{Error, ErrorKind, Link, ManagerReply, ManagerRequest, Result, ServerAddress};
use outcore_disk::Directory;
use outcore_net::NetLink;
use outcore_server::io_server::highest_handle;

/// Interval at which the server asks the manager for its run number.
const PAUSE: Duration = Duration::from_secs(1);

/// A server that is about to join its pool.
pub(crate) struct Joining {
    pub manager: Arc<NetLink>,
    pub address: ServerAddress,
    /// The directory of its data files.
    pub directory: Directory,
}

/// A server that has joined. Dropping this value ends the reports to the manager.
pub(crate) struct Joined(#[expect(dead_code, reason = "its end is heard")] Sender<()>);

impl Joining {
    /// Reports to the manager now, and to each later run of it in the background.
    pub fn join(self) -> Result<Joined> {
        let run = self.run()?;
        self.tell()?;
        let (held, ends) = channel::<()>();
        let watch = move || {
            let mut told = run;
            while ends.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                // If the manager does not answer, the next round asks again. If it refuses a retired server, it
                // does so for its whole run.
                if let Ok(run) = self.run()
                    && run != told
                    && self.tell().map_or_else(|error| error.kind == ErrorKind::Denied, |()| true)
                {
                    told = run;
                }
            }
        };
        let spawned = thread::Builder::new().name("outcore-join".into()).spawn(watch);
        spawned.map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
        })?;
        Ok(Joined(held))
    }

    /// The number of the manager's current run.
    fn run(&self) -> Result<u64> {
        match self.manager.manager(ManagerRequest::Time)? {
            ManagerReply::Time { run, .. } => Ok(run),
            reply => Err(unexpected(reply)),
        }
    }

    fn tell(&self) -> Result<()> {
        let highest = highest_handle(&self.directory)?;
        match self.manager.manager(ManagerRequest::AddServer { server: self.address.clone(), highest })? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(reply)),
        }
    }
}

fn unexpected(reply: ManagerReply) -> Error {
    match reply {
        ManagerReply::Failed(error) => error,
        reply => Error::new(ErrorKind::Corrupt, format!("the manager answered {reply:?} to a server")),
    }
}
