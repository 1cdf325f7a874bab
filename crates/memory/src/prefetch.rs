//! Prefetches memory.

/// Prefetches a cache line into the second-level cache. The address may be invalid.
///
/// A core that only reads waits for the few requests that its first-level cache can have in flight. The
/// second-level cache can have several times as many.
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
