//! Names in a pool, and their attributes.

use std::ffi::{CString, c_char, c_int, c_void};

use outcore_client::{Attributes, Listed, Silent};
use outcore_core::{Error, ErrorKind, Inode, Result, Volume as _};

use crate::boundary::{call, count};
use crate::errors::keep;
use crate::pool::Pool;
use crate::text::text_of;

/// Number of names in one request of a listing.
const PAGE: u64 = 1000;
/// Longest value of an extended attribute, in bytes.
const MOST_VALUE_BYTES: u64 = 64 << 10;

/// The attributes of a name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Length of a file in bytes; 0 for a directory.
    pub length: u64,
    /// Time of the last write, in nanoseconds since 1970.
    pub modified_ns: u64,
    /// Time of the last change of the attributes, in nanoseconds since 1970.
    pub changed_ns: u64,
    /// A number that no other file or directory of the pool ever has.
    pub handle: u64,
    /// Bytes of a stripe unit; 0 for a directory.
    pub stripe_unit_bytes: u64,
    /// Number of servers of the file; 0 for a directory.
    pub stripe_count: u32,
    /// 1 for a directory, 0 for a file.
    pub is_directory: u32,
    /// Permission bits, at most 01777; for a directory 03777.
    pub mode: u32,
    /// User id.
    pub owner: u32,
    /// Group id.
    pub group: u32,
    /// Number of the first server of a file; 0 for a directory.
    pub first_server: u32,
    /// Always 0.
    pub reserved: [u32; 4],
}

/// The function that `outcore_list` calls for each name, with the caller's argument, the name, and its attributes. A result
/// other than 0 ends the listing. It must return: neither `longjmp` nor an exception may leave it.
pub type Visit =
    Option<unsafe extern "C" fn(argument: *mut c_void, name: *const c_char, status: *const Status) -> c_int>;

fn status_of(inode: &Inode, length: u64) -> Status {
    let layout = inode.layout.as_ref();
    Status {
        length,
        modified_ns: inode.modified_ns,
        changed_ns: inode.changed_ns,
        handle: inode.handle.0,
        stripe_unit_bytes: layout.map_or(0, |layout| layout.stripes.unit_bytes()),
        stripe_count: layout.map_or(0, |layout| layout.servers.len() as u32),
        is_directory: inode.is_directory().into(),
        mode: inode.mode,
        owner: inode.owner,
        group: inode.group,
        first_server: layout.and_then(|layout| layout.servers.first()).map_or(0, |server| server.0),
        reserved: [0; 4],
    }
}

/// The attributes of a name, with the length that its servers know.
fn look_up(pool: &Pool, path: &str) -> Result<Status> {
    let inode = pool.client.stat_followed(path)?;
    if !inode.is_file() {
        return Ok(status_of(&inode, 0));
    }
    let (listed, _) = pool.client.page(path, "", 1, &Silent::default())?;
    let found = listed.into_iter().next().filter(|listed| listed.name.is_empty());
    let missing = || Error::new(ErrorKind::NotFound, format!("{path} became a directory; look again"));
    let Listed { inode, length, .. } = found.ok_or_else(missing)?.known()?;
    Ok(status_of(&inode, length))
}

/// Writes the attributes of a name to `status`.
///
/// Errors: -ENOENT, -EACCES, -EIO (a server of the file does not answer).
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte; `status` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_stat(pool: *const Pool, path: *const c_char, status: *mut Status) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        if status.is_null() {
            return Err(Error::invalid(
                "need a place for the attributes, have NULL; pass the address of one",
            ));
        }
        *status = look_up(pool, text_of(path, "path")?)?;
        Ok(())
    })
}

/// Creates a directory, and the missing ones above it. `mode` has its permission bits, before the umask. If several clients
/// create it at the same time, the call may succeed in more than one.
///
/// Errors: -EEXIST, -EACCES.
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_mkdir(pool: *const Pool, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| {
        // SAFETY: as the caller promises.
        let path = unsafe { text_of(path, "path of a directory")? };
        if pool.client.exists(path)? {
            return Err(Error::new(ErrorKind::Exists, format!("{path} exists; choose another name")));
        }
        pool.client.make_directory_as(path, mode)
    })
}

/// Removes a file, or an empty directory.
///
/// Errors: -ENOENT, -EACCES, -EEXIST (the directory is not empty).
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_remove(pool: *const Pool, path: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| pool.client.remove_one(unsafe { text_of(path, "path")? }))
}

/// Renames a file or directory. A file atomically replaces a file of the new name, and a directory an empty directory.
///
/// Errors: -ENOENT, -EACCES, -EEXIST (the new name exists, and cannot be replaced).
///
/// # Safety
/// `pool` is a pool, or NULL; the paths end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_rename(pool: *const Pool, from: *const c_char, to: *const c_char) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        pool.client.rename(text_of(from, "old path")?, text_of(to, "new path")?)
    })
}

