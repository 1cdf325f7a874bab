//! Where the bytes of a file name are: in a pool, or in the file system.

use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use outcore_core::{Error, ErrorKind, Result};
use outcore_net::{Address, PoolUrl};

/// The extended attribute by which a mount gives the address of a file in its pool.
const ADDRESS: &CStr = c"user.outcore.address";
const MOST_ADDRESS_BYTES: usize = 8192;

/// A file in a pool.
#[derive(Debug, PartialEq, Eq)]
pub struct PoolPlace {
    /// Address of the pool.
    pub pool: PoolUrl,
    /// Path in the pool.
    pub path: String,
    /// Whether the name is a path below a mount that refuses writes.
    pub is_read_only: bool,
}

/// The meaning of the name of a symbolic link in a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// The target of the link.
    Followed,
    /// The link itself, which is no file of a pool.
    Kept,
}

/// Returns the place of a file in a pool, given its address or a path below a mount; `None` for any other name.
///
/// # Errors
///
/// If the name is an address that the driver cannot use.
pub fn pool_place(name: &CStr, links: Links) -> Result<Option<PoolPlace>> {
    if let Ok(text) = name.to_str()
        && (text.starts_with("outcore:") || text.starts_with("outcore+tls:"))
    {
        return parse(text).map(Some);
    }
    let Some((address, place)) = address_of(name, links) else { return Ok(None) };
    let mut found = match parse(&address) {
        Ok(found) => found,
        // The process of the mount has the pool embedded, so that only the mount reaches it.
        Err(error) if error.kind == ErrorKind::Busy => return Ok(None),
        Err(error) => return Err(error),
    };
    found.is_read_only = is_read_only(&place);
    Ok(Some(found))
}

/// Splits an address such as `outcore://node1:7171/sim/u.h5` or `outcore:/run/pool.sock::sim/u.h5`.
fn parse(text: &str) -> Result<PoolPlace> {
    let (pool, path) = PoolUrl::split(text)?;
    if let [Address::Unix(place)] = pool.managers()
        && place.is_dir()
    {
        let place = place.display();
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "need a served pool, have the directory {place} of an embedded one; serve it with 'outcore pool up'"
            ),
        ));
    }
    let path = path.trim_start_matches('/').to_owned();
    Ok(PoolPlace { pool, path, is_read_only: false })
}

/// The address of a path below a mount, and an existing path in the same mount. A file that does not exist has the
/// address of its directory and its name.
fn address_of(name: &CStr, links: Links) -> Option<(String, CString)> {
    match attribute(name, links) {
        Ok(address) => return address.map(|address| (address, name.to_owned())),
        Err(libc::ENOENT) => {}
        Err(_) => return None,
    }
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    let file = path.file_name()?.to_str()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = CString::new(parent.unwrap_or(Path::new(".")).as_os_str().as_bytes()).ok()?;
    let address = attribute(&parent, Links::Followed).ok()??;
    // The address of the top of a pool ends so.
    let is_top = address.ends_with('/') || address.ends_with("::");
    let between = if is_top { "" } else { "/" };
    Some((format!("{address}{between}{file}"), parent))
}

/// The attribute with the address; `None` if the file does not have it. Fails with the error number of the system.
fn attribute(name: &CStr, links: Links) -> std::result::Result<Option<String>, i32> {
    let mut bytes = vec![0_u8; MOST_ADDRESS_BYTES];
    let get = match links {
        Links::Followed => libc::getxattr,
        Links::Kept => libc::lgetxattr,
    };
    // SAFETY: the buffer has room for this many bytes.
    let count = unsafe { get(name.as_ptr(), ADDRESS.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len()) };
    let Ok(count) = usize::try_from(count) else {
        return match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ENODATA | libc::EOPNOTSUPP) | None => Ok(None),
            Some(error) => Err(error),
        };
    };
    bytes.truncate(count);
    Ok(String::from_utf8(bytes).ok())
}

fn is_read_only(name: &CStr) -> bool {
    // SAFETY: all zeros are a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the call fills in this value.
    let is_known = unsafe { libc::statvfs(name.as_ptr(), &raw mut found) } == 0;
    is_known && found.f_flag & libc::ST_RDONLY != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split() {
        for (text, pool, path) in [
            ("outcore://node1:7171/sim/u.h5", "outcore://node1:7171/", "sim/u.h5"),
            ("outcore:/node1:7171/u.h5", "outcore://node1:7171/", "u.h5"),
            ("outcore+tls://[::1]:7171/u.h5", "outcore+tls://[::1]:7171/", "u.h5"),
            ("outcore://node1:7171,node2:7171//u.h5", "outcore://node1:7171,node2:7171/", "u.h5"),
            ("outcore:/run/pool.sock::sim/u.h5", "outcore:/run/pool.sock::", "sim/u.h5"),
            ("outcore:///run/pool.sock:/sim/u.h5", "outcore:/run/pool.sock::", "sim/u.h5"),
        ] {
            let found = parse(text).unwrap();
            assert_eq!((found.pool.to_string().as_str(), found.path.as_str()), (pool, path), "{text}");
        }
    }

    #[test]
    fn other_addresses_are_refused() {
        for text in [
            "outcore:",
            "outcore:u.h5",
            "outcore://node1/u.h5",
            "outcore://node1:7171,node2/u.h5",
            "outcore:///u.h5",
            "outcore:node1:1/u.h5",
        ] {
            assert_eq!(parse(text).unwrap_err().kind, ErrorKind::Invalid, "{text}");
        }
    }

    #[test]
    fn embedded_pools_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let text = format!("outcore:{}::u.h5", directory.path().display());
        assert_eq!(parse(&text).unwrap_err().kind, ErrorKind::Busy);
    }

    #[test]
    fn other_files_have_no_place_in_a_pool() {
        for name in [c"/dev/null", c"/no/such/directory/u.h5", c"u.h5", c"", c"/"] {
            for links in [Links::Followed, Links::Kept] {
                assert_eq!(pool_place(name, links).unwrap(), None);
            }
        }
    }
}
