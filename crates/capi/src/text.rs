//! Texts and memory that C passes.

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::sync::Arc;

use outcore_core::{Error, Result};
use outcore_memory::{Block, Region};

/// A text that C passed, named by its `role`.
///
/// # Safety
/// `text` is NULL, or points to bytes that end with a zero byte and stay valid for `'a`.
pub(crate) unsafe fn text_of<'a>(text: *const c_char, role: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(Error::invalid(format!("need the {role}, have NULL; pass a text")));
    }
    // SAFETY: the caller passes a terminated text.
    let bytes = unsafe { CStr::from_ptr(text) };
    bytes.to_str().map_err(|_| Error::invalid(format!("need the {role} in UTF-8, have {bytes:?}; rename it")))
}

/// An optional text: `None` for NULL.
///
/// # Safety
/// As for [`text_of`].
pub(crate) unsafe fn optional_text<'a>(text: *const c_char, role: &str) -> Result<Option<&'a str>> {
    // SAFETY: as the caller promises.
    if text.is_null() { Ok(None) } else { unsafe { text_of(text, role) }.map(Some) }
}

/// Memory of the caller as the buffer of a request.
///
/// # Safety
/// `start` points to `bytes` bytes that stay valid, and that nothing else writes, until the request has ended.
pub(crate) unsafe fn region_of(start: *mut u8, bytes: u64) -> Result<Region> {
    if bytes == 0 {
        return Ok(Region::empty());
    }
    let start = NonNull::new(start).ok_or_else(|| {
        Error::invalid(format!("need memory of {bytes} bytes, have NULL; pass the address of a buffer"))
    })?;
    let length = usize::try_from(bytes).ok().filter(|&length| length <= isize::MAX as usize);
    let length =
        length.ok_or_else(|| Error::invalid(format!("need at most 2^63 bytes of memory, have {bytes}")))?;
    // SAFETY: as the caller promises.
    let block = unsafe { Block::foreign(start, length, Box::new(())) };
    Ok(Region::whole(Arc::new(block)))
}
