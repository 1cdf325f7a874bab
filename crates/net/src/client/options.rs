//! How a client connects to a pool.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outcore_core::Clock;

use crate::Credentials;
use crate::system::MonotonicClock;

/// Options for connections to a pool.
#[derive(Clone)]
pub struct Options {
    /// The means by which the client proves its identity.
    pub credentials: Credentials,
    /// Connections to each address of an I/O server.
    pub connections_per_address: usize,
    /// Calls fail after a server was unreachable for this long.
    pub patience: Duration,
    /// Minimum silence after which the client drops the connection to a server that works on requests.
    pub least_silence: Duration,
    /// The clock for the times of answers.
    pub clock: Arc<dyn Clock>,
}

impl Options {
    /// The defaults.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            connections_per_address: 2,
            patience: Duration::from_secs(60),
            least_silence: Duration::from_secs(5),
            clock: Arc::new(MonotonicClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}