/// Calls `visit` for each name in a directory, sorted by name. Returns 0, the result of `visit` that ended the listing,
/// or -errno.
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte; `visit` may be called with `argument`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_list(
    pool: *const Pool,
    path: *const c_char,
    visit: Visit,
    argument: *mut c_void,
) -> c_int {
    let mut ended = 0;
    // SAFETY: as the caller promises.
    let outcome = call(unsafe { pool.as_ref() }, |pool| {
        let visit =
            visit.ok_or_else(|| Error::invalid("need a function for each name, have NULL; pass one"))?;
        // SAFETY: as the caller promises.
        let path = unsafe { text_of(path, "path of a directory")? };
        if pool.client.stat_followed(path)?.is_file() {
            return Err(Error::invalid(format!("need a directory, have the file {path}; use outcore_stat")));
        }
        let mut after = String::new();
        loop {
            let (page, more) = pool.client.page(path, &after, PAGE, &Silent::default())?;
            for listed in page.iter().cloned() {
                let Listed { name, inode, length, .. } = listed.known()?;
                let status = status_of(&inode, length);
                let name = CString::new(name).unwrap_or_default();
                // SAFETY: the caller passes a function with these parameters; both live during the call.
                ended = unsafe { visit(argument, name.as_ptr(), &raw const status) };
                if ended != 0 {
                    return Ok(());
                }
            }
            match page.last() {
                Some(last) if more => after.clone_from(&last.name),
                _ => return Ok(()),
            }
        }
    });
    if outcome == 0 { ended } else { outcome }
}

/// Sets the permission bits of a name, at most 01777; for a directory 03777.
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_chmod(pool: *const Pool, path: *const c_char, mode: u32) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        let wanted = Attributes { mode: Some(mode), ..Attributes::default() };
        pool.client.set_attributes(text_of(path, "path")?, wanted)
    })
}

/// Sets the owner and the group of a name; UINT32_MAX keeps the present one.
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_chown(
    pool: *const Pool,
    path: *const c_char,
    owner: u32,
    group: u32,
) -> c_int {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        let wanted = Attributes { owner: given(owner), group: given(group), ..Attributes::default() };
        pool.client.set_attributes(text_of(path, "path")?, wanted)
    })
}

/// Sets the time of the last write, in nanoseconds since 1970.
///
/// # Safety
/// `pool` is a pool, or NULL; `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_set_modified(
    pool: *const Pool,
    path: *const c_char,
    modified_ns: u64,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        let wanted = Attributes { modified_ns: Some(modified_ns), ..Attributes::default() };
        pool.client.set_attributes(text_of(path, "path")?, wanted)
    })
}

/// Copies an extended attribute to `value`, which has `size` bytes. Returns the length of the attribute. If `size` is
/// smaller, nothing is copied and the result is -ERANGE, except for 0, which asks for the length.
///
/// Errors: -ENOENT (no such name or attribute), -ERANGE, -EINVAL.
///
/// # Safety
/// `pool` is a pool, or NULL; the texts end with a zero byte; `value` has at least `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_getxattr(
    pool: *const Pool,
    path: *const c_char,
    name: *const c_char,
    value: *mut c_void,
    size: u64,
) -> i64 {
    // SAFETY: as the caller promises.
    let pool = unsafe { pool.as_ref() };
    // SAFETY: as the caller promises.
    let outcome = count(pool, |pool| unsafe {
        if value.is_null() && size > 0 {
            return Err(Error::invalid(format!(
                "need {size} bytes for a value, have NULL; pass their address"
            )));
        }
        let bytes = pool.client.extended(text_of(path, "path")?, text_of(name, "name of an attribute")?)?;
        let length = bytes.len() as u64;
        if length > 0 && length <= size {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.cast(), bytes.len());
        }
        Ok(length)
    });
    match pool {
        Some(pool) if size > 0 && u64::try_from(outcome).is_ok_and(|length| length > size) => {
            keep(&pool.context, &format!("need {outcome} bytes for the value, have {size}; pass more"));
            (-libc::ERANGE).into()
        }
        _ => outcome,
    }
}

/// Sets an extended attribute of at most 64 KiB.
///
/// # Safety
/// `pool` is a pool, or NULL; the texts end with a zero byte; `value` has at least `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_setxattr(
    pool: *const Pool,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: u64,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        if value.is_null() && size > 0 {
            return Err(Error::invalid(format!("need a value of {size} bytes, have NULL; pass its address")));
        }
        if size > MOST_VALUE_BYTES {
            return Err(Error::invalid(format!(
                "need a value of at most {MOST_VALUE_BYTES} bytes, have {size}; write it to a file"
            )));
        }
        let empty = size == 0;
        let bytes = if empty { &[] } else { std::slice::from_raw_parts(value.cast::<u8>(), size as usize) };
        let (path, name) = (text_of(path, "path")?, text_of(name, "name of an attribute")?);
        pool.client.set_extended(path, name, Some(bytes.to_vec()))
    })
}

/// Removes an extended attribute.
///
/// # Safety
/// `pool` is a pool, or NULL; the texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_removexattr(
    pool: *const Pool,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        pool.client.set_extended(text_of(path, "path")?, text_of(name, "name of an attribute")?, None)
    })
}
