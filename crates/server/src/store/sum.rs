//! Checksums of records.

use outcore_core::{Crc32c, Error, ErrorKind, Result};

use super::Versioned;

/// The CRC-32C of a key, the version (8 bytes, little-endian) and the value. It includes the key, so a record of
/// another key does not pass.
pub(super) fn sum(key: &[u8], value: &[u8], version: u64) -> u32 {
    let mut crc = Crc32c::default();
    crc.update(key);
    crc.update(&version.to_le_bytes());
    crc.update(value);
    crc.value()
}

/// Returns the value found at a key, if its checksum equals the stored one.
pub(super) fn check_sum(key: &[u8], found: Versioned, kept: u32) -> Result<Versioned> {
    let have = sum(key, &found.value, found.version);
    if have == kept {
        return Ok(found);
    }
    Err(Error::new(
        ErrorKind::Corrupt,
        format!(
            "need the record {} of the metadata store with checksum {kept:08x}, have {have:08x}: it is damaged; restore the \
             store from a backup, and check its disk",
            key.escape_ascii()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_record_is_that_of_the_page() {
        let (key, value) = (b"h", [1, 2, 1, 0, 0, 0, 0, 0, 0]);
        let line = format!("key 68, version 3, value 010201000000000000: {:08x}\n", sum(key, &value, 3));
        let page = include_str!("../../../../docs/format.md");
        assert!(
            page.contains(&format!("<!-- golden: checksum of a record -->\n```hex\n{line}```\n")),
            "{line}"
        );
    }
}
