//! Error numbers of the system for errors of the library, and the text of the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::sync::{Arc, Weak};

use outcore_core::{Error, ErrorKind};

use crate::context::Context;

/// The error number for a kind of error. Unlike in the mount, whose programs know only the numbers of files, each kind has
/// its own number.
pub(crate) fn errno_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Closed => libc::EBADF,
        ErrorKind::Truncated => libc::ENODATA,
        ErrorKind::Corrupt => libc::EBADMSG,
        ErrorKind::Lost => libc::EREMOTEIO,
        kind => outcore_client::errno_of(kind),
    }
}

thread_local! {
    /// The last error of this thread in each context.
    static LAST: RefCell<Vec<(Weak<Context>, CString)>> = const { RefCell::new(Vec::new()) };
}

/// Keeps the text of an error for `outcore_error_text`.
pub(crate) fn keep(context: &Arc<Context>, text: &str) {
    let text = CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default();
    // The thread may be ending: then nobody can ask.
    let _ = LAST.try_with(|last| {
        let mut last = last.borrow_mut();
        last.retain(|(of, _)| of.strong_count() > 0 && !std::ptr::eq(of.as_ptr(), Arc::as_ptr(context)));
        last.push((Arc::downgrade(context), text));
    });
}

/// Keeps an error, and returns its number.
pub(crate) fn fail(context: &Arc<Context>, error: &Error) -> c_int {
    keep(context, &error.message);
    -errno_of(error.kind)
}

/// The text of the last error of this thread in a context.
pub(crate) fn last_text(context: &Arc<Context>) -> *const c_char {
    let found = LAST.try_with(|last| {
        let last = last.borrow();
        let of = last.iter().find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(context)));
        of.map_or(c"".as_ptr(), |(_, text)| text.as_ptr())
    });
    found.unwrap_or(c"".as_ptr())
}
