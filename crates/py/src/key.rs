//! Keys of users.

use std::path::Path;

use outcore_net::{Key, User};
use pyo3::prelude::*;

use crate::error::OrRaise;

/// Derives the key of a user from the pool's key, and writes it to a new file that only its owner may read.
/// New files of the user get the first group.
#[pyfunction]
pub fn derive_key(
    py: Python<'_>,
    pool_key_file: &str,
    name: String,
    uid: u32,
    gids: Vec<u32>,
    key_file: &str,
) -> PyResult<()> {
    let user = User { name, uid, gids };
    py.detach(|| Key::from_file(Path::new(pool_key_file))?.save_of_user(&user, Path::new(key_file)))
        .or_raise(py)
}
