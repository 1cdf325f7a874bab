//! Paths in a pool that begin at a handle.

use crate::Handle;

/// The path of a file or directory with this handle, wherever it is. `/` and names may follow that of a directory.
pub fn path_at(handle: Handle) -> String {
    format!("{HANDLE}{}", handle.0)
}

/// The handle at which a path begins, and the names after it, if it begins so.
pub fn handle_in(path: &str) -> Option<(Handle, &str)> {
    let (number, names) = path.strip_prefix(HANDLE)?.split_once('/').unwrap_or((&path[1..], ""));
    let is_decimal = number.bytes().all(|byte| byte.is_ascii_digit());
    Some((Handle(number.parse().ok().filter(|_| is_decimal)?), names))
}

/// Begins a path that names a handle. No name has this character.
const HANDLE: char = '\0';
