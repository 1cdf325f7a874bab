//! The place of each array element on disk: chunks of one shape, in slots of one size, in shard files.

use crate::{ChunkOrder, Error, Result, crc32c};

/// Readers decode whole chunks, so chunks have a limit (design: arrays are Zarr v3, always).
pub const MAX_CHUNK_BYTES: u64 = 64 << 20;
/// Readers read a shard's whole index, so shard files have a limit.
pub const MAX_CHUNKS_PER_SHARD: u64 = 65_536;
/// With stripe units below this size, the number of requests would cost more than the bytes.
const LEAST_UNIT_BYTES: u64 = 1 << 20;

/// Order of the elements inside a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageOrder {
    /// Last dimension fastest.
    C,
    /// First dimension fastest (Zarr: a `transpose` codec before `bytes`).
    F,
}

impl StorageOrder {
    /// The order of the same elements in the transpose.
    fn transposed(self) -> Self {
        match self {
            Self::C => Self::F,
            Self::F => Self::C,
        }
    }
}

/// The choices of an array's creator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GridSpec {
    /// Array shape, in elements.
    pub shape: Vec<u64>,
    /// Chunk shape, in elements.
    pub chunk: Vec<u64>,
    /// Bytes per element.
    pub item_bytes: u64,
    /// Order of elements inside a chunk.
    pub storage: StorageOrder,
    /// Order of chunks in a shard.
    pub chunk_order: ChunkOrder,
    /// Each slot is padded to a multiple of this, so that every chunk is aligned.
    pub slot_align_bytes: u64,
    /// For a matrix in column-major chunk order: the place on disk of each column of chunks, if it differs
    /// from the column's number. Places without a column are gaps.
    pub column_places: Option<Vec<u64>>,
    /// Whether the array grows along its first dimension, whose length may be 0. Each row of chunks has its
    /// own shard files, equal to those of an array without the first dimension.
    pub growing: bool,
}

impl GridSpec {
    /// A file as an array of `length` bytes, in chunks of `chunk_bytes`.
    pub fn of_bytes(length: u64, chunk_bytes: u64) -> Self {
        Self {
            shape: vec![length],
            chunk: vec![chunk_bytes],
            item_bytes: 1,
            storage: StorageOrder::C,
            chunk_order: ChunkOrder::RowMajor,
            slot_align_bytes: 1,
            column_places: None,
            growing: false,
        }
    }
}

/// The place of a chunk: its shard file, and its offset there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot {
    /// Row-major number of the shard in the grid of shards.
    pub shard: u64,
    /// First byte of the chunk in the shard file.
    pub offset: u64,
}

/// The layout of an array on disk.
#[derive(Clone, Debug)]
pub struct ChunkGrid {
    spec: GridSpec,
    counts: Vec<u64>,
    shard_chunks: Vec<u64>,
    shard_counts: Vec<u64>,
    /// The place of each chunk in a shard, indexed by the chunk's row-major number.
    ranks: Vec<u32>,
    slots: u64,
    slot_bytes: u64,
    /// Whether the files name and number their chunks with the dimensions reversed.
    is_transposed: bool,
}

