//! The header is that of the code.

use std::path::{Path, PathBuf};

/// The files of the interface, in the order of the header.
const SOURCES: [&str; 12] = [
    "context",
    "pool",
    "hints",
    "file",
    "signs",
    "locks",
    "regions",
    "request",
    "vectored",
    "names",
    "array",
    "collective",
];

fn made() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let source = |name: &str| root.join("src").join(name).with_extension("rs");
    let builder = SOURCES
        .iter()
        .fold(cbindgen::Builder::new().with_config(config), |builder, name| builder.with_src(source(name)));
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    without_safety(&String::from_utf8(text).unwrap())
}

/// The header without the sections on safety, which are about pointers in Rust.
fn without_safety(text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut skips = false;
    for line in text.lines() {
        let comment = line.strip_prefix("//");
        if comment == Some(" # Safety") {
            skips = true;
            while lines.last() == Some(&"//") {
                lines.pop();
            }
        }
        skips &= comment.is_some();
        if !skips {
            lines.push(line);
        }
    }
    lines.join("\n") + "\n"
}

/// Every function of the interface is in one of the files.
#[test]
fn no_file_is_missing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let has_entry =
        |path: &PathBuf| std::fs::read_to_string(path).unwrap().contains("#[unsafe(no_mangle)]\n");
    let mut found: Vec<String> =
        paths.filter(has_entry).map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let mut known = SOURCES.to_vec();
    found.retain(|name| name != "header");
    found.sort_unstable();
    known.sort_unstable();
    assert_eq!(found, known);
}

/// With the variable `OUTCORE_WRITE_HEADER`, this makes the header.
#[test]
fn the_header_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/outcore.h");
    let made = made();
    if std::env::var_os("OUTCORE_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == made,
        "include/outcore.h is not that of the code; make it: OUTCORE_WRITE_HEADER=1 cargo test -p outcore-capi header"
    );
}
