//! The owned buffer of a request: runs of bytes of one or more blocks.

use std::sync::Arc;

use outcore_core::{Buffer, Crc32c, Error, Gather, PackedLevel, Packing, Result};

use crate::{Arena, Block, Level, copy_strided};

/// A run of bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First byte in the block.
    pub offset: usize,
    /// Number of bytes.
    pub bytes: usize,
}

/// A run of one of the blocks, and its position among the bytes of all runs.
#[derive(Clone, Copy, Debug)]
struct Placed {
    at: usize,
    block: usize,
    segment: Segment,
}

/// The blocks of the runs.
#[derive(Clone)]
enum Blocks {
    None,
    One(Arc<Block>),
    Several(Arc<[Arc<Block>]>),
}

impl Blocks {
    fn get(&self, number: usize) -> Option<&Block> {
        match self {
            Self::None => None,
            Self::One(block) => (number == 0).then_some(block),
            Self::Several(blocks) => blocks.get(number).map(|block| &**block),
        }
    }

    fn all(&self) -> &[Arc<Block>] {
        match self {
            Self::None => &[],
            Self::One(block) => std::slice::from_ref(block),
            Self::Several(blocks) => blocks,
        }
    }
}

/// Runs of bytes of blocks, in the order in which a request fills or drains them. Views share the list of
/// runs, which may be long: creating a view costs nothing, and finding a byte takes a bisection.
#[derive(Clone)]
pub struct Region {
    blocks: Blocks,
    /// The runs, without empty ones.
    runs: Arc<[Placed]>,
    /// Distance from the start of the first run to the start of this view.
    from: usize,
    bytes: usize,
}

impl Region {
    /// A region without bytes, for requests that move none.
    pub fn empty() -> Self {
        Self { blocks: Blocks::None, runs: Arc::default(), from: 0, bytes: 0 }
    }

    /// Runs of `block`; each must lie inside it.
    pub fn new(block: Arc<Block>, segments: Vec<Segment>) -> Result<Self> {
        for segment in &segments {
            if segment.offset.checked_add(segment.bytes).is_none_or(|end| end > block.len()) {
                return Err(Error::invalid(format!("{segment:?} leaves its block of {} bytes", block.len())));
            }
        }
        Ok(Self::of(Blocks::One(block), segments.into_iter().map(|segment| (0, segment))))
    }

    /// All of `block`.
    pub fn whole(block: Arc<Block>) -> Self {
        let segment = Segment { offset: 0, bytes: block.len() };
        Self::of(Blocks::One(block), [(0, segment)])
    }

    /// The bytes of several regions, in order.
    pub fn joined(parts: Vec<Self>) -> Self {
        if parts.len() < 2 {
            return parts.into_iter().next().unwrap_or_else(Self::empty);
        }
        let mut blocks: Vec<Arc<Block>> = Vec::with_capacity(parts.len());
        let mut runs = Vec::with_capacity(parts.len());
        for part in &parts {
            let first = blocks.len();
            blocks.extend_from_slice(part.blocks.all());
            runs.extend(part.segments(0, part.bytes).map(|(block, segment)| (first + block, segment)));
        }
        Self::of(Blocks::Several(blocks.into()), runs)
    }

    /// Runs with the numbers of their blocks.
    fn of(blocks: Blocks, segments: impl IntoIterator<Item = (usize, Segment)>) -> Self {
        let mut bytes = 0;
        let segments = segments.into_iter().filter(|(_, segment)| segment.bytes > 0);
        let placed = segments.map(|(block, segment)| {
            let at = bytes;
            bytes += segment.bytes;
            Placed { at, block, segment }
        });
        let runs = placed.collect();
        Self { blocks, runs, from: 0, bytes }
    }

