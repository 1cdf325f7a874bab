//! The functions that HDF5 calls.

use std::cmp::Ordering;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use outcore_client::errno_of;
use outcore_core::{Error, Result};

use crate::abi::{
    CLASS_VERSION, CLOSE_WEAK, Class, DONE, DRIVER_NUMBER, FAILED, FREE_LISTS, Head, Id, Kind, MOST_ADDRESS,
    Status, feature,
};
use crate::library::{Library, Step};
use crate::pieces::Piece;
use crate::place::{Links, pool_place};
use crate::plain_file::PlainFile;
use crate::pool_file::{PoolFile, remove};

/// An open file. The library knows its head only.
#[repr(C)]
struct File {
    head: Head,
    library: &'static Library,
    bytes: Bytes,
}

enum Bytes {
    Pool(PoolFile),
    Plain(PlainFile),
}

/// A class that threads may share.
#[repr(transparent)]
pub struct SharedClass(Class);

// SAFETY: nothing changes it, and its name is constant.
unsafe impl Sync for SharedClass {}

/// The class of the driver.
pub static CLASS: SharedClass = SharedClass(Class {
    version: CLASS_VERSION,
    number: DRIVER_NUMBER,
    name: c"outcore".as_ptr(),
    most_address: MOST_ADDRESS,
    close_degree: CLOSE_WEAK,
    terminate: None,
    superblock_size: None,
    superblock_encode: None,
    superblock_decode: None,
    access_size: 0,
    access_get: None,
    access_copy: None,
    access_free: None,
    transfer_size: 0,
    transfer_copy: None,
    transfer_free: None,
    open: Some(open),
    close: Some(close),
    compare: Some(compare),
    query: Some(query),
    get_type_map: None,
    allocate: None,
    free: None,
    get_end_of_addresses: Some(get_end_of_addresses),
    set_end_of_addresses: Some(set_end_of_addresses),
    get_end_of_file: Some(get_end_of_file),
    get_handle: Some(get_handle),
    read: Some(read),
    write: Some(write),
    read_vector: Some(read_vector),
    write_vector: Some(write_vector),
    read_selection: None,
    write_selection: None,
    flush: Some(flush),
    truncate: Some(truncate),
    lock: Some(lock),
    unlock: Some(unlock),
    delete: Some(delete),
    control: None,
    free_lists: FREE_LISTS,
});

/// Calls `work`. A panic or an error goes to the library's error stack, and the result is `failed`.
fn guarded<T>(library: Option<&Library>, step: Step, failed: T, work: impl FnOnce() -> Result<T>) -> T {
    let tell = |errno, message: &str| {
        if let Some(library) = library {
            library.push(step, errno, message);
        }
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return value,
        Ok(Err(Error { kind, message })) => tell(errno_of(kind), &message),
        Err(_) => {
            tell(libc::EIO, "a bug of the driver outcore aborted the call; report it with the text on stderr")
        }
    }
    failed
}

/// Calls `work` with an open file.
///
/// # Safety
///
/// `head` is from [`open`], and not closed.
unsafe fn with_file<T>(
    head: *mut Head,
    step: Step,
    failed: T,
    work: impl FnOnce(&mut File) -> Result<T>,
) -> T {
    // SAFETY: a head from `open` is the start of a file; the library makes one call on it at a time.
    let file = unsafe { &mut *head.cast::<File>() };
    guarded(Some(file.library), step, failed, || work(file))
}

unsafe extern "C" fn open(name: *const c_char, flags: c_uint, access: Id, most: u64) -> *mut Head {
    let library = Library::calling();
    guarded(library, Step::Open, std::ptr::null_mut(), || {
        let library =
            library.ok_or_else(|| Error::invalid("need HDF5 to call its driver, have another caller"))?;
        // SAFETY: the library passes a name that ends with a zero.
        let text = unsafe { CStr::from_ptr(name) };
        let bytes = match pool_place(text, Links::Followed)? {
            Some(place) => {
                let key = library.configured_key(access);
                Bytes::Pool(PoolFile::open(place, flags, key.as_deref())?)
            }
            None => {
                let class = library.plain()?;
                // SAFETY: the arguments are those that the library passed for its own driver.
                let file = class
                    .open
                    .map_or(std::ptr::null_mut(), |open| unsafe { open(name, flags, access, most) });
                if file.is_null() {
                    // Its driver has added the error to the stack.
                    return Ok(file);
                }
                // SAFETY: the driver has just opened it.
                Bytes::Plain(unsafe { PlainFile::new(class, file) })
            }
        };
        Ok(Box::into_raw(Box::new(File { head: Head::empty(), library, bytes })).cast())
    })
}

