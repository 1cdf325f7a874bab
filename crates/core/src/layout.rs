//! The place of each byte of a striped file: its server, and its offset in that server's data file.

use crate::{Error, Result};

/// An I/O server of a pool. The number never identifies another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u32);

/// A file of a pool. The number never identifies another file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// Maximum number of servers of one file.
pub const MAX_STRIPE_COUNT: usize = 4096;

/// The division of a file into stripe units, which its servers hold in round-robin order.
///
/// Byte `o` is in unit `u = o / unit_bytes`, on entry `u % count` of the file's servers, at byte
/// `u / count * unit_bytes + o % unit_bytes` of the data file there. If only the first `round_units` units are
/// distributed, the bytes after them are the *tail*. The tail lies contiguously on the last entry, after its
/// units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stripes {
    unit_bytes: u64,
    count: u64,
    round_units: Option<u64>,
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
        Ok(Self { unit_bytes, count, round_units: None })
    }

    /// The same stripes, with only the first `units` units distributed; `None` distributes all.
    pub fn with_round_units(self, units: Option<u64>) -> Result<Self> {
        if units == Some(0) {
            return Err(Error::invalid(
                "need at least 1 stripe unit that goes round the servers, have 0; leave the number out if all do",
            ));
        }
        Ok(Self { round_units: units, ..self })
    }

    /// Bytes of a stripe unit.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// Number of servers.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Number of distributed units, if the file has a tail.
    pub fn round_units(&self) -> Option<u64> {
        self.round_units
    }

    /// First byte of the tail, in the file and in the data file of the last entry.
    fn tail(&self) -> Option<(u64, u64)> {
        let units = self.round_units?;
        // No file reaches a tail whose offset exceeds 64 bits.
        Some((units.checked_mul(self.unit_bytes)?, units / self.count * self.unit_bytes))
    }

    fn is_last(&self, entry: u64) -> bool {
        entry + 1 == self.count
    }

    /// The entry that holds a byte of the file, and the byte's offset in its data file.
    pub fn locate(&self, offset: u64) -> (u64, u64) {
        match self.tail() {
            Some((tail, local)) if offset >= tail => (self.count - 1, local + (offset - tail)),
            _ => {
                let unit = offset / self.unit_bytes;
                (unit % self.count, unit / self.count * self.unit_bytes + offset % self.unit_bytes)
            }
        }
    }

    /// The offset in the file of byte `local` of an entry's data file; `None` past the last possible byte.
    pub fn offset_of(&self, entry: u64, local: u64) -> Option<u64> {
        if let (Some((tail, at)), true) = (self.tail(), self.is_last(entry))
            && local >= at
        {
            return tail.checked_add(local - at);
        }
        let unit = (local / self.unit_bytes).checked_mul(self.count)?.checked_add(entry)?;
        if self.round_units.is_some_and(|units| unit >= units) {
            return None;
        }
        unit.checked_mul(self.unit_bytes)?.checked_add(local % self.unit_bytes)
    }

    /// Number of contiguous bytes from `offset` on the same entry: up to the end of the stripe unit, or of
    /// the tail.
    pub fn left_in_unit(&self, offset: u64) -> u64 {
        match self.tail() {
            Some((tail, _)) if offset >= tail => u64::MAX - offset,
            _ => self.unit_bytes - offset % self.unit_bytes,
        }
    }

    /// Distance from `offset` to the next byte on an entry: 0 if the entry holds `offset`; `None` if it holds
    /// no later byte.
    pub fn until_entry(&self, entry: u64, offset: u64) -> Option<u64> {
        let away = (entry + self.count - self.locate(offset).0) % self.count;
        let Some((tail, _)) = self.tail().filter(|_| away > 0) else {
            return Some(self.round(away, offset));
        };
        if offset >= tail {
            return None;
        }
        let next = self.round(away, offset);
        if next < tail - offset { Some(next) } else { self.is_last(entry).then_some(tail - offset) }
    }

    /// Distance from `offset` to the next unit on the entry `away` places further, if that unit is
    /// distributed.
    fn round(&self, away: u64, offset: u64) -> u64 {
        match away {
            0 => 0,
            away => self.unit_bytes - offset % self.unit_bytes + (away - 1) * self.unit_bytes,
        }
    }

    /// Length of an entry's data file, for a file of `length` bytes.
    pub fn local_length(&self, entry: u64, length: u64) -> u64 {
        let round = self.tail().map_or(length, |(tail, _)| tail.min(length));
        let (units, rest) = (round / self.unit_bytes, round % self.unit_bytes);
        let whole = units / self.count + u64::from(entry < units % self.count);
        let last = if self.is_last(entry) { length - round } else { 0 };
        whole * self.unit_bytes + if units % self.count == entry { rest } else { 0 } + last
    }

    /// The smallest length of a file whose entry has a data file of `local_length` bytes; `None` if no file
    /// has one.
    pub fn length_from(&self, entry: u64, local_length: u64) -> Option<u64> {
        match local_length {
            0 => Some(0),
            local => self.offset_of(entry, local - 1)?.checked_add(1),
        }
    }
}

