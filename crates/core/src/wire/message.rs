//! Messages of clients and I/O servers as bytes, and what all messages are made of.

use crate::wire::record::{Record, Source, choice, structure};
use crate::{
    Error, ErrorKind, Grant, Handle, IoReply, IoRequest, IoStatus, Result, ServerId, Stripes, Target,
};

structure!(ServerId { 0 });
structure!(Handle { 0 });
structure!(Target { handle, stripes, entry });
structure!(Grant { handle, write, expires_s, mac });
structure!(IoStatus { free_bytes, requests, bytes_read, bytes_written, damaged_blocks });
structure!(Error { kind, message });

choice!(IoRequest {
    1 = Read { target, grant, regions },
    2 = Write { target, grant, regions },
    3 = Sync { target, grant },
    4 = Length { target, grant },
    5 = SetLength { target, grant, local_length, reserve },
    6 = Remove { target, grant },
    7 = Status,
});

choice!(IoReply {
    1 = Done,
    2 = Length(bytes),
    3 = Status(status),
    4 = Failed(error),
});

impl Record for Stripes {
    fn put(&self, to: &mut Vec<u8>) {
        self.unit_bytes().put(to);
        self.count().put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        Self::new(u64::take(from)?, u64::take(from)?)
    }
}

impl Record for ErrorKind {
    /// By name: a kind that is new to who reads it is an error all the same.
    fn put(&self, to: &mut Vec<u8>) {
        to.push(self.name().len() as u8);
        to.extend_from_slice(self.name().as_bytes());
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let length = usize::from(u8::take(from)?);
        let name = from.bytes(length)?;
        Ok(Self::ALL.into_iter().find(|kind| kind.name().as_bytes() == name).unwrap_or(Self::Io))
    }
}
