//! The order of chunks in a shard file.

use crate::{Error, Result};

/// The order of chunks on disk. Zarr allows any, because a shard's index contains each chunk's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChunkOrder {
    /// Last coordinate fastest.
    RowMajor,
    /// First coordinate fastest.
    ColumnMajor,
    /// Along the Hilbert curve (Skilling 2004) on the next power of two, skipping places outside.
    Hilbert,
    /// Morton order: coordinate bits interleaved.
    ZOrder,
    /// Blocks of chunks in row-major order. The field is the shape of a block in chunks; blocks at the
    /// array's edges have fewer. Each block has a run of places, as many as a whole block has chunks. Its
    /// chunks take the first ones, in row-major order.
    Blocks(Vec<u64>),
}

impl ChunkOrder {
    /// The name in array metadata.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RowMajor => "row-major",
            Self::ColumnMajor => "column-major",
            Self::Hilbert => "hilbert",
            Self::ZOrder => "z-order",
            Self::Blocks(_) => "blocks",
        }
    }

    /// The order of the same chunks in the transpose. Curves and blocks keep their name: a transposed grid
    /// contains the place of each chunk.
    pub(crate) fn transposed(&self) -> Self {
        match self {
            Self::RowMajor => Self::ColumnMajor,
            Self::ColumnMajor => Self::RowMajor,
            Self::Blocks(chunks) => Self::Blocks(chunks.iter().rev().copied().collect()),
            Self::Hilbert | Self::ZOrder => self.clone(),
        }
    }

    /// Chunks per block along each dimension, for `Blocks`.
    pub fn block_chunks(&self) -> Option<&[u64]> {
        match self {
            Self::Blocks(chunks) => Some(chunks),
            _ => None,
        }
    }

    /// Parses the name in array metadata, and the shape of a block, which only `blocks` has.
    pub fn from_name(name: &str, block_chunks: Option<Vec<u64>>) -> Result<Self> {
        match (name, block_chunks) {
            ("row-major", None) => Ok(Self::RowMajor),
            ("column-major", None) => Ok(Self::ColumnMajor),
            ("hilbert", None) => Ok(Self::Hilbert),
            ("z-order", None) => Ok(Self::ZOrder),
            ("blocks", Some(chunks)) => Ok(Self::Blocks(chunks)),
            ("blocks", None) => Err(Error::invalid(
                "need the chunks of a block for the chunk order blocks, have none; a disk schema sets them",
            )),
            (name, None) => Err(Error::invalid(format!(
                "chunk order {name:?} is not known; use row-major, column-major, hilbert or z-order"
            ))),
            (name, Some(_)) => Err(Error::invalid(format!(
                "chunk order {name:?} takes no chunks of a block; leave them out"
            ))),
        }
    }

    /// Refuses blocks that do not fit a grid of `counts` chunks.
    pub(crate) fn check(&self, counts: &[u64]) -> Result<()> {
        match self {
            Self::Blocks(block)
                if block.len() != counts.len()
                    || block.iter().zip(counts).any(|(&b, &n)| b == 0 || b > n) =>
            {
                Err(Error::invalid(format!(
                    "need blocks of at least 1 chunk and at most those of the array, {counts:?}, along each dimension, \
                     have {block:?}"
                )))
            }
            _ => Ok(()),
        }
    }

    /// `ranks[c]` is the place on disk of the chunk whose row-major number is `c`, for a grid of `counts`
    /// chunks. Only blocks leave places empty.
    pub(crate) fn ranks(&self, counts: &[u64]) -> Vec<u32> {
        let total: u64 = counts.iter().product();
        let coordinates = |mut number: u64| {
            let mut at = vec![0; counts.len()];
            for dim in (0..counts.len()).rev() {
                at[dim] = number % counts[dim];
                number /= counts[dim];
            }
            at
        };
        let bits = counts.iter().map(|&n| 64 - (n.max(1) - 1).leading_zeros()).max().unwrap_or(0).max(1);
        let key: &dyn Fn(u64) -> u128 = match self {
            Self::Blocks(block) => return block_ranks(counts, block),
            Self::RowMajor => &|number| u128::from(number),
            Self::ColumnMajor => &|number| {
                let at = coordinates(number);
                at.iter().zip(counts).rev().fold(0, |k, (&c, &n)| k * u128::from(n) + u128::from(c))
            },
            Self::ZOrder => &|number| interleave(&coordinates(number), bits),
            Self::Hilbert => &|number| interleave(&hilbert_transpose(coordinates(number), bits), bits),
        };
        let mut numbers: Vec<u64> = (0..total).collect();
        numbers.sort_by_cached_key(|&number| key(number));
        let mut ranks = vec![0; total as usize];
        for (rank, &number) in numbers.iter().enumerate() {
            ranks[number as usize] = rank as u32;
        }
        ranks
    }
}

