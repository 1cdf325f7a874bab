//! The daemons of a pool, in the process of `outcore serve`.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use outcored::{
    IoDaemon, IoSettings, ManagerDaemon, ManagerSettings, Settings, notify_ready, serve_io, serve_manager,
};
use pyo3::prelude::*;

use crate::error::{OrRaise, raise};

enum Running {
    Manager(ManagerDaemon),
    Io(IoDaemon),
}

/// A manager or an I/O server that listens until it is stopped.
#[pyclass(frozen, module = "outcore._core")]
pub struct Daemon {
    running: Mutex<Option<Running>>,
    pool: u128,
    server: Option<u32>,
    addresses: Vec<String>,
    metrics: Option<String>,
}

#[pymethods]
impl Daemon {
    /// Starts the daemon of a `role`, "manager" or "io", with the settings in a file.
    #[new]
    fn new(py: Python<'_>, role: &str, config: &str) -> PyResult<Self> {
        let is_manager = match role {
            "manager" => true,
            "io" => false,
            _ => {
                let error = outcore_core::Error::invalid(format!("need the role manager or io, have {role}"));
                return Err(raise(py, &error));
            }
        };
        py.detach(|| {
            let settings = Settings::from_file(Path::new(config))?;
            let started = if is_manager {
                let daemon = serve_manager(&ManagerSettings::from_settings(settings)?)?;
                Self {
                    pool: daemon.pool(),
                    server: None,
                    addresses: texts(daemon.addresses()),
                    metrics: daemon.metrics().map(|address| format!("http://{address}/metrics")),
                    running: Mutex::new(Some(Running::Manager(daemon))),
                }
            } else {
                let daemon = serve_io(&IoSettings::from_settings(settings)?)?;
                Self {
                    pool: daemon.pool(),
                    server: Some(daemon.server().0),
                    addresses: texts(daemon.addresses()),
                    metrics: daemon.metrics().map(|address| format!("http://{address}/metrics")),
                    running: Mutex::new(Some(Running::Io(daemon))),
                }
            };
            notify_ready();
            Ok(started)
        })
        .or_raise(py)
    }

    /// Which pool it is of, in hexadecimal digits.
    #[getter]
    fn pool(&self) -> String {
        format!("{:032x}", self.pool)
    }

    /// Which I/O server it is; `None`: the manager.
    #[getter]
    fn server(&self) -> Option<u32> {
        self.server
    }

    /// Where it listens.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// Where its metrics are; `None`: nowhere.
    #[getter]
    fn metrics(&self) -> Option<String> {
        self.metrics.clone()
    }

    /// Answers what was asked, makes everything durable, and stops.
    fn stop(&self, py: Python<'_>) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| match running {
            Some(Running::Manager(daemon)) => daemon.stop(),
            Some(Running::Io(daemon)) => daemon.stop(),
            None => {}
        });
    }
}

fn texts(addresses: &[outcore_net::Address]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}
