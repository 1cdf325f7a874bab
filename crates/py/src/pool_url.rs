//! URLs of pools.

use outcore_net::{Address, PoolUrl};
use pyo3::prelude::*;

use crate::error::OrRaise;

/// The addresses of the managers in the URL of a served pool, and the prefix of the URLs of names in the pool.
#[pyfunction]
pub fn parse_pool_url(py: Python<'_>, url: &str) -> PyResult<(Vec<String>, String)> {
    let pool: PoolUrl = url.parse().or_raise(py)?;
    Ok((pool.managers().iter().map(Address::to_string).collect(), pool.to_string()))
}

/// The prefix of the URLs of names in a pool, and the name, of such a URL.
#[pyfunction]
pub fn split_pool_url<'a>(py: Python<'_>, url: &'a str) -> PyResult<(String, &'a str)> {
    let (pool, name) = PoolUrl::split(url).or_raise(py)?;
    Ok((pool.to_string(), name))
}