/// Places of chunks in blocks. They fit 32 bits: a grid has at most 65,536 chunks, and blocks are no larger
/// than the grid. So each dimension with several chunks has fewer than twice as many places as chunks.
fn block_ranks(counts: &[u64], block: &[u64]) -> Vec<u32> {
    let block_chunks: u64 = block.iter().product();
    let total: u64 = counts.iter().product();
    let rank = |mut number: u64| {
        let (mut block_number, mut inner) = (0, 0);
        let (mut blocks_after, mut chunks_after) = (1, 1);
        for dim in (0..counts.len()).rev() {
            let (size, at) = (block[dim], number % counts[dim]);
            number /= counts[dim];
            block_number += at / size * blocks_after;
            inner += at % size * chunks_after;
            blocks_after *= counts[dim].div_ceil(size);
            chunks_after *= size.min(counts[dim] - at / size * size);
        }
        (block_number * block_chunks + inner) as u32
    };
    (0..total).map(rank).collect()
}

fn interleave(at: &[u64], bits: u32) -> u128 {
    let mut key = 0;
    for bit in (0..bits).rev() {
        for &c in at {
            key = key << 1 | u128::from(c >> bit & 1);
        }
    }
    key
}

/// Converts coordinates to the "transpose" form of the Hilbert index (J. Skilling, AIP Conf. Proc. 707,
/// 2004).
fn hilbert_transpose(mut x: Vec<u64>, bits: u32) -> Vec<u64> {
    let n = x.len();
    let mut q = 1_u64 << (bits - 1);
    while q > 1 {
        let low = q - 1;
        for i in 0..n {
            if x[i] & q != 0 {
                x[0] ^= low;
            } else {
                let t = (x[0] ^ x[i]) & low;
                x[0] ^= t;
                x[i] ^= t;
            }
        }
        q >>= 1;
    }
    for i in 1..n {
        x[i] ^= x[i - 1];
    }
    let mut t = 0;
    q = 1 << (bits - 1);
    while q > 1 {
        if x[n - 1] & q != 0 {
            t ^= q - 1;
        }
        q >>= 1;
    }
    for c in &mut x {
        *c ^= t;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A grid of chunks, and blocks no larger than it.
    fn blocks() -> impl Strategy<Value = (Vec<u64>, Vec<u64>)> {
        let extent = (1_u64..7).prop_flat_map(|count| (Just(count), 1..=count));
        prop::collection::vec(extent, 1..5).prop_map(|dims| dims.into_iter().unzip())
    }

    /// All coordinates, in row-major order.
    fn walk(counts: &[u64]) -> Vec<Vec<u64>> {
        counts.iter().fold(vec![vec![]], |all, &count| {
            all.iter().flat_map(|at| (0..count).map(move |i| [&at[..], &[i]].concat())).collect()
        })
    }

    proptest! {
        #[test]
        fn blocks_follow_each_other_in_runs_of_one_length((counts, block) in blocks()) {
            let ranks = ChunkOrder::Blocks(block.clone()).ranks(&counts);
            let numbers: std::collections::HashMap<Vec<u64>, usize> =
                walk(&counts).into_iter().enumerate().map(|(number, at)| (at, number)).collect();
            let grid: Vec<u64> = counts.iter().zip(&block).map(|(&n, &b)| n.div_ceil(b)).collect();
            let run: u64 = block.iter().product();
            let mut seen = 0;
            for (number, corner) in walk(&grid).into_iter().enumerate() {
                // Each block's chunks, in row-major order, take the first places of its run.
                let inside = walk(&block).into_iter().filter_map(|offset| {
                    let at: Vec<u64> = (0..counts.len()).map(|d| corner[d] * block[d] + offset[d]).collect();
                    numbers.get(&at)
                });
                for (place, &chunk) in inside.enumerate() {
                    prop_assert_eq!(u64::from(ranks[chunk]), number as u64 * run + place as u64);
                    seen += 1;
                }
            }
            prop_assert_eq!(seen, ranks.len(), "every chunk is in one block");
        }

        #[test]
        fn even_blocks_are_a_permutation(dims in prop::collection::vec((1_u64..4, 1_u64..4), 1..5)) {
            let counts: Vec<u64> = dims.iter().map(|(blocks, chunks)| blocks * chunks).collect();
            let block = dims.iter().map(|&(_, chunks)| chunks).collect();
            let mut ranks = ChunkOrder::Blocks(block).ranks(&counts);
            ranks.sort_unstable();
            prop_assert!(ranks.into_iter().eq(0..counts.iter().product::<u64>() as u32));
        }
    }

    #[test]
    fn blocks_of_whole_rows_are_row_major() {
        let counts = [4, 3, 2];
        assert_eq!(ChunkOrder::Blocks(vec![2, 3, 2]).ranks(&counts), ChunkOrder::RowMajor.ranks(&counts));
        assert_eq!(ChunkOrder::Blocks(vec![2, 1]).ranks(&[3, 2]), [0, 2, 1, 3, 4, 6]);
    }

    #[test]
    fn blocks_that_do_not_fit_are_refused() {
        for block in [&[1][..], &[0, 1], &[3, 1], &[1, 4], &[1, u64::MAX]] {
            assert!(ChunkOrder::Blocks(block.to_vec()).check(&[2, 3]).is_err(), "{block:?}");
        }
        ChunkOrder::Blocks(vec![2, 3]).check(&[2, 3]).unwrap();
        for (name, block) in [("blocks", None), ("hilbert", Some(vec![1])), ("rows", None)] {
            assert!(ChunkOrder::from_name(name, block).is_err(), "{name}");
        }
    }

    #[test]
    fn column_major_counts_down_the_first_coordinate() {
        assert_eq!(ChunkOrder::ColumnMajor.ranks(&[2, 3]), [0, 2, 4, 1, 3, 5]);
        assert_eq!(ChunkOrder::RowMajor.ranks(&[2, 3]), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn morton_order_of_a_square() {
        assert_eq!(ChunkOrder::ZOrder.ranks(&[2, 2]), [0, 1, 2, 3]);
        assert_eq!(ChunkOrder::ZOrder.ranks(&[4, 4])[..8], [0, 1, 4, 5, 2, 3, 6, 7]);
    }

    #[test]
    fn hilbert_steps_to_a_neighbour_each_time() {
        for counts in [vec![8, 8], vec![4, 4, 4], vec![16, 16]] {
            let ranks = ChunkOrder::Hilbert.ranks(&counts);
            let mut path = vec![0; ranks.len()];
            for (number, &rank) in ranks.iter().enumerate() {
                path[rank as usize] = number as u64;
            }
            let split = |mut number: u64| -> Vec<i64> {
                counts
                    .iter()
                    .rev()
                    .map(|&n| {
                        let c = number % n;
                        number /= n;
                        c as i64
                    })
                    .collect()
            };
            for pair in path.windows(2) {
                let distance: i64 =
                    split(pair[0]).iter().zip(split(pair[1])).map(|(a, b)| (a - b).abs()).sum();
                assert_eq!(distance, 1);
            }
        }
    }

    #[test]
    fn every_order_is_a_permutation() {
        for order in [ChunkOrder::RowMajor, ChunkOrder::ColumnMajor, ChunkOrder::Hilbert, ChunkOrder::ZOrder]
        {
            let mut ranks = order.ranks(&[3, 1, 5]);
            ranks.sort_unstable();
            assert!(ranks.into_iter().eq(0..15), "{order:?}");
        }
    }
}
