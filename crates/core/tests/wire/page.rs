//! docs/protocol.md against the code: its vectors are the bytes on the wire.

use outcore_core::wire::*;
use outcore_core::*;

/// The bytes of a block of the page. Each line has hexadecimal digits, two spaces and a description.
fn marked(name: &str) -> Vec<u8> {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md"));
    let page = page.expect("docs/protocol.md");
    let mark = format!("<!-- golden: {name} -->\n```text\n");
    let (_, from) = page.split_once(&mark).unwrap_or_else(|| panic!("no mark {name:?} on the page"));
    let (block, _) = from.split_once("```").expect("the end of the block");
    let digits = block.lines().flat_map(|line| line.split("  ").next()).flat_map(str::split_whitespace);
    digits.map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal")).collect()
}

fn frame(header: Header, control: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = Header {
        payload_bytes: payload.len() as u64,
        payload_crc: if payload.is_empty() { 0 } else { crc32c(payload) },
        ..header
    };
    [&header.encode().unwrap()[..], control, payload].concat()
}

fn same(name: &str, found: &[u8]) {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(" ");
    assert_eq!(hex(&marked(name)), hex(found), "{name}");
}

#[test]
fn the_write_of_the_page() {
    let target = Target {
        handle: Handle(5),
        stripes: Stripes::new(65_536, 2).unwrap().with_round_units(Some(3)).unwrap(),
        entry: 1,
        generation: 9,
    };
    let grant = Grant { handle: Handle(5), write: true, expires_s: 1_800_000_000, mac: [0xAB; 32] };
    let parts = vec![
        Nested { offset: 65_536, run_bytes: 2, levels: vec![] },
        Nested { offset: 65_600, run_bytes: 1, levels: vec![Level { count: 2, step_bytes: 16 }] },
    ];
    let regions = Regions::new(parts).unwrap();
    let control = encode(&IoRequest::Write { target, grant, regions });
    let header = Header { request: 18, settled: 17, ..Header::of(Kind::IoRequest, &control) };
    same("write", &frame(header, &control, &[1, 2, 3, 4]));
}

#[test]
fn the_welcome_of_the_page() {
    let incarnation = Incarnation(0x0123_4567_89ab_cdef);
    let control = encode(&Welcome { payload_bytes: 8 << 20, working_ms: 1000, incarnation });
    same("welcome", &frame(Header::of(Kind::Welcome, &control), &control, &[]));
}

#[test]
fn the_refusal_of_the_page() {
    let control = encode(&Refused { error: Error::new(ErrorKind::Denied, "no") });
    same("refused", &frame(Header::of(Kind::Refused, &control), &control, &[]));
}

#[test]
fn the_scrub_of_the_page() {
    let place = |handle, offset| ScrubPlace { handle: Handle(handle), offset };
    let request = IoRequest::Scrub { from: place(0x1a2b, 65_536), most_bytes: 8 << 20 };
    same("scrub", &encode(&request));
    let damage = Damage { handle: Handle(0x1a2b), offset: 3 * 65_536, bytes: 65_536, what: "no".into() };
    let next = Some(place(0x1b2b, 0));
    let reply = Scrubbed { next, files: 2, bytes: (8 << 20) + (4 << 16), damage: vec![damage] };
    same("scrubbed", &encode(&IoReply::Scrubbed(Box::new(reply))));
}

#[test]
fn the_kinds_of_the_page() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md"));
    let page = page.expect("docs/protocol.md");
    for kind in Kind::ALL {
        assert!(page.contains(&format!("| {} | `{kind:?}` |", kind as u16)), "{kind:?}");
    }
    for (name, value) in [
        ("control", u64::from(MAX_CONTROL_BYTES)),
        ("payload", MAX_PAYLOAD_BYTES),
        ("header", HEADER_BYTES as u64),
    ] {
        assert!(page.contains(&format!("{value} bytes")), "the bytes of a {name}");
    }
    assert!(MAX_RUNS == 1_048_576 && page.contains("1,048,576 runs"));
}
