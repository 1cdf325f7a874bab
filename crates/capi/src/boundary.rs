//! The boundary to C: each entry point goes through [`call`], [`count`] or [`release`].
//!
//! They refuse missing handles and forked processes, and no panic passes them.

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use outcore_core::{Error, ErrorKind, Result};

use crate::context::Context;
use crate::errors::{fail, keep};

/// An object behind a pointer that C holds.
pub(crate) trait Handle {
    /// The context that it was made in.
    fn context(&self) -> &Arc<Context>;
}

/// Runs an entry point that yields a number of at least 0. Returns it, or `-errno`.
pub(crate) fn count<H: Handle>(handle: Option<&H>, work: impl FnOnce(&H) -> Result<u64>) -> i64 {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let handle = handle.ok_or(-libc::EINVAL)?;
        let done = handle.context().check_process().and_then(|()| work(handle));
        done.map_err(|error| fail(handle.context(), &error))
    }));
    match outcome {
        Ok(Ok(number)) => i64::try_from(number).unwrap_or(i64::MAX),
        Ok(Err(errno)) => errno.into(),
        Err(panic) => caught(handle, &*panic).into(),
    }
}

/// Runs an entry point. Returns 0, or `-errno`.
pub(crate) fn call<H: Handle>(handle: Option<&H>, work: impl FnOnce(&H) -> Result<()>) -> c_int {
    // The number is 0, or that of an error, which is small.
    count(handle, |handle| work(handle).map(|()| 0)) as c_int
}

/// Runs an entry point that ends the life of `handle`, unless that is NULL.
///
/// # Safety
/// `handle` is NULL, or comes from `Box::into_raw` and is not used again.
pub(crate) unsafe fn release<H: Handle>(handle: *mut H, work: impl FnOnce(&H) -> Result<()>) -> c_int {
    if handle.is_null() {
        return 0;
    }
    // SAFETY: the caller hands over the box.
    let handle = unsafe { Box::from_raw(handle) };
    let done = call(Some(&*handle), work);
    if handle.context().check_process().is_err() {
        // Its threads and locks belong to another process.
        std::mem::forget(handle);
        return done;
    }
    match catch_unwind(AssertUnwindSafe(|| drop(handle))) {
        Ok(()) => done,
        Err(_) => -libc::ENOTRECOVERABLE,
    }
}

/// Writes a new handle to the place that the caller gave for it.
///
/// # Safety
/// `place` is NULL, or valid for a write.
pub(crate) unsafe fn hand_out<H>(place: *mut *mut H, make: impl FnOnce() -> Result<H>) -> Result<()> {
    if place.is_null() {
        return Err(Error::invalid(
            "need a place for the new handle, have NULL; pass the address of a pointer",
        ));
    }
    // SAFETY: the caller passes a valid pointer, which is not NULL.
    unsafe { *place = std::ptr::null_mut() };
    let made = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { *place = made };
    Ok(())
}

/// Reports a panic of an entry point.
fn caught<H: Handle>(handle: Option<&H>, panic: &(dyn Any + Send)) -> c_int {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no text");
    if let Some(handle) = handle {
        keep(
            handle.context(),
            &format!("a fault in the library stopped the call: {said}; report it, and restart the program"),
        );
    }
    -libc::ENOTRECOVERABLE
}

/// An error for a time that is no time.
pub(crate) fn unusable_time(seconds: f64) -> Error {
    Error::new(ErrorKind::Invalid, format!("need a time of at least 0 s, have {seconds}; give a longer one"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    struct Thing(Arc<Context>);

    impl Handle for Thing {
        fn context(&self) -> &Arc<Context> {
            &self.0
        }
    }

    fn text(thing: &Thing) -> String {
        let text = crate::errors::last_text(&thing.0);
        // SAFETY: the text is alive until the next error of this thread.
        unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_an_error_with_its_text() {
        let thing = Thing(Arc::default());
        assert_eq!(call(Some(&thing), |_| panic!("at {}", 7)), -libc::ENOTRECOVERABLE);
        assert!(text(&thing).contains("at 7"), "{}", text(&thing));
        assert_eq!(call(None::<&Thing>, |_| panic!("not called")), -libc::EINVAL);
    }

    #[test]
    fn each_context_and_thread_has_its_own_text() {
        let (one, other) = (Thing(Arc::default()), Thing(Arc::default()));
        assert_eq!(call(Some(&one), |_| Err(Error::invalid("first"))), -libc::EINVAL);
        assert_eq!(call(Some(&other), |_| Err(Error::new(ErrorKind::Closed, "a\0b"))), -libc::EBADF);
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(text(&one), ""));
        });
        assert_eq!((text(&one).as_str(), text(&other).as_str()), ("first", "a\u{fffd}b"));
    }

    #[test]
    fn every_kind_has_its_own_number() {
        let numbers: std::collections::HashSet<c_int> =
            ErrorKind::ALL.into_iter().map(crate::errors::errno_of).collect();
        assert_eq!(numbers.len(), ErrorKind::ALL.len());
    }
}
