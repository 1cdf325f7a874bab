//! Seals. A sync states in the first page of the checksum file how far the data file then came: its generation, its
//! length, and a digest of its checksums. So an older copy of the files, and checksums that the disk lost, show.

use outcore_core::{Buffer, Handle, Result, crc32c};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::{
    BLOCK_BYTES, REGION_BYTES, SCRATCH_BLOCKS, SUMS_PAGE_BYTES, SUMS_PER_PAGE, sum,
};
use crate::io_server::event::NameOperation;
use crate::io_server::shared::Shared;

/// Bytes of a seal: its six fields, and CRC-32C.
const SEAL_BYTES: usize = 52;
/// The two slots of the page take turns, so a torn write leaves the previous seal.
const SLOT_BYTES: usize = SUMS_PAGE_BYTES / 2;
/// Each slot has two copies, in different sectors, against bits that flip.
const COPY_BYTES: usize = SLOT_BYTES / 2;
/// Bytes of checksums read at once.
const READ_BYTES: usize = (SCRATCH_BLOCKS * BLOCK_BYTES) as usize;

/// The state of a data file at a sync. A file that was never synced has the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seal {
    /// Number of seals of the file so far.
    pub sequence: u64,
    /// Number of syncs that a client asked for and that found something new.
    pub generation: u64,
    /// Sequence of the seal that has this generation. The server itself asked for later ones.
    pub asked: u64,
    /// Length of the data file in bytes.
    pub length: u64,
    /// Sum of [`weight`] over all blocks, modulo 2^64.
    pub digest: u64,
}

impl Seal {
    fn encode(&self, handle: Handle) -> [u8; SEAL_BYTES] {
        let mut bytes = [0; SEAL_BYTES];
        let fields = [handle.0, self.sequence, self.generation, self.asked, self.length, self.digest];
        for (at, field) in bytes.chunks_exact_mut(8).zip(fields) {
            at.copy_from_slice(&field.to_le_bytes());
        }
        let crc = crc32c(&bytes[..48]);
        bytes[48..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8], handle: Handle) -> Option<Self> {
        let field = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (sequence, generation, asked) = (field(8)?, field(16)?, field(24)?);
        let seal = Self { sequence, generation, asked, length: field(32)?, digest: field(40)? };
        (seal.sequence > 0 && bytes.get(..SEAL_BYTES)? == seal.encode(handle)).then_some(seal)
    }

    /// Writes this seal to its slot of a page.
    pub fn put(&self, page: &mut [u8], handle: Handle) {
        let slot = (self.sequence % 2) as usize * SLOT_BYTES;
        for at in [slot, slot + COPY_BYTES] {
            page[at..at + SEAL_BYTES].copy_from_slice(&self.encode(handle));
        }
    }

    /// The newest valid seal of a page.
    pub fn newest(page: &[u8], handle: Handle) -> Self {
        let copies = page.chunks(COPY_BYTES).filter_map(|copy| Self::decode(copy, handle));
        copies.max_by_key(|seal| seal.sequence).unwrap_or_default()
    }

    /// The seal of a file in this state, after this one; `None` if this one still holds. The generation
    /// rises only if a client asks for it, and so hears of it. Otherwise an older copy of the file, which the server
    /// syncs at its start, could get the generation that a client knows from the newer one.
    fn next(&self, state: State, is_asked: bool) -> Option<Self> {
        if self.state() == state && (!is_asked || self.asked == self.sequence) {
            return None;
        }
        let sequence = self.sequence + 1;
        let (generation, asked) =
            if is_asked { (self.generation + 1, sequence) } else { (self.generation, self.asked) };
        let State { digest, length } = state;
        Some(Self { sequence, generation, asked, length, digest })
    }

    pub fn state(&self) -> State {
        State { digest: self.digest, length: self.length }
    }
}

/// The state of a data file that a seal states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub digest: u64,
    pub length: u64,
}

/// The finalizer of `splitmix64` (Steele, Lea & Flood 2014), a bijection.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The contribution of a block with this checksum to the digest. It is 0 for a block of zeros, so a hole changes
/// no digest.
pub(crate) fn weight(block: u64, sum: u32) -> u64 {
    if sum == 0 { 0 } else { mix(mix(block.wrapping_add(1)).wrapping_add(u64::from(sum))) }
}

/// The digest of the checksums of blocks from `first` on, as in a file.
pub(crate) fn digest_of(first: u64, sums: &[u8]) -> u64 {
    let words = sums.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    (first..).zip(words).fold(0, |digest: u64, (block, sum)| digest.wrapping_add(weight(block, sum)))
}

