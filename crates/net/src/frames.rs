//! Frames over a socket: sent from memory where it lies, received into memory where it shall lie.

use outcore_core::wire::{HEADER_BYTES, Header, Kind, Record, decode, encode};
use outcore_core::{Buffer, Crc32c, Error, ErrorKind, Result, crc32c};
use outcore_memory::Region;

use crate::socket::{MAX_VECTORS, Socket, Watch};

/// Most bytes of a payload in one call: what is received is summed while it is in the cache.
const MOST_BYTES: usize = 512 << 10;

/// Memory for a control part is taken in steps of so many bytes, as these arrive.
const STEP_BYTES: usize = 1 << 20;

fn vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// The runs of a region in groups that one call of the system takes.
struct Groups<I> {
    runs: I,
    rest: Option<(*mut u8, usize)>,
}

impl<I: Iterator<Item = (*mut u8, usize)>> Groups<I> {
    fn new(runs: I) -> Self {
        Self { runs, rest: None }
    }

    /// Adds the next group to `vectors`. False if there is nothing left.
    fn next(&mut self, vectors: &mut Vec<libc::iovec>) -> bool {
        let before = vectors.len();
        let mut left = MOST_BYTES;
        while left > 0 && vectors.len() < MAX_VECTORS {
            let Some((start, bytes)) = self.rest.take().or_else(|| self.runs.next()) else { break };
            let taken = bytes.min(left);
            vectors.push(libc::iovec { iov_base: start.cast(), iov_len: taken });
            left -= taken;
            if taken < bytes {
                self.rest = Some((start.wrapping_add(taken), bytes - taken));
            }
        }
        vectors.len() > before
    }
}

impl Socket {
    /// Sends a frame. `header` must be that of `control` and `payload`.
    pub(crate) fn send_frame(
        &self,
        header: &Header,
        control: &[u8],
        payload: &Region,
        watch: &dyn Watch,
    ) -> Result<()> {
        let first = header.encode()?;
        let mut vectors = vec![vector(&first), vector(control)];
        let mut groups = Groups::new(payload.pointers());
        loop {
            let is_more = groups.next(&mut vectors);
            if vectors.is_empty() {
                return Ok(());
            }
            // SAFETY: header and control part are borrowed, and the payload's runs lie in its block, which the
            // region keeps alive.
            unsafe { self.send(&mut vectors, watch)? };
            if !is_more {
                return Ok(());
            }
            vectors.clear();
        }
    }

    /// Sends a record without a payload.
    pub(crate) fn send_record<R: Record>(
        &self,
        kind: Kind,
        record: &R,
        watch: &dyn Watch,
    ) -> Result<Vec<u8>> {
        let control = encode(record);
        self.send_frame(&Header::of(kind, &control), &control, &Region::empty(), watch)?;
        Ok(control)
    }

    /// The header of the next frame; `None` if the other side ended the connection after the one before.
    pub(crate) fn receive_header(&self, watch: &dyn Watch) -> Result<Option<Header>> {
        let mut bytes = [0_u8; HEADER_BYTES];
        let mut vectors = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: HEADER_BYTES }];
        // SAFETY: the vector is the array, which is borrowed by nobody else during the call.
        if unsafe { self.receive(&mut vectors, false, watch)? } {
            Header::decode(&bytes).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The control part of a frame, checked.
    pub(crate) fn receive_control(&self, header: &Header, watch: &dyn Watch) -> Result<Vec<u8>> {
        let length = header.control_bytes as usize;
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let (at, step) = (bytes.len(), STEP_BYTES.max(bytes.len()).min(length - bytes.len()));
            bytes.resize(at + step, 0);
            let mut vectors = [libc::iovec { iov_base: bytes[at..].as_mut_ptr().cast(), iov_len: step }];
            // SAFETY: the vector is the end of `bytes`, which is borrowed by nobody else during the call.
            unsafe { self.receive(&mut vectors, true, watch)? };
        }
        if crc32c(&bytes) != header.control_crc {
            return Err(damaged("control part"));
        }
        Ok(bytes)
    }

    /// The payload of a frame, into a region of as many bytes, checked.
    pub(crate) fn receive_payload(&self, header: &Header, region: &Region, watch: &dyn Watch) -> Result<()> {
        debug_assert_eq!(header.payload_bytes, region.len() as u64);
        let mut groups = Groups::new(region.pointers());
        let mut sum = Crc32c::default();
        let mut vectors = Vec::new();
        while groups.next(&mut vectors) {
            let group = vectors.clone();
            // SAFETY: the runs lie in the region's block, which the region keeps alive; who gave the region away for
            // a request leaves its bytes alone until that is done (see `Block`).
            unsafe { self.receive(&mut vectors, true, watch)? };
            for run in group {
                // SAFETY: as above; the bytes were just written.
                sum.update(unsafe { std::slice::from_raw_parts(run.iov_base.cast(), run.iov_len) });
            }
            vectors.clear();
        }
        if !region.is_empty() && sum.value() != header.payload_crc {
            return Err(damaged("payload"));
        }
        Ok(())
    }

    /// Reads bytes that nobody wants.
    pub(crate) fn discard(&self, mut bytes: u64, watch: &dyn Watch) -> Result<()> {
        let mut unwanted = [0_u8; 16 << 10];
        while bytes > 0 {
            let step = bytes.min(unwanted.len() as u64) as usize;
            let mut vectors = [libc::iovec { iov_base: unwanted.as_mut_ptr().cast(), iov_len: step }];
            // SAFETY: the vector is a part of the array, which is borrowed by nobody else during the call.
            unsafe { self.receive(&mut vectors, true, watch)? };
            bytes -= step as u64;
        }
        Ok(())
    }

    /// The next frame, which must be of `kind`, without a payload, and short. A refusal is the error that it has.
    pub(crate) fn receive_record<R: Record>(&self, kind: Kind, watch: &dyn Watch) -> Result<(R, Vec<u8>)> {
        let ended = || Error::new(ErrorKind::Io, "the other side ended the connection as it began");
        let header = self.receive_header(watch)?.ok_or_else(ended)?;
        let is_short = header.payload_bytes == 0 && header.control_bytes as usize <= STEP_BYTES;
        if is_short && header.kind == Kind::Refused {
            let control = self.receive_control(&header, watch)?;
            return Err(decode::<outcore_core::wire::Refused>(&control)?.error);
        }
        if !is_short || header.kind != kind {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "need a frame of kind {kind:?}, have {:?}; use the same outcore everywhere",
                    header.kind
                ),
            ));
        }
        let control = self.receive_control(&header, watch)?;
        Ok((decode(&control)?, control))
    }
}

fn damaged(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("the {what} of a message was damaged on the way"))
}
