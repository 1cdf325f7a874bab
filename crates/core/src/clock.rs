//! Time as a trait, so that a simulation can own it.

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// Nanoseconds since an arbitrary, fixed origin; never goes backwards.
    fn now_ns(&self) -> u64;
}
