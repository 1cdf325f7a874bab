//! Pieces of memory with their places in a file, as one request.

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use outcore_core::{Error, Level, Nested, Regions, Result};
use outcore_memory::{Block, Region};

/// Bytes of memory, and their place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub offset: u64,
    pub bytes: usize,
    pub memory: *mut u8,
}

impl Piece {
    /// The byte of the file after the last one.
    pub fn end(&self) -> Result<u64> {
        let end = self.offset.checked_add(self.bytes as u64).filter(|&end| i64::try_from(end).is_ok());
        end.ok_or_else(|| {
            Error::invalid("need an end of at most 2^63 bytes; read or write at a smaller address")
        })
    }

    /// The first `bytes` bytes, and the others.
    pub fn split(self, bytes: usize) -> (Self, Self) {
        let bytes = bytes.min(self.bytes);
        let rest = Self {
            offset: self.offset + bytes as u64,
            bytes: self.bytes - bytes,
            memory: self.memory.wrapping_add(bytes),
        };
        (Self { bytes, ..self }, rest)
    }
}

/// Joins pieces that follow each other in the file and in memory, and drops empty ones.
pub fn joined(pieces: impl IntoIterator<Item = Piece>) -> Vec<Piece> {
    let mut found: Vec<Piece> = Vec::new();
    for piece in pieces.into_iter().filter(|piece| piece.bytes > 0) {
        match found.last_mut() {
            Some(last)
                if last.offset + last.bytes as u64 == piece.offset
                    && last.memory.wrapping_add(last.bytes) == piece.memory =>
            {
                last.bytes += piece.bytes;
            }
            _ => found.push(piece),
        }
    }
    found
}

/// Bytes of a span of several pieces, at most: those of HDF5's sieve buffer.
const MOST_SPAN_BYTES: u64 = 64 << 10;
/// Bytes between two pieces of a span, at most: a page of the system, so that a span has few pages that no piece needs.
const MOST_GAP_BYTES: u64 = 4 << 10;

/// Splits pieces into spans that one read each serves: pieces in the order of the file that lie close together. A
/// piece that is far from its neighbours is a span.
pub fn spans(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    let mut rest = pieces;
    std::iter::from_fn(move || {
        let first = rest.first()?;
        let is_near = |one: &Piece, next: &Piece| {
            let (Ok(before), Ok(end)) = (one.end(), next.end()) else { return false };
            next.offset.checked_sub(before).is_some_and(|gap| gap <= MOST_GAP_BYTES)
                && end - first.offset <= MOST_SPAN_BYTES
        };
        let more = rest.windows(2).take_while(|pair| is_near(&pair[0], &pair[1])).count();
        let (span, others) = rest.split_at(1 + more);
        rest = others;
        Some(span)
    })
}

/// The places of pieces in the file. Pieces of one length at equal distances are one stride, so that the message to a
/// server stays short.
pub fn regions(pieces: &[Piece]) -> Result<Regions> {
    let mut parts: Vec<Nested> = Vec::new();
    for piece in pieces {
        let bytes = piece.bytes as u64;
        if let Some(last) = parts.last_mut()
            && last.run_bytes == bytes
            && let Some(distance) = piece.offset.checked_sub(last.offset)
        {
            match last.levels.last_mut() {
                None if distance >= bytes => {
                    last.levels.push(Level { count: 2, step_bytes: distance });
                    continue;
                }
                Some(level) if level.count.checked_mul(level.step_bytes) == Some(distance) => {
                    level.count += 1;
                    continue;
                }
                _ => {}
            }
        }
        parts.push(Nested { offset: piece.offset, run_bytes: bytes, levels: vec![] });
    }
    Regions::new(parts)
}