impl ChunkGrid {
    /// Checks `spec` and computes the layout. The array gets one shard file if all chunks fit into it.
    /// Otherwise it is split along the slowest dimension of the chunk order, into as many shard files as
    /// needed.
    pub fn new(spec: GridSpec) -> Result<Self> {
        let dims = spec.shape.len();
        if dims == 0 || spec.chunk.len() != dims {
            return Err(Error::invalid(format!(
                "shape {:?} and chunks {:?} must have the same number of dimensions, at least 1",
                spec.shape, spec.chunk
            )));
        }
        let fixed = usize::from(spec.growing);
        if spec.shape[fixed..].contains(&0) || spec.chunk.contains(&0) || spec.item_bytes == 0 {
            return Err(Error::invalid(format!(
                "shape {:?} and chunks {:?} must be at least 1 in every dimension",
                spec.shape, spec.chunk
            )));
        }
        let chunk_bytes = product(&spec.chunk).and_then(|items| items.checked_mul(spec.item_bytes));
        let Some(chunk_bytes) = chunk_bytes.filter(|&bytes| bytes <= MAX_CHUNK_BYTES) else {
            return Err(Error::invalid(format!(
                "a chunk of {:?} elements of {} bytes is larger than 64 MiB; choose smaller chunks",
                spec.chunk, spec.item_bytes
            )));
        };
        let array_bytes = product(&spec.shape).and_then(|items| items.checked_mul(spec.item_bytes));
        if array_bytes.is_none_or(|bytes| bytes > 1 << 62) {
            return Err(Error::invalid(format!(
                "an array of shape {:?} is larger than 2^62 bytes",
                spec.shape
            )));
        }
        let align = spec.slot_align_bytes.max(1);
        let slot_bytes = chunk_bytes.div_ceil(align) * align;
        let counts: Vec<u64> = spec.shape.iter().zip(&spec.chunk).map(|(&n, &c)| n.div_ceil(c)).collect();
        let mut shard_chunks = counts.clone();
        if spec.growing {
            shard_chunks[0] = 1;
        }
        spec.chunk_order.check(&counts[fixed..])?;
        let slow_to_fast: Vec<usize> = match spec.chunk_order {
            ChunkOrder::ColumnMajor => (fixed..dims).rev().collect(),
            _ => (fixed..dims).collect(),
        };
        for dim in slow_to_fast {
            let others: u128 = shard_chunks
                .iter()
                .enumerate()
                .filter(|&(d, _)| d != dim)
                .map(|(_, &c)| u128::from(c))
                .product();
            let fit = (u128::from(MAX_CHUNKS_PER_SHARD) / others.max(1)).max(1);
            shard_chunks[dim] = shard_chunks[dim].min(fit as u64);
        }
        let shard_counts: Vec<u64> = counts.iter().zip(&shard_chunks).map(|(&n, &c)| n.div_ceil(c)).collect();
        if spec.chunk_order.block_chunks().is_some() && shard_chunks[fixed..] != counts[fixed..] {
            return Err(Error::invalid(format!(
                "need at most {MAX_CHUNKS_PER_SHARD} chunks for blocks of chunks, which lie in one file, have {counts:?}; \
                 choose larger chunks"
            )));
        }
        let mut ranks = spec.chunk_order.ranks(&shard_chunks[fixed..]);
        let mut slots = ranks.iter().max().map_or(0, |&last| u64::from(last) + 1);
        if let Some(places) = &spec.column_places {
            slots = place_columns(&spec, &counts, &shard_counts, places, &mut ranks)?;
        }
        Ok(Self { spec, counts, shard_chunks, shard_counts, ranks, slots, slot_bytes, is_transposed: false })
    }

    /// The transpose of the array, in the same files: reversed dimensions, each byte in the same place.
    pub fn transposed(&self) -> Self {
        let reversed = |extents: &[u64]| extents.iter().rev().copied().collect::<Vec<u64>>();
        let shard_chunks = reversed(&self.shard_chunks);
        let numbers = 0..self.ranks.len() as u64;
        let ranks = numbers.map(|number| self.ranks[turned(number, &shard_chunks) as usize]).collect();
        Self {
            spec: GridSpec {
                shape: reversed(&self.spec.shape),
                chunk: reversed(&self.spec.chunk),
                storage: self.spec.storage.transposed(),
                chunk_order: self.spec.chunk_order.transposed(),
                ..self.spec.clone()
            },
            counts: reversed(&self.counts),
            shard_counts: reversed(&self.shard_counts),
            shard_chunks,
            ranks,
            is_transposed: !self.is_transposed,
            ..*self
        }
    }

    /// The choices of the array's creator.
    pub fn spec(&self) -> &GridSpec {
        &self.spec
    }

    /// Number of dimensions.
    pub fn dims(&self) -> usize {
        self.spec.shape.len()
    }

    /// Chunks along each dimension.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Chunks of one shard along each dimension.
    pub fn shard_chunks(&self) -> &[u64] {
        &self.shard_chunks
    }

    /// Shard files along each dimension.
    pub fn shard_counts(&self) -> &[u64] {
        &self.shard_counts
    }

    /// Distance in bytes between neighbouring slots of a shard.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Distance in bytes between neighbouring blocks of chunks, if the chunks are in blocks.
    pub fn block_bytes(&self) -> Option<u64> {
        let chunks = self.spec.chunk_order.block_chunks()?;
        Some(chunks.iter().product::<u64>() * self.slot_bytes)
    }

    /// Bytes of a stripe unit, if the shard file is striped over disks: a block of chunks, a chunk, or a run
    /// of small chunks.
    pub fn stripe_unit_bytes(&self) -> u64 {
        let run = || LEAST_UNIT_BYTES.div_ceil(self.slot_bytes.max(1)) * self.slot_bytes;
        self.block_bytes().unwrap_or_else(run)
    }

    /// Number of stripe units that are striped over the disks, if the tail of the file lies on the last one:
    /// the blocks of chunks.
    pub fn round_units(&self) -> Option<u64> {
        self.block_bytes().map(|bytes| self.index_offset().div_ceil(bytes))
    }

