//! Operations on a matrix in memory that the BLAS does not have.

use numpy::{
    PyArrayDescrMethods, PyReadonlyArray1, PyReadwriteArray1, PyUntypedArray, PyUntypedArrayMethods,
};
use outcore_core::Error;
use outcore_memory::{Columns, Extremes, Real, Rows};
use pyo3::prelude::*;

use crate::error::raise;

const NEED_TYPE: &str = "need float32, float64, complex64 or complex128";

/// (largest column sum of absolute values, largest absolute value) of a column-major view of real or complex
/// numbers. The absolute value of a complex number is |re| + |im|. With `trapezoid`, the result covers the
/// elements on and above the diagonal that ends in the last row.
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
        _ => return Err(raise(py, &Error::invalid(NEED_TYPE))),
    };
    let found = found.ok_or_else(|| not_column_major(py, a))?;
    Ok((found.sum, found.max))
}

/// Adds the absolute values of a column-major view to the sums of its rows and columns. With `trapezoid`, it
/// covers only the elements on and below the diagonal that starts in the first row, and adds the diagonal to
/// the column sums only.
#[pyfunction]
pub fn add_sums(
    py: Python<'_>,
    a: &Bound<'_, PyUntypedArray>,
    mut of_rows: PyReadwriteArray1<'_, f64>,
    mut of_columns: PyReadwriteArray1<'_, f64>,
    trapezoid: bool,
) -> PyResult<()> {
    let (&[rows, count], Ok(of_rows), Ok(of_columns)) =
        (a.shape(), of_rows.as_slice_mut(), of_columns.as_slice_mut())
    else {
        return Err(raise(py, &Error::invalid("need a matrix, and sums next to each other")));
    };
    if (of_rows.len(), of_columns.len()) != (rows, count) || trapezoid && rows < count {
        let have = format!("have {} and {}, trapezoid: {trapezoid}", of_rows.len(), of_columns.len());
        let need = format!("need sums of {rows} rows and {count} columns");
        return Err(raise(py, &Error::invalid(format!("{need}; {have}"))));
    }
    let done = match (a.dtype().kind(), a.dtype().itemsize()) {
        (b'f', 4) | (b'c', 8) => add::<f32>(a, of_rows, of_columns, trapezoid),
        (b'f', 8) | (b'c', 16) => add::<f64>(a, of_rows, of_columns, trapezoid),
        _ => return Err(raise(py, &Error::invalid(NEED_TYPE))),
    };
    done.ok_or_else(|| not_column_major(py, a))
}

/// Exchanges row i of a column-major view with row `swaps[i - first]`, for ascending i from `first`, or in
/// reverse order with `reverse`. Elements may have 4, 8 or 16 bytes. The caller must check that the view is
/// writable.
#[pyfunction]
pub fn swap_rows(
    py: Python<'_>,
    a: &Bound<'_, PyUntypedArray>,
    swaps: PyReadonlyArray1<'_, i32>,
    first: usize,
    reverse: bool,
) -> PyResult<()> {
    // A negative row becomes an invalid row.
    let pairs = swaps.as_array().into_iter().enumerate().map(|(i, &j)| (first + i, j as usize));
    let mut pairs: Vec<_> = pairs.filter(|(i, j)| i != j).collect();
    if reverse {
        pairs.reverse();
    }
    let swapped = match (a.dtype().kind(), a.dtype().itemsize()) {
        (b'f', 4) => swap::<f32>(a, &pairs),
        (b'c', 8) => swap::<[f32; 2]>(a, &pairs),
        (b'f', 8) => swap::<f64>(a, &pairs),
        (b'c', 16) => swap::<[f64; 2]>(a, &pairs),
        _ => return Err(raise(py, &Error::invalid(NEED_TYPE))),
    };
    swapped.ok_or_else(|| not_column_major(py, a))?.map_err(|error| raise(py, &error))
}

