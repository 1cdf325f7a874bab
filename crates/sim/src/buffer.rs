//! Memory of the simulation.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use outcore_core::{Buffer, crc32c};

thread_local! {
    /// Whether checksums are not looked at: a planted bug.
    pub static SKIPS_CHECKSUMS: Cell<bool> = const { Cell::new(false) };
}

/// A window on bytes that clones share.
#[derive(Clone, Debug)]
pub struct SimBuffer {
    bytes: Arc<Mutex<Vec<u8>>>,
    start: usize,
    length: usize,
}

impl SimBuffer {
    /// Takes bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { bytes: Arc::new(Mutex::new(bytes)), start: 0, length }
    }

    /// A copy of what is in the window.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes[self.start..self.start + self.length].to_vec()
    }
}

impl Buffer for SimBuffer {
    fn len(&self) -> usize {
        self.length
    }

    fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.length, "beyond the window");
        self.start += bytes;
        self.length -= bytes;
    }

    fn truncate(&mut self, bytes: usize) {
        self.length = self.length.min(bytes);
    }

    fn copy_in(&mut self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.length, "beyond the window");
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        bytes[self.start + at..self.start + at + from.len()].copy_from_slice(from);
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.length, "beyond the window");
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        to.copy_from_slice(&bytes[self.start + at..self.start + at + to.len()]);
    }

    fn crc32c(&self, at: usize, bytes: usize) -> u32 {
        if SKIPS_CHECKSUMS.get() {
            return crc32c(&vec![0; bytes]);
        }
        let mut copy = vec![0; bytes];
        self.copy_out(at, &mut copy);
        crc32c(&copy)
    }
}
