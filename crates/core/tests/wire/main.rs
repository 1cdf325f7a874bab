//! Frames and records: round trips, and bytes that no correct peer sends. (`crates/net/tests/decoders` tests
//! changed and random bytes.)

#![allow(clippy::unwrap_used, reason = "a strategy that fails is a test that fails")]

mod messages;
mod page;

use std::fmt::Debug;

use outcore_core::wire::*;
use outcore_core::*;
use proptest::prelude::*;

/// Encodes and decodes a record; all truncations of the bytes, and an extension, must be refused.
fn returns<R: Record + PartialEq + Debug>(record: &R) -> std::result::Result<(), TestCaseError> {
    let bytes = encode(record);
    let again = decode::<R>(&bytes);
    prop_assert_eq!(again.as_ref(), Ok(record));
    for end in (0..bytes.len()).step_by(1 + bytes.len() / 50) {
        prop_assert!(decode::<R>(&bytes[..end]).is_err(), "cut to {} of {}", end, bytes.len());
    }
    let longer: Vec<u8> = bytes.iter().copied().chain([0]).collect();
    prop_assert!(decode::<R>(&longer).is_err(), "a byte too many");
    Ok(())
}

fn header() -> impl Strategy<Value = Header> {
    (0..Kind::ALL.len(), any::<[u64; 2]>(), 0..=MAX_CONTROL_BYTES, 0..=MAX_PAYLOAD_BYTES, any::<[u32; 2]>())
        .prop_map(|(kind, numbers, control_bytes, payload_bytes, crcs)| Header {
            kind: Kind::ALL[kind],
            request: numbers[0],
            settled: numbers[1],
            control_bytes,
            control_crc: crcs[0],
            payload_bytes,
            payload_crc: crcs[1],
        })
}

proptest! {
    #[test]
    fn headers_return(header in header()) {
        prop_assert_eq!(Header::decode(&header.encode().unwrap()), Ok(header));
    }

    #[test]
    fn a_flipped_bit_in_a_header_is_noticed(header in header(), bit in 0..HEADER_BYTES * 8) {
        let mut bytes = header.encode().unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Header::decode(&bytes).is_err());
    }

    #[test]
    fn requests_return(request in messages::io_request()) {
        returns(&request)?;
    }

    #[test]
    fn replies_return(reply in messages::io_reply()) {
        returns(&reply)?;
    }

    #[test]
    fn requests_to_the_manager_return(request in messages::manager_request()) {
        returns(&request)?;
    }

    #[test]
    fn replies_of_the_manager_return(reply in messages::manager_reply()) {
        returns(&reply)?;
    }

    #[test]
    fn greetings_return(
        hello in messages::hello(), challenge in messages::challenge(), ends in messages::ends_of_hello(),
    ) {
        returns(&hello)?;
        returns(&challenge)?;
        returns(&ends.0)?;
        returns(&ends.1)?;
        returns(&ends.2)?;
    }
}

#[test]
fn a_length_of_2_to_the_63_is_refused_before_memory_is_taken() {
    let honest = Header::of(Kind::IoRequest, b"");
    for (control_bytes, payload_bytes) in [(0, 1 << 63), (0, u64::MAX), (u32::MAX, 0)] {
        let header = Header { control_bytes, payload_bytes, ..honest };
        assert!(header.encode().is_err());
        let mut bytes = honest.encode().unwrap();
        bytes[24..32].copy_from_slice(&payload_bytes.to_le_bytes());
        bytes[32..36].copy_from_slice(&control_bytes.to_le_bytes());
        let crc = crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        let error = Header::decode(&bytes).unwrap_err();
        assert!(error.message.contains("at most"), "{error}");
    }
    for count in [1_u64 << 63, u64::MAX, 1 << 40] {
        let mut names = vec![6];
        names.extend(count.to_le_bytes());
        assert!(decode::<ManagerReply>(&names).is_err(), "{count} names");
        let mut regions = count.to_le_bytes().to_vec();
        regions.extend([0; 64]);
        assert!(decode::<Regions>(&regions).is_err(), "{count} regions");
        assert!(decode::<String>(&regions).is_err(), "a name of {count} bytes");
    }
    // A run of 2^63 bytes, and one that ends there.
    for (offset, run) in [(0, 1_u64 << 63), ((1 << 63) - 1, 1), (1, i64::MAX as u64)] {
        let bytes = [1_u64, offset, run].map(u64::to_le_bytes).concat();
        assert!(decode::<Regions>(&bytes).is_err(), "{offset} {run}");
    }
}

#[test]
fn strides_without_end_are_refused() {
    for depth in [0_u8, 17, 255] {
        let mut bytes = [1_u64, 1 << 63, 8].map(u64::to_le_bytes).concat();
        bytes.push(depth);
        bytes.extend([1; 16 * 255]);
        bytes.truncate(25 + 16 * usize::from(depth));
        assert!(decode::<Regions>(&bytes).is_err(), "{depth} strides inside each other");
    }
}

#[test]
fn a_foreign_version_is_refused_in_words() {
    let mut bytes = Header::of(Kind::Hello, b"").encode().unwrap();
    bytes[4] = 7;
    let error = Header::decode(&bytes).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("version 13") && error.message.contains("version 7"), "{error}");
    let error = Header::decode(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/htm").unwrap_err();
    assert!(error.message.contains("check the address"), "{error}");
}

#[test]
fn a_kind_of_error_that_is_new_is_an_error_all_the_same() {
    let error = Error::new(ErrorKind::Io, "what");
    let bytes = encode(&error);
    assert_eq!(&bytes[..3], b"\x02io");
    let mut foreign = b"\x09brand-new".to_vec();
    foreign.extend(&bytes[3..]);
    assert_eq!(decode::<Error>(&foreign), Ok(error));
}

#[test]
fn a_million_regions_take_sixteen_bytes_each() {
    let part = |i: u64| Nested { offset: i * 8192, run_bytes: 4096, levels: vec![] };
    let regions = Regions::new((0..1_000_000).map(part).collect()).unwrap();
    let bytes = encode(&regions);
    assert_eq!(bytes.len(), 8 + 16 * 1_000_000);
    assert_eq!(decode::<Regions>(&bytes).as_ref(), Ok(&regions));
}
