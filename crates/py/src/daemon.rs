//! The daemons of a pool, in the process of `outcore serve`.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use outcore_core::{Error, ServerId};
use outcore_disk::Directory;
use outcore_net::{Address, Key};
use outcore_server::io_server::marked;
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
    page: Option<String>,
    is_writable: bool,
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
                daemon.end_process_on_failure();
                Self::of_manager(daemon)
            } else {
                Self::of_server(serve_io(&IoSettings::from_settings(settings)?)?)
            };
            notify_ready();
            Ok(started)
        })
        .or_raise(py)
    }

    /// Starts a manager in a directory, with the pool's key in hexadecimal digits.
    #[staticmethod]
    fn manager(py: Python<'_>, directory: PathBuf, listen: Vec<String>, key: &str) -> PyResult<Self> {
        py.detach(|| {
            let (listen, key) = (addresses(&listen)?, Key::from_hex(key)?);
            let (lease_s, metrics, store, page) = (None, None, None, None);
            let stand_by = false;
            let settings =
                ManagerSettings { directory, listen, key, lease_s, metrics, store, stand_by, page };
            serve_manager(&settings).map(Self::of_manager)
        })
        .or_raise(py)
    }

    /// Starts I/O server `server` in a directory, with the pool's key in hexadecimal digits.
    #[staticmethod]
    fn io(
        py: Python<'_>,
        directory: PathBuf,
        listen: Vec<String>,
        key: &str,
        manager: Vec<String>,
        server: u32,
        threads: usize,
    ) -> PyResult<Self> {
        py.detach(|| {
            let settings = IoSettings {
                directory,
                listen: addresses(&listen)?,
                advertise: None,
                key: Key::from_hex(key)?,
                manager: addresses(&manager)?,
                server: Some(ServerId(server)),
                threads,
                memory_bytes: None,
                reads_memory: true,
                metrics: None,
            };
            serve_io(&settings).map(Self::of_server)
        })
        .or_raise(py)
    }

    /// The pool's identity, in hexadecimal digits.
    #[getter]
    fn pool(&self) -> String {
        format!("{:032x}", self.pool)
    }

    /// Whether the daemon's disk was writable at the start. A manager always requires that.
    #[getter]
    fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// The number of the I/O server; `None` for the manager.
    #[getter]
    fn server(&self) -> Option<u32> {
        self.server
    }

    /// The addresses on which it listens.
    #[getter]
    fn addresses(&self) -> Vec<String> {
        self.addresses.clone()
    }

    /// The URL of its metrics; `None` if it has none.
    #[getter]
    fn metrics(&self) -> Option<String> {
        self.metrics.clone()
    }

    /// The URL of the manager's page for people; `None` if it serves none.
    #[getter]
    fn page(&self) -> Option<String> {
        self.page.clone()
    }

    /// Answers pending requests, makes everything durable, and stops.
    fn stop(&self, py: Python<'_>) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| match running {
            Some(Running::Manager(daemon)) => daemon.stop(),
            Some(Running::Io(daemon)) => daemon.stop(),
            None => {}
        });
    }
}

impl Daemon {
    fn of_manager(daemon: ManagerDaemon) -> Self {
        Self {
            pool: daemon.pool(),
            server: None,
            is_writable: true,
            addresses: texts(daemon.addresses()),
            metrics: daemon.metrics().map(|address| format!("http://{address}/metrics")),
            page: daemon.page().map(|address| format!("http://{address}/")),
            running: Mutex::new(Some(Running::Manager(daemon))),
        }
    }

    fn of_server(daemon: IoDaemon) -> Self {
        Self {
            pool: daemon.pool(),
            server: Some(daemon.server().0),
            is_writable: daemon.is_writable(),
            addresses: texts(daemon.addresses()),
            metrics: daemon.metrics().map(|address| format!("http://{address}/metrics")),
            page: None,
            running: Mutex::new(Some(Running::Io(daemon))),
        }
    }
}

/// The pool and the number of the I/O server that uses a directory, the pool in hexadecimal digits; `None` if
/// none does.
#[pyfunction]
pub fn server_mark(py: Python<'_>, directory: PathBuf) -> PyResult<Option<(String, u32)>> {
    let named = |error: Error| Error::new(error.kind, format!("{}: {error}", directory.display()));
    let found = py
        .detach(|| Directory::new(&directory).and_then(|there| marked(&there)).map_err(named))
        .or_raise(py)?;
    Ok(found.map(|(pool, server)| (format!("{pool:032x}"), server.0)))
}

/// Retires an I/O server of a closed pool, given the pool's first directory; with `undo`, reverses that.
#[pyfunction]
#[pyo3(signature = (directory, server, undo = false))]
pub fn retire_server(py: Python<'_>, directory: PathBuf, server: u32, undo: bool) -> PyResult<()> {
    py.detach(|| outcored::retire_server(&directory, ServerId(server), undo)).or_raise(py)
}

fn addresses(texts: &[String]) -> outcore_core::Result<Vec<Address>> {
    texts.iter().map(|text| text.parse()).collect()
}

fn texts(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(ToString::to_string).collect()
}

/// Copies the metadata of a pool to a new file, given the pool's first directory. The pool may be in use.
#[pyfunction]
pub fn backup_metadata(py: Python<'_>, directory: PathBuf, target: PathBuf) -> PyResult<()> {
    py.detach(|| outcored::backup_metadata(&directory, &target)).or_raise(py)
}

/// Replaces the metadata of a stopped pool by a copy. Returns the directory with the replaced metadata, if there were any.
#[pyfunction]
pub fn restore_metadata(py: Python<'_>, directory: PathBuf, copy: PathBuf) -> PyResult<Option<String>> {
    let replaced = py.detach(|| outcored::restore_metadata(&directory, &copy)).or_raise(py)?;
    Ok(replaced.map(|path| path.display().to_string()))
}

/// Moves the metadata of a stopped pool to the database of a URL, or with `back` from there, given the pool's first
/// directory. Returns the number of records, and the directory with the store that is no longer used, if any.
#[pyfunction]
#[pyo3(signature = (directory, url, back = false))]
pub fn migrate_metadata(
    py: Python<'_>,
    directory: PathBuf,
    url: &str,
    back: bool,
) -> PyResult<(u64, Option<String>)> {
    let moved = py.detach(|| {
        let database = url.parse()?;
        if back {
            outcored::migrate_from_database(&directory, &database)
        } else {
            outcored::migrate_to_database(&directory, &database)
        }
    });
    let moved = moved.or_raise(py)?;
    Ok((moved.records, moved.replaced.map(|path| path.display().to_string())))
}
