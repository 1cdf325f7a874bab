//! An offer of this process's memory to servers on the same machine, for the duration of a collective.

use std::hash::{BuildHasher, RandomState};

use outcore_core::{MemoryOffer, OfferedArray};

use crate::collective::shares::LocalArray;

/// An offer, and the nonce by which servers verify that they read the memory of this process.
pub(crate) struct Offered {
    pub(crate) offer: MemoryOffer,
    /// The nonce, at the address in the offer.
    _nonce: Box<[u8; 16]>,
}

impl Offered {
    /// Offers `arrays`, which must keep their addresses until the collective ends.
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
