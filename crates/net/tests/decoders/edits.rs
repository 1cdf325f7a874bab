//! Damage to correct bytes: flipped bits, missing ends, other lengths, parts of other messages.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Critical values of lengths and counts.
const NUMBERS: [u64; 8] = [0, 1, u32::MAX as u64, 1 << 32, (1 << 40) + 1, i64::MAX as u64, 1 << 63, u64::MAX];

/// A change of bytes.
#[derive(Clone, Debug)]
pub enum Edit {
    /// A bit changes.
    Flip(Index, u8),
    /// Eight bytes become one of the critical values.
    Number(Index, usize),
    /// A number of 8 bytes changes by a small amount.
    Add(Index, i8),
    /// The end is missing.
    Cut(Index),
    /// Bytes are missing.
    Lose(Index, u8),
    /// Bytes come twice.
    Repeat(Index, u8),
    /// The rest is replaced by another message, from a random byte of it.
    Splice(Index, Index),
}

/// One to four changes.
pub fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let at = any::<Index>;
    let edit = prop_oneof![
        (at(), 0_u8..8).prop_map(|(at, bit)| Edit::Flip(at, bit)),
        (at(), 0..NUMBERS.len()).prop_map(|(at, which)| Edit::Number(at, which)),
        (at(), any::<i8>()).prop_map(|(at, by)| Edit::Add(at, by)),
        at().prop_map(Edit::Cut),
        (at(), any::<u8>()).prop_map(|(at, count)| Edit::Lose(at, count)),
        (at(), any::<u8>()).prop_map(|(at, count)| Edit::Repeat(at, count)),
        (at(), at()).prop_map(|(at, from)| Edit::Splice(at, from)),
    ];
    vec(edit, 1..5)
}

/// The bytes after all changes; `other` is the message to splice in.
pub fn edited(mut bytes: Vec<u8>, other: &[u8], edits: &[Edit]) -> Vec<u8> {
    for edit in edits {
        let places = bytes.len() + 1;
        let place = |index: &Index| index.index(places);
        match edit {
            Edit::Flip(at, bit) if !bytes.is_empty() => {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            Edit::Flip(..) => {}
            Edit::Number(at, which) => put(&mut bytes, place(at), NUMBERS[*which]),
            Edit::Add(at, by) => {
                let at = place(at);
                let old = bytes
                    .get(at..at + 8)
                    .map_or(0, |old| u64::from_le_bytes(old.try_into().expect("eight bytes")));
                put(&mut bytes, at, old.wrapping_add_signed(i64::from(*by)));
            }
            Edit::Cut(at) => bytes.truncate(place(at)),
            Edit::Lose(at, count) => {
                let at = place(at);
                bytes.drain(at..(at + usize::from(*count)).min(bytes.len()));
            }
            Edit::Repeat(at, count) => {
                let at = place(at);
                let again = bytes[at..(at + usize::from(*count)).min(bytes.len())].to_vec();
                bytes.splice(at..at, again);
            }
            Edit::Splice(at, from) => {
                bytes.truncate(place(at));
                bytes.extend(&other[from.index(other.len() + 1)..]);
            }
        }
    }
    bytes
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    if let Some(place) = bytes.get_mut(at..at + 8) {
        place.copy_from_slice(&number.to_le_bytes());
    }
}
