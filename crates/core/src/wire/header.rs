//! The header of a frame: kind, lengths, and checksums of the whole frame.

use crate::{Error, ErrorKind, Result, crc32c};

/// The first bytes of every frame, in every version.
pub const MAGIC: [u8; 4] = *b"OUTC";

/// The protocol version of this code. It follows [`MAGIC`] in every version.
pub const VERSION: u16 = 13;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 48;

/// Maximum bytes of a control part: four million regions.
pub const MAX_CONTROL_BYTES: u32 = 64 << 20;

/// Maximum bytes of a payload. A server may accept less, and says so in its welcome.
pub const MAX_PAYLOAD_BYTES: u64 = 1 << 30;

/// Maximum number of runs that one request describes, on any servers. Each server walks all of them to find
/// its own.
pub const MAX_RUNS: u64 = 1 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Kind {
    /// The first frame of a client.
    Hello = 1,
    /// The server's challenge to a client, with its own proof.
    Challenge = 2,
    /// The client's proof.
    Proof = 3,
    /// The connection is open for requests.
    Welcome = 4,
    /// The connection is refused or closed.
    Refused = 5,
    /// A request to an I/O server.
    IoRequest = 6,
    /// Its answer.
    IoReply = 7,
    /// A request to the manager.
    ManagerRequest = 8,
    /// Its answer.
    ManagerReply = 9,
    /// The server is working on requests of this connection and has no answer yet.
    Working = 10,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Hello,
        Self::Challenge,
        Self::Proof,
        Self::Welcome,
        Self::Refused,
        Self::IoRequest,
        Self::IoReply,
        Self::ManagerRequest,
        Self::ManagerReply,
        Self::Working,
    ];
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the frame.
    pub kind: Kind,
    /// The number of the request; 0 in frames without one. A retry keeps its number.
    pub request: u64,
    /// In a request: the client will not retry requests with lower numbers, except waits of collectives. 0 in other
    /// frames.
    pub settled: u64,
    /// Bytes of the control part.
    pub control_bytes: u32,
    /// CRC-32C of the control part.
    pub control_crc: u32,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// CRC-32C of the payload.
    pub payload_crc: u32,
}

impl Header {
    /// The header of a frame without payload.
    pub fn of(kind: Kind, control: &[u8]) -> Self {
        Self {
            kind,
            request: 0,
            settled: 0,
            control_bytes: control.len() as u32,
            control_crc: crc32c(control),
            payload_bytes: 0,
            payload_crc: 0,
        }
    }

    /// Bytes of the whole frame.
    pub fn frame_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.control_bytes) + self.payload_bytes
    }

    /// Encodes the header. Refuses a frame that is too long.
    pub fn encode(&self) -> Result<[u8; HEADER_BYTES]> {
        self.check_lengths()?;
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&(self.kind as u16).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.request.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.settled.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.control_bytes.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.control_crc.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c(&bytes[..44]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    /// Decodes a header. Refuses other versions.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self> {
        if bytes[..4] != MAGIC {
            return Err(Error::new(
                ErrorKind::Corrupt,
                "the program at this address does not speak outcore's protocol; check the address",
            ));
        }
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if short(4) != VERSION {
            return Err(Error::invalid(format!(
                "need version {VERSION} of outcore's protocol, the other side has version {}; \
                 install the same outcore on both",
                short(4)
            )));
        }
        if word(44) != crc32c(&bytes[..44]) {
            return Err(Error::new(ErrorKind::Corrupt, "the header of a message was damaged on the way"));
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u16 == short(6)).ok_or_else(|| {
            Error::new(ErrorKind::Corrupt, format!("a message of the unknown kind {}", short(6)))
        })?;
        let header = Self {
            kind,
            request: long(8),
            settled: long(16),
            payload_bytes: long(24),
            control_bytes: word(32),
            control_crc: word(36),
            payload_crc: word(40),
        };
        header.check_lengths()?;
        Ok(header)
    }

    fn check_lengths(&self) -> Result<()> {
        if self.control_bytes > MAX_CONTROL_BYTES || self.payload_bytes > MAX_PAYLOAD_BYTES {
            return Err(Error::invalid(format!(
                "a message of {} bytes of control and {} of payload; at most {MAX_CONTROL_BYTES} and \
                 {MAX_PAYLOAD_BYTES} can be sent; divide the request",
                self.control_bytes, self.payload_bytes
            )));
        }
        Ok(())
    }
}
