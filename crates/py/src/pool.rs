//! Pools.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use outcore_client::{Attributes, Listed as Listing, Silent, system_clock};
use outcore_core::{
    ErrorKind, Hints, Hit, Inode, IoStatus, Link, OpenMode, ServerId, ServerSpan, ServerSpans, Volume as _,
};
use outcore_memory::Region;
use outcore_net::{Address, Credentials, Key, ServedLink, User};
use pyo3::prelude::*;

use crate::error::{OrRaise, error_of};
use crate::pool_file::{Client, PoolFile};
use crate::volume::Volume;
use outcored::EmbeddedLink;

/// (whether it is a directory, owner, group, permission bits, last write, last change of the record, bytes of a
/// stripe unit, distributed stripe units, numbers of the servers, target of a symbolic link). Times are in
/// nanoseconds. The distributed stripe units are `None` without a tail. For a directory or link the three before the
/// target are 0, `None` and empty.
type Status = (bool, u32, u32, u32, u64, u64, u64, Option<u64>, Vec<u32>, Option<String>);

/// (path, status, length in bytes as far as the manager knows it, description).
type Found = (String, Status, u64, Cow<'static, [u8]>);

/// (name, status, length in bytes, the reason why the length may be larger).
type Listed = (String, Status, u64, Option<String>);

/// A server's report: number, free bytes, requests, bytes read and written, damaged blocks, whether it is
/// writable, and the error if it does not answer.
type Server = (u32, u64, u64, u64, u64, u64, bool, Option<String>);

/// A server's last transfers: see `Pool.spans`.
type SpansOf<'py> = (u32, Option<String>, (u64, u64, u64), Vec<String>, Bound<'py, PyArray2<u64>>);

/// A pool of I/O servers.
#[pyclass(frozen, module = "outcore._core")]
pub struct Pool {
    client: Arc<Client>,
    close: Box<dyn Fn() + Send + Sync>,
}

impl Pool {
    /// The pool of `link`; `close` is called when the pool is closed.
    pub fn over(
        link: Arc<dyn Link<Buffer = Region>>,
        close: Box<dyn Fn() + Send + Sync>,
    ) -> outcore_core::Result<Self> {
        Ok(Self { client: Arc::new(Client::new(link, system_clock())?), close })
    }

    /// The client of the pool.
    pub fn client(&self) -> Arc<Client> {
        self.client.clone()
    }
}

/// Servers that did not answer during a listing.
#[pyclass(frozen, module = "outcore._core")]
#[derive(Default)]
pub struct SilentServers(Silent);

#[pymethods]
impl SilentServers {
    #[new]
    fn new() -> Self {
        Self::default()
    }
}

#[pymethods]
impl Pool {
    /// Opens the pool in some directories of this machine, with its servers in this process.
    #[staticmethod]
    #[pyo3(signature = (directories, threads = outcore_disk::DEFAULT_THREADS, skips_retired = false))]
    fn embedded(
        py: Python<'_>,
        directories: Vec<String>,
        threads: usize,
        skips_retired: bool,
    ) -> PyResult<Self> {
        let opened = py.detach(|| {
            let link = Arc::new(EmbeddedLink::open(&directories, threads, skips_retired)?);
            let closing = link.clone();
            Self::over(link, Box::new(move || closing.close()))
        });
        opened.or_raise(py)
    }

    /// Connects to the pool whose manager listens at any of `addresses`. The credentials are a key file, the
    /// pool's key in hexadecimal digits, or the operating system's report on this process. Calls fail after a
    /// server was unreachable for `patience_s`.
    #[staticmethod]
    #[pyo3(signature = (addresses, key_file = None, key = None, patience_s = None))]
    fn connect(
        py: Python<'_>,
        addresses: Vec<String>,
        key_file: Option<&str>,
        key: Option<&str>,
        patience_s: Option<u32>,
    ) -> PyResult<Self> {
        let opened = py.detach(|| {
            let credentials = match (key_file, key) {
                (_, Some(key)) => Credentials::Pool { key: Key::from_hex(key)?, user: User::own() },
                (Some(file), None) => Credentials::from_file(Path::new(file))?,
                (None, None) => Credentials::Peer,
            };
            let patience = patience_s.map(|seconds| Duration::from_secs(seconds.into()));
            let addresses: Vec<Address> =
                addresses.iter().map(|text| text.parse()).collect::<outcore_core::Result<_>>()?;
            let link = Arc::new(ServedLink::connect(&addresses, credentials, patience)?);
            let closing = link.clone();
            Self::over(link, Box::new(move || closing.close()))
        });
        opened.or_raise(py)
    }

