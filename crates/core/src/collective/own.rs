//! The bytes of a file that one process gives or takes, as nested strides that the process itself tells.

use crate::{Error, Level, Nested, Regions, Result, Share, Tile, TileLevel};

/// Nested strides of all processes, at most: a server keeps them until the collective ends.
const MOST_PARTS: usize = 1 << 19;

/// The bytes of one process in ascending order, each at most once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnBytes {
    regions: Regions,
    /// For each nested stride, the place of its first byte among the bytes of the process.
    places: Vec<u64>,
}

/// Nested strides from one level on.
#[derive(Clone, Copy)]
struct Rest<'a> {
    levels: &'a [Level],
    run_bytes: u64,
}

impl Rest<'_> {
    fn of(part: &Nested) -> Rest<'_> {
        Rest { levels: &part.levels, run_bytes: part.run_bytes }
    }

    /// Bytes from the first to the last one.
    fn extent(self) -> u64 {
        let reach = |level: &Level| (level.count - 1) * level.step_bytes;
        self.levels.iter().map(reach).sum::<u64>() + self.run_bytes
    }

    fn bytes(self) -> u64 {
        self.levels.iter().map(|level| level.count).product::<u64>() * self.run_bytes
    }

    /// The first level, and the strides that it repeats.
    fn split(self) -> Option<(Level, Self)> {
        let (level, levels) = self.levels.split_first()?;
        Some((*level, Self { levels, ..self }))
    }

    /// Whether the bytes ascend.
    fn ascends(self) -> bool {
        self.split().is_none_or(|(level, rest)| {
            (level.count == 1 || rest.extent() <= level.step_bytes) && rest.ascends()
        })
    }

    /// The first byte from `offset` on, where the first of all is `first`.
    fn after(self, first: u64, offset: u64) -> Option<u64> {
        if offset <= first {
            return Some(first);
        }
        let Some((level, rest)) = self.split() else {
            return (offset < first + self.run_bytes).then_some(offset);
        };
        let number = if level.count == 1 { 0 } else { (offset - first) / level.step_bytes };
        let start = |number| (number < level.count).then(|| first + number * level.step_bytes);
        start(number).and_then(|at| rest.after(at, offset)).or_else(|| start(number + 1))
    }

    /// Visits the bytes in `low..high`, as nested strides again: the first byte, its place, the number of repetitions of
    /// the first level, and the strides that the level repeats. The bytes begin at `first`, whose place is `place`.
    fn cut(
        self,
        (first, place): (u64, u64),
        (low, high): (u64, u64),
        visit: &mut impl FnMut(u64, u64, Option<Level>, Self),
    ) {
        let Some((level, rest)) = self.split() else {
            let (start, end) = (first.max(low), (first + self.run_bytes).min(high));
            if start < end {
                visit(start, place + (start - first), None, Self { run_bytes: end - start, ..self });
            }
            return;
        };
        // With one repetition, any step will do.
        let step = if level.count == 1 { rest.extent() } else { level.step_bytes };
        let (extent, bytes) = (rest.extent(), rest.bytes());
        // The repetitions with bytes in the range, and those that lie in it as a whole.
        let from = if low < first + extent { 0 } else { (low - first - extent) / step + 1 };
        let to = high.saturating_sub(first).div_ceil(step).min(level.count);
        if from >= to {
            return;
        }
        let whole_from = low.saturating_sub(first).div_ceil(step).clamp(from, to);
        let whole_to = if high < first + extent { 0 } else { (high - first - extent) / step + 1 };
        let whole_to = whole_to.clamp(whole_from, to);
        let at = |number: u64| (first + number * step, place + number * bytes);
        for number in from..whole_from {
            rest.cut(at(number), (low, high), visit);
        }
        if whole_from < whole_to {
            let (start, place) = at(whole_from);
            visit(start, place, Some(Level { count: whole_to - whole_from, step_bytes: step }), rest);
        }
        for number in whole_to..to {
            rest.cut(at(number), (low, high), visit);
        }
    }
}

impl OwnBytes {
    /// Refuses bytes that do not ascend, or that lie behind byte `end`.
    pub(super) fn new(regions: &Regions, end: u64) -> Result<Self> {
        if regions.end() > end {
            return Err(Error::invalid(format!(
                "need regions before byte {end} in this collective, have byte {}; pass the end of the regions of all processes",
                regions.end()
            )));
        }
        if !regions.ascend() {
            return Err(Error::invalid(
                "need regions whose bytes ascend in a collective, have others; sort them by their offsets",
            ));
        }
        let mut at = 0;
        let places = regions.parts().iter().map(|part| {
            let place = at;
            at += Rest::of(part).bytes();
            place
        });
        Ok(Self { places: places.collect(), regions: regions.clone() })
    }

    /// Refuses too many nested strides of all processes.
    pub(super) fn check_count(all: &[Option<Self>]) -> Result<()> {
        let parts: usize = all.iter().flatten().map(|own| own.places.len()).sum();
        if parts <= MOST_PARTS {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "need at most {MOST_PARTS} runs or nested strides of all processes in a collective, have {parts} or more; make \
             several calls"
        )))
    }

    /// Number of the first nested stride that may have a byte from `offset` on.
    fn part_at(&self, offset: u64) -> usize {
        self.regions.parts().partition_point(|part| part.offset <= offset).saturating_sub(1)
    }

    /// The first byte from `offset` on.
    pub(super) fn after(&self, offset: u64) -> Option<u64> {
        let parts = self.regions.parts().iter().skip(self.part_at(offset)).take(2);
        parts.filter_map(|part| Rest::of(part).after(part.offset, offset)).next()
    }

    /// Adds the bytes in `low..high` to a share. Byte `low` is byte `at` of the piece.
    pub(super) fn add_to(&self, share: &mut Share, (low, high): (u64, u64), at: u64) {
        let first = self.part_at(low);
        for (part, &place) in self.regions.parts().iter().zip(&self.places).skip(first) {
            if part.offset >= high {
                break;
            }
            Rest::of(part).cut((part.offset, place), (low, high), &mut |start, place, outer, rest| {
                let tile = tile_of(at + (start - low), place, outer, rest);
                share.bytes += tile.items();
                share.tiles.push(tile);
            });
        }
    }
}

/// Nested strides of bytes; in memory, the bytes are contiguous.
fn tile_of(at: u64, place: u64, outer: Option<Level>, rest: Rest<'_>) -> Tile {
    let run = Level { count: rest.run_bytes, step_bytes: 1 };
    let mut levels = Vec::with_capacity(rest.levels.len() + 2);
    let mut local_step = 1;
    for level in [&run].into_iter().chain(rest.levels.iter().rev()).chain(&outer) {
        if level.count > 1 {
            levels.push(TileLevel { count: level.count, piece_step: level.step_bytes, dim: 0, local_step });
        }
        local_step *= level.count;
    }
    levels.reverse();
    Tile { part: 0, local: vec![place], at, levels }
}

impl Regions {
    /// Whether the bytes are in ascending order, each at most once.
    pub fn ascend(&self) -> bool {
        let end = |part: &Nested| part.offset + Rest::of(part).extent();
        self.parts().iter().all(|part| Rest::of(part).ascends())
            && self.parts().is_sorted_by(|part, next| end(part) <= next.offset)
    }
}