/// The layout of one file: its stripes and its servers, in order from the file's base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The division into stripe units.
    pub stripes: Stripes,
    /// The servers; their number is the stripes' count.
    pub servers: Vec<ServerId>,
}

impl Layout {
    /// Units of `unit_bytes` on `servers`, which are in order from the file's base.
    pub fn new(unit_bytes: u64, servers: Vec<ServerId>) -> Result<Self> {
        let stripes = Stripes::new(unit_bytes, servers.len() as u64)?;
        Ok(Self { stripes, servers })
    }

    /// See [`Stripes::with_round_units`].
    pub fn with_round_units(self, units: Option<u64>) -> Result<Self> {
        Ok(Self { stripes: self.stripes.with_round_units(units)?, ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// For each entry, the bytes of the file that it holds, in order, found by a walk along the file.
    fn walk(unit: u64, count: u64, round_units: Option<u64>, length: u64) -> Vec<Vec<u64>> {
        let mut entries = vec![vec![]; count as usize];
        let (mut entry, mut units_before) = (0, 0);
        for offset in 0..length {
            if offset > 0 && offset % unit == 0 {
                units_before += 1;
                entry = (entry + 1) % count as usize;
            }
            let is_tail = round_units.is_some_and(|units| units_before >= units);
            entries[if is_tail { count as usize - 1 } else { entry }].push(offset);
        }
        entries
    }

    proptest! {
        #[test]
        fn bytes_lie_where_a_walk_finds_them(
            unit in 1_u64..9, count in 1_u64..6, units in prop::option::of(1_u64..20), length in 0_u64..400,
        ) {
            let stripes = Stripes::new(unit, count).unwrap().with_round_units(units).unwrap();
            let entries = walk(unit, count, units, length);
            let mut found = 0;
            for (bytes, entry) in entries.iter().zip(0..) {
                for (&offset, local) in bytes.iter().zip(0..) {
                    prop_assert_eq!(stripes.locate(offset), (entry, local));
                    prop_assert_eq!(stripes.offset_of(entry, local), Some(offset));
                    // `left_in_unit` says how many bytes are contiguous in the data file.
                    let together = stripes.left_in_unit(offset).min(length - offset);
                    prop_assert!(together > 0);
                    prop_assert_eq!(bytes[(local + together - 1) as usize], offset + together - 1);
                }
                for offset in 0..length {
                    // Beyond the bytes of the walk, an entry has another byte or none.
                    match bytes.iter().find(|&&byte| byte >= offset) {
                        Some(next) => prop_assert_eq!(stripes.until_entry(entry, offset), Some(next - offset)),
                        None => prop_assert!(stripes.until_entry(entry, offset).is_none_or(|n| offset + n >= length)),
                    }
                }
                let local_length = bytes.len() as u64;
                prop_assert_eq!(stripes.local_length(entry, length), local_length);
                found = found.max(stripes.length_from(entry, local_length).unwrap());
            }
            prop_assert_eq!(found, length);
        }

        #[test]
        fn if_each_server_has_one_unit_data_files_one_after_another_are_the_file(
            unit in 1_u64..9, count in 1_u64..6, length in 0_u64..100,
        ) {
            let stripes = Stripes::new(unit, count).unwrap().with_round_units(Some(count)).unwrap();
            let before = |entry| (0..entry).map(|entry| stripes.local_length(entry, length)).sum::<u64>();
            for offset in 0..length {
                let (entry, local) = stripes.locate(offset);
                prop_assert_eq!(before(entry) + local, offset);
            }
        }
    }

    #[test]
    fn data_files_that_have_no_tail_end() {
        let stripes = Stripes::new(10, 3).unwrap().with_round_units(Some(4)).unwrap();
        assert_eq!(stripes.length_from(0, 20), Some(40));
        assert_eq!(stripes.length_from(0, 21), None);
        assert_eq!(stripes.length_from(1, 10), Some(20));
        assert_eq!(stripes.length_from(1, 11), None);
        assert_eq!(stripes.length_from(2, 11), Some(41));
        assert_eq!((stripes.until_entry(0, 40), stripes.until_entry(1, 20)), (None, None));
        assert_eq!((stripes.until_entry(2, 30), stripes.until_entry(2, 45)), (Some(10), Some(0)));
    }

    #[test]
    fn what_is_out_of_reach_is_refused() {
        assert!(Stripes::new(0, 1).is_err());
        assert!(Stripes::new(1, 0).is_err());
        assert!(Layout::new(1, vec![]).is_err());
        assert!(Stripes::new(1, 1).unwrap().with_round_units(Some(0)).is_err());
        let large = Stripes::new(1 << 40, 4096).unwrap();
        assert_eq!(large.offset_of(0, u64::MAX), None);
        let far = large.with_round_units(Some(u64::MAX)).unwrap();
        assert_eq!((far.locate(u64::MAX), far.offset_of(0, u64::MAX)), (large.locate(u64::MAX), None));
        assert_eq!(
            Stripes::new(1, 1).unwrap().with_round_units(Some(1)).unwrap().offset_of(0, u64::MAX),
            Some(u64::MAX)
        );
    }
}