    /// The pool's identity: a random number from its creation, in hexadecimal digits.
    #[getter]
    fn id(&self) -> String {
        format!("{:032x}", self.client.id())
    }

    /// Messages sent to I/O servers so far.
    #[getter]
    fn messages(&self) -> u64 {
        self.client.messages()
    }

    /// Numbers of the I/O servers in use when the pool was opened.
    #[getter]
    fn server_ids(&self) -> Vec<u32> {
        self.client.server_ids().iter().map(|id| id.0).collect()
    }

    /// Numbers of the retired I/O servers.
    #[getter]
    fn retired_ids(&self) -> Vec<u32> {
        self.client.retired_ids().iter().map(|id| id.0).collect()
    }

    /// Retires an I/O server that does not answer; with `undo`, reverses that.
    #[pyo3(signature = (server, undo = false))]
    fn retire(&self, py: Python<'_>, server: u32, undo: bool) -> PyResult<()> {
        py.detach(|| self.client.retire(ServerId(server), undo)).or_raise(py)
    }

    /// A unique number for a new I/O server.
    fn new_server(&self, py: Python<'_>) -> PyResult<u32> {
        py.detach(|| self.client.new_server()).or_raise(py).map(|id| id.0)
    }

    fn volume(&self) -> Volume {
        Volume(self.client.clone())
    }

    /// Opens an existing file.
    fn open(&self, py: Python<'_>, path: &str, writable: bool) -> PyResult<PoolFile> {
        let mode = if writable { OpenMode::ReadWrite } else { OpenMode::Read };
        let file = py.detach(|| self.client.open(path, mode));
        file.or_raise(py).map(|file| PoolFile::new(self.client.clone(), file))
    }

    /// Creates an empty file with permission bits, before the umask. Without `unit_bytes`, `count` and
    /// `base`, the defaults of the directory apply, and then those of the pool.
    #[pyo3(signature = (path, mode = 0o666, unit_bytes = None, round_units = None, count = None, base = None, others = vec![]))]
    #[expect(clippy::too_many_arguments, reason = "keywords at the one call from Python")]
    fn create(
        &self,
        py: Python<'_>,
        path: &str,
        mode: u32,
        unit_bytes: Option<u64>,
        round_units: Option<u64>,
        count: Option<u64>,
        base: Option<u64>,
        others: Vec<(String, String)>,
    ) -> PyResult<PoolFile> {
        let hints = Hints { stripe_unit_bytes: unit_bytes, round_units, stripe_count: count, base, others };
        let file = py.detach(|| self.client.create_as(path, hints, mode));
        file.or_raise(py).map(|file| PoolFile::new(self.client.clone(), file))
    }

    /// Opens a file for writing, or creates it as `create` does. Returns whether it is new, too.
    #[pyo3(signature = (path, mode = 0o666, unit_bytes = None, round_units = None, count = None, base = None, others = vec![]))]
    #[expect(clippy::too_many_arguments, reason = "keywords at the one call from Python")]
    fn open_or_create(
        &self,
        py: Python<'_>,
        path: &str,
        mode: u32,
        unit_bytes: Option<u64>,
        round_units: Option<u64>,
        count: Option<u64>,
        base: Option<u64>,
        others: Vec<(String, String)>,
    ) -> PyResult<(PoolFile, bool)> {
        let hints = Hints { stripe_unit_bytes: unit_bytes, round_units, stripe_count: count, base, others };
        let opened = py.detach(|| self.client.open_or_create(path, true, &hints, mode));
        opened.or_raise(py).map(|(file, is_new)| (PoolFile::new(self.client.clone(), file), is_new))
    }

    /// Reports an error of this process to the other processes of some collectives, through their servers.
    /// The error is given by its kind and message; this process then cannot take part.
    fn abandon(
        &self,
        py: Python<'_>,
        servers: Vec<u32>,
        numbers: Vec<u128>,
        rank: u64,
        failed: (String, String),
    ) {
        let servers: Vec<ServerId> = servers.into_iter().map(ServerId).collect();
        let error = error_of(&failed.0, &failed.1);
        py.detach(|| self.client.abandon(&servers, &numbers, rank, &error));
    }

    /// The status of a name; of a symbolic link that of the link itself.
    fn stat(&self, py: Python<'_>, path: &str) -> PyResult<Status> {
        py.detach(|| self.client.stat(path)).or_raise(py).map(|inode| status(&inode))
    }

