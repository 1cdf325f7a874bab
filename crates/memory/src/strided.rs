//! Copies between two blocks along nested strides: gather and scatter.

use outcore_core::{Error, Result};

use crate::Block;

/// Side of the tiles in which the two innermost levels are walked. If one side is the transpose of the other,
/// tiles keep both sides in cache lines.
const TILE: u64 = 16;

/// One level of a nested copy: `count` repetitions, at a distance in bytes on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Repetitions.
    pub count: u64,
    /// Distance between repetitions on the source side, in bytes.
    pub from: i64,
    /// Distance between repetitions on the target side, in bytes.
    pub to: i64,
}

/// Copies runs of `run` bytes from `from` to `to`, starting at the given offsets and repeated along `levels`
/// (innermost first). Every byte must lie inside its block.
pub fn copy_strided(from: (&Block, i64), to: (&Block, i64), run: usize, levels: &[Level]) -> Result<()> {
    let inside = |block: &Block, start: i64, stride: fn(&Level) -> i64| {
        let (mut low, mut high) = (i128::from(start), i128::from(start) + run as i128);
        for level in levels {
            let reach = i128::from(stride(level)) * i128::from(level.count.max(1) - 1);
            if reach < 0 { low += reach } else { high += reach }
        }
        low >= 0 && high <= block.len() as i128
    };
    if !inside(from.0, from.1, |l| l.from) || !inside(to.0, to.1, |l| l.to) {
        return Err(Error::invalid(format!("a copy of {levels:?} runs of {run} bytes leaves its memory")));
    }
    if levels.iter().any(|level| level.count == 0) {
        return Ok(());
    }
    let source = from.0.as_ptr().wrapping_offset(from.1 as isize);
    let target = to.0.as_ptr().wrapping_offset(to.1 as isize);
    // SAFETY: `inside` checked the extremes of every level on both sides, so each run lies in its block.
    unsafe {
        match run {
            1 => walk::<1>(source, target, run, levels),
            2 => walk::<2>(source, target, run, levels),
            4 => walk::<4>(source, target, run, levels),
            8 => walk::<8>(source, target, run, levels),
            16 => walk::<16>(source, target, run, levels),
            _ => walk::<0>(source, target, run, levels),
        }
    }
    Ok(())
}

/// Copies along `levels`; `RUN` is the run's length if it is known at compile time, else 0.
///
/// # Safety
/// Every run that the levels reach must lie in valid memory on both sides.
unsafe fn walk<const RUN: usize>(source: *const u8, target: *mut u8, run: usize, levels: &[Level]) {
    match levels {
        // SAFETY: the caller's promise, for the single run.
        [] => unsafe { copy_run::<RUN>(source, target, run) },
        [inner] => {
            for i in 0..inner.count as i64 {
                // SAFETY: the caller's promise.
                unsafe {
                    let (s, t) =
                        (source.offset((i * inner.from) as isize), target.offset((i * inner.to) as isize));
                    copy_run::<RUN>(s, t, run);
                }
            }
        }
        [inner, outer] if is_transposed::<RUN>(inner, outer) => {
            // SAFETY: the caller's promise.
            unsafe { transpose::<RUN>(source, target, inner, outer) };
        }
        [inner, outer] => {
            let tile = if RUN == 0 { u64::MAX } else { TILE };
            let mut block = 0;
            while block < inner.count {
                let most = tile.min(inner.count - block);
                for j in 0..outer.count as i64 {
                    for i in block as i64..(block + most) as i64 {
                        // SAFETY: the caller's promise.
                        unsafe {
                            let s = source.offset((i * inner.from + j * outer.from) as isize);
                            let t = target.offset((i * inner.to + j * outer.to) as isize);
                            copy_run::<RUN>(s, t, run);
                        }
                    }
                }
                block += most;
            }
        }
        [rest @ .., outer] => {
            for i in 0..outer.count as i64 {
                // SAFETY: the caller's promise, for a part of the levels.
                unsafe {
                    let (s, t) =
                        (source.offset((i * outer.from) as isize), target.offset((i * outer.to) as isize));
                    walk::<RUN>(s, t, run, rest);
                }
            }
        }
    }
}

/// Whether elements are contiguous along one level in the source, and along the other in the target.
fn is_transposed<const RUN: usize>(inner: &Level, outer: &Level) -> bool {
    let run = RUN as i64;
    run > 0 && ((inner.from == run && outer.to == run) || (outer.from == run && inner.to == run))
}

/// Bytes of a line of the processor's caches.
const LINE: usize = 64;

