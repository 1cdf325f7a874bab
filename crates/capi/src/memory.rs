//! Memory that C passes.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use outcore_core::{Error, Result};
use outcore_memory::{Block, Region};

use crate::text::check_count;

/// Pieces of memory, one after the other the bytes of a request.
pub(crate) struct Pieces(Vec<(*mut u8, u64)>);

impl Pieces {
    /// One piece.
    pub(crate) fn one(memory: *mut c_void, bytes: u64) -> Self {
        Self(vec![(memory.cast(), bytes)])
    }

    /// The pieces that `iovec` lists, as for `preadv(2)`.
    ///
    /// # Safety
    /// `iovec` points to `count` structures, or is NULL.
    pub(crate) unsafe fn listed(iovec: *const libc::iovec, count: usize) -> Result<Self> {
        check_count(count, "pieces of memory")?;
        if count == 0 {
            return Ok(Self(vec![]));
        }
        if iovec.is_null() {
            return Err(Error::invalid(format!(
                "need {count} pieces of memory, have NULL; pass an array of them"
            )));
        }
        // SAFETY: as the caller promises.
        let given = unsafe { std::slice::from_raw_parts(iovec, count) };
        Ok(Self(given.iter().map(|piece| (piece.iov_base.cast(), piece.iov_len as u64)).collect()))
    }

    /// Their bytes.
    pub(crate) fn bytes(&self) -> Result<u64> {
        let bytes = self.0.iter().try_fold(0_u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let bytes = bytes.filter(|&bytes| isize::try_from(bytes).is_ok());
        bytes.ok_or_else(|| Error::invalid("need at most 2^63 bytes of memory, have more; pass less"))
    }

    /// The pieces without the bytes after the first `bytes`.
    pub(crate) fn first(&self, bytes: u64) -> Self {
        let mut left = bytes;
        let part = |&(start, length): &(*mut u8, u64)| {
            let length = length.min(left);
            left -= length;
            (length > 0).then_some((start, length))
        };
        Self(self.0.iter().filter_map(part).collect())
    }

    /// The address of a byte; `None` behind the end.
    pub(crate) fn byte(&self, at: u64) -> Option<*mut u8> {
        let mut at = at;
        for &(start, bytes) in &self.0 {
            if at < bytes {
                return Some(start.wrapping_add(at as usize));
            }
            at -= bytes;
        }
        None
    }

    /// The buffer of a request.
    ///
    /// # Safety
    /// As for [`block_of`], for each piece.
    pub(crate) unsafe fn region(&self) -> Result<Region> {
        let pieces = self.0.iter().filter(|(_, bytes)| *bytes > 0);
        // SAFETY: as the caller promises.
        let part = |&(start, bytes): &(*mut u8, u64)| unsafe { block_of(start, bytes) }.map(Region::whole);
        pieces.map(part).collect::<Result<_>>().map(Region::joined)
    }
}

/// Memory of the caller as a block.
///
/// # Safety
/// `start` points to `bytes` bytes that stay valid, and that nothing else writes, until the request has ended.
pub(crate) unsafe fn block_of(start: *mut u8, bytes: u64) -> Result<Arc<Block>> {
    let start = NonNull::new(start).ok_or_else(|| {
        Error::invalid(format!("need memory of {bytes} bytes, have NULL; pass the address of a buffer"))
    })?;
    let length = usize::try_from(bytes).ok().filter(|&length| length <= isize::MAX as usize);
    let length =
        length.ok_or_else(|| Error::invalid(format!("need at most 2^63 bytes of memory, have {bytes}")))?;
    // SAFETY: as the caller promises.
    let block = unsafe { Block::foreign(start, length, Box::new(())) };
    Ok(Arc::new(block))
}
