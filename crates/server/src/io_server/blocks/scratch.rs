//! A bounded number of buffers that the server owns and reuses.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

use outcore_core::{Buffer, Result};

use crate::io_server::config::Factory;
use crate::io_server::wait::{Permit, Permits};

struct Pool<B> {
    bytes: usize,
    make: Factory<B>,
    free: RefCell<Vec<B>>,
}

/// A bounded number of buffers of one size.
pub(crate) struct Scratch<B> {
    pool: Rc<Pool<B>>,
    permits: Permits,
}

impl<B: Buffer> Scratch<B> {
    pub fn new(bytes: usize, count: usize, make: Factory<B>) -> Self {
        let pool = Rc::new(Pool { bytes, make, free: RefCell::default() });
        Self { pool, permits: Permits::new(count.max(1)) }
    }

    /// Waits for a buffer with arbitrary content. A task that waits must not hold another buffer.
    pub async fn take(&self) -> Result<Lease<B>> {
        let permit = self.permits.take().await;
        let kept = self.pool.free.borrow_mut().pop();
        let buffer = match kept {
            Some(buffer) => buffer,
            None => (self.pool.make)(self.pool.bytes)?,
        };
        Ok(Lease { buffer, pool: self.pool.clone(), _permit: permit })
    }
}

/// A buffer that returns to its pool when dropped.
pub(crate) struct Lease<B: Buffer> {
    buffer: B,
    pool: Rc<Pool<B>>,
    _permit: Permit,
}

impl<B: Buffer> Lease<B> {
    /// A view of some bytes of the buffer.
    pub fn view(&self, from: usize, bytes: usize) -> B {
        part(&self.buffer, from, bytes)
    }
}

/// A view of some bytes of a buffer.
pub(crate) fn part<B: Buffer>(buffer: &B, from: usize, bytes: usize) -> B {
    let mut view = buffer.clone();
    view.advance(from);
    view.truncate(bytes);
    view
}

impl<B: Buffer> Deref for Lease<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.buffer
    }
}

impl<B: Buffer> DerefMut for Lease<B> {
    fn deref_mut(&mut self) -> &mut B {
        &mut self.buffer
    }
}

impl<B: Buffer> Drop for Lease<B> {
    fn drop(&mut self) {
        self.pool.free.borrow_mut().push(self.buffer.clone());
    }
}
