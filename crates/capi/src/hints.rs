//! Hints: pairs of texts, as in `MPI_Info`.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::boundary::{Handle, call, hand_out, release};
use crate::context::{Context, OwnedContext};
use crate::text::text_of;

/// Hints for the layout of new files: names and values, as in MPI_Info.
///
/// Known names are striping_unit (bytes on one server), striping_factor (number of servers) and start_iodevice (the
/// first server); outcore's own names for them are stripe_unit_bytes, stripe_count and base. A pool keeps other hints as
/// extended attributes with the prefix "hint.". It ignores unusable values, as MPI does.
pub struct Hints {
    context: Arc<Context>,
    pairs: Mutex<Vec<(String, String)>>,
}

impl Handle for Hints {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Hints {
    fn pairs(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hints that C passed; none for NULL.
    pub(crate) fn or_none(given: Option<&Self>) -> outcore_core::Hints {
        let others = given.map_or_else(Vec::new, |hints| hints.pairs().clone());
        outcore_core::Hints { others, ..outcore_core::Hints::default() }
    }
}

/// Makes an empty set of hints.
///
/// # Safety
/// `context` is a context, or NULL; `hints` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_hints_new(context: *const OwnedContext, hints: *mut *mut Hints) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { context.as_ref() }, |context| unsafe {
        hand_out(hints, || Ok(Hints { context: context.0.clone(), pairs: Mutex::default() }))
    })
}

/// Sets a hint. It replaces an earlier value of the same name.
///
/// # Safety
/// `hints` is a set of hints, or NULL; the texts are NULL, or end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_hints_set(
    hints: *const Hints,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { hints.as_ref() }, |hints| {
        // SAFETY: as the caller promises.
        let (name, value) = unsafe { (text_of(name, "name of a hint")?, text_of(value, "value of a hint")?) };
        let mut pairs = hints.pairs();
        pairs.retain(|(known, _)| known != name);
        pairs.push((name.to_owned(), value.to_owned()));
        Ok(())
    })
}

/// Frees a set of hints. NULL is ignored.
///
/// # Safety
/// `hints` is NULL, or a set of hints that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_hints_free(hints: *mut Hints) {
    // SAFETY: as the caller promises.
    unsafe { release(hints, |_| Ok(())) };
}