unsafe extern "C" fn close(head: *mut Head) -> Status {
    // SAFETY: `open` has made it with `Box::into_raw`, and the library does not use it any more.
    let file = unsafe { Box::from_raw(head.cast::<File>()) };
    guarded(Some(file.library), Step::Close, FAILED, || match file.bytes {
        Bytes::Pool(pool) => pool.close().map(|()| DONE),
        Bytes::Plain(plain) => Ok(plain.close()),
    })
}

unsafe extern "C" fn compare(one: *const Head, other: *const Head) -> c_int {
    // SAFETY: both are from `open`, and open.
    let (one, other) = unsafe { (&*one.cast::<File>(), &*other.cast::<File>()) };
    guarded(None, Step::Open, 1, || {
        Ok(match (&one.bytes, &other.bytes) {
            (Bytes::Pool(one), Bytes::Pool(other)) => one.identity().cmp(&other.identity()) as c_int,
            (Bytes::Plain(one), Bytes::Plain(other)) => one.compare(other),
            (Bytes::Pool(_), Bytes::Plain(_)) => Ordering::Less as c_int,
            (Bytes::Plain(_), Bytes::Pool(_)) => Ordering::Greater as c_int,
        })
    })
}

/// Tells the features of a file, or those of the driver. The library asks for those of each file that it opens, after
/// it has set the alignment that the user wants.
unsafe extern "C" fn query(head: *const Head, features: *mut c_ulong) -> Status {
    if features.is_null() {
        return DONE;
    }
    if head.is_null() {
        // SAFETY: it is not null.
        unsafe { *features = feature::OF_SOME };
        return DONE;
    }
    // SAFETY: the head is from `open`; the library passes its own mutable pointer as a constant one.
    let file = unsafe { &mut *head.cast_mut().cast::<File>() };
    match &file.bytes {
        Bytes::Pool(pool) => {
            // Ross et al. 2001, section 4: metadata in the file move data off the stripe units.
            if file.head.alignment <= 1 {
                if file.head.threshold <= 1 {
                    file.head.threshold = pool.unit_bytes;
                }
                file.head.alignment = pool.unit_bytes;
            }
            // SAFETY: it is not null.
            unsafe { *features = feature::OF_POOLS };
            DONE
        }
        Bytes::Plain(plain) => plain.query(features),
    }
}

unsafe extern "C" fn get_end_of_addresses(head: *const Head, kind: Kind) -> u64 {
    // SAFETY: the head is from `open`, and open.
    match unsafe { &(*head.cast::<File>()).bytes } {
        Bytes::Pool(pool) => pool.end_of_addresses,
        Bytes::Plain(plain) => plain.end_of_addresses(kind),
    }
}

unsafe extern "C" fn set_end_of_addresses(head: *mut Head, kind: Kind, end: u64) -> Status {
    // SAFETY: the head is from `open`, and open.
    match unsafe { &mut (*head.cast::<File>()).bytes } {
        Bytes::Pool(pool) => {
            pool.end_of_addresses = end;
            DONE
        }
        Bytes::Plain(plain) => plain.set_end_of_addresses(kind, end),
    }
}

unsafe extern "C" fn get_end_of_file(head: *const Head, kind: Kind) -> u64 {
    // SAFETY: the head is from `open`, and open.
    match unsafe { &(*head.cast::<File>()).bytes } {
        Bytes::Pool(pool) => pool.end_of_file,
        Bytes::Plain(plain) => plain.end_of_file(kind),
    }
}

