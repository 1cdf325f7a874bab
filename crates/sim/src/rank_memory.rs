//! The memory of a client in a collective, as servers read it.

use outcore_core::crash_disk::MemoryBuffer;
use outcore_core::{
    Buffer, ByteRun, CollectiveSpec, Error, ErrorKind, MemoryOffer, OfferedArray, PeerMemory, Result, Tile,
};

use crate::elements::{offsets_of, owned};
use crate::model::{WriteId, pattern};

const NONCE_AT: u64 = 0x1000;
const ARRAY_AT: u64 = 0x10_0000;

/// A nonce, and the arrays of the client, with a byte between them.
#[derive(Debug)]
pub struct RankMemory {
    /// The offer to servers.
    pub offer: MemoryOffer,
    bytes: Vec<u8>,
    /// For each array, the offsets of its elements in the file.
    offsets: Vec<Vec<u64>>,
}

impl RankMemory {
    /// The memory of a client, filled with the bytes of its write.
    pub fn new(spec: &CollectiveSpec, rank: u64, write: WriteId) -> Self {
        let (mut bytes, mut offsets, mut arrays) = (vec![], vec![], vec![]);
        for axes in owned(&spec.schema, &spec.grid.shape, rank) {
            let mut strides = vec![1; axes.len()];
            for dim in (1..axes.len()).rev() {
                strides[dim - 1] = strides[dim] * axes[dim].len() as i64;
            }
            arrays.push(OfferedArray { address: ARRAY_AT + bytes.len() as u64, strides });
            offsets.push(offsets_of(&spec.grid, &axes));
            bytes.extend(offsets.iter().rev().take(1).flatten().map(|&offset| pattern(write, offset)));
            bytes.push(0);
        }
        let offer = MemoryOffer { nonce: spec.id ^ u128::from(rank), nonce_address: NONCE_AT, arrays };
        Self { offer, bytes, offsets }
    }

    /// The offsets in the file of a tile's elements, in transfer order, computed from their places in memory.
    pub fn offsets_of(&self, tile: &Tile) -> Vec<u64> {
        let strides = &self.offer.arrays[tile.part].strides;
        let first = tile.local.iter().zip(strides).map(|(&i, &stride)| i * stride as u64).sum();
        let places = tile.levels.iter().fold(vec![first], |places: Vec<u64>, level| {
            let step = level.local_step * strides[level.dim] as u64;
            places.iter().flat_map(|&at| (0..level.count).map(move |i| at + i * step)).collect()
        });
        places.into_iter().map(|at| self.offsets[tile.part][at as usize]).collect()
    }
}

impl PeerMemory<MemoryBuffer> for RankMemory {
    fn read(&self, runs: &[ByteRun], buffer: &mut MemoryBuffer, places: &[ByteRun]) -> Result<()> {
        let nonce = self.offer.nonce.to_le_bytes();
        let mut found = vec![];
        for run in runs {
            let (base, bytes) =
                if run.start < ARRAY_AT { (NONCE_AT, &nonce[..]) } else { (ARRAY_AT, &self.bytes[..]) };
            let start = (run.start - base) as usize;
            let bytes = bytes.get(start..start + run.bytes as usize);
            found.extend(bytes.ok_or_else(|| Error::new(ErrorKind::Io, "there is no such memory"))?);
        }
        let mut from = 0;
        for place in places {
            buffer.copy_in(place.start as usize, &found[from..from + place.bytes as usize]);
            from += place.bytes as usize;
        }
        Ok(())
    }
}
