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
}