unsafe extern "C" fn get_handle(head: *mut Head, access: Id, handle: *mut *mut c_void) -> Status {
    // SAFETY: the head is from `open`, and open.
    unsafe {
        with_file(head, Step::Open, FAILED, |file| match &file.bytes {
            Bytes::Pool(_) => {
                Err(Error::invalid("a file in a pool has no file descriptor; use HDF5's functions"))
            }
            Bytes::Plain(plain) => Ok(plain.handle(access, handle)),
        })
    }
}

unsafe extern "C" fn read(
    head: *mut Head,
    kind: Kind,
    transfer: Id,
    address: u64,
    size: usize,
    buffer: *mut c_void,
) -> Status {
    let piece = Piece { offset: address, bytes: size, memory: buffer.cast() };
    // SAFETY: the library passes memory of this size.
    unsafe { read_pieces(head, kind, transfer, std::iter::once(piece)) }
}

unsafe extern "C" fn write(
    head: *mut Head,
    kind: Kind,
    transfer: Id,
    address: u64,
    size: usize,
    buffer: *const c_void,
) -> Status {
    let piece = Piece { offset: address, bytes: size, memory: buffer.cast_mut().cast() };
    // SAFETY: the library passes memory of this size.
    unsafe { write_pieces(head, kind, transfer, std::iter::once(piece)) }
}

unsafe extern "C" fn read_vector(
    head: *mut Head,
    transfer: Id,
    count: u32,
    kinds: *const Kind,
    addresses: *const u64,
    sizes: *const usize,
    buffers: *const *mut c_void,
) -> Status {
    // SAFETY: the library passes lists of this many entries; those of kinds and sizes may end early.
    unsafe {
        let kind = if count > 0 { *kinds } else { 0 };
        read_pieces(head, kind, transfer, pieces_of(count, addresses, sizes, buffers))
    }
}

unsafe extern "C" fn write_vector(
    head: *mut Head,
    transfer: Id,
    count: u32,
    kinds: *const Kind,
    addresses: *const u64,
    sizes: *const usize,
    buffers: *const *const c_void,
) -> Status {
    // SAFETY: the library passes lists of this many entries; those of kinds and sizes may end early.
    unsafe {
        let kind = if count > 0 { *kinds } else { 0 };
        write_pieces(head, kind, transfer, pieces_of(count, addresses, sizes, buffers.cast()))
    }
}

/// The entries of a vector. A size of 0 after the first one means that it and all later ones equal the one before; the
/// list of sizes may end there.
///
/// # Safety
///
/// The lists have `count` entries, with this exception.
unsafe fn pieces_of(
    count: u32,
    addresses: *const u64,
    sizes: *const usize,
    buffers: *const *mut c_void,
) -> impl Iterator<Item = Piece> {
    let mut last = None;
    let mut is_fixed = false;
    (0..count as usize).map(move |number| {
        // SAFETY: the number is below the count, and a list of sizes is not read after its end.
        let (offset, memory) = unsafe { (*addresses.add(number), *buffers.add(number)) };
        let bytes = match last {
            Some(before) if is_fixed => before,
            // SAFETY: as above.
            before => match (unsafe { *sizes.add(number) }, before) {
                (0, Some(before)) => {
                    is_fixed = true;
                    before
                }
                (bytes, _) => bytes,
            },
        };
        last = Some(bytes);
        Piece { offset, bytes, memory: memory.cast() }
    })
}

/// # Safety
///
/// The head is from [`open`], and open; the memory of the pieces is valid for writes.
unsafe fn read_pieces(
    head: *mut Head,
    kind: Kind,
    transfer: Id,
    pieces: impl Iterator<Item = Piece>,
) -> Status {
    // SAFETY: as the caller says.
    unsafe {
        with_file(head, Step::Read, FAILED, |file| match &mut file.bytes {
            Bytes::Pool(pool) => pool.read(pieces).map(|()| DONE),
            Bytes::Plain(plain) => Ok(plain.read(kind, transfer, pieces)),
        })
    }
}

