//! Each process's share of a piece: its place in the piece, and in the memory of the process.

use crate::Packing;

/// Limit on runs beyond the allowed number, because adjacent runs may merge.
const MOST_PARTS: u64 = 64;

/// One process's share of a piece. Its bytes travel in the order of the tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of bytes.
    pub bytes: u64,
    /// The elements of the share.
    pub tiles: Vec<Tile>,
}

/// Elements in nested strides, both in a piece and in the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Number of the array among the process's arrays.
    pub part: usize,
    /// Index of the first element in that array.
    pub local: Vec<u64>,
    /// The first byte in the piece.
    pub at: u64,
    /// The levels, slowest first. The elements travel in this order.
    pub levels: Vec<TileLevel>,
}

/// One level of a [`Tile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLevel {
    /// Number of repetitions.
    pub count: u64,
    /// Distance between repetitions in the piece, in bytes.
    pub piece_step: u64,
    /// The dimension of the process's array along which the level steps.
    pub dim: usize,
    /// Distance between repetitions along that dimension, in elements.
    pub local_step: u64,
}

impl Tile {
    /// Number of elements.
    pub fn items(&self) -> u64 {
        self.levels.iter().map(|level| level.count).product()
    }

    /// Packing of the elements in the piece.
    pub fn in_piece(&self, item_bytes: u64) -> Packing {
        Packing::new(item_bytes, self.levels.iter().map(|level| (level.count, level.piece_step as i64)))
    }

    /// Packing of the elements in the process's array, whose dimensions have the given strides in bytes.
    pub fn in_memory(&self, item_bytes: u64, strides: &[i64]) -> Packing {
        let step =
            |level: &TileLevel| (level.count, (level.local_step as i64).wrapping_mul(strides[level.dim]));
        Packing::new(item_bytes, self.levels.iter().map(step))
    }
}

/// Contiguous bytes, in a piece or in the memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRun {
    /// The first byte.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Share {
    /// The share's runs in the piece, in the order in which they travel; `None` if they are shorter than
    /// `least_bytes` on average.
    pub fn runs_in_piece(&self, item_bytes: u64, least_bytes: u64) -> Option<Vec<ByteRun>> {
        self.runs(least_bytes, |tile| (tile.at as i64, tile.in_piece(item_bytes)))
    }

    /// The share's runs in memory. `array` returns the start of each array of the process, and its strides in
    /// bytes.
    pub fn runs_in_memory<'a>(
        &self,
        item_bytes: u64,
        least_bytes: u64,
        array: impl Fn(usize) -> (i64, &'a [i64]),
    ) -> Option<Vec<ByteRun>> {
        self.runs(least_bytes, |tile| {
            let (start, strides) = array(tile.part);
            let step =
                |at: i64, (&i, &stride): (&u64, &i64)| at.wrapping_add((i as i64).wrapping_mul(stride));
            let first = tile.local.iter().zip(strides).fold(start, step);
            (first, tile.in_memory(item_bytes, strides))
        })
    }

    fn runs(&self, least_bytes: u64, place: impl Fn(&Tile) -> (i64, Packing)) -> Option<Vec<ByteRun>> {
        let placed: Vec<(i64, Packing)> = self.tiles.iter().map(place).collect();
        // A piece that begins and ends inside rows has adjacent tiles. They form at most as many runs.
        let most = 1.max(self.bytes / least_bytes);
        let counts = placed.iter().map(|(_, packing)| packing.bytes() / packing.run_bytes);
        if counts.fold(0, u64::saturating_add) > most + MOST_PARTS {
            return None;
        }
        let mut runs: Vec<ByteRun> = Vec::new();
        for (start, packing) in &placed {
            packing.for_each_run(&mut |step, _| {
                let (start, bytes) = (start.wrapping_add(step) as u64, packing.run_bytes);
                match runs.last_mut() {
                    Some(last) if last.start.wrapping_add(last.bytes) == start => last.bytes += bytes,
                    _ => runs.push(ByteRun { start, bytes }),
                }
            });
        }
        (runs.len() as u64 <= most).then_some(runs)
    }
}
