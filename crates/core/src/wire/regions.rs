//! Regions as bytes: 16 bytes for each run, and 16 more for each stride.

use crate::wire::record::{Record, Source, damaged};
use crate::{Level, MAX_LEVELS, Nested, Regions, Result};

/// A flag in the offset of a nested stride: levels follow. No offset is that large.
const HAS_LEVELS: u64 = 1 << 63;

impl Record for Regions {
    fn put(&self, to: &mut Vec<u8>) {
        to.reserve(8 + 16 * self.parts().len());
        (self.parts().len() as u64).put(to);
        for part in self.parts() {
            let flag = if part.levels.is_empty() { 0 } else { HAS_LEVELS };
            let mut fixed = [0; 16];
            fixed[..8].copy_from_slice(&(part.offset | flag).to_le_bytes());
            fixed[8..].copy_from_slice(&part.run_bytes.to_le_bytes());
            to.extend_from_slice(&fixed);
            if flag != 0 {
                to.push(part.levels.len() as u8);
                for level in &part.levels {
                    level.count.put(to);
                    level.step_bytes.put(to);
                }
            }
        }
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let count = from.count(16)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            let (offset, run_bytes) = (u64::take(from)?, u64::take(from)?);
            let mut levels = vec![];
            if offset & HAS_LEVELS != 0 {
                let depth = usize::from(u8::take(from)?);
                if depth == 0 || depth > MAX_LEVELS {
                    return Err(damaged(format!("{depth} strides inside each other")));
                }
                levels.reserve_exact(depth);
                for _ in 0..depth {
                    levels.push(Level { count: u64::take(from)?, step_bytes: u64::take(from)? });
                }
            }
            parts.push(Nested { offset: offset & !HAS_LEVELS, run_bytes, levels });
        }
        Self::new(parts)
    }
}
