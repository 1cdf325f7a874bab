//! Comparison of `docs/format.md` with the code.

use std::fmt::Write;

use outcore_core::{Handle, Names};
use outcore_server::io_server::{data_path, sums_path};

use crate::world::{World, small_limits};

/// The code block that follows a mark on the page.
fn golden(name: &str) -> String {
    let page = include_str!("../../../../docs/format.md");
    let mark = format!("<!-- golden: {name} -->\n");
    let after = page.split_once(&mark).unwrap_or_else(|| panic!("docs/format.md has no mark {name:?}")).1;
    let block = after.split_once('\n').unwrap().1.split_once("\n```").unwrap().0;
    format!("{block}\n")
}

fn hex(bytes: &[u8]) -> String {
    bytes.chunks(8).fold(String::new(), |mut line, word| {
        if !line.is_empty() {
            line.push(' ');
        }
        for byte in word {
            write!(line, "{byte:02x}").unwrap();
        }
        line
    })
}

#[test]
fn the_bytes_of_a_server_are_those_of_the_page() {
    let mut world = World::new(1, small_limits());
    let handle = Handle(0x1A2B);
    world.write(handle.0, 65536, b"123456789").unwrap();
    let log = world.disk.content("log.1").unwrap();
    world.sync(handle.0).unwrap();
    let data = world.disk.content(&data_path(handle)).unwrap();
    let sums = world.disk.content(&sums_path(handle)).unwrap();
    assert_eq!((data.len(), sums.len()), (65545, 8192));
    assert!(sums[4104..].iter().all(|byte| *byte == 0));
    let mut page = String::new();
    writeln!(page, "{} at 65536    {}", data_path(handle), hex(&data[65536..])).unwrap();
    writeln!(page, "{} at 2048    {}", sums_path(handle), hex(&sums[2048..2100])).unwrap();
    writeln!(page, "{} at 4096    {}", sums_path(handle), hex(&sums[4096..4104])).unwrap();
    for (name, at) in [("page 0", 0), ("page 1", 4096), ("record 0 of page 1", 4128)] {
        writeln!(page, "log.1, {name}    {}", hex(&log[at..at + 32])).unwrap();
    }
    assert_eq!(page, golden("io server"));
}

#[test]
fn the_marker_is_that_of_the_page() {
    let root = tempfile::tempdir().unwrap();
    drop(crate::runner::start(root.path(), 3).unwrap());
    let directory = outcore_disk::Directory::new(root.path()).unwrap();
    let marker = Names::read_small(&directory, "server.json").unwrap();
    assert_eq!(String::from_utf8(marker).unwrap(), golden("server.json"));
}

#[test]
fn a_directory_of_the_first_format_gets_the_marker_of_this_one() {
    let root = tempfile::tempdir().unwrap();
    drop(crate::runner::start(root.path(), 3).unwrap());
    let directory = outcore_disk::Directory::new(root.path()).unwrap();
    let first = golden("server.json").replace("\"format\": 2", "\"format\": 1");
    Names::replace_small(&directory, "server.json", first.as_bytes()).unwrap();
    drop(crate::runner::start(root.path(), 3).unwrap());
    let marker = Names::read_small(&directory, "server.json").unwrap();
    assert_eq!(String::from_utf8(marker).unwrap(), golden("server.json"));
}
