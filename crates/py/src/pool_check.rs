//! Checks of a pool.

use std::borrow::Cow;
use std::sync::Arc;

use outcore_core::{Handle, Inode, Known, ScrubPlace, ServerId};
use pyo3::prelude::*;

use crate::error::OrRaise;
use crate::layout::Stripes;
use crate::pool::Pool;
use crate::pool_file::Client;

/// (place to continue as handle and byte, or `None`; files whose end was reached; bytes compared; damage as
/// handle, first byte, number of bytes, description).
type Scrubbed = (Option<(u64, u64)>, u64, u64, Vec<(u64, u64, u64, String)>);

/// (handle, bytes of the data file, bytes of its checksums, end of the last block with a checksum past the
/// data file's end, generation, bytes that no write explains, whether its checksums are old).
type Inspection = (u64, Option<u64>, Option<u64>, u64, u64, u64, bool);

/// (handle, "file", "directory", "link", "removed", "gone" or "unused", stripes, numbers of the servers, durable
/// bytes of the data files, their generations). Only "file" and "removed" have the last four.
type Record = (u64, &'static str, Option<Stripes>, Vec<u32>, Vec<u64>, Vec<u64>);

/// (handle and bytes of each data file, whether more follow).
type DataFiles = (Vec<(u64, Option<u64>)>, bool);

/// (handle and description of each record, key after which to continue).
type OddRecords = (Vec<(u64, String)>, Option<Cow<'static, [u8]>>);

/// Reports of a pool's servers on their data, for callers with the right to check it.
#[pyclass(frozen, module = "outcore._core")]
pub struct PoolCheck(Arc<Client>);

#[pymethods]
impl PoolCheck {
    #[new]
    fn new(pool: &Pool) -> Self {
        Self(pool.client())
    }

    /// The numbers of the I/O servers that are not retired.
    #[getter]
    fn servers(&self) -> Vec<u32> {
        self.0.server_ids().iter().map(|id| id.0).collect()
    }

    /// The numbers of the retired I/O servers.
    #[getter]
    fn retired(&self) -> Vec<u32> {
        self.0.retired_ids().iter().map(|id| id.0).collect()
    }

    /// Compares blocks of a server with their checksums, starting at a place; initially handle 0, byte 0.
    fn scrub(
        &self,
        py: Python<'_>,
        server: u32,
        handle: u64,
        offset: u64,
        most_bytes: u64,
    ) -> PyResult<Scrubbed> {
        let from = ScrubPlace { handle: Handle(handle), offset };
        let found = py.detach(|| self.0.scrub(ServerId(server), from, most_bytes)).or_raise(py)?;
        let damage = found.damage.into_iter().map(|d| (d.handle.0, d.offset, d.bytes, d.what));
        let next = found.next.map(|place| (place.handle.0, place.offset));
        Ok((next, found.files, found.bytes, damage.collect()))
    }

    /// A page of the data files of a server, each with its handle and length, and whether more follow.
    fn data_files(&self, py: Python<'_>, server: u32, after: u64, most: u64) -> PyResult<DataFiles> {
        let page = py.detach(|| self.0.data_files(ServerId(server), Handle(after), most));
        let (files, more) = page.or_raise(py)?;
        Ok((files.into_iter().map(|file| (file.handle.0, file.length)).collect(), more))
    }

    /// A server's report on some data files.
    fn inspect(&self, py: Python<'_>, server: u32, handles: Vec<u64>) -> PyResult<Vec<Inspection>> {
        let found = py.detach(|| self.0.inspect(ServerId(server), of(&handles))).or_raise(py)?;
        let each = found.into_iter();
        Ok(each
            .map(|i| {
                let (file, sums_length) = (i.file, i.sums_length);
                let state = (i.summed_past_end, i.generation, i.surplus, i.sums_are_old);
                (file.handle.0, file.length, sums_length, state.0, state.1, state.2, state.3)
            })
            .collect())
    }

    /// Cuts the bytes of data files of a server that no write explains.
    fn cut(&self, py: Python<'_>, server: u32, handles: Vec<u64>) -> PyResult<()> {
        py.detach(|| self.0.cut(ServerId(server), of(&handles))).or_raise(py)
    }

    /// A page of the manager's files, and whether more follow.
    fn files(&self, py: Python<'_>, after: u64, most: u64) -> PyResult<(Vec<Record>, bool)> {
        let (known, more) = py.detach(|| self.0.files(Handle(after), most)).or_raise(py)?;
        Ok((known.into_iter().map(|known| record(0, known)).collect(), more))
    }

    /// The manager's knowledge of some handles.
    fn know(&self, py: Python<'_>, handles: Vec<u64>) -> PyResult<Vec<Record>> {
        let known = py.detach(|| self.0.know(of(&handles))).or_raise(py)?;
        Ok(handles.iter().zip(known).map(|(handle, known)| record(*handle, known)).collect())
    }

    /// A page of the manager's records that contradict others, each with its handle and a description, and
    /// the key after which to continue, if more follow.
    fn odd_records(&self, py: Python<'_>, after: Vec<u8>, most: u64) -> PyResult<OddRecords> {
        let (odd, next) = py.detach(|| self.0.odd_records(after, most)).or_raise(py)?;
        Ok((odd.into_iter().map(|odd| (odd.handle.0, odd.what)).collect(), next.map(Cow::Owned)))
    }

    /// Repairs the index of attributes for a page of records. Returns the repaired ones, each with its handle and a
    /// description, and the key after which to continue, if more follow.
    fn mend(&self, py: Python<'_>, after: Vec<u8>, most: u64) -> PyResult<OddRecords> {
        let (odd, next) = py.detach(|| self.0.mend(after, most)).or_raise(py)?;
        Ok((odd.into_iter().map(|odd| (odd.handle.0, odd.what)).collect(), next.map(Cow::Owned)))
    }

    /// The paths of some files; `None` for a file that no name leads to.
    fn paths(&self, py: Python<'_>, handles: Vec<u64>) -> PyResult<Vec<Option<String>>> {
        py.detach(|| self.0.paths(of(&handles))).or_raise(py)
    }

    /// Removes data files of a server that no file owns, if the manager still confirms that. Returns the
    /// removed ones.
    fn remove_strays(&self, py: Python<'_>, server: u32, handles: Vec<u64>) -> PyResult<Vec<u64>> {
        let removed = py.detach(|| self.0.remove_strays(ServerId(server), of(&handles))).or_raise(py)?;
        Ok(removed.into_iter().map(|handle| handle.0).collect())
    }

    /// Removes the data files of all files without a name.
    fn finish_removals(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.finish_removals()).or_raise(py)
    }
}

fn of(handles: &[u64]) -> Vec<Handle> {
    handles.iter().copied().map(Handle).collect()
}

/// Converts a record. `handle` is used for records without a handle.
fn record(handle: u64, known: Known) -> Record {
    let of_inode = |inode: &Inode, what| match &inode.layout {
        Some(layout) => {
            let servers = layout.servers.iter().map(|server| server.0).collect();
            let durable = &inode.durable;
            let (lengths, generations) = (durable.lengths.clone(), durable.generations.clone());
            (inode.handle.0, what, Some(Stripes(layout.stripes)), servers, lengths, generations)
        }
        None if inode.is_link() => (inode.handle.0, "link", None, vec![], vec![], vec![]),
        None => (inode.handle.0, "directory", None, vec![], vec![], vec![]),
    };
    match known {
        Known::Inode(inode) => of_inode(&inode, "file"),
        Known::Removed(file) => of_inode(&file.inode, "removed"),
        Known::Gone(_) => (handle, "gone", None, vec![], vec![], vec![]),
        Known::Unused => (handle, "unused", None, vec![], vec![], vec![]),
    }
}