    /// The names in a directory with their status. It does not query the I/O servers for lengths.
    fn names(&self, py: Python<'_>, path: &str) -> PyResult<Vec<(String, Status)>> {
        let names = py.detach(|| self.client.names(path)).or_raise(py)?;
        Ok(names.into_iter().map(|named| (named.name, status(&named.inode))).collect())
    }

    /// At most `most` names of a directory after `after`, with status and length, and whether more follow.
    /// For a file, the file itself under an empty name. With `silent`, a server that does not answer is no
    /// error, and is not queried again.
    #[pyo3(signature = (path, after = "", most = 1000, silent = None))]
    fn page(
        &self,
        py: Python<'_>,
        path: &str,
        after: &str,
        most: u64,
        silent: Option<&SilentServers>,
    ) -> PyResult<(Vec<Listed>, bool)> {
        let fresh = Silent::default();
        let noted = silent.map_or(&fresh, |silent| &silent.0);
        let (listed, more) = py.detach(|| self.client.page(path, after, most, noted)).or_raise(py)?;
        let tuple = |each: Listing| {
            let each = if silent.is_some() { each } else { known(path, each)? };
            Ok((each.name, status(&each.inode), each.length, each.unknown.map(|error| error.message)))
        };
        Ok((listed.into_iter().map(tuple).collect::<outcore_core::Result<_>>().or_raise(py)?, more))
    }

    /// The files and directories at and below a path for which a query holds, sorted by path. An array, a group and
    /// a report have a description, in JSON; others have an empty one.
    #[pyo3(signature = (path, query = ""))]
    fn find(&self, py: Python<'_>, path: &str, query: &str) -> PyResult<Vec<Found>> {
        let hits = py.detach(|| self.client.find(path, query)).or_raise(py)?;
        let tuple = |hit: Hit| {
            (hit.path, status(&hit.inode), hit.inode.durable_length(), Cow::Owned(hit.description))
        };
        Ok(hits.into_iter().map(tuple).collect())
    }

    /// Changes the attributes that are not `None`.
    #[pyo3(signature = (path, mode = None, owner = None, group = None, modified_ns = None))]
    fn set_attributes(
        &self,
        py: Python<'_>,
        path: &str,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        modified_ns: Option<u64>,
    ) -> PyResult<()> {
        let wanted = Attributes { mode, owner, group, modified_ns };
        py.detach(|| self.client.set_attributes(path, wanted)).or_raise(py)
    }

    /// Sets the time of the last write to now.
    fn touch(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        py.detach(|| self.client.touch(path)).or_raise(py)
    }

