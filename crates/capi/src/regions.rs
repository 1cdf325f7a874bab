//! Regions: the bytes of a file that a request moves.

use std::ffi::c_int;
use std::sync::Arc;

use outcore_core::{Error, Level, MAX_LEVELS, Nested, Result};

use crate::boundary::{Handle, call, count, hand_out, release};
use crate::context::{Context, OwnedContext};
use crate::text::numbers_of;

/// Bytes of a file, in the order of a request: contiguous, strided, nested or a list. One request sends one message to
/// each server that stores some of them. Regions belong to no file, and any number of requests may use them.
pub struct Regions {
    context: Arc<Context>,
    pub(crate) inner: outcore_core::Regions,
}

impl Handle for Regions {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// Makes regions in a context.
///
/// # Safety
/// `context` is a context, or NULL; `place` is NULL, or valid for a write.
unsafe fn make(
    context: *const OwnedContext,
    place: *mut *mut Regions,
    regions: impl FnOnce() -> Result<outcore_core::Regions>,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { context.as_ref() }, |context| unsafe {
        hand_out(place, || Ok(Regions { context: context.0.clone(), inner: regions()? }))
    })
}

fn levels_of(counts: &[u64], strides: &[u64]) -> impl Iterator<Item = Level> {
    counts.iter().zip(strides).map(|(&count, &step_bytes)| Level { count, step_bytes })
}

fn too_deep(levels: u64) -> Error {
    Error::invalid(format!("need at most {MAX_LEVELS} strides inside each other, have {levels}; use a list"))
}

/// Makes regions of `bytes` bytes from byte `offset` on.
///
/// # Safety
/// `context` is a context, or NULL; `regions` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_regions_contiguous(
    context: *const OwnedContext,
    offset: u64,
    bytes: u64,
    regions: *mut *mut Regions,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { make(context, regions, || outcore_core::Regions::contiguous(offset, bytes)) }
}

/// Makes strided regions by the six parameters of PVFS (Ross et al. 2001): groups of bytes at regular distances.
///
/// `location` is the first byte. A partial group of `first` bytes begins there, if `first` is not 0; the next group
/// begins `stride - group` bytes after its end. Then come `count` groups of `group` bytes, `stride` bytes from start to
/// start, and a partial group of `last` bytes, if `last` is not 0.
///
/// # Safety
/// `context` is a context, or NULL; `regions` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_regions_strided(
    context: *const OwnedContext,
    location: u64,
    first: u64,
    group: u64,
    count: u64,
    stride: u64,
    last: u64,
    regions: *mut *mut Regions,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        make(context, regions, || outcore_core::Regions::strided(location, first, group, count, stride, last))
    }
}

/// Makes regions of nested strides: any block of a flat array.
///
/// A group has `group` bytes, and the first one begins at byte `location`. There are `levels` strides, at most 16, from
/// the outermost to the innermost: stride `i` repeats its contents `counts[i]` times, `strides[i]` bytes from start to
/// start. Without levels, there is one group.
///
/// # Safety
/// `context` is a context, or NULL; the arrays have `levels` numbers; `regions` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_regions_nested(
    context: *const OwnedContext,
    location: u64,
    group: u64,
    levels: usize,
    counts: *const u64,
    strides: *const u64,
    regions: *mut *mut Regions,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        make(context, regions, || {
            if levels > MAX_LEVELS {
                return Err(too_deep(levels as u64));
            }
            let counts = numbers_of(counts, levels, "counts of strides")?;
            let strides = numbers_of(strides, levels, "strides")?;
            let levels = levels_of(counts, strides).collect();
            outcore_core::Regions::new(vec![Nested { offset: location, run_bytes: group, levels }])
        })
    }
}

/// Makes regions of a list: `count` runs, of `lengths[i]` bytes from byte `offsets[i]` on, in any order.
///
/// # Safety
/// `context` is a context, or NULL; the arrays have `count` numbers; `regions` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_regions_list(
    context: *const OwnedContext,
    count: usize,
    offsets: *const u64,
    lengths: *const u64,
    regions: *mut *mut Regions,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        make(context, regions, || {
            let offsets = numbers_of(offsets, count, "offsets of regions")?;
            let lengths = numbers_of(lengths, count, "lengths of regions")?;
            let run = |(&offset, &run_bytes)| Nested { offset, run_bytes, levels: vec![] };
            outcore_core::Regions::new(offsets.iter().zip(lengths).map(run).collect())
        })
    }
}

/// Makes regions of `count` nested strides, one after the other: `outcore_regions_nested` says what each of them is.
///
/// Number i has groups of `groups[i]` bytes, from byte `locations[i]` on, and `levels[i]` strides. `counts` and `strides` have
/// those of all of them, one after the other.
///
/// # Safety
/// `context` is a context, or NULL; the arrays have `count` numbers, the last two as many as `levels` says; `regions` is NULL,
/// or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_regions_nested_list(
    context: *const OwnedContext,
    count: usize,
    locations: *const u64,
    groups: *const u64,
    levels: *const u64,
    counts: *const u64,
    strides: *const u64,
    regions: *mut *mut Regions,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        make(context, regions, || {
            let locations = numbers_of(locations, count, "locations of nested strides")?;
            let groups = numbers_of(groups, count, "groups of nested strides")?;
            let levels = numbers_of(levels, count, "levels of nested strides")?;
            if let Some(most) = levels.iter().max().filter(|&&most| most > MAX_LEVELS as u64) {
                return Err(too_deep(*most));
            }
            let all = levels.iter().sum::<u64>() as usize;
            let counts = numbers_of(counts, all, "counts of strides")?;
            let strides = numbers_of(strides, all, "strides")?;
            let mut all = levels_of(counts, strides);
            let part = |((&offset, &run_bytes), &levels)| {
                let levels = all.by_ref().take(levels as usize).collect();
                Nested { offset, run_bytes, levels }
            };
            outcore_core::Regions::new(locations.iter().zip(groups).zip(levels).map(part).collect())
        })
    }
}

/// Returns the number of bytes of regions.
///
/// # Safety
/// `regions` are regions, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_regions_bytes(regions: *const Regions) -> i64 {
    // SAFETY: as the caller promises.
    count(unsafe { regions.as_ref() }, |regions| Ok(regions.inner.total_bytes()))
}

/// Frees regions. Requests that use them continue. NULL is ignored.
///
/// # Safety
/// `regions` is NULL, or regions that are not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_regions_free(regions: *mut Regions) {
    // SAFETY: as the caller promises.
    unsafe { release(regions, |_| Ok(())) };
}
