//! A look at a matrix in memory.

use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use outcore_core::Error;
use outcore_memory::{Columns, Extremes, Real};
use pyo3::prelude::*;

use crate::error::raise;

/// (largest sum of absolute values of a column, largest absolute value) of a column-major view of real or complex
/// numbers, whose absolute values are |re| + |im|. With `trapezoid`, of the elements on and above the diagonal that
/// ends in the last row.
#[pyfunction]
pub fn column_extremes(
    py: Python<'_>,
    a: &Bound<'_, PyUntypedArray>,
    trapezoid: bool,
) -> PyResult<(f64, f64)> {
    let kind = (a.dtype().kind(), a.dtype().itemsize());
    let found = match kind {
        (b'f', 4) | (b'c', 8) => look::<f32>(a, trapezoid),
        (b'f', 8) | (b'c', 16) => look::<f64>(a, trapezoid),
        _ => return Err(raise(py, &Error::invalid("need float32, float64, complex64 or complex128"))),
    };
    let found = found.ok_or_else(|| {
        let (shape, strides) = (a.shape(), a.strides());
        raise(
            py,
            &Error::invalid(format!("need a column-major view, have shape {shape:?}, strides {strides:?}")),
        )
    })?;
    Ok((found.sum, found.max))
}

/// `None` if the array is not a column-major view.
fn look<T: Real>(a: &Bound<'_, PyUntypedArray>, trapezoid: bool) -> Option<Extremes> {
    let item = a.dtype().itemsize();
    let (&[rows, count], &[down, across]) = (a.shape(), a.strides()) else { return None };
    if rows == 0 || count == 0 {
        return Some(Extremes::default());
    }
    let pitch = if count == 1 { rows * item } else { usize::try_from(across).ok()? };
    let is_packed = rows == 1 || usize::try_from(down) == Ok(item);
    if !is_packed || pitch < rows * item || pitch % size_of::<T>() != 0 || trapezoid && rows < count {
        return None;
    }
    let width = item / size_of::<T>();
    let pitch = pitch / size_of::<T>();
    // SAFETY: the array object is valid while `a` is borrowed.
    let data = unsafe { (*a.as_array_ptr()).fields.data }.cast::<T>();
    if !data.is_aligned() {
        return None;
    }
    // SAFETY: from the first element of the first column to the last of the last, as shape and strides say, is
    // memory of the array, and numbers of any bits are values. Nobody writes to it meanwhile: it is the caller's.
    let values = unsafe { std::slice::from_raw_parts(data, pitch * (count - 1) + rows * width) };
    let first_rows = if trapezoid { rows - count + 1 } else { rows };
    let columns = Columns {
        values,
        pitch,
        count,
        first_rows: first_rows * width,
        growth: if trapezoid { width } else { 0 },
        is_complex: width == 2,
    };
    Some(a.py().detach(|| outcore_memory::column_extremes(columns)))
}
