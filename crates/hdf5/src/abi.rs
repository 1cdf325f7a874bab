//! Types and numbers that HDF5 and its file drivers share, from version 1.14.2 to 2.2. HDF5 calls this version 1 of the
//! driver class.

use std::ffi::{c_char, c_int, c_uint, c_ulong, c_void};

/// Identifier of an object of the library.
pub type Id = i64;
/// Result of a call: negative if it failed.
pub type Status = c_int;
/// Kind of the bytes, such as raw data or an object header.
pub type Kind = c_int;

/// Result of a call that succeeded.
pub const DONE: Status = 0;
/// Result of a call that failed.
pub const FAILED: Status = -1;
/// No address.
pub const UNDEFINED: u64 = u64::MAX;
/// The highest address of a file.
pub const MOST_ADDRESS: u64 = i64::MAX as u64;

/// Version of [`Class`].
pub const CLASS_VERSION: c_uint = 1;
/// Number of this driver, above those that HDF5 reserves. Programs choose drivers by name.
pub const DRIVER_NUMBER: c_int = 24_571;
/// The type of a plugin that is a file driver.
pub const PLUGIN_TYPE: c_int = 2;
/// A file may close while its objects are open; they keep it.
pub const CLOSE_WEAK: c_int = 1;

/// Flags of an open file.
pub mod open {
    use std::ffi::c_uint;

    pub const WRITE: c_uint = 0x01;
    pub const TRUNCATE: c_uint = 0x02;
    pub const EXCLUSIVE: c_uint = 0x04;
    pub const CREATE: c_uint = 0x10;
    /// One writer with concurrent readers (SWMR), as the writer or as a reader.
    pub const CONCURRENT: c_uint = 0x20 | 0x40;
}

/// Features of a file, by which the library chooses how it allocates and caches.
pub mod feature {
    use std::ffi::c_ulong;

    const AGGREGATE_METADATA: c_ulong = 0x01;
    const ACCUMULATE_METADATA: c_ulong = 0x02 | 0x04;
    const DATA_SIEVE: c_ulong = 0x08;
    const AGGREGATE_SMALL_DATA: c_ulong = 0x10;
    const DEFAULT_COMPATIBLE: c_ulong = 0x8000;
    const SUPPORTS_CONCURRENT: c_ulong = 0x1000;

    /// Those of a file in a pool.
    pub const OF_POOLS: c_ulong =
        AGGREGATE_METADATA | ACCUMULATE_METADATA | DATA_SIEVE | AGGREGATE_SMALL_DATA | DEFAULT_COMPATIBLE;
    /// Those that some file of this driver has.
    pub const OF_SOME: c_ulong = OF_POOLS | SUPPORTS_CONCURRENT;
}

/// Metadata and raw data have separate lists of free space.
pub const FREE_LISTS: [Kind; 7] = [SUPERBLOCK, SUPERBLOCK, SUPERBLOCK, RAW, RAW, SUPERBLOCK, SUPERBLOCK];
const SUPERBLOCK: Kind = 1;
/// Raw data.
pub const RAW: Kind = 3;

/// The start of each open file, which the library fills in.
#[repr(C)]
pub struct Head {
    pub driver: Id,
    pub class: *const Class,
    pub number: c_ulong,
    pub open_flags: c_uint,
    pub features: c_ulong,
    pub most_address: u64,
    pub base_address: u64,
    /// Objects of at least this many bytes are aligned.
    pub threshold: u64,
    /// Alignment of these objects in bytes.
    pub alignment: u64,
    pub is_paged: bool,
}

impl Head {
    /// A head for the library to fill in.
    pub const fn empty() -> Self {
        Self {
            driver: 0,
            class: std::ptr::null(),
            number: 0,
            open_flags: 0,
            features: 0,
            most_address: 0,
            base_address: 0,
            threshold: 1,
            alignment: 1,
            is_paged: false,
        }
    }
}

/// A callback that this driver neither has nor calls.
pub type Unused = Option<unsafe extern "C" fn()>;

pub type Open = unsafe extern "C" fn(*const c_char, c_uint, Id, u64) -> *mut Head;
pub type Close = unsafe extern "C" fn(*mut Head) -> Status;
pub type Compare = unsafe extern "C" fn(*const Head, *const Head) -> c_int;
pub type Query = unsafe extern "C" fn(*const Head, *mut c_ulong) -> Status;
pub type GetAddress = unsafe extern "C" fn(*const Head, Kind) -> u64;
pub type SetAddress = unsafe extern "C" fn(*mut Head, Kind, u64) -> Status;
pub type GetHandle = unsafe extern "C" fn(*mut Head, Id, *mut *mut c_void) -> Status;
pub type Read = unsafe extern "C" fn(*mut Head, Kind, Id, u64, usize, *mut c_void) -> Status;
pub type Write = unsafe extern "C" fn(*mut Head, Kind, Id, u64, usize, *const c_void) -> Status;
pub type ReadVector = unsafe extern "C" fn(
    *mut Head,
    Id,
    u32,
    *const Kind,
    *const u64,
    *const usize,
    *const *mut c_void,
) -> Status;
pub type WriteVector = unsafe extern "C" fn(
    *mut Head,
    Id,
    u32,
    *const Kind,
    *const u64,
    *const usize,
    *const *const c_void,
) -> Status;
pub type Flush = unsafe extern "C" fn(*mut Head, Id, bool) -> Status;
pub type Lock = unsafe extern "C" fn(*mut Head, bool) -> Status;
pub type Unlock = unsafe extern "C" fn(*mut Head) -> Status;
pub type Delete = unsafe extern "C" fn(*const c_char, Id) -> Status;

/// The callbacks and properties of a driver.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Class {
    pub version: c_uint,
    pub number: c_int,
    pub name: *const c_char,
    pub most_address: u64,
    pub close_degree: c_int,
    pub terminate: Unused,
    pub superblock_size: Unused,
    pub superblock_encode: Unused,
    pub superblock_decode: Unused,
    pub access_size: usize,
    pub access_get: Unused,
    pub access_copy: Unused,
    pub access_free: Unused,
    pub transfer_size: usize,
    pub transfer_copy: Unused,
    pub transfer_free: Unused,
    pub open: Option<Open>,
    pub close: Option<Close>,
    pub compare: Option<Compare>,
    pub query: Option<Query>,
    pub get_type_map: Unused,
    pub allocate: Unused,
    pub free: Unused,
    pub get_end_of_addresses: Option<GetAddress>,
    pub set_end_of_addresses: Option<SetAddress>,
    pub get_end_of_file: Option<GetAddress>,
    pub get_handle: Option<GetHandle>,
    pub read: Option<Read>,
    pub write: Option<Write>,
    pub read_vector: Option<ReadVector>,
    pub write_vector: Option<WriteVector>,
    pub read_selection: Unused,
    pub write_selection: Unused,
    pub flush: Option<Flush>,
    pub truncate: Option<Flush>,
    pub lock: Option<Lock>,
    pub unlock: Option<Unlock>,
    pub delete: Option<Delete>,
    pub control: Unused,
    pub free_lists: [Kind; 7],
}
