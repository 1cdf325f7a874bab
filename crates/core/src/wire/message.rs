//! Messages between clients and I/O servers as bytes, and the building blocks of all messages.

use crate::wire::record::{Record, Source, choice, structure};
use crate::{
    Damage, DataFile, DiskSize, Error, ErrorKind, Grant, Handle, Inspection, IoReply, IoRequest, IoStatus,
    LengthGrant, Result, ScrubPlace, Scrubbed, ServerId, ServerSpan, ServerSpans, Stripes, Target,
};

structure!(ServerId { 0 });
structure!(Handle { 0 });
structure!(Target { handle, stripes, entry, generation });
structure!(Grant { handle, write, expires_s, mac });
structure!(DiskSize { total_bytes, total_files, free_files });
structure!(IoStatus {
    free_bytes,
    disk,
    requests,
    bytes_read,
    bytes_written,
    direct_bytes,
    damaged_blocks,
    noted_files,
    is_writable,
});
structure!(LengthGrant { expires_s, mac });
structure!(Error { kind, message });
structure!(ScrubPlace { handle, offset });
structure!(DataFile { handle, length });
structure!(Inspection { file, sums_length, summed_past_end, generation, surplus, sums_are_old });
structure!(Damage { handle, offset, bytes, what });
structure!(Scrubbed { next, files, bytes, damage });
structure!(ServerSpan { name, start_ns, end_ns, offset, bytes });
structure!(ServerSpans { now_ns, unix_ns, complete_after_ns, names, spans });

choice!(IoRequest {
    1 = Read { target, grant, regions },
    2 = Write { target, grant, regions },
    3 = Sync { target, grant },
    4 = Length { target, grant },
    5 = SetLength { target, grant, local_length, reserve },
    6 = Remove { target, grant },
    7 = Status,
    8 = Scrub { from, most_bytes },
    9 = DataFiles { after, most },
    10 = Inspect { handles },
    11 = Lengths { handles, grant, targets },
    12 = Join { target, grant, spec, rank, memory },
    13 = Await { collective, rank, round },
    14 = Give { collective, rank, piece, bytes },
    15 = Take { collective, rank, piece, bytes },
    16 = Abandon { collective, rank, error },
    17 = Cut { handles },
    18 = Reserve { target, grant, local_length },
    19 = Metrics,
    20 = Spans,
});

choice!(IoReply {
    1 = Done,
    2 = Length(bytes),
    3 = Status(status),
    4 = Failed(error),
    5 = Scrubbed(scrubbed),
    6 = DataFiles { files, more },
    7 = Inspected(files),
    8 = Lengths(bytes),
    9 = Absent,
    10 = ReadsMemory,
    11 = Synced { length, generation },
    12 = Metrics(text),
    13 = Spans(spans),
});

impl Record for Stripes {
    fn put(&self, to: &mut Vec<u8>) {
        self.unit_bytes().put(to);
        self.count().put(to);
        self.round_units().put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        Self::new(u64::take(from)?, u64::take(from)?)?.with_round_units(Record::take(from)?)
    }
}

impl Record for ErrorKind {
    /// Encodes the name: a reader that does not know a kind still gets an error.
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
