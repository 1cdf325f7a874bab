//! Records as bytes: numbers are little-endian, and a count precedes its entries.

use crate::{Error, ErrorKind, Result};

/// Maximum number of entries of a list whose memory exceeds [`MOST_MEMORY_PER_BYTE`] times its encoded bytes.
/// Without this limit, a message of one-byte entries would take a hundred times its length.
const MOST_SHORT_ENTRIES: usize = 1 << 16;
const MOST_MEMORY_PER_BYTE: usize = 4;

/// A type with an encoding in bytes.
pub trait Record: Sized {
    /// Appends the encoding.
    fn put(&self, to: &mut Vec<u8>);

    /// Decodes a value from the front of the remaining bytes.
    fn take(from: &mut Source<'_>) -> Result<Self>;
}

/// Encodes a record.
pub fn encode<R: Record>(record: &R) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.put(&mut bytes);
    bytes
}

/// Decodes a record from all of `bytes`.
pub fn decode<R: Record>(bytes: &[u8]) -> Result<R> {
    let mut source = Source { left: bytes };
    let record = R::take(&mut source)?;
    match source.left.len() {
        0 => Ok(record),
        extra => Err(damaged(format!("it has {extra} bytes too many"))),
    }
}

/// The remaining bytes of a record.
#[derive(Debug)]
pub struct Source<'a> {
    left: &'a [u8],
}

impl<'a> Source<'a> {
    /// Whether no bytes remain.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The next `count` bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((front, left)) = self.left.split_at_checked(count) else {
            return Err(damaged(format!("need {count} more bytes, have {}", self.left.len())));
        };
        self.left = left;
        Ok(front)
    }

    /// The number of the following entries, of at least `least_bytes` each.
    pub(crate) fn count(&mut self, least_bytes: usize) -> Result<usize> {
        let count = u64::take(self)?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left.len() / least_bytes => Ok(count),
            _ => Err(damaged(format!("{count} entries are announced in {} bytes", self.left.len()))),
        }
    }
}

pub(crate) fn damaged(how: impl std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("a message cannot be read: {how}; use the same outcore everywhere"),
    )
}

macro_rules! number {
    ($($type:ident)*) => {$(
        impl Record for $type {
            fn put(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }

            fn take(from: &mut Source<'_>) -> Result<Self> {
                let mut bytes = [0; size_of::<$type>()];
                bytes.copy_from_slice(from.bytes(size_of::<$type>())?);
                Ok(Self::from_le_bytes(bytes))
            }
        }
    )*};
}

number!(u8 u16 u32 u64 u128 i64);

impl Record for bool {
    fn put(&self, to: &mut Vec<u8>) {
        to.push(u8::from(*self));
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        match u8::take(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(damaged(format!("{other} is neither true nor false"))),
        }
    }
}

impl Record for [u8; 32] {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(from.bytes(32)?);
        Ok(bytes)
    }
}

impl Record for String {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u64).put(to);
        to.extend_from_slice(self.as_bytes());
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let length = from.count(1)?;
        let text = std::str::from_utf8(from.bytes(length)?);
        text.map(str::to_owned).map_err(|_| damaged("a name is not UTF-8"))
    }
}

impl<R: Record> Record for Option<R> {
    fn put(&self, to: &mut Vec<u8>) {
        self.is_some().put(to);
        if let Some(record) = self {
            record.put(to);
        }
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        if bool::take(from)? { R::take(from).map(Some) } else { Ok(None) }
    }
}

impl<R: Record> Record for Box<R> {
    fn put(&self, to: &mut Vec<u8>) {
        (**self).put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        R::take(from).map(Self::new)
    }
}

impl<R: Record> Record for Vec<R> {
    fn put(&self, to: &mut Vec<u8>) {
        (self.len() as u64).put(to);
        for record in self {
            record.put(to);
        }
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        let count = from.count(1)?;
        let memory = count.saturating_mul(size_of::<R>());
        if count > MOST_SHORT_ENTRIES && memory / MOST_MEMORY_PER_BYTE > from.left.len() {
            return Err(damaged(format!(
                "{count} entries in {} bytes, at most {MOST_SHORT_ENTRIES} may be so short",
                from.left.len()
            )));
        }
        // The count is untrusted: reserve memory only for the bytes that are there, and let the list grow.
        let mut records = Self::with_capacity(count.min(from.left.len() / size_of::<R>().max(1)));
        for _ in 0..count {
            records.push(R::take(from)?);
        }
        Ok(records)
    }
}

impl<A: Record, B: Record> Record for (A, B) {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
        self.1.put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        Ok((A::take(from)?, B::take(from)?))
    }
}

/// Implements `Record` for a structure: its fields in this order.
macro_rules! structure {
    ($type:ident { $($field:tt),* $(,)? }) => {
        impl crate::wire::Record for $type {
            fn put(&self, to: &mut Vec<u8>) {
                $(crate::wire::Record::put(&self.$field, to);)*
            }

            fn take(from: &mut crate::wire::Source<'_>) -> crate::Result<Self> {
                Ok(Self { $($field: crate::wire::Record::take(from)?),* })
            }
        }
    };
}

/// Implements `Record` for an enum: a tag byte for the variant, then its fields in this order.
macro_rules! choice {
    ($type:ident { $($tag:literal = $variant:ident $({ $($field:ident),* })? $(($inner:ident))?),* $(,)? }) => {
        impl crate::wire::Record for $type {
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field),* })? $(($inner))? => {
                        to.push($tag);
                        $($(crate::wire::Record::put($field, to);)*)?
                        $(crate::wire::Record::put($inner, to);)?
                    })*
                }
            }

            fn take(from: &mut crate::wire::Source<'_>) -> crate::Result<Self> {
                Ok(match <u8 as crate::wire::Record>::take(from)? {
                    $($tag => Self::$variant
                        $({ $($field: crate::wire::Record::take(from)?),* })?
                        $(({ let $inner = crate::wire::Record::take(from)?; $inner }))?,)*
                    other => {
                        let what = concat!("of ", stringify!($type));
                        return Err(crate::wire::record::damaged(format!("{other} is no kind {what}")));
                    }
                })
            }
        }
    };
}

pub(crate) use {choice, structure};
