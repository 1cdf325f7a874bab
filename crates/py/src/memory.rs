//! The budget arena, and its blocks as buffers that NumPy can view.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use outcore_client::Memory;
use outcore_core::Error;
use outcore_memory::Block;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::{OrRaise, raise};

/// A memory budget: every buffer of a call comes from one.
#[pyclass(frozen, module = "outcore._core")]
pub struct Arena(pub outcore_memory::Arena);

#[pymethods]
impl Arena {
    /// With `short_lived`, transfers wait for memory instead of failing.
    #[new]
    #[pyo3(signature = (budget_bytes, short_lived = false))]
    fn new(budget_bytes: usize, short_lived: bool) -> Self {
        let make = if short_lived { outcore_memory::Arena::short_lived } else { outcore_memory::Arena::new };
        Self(make(budget_bytes))
    }

    fn allocate(&self, py: Python<'_>, nbytes: usize) -> PyResult<Buffer> {
        let block = py.detach(|| self.0.allocate(nbytes)).or_raise(py)?;
        Ok(Buffer { block: Arc::new(block), _lease: None })
    }

    #[getter]
    fn budget_bytes(&self) -> usize {
        self.0.budget_bytes()
    }

    #[getter]
    fn used_bytes(&self) -> usize {
        self.0.used_bytes()
    }

    #[getter]
    fn peak_bytes(&self) -> usize {
        self.0.peak_bytes()
    }
}

/// A block of an arena. Its memory returns to the arena when the last view of it dies.
#[pyclass(frozen, module = "outcore._core")]
pub struct Buffer {
    pub block: Arc<Block>,
    /// The block of a stream that owns this memory. Both are released together.
    pub _lease: Option<outcore_client::StreamBlock>,
}

#[pymethods]
impl Buffer {
    #[getter]
    fn nbytes(&self) -> usize {
        self.block.len()
    }

    /// CRC-32C of the first `nbytes` bytes.
    fn crc32c(&self, py: Python<'_>, nbytes: usize) -> PyResult<u32> {
        if nbytes > self.block.len() {
            let have = self.block.len();
            return Err(raise(py, &Error::invalid(format!("need {nbytes} bytes, the buffer has {have}"))));
        }
        py.detach(|| {
            // SAFETY: the block is alive and has at least `nbytes` bytes; only the holder of the buffer
            // accesses them.
            let bytes = unsafe { std::slice::from_raw_parts(self.block.as_ptr(), nbytes) };
            Ok(outcore_core::crc32c(bytes))
        })
    }

    /// # Safety
    /// Called by the interpreter, with a `view` to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no view to fill"));
        }
        let this = slf.get();
        let length = this.block.len() as ffi::Py_ssize_t;
        // SAFETY: the interpreter passes `view` to be filled; the memory lives as long as `slf`, of which the
        // view keeps a reference.
        let failed = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), this.block.as_ptr().cast(), length, 0, flags)
        };
        if failed != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }

    /// # Safety
    /// Called by the interpreter; there is nothing to free.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

/// Sets how many bytes of each file plain indexing may keep mapped.
#[pyfunction]
pub fn limit_mapped_bytes(nbytes: u64) {
    outcore_disk::set_most_resident_bytes(nbytes);
}

/// A NumPy array as the memory of a transfer. The result keeps the array alive until the transfer is done.
pub fn memory_of(array: &Bound<'_, PyUntypedArray>, item_bytes: u64) -> PyResult<Memory> {
    let py = array.py();
    if array.dtype().itemsize() as u64 != item_bytes {
        let have = array.dtype().itemsize();
        return Err(raise(py, &Error::invalid(format!("need elements of {item_bytes} bytes, have {have}"))));
    }
    let (mut low, mut high) = (0_isize, item_bytes as isize);
    for (&stride, &extent) in array.strides().iter().zip(array.shape()) {
        let reach = stride * (extent.max(1) as isize - 1);
        if reach < 0 { low += reach } else { high += reach }
    }
    // SAFETY: the array object is valid while `array` is borrowed.
    let data = unsafe { (*array.as_array_ptr()).fields.data }.cast::<u8>();
    let start = NonNull::new(data.wrapping_offset(low))
        .ok_or_else(|| raise(py, &Error::invalid("the array has no memory")))?;
    let keep_alive: Py<PyAny> = array.clone().into_any().unbind();
    // SAFETY: NumPy's shape and strides describe memory that the array object owns or keeps alive, and
    // `low..high` is exactly the range that they reach.
    let block = unsafe { Block::foreign(start, (high - low) as usize, Box::new(keep_alive)) };
    let strides = array.strides().iter().map(|&s| s as i64).collect();
    Ok(Memory { block: Arc::new(block), origin: low.unsigned_abs(), strides })
}
