//! Converts errors of the Rust crates to exceptions of `outcore.errors`.

use outcore_core::{Error, ErrorKind};
use pyo3::prelude::*;

/// The stable kinds that this module raises, in the order of their declaration.
#[pyfunction]
pub fn error_kinds() -> Vec<&'static str> {
    ErrorKind::ALL.iter().map(|kind| kind.name()).collect()
}

/// The exception for an error. The tree of exceptions is Python's, keyed by the kind.
pub fn raise(py: Python<'_>, error: &Error) -> PyErr {
    let made = PyModule::import(py, "outcore.errors")
        .and_then(|module| module.call_method1("from_kind", (error.kind.name(), &error.message)));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// An error for the Rust crates, with the kind of this name.
pub fn error_of(kind: &str, message: &str) -> Error {
    let known = ErrorKind::ALL.into_iter().find(|known| known.name() == kind);
    Error::new(known.unwrap_or(ErrorKind::Io), message)
}

/// Converts results of the Rust crates, for `?`.
pub trait OrRaise<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T>;
}

impl<T> OrRaise<T> for outcore_core::Result<T> {
    fn or_raise(self, py: Python<'_>) -> PyResult<T> {
        self.map_err(|error| raise(py, &error))
    }
}
