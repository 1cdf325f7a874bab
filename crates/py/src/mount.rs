//! Mounts of pools.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outcore_mount::{Mount as Mounted, Options, address_at, check_place, unmount_at};
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::pool::Pool;

/// A directory of a pool, mounted in the file system until it is unmounted.
#[pyclass(frozen, module = "outcore._core")]
pub struct Mount(Mutex<Mounted>);

impl Mount {
    fn mounted(&self) -> MutexGuard<'_, Mounted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Mount {
    /// Mounts the directory `root` of a pool at `place`. The pool is at `address`.
    #[new]
    #[pyo3(signature = (pool, place, root, address, allow_other = false, read_only = false, strict = false, no_locks = false))]
    #[expect(clippy::too_many_arguments, reason = "Python names them")]
    fn new(
        py: Python<'_>,
        pool: &Pool,
        place: &str,
        root: String,
        address: String,
        allow_other: bool,
        read_only: bool,
        strict: bool,
        no_locks: bool,
    ) -> PyResult<Self> {
        let options = Options { root, address, allow_other, read_only, strict, locks: !no_locks };
        let mounted = py.detach(|| Mounted::new(pool.client(), Path::new(place), &options));
        mounted.or_raise(py).map(|mounted| Self(Mutex::new(mounted)))
    }

    /// Waits for the end of the mount. Returns whether it has ended within `seconds`.
    fn wait(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        py.detach(|| self.mounted().wait(Duration::from_secs_f64(seconds))).or_raise(py)
    }

    /// Unmounts, and waits a while for programs that have files open there.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.mounted().stop()).or_raise(py)
    }

    /// The address of the pool that is mounted at a directory.
    #[staticmethod]
    fn address_at(py: Python<'_>, place: &str) -> PyResult<Option<String>> {
        address_at(Path::new(place)).or_raise(py)
    }

    /// Refuses a directory that cannot be mounted on. Unmounts a dead mount there.
    #[staticmethod]
    fn check_place(py: Python<'_>, place: &str) -> PyResult<()> {
        py.detach(|| check_place(Path::new(place))).or_raise(py)
    }

    /// Unmounts the pool at a directory, whichever process serves it.
    #[staticmethod]
    fn unmount_at(py: Python<'_>, place: &str, lazy: bool) -> PyResult<()> {
        py.detach(|| unmount_at(Path::new(place), lazy)).or_raise(py)
    }
}

/// The directory at or above a path in which a server or the manager of a pool stores its data.
#[pyfunction]
pub fn pool_directory_of(py: Python<'_>, path: PathBuf) -> Option<PathBuf> {
    py.detach(|| outcore_mount::pool_directory_of(&path))
}

/// The directory with the files of a manager: `manager` in a directory, or the directory itself.
#[pyfunction]
pub fn manager_in(py: Python<'_>, directory: PathBuf) -> Option<PathBuf> {
    py.detach(|| outcore_mount::manager_in(&directory))
}
