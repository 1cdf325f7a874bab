//! The memory of a client in a collective, as servers read it.

use outcore_core::crash_disk::MemoryBuffer;
use outcore_core::{
    Axis, Buffer, ByteRun, CollectivePlan, CollectiveSpec, Error, ErrorKind, MemoryOffer, OfferedArray,
    PeerMemory, Result,
};

use crate::model::{WriteId, pattern};

const NONCE_AT: u64 = 0x1000;
const ARRAY_AT: u64 = 0x10_0000;

/// A nonce, and the array of the client, if it has one.
#[derive(Debug)]
pub struct RankMemory {
    /// What it tells servers of it.
    pub offer: MemoryOffer,
    array: Vec<u8>,
}

impl RankMemory {
    /// With what a client writes, of an array of bytes.
    pub fn new(spec: &CollectiveSpec, plan: &CollectivePlan, rank: u64, write: WriteId) -> Self {
        let parts = spec.schema.parts(&spec.grid.shape, rank);
        let length: u64 = parts.first().map_or(0, |axes| axes.iter().map(Axis::count).product());
        let mut array = vec![0; length as usize];
        for entry in 0..plan.stripes().count() {
            for piece in (0..plan.pieces(entry)).map(|number| plan.piece(entry, number)) {
                for tile in plan.share(&piece, rank).tiles {
                    let first = vec![(tile.local[0], piece.offset + tile.at)];
                    let places = tile.levels.iter().fold(first, |places, level| {
                        let next = |(here, there): (u64, u64)| {
                            (0..level.count)
                                .map(move |i| (here + i * level.local_step, there + i * level.piece_step))
                        };
                        places.into_iter().flat_map(next).collect()
                    });
                    for (here, there) in places {
                        if let Some(offset) = plan.stripes().offset_of(entry, there) {
                            array[here as usize] = pattern(write, offset);
                        }
                    }
                }
            }
        }
        let offered = OfferedArray { address: ARRAY_AT, strides: vec![1] };
        let offer = MemoryOffer {
            nonce: spec.id ^ u128::from(rank),
            nonce_address: NONCE_AT,
            arrays: parts.iter().map(|_| offered.clone()).collect(),
        };
        Self { offer, array }
    }
}

impl PeerMemory<MemoryBuffer> for RankMemory {
    fn read(&self, runs: &[ByteRun], buffer: &mut MemoryBuffer, places: &[ByteRun]) -> Result<()> {
        let nonce = self.offer.nonce.to_le_bytes();
        let mut found = vec![];
        for run in runs {
            let (base, bytes) =
                if run.start < ARRAY_AT { (NONCE_AT, &nonce[..]) } else { (ARRAY_AT, &self.array[..]) };
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