/// `None` if the array is not a column-major view.
fn swap<T: Copy + Send>(
    a: &Bound<'_, PyUntypedArray>,
    pairs: &[(usize, usize)],
) -> Option<outcore_core::Result<()>> {
    let Some(View { data, pitch, count, rows }) = view_of::<T>(a)? else { return Some(Ok(())) };
    let view = Rows { first: data, pitch, count, rows };
    // SAFETY: shape and strides say that these are elements of the array, whose memory belongs to the caller
    // meanwhile.
    Some(a.py().detach(move || unsafe { view.swap(pairs) }))
}

fn not_column_major(py: Python<'_>, a: &Bound<'_, PyUntypedArray>) -> PyErr {
    let (shape, strides) = (a.shape(), a.strides());
    raise(py, &Error::invalid(format!("need a column-major view, have shape {shape:?}, strides {strides:?}")))
}

/// `None` if the array is not a column-major view.
fn add<T: Real>(
    a: &Bound<'_, PyUntypedArray>,
    of_rows: &mut [f64],
    of_columns: &mut [f64],
    trapezoid: bool,
) -> Option<()> {
    if let Some(columns) = columns_of::<T>(a)? {
        a.py().detach(|| outcore_memory::add_sums(columns, of_rows, of_columns, trapezoid));
    }
    Some(())
}

/// `None` if the array is not a column-major view, or has too few rows.
fn look<T: Real>(a: &Bound<'_, PyUntypedArray>, trapezoid: bool) -> Option<Extremes> {
    let Some(whole) = columns_of::<T>(a)? else { return Some(Extremes::default()) };
    let width = if whole.is_complex { 2 } else { 1 };
    let columns = if trapezoid {
        let first_rows = (whole.first_rows / width + 1).checked_sub(whole.count)?;
        Columns { first_rows: first_rows * width, growth: width, ..whole }
    } else {
        whole
    };
    Some(a.py().detach(|| outcore_memory::column_extremes(columns)))
}

/// Views an array as columns; `Some(None)` if it is empty, `None` if it is not a column-major view.
fn columns_of<'a, T: Real>(a: &'a Bound<'_, PyUntypedArray>) -> Option<Option<Columns<'a, T>>> {
    let width = a.dtype().itemsize() / size_of::<T>();
    Some(match width {
        1 => view_of::<T>(a)?.map(|view| columns(view, 1)),
        _ => view_of::<[T; 2]>(a)?.map(|View { data, pitch, count, rows }| {
            columns(View { data: data.cast::<T>(), pitch: 2 * pitch, count, rows: 2 * rows }, 2)
        }),
    })
}

fn columns<'a, T: Real>(view: View<T>, width: usize) -> Columns<'a, T> {
    let View { data, pitch, count, rows } = view;
    // SAFETY: shape and strides say that the range from the first element of the first column to the last of
    // the last is memory of the array, and any bits are valid numbers. The memory belongs to the caller, so
    // nothing writes to it meanwhile.
    let values = unsafe { std::slice::from_raw_parts(data, pitch * (count - 1) + rows) };
    Columns { values, pitch, count, first_rows: rows, growth: 0, is_complex: width == 2 }
}

/// A non-empty column-major view: its first element, and numbers of elements.
struct View<T> {
    data: *mut T,
    pitch: usize,
    count: usize,
    rows: usize,
}

/// Views an array of elements of this size; `Some(None)` if it is empty, `None` if it is not column-major.
fn view_of<T>(a: &Bound<'_, PyUntypedArray>) -> Option<Option<View<T>>> {
    let item = size_of::<T>();
    let (&[rows, count], &[down, across]) = (a.shape(), a.strides()) else { return None };
    if rows == 0 || count == 0 {
        return Some(None);
    }
    let pitch = if count == 1 { rows * item } else { usize::try_from(across).ok()? };
    let is_packed = rows == 1 || usize::try_from(down) == Ok(item);
    if !is_packed || pitch < rows * item || pitch % item != 0 {
        return None;
    }
    // SAFETY: the array object is valid while `a` is borrowed.
    let data = unsafe { (*a.as_array_ptr()).fields.data }.cast::<T>();
    data.is_aligned().then_some(Some(View { data, pitch: pitch / item, count, rows }))
}