    /// The runs of this view's bytes `at..at + bytes`, with the numbers of their blocks.
    fn segments(&self, at: usize, bytes: usize) -> impl Iterator<Item = (usize, Segment)> + '_ {
        let (start, end) = (self.from + at, self.from + at + bytes);
        let first = self.runs.partition_point(|run| run.at + run.segment.bytes <= start);
        self.runs[first..].iter().take_while(move |run| run.at < end).map(move |run| {
            let skipped = start.saturating_sub(run.at);
            let bytes = run.segment.bytes.min(end - run.at) - skipped;
            (run.block, Segment { offset: run.segment.offset + skipped, bytes })
        })
    }

    /// The view of `bytes` bytes from byte `from`; both are clipped to the region.
    pub fn part(&self, from: usize, bytes: usize) -> Self {
        let mut part = self.clone();
        part.advance(from.min(self.bytes));
        part.truncate(bytes.min(part.bytes));
        part
    }

    /// The block and the start of this view, if it is one run.
    pub fn in_one_run(&self) -> Option<(&Block, i64)> {
        let mut segments = self.segments(0, self.bytes);
        let ((number, first), second) = (segments.next()?, segments.next());
        let start = first.offset as i64;
        self.blocks.get(number).filter(|_| second.is_none()).map(|block| (block, start))
    }

    /// The runs as pointers and lengths, for system calls. Valid while the region lives.
    pub fn pointers(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        self.pointers_to(0, self.bytes)
    }

    fn pointers_to(&self, at: usize, bytes: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        let start = |number| self.blocks.get(number).map_or(std::ptr::null_mut(), Block::as_ptr);
        // `new` checked that every segment lies in its block.
        self.segments(at, bytes)
            .map(move |(block, segment)| (start(block).wrapping_add(segment.offset), segment.bytes))
    }

    fn for_overlap(&self, at: usize, bytes: usize, mut visit: impl FnMut(*mut u8, usize, usize)) {
        let end = at.saturating_add(bytes);
        assert!(end <= self.bytes, "bytes {at}..{end} of a region of {} bytes", self.bytes);
        let mut done = 0;
        for (pointer, length) in self.pointers_to(at, bytes) {
            visit(pointer, done, length);
            done += length;
        }
    }
}

impl Buffer for Region {
    fn len(&self) -> usize {
        self.bytes
    }

    fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "advance by {bytes} in a region of {} bytes", self.bytes);
        self.from += bytes;
        self.bytes -= bytes;
    }

    fn truncate(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes, "truncate a region of {} bytes to {bytes}", self.bytes);
        self.bytes = bytes;
    }

    fn copy_in(&mut self, at: usize, from: &[u8]) {
        self.for_overlap(at, from.len(), |pointer, source, bytes| {
            // SAFETY: `new` checked that the segment lies in its block, which this region keeps alive; `from`
            // is a borrowed slice, which a block's memory cannot be.
            unsafe { std::ptr::copy_nonoverlapping(from[source..].as_ptr(), pointer, bytes) };
        });
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        self.for_overlap(at, to.len(), |pointer, target, bytes| {
            // SAFETY: as in `copy_in`.
            unsafe { std::ptr::copy_nonoverlapping(pointer, to[target..].as_mut_ptr(), bytes) };
        });
    }

    fn copy_packed(&mut self, at: usize, packing: &Packing, packed: &mut Self, from: usize, out: bool) {
        if packing.bytes() == 0 {
            return;
        }
        let (low, high) = packing.levels.iter().fold((0, packing.run_bytes as i64), |(low, high), level| {
            let reach = level.step * (level.count as i64 - 1);
            (low + reach.min(0), high + reach.max(0))
        });
        assert!(
            low + at as i64 >= 0 && high + at as i64 <= self.bytes as i64,
            "{packing:?} from {at} on of {}",
            self.bytes
        );
        let bytes = packing.bytes() as usize;
        assert!(from + bytes <= packed.bytes, "{bytes} bytes from {from} on of {}", packed.bytes);
        let places = (self.in_one_run(), packed.in_one_run());
        let (Some((here, start)), Some((there, first))) = places else {
            return packing.copy_by_runs(self, at, packed, from, out);
        };
        let (strided, packed) = ((here, start + at as i64), (there, first + from as i64));
        let (source, target) = if out { (strided, packed) } else { (packed, strided) };
        let level = |level: &PackedLevel| {
            let (strided, packed) = (level.step, level.packed as i64);
            let (from, to) = if out { (strided, packed) } else { (packed, strided) };
            Level { count: level.count, from, to }
        };
        let levels: Vec<Level> = packing.levels.iter().map(level).collect();
        let copied = copy_strided(source, target, packing.run_bytes as usize, &levels);
        assert!(copied.is_ok(), "runs of regions lie in their blocks");
    }

    fn crc32c(&self, at: usize, bytes: usize) -> u32 {
        let mut sum = Crc32c::default();
        self.for_overlap(at, bytes, |pointer, _, length| {
            // SAFETY: `new` checked that the segment lies in its block, which this region keeps alive; the
            // bytes of a request belong to the holder of its region until the completion, so nothing writes
            // them meanwhile.
            sum.update(unsafe { std::slice::from_raw_parts(pointer, length) });
        });
        sum.value()
    }
}

