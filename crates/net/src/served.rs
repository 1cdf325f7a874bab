//! The link of a served pool for programs, which close it at any time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outcore_core::{
    Answer, Error, ErrorKind, Incarnation, IoReply, IoRequest, Link, ManagerReply, ManagerRequest, OnAnswer,
    Result, ServerId,
};
use outcore_memory::Region;

use crate::{Address, Credentials, NetLink, Options};

/// The link of a pool, until it is closed.
pub struct ServedLink(Mutex<Option<Arc<NetLink>>>);

impl ServedLink {
    /// Connects to the manager at any of `addresses`. Calls fail after a server was unreachable for
    /// `patience`.
    pub fn connect(
        addresses: &[Address],
        credentials: Credentials,
        patience: Option<Duration>,
    ) -> Result<Self> {
        let mut options = Options::new(credentials);
        options.patience = patience.unwrap_or(options.patience);
        let link = NetLink::connect(addresses, options)?;
        Ok(Self(Mutex::new(Some(Arc::new(link)))))
    }

    /// Closes the connections. Unanswered calls fail.
    pub fn close(&self) {
        let link = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(link);
    }

    fn link(&self) -> Result<Arc<NetLink>> {
        let closed = || Error::new(ErrorKind::Closed, "the pool was closed; connect again");
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }
}

impl Link for ServedLink {
    type Buffer = Region;

    fn io(&self, server: ServerId, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        match self.link() {
            Ok(link) => link.io(server, request, buffer, done),
            Err(error) => {
                let (reply, incarnation) = (IoReply::Failed(error), Incarnation::NONE);
                done(Answer { reply, buffer, incarnation, started_ns: 0, finished_ns: 0 });
            }
        }
    }

    fn is_local(&self, server: ServerId) -> bool {
        self.link().is_ok_and(|link| link.is_local(server))
    }

    fn is_retired(&self, server: ServerId) -> bool {
        self.link().is_ok_and(|link| link.is_retired(server))
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        self.link()?.manager(request)
    }
}