/// The memory of pieces as the buffer of a request. Each part of it keeps a clone of `held`.
///
/// # Safety
///
/// The memory must stay valid, and nothing else may access it, as long as a clone of `held` lives.
pub unsafe fn buffer(pieces: &[Piece], held: &(impl Any + Clone + Send + Sync)) -> Result<Region> {
    let part = |piece: &Piece| {
        let start = NonNull::new(piece.memory);
        let start =
            start.ok_or_else(|| Error::invalid("need memory to read or write, have a null pointer"))?;
        // SAFETY: the caller keeps the memory valid as long as this clone lives.
        let block = unsafe { Block::foreign(start, piece.bytes, Box::new(held.clone())) };
        Ok(Region::whole(Arc::new(block)))
    };
    pieces.iter().map(part).collect::<Result<_>>().map(Region::joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(offset: u64, bytes: usize, memory: usize) -> Piece {
        Piece { offset, bytes, memory: std::ptr::null_mut::<u8>().wrapping_add(memory) }
    }

    #[test]
    fn pieces_that_follow_each_other_are_one() {
        let pieces =
            [piece(0, 4, 100), piece(4, 4, 104), piece(8, 0, 0), piece(8, 4, 200), piece(20, 4, 204)];
        assert_eq!(joined(pieces), [piece(0, 8, 100), piece(8, 4, 200), piece(20, 4, 204)]);
    }

    #[test]
    fn pieces_close_together_are_a_span() {
        type Case = (&'static [(u64, usize)], &'static [usize]);
        let cases: [Case; 8] = [
            (&[], &[]),
            (&[(7, 3)], &[1]),
            (&[(0, 8), (16, 8), (4120, 8), (8225, 8)], &[3, 1]),
            (&[(16, 8), (0, 8), (8, 8), (15, 8)], &[1, 2, 1]),
            (&[(1, 60_000), (60_100, 5437), (65_538, 1), (65_540, 1)], &[2, 2]),
            (&[(0, 1 << 20), (1 << 20, 8), (1_048_584, 8)], &[1, 2]),
            (&[(0, 8), (8, 1 << 20), (2_000_000, 8)], &[1, 1, 1]),
            (&[(u64::MAX - 4, 9), (u64::MAX, 9), (3, 4)], &[1, 1, 1]),
        ];
        for (case, expected) in cases {
            let pieces: Vec<Piece> = case.iter().map(|&(offset, bytes)| piece(offset, bytes, 1)).collect();
            assert_eq!(spans(&pieces).map(<[Piece]>::len).collect::<Vec<_>>(), expected, "{case:?}");
            assert_eq!(spans(&pieces).flatten().copied().collect::<Vec<_>>(), pieces);
        }
    }

    #[test]
    fn regions_are_those_of_the_pieces() {
        let cases: [&[(u64, usize)]; 6] = [
            &[],
            &[(7, 3)],
            &[(0, 4), (10, 4), (20, 4), (30, 4)],
            &[(0, 4), (10, 4), (21, 4), (31, 4), (41, 5)],
            &[(40, 4), (30, 4), (0, 4), (8, 4), (2, 4)],
            &[(5, 4), (5, 4), (5, 4)],
        ];
        for case in cases {
            let pieces: Vec<Piece> = case.iter().map(|&(offset, bytes)| piece(offset, bytes, 1)).collect();
            let runs: Vec<(u64, usize)> =
                regions(&pieces).unwrap().runs().map(|run| (run.offset, run.length as usize)).collect();
            assert_eq!(runs, case);
        }
        let strided: Vec<Piece> = (0..2048).map(|i| piece(i * 100, 8, 1)).collect();
        assert_eq!(regions(&strided).unwrap().parts().len(), 1);
    }

    #[test]
    fn ends_are_checked() {
        assert!(piece(u64::MAX, 1, 1).end().is_err());
        assert!(piece(i64::MAX as u64, 1, 1).end().is_err());
        assert_eq!(piece(5, 6, 1).end(), Ok(11));
    }

    #[test]
    fn the_memory_is_held_while_the_request_lives() {
        let (mut bytes, held) = (*b"abcdef", Arc::new(()));
        let start = bytes.as_mut_ptr();
        let pieces = [
            Piece { offset: 0, bytes: 2, memory: start.wrapping_add(4) },
            Piece { offset: 9, bytes: 1, memory: start },
        ];
        // SAFETY: the bytes outlive the buffer.
        let buffer = unsafe { buffer(&pieces, &held) }.unwrap();
        let mut found = [0; 3];
        outcore_core::Buffer::copy_out(&buffer, 0, &mut found);
        assert_eq!((&found, Arc::strong_count(&held)), (b"efa", 3));
        drop(buffer);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
