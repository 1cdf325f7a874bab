//! A block of memory, shared by user code and requests in flight.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Weak;

use outcore_core::{Error, ErrorKind, Result};

use crate::arena::Shared;

/// Alignment of every block of an arena, in bytes.
pub const ALIGN_BYTES: usize = 4096;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory mapped from the operating system; unmapped on drop.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain memory, usable from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself gives no access to the bytes.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(ALIGN_BYTES);
        let huge = bytes >= HUGE_PAGE_BYTES;
        // Some more address space, so that the memory can start at a huge page.
        let mapped = if huge { bytes + HUGE_PAGE_BYTES } else { bytes };
        // SAFETY: an anonymous private mapping of a non-zero length touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::new(
                ErrorKind::Budget,
                format!(
                    "need {bytes} bytes of memory; the operating system refused them ({}); choose a smaller memory=",
                    std::io::Error::last_os_error()
                ),
            ));
        }
        let lead = if huge { start.align_offset(HUGE_PAGE_BYTES) } else { 0 };
        let tail = mapped - bytes - lead;
        let begin = start.wrapping_byte_add(lead);
        // SAFETY: `munmap` releases the two ends of the range just mapped, whole pages outside
        // `begin..begin + bytes`; the advice changes no contents, and a failure of either call is harmless.
        unsafe {
            if lead > 0 {
                libc::munmap(start, lead);
            }
            if tail > 0 {
                libc::munmap(begin.wrapping_byte_add(bytes), tail);
            }
            if huge {
                libc::madvise(begin, bytes, libc::MADV_HUGEPAGE);
            }
        }
        let start = begin;
        let start =
            NonNull::new(start.cast()).ok_or_else(|| Error::new(ErrorKind::Budget, "mmap gave null"))?;
        Ok(Self { start, bytes })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the one mmap returned, unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

enum Owner {
    /// From an arena, to which the mapping returns.
    Arena { mapping: Option<Mapping>, arena: Weak<Shared> },
    /// Foreign memory, kept alive by this object.
    Foreign { _keep_alive: Box<dyn Any + Send + Sync> },
}

/// A block of memory. As with any zero-copy I/O, user code and disk requests can access the same bytes. Code
/// that has submitted a request must not touch its bytes until the completion.
pub struct Block {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

// SAFETY: all access is through raw pointers, by the holder of the request or the view; see `Block`.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    pub(crate) fn owned(mapping: Mapping, bytes: usize, arena: Weak<Shared>) -> Self {
        Self { start: mapping.start, bytes, owner: Owner::Arena { mapping: Some(mapping), arena } }
    }

    /// Wraps foreign memory.
    ///
    /// # Safety
    /// `start..start + bytes` must stay valid for reads and writes as long as `keep_alive` lives.
    pub unsafe fn foreign(start: NonNull<u8>, bytes: usize, keep_alive: Box<dyn Any + Send + Sync>) -> Self {
        Self { start, bytes, owner: Owner::Foreign { _keep_alive: keep_alive } }
    }

    /// First byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the block has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Owner::Arena { mapping, arena } = &mut self.owner
            && let (Some(mapping), Some(arena)) = (mapping.take(), arena.upgrade())
        {
            arena.give_back(mapping);
        }
    }
}