/// Copies elements that are contiguous along one level in the source, and along the other in the target. Each step
/// reads and writes whole lines of the caches: with long strides, lines that are visited again are gone by then.
///
/// # Safety
/// As for [`walk`].
unsafe fn transpose<const RUN: usize>(source: *const u8, target: *mut u8, inner: &Level, outer: &Level) {
    let (across, down) = if inner.from == RUN as i64 { (inner, outer) } else { (outer, inner) };
    let edge = LINE / RUN;
    // A square of at most this many bytes, for elements of one byte.
    let mut square = [0_u8; LINE * LINE];
    for left in (0..across.count as usize).step_by(edge) {
        let width = edge.min(across.count as usize - left);
        for top in (0..down.count as usize).step_by(edge) {
            let height = edge.min(down.count as usize - top);
            for row in 0..height {
                let line =
                    source.wrapping_offset((top + row) as isize * down.from as isize + (left * RUN) as isize);
                for column in 0..width {
                    // SAFETY: the caller's promise; `row` and `column` are less than `edge`, the width of the square.
                    unsafe {
                        let place = square.as_mut_ptr().add((column * edge + row) * RUN);
                        std::ptr::copy_nonoverlapping(line.add(column * RUN), place, RUN);
                    }
                }
            }
            for column in 0..width {
                let line = target
                    .wrapping_offset((left + column) as isize * across.to as isize + (top * RUN) as isize);
                // SAFETY: the caller's promise.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        square.as_ptr().add(column * edge * RUN),
                        line,
                        height * RUN,
                    )
                };
            }
        }
    }
}

/// # Safety
/// `run` bytes (or `RUN`, unless 0) must be valid on both sides.
#[inline(always)]
unsafe fn copy_run<const RUN: usize>(source: *const u8, target: *mut u8, run: usize) {
    let bytes = if RUN == 0 { run } else { RUN };
    // SAFETY: the caller's promise; `copy` allows overlap, in case a user passes one array for both sides.
    unsafe { std::ptr::copy(source, target, bytes) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arena, Region};
    use outcore_core::Buffer;
    use std::sync::Arc;

    fn block(bytes: &[u8]) -> Arc<Block> {
        let block = Arc::new(Arena::new(1 << 20).allocate(bytes.len()).unwrap());
        Region::whole(block.clone()).copy_in(0, bytes);
        block
    }

    #[test]
    fn transposes_with_tiles_and_rests() {
        for (rows, columns, run) in [(37_u64, 21_u64, 4_usize), (16, 16, 8), (3, 50, 16), (5, 7, 3)] {
            let bytes: Vec<u8> = (0..rows * columns * run as u64).map(|i| (i * 31 + i / 251) as u8).collect();
            let (from, to) = (block(&bytes), block(&vec![0; bytes.len()]));
            let levels = [
                Level { count: columns, from: run as i64, to: (rows * run as u64) as i64 },
                Level { count: rows, from: (columns * run as u64) as i64, to: run as i64 },
            ];
            copy_strided((&from, 0), (&to, 0), run, &levels).unwrap();
            let mut out = vec![0; bytes.len()];
            Region::whole(to).copy_out(0, &mut out);
            for r in 0..rows as usize {
                for c in 0..columns as usize {
                    let (a, b) = ((r * columns as usize + c) * run, (c * rows as usize + r) * run);
                    assert_eq!(bytes[a..a + run], out[b..b + run]);
                }
            }
        }
    }

    #[test]
    fn negative_strides_reverse() {
        let (from, to) = (block(&[1, 2, 3, 4]), block(&[0; 4]));
        copy_strided((&from, 0), (&to, 3), 1, &[Level { count: 4, from: 1, to: -1 }]).unwrap();
        let mut out = [0; 4];
        Region::whole(to).copy_out(0, &mut out);
        assert_eq!(out, [4, 3, 2, 1]);
    }

    #[test]
    fn leaving_a_block_is_refused() {
        let (from, to) = (block(&[1, 2, 3, 4]), block(&[0; 4]));
        let out = [Level { count: 3, from: 2, to: 1 }];
        assert!(copy_strided((&from, 0), (&to, 0), 1, &out).is_err());
        assert!(copy_strided((&from, 0), (&to, -1), 1, &[]).is_err());
        assert!(copy_strided((&from, i64::MAX), (&to, 0), 1, &[]).is_err());
    }

    #[test]
    fn transposes_of_any_size_move_each_element_to_its_place() {
        for run in [1_usize, 2, 4, 8, 16] {
            let step = run as i64;
            for (rows, columns) in [(1_i64, 7_i64), (64 / step, 64 / step), (65, 33), (5, 130)] {
                // Both sides are longer than their elements, and the target is read from its end.
                let (row_bytes, column_bytes) = (step * (columns + 3), step * (rows + 1));
                let bytes: Vec<u8> = (0..row_bytes * rows).map(|i| (i * 7 + i / 251) as u8).collect();
                let source = block(&bytes);
                let level = |count: i64, from, to| Level { count: count as u64, from, to };
                for (backward, start) in [(1, 0), (-1, column_bytes * (columns - 1))] {
                    let levels =
                        [level(columns, step, backward * column_bytes), level(rows, row_bytes, step)];
                    let mut expected = vec![9; (column_bytes * columns) as usize];
                    for (row, column) in (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c))) {
                        let to = (start + backward * column * column_bytes + row * step) as usize;
                        let from = (row * row_bytes + column * step) as usize;
                        expected[to..to + run].copy_from_slice(&bytes[from..from + run]);
                    }
                    for turned in [false, true] {
                        let target = block(&vec![9; expected.len()]);
                        let levels = if turned { [levels[1], levels[0]] } else { levels };
                        copy_strided((&source, 0), (&target, start), run, &levels).unwrap();
                        let mut found = vec![0; expected.len()];
                        Region::whole(target).copy_out(0, &mut found);
                        assert!(found == expected, "{run} bytes, {rows} by {columns}, {backward} {turned}");
                    }
                }
            }
        }
    }
}
