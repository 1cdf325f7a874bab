//! Frames over a socket, sent and received in place, without copies.

use std::sync::Arc;

use outcore_core::wire::{HEADER_BYTES, Header, Kind, Record, decode, encode};
use outcore_core::{Buffer, Crc32c, Error, ErrorKind, Result, crc32c};
use outcore_memory::Region;

use crate::socket::{MAX_VECTORS, Socket, Watch, advance};

/// Maximum bytes of a payload per system call: the checksum of received bytes is computed while they are in
/// the cache.
const MOST_BYTES: usize = 512 << 10;

/// Maximum size of a small frame, without its header. The calling thread sends a small frame if the system
/// takes it immediately, because waking another thread would take longer.
const SMALL_BYTES: usize = 16 << 10;

/// Memory for a control part grows in steps of this many bytes, as they arrive.
const STEP_BYTES: usize = 1 << 20;

fn vector(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Groups of a region's runs, each for one system call.
struct Groups<I> {
    runs: I,
    rest: Option<(*mut u8, usize)>,
}

impl<I: Iterator<Item = (*mut u8, usize)>> Groups<I> {
    fn new(runs: I) -> Self {
        Self { runs, rest: None }
    }

    /// Adds the next group to `vectors`. Returns false if no group is left.
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

/// Whether the calling thread sends a frame with `bytes` bytes after its header.
pub(crate) fn is_small(bytes: usize) -> bool {
    bytes <= SMALL_BYTES
}

/// A frame to send. The header must match the other two parts.
pub(crate) struct Frame {
    pub(crate) header: Header,
    pub(crate) control: Arc<Vec<u8>>,
    pub(crate) payload: Region,
    /// Number of bytes that are sent already.
    pub(crate) sent: u64,
}

impl Frame {
    /// A frame without a payload.
    pub(crate) fn short(header: Header, control: Arc<Vec<u8>>) -> Self {
        Self { header, control, payload: Region::empty(), sent: 0 }
    }

    fn is_sent(&self) -> bool {
        self.sent == self.header.frame_bytes()
    }
}

impl Socket {
    /// Sends the rest of a frame.
    pub(crate) fn send_frame(&self, frame: &Frame, watch: &dyn Watch) -> Result<()> {
        let first = frame.header.encode()?;
        let mut vectors = vec![vector(&first), vector(&frame.control)];
        let mut groups = Groups::new(frame.payload.pointers());
        let mut sent = frame.sent as usize;
        loop {
            let is_more = groups.next(&mut vectors);
            let mut rest = &mut vectors[..];
            let there: usize = rest.iter().map(|vector| vector.iov_len).sum();
            let past = sent.min(there);
            advance(&mut rest, past);
            sent -= past;
            // SAFETY: header and control part are borrowed, and the payload's runs lie in its block, which
            // the region keeps alive.
            unsafe { self.send(rest, watch)? };
            if !is_more {
                return Ok(());
            }
            vectors.clear();
        }
    }

    /// Sends as much of an unsent small frame as the system takes without waiting. Returns whether that was
    /// all.
    pub(crate) fn send_frame_now(&self, frame: &mut Frame) -> Result<bool> {
        let first = frame.header.encode()?;
        let mut vectors = vec![vector(&first), vector(&frame.control)];
        Groups::new(frame.payload.pointers()).next(&mut vectors);
        // SAFETY: as in `send_frame`.
        frame.sent = unsafe { self.send_now(&mut vectors)? } as u64;
        Ok(frame.is_sent())
    }

    /// Sends a record without a payload.
    pub(crate) fn send_record<R: Record>(
        &self,
        kind: Kind,
        record: &R,
        watch: &dyn Watch,
    ) -> Result<Vec<u8>> {
        let control = Arc::new(encode(record));
        self.send_frame(&Frame::short(Header::of(kind, &control), control.clone()), watch)?;
        Ok(Arc::unwrap_or_clone(control))
    }

    /// The header of the next frame; `None` if the peer ended the connection after the previous frame.
    pub(crate) fn receive_header(&self, watch: &dyn Watch) -> Result<Option<Header>> {
        let mut bytes = [0_u8; HEADER_BYTES];
        let mut vectors = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: HEADER_BYTES }];
        // SAFETY: the vector is the array, which nothing else borrows during the call.
        if unsafe { self.receive(&mut vectors, false, watch)? } {
            Header::decode(&bytes).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Receives the control part of a frame, and checks it.
    pub(crate) fn receive_control(&self, header: &Header, watch: &dyn Watch) -> Result<Vec<u8>> {
        let length = header.control_bytes as usize;
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let (at, step) = (bytes.len(), STEP_BYTES.max(bytes.len()).min(length - bytes.len()));
            bytes.resize(at + step, 0);
            let mut vectors = [libc::iovec { iov_base: bytes[at..].as_mut_ptr().cast(), iov_len: step }];
            // SAFETY: the vector is the end of `bytes`, which nothing else borrows during the call.
            unsafe { self.receive(&mut vectors, true, watch)? };
        }
        if crc32c(&bytes) != header.control_crc {
            return Err(damaged("control part"));
        }
        Ok(bytes)
    }

    /// Receives the payload of a frame into a region of the same length, and checks it.
    pub(crate) fn receive_payload(&self, header: &Header, region: &Region, watch: &dyn Watch) -> Result<()> {
        debug_assert_eq!(header.payload_bytes, region.len() as u64);
        let mut groups = Groups::new(region.pointers());
        let mut sum = Crc32c::default();
        let mut vectors = Vec::new();
        while groups.next(&mut vectors) {
            let group = vectors.clone();
            // SAFETY: the runs lie in the region's block, which the region keeps alive. The code that gave
            // the region away for a request leaves its bytes alone until the request is done (see `Block`).
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

    /// Receives bytes and drops them.
    pub(crate) fn discard(&self, mut bytes: u64, watch: &dyn Watch) -> Result<()> {
        let mut unwanted = [0_u8; 16 << 10];
        while bytes > 0 {
            let step = bytes.min(unwanted.len() as u64) as usize;
            let mut vectors = [libc::iovec { iov_base: unwanted.as_mut_ptr().cast(), iov_len: step }];
            // SAFETY: the vector is a part of the array, which nothing else borrows during the call.
            unsafe { self.receive(&mut vectors, true, watch)? };
            bytes -= step as u64;
        }
        Ok(())
    }

    /// Receives the next frame, which must be of `kind`, without a payload, and short. A refusal returns its
    /// error.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::set_option;
    use outcore_memory::{Arena, Segment};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::thread;

    struct Patient;

    impl Watch for Patient {
        fn moved(&self, _bytes: usize) -> Result<()> {
            Ok(())
        }

        fn idle(&self, _is_inside_frame: bool) -> Result<()> {
            Ok(())
        }
    }

    /// A frame with a payload in several runs.
    fn frame(control_bytes: usize) -> Frame {
        let block = Arc::new(Arena::new(16 << 10).allocate(12_000).unwrap());
        let mut payload =
            Region::new(block, (0..40).map(|i| Segment { offset: 300 * i, bytes: 250 }).collect()).unwrap();
        payload.copy_in(0, &(0..10_000).map(|i| (i * 7 % 251) as u8).collect::<Vec<_>>());
        let control = Arc::new(vec![9; control_bytes]);
        let (payload_bytes, payload_crc) = (10_000, payload.crc32c(0, 10_000));
        let header = Header { payload_bytes, payload_crc, ..Header::of(Kind::IoRequest, &control) };
        Frame { header, control, payload, sent: 0 }
    }

    #[test]
    fn what_the_system_takes_at_once_and_the_rest_are_one_frame() {
        for control_bytes in [0, 10, 4000, 9000] {
            for filled in 0..6 {
                let (near, far) = UnixStream::pair().unwrap();
                set_option(near.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 4096).unwrap();
                let (near, far) = (Socket::Unix(near), Socket::Unix(far));
                // Send another frame first.
                let before = Frame::short(Header::of(Kind::Working, &[]), Arc::default());
                (0..filled).for_each(|_| near.send_frame(&before, &Patient).unwrap());
                let mut frame = frame(control_bytes);
                assert!(!near.send_frame_now(&mut frame).unwrap());
                assert!(frame.sent < frame.header.frame_bytes());
                let into = Region::whole(Arc::new(Arena::new(16 << 10).allocate(10_000).unwrap()));
                thread::scope(|scope| {
                    scope.spawn(|| near.send_frame(&frame, &Patient));
                    let receive = || {
                        for _ in 0..filled {
                            assert_eq!(far.receive_header(&Patient)?.unwrap().kind, Kind::Working);
                        }
                        let header = far.receive_header(&Patient)?.unwrap();
                        let control = far.receive_control(&header, &Patient)?;
                        far.receive_payload(&header, &into, &Patient)?;
                        Ok::<_, Error>((header, control))
                    };
                    let received = receive();
                    far.shut(std::net::Shutdown::Both);
                    assert_eq!(received, Ok((frame.header, frame.control.to_vec())));
                });
            }
        }
    }
}