    /// Bytes of the elements of one chunk, without the padding between slots.
    pub fn chunk_bytes(&self) -> u64 {
        self.spec.chunk.iter().product::<u64>() * self.spec.item_bytes
    }

    /// Length in bytes of each shard file: the slots, then Zarr's index.
    pub fn shard_bytes(&self) -> u64 {
        self.index_offset() + self.ranks.len() as u64 * 16 + 4
    }

    /// First byte of the index in each shard file.
    pub fn index_offset(&self) -> u64 {
        self.slots * self.slot_bytes
    }

    /// The place of the chunk with these coordinates.
    pub fn locate(&self, chunk: &[u64]) -> Slot {
        let (mut shard, mut inner) = (0, 0);
        for ((at, shards), chunks) in chunk.iter().zip(&self.shard_counts).zip(&self.shard_chunks) {
            shard = shard * shards + at / chunks;
            inner = inner * chunks + at % chunks;
        }
        Slot { shard, offset: u64::from(self.ranks[inner as usize]) * self.slot_bytes }
    }

    /// For each slot of a shard file, the row-major number of its chunk in the shard; `None` for a gap.
    pub(crate) fn slots_of_shard(&self) -> Vec<Option<u32>> {
        let mut chunks = vec![None; self.slots as usize];
        for (number, &rank) in self.ranks.iter().enumerate() {
            chunks[rank as usize] = Some(number as u32);
        }
        chunks
    }

    /// Index of the first element of a chunk, given by its row-major number in a shard; `None` beyond the
    /// array.
    pub(crate) fn chunk_origin(&self, mut shard: u64, number: u32) -> Option<Vec<u64>> {
        let mut number = u64::from(number);
        let mut origin = vec![0; self.dims()];
        for dim in (0..self.dims()).rev() {
            let chunk =
                shard % self.shard_counts[dim] * self.shard_chunks[dim] + number % self.shard_chunks[dim];
            shard /= self.shard_counts[dim];
            number /= self.shard_chunks[dim];
            origin[dim] = chunk * self.spec.chunk[dim];
            if chunk >= self.counts[dim] {
                return None;
            }
        }
        Some(origin)
    }

    /// File name of a shard below the array's directory, as in Zarr's default chunk key encoding.
    pub fn shard_key(&self, mut shard: u64) -> String {
        let mut at = vec![0; self.dims()];
        for dim in (0..self.dims()).rev() {
            at[dim] = shard % self.shard_counts[dim];
            shard /= self.shard_counts[dim];
        }
        if self.is_transposed {
            at.reverse();
        }
        at.iter().fold(String::from("c"), |key, c| format!("{key}/{c}"))
    }

    /// Number of shard files.
    pub fn shards(&self) -> u64 {
        self.shard_counts.iter().product()
    }

