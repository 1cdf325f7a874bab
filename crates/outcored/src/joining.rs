//! An I/O server joins its pool: it reports its addresses and its highest handle to each run of the manager. Otherwise a
//! manager whose store is an older copy could give these handles to other files.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use outcore_core::{Error, ErrorKind, Link, ManagerReply, ManagerRequest, Result, ServerAddress};
use outcore_disk::Directory;
use outcore_net::NetLink;
use outcore_server::io_server::highest_handle;

/// How often the manager is asked which run it is.
const PAUSE: Duration = Duration::from_secs(1);

/// A server that is about to join its pool.
pub(crate) struct Joining {
    pub manager: Arc<NetLink>,
    pub address: ServerAddress,
    /// Where its data files are.
    pub directory: Directory,
}

/// A server that has joined. Dropping it ends the reports to the manager.
pub(crate) struct Joined(#[expect(dead_code, reason = "its end is heard")] Sender<()>);

impl Joining {
    /// Tells the manager, and goes on to tell each later run of it.
    pub fn join(self) -> Result<Joined> {
        let run = self.run()?;
        self.tell()?;
        let (held, ends) = channel::<()>();
        let watch = move || {
            let mut told = run;
            while ends.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                // A manager that does not answer is asked again.
                if let Ok(run) = self.run()
                    && run != told
                    && self.tell().is_ok()
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

    /// Which run of the manager answers.
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
