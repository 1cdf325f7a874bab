//! Memory that is asked for before it is needed.

/// Asks for a line of memory, at any address, in the second cache.
///
/// A core that only reads waits for the few requests that its first cache can have in flight; those of the second are
/// several times as many.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: a hint, which never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}
