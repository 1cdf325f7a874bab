//! Contexts: the owners of error texts.

use std::ffi::{c_char, c_int};
use std::sync::Arc;

use outcore_core::{Error, ErrorKind, Result};

use crate::boundary::{Handle, call, release};
use crate::errors::last_text;

/// The part of a context that its objects share.
pub(crate) struct Context {
    process: u32,
}

impl Default for Context {
    fn default() -> Self {
        Self { process: std::process::id() }
    }
}

impl Context {
    /// Refuses a process that was forked from the one that made the context.
    pub(crate) fn check_process(&self) -> Result<()> {
        let here = std::process::id();
        if here == self.process {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            format!(
                "need process {}, which made the context, have its fork {here}, where the threads of the library do not \
                 run; make a new context in each process after the fork",
                self.process
            ),
        ))
    }
}

/// A context. Pools, files and other objects belong to the context that made them. Threads may share a context and
/// its objects. Each thread has its own error text.
pub struct OwnedContext(pub(crate) Arc<Context>);

impl Handle for OwnedContext {
    fn context(&self) -> &Arc<Context> {
        &self.0
    }
}

/// Version of the interface: it changes with the SONAME of the library.
pub const OUTCORE_INTERFACE: i32 = 0;

/// Returns the version of the library, such as "0.2.0".
#[unsafe(no_mangle)]
pub extern "C" fn outcore_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Returns the version of the interface of the library. A program compares it with OUTCORE_INTERFACE of its header.
#[unsafe(no_mangle)]
pub extern "C" fn outcore_interface() -> c_int {
    OUTCORE_INTERFACE
}

/// Makes a context. For NULL, the result is -EINVAL.
///
/// # Safety
/// `context` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_context_new(context: *mut *mut OwnedContext) -> c_int {
    let fresh = OwnedContext(Arc::default());
    call(Some(&fresh), |fresh| {
        // SAFETY: as the caller promises.
        unsafe { crate::boundary::hand_out(context, || Ok(OwnedContext(fresh.0.clone()))) }
    })
}

/// Frees a context. Its objects stay usable, but their errors have no text. NULL is ignored.
///
/// # Safety
/// `context` is NULL, or a context that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_context_free(context: *mut OwnedContext) {
    // SAFETY: as the caller promises.
    unsafe { release(context, |_| Ok(())) };
}

/// Returns the text of the last error of this thread in the context: the need, the finding and one fix. It is empty if no
/// call failed, and valid until the next call of this thread fails in the context.
///
/// # Safety
/// `context` is a context, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_error_text(context: *const OwnedContext) -> *const c_char {
    // SAFETY: as the caller promises.
    match unsafe { context.as_ref() } {
        Some(context) => last_text(&context.0),
        None => c"need a context, have NULL; pass the one of outcore_context_new".as_ptr(),
    }
}