impl Gather for Region {
    fn allocate(bytes: usize) -> Result<Self> {
        Arena::new(usize::MAX).allocate(bytes).map(|block| Self::whole(Arc::new(block)))
    }

    fn gather(&self, runs: impl IntoIterator<Item = (usize, usize)>) -> Self {
        let mut found: Vec<(usize, Segment)> = Vec::new();
        let (mut number, mut least) = (0, 0);
        for (start, length) in runs {
            let end = start.checked_add(length).filter(|&end| start >= least && end <= self.bytes);
            let end =
                end.unwrap_or_else(|| panic!("a run of {length} bytes from {start} on of {}", self.bytes));
            least = start;
            let (mut at, end) = (self.from + start, self.from + end);
            while at < end {
                let run = self.runs[number];
                let run_end = run.at + run.segment.bytes;
                if run_end <= at {
                    number += 1;
                    continue;
                }
                let taken = run_end.min(end) - at;
                let offset = run.segment.offset + at - run.at;
                match found.last_mut() {
                    Some((block, last)) if *block == run.block && last.offset + last.bytes == offset => {
                        last.bytes += taken;
                    }
                    _ => found.push((run.block, Segment { offset, bytes: taken })),
                }
                at += taken;
            }
        }
        Self::of(self.blocks.clone(), found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        let block = Arc::new(Arena::new(4096).allocate(100).unwrap());
        Region::whole(block.clone()).copy_in(0, &(0..100).collect::<Vec<u8>>());
        Region::new(block, vec![Segment { offset: 10, bytes: 3 }, Segment { offset: 50, bytes: 4 }]).unwrap()
    }

    fn bytes(region: &Region) -> Vec<u8> {
        let mut out = vec![0; region.len()];
        region.copy_out(0, &mut out);
        out
    }

    #[test]
    fn segments_read_as_one() {
        assert_eq!(bytes(&region()), [10, 11, 12, 50, 51, 52, 53]);
    }

    #[test]
    fn parts_cross_segments() {
        assert_eq!(bytes(&region().part(2, 3)), [12, 50, 51]);
        assert_eq!(bytes(&region().part(0, 3)), [10, 11, 12]);
        assert_eq!(bytes(&region().part(3, 99)), [50, 51, 52, 53]);
    }

    #[test]
    fn runs_are_gathered_across_segments() {
        assert_eq!(bytes(&region().gather([(1, 4), (6, 1)])), [11, 12, 50, 51, 53]);
        assert_eq!(bytes(&region().gather([(0, 7)])), bytes(&region()));
        assert!(region().gather([]).is_empty());
        let joined = region().gather([(3, 2), (5, 2)]);
        assert_eq!(joined.pointers().count(), 1, "what is together is one run");
        assert_eq!(bytes(&joined), [50, 51, 52, 53]);
        assert_eq!(bytes(&region().part(2, 4).gather([(0, 2), (3, 1)])), [12, 50, 52]);
    }

    #[test]
    fn regions_of_several_blocks_are_one() {
        let mut joined = Region::joined(vec![region().part(1, 4), Region::empty(), region(), region()]);
        let mut expected = vec![11, 12, 50, 51];
        expected.extend([10, 11, 12, 50, 51, 52, 53].repeat(2));
        assert_eq!(bytes(&joined), expected);
        assert_eq!(bytes(&joined.part(2, 12).part(1, 8)), expected[3..11]);
        assert_eq!(bytes(&joined.gather([(3, 2), (9, 6)])), [51, 10, 52, 53, 10, 11, 12, 50]);
        assert_eq!(joined.crc32c(2, 10), outcore_core::crc32c(&expected[2..12]));
        joined.copy_in(3, &[1, 2, 3]);
        expected[3..6].copy_from_slice(&[1, 2, 3]);
        assert_eq!(bytes(&joined), expected);
        let twice = Region::joined(vec![joined.part(10, 2), joined]);
        assert_eq!(bytes(&twice), [&expected[10..12], &expected].concat());
    }

    #[test]
    fn runs_of_two_blocks_are_not_joined() {
        // The second run begins at the offset at which the first one ends.
        let block = || Arc::new(Arena::new(4096).allocate(8).unwrap());
        let half = |offset| Region::new(block(), vec![Segment { offset, bytes: 4 }]).unwrap();
        let mut joined = Region::joined(vec![half(0), half(4)]);
        joined.copy_in(0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let gathered = joined.gather([(0, 8)]);
        assert_eq!(gathered.pointers().count(), 2);
        assert_eq!(bytes(&gathered), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn strided_bytes_are_packed_and_unpacked() {
        // Three of the even rows, of ten bytes each, with columns 2 to 4 in reverse; in one run, and in
        // several.
        let packing = Packing::new(1, [(3, 20), (3, -1)].into_iter());
        let block = Arc::new(Arena::new(4096).allocate(100).unwrap());
        let halves = vec![Segment { offset: 0, bytes: 50 }, Segment { offset: 50, bytes: 50 }];
        for mut rows in [Region::whole(block.clone()), Region::new(block.clone(), halves).unwrap()] {
            rows.copy_in(0, &(0..100).collect::<Vec<u8>>());
            let mut packed = Region::allocate(12).unwrap();
            packed.copy_in(0, &[255; 12]);
            rows.copy_packed(24, &packing, &mut packed, 2, true);
            assert_eq!(bytes(&packed), [255, 255, 24, 23, 22, 44, 43, 42, 64, 63, 62, 255]);
            packed.copy_in(0, &[0; 12]);
            rows.copy_packed(24, &packing, &mut packed, 2, false);
            let expected = (0..100_u8).map(|b| {
                if b / 10 % 2 == 0 && b > 9 && b < 70 && (2..5).contains(&(b % 10)) { 0 } else { b }
            });
            assert_eq!(bytes(&rows), expected.collect::<Vec<u8>>());
        }
    }

    #[test]
    #[should_panic(expected = "a run of 3 bytes from 5 on of 7")]
    fn runs_outside_are_refused() {
        region().gather([(5, 3)]);
    }

    #[test]
    fn views_share_a_long_list_of_runs() {
        let block = Arc::new(Arena::new(1 << 20).allocate(1 << 16).unwrap());
        let segments = (0..1 << 15).map(|run| Segment { offset: 2 * run, bytes: run % 2 }).collect();
        let region = Region::new(block, segments).unwrap();
        let view = region.part(100, 1000).part(5, 10);
        assert!(Arc::ptr_eq(&region.runs, &view.runs));
        assert_eq!(view.pointers().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [1; 10]);
        let offset_of = |start: *mut u8| start as usize - region.blocks.all()[0].as_ptr() as usize;
        let offsets: Vec<usize> = view.pointers().map(|(start, _)| offset_of(start)).collect();
        assert_eq!(offsets, (105..115).map(|run| 4 * run + 2).collect::<Vec<_>>());
    }

    #[test]
    fn sums_cross_segments() {
        let whole = bytes(&region());
        for at in 0..whole.len() {
            for end in at..=whole.len() {
                assert_eq!(region().crc32c(at, end - at), outcore_core::crc32c(&whole[at..end]));
            }
        }
    }

    #[test]
    fn advance_drops_the_front() {
        let mut region = region();
        region.advance(3);
        assert_eq!(bytes(&region), [50, 51, 52, 53]);
        region.advance(4);
        assert!(region.is_empty());
    }

    #[test]
    fn copy_in_lands_across_segments() {
        let mut region = region();
        region.copy_in(2, &[1, 2]);
        assert_eq!(bytes(&region), [10, 11, 1, 2, 51, 52, 53]);
    }

    #[test]
    fn segments_outside_the_block_are_refused() {
        let block = Arc::new(Arena::new(4096).allocate(100).unwrap());
        for (offset, bytes) in [(99, 2), (usize::MAX, 2)] {
            assert!(Region::new(block.clone(), vec![Segment { offset, bytes }]).is_err());
        }
    }
}
