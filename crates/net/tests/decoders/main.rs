//! Correct messages with changes: each gives an error, or another message that survives encoding and
//! decoding. The memory is bounded by the length of the message. `make fuzz` runs this for minutes, with a
//! seed that it prints.

#![allow(clippy::unwrap_used, reason = "a strategy that fails is a test that fails")]

mod allocator;
mod edits;
#[path = "../../../core/tests/wire/messages.rs"]
mod messages;

use std::fmt::Debug;

use outcore_core::wire::{
    Challenge, HEADER_BYTES, Header, Hello, Kind, MAX_CONTROL_BYTES, Proof, Record, Refused, Welcome, decode,
    encode,
};
use outcore_core::{Error, IoReply, IoRequest, Known, ManagerReply, ManagerRequest, Regions};
use proptest::prelude::*;

use allocator::{Counting, most_bytes};
use edits::{edited, edits};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

type Outcome = std::result::Result<(), TestCaseError>;

/// Entries of a list that may be shorter on the wire than in memory.
const SMALL_ENTRIES: usize = 1 << 16;

/// Memory bound for a message of `bytes` bytes: its lists in memory, while the longest of them grows, and an
/// error.
fn bound(bytes: usize) -> usize {
    128 * bytes + 1024
}

/// Any bytes give an error, or a record that survives encoding and decoding.
fn decides<R: Record + PartialEq + Debug>(bytes: &[u8]) -> Outcome {
    let (decoded, most) = most_bytes(|| decode::<R>(bytes));
    prop_assert!(most <= bound(bytes.len()), "{} bytes of memory for {}", most, bytes.len());
    if let Ok(record) = decoded {
        let again = encode(&record);
        let back = decode::<R>(&again);
        prop_assert_eq!(back.as_ref(), Ok(&record));
    }
    Ok(())
}

fn all_decide(bytes: &[u8]) -> Outcome {
    decides::<IoRequest>(bytes)?;
    decides::<IoReply>(bytes)?;
    decides::<ManagerRequest>(bytes)?;
    decides::<ManagerReply>(bytes)?;
    decides::<Hello>(bytes)?;
    decides::<Challenge>(bytes)?;
    decides::<Proof>(bytes)?;
    decides::<Welcome>(bytes)?;
    decides::<Refused>(bytes)?;
    decides::<Regions>(bytes)?;
    decides::<Error>(bytes)
}

/// The bytes of any message between clients and servers.
fn message() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => messages::io_request().prop_map(|record| encode(&record)),
        2 => messages::io_reply().prop_map(|record| encode(&record)),
        4 => messages::manager_request().prop_map(|record| encode(&record)),
        2 => messages::manager_reply().prop_map(|record| encode(&record)),
        1 => messages::hello().prop_map(|record| encode(&record)),
        1 => messages::challenge().prop_map(|record| encode(&record)),
        1 => messages::ends_of_hello()
            .prop_map(|(proof, welcome, refused)| [encode(&proof), encode(&welcome), encode(&refused)].concat()),
        1 => messages::regions().prop_map(|record| encode(&record)),
    ]
}

proptest! {
    #[test]
    fn changed_messages_are_errors_or_messages(bytes in message(), other in message(), edits in edits()) {
        all_decide(&edited(bytes, &other, &edits))?;
    }

    #[test]
    fn random_bytes_are_errors_or_messages(bytes in prop::collection::vec(any::<u8>(), 0..400), tag in 0_u8..24) {
        all_decide(&bytes)?;
        let tagged: Vec<u8> = [tag].into_iter().chain(bytes).collect();
        all_decide(&tagged)?;
    }

    #[test]
    fn changed_headers_are_errors_or_headers(
        kind in 0..Kind::ALL.len(), numbers in any::<[u64; 2]>(), control in message(), other in message(),
        edits in edits(), is_signed in any::<bool>(),
    ) {
        let header = Header { request: numbers[0], settled: numbers[1], ..Header::of(Kind::ALL[kind], &control) };
        let mut bytes = edited(header.encode().unwrap().to_vec(), &other, &edits);
        bytes.resize(HEADER_BYTES, 0);
        let mut bytes: [u8; HEADER_BYTES] = bytes.try_into().unwrap();
        if is_signed {
            // Otherwise the checksum would reject almost every change.
            let sum = outcore_core::crc32c(&bytes[..44]);
            bytes[44..].copy_from_slice(&sum.to_le_bytes());
        }
        if let Ok(found) = Header::decode(&bytes) {
            prop_assert!(found.control_bytes <= MAX_CONTROL_BYTES);
            prop_assert_eq!(found.encode(), Ok(bytes));
        }
    }
}

#[test]
fn short_entries_of_a_long_list_are_refused_before_they_take_memory() {
    // A reply of the manager that says "unused" for many handles: one byte for each.
    for (count, is_right) in [(SMALL_ENTRIES, true), (SMALL_ENTRIES + 1, false), (8 << 20, false)] {
        let mut bytes = vec![11];
        bytes.extend((count as u64).to_le_bytes());
        bytes.resize(bytes.len() + count, 4);
        bytes.push(0);
        let (decoded, most) = most_bytes(|| decode::<ManagerReply>(&bytes));
        assert!(most <= SMALL_ENTRIES * 4 * size_of::<Known>(), "{most} bytes for {count} entries");
        assert_eq!(decoded.is_ok(), is_right, "{count} entries");
    }
}

#[test]
fn long_lists_of_what_is_long_are_read() {
    let handles = (0..1_000_000).map(outcore_core::Handle).collect();
    let request = ManagerRequest::Know { handles };
    assert_eq!(decode::<ManagerRequest>(&encode(&request)), Ok(request));
}