impl<B: Buffer> Shared<B> {
    /// Reads the newest seal of a file.
    pub async fn read_seal(&self, handle: Handle, ids: Ids) -> Result<Seal> {
        let buffer = self.sums.buffers().take().await?;
        let read = self.read(ids.sums, 0, buffer.view(0, SUMS_PAGE_BYTES)).await?;
        let mut page = vec![0; SUMS_PAGE_BYTES];
        buffer.copy_out(0, &mut page[..read]);
        Ok(Seal::newest(&page, handle))
    }

    /// Writes a new seal unless the last one still holds. The caller makes it durable.
    pub async fn write_seal(&self, file: &File, ids: Ids, state: State, is_asked: bool) -> Result<Seal> {
        let last = file.sealed.get();
        if file.seal_pages.get() == 0 {
            return Ok(last);
        }
        let Some(seal) = last.next(state, is_asked) else { return Ok(last) };
        let mut page = vec![0; SUMS_PAGE_BYTES];
        if last.sequence > 0 {
            last.put(&mut page, file.handle);
        }
        seal.put(&mut page, file.handle);
        let mut buffer = self.sums.buffers().take().await?;
        buffer.copy_in(0, &page);
        self.write(ids.sums, 0, buffer.view(0, SUMS_PAGE_BYTES)).await?;
        Ok(seal)
    }

    /// Compares the length of a data file that was just opened with `exactly`, if this run of the server knows it,
    /// otherwise with its seal. Then regions in the log may differ.
    pub fn compare_length(&self, file: &File, exactly: Option<u64>) {
        file.need.set(0);
        file.surplus.set(0);
        if file.seal_pages.get() == 0 {
            return;
        }
        let (need, have) = (exactly.unwrap_or(file.sealed.get().length), file.length.get());
        let notes = self.notes.borrow();
        let noted = notes.of(file.handle).filter(|_| exactly.is_none()).map(|noted| &noted.regions);
        if have > need {
            // A change that lengthens a data file notes the region of its end.
            let noted_end = noted.map_or(0, |regions| regions.span().end).saturating_mul(REGION_BYTES);
            let end = have.min(need.max(noted_end));
            file.surplus.set(have - end);
            file.length.set(end);
        } else if have < need {
            let is_noted = noted
                .is_some_and(|regions| regions.covers(&(have / REGION_BYTES..need.div_ceil(REGION_BYTES))));
            file.need.set(if is_noted { 0 } else { need });
        }
    }

    /// After `compare_length`: bytes that have checksums are not a surplus. They were written, and the disk lost the
    /// seal.
    pub async fn count_summed(&self, file: &File, ids: Ids) -> Result<()> {
        let (length, surplus) = (file.length.get(), file.surplus.get());
        if surplus == 0 {
            return Ok(());
        }
        let mut end = self.summed_past(file, ids, length.div_ceil(BLOCK_BYTES)).await?;
        let (block, kept) = (length / BLOCK_BYTES, (length % BLOCK_BYTES) as usize);
        if end == 0 && kept > 0 {
            // The block that contains the end. Zeros at its end do not change its checksum.
            let page = self.sums_of(file, ids, block).await?;
            let mut scratch = self.scratch.take().await?;
            let mut view = scratch.view(0, BLOCK_BYTES as usize);
            let Ok(read) = self.read(ids.data, block * BLOCK_BYTES, view.clone()).await else {
                return Ok(());
            };
            view.zero(read, BLOCK_BYTES as usize);
            let whole = sum(view.crc32c(0, BLOCK_BYTES as usize));
            scratch.zero(kept, BLOCK_BYTES as usize);
            if whole == page.get(block) && whole != sum(scratch.crc32c(0, BLOCK_BYTES as usize)) {
                end = (block + 1) * BLOCK_BYTES;
            }
        }
        let end = end.clamp(length, length + surplus);
        file.length.set(end);
        file.surplus.set(length + surplus - end);
        Ok(())
    }

    /// Bytes of a data file that no write explains. The caller keeps writers out.
    pub async fn surplus(&self, file: &File, ids: Ids) -> Result<u64> {
        if file.seal_pages.get() == 0 {
            return Ok(0);
        }
        let length = self.bytes_of_name(NameOperation::Length { file: ids.data }).await?;
        file.surplus.set(length.saturating_sub(file.length.get()));
        Ok(file.surplus.get())
    }

