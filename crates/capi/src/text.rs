//! Texts and numbers that C passes.

use std::ffi::{CStr, c_char};

use outcore_core::{Error, Result};

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

/// `count` numbers that C passed, named by their `role`.
///
/// # Safety
/// `numbers` points to `count` numbers, or is NULL.
pub(crate) unsafe fn numbers_of<'a>(numbers: *const u64, count: usize, role: &str) -> Result<&'a [u64]> {
    check_count(count, role)?;
    match (count, numbers.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Error::invalid(format!("need {count} {role}, have NULL; pass an array of them"))),
        // SAFETY: as the caller promises.
        (_, false) => Ok(unsafe { std::slice::from_raw_parts(numbers, count) }),
    }
}

/// Refuses a number of things of 8 bytes that no memory has.
pub(crate) fn check_count(count: usize, role: &str) -> Result<()> {
    let most = isize::MAX as usize / size_of::<u64>();
    if count <= most {
        return Ok(());
    }
    Err(Error::invalid(format!("need at most {most} {role}, have {count}; check the count")))
}
