//! The description of a collective as bytes.

use crate::wire::record::{Record, Source, choice, damaged, structure};
use crate::{
    ChunkOrder, CollectiveSpec, Distribution, ElementBox, GridSpec, MemoryOffer, MemorySchema, OfferedArray,
    Result, StorageOrder,
};

structure!(ElementBox { start, shape });
structure!(MemoryOffer { nonce, nonce_address, arrays });
structure!(OfferedArray { address, strides });
structure!(CollectiveSpec {
    id,
    write,
    ranks,
    grid,
    shard,
    schema,
    patience_s,
    durable,
    skips_disk,
    piece_bytes,
    round_pieces
});
structure!(GridSpec {
    shape,
    chunk,
    item_bytes,
    storage,
    chunk_order,
    slot_align_bytes,
    column_places,
    growing
});

choice!(Distribution {
    1 = Whole,
    2 = Block,
    3 = Cyclic(run),
});

choice!(MemorySchema {
    1 = Mesh { mesh, dims },
    2 = Boxes(boxes),
    3 = Own(regions),
});

choice!(StorageOrder {
    1 = C,
    2 = F,
});

impl Record for ChunkOrder {
    /// Its name and the shape of a block in chunks, as in the metadata of arrays.
    fn put(&self, to: &mut Vec<u8>) {
        self.name().to_string().put(to);
        self.block_chunks().map(<[u64]>::to_vec).put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let name = String::take(from)?;
        Self::from_name(&name, Record::take(from)?).map_err(damaged)
    }
}