    /// The index of a shard file: (offset, length) of each chunk as little-endian u64, in row-major order of
    /// chunks, followed by their CRC-32C (Zarr v3, sharding codec, section "Binary shard format").
    pub fn index(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.ranks.len() * 16 + 4);
        let extents: Vec<u64> = self.shard_chunks.iter().rev().copied().collect();
        for number in 0..self.ranks.len() as u64 {
            let own = if self.is_transposed { turned(number, &extents) } else { number };
            let rank = self.ranks[own as usize];
            bytes.extend((u64::from(rank) * self.slot_bytes).to_le_bytes());
            bytes.extend(self.chunk_bytes().to_le_bytes());
        }
        bytes.extend(crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// Refuses an index that differs from [`ChunkGrid::index`].
    pub fn check_index(&self, bytes: &[u8]) -> Result<()> {
        let fix = "restore the shard file from a copy, or create the array again";
        let (entries, sum) = bytes.split_at(bytes.len().saturating_sub(4));
        if crc32c(entries).to_le_bytes() != sum {
            return Err(Error::new(
                crate::ErrorKind::Corrupt,
                format!("the shard index fails its CRC-32C; {fix}"),
            ));
        }
        if bytes != self.index() {
            return Err(Error::new(
                crate::ErrorKind::Corrupt,
                format!("the shard index is whole but not of the layout that zarr.json describes; {fix}"),
            ));
        }
        Ok(())
    }
}

/// Puts each column of chunks at its place. Returns the number of slots of the file, gaps included.
fn place_columns(
    spec: &GridSpec,
    counts: &[u64],
    shard_counts: &[u64],
    places: &[u64],
    ranks: &mut [u32],
) -> Result<u64> {
    let mut sorted = places.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let fits = counts.len() == 2
        && spec.chunk_order == ChunkOrder::ColumnMajor
        && shard_counts.iter().all(|&n| n == 1)
        && sorted.len() as u64 == counts[1]
        && places.len() == sorted.len()
        && sorted
            .last()
            .is_some_and(|&last| last.saturating_add(1).saturating_mul(counts[0]) <= MAX_CHUNKS_PER_SHARD);
    if !fits {
        return Err(Error::invalid(format!(
            "places of columns need a matrix in column-major chunk order in one shard file, and a place of its own \
             for each of its {} columns of chunks",
            counts.last().unwrap_or(&0)
        )));
    }
    let columns = counts[1] as usize;
    for (number, rank) in ranks.iter_mut().enumerate() {
        *rank = (places[number % columns] * counts[0] + (number / columns) as u64) as u32;
    }
    Ok(sorted.last().map_or(0, |last| (last + 1) * counts[0]))
}

/// Converts the row-major number of an element to the number of the same element in the transpose.
fn turned(mut number: u64, extents: &[u64]) -> u64 {
    let mut found = 0;
    for extent in extents.iter().rev() {
        found = found * extent + number % extent;
        number /= extent;
    }
    found
}

fn product(values: &[u64]) -> Option<u64> {
    values.iter().try_fold(1_u64, |p, &v| p.checked_mul(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(shape: &[u64], chunk: &[u64]) -> GridSpec {
        GridSpec {
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
            item_bytes: 8,
            storage: StorageOrder::F,
            chunk_order: ChunkOrder::ColumnMajor,
            slot_align_bytes: 4096,
            column_places: None,
            growing: false,
        }
    }

    #[test]
    fn a_step_of_a_growing_array_lies_as_an_array_of_its_own_would() {
        for chunk_order in
            [ChunkOrder::RowMajor, ChunkOrder::ColumnMajor, ChunkOrder::Hilbert, ChunkOrder::ZOrder]
        {
            let alone =
                ChunkGrid::new(GridSpec { chunk_order: chunk_order.clone(), ..spec(&[300, 500], &[1, 1]) })
                    .unwrap();
            let growing = GridSpec { chunk_order, growing: true, ..spec(&[7, 300, 500], &[1, 1, 1]) };
            let grid = ChunkGrid::new(growing).unwrap();
            assert_eq!((grid.shards(), grid.shard_bytes()), (7 * alone.shards(), alone.shard_bytes()));
            assert_eq!(grid.index(), alone.index());
            for at in [[0, 0], [299, 499], [7, 218], [218, 7]] {
                let (one, all) = (alone.locate(&at), grid.locate(&[5, at[0], at[1]]));
                assert_eq!(one.offset, all.offset);
                assert_eq!(alone.shard_key(one.shard).replacen('c', "c/5", 1), grid.shard_key(all.shard));
            }
        }
    }

    #[test]
    fn a_growing_array_begins_with_nothing() {
        let growing =
            |shape: &[u64], chunk: &[u64]| ChunkGrid::new(GridSpec { growing: true, ..spec(shape, chunk) });
        assert_eq!(growing(&[0, 3], &[1, 2]).unwrap().shards(), 0);
        assert_eq!(growing(&[0], &[4]).unwrap().shards(), 0);
        assert_eq!(growing(&[9], &[4]).unwrap().shard_key(2), "c/2");
        assert!(growing(&[0, 0], &[1, 2]).is_err());
    }

    #[test]
    fn columns_of_chunks_can_be_placed_at_will() {
        let placed = |places: &[u64]| {
            ChunkGrid::new(GridSpec { column_places: Some(places.to_vec()), ..spec(&[4, 6], &[2, 2]) })
        };
        let grid = placed(&[3, 0, 1]).unwrap();
        assert_eq!(grid.locate(&[1, 0]), Slot { shard: 0, offset: 7 * 4096 });
        assert_eq!(grid.locate(&[0, 2]), Slot { shard: 0, offset: 2 * 4096 });
        assert_eq!(grid.index_offset(), 8 * 4096);
        grid.check_index(&grid.index()).unwrap();
        for bad in [&[0, 0, 1][..], &[0, 1], &[0, 1, u64::MAX]] {
            assert!(placed(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn column_major_panels_are_contiguous() {
        let grid = ChunkGrid::new(spec(&[5, 7], &[2, 3])).unwrap();
        assert_eq!(grid.counts(), [3, 3]);
        assert_eq!(grid.slot_bytes(), 4096);
        assert_eq!(grid.locate(&[2, 0]), Slot { shard: 0, offset: 2 * 4096 });
        assert_eq!(grid.locate(&[0, 1]), Slot { shard: 0, offset: 3 * 4096 });
        assert_eq!(grid.shard_bytes(), 9 * 4096 + 9 * 16 + 4);
        grid.check_index(&grid.index()).unwrap();
    }

    #[test]
    fn a_flipped_bit_in_the_index_is_corrupt() {
        let grid = ChunkGrid::new(spec(&[5, 7], &[2, 3])).unwrap();
        let mut index = grid.index();
        index[3] ^= 1;
        assert_eq!(grid.check_index(&index).unwrap_err().kind, crate::ErrorKind::Corrupt);
        assert_eq!(grid.check_index(&[]).unwrap_err().kind, crate::ErrorKind::Corrupt);
    }

    #[test]
    fn many_chunks_are_split_over_shards_along_the_slowest_dimension() {
        let grid = ChunkGrid::new(spec(&[300, 500], &[1, 1])).unwrap();
        assert_eq!(grid.shard_chunks(), [300, 218]);
        assert_eq!(grid.shard_counts(), [1, 3]);
        assert_eq!(grid.shard_key(2), "c/0/2");
        assert_eq!(grid.locate(&[1, 218]), Slot { shard: 1, offset: 4096 });
        let long = ChunkGrid::new(spec(&[200_000, 2], &[1, 1])).unwrap();
        assert_eq!(long.shard_chunks(), [65_536, 1]);
    }

    #[test]
    fn blocks_of_chunks_begin_at_multiples_of_their_size() {
        let blocks = |shape: &[u64], block: &[u64]| {
            let chunk_order = ChunkOrder::Blocks(block.to_vec());
            ChunkGrid::new(GridSpec { chunk_order, ..spec(shape, &vec![1; shape.len()]) })
        };
        let grid = blocks(&[3, 5], &[2, 2]).unwrap();
        assert_eq!(grid.block_bytes(), Some(4 * 4096));
        assert_eq!(grid.locate(&[1, 3]), Slot { shard: 0, offset: (4 + 3) * 4096 });
        assert_eq!(grid.locate(&[2, 4]), Slot { shard: 0, offset: 5 * 4 * 4096 });
        assert_eq!(grid.index_offset(), (5 * 4 + 1) * 4096, "the index follows the last chunk");
        grid.check_index(&grid.index()).unwrap();
        assert!(blocks(&[3, 5], &[4, 1]).is_err());
        assert!(blocks(&[300, 300], &[100, 300]).is_err(), "more chunks than a file has");
        assert_eq!(ChunkGrid::new(spec(&[5, 7], &[2, 3])).unwrap().block_bytes(), None);
    }

    #[test]
    fn a_transpose_has_each_chunk_where_it_is() {
        let blocks = ChunkOrder::Blocks(vec![2, 1]);
        let orders = [
            (ChunkOrder::RowMajor, [300, 500]),
            (ChunkOrder::ColumnMajor, [300, 500]),
            (ChunkOrder::Hilbert, [300, 500]),
            (blocks, [3, 4]),
        ];
        for (chunk_order, shape) in orders {
            for storage in [StorageOrder::C, StorageOrder::F] {
                let chunk_order = chunk_order.clone();
                let grid =
                    ChunkGrid::new(GridSpec { chunk_order, storage, ..spec(&shape, &[1, 1]) }).unwrap();
                let turned = grid.transposed();
                assert_eq!(turned.spec().shape, [shape[1], shape[0]]);
                assert_ne!(turned.spec().storage, storage);
                assert_eq!(turned.index(), grid.index());
                turned.check_index(&grid.index()).unwrap();
                for at in [[0, 0], [2, 3], [shape[0] - 1, 1], [1, shape[1] - 1]] {
                    let (one, other) = (grid.locate(&at), turned.locate(&[at[1], at[0]]));
                    assert_eq!(one.offset, other.offset);
                    assert_eq!(grid.shard_key(one.shard), turned.shard_key(other.shard));
                }
                let again = turned.transposed();
                assert_eq!((again.spec(), again.ranks.clone()), (grid.spec(), grid.ranks.clone()));
                assert_eq!(again.index(), grid.index());
            }
        }
    }

    #[test]
    fn bad_shapes_are_refused() {
        for (shape, chunk) in
            [(&[][..], &[][..]), (&[4], &[0]), (&[0], &[1]), (&[4], &[1, 1]), (&[1 << 40], &[1 << 24])]
        {
            assert_eq!(ChunkGrid::new(spec(shape, chunk)).unwrap_err().kind, crate::ErrorKind::Invalid);
        }
        assert!(ChunkGrid::new(spec(&[u64::MAX, 4], &[1, 1])).is_err());
    }
}
