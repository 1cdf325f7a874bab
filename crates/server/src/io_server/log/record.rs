//! The bytes of the write-intent log: pages of records, each page with its own checksum.

use outcore_core::{Handle, crc32c};

/// Bytes of a page.
pub(crate) const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 32;
const RECORD_BYTES: usize = 32;
/// Records of a page.
pub(crate) const RECORDS_PER_PAGE: usize = (PAGE_BYTES - HEADER_BYTES) / RECORD_BYTES;
const MAGIC: u32 = u32::from_le_bytes(*b"OCLG");

/// The statement of a record about regions of a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// The regions may be written from now on.
    Note,
    /// Data and checksums of the regions are durable.
    Clear,
    /// The file was removed.
    Removed,
}

/// A record: `count` regions of a data file, beginning at region `first`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub what: What,
    pub handle: Handle,
    pub first: u64,
    pub count: u64,
}

/// A page of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Page {
    /// Generation of the log file. Pages of another generation are left-overs.
    pub generation: u64,
    /// Number of pages, at the start of the file, that contain the notes with which this generation began. Without
    /// all of them the generation is invalid.
    pub first_pages: u32,
    pub records: Vec<Record>,
}

fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

fn u32_at(page: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&page[at..at + 4]);
    u32::from_le_bytes(bytes)
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&page[at..at + 8]);
    u64::from_le_bytes(bytes)
}

impl Page {
    /// Encodes this page as page `number` of its file.
    pub fn encode(&self, number: u64) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        put(&mut page, 0, &MAGIC.to_le_bytes());
        put(&mut page, 8, &self.generation.to_le_bytes());
        put(&mut page, 16, &number.to_le_bytes());
        put(&mut page, 24, &self.first_pages.to_le_bytes());
        put(&mut page, 28, &(self.records.len() as u32).to_le_bytes());
        for (slot, record) in self.records.iter().take(RECORDS_PER_PAGE).enumerate() {
            let at = HEADER_BYTES + slot * RECORD_BYTES;
            let what: u64 = match record.what {
                What::Note => 1,
                What::Clear => 2,
                What::Removed => 3,
            };
            for (field, value) in [what, record.handle.0, record.first, record.count].into_iter().enumerate()
            {
                put(&mut page, at + 8 * field, &value.to_le_bytes());
            }
        }
        let crc = crc32c(&page);
        put(&mut page, 4, &crc.to_le_bytes());
        page
    }

    /// Decodes page `number` of a log file, if the bytes are such a page and its checksum is correct.
    pub fn decode(bytes: &[u8], number: u64) -> Option<Self> {
        let mut page = bytes.to_vec();
        if page.len() != PAGE_BYTES || u32_at(&page, 0) != MAGIC || u64_at(&page, 16) != number {
            return None;
        }
        let crc = u32_at(&page, 4);
        put(&mut page, 4, &[0; 4]);
        let count = u32_at(&page, 28) as usize;
        if crc32c(&page) != crc || count > RECORDS_PER_PAGE {
            return None;
        }
        let mut records = Vec::with_capacity(count);
        for slot in 0..count {
            let at = HEADER_BYTES + slot * RECORD_BYTES;
            let what = match u64_at(&page, at) {
                1 => What::Note,
                2 => What::Clear,
                3 => What::Removed,
                _ => return None,
            };
            records.push(Record {
                what,
                handle: Handle(u64_at(&page, at + 8)),
                first: u64_at(&page, at + 16),
                count: u64_at(&page, at + 24),
            });
        }
        Some(Self { generation: u64_at(&page, 8), first_pages: u32_at(&page, 24), records })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn page() -> Page {
        let record = |n: u64| Record { what: What::Note, handle: Handle(n), first: n * 7, count: n + 1 };
        Page { generation: 5, first_pages: 2, records: (0..RECORDS_PER_PAGE as u64).map(record).collect() }
    }

    #[test]
    fn a_page_comes_back() {
        let bytes = page().encode(9);
        assert_eq!(bytes.len(), PAGE_BYTES);
        assert_eq!(Page::decode(&bytes, 9), Some(page()));
        assert_eq!(Page::decode(&bytes, 8), None, "a page of another place");
        assert_eq!(Page::decode(&[0; PAGE_BYTES], 0), None, "room that was never written");
    }

    #[test]
    fn no_torn_or_flipped_page_passes() {
        let bytes = page().encode(9);
        for at in 0..PAGE_BYTES {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert_eq!(Page::decode(&flipped, 9), None, "byte {at}");
        }
        let older = Page { generation: 4, ..page() }.encode(9);
        for cut in (512..PAGE_BYTES).step_by(512) {
            let torn = [&bytes[..cut], &older[cut..]].concat();
            assert!(Page::decode(&torn, 9).is_none_or(|found| found == page()), "torn at {cut}");
        }
    }

    proptest! {
        #[test]
        fn a_changed_page_with_a_right_sum_is_none_or_the_page_of_its_bytes(
            edits in prop::collection::vec((0..256_usize, any::<u64>()), 1..4), number in 0_u64..3,
        ) {
            let mut bytes = page().encode(number);
            for (word, value) in edits {
                put(&mut bytes, 8 * word, &value.to_le_bytes());
            }
            put(&mut bytes, 4, &[0; 4]);
            let sum = crc32c(&bytes);
            put(&mut bytes, 4, &sum.to_le_bytes());
            if let Some(found) = Page::decode(&bytes, number) {
                let again = found.encode(number);
                prop_assert_eq!(Page::decode(&again, number), Some(found));
            }
        }
    }
}
