//! Names and sizes of an I/O server's files. `docs/format.md` describes the bytes.

use std::sync::LazyLock;

use outcore_core::{Error, ErrorKind, Handle, Names, Result, ServerId, crc32c};

/// Bytes of a data file that share one checksum.
pub const BLOCK_BYTES: u64 = 64 << 10;
/// Bytes of a data file that share one entry of the log.
pub const REGION_BYTES: u64 = 1 << 20;
/// Blocks of a region.
pub(crate) const REGION_BLOCKS: u64 = REGION_BYTES / BLOCK_BYTES;
/// Bytes of a page of the checksum file.
pub(crate) const SUMS_PAGE_BYTES: usize = 4096;
/// Blocks whose checksums are on one page.
pub(crate) const SUMS_PER_PAGE: u64 = SUMS_PAGE_BYTES as u64 / 4;
/// Blocks checked and merged in one scratch buffer, at most. A page of checksums covers a whole number of such
/// groups.
pub(crate) const SCRATCH_BLOCKS: u64 = 4;
/// Blocks in one direct request between a call's buffer and the disk, at most. A page of checksums covers a whole
/// number of them.
pub(crate) const DIRECT_BLOCKS: u64 = 64;

/// The marker file, which names the owner of the directory.
pub(crate) const MARKER: &str = "server.json";
/// The lock file of the server that uses the directory.
pub(crate) const LOCK: &str = "lock";
/// The directory of the data files.
pub(crate) const DATA: &str = "data";
/// The two files of the log, one of which is active.
pub(crate) const LOGS: [&str; 2] = ["log.0", "log.1"];

/// The names that an I/O server creates in its directory.
pub const NAMES: [&str; 5] = [MARKER, LOCK, DATA, LOGS[0], LOGS[1]];

/// A block of zeros to copy from.
pub(crate) static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

static ZEROS_CRC: LazyLock<u32> = LazyLock::new(|| crc32c(&ZEROS));

/// The stored checksum of a block, from its CRC-32C. It is 0 for a block of zeros, so the checksum file is sparse
/// where the data file is. A hole in both is a block with a correct checksum.
pub(crate) fn sum(crc: u32) -> u32 {
    crc ^ *ZEROS_CRC
}

/// The suffix of a checksum file's name.
const SUMS_SUFFIX: &str = ".sealed";
/// The suffix of a checksum file without seals, from format 1 of the directory.
const PLAIN_SUMS_SUFFIX: &str = ".sums";

/// The directory of the data files whose handles end with this byte.
pub(crate) fn data_directory(byte: u8) -> String {
    format!("{DATA}/{byte:02x}")
}

/// Path of the data file of a handle.
pub fn data_path(handle: Handle) -> String {
    format!("{}/{:016x}", data_directory(handle.0 as u8), handle.0)
}

/// Path of the checksum file of a handle.
pub fn sums_path(handle: Handle) -> String {
    format!("{}{SUMS_SUFFIX}", data_path(handle))
}

/// Path of the checksum file of a handle in format 1 of the directory, which has no seals.
pub fn plain_sums_path(handle: Handle) -> String {
    format!("{}{PLAIN_SUMS_SUFFIX}", data_path(handle))
}

/// The handle in a file name, and whether the name is that of the data file; otherwise it is that of the checksum
/// file.
pub(crate) fn handle_in(name: &str) -> Option<(Handle, bool)> {
    let digits = [SUMS_SUFFIX, PLAIN_SUMS_SUFFIX].iter().find_map(|suffix| name.strip_suffix(suffix));
    let handle = Handle(u64::from_str_radix(digits.unwrap_or(name), 16).ok()?);
    let is_ours = data_path(handle).ends_with(&format!("/{}", digits.unwrap_or(name)));
    is_ours.then_some((handle, digits.is_none()))
}

/// The highest handle of a data file or checksum file in a server's directory; 0 if there are none.
pub fn highest_handle(directory: &dyn Names) -> Result<Handle> {
    let mut highest = Handle(0);
    for byte in 0..=u8::MAX {
        let names = match directory.list_names(&data_directory(byte)) {
            Err(error) if error.kind == ErrorKind::NotFound => continue,
            names => names?,
        };
        let handles = names.iter().filter_map(|name| handle_in(name));
        highest = handles.map(|(handle, _)| handle).fold(highest, Handle::max);
    }
    Ok(highest)
}

/// The format of the directory. In format 1, checksum files have no seals.
pub(crate) const FORMAT: u32 = 2;

/// Content of the marker in a format of the directory.
pub(crate) fn marker(format: u32, pool: u128, server: ServerId) -> String {
    format!("{{\"format\": {format}, \"pool\": \"{pool:032x}\", \"server\": {}}}\n", server.0)
}

/// The owner of a directory according to its marker: the pool, and the server's number. `None` if the directory
/// has no owner yet.
pub fn marked(directory: &dyn Names) -> Result<Option<(u128, ServerId)>> {
    let found = match directory.read_small(MARKER) {
        Ok(found) => found,
        Err(error) if error.kind == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let text = String::from_utf8_lossy(&found);
    let field = |name: &str| {
        let (_, rest) = text.split_once(&format!("\"{name}\":"))?;
        Some(rest.trim_start().split([',', '}']).next()?.trim().trim_matches('"').to_owned())
    };
    let pool = field("pool").and_then(|digits| u128::from_str_radix(&digits, 16).ok());
    let server = field("server").and_then(|number| number.parse().ok());
    match (pool, server) {
        (Some(pool), Some(server)) => Ok(Some((pool, ServerId(server)))),
        _ => {
            let text = format!("{MARKER} is damaged; restore it from a copy");
            Err(Error::new(ErrorKind::Corrupt, text))
        }
    }
}
