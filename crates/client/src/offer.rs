//! The memory of this process, offered to servers on this machine for as long as a collective goes on.

use std::hash::{BuildHasher, RandomState};

use outcore_core::{MemoryOffer, OfferedArray};

use crate::shares::LocalArray;

/// An offer, and the number by which servers find that it is this process whose memory they read.
pub(crate) struct Offered {
    pub(crate) offer: MemoryOffer,
    /// Where the offer says that it is.
    _nonce: Box<[u8; 16]>,
}

impl Offered {
    /// The arrays must stay where they are until the collective is over.
    pub(crate) fn new(arrays: &[LocalArray]) -> Self {
        let half = || u128::from(RandomState::new().hash_one(0));
        let nonce = half() << 64 | half();
        let bytes = Box::new(nonce.to_le_bytes());
        let address = |start: *const u8| start.expose_provenance() as u64;
        let arrays = arrays.iter().map(|array| OfferedArray {
            address: address(array.memory.block.as_ptr().wrapping_add(array.memory.origin)),
            strides: array.memory.strides.clone(),
        });
        let offer = MemoryOffer { nonce, nonce_address: address(bytes.as_ptr()), arrays: arrays.collect() };
        Self { offer, _nonce: bytes }
    }
}