/// # Safety
///
/// The head is from [`open`], and open; the memory of the pieces is valid for reads.
unsafe fn write_pieces(
    head: *mut Head,
    kind: Kind,
    transfer: Id,
    pieces: impl Iterator<Item = Piece>,
) -> Status {
    // SAFETY: as the caller says.
    unsafe {
        with_file(head, Step::Write, FAILED, |file| match &mut file.bytes {
            Bytes::Pool(pool) => pool.write(kind, pieces).map(|()| DONE),
            Bytes::Plain(plain) => Ok(plain.write(kind, transfer, pieces)),
        })
    }
}

unsafe extern "C" fn flush(head: *mut Head, transfer: Id, is_closing: bool) -> Status {
    // SAFETY: the head is from `open`, and open.
    unsafe {
        with_file(head, Step::Sync, FAILED, |file| match &mut file.bytes {
            // `close` follows, and syncs.
            Bytes::Pool(_) if is_closing => Ok(DONE),
            Bytes::Pool(pool) => pool.sync().map(|()| DONE),
            Bytes::Plain(plain) => Ok(plain.flush(transfer, is_closing)),
        })
    }
}

unsafe extern "C" fn truncate(head: *mut Head, transfer: Id, is_closing: bool) -> Status {
    // SAFETY: the head is from `open`, and open.
    unsafe {
        with_file(head, Step::Sync, FAILED, |file| match &mut file.bytes {
            Bytes::Pool(pool) => pool.truncate().map(|()| DONE),
            Bytes::Plain(plain) => Ok(plain.truncate(transfer, is_closing)),
        })
    }
}

/// Pools have no locks: a lock of their files always succeeds.
unsafe extern "C" fn lock(head: *mut Head, is_exclusive: bool) -> Status {
    // SAFETY: the head is from `open`, and open.
    match unsafe { &(*head.cast::<File>()).bytes } {
        Bytes::Pool(_) => DONE,
        Bytes::Plain(plain) => plain.lock(is_exclusive),
    }
}

unsafe extern "C" fn unlock(head: *mut Head) -> Status {
    // SAFETY: the head is from `open`, and open.
    unsafe {
        with_file(head, Step::Open, FAILED, |file| match &file.bytes {
            Bytes::Pool(pool) => pool.unlock().map(|()| DONE),
            Bytes::Plain(plain) => Ok(plain.unlock()),
        })
    }
}

unsafe extern "C" fn delete(name: *const c_char, access: Id) -> Status {
    let library = Library::calling();
    guarded(library, Step::Delete, FAILED, || {
        let library =
            library.ok_or_else(|| Error::invalid("need HDF5 to call its driver, have another caller"))?;
        // SAFETY: the library passes a name that ends with a zero.
        match pool_place(unsafe { CStr::from_ptr(name) }, Links::Kept)? {
            Some(place) => remove(&place, library.configured_key(access).as_deref()).map(|()| DONE),
            None => {
                let delete = library.plain()?.delete;
                // SAFETY: the arguments are those that the library passed for its own driver.
                Ok(delete.map_or(FAILED, |delete| unsafe { delete(name, access) }))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_of_zero_ends_the_list_of_sizes() {
        let sizes_of = |count: u32, sizes: &[usize]| {
            let addresses: Vec<u64> = (0..u64::from(count)).collect();
            let buffers = vec![std::ptr::null_mut(); count as usize];
            // SAFETY: the lists are long enough.
            let pieces = unsafe { pieces_of(count, addresses.as_ptr(), sizes.as_ptr(), buffers.as_ptr()) };
            pieces.map(|piece| piece.bytes).collect::<Vec<_>>()
        };
        assert_eq!(sizes_of(0, &[]), [0; 0]);
        assert_eq!(sizes_of(3, &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(sizes_of(5, &[1, 2, 0]), [1, 2, 2, 2, 2]);
        assert_eq!(sizes_of(3, &[7, 0]), [7, 7, 7]);
    }

    #[test]
    fn panics_do_not_cross_the_boundary() {
        let found = guarded(None, Step::Read, FAILED, || panic!("a bug"));
        assert_eq!(found, FAILED);
    }
}
