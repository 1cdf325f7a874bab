//! Where the bytes of a striped file lie: on which of its servers, and where in that server's data file.

use crate::{Error, Result};

/// An I/O server of a pool. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u32);

/// A file of a pool. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// Most servers of one file.
pub const MAX_STRIPE_COUNT: usize = 4096;

/// How a file is cut into stripe units, which go round its servers.
///
/// Byte `o` is in unit `u = o / unit_bytes`, on entry `u % count` of the file's servers, at byte
/// `u / count * unit_bytes + o % unit_bytes` of its data file there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripes {
    unit_bytes: u64,
    count: u64,
}

impl Stripes {
    /// Units of `unit_bytes` on `count` servers.
    pub fn new(unit_bytes: u64, count: u64) -> Result<Self> {
        if unit_bytes == 0 || unit_bytes > 1 << 40 || count == 0 || count > MAX_STRIPE_COUNT as u64 {
            return Err(Error::invalid(format!(
                "need stripe units of 1 byte to 1 TiB on 1 to {MAX_STRIPE_COUNT} servers, have {unit_bytes} bytes on \
                 {count}; choose others"
            )));
        }
        Ok(Self { unit_bytes, count })
    }

    /// Bytes of a stripe unit.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// How many servers.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The entry that holds a byte of the file, and where in its data file.
    pub fn locate(&self, offset: u64) -> (u64, u64) {
        let unit = offset / self.unit_bytes;
        (unit % self.count, unit / self.count * self.unit_bytes + offset % self.unit_bytes)
    }

    /// The byte of the file that is at `local` in the data file of an entry; `None` past the last possible one.
    pub fn offset_of(&self, entry: u64, local: u64) -> Option<u64> {
        let unit = (local / self.unit_bytes).checked_mul(self.count)?.checked_add(entry)?;
        unit.checked_mul(self.unit_bytes)?.checked_add(local % self.unit_bytes)
    }

    /// Bytes from `offset` to the end of its stripe unit.
    pub fn left_in_unit(&self, offset: u64) -> u64 {
        self.unit_bytes - offset % self.unit_bytes
    }

    /// Length of the data file of an entry, for a file of so many bytes.
    pub fn local_length(&self, entry: u64, length: u64) -> u64 {
        let (units, rest) = (length / self.unit_bytes, length % self.unit_bytes);
        let whole = units / self.count + u64::from(entry < units % self.count);
        whole * self.unit_bytes + if units % self.count == entry { rest } else { 0 }
    }

    /// The least length of a file whose entry has a data file of so many bytes; `None` if there can be none.
    pub fn length_from(&self, entry: u64, local_length: u64) -> Option<u64> {
        match local_length {
            0 => Some(0),
            local => self.offset_of(entry, local - 1)?.checked_add(1),
        }
    }
}

/// The layout of one file: its stripes, and the servers they lie on, in order from its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How it is cut.
    pub stripes: Stripes,
    /// As many as the stripes' count.
    pub servers: Vec<ServerId>,
}

impl Layout {
    /// Units of `unit_bytes` on `servers`, which are in order from the file's base.
    pub fn new(unit_bytes: u64, servers: Vec<ServerId>) -> Result<Self> {
        let stripes = Stripes::new(unit_bytes, servers.len() as u64)?;
        Ok(Self { stripes, servers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bytes_lie_where_a_walk_finds_them(unit in 1_u64..9, count in 1_u64..6, length in 0_u64..400) {
            let stripes = Stripes::new(unit, count).unwrap();
            let mut ends = vec![0; count as usize];
            for offset in 0..length {
                let (entry, local) = stripes.locate(offset);
                prop_assert_eq!(ends[entry as usize], local, "units follow each other");
                ends[entry as usize] += 1;
                prop_assert_eq!(stripes.offset_of(entry, local), Some(offset));
            }
            let mut found = 0;
            for (entry, end) in ends.into_iter().enumerate() {
                prop_assert_eq!(stripes.local_length(entry as u64, length), end);
                found = found.max(stripes.length_from(entry as u64, end).unwrap());
            }
            prop_assert_eq!(found, length);
        }
    }

    #[test]
    fn what_is_out_of_reach_is_refused() {
        assert!(Stripes::new(0, 1).is_err());
        assert!(Stripes::new(1, 0).is_err());
        assert!(Layout::new(1, vec![]).is_err());
        assert_eq!(Stripes::new(1 << 40, 4096).unwrap().offset_of(0, u64::MAX), None);
    }
}
