//! The order of chunks in a shard file.

use crate::{Error, Result};

/// Chunk order: which chunk comes first on disk. Free in Zarr, because a shard's index names each chunk's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOrder {
    /// Last coordinate fastest.
    RowMajor,
    /// First coordinate fastest.
    ColumnMajor,
    /// Along the Hilbert curve (Skilling 2004), on the next power of two, skipping what is outside.
    Hilbert,
    /// Morton order: coordinate bits interleaved.
    ZOrder,
}

impl ChunkOrder {
    /// The name in array metadata.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RowMajor => "row-major",
            Self::ColumnMajor => "column-major",
            Self::Hilbert => "hilbert",
            Self::ZOrder => "z-order",
        }
    }

    /// From the name in array metadata.
    pub fn from_name(name: &str) -> Result<Self> {
        [Self::RowMajor, Self::ColumnMajor, Self::Hilbert, Self::ZOrder]
            .into_iter()
            .find(|order| order.name() == name)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "chunk order {name:?} is not known; use row-major, column-major, hilbert or z-order"
                ))
            })
    }

    /// `ranks[c]` is the place on disk of the chunk whose row-major number is `c`, for a grid of `counts` chunks.
    pub(crate) fn ranks(self, counts: &[u64]) -> Vec<u32> {
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
        let key = |number: u64| -> u128 {
            let at = coordinates(number);
            match self {
                Self::RowMajor => u128::from(number),
                Self::ColumnMajor => {
                    at.iter().zip(counts).rev().fold(0, |k, (&c, &n)| k * u128::from(n) + u128::from(c))
                }
                Self::ZOrder => interleave(&at, bits),
                Self::Hilbert => interleave(&hilbert_transpose(at, bits), bits),
            }
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

fn interleave(at: &[u64], bits: u32) -> u128 {
    let mut key = 0;
    for bit in (0..bits).rev() {
        for &c in at {
            key = key << 1 | u128::from(c >> bit & 1);
        }
    }
    key
}

/// Coordinates to the "transpose" form of the Hilbert index (J. Skilling, AIP Conf. Proc. 707, 2004).
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