    fn extended(&self, py: Python<'_>, path: &str, name: &str) -> PyResult<Cow<'static, [u8]>> {
        py.detach(|| self.client.extended(path, name)).or_raise(py).map(Cow::Owned)
    }

    fn extended_names(&self, py: Python<'_>, path: &str) -> PyResult<Vec<String>> {
        py.detach(|| self.client.extended_names(path)).or_raise(py)
    }

    /// Sets an extended attribute; without a value, removes it.
    #[pyo3(signature = (path, name, value = None))]
    fn set_extended(&self, py: Python<'_>, path: &str, name: &str, value: Option<&[u8]>) -> PyResult<()> {
        let value = value.map(<[u8]>::to_vec);
        py.detach(|| self.client.set_extended(path, name, value)).or_raise(py)
    }

    /// Creates a directory with permission bits, before the umask.
    #[pyo3(signature = (path, mode = 0o777))]
    fn make_directory(&self, py: Python<'_>, path: &str, mode: u32) -> PyResult<()> {
        py.detach(|| self.client.make_directory_as(path, mode)).or_raise(py)
    }

    /// Creates a symbolic link.
    fn make_link(&self, py: Python<'_>, path: &str, target: &str) -> PyResult<()> {
        py.detach(|| self.client.make_link(path, target)).or_raise(py)
    }

    /// The path without symbolic links, also in its last name, which need not exist.
    fn follow(&self, py: Python<'_>, path: &str) -> PyResult<String> {
        py.detach(|| self.client.follow(path)).or_raise(py)
    }

    /// Sets the default layout of new files in a directory.
    #[pyo3(signature = (path, unit_bytes = None, round_units = None, count = None, base = None, others = vec![]))]
    #[expect(clippy::too_many_arguments, reason = "keywords at the one call from Python")]
    fn set_default_layout(
        &self,
        py: Python<'_>,
        path: &str,
        unit_bytes: Option<u64>,
        round_units: Option<u64>,
        count: Option<u64>,
        base: Option<u64>,
        others: Vec<(String, String)>,
    ) -> PyResult<()> {
        let hints = Hints { stripe_unit_bytes: unit_bytes, round_units, stripe_count: count, base, others };
        py.detach(|| self.client.set_default_layout(path, hints)).or_raise(py)
    }

    /// Removes a file, or an empty directory.
    fn remove_one(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        py.detach(|| self.client.remove_one(path)).or_raise(py)
    }

    /// Renames a file over another file, or atomically a directory over another directory with its contents.
    fn replace(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        py.detach(|| self.client.replace(old, new)).or_raise(py)
    }

    /// The status of each server. With `partial`, a server that does not answer yields its error; otherwise
    /// the error is raised. A caller without the right to query gets an exception in any case.
    #[pyo3(signature = (partial = false))]
    fn servers(&self, py: Python<'_>, partial: bool) -> PyResult<Vec<Server>> {
        let each = py.detach(|| self.client.status()).into_iter();
        let server = |(id, status): (ServerId, outcore_core::Result<IoStatus>)| {
            let (s, error) = match status {
                Err(error) if partial && error.kind != ErrorKind::Denied => {
                    (IoStatus::default(), Some(error.message))
                }
                status => (status?, None),
            };
            let moved = (s.bytes_read, s.bytes_written);
            Ok((id.0, s.free_bytes, s.requests, moved.0, moved.1, s.damaged_blocks, s.is_writable, error))
        };
        each.map(server).collect::<outcore_core::Result<_>>().or_raise(py)
    }

    /// The last transfers of each server. For each server: its number; an error, if it does not answer; its clock, the
    /// same moment in nanoseconds since 1970, and the time of its clock from which the transfers are complete; names; and a
    /// row (place of the name, start_ns, end_ns, offset, bytes) for each transfer.
    fn spans<'py>(&self, py: Python<'py>) -> PyResult<Vec<SpansOf<'py>>> {
        let each = py.detach(|| self.client.spans()).into_iter();
        let server = |(id, spans): (ServerId, outcore_core::Result<ServerSpans>)| {
            let (found, error) = match spans {
                Ok(found) => (Some(found), None),
                Err(error) => (None, Some(error.message)),
            };
            let spans = found.iter().flat_map(|found| &found.spans);
            let row = |s: &ServerSpan| [u64::from(s.name), s.start_ns, s.end_ns, s.offset, s.bytes];
            let flat: Vec<u64> = spans.flat_map(row).collect();
            let count = flat.len() / 5;
            let rows = PyArray1::from_vec(py, flat).reshape([count, 5])?;
            let times = found.as_ref().map(|found| (found.now_ns, found.unix_ns, found.complete_after_ns));
            let names = found.map(|found| found.names);
            Ok((id.0, error, times.unwrap_or_default(), names.unwrap_or_default(), rows))
        };
        each.map(server).collect()
    }

    /// The handle of a name: a number that never identifies another file or directory.
    fn handle(&self, py: Python<'_>, path: &str) -> PyResult<u64> {
        py.detach(|| self.client.stat(path)).or_raise(py).map(|inode| inode.handle.0)
    }

    /// Reports the last writes of this client to the manager, as far as it does not know them.
    fn tell_written(&self, py: Python<'_>) {
        py.detach(|| self.client.tell_written());
    }

    /// Closes the pool and its open files.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            self.client.tell_written();
            (self.close)();
        });
    }
}

/// Itself, if its length is known; otherwise an error that names `path` and the name in it.
fn known(path: &str, mut listed: Listing) -> outcore_core::Result<Listing> {
    let names = [path, listed.name.as_str()].map(|part| part.trim_matches('/'));
    let names: Vec<&str> = names.into_iter().filter(|part| !part.is_empty()).collect();
    if let Some(error) = &mut listed.unknown {
        error.message = format!("the length of {} is not known: {error}", names.join("/"));
    }
    listed.known()
}

fn status(inode: &Inode) -> Status {
    let layout = inode.layout.as_ref();
    (
        inode.is_directory(),
        inode.owner,
        inode.group,
        inode.mode,
        inode.modified_ns,
        inode.changed_ns,
        layout.map_or(0, |layout| layout.stripes.unit_bytes()),
        layout.and_then(|layout| layout.stripes.round_units()),
        layout.map_or(vec![], |layout| layout.servers.iter().map(|server| server.0).collect()),
        inode.target.clone(),
    )
}