    /// The digest of the checksums on the disk from page `first` on. Changed pages that the disk does not take count
    /// as they are in memory. The caller keeps writers out.
    pub async fn digest_from(&self, file: &File, ids: Ids, first: u64) -> Result<u64> {
        let _ = self.flush_sums(file.handle).await;
        let (mut digest, mut page) = (0_u64, first);
        let scratch = self.scratch.take().await?;
        let mut bytes = vec![0; READ_BYTES];
        loop {
            let offset = file.sums_offset(page);
            let read = self.read(ids.sums, offset, scratch.view(0, READ_BYTES)).await?;
            bytes[read..].fill(0);
            scratch.copy_out(0, &mut bytes[..read]);
            for sums in bytes.chunks_exact(SUMS_PAGE_BYTES) {
                digest = digest.wrapping_add(
                    self.changed_digest(file.handle, page)
                        .unwrap_or_else(|| digest_of(page * SUMS_PER_PAGE, sums)),
                );
                page += 1;
            }
            if read < READ_BYTES {
                break;
            }
        }
        Ok(digest.wrapping_add(self.changed_digest_from(file.handle, page)))
    }

    /// Whether the checksums on the disk are those that were written last, apart from known damage. The caller keeps
    /// writers out.
    pub async fn sums_are_current(&self, file: &File, ids: Ids) -> Result<bool> {
        if file.seal_pages.get() == 0 {
            return Ok(true);
        }
        let found = self.digest_from(file, ids, 0).await?;
        if file.was_repaired.replace(false) {
            file.digest.set(found);
        }
        Ok(found == file.digest.get() || self.has_damage(file.handle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: Handle = Handle(0x1A2B);

    fn seal(sequence: u64) -> Seal {
        let generation = sequence / 2;
        Seal { sequence, generation, asked: sequence, length: 1000 * sequence, digest: mix(sequence) }
    }

    /// A page after some seals were written to it in order.
    fn page(last: u64) -> Vec<u8> {
        let mut page = vec![0; SUMS_PAGE_BYTES];
        (1..=last).for_each(|sequence| seal(sequence).put(&mut page, HANDLE));
        page
    }

    #[test]
    fn the_newest_seal_counts() {
        assert_eq!(Seal::newest(&page(0), HANDLE), Seal::default());
        for last in 1..5 {
            assert_eq!(Seal::newest(&page(last), HANDLE), seal(last));
            assert_eq!(Seal::newest(&page(last), Handle(1)), Seal::default(), "the seal of another file");
        }
    }

    #[test]
    fn a_torn_slot_leaves_the_seal_before() {
        for last in 1..5 {
            let before = if last == 1 { Seal::default() } else { seal(last - 1) };
            let (old, new) = (page(last - 1), page(last));
            for sectors in 0..1 << 8_u32 {
                let sector = |at: usize| if sectors >> at & 1 == 0 { &old } else { &new };
                let torn: Vec<u8> =
                    (0..8).flat_map(|at| sector(at)[at * 512..(at + 1) * 512].to_vec()).collect();
                let found = Seal::newest(&torn, HANDLE);
                assert!(found == before || found == seal(last), "{sectors:b}");
            }
            for byte in 0..SUMS_PAGE_BYTES {
                let mut damaged = new.clone();
                damaged[byte] ^= 1;
                assert_eq!(Seal::newest(&damaged, HANDLE), seal(last), "byte {byte}");
                damaged[byte ^ COPY_BYTES] ^= 1;
                let found = Seal::newest(&damaged, HANDLE);
                assert!(found == before || found == seal(last), "bytes {byte}");
            }
        }
    }

    #[test]
    fn a_generation_rises_for_clients_only() {
        let state = |length, digest| State { digest, length };
        let first = Seal::default().next(state(5, 7), true).unwrap();
        assert_eq!((first.sequence, first.generation), (1, 1));
        assert_eq!((first.next(state(5, 7), true), first.next(state(5, 7), false)), (None, None));
        let unasked = first.next(state(6, 8), false).unwrap();
        assert_eq!((unasked.sequence, unasked.generation), (2, 1));
        assert_eq!(unasked.next(state(6, 8), false), None);
        let heard = unasked.next(state(6, 8), true).unwrap();
        assert_eq!((heard.sequence, heard.generation), (3, 2), "the client hears of what has changed");
        assert_eq!(heard.next(state(6, 8), true), None);
        assert_eq!(Seal::default().next(state(0, 0), true), None, "an empty file");
    }

    #[test]
    fn a_digest_tells_blocks_and_checksums_apart() {
        let digest = |sums: &[u32]| {
            let bytes: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
            digest_of(5, &bytes)
        };
        assert_eq!(digest(&[0, 0, 0]), 0);
        assert_eq!(digest(&[7, 0, 9]), weight(5, 7).wrapping_add(weight(7, 9)));
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
        assert_ne!(digest(&[1, 0]), digest(&[0, 1]));
    }
}
