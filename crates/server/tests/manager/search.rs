//! Searches: fields and types, rights, pages, the index beside changes of names and attributes, and its repair.

use outcore_core::{ErrorKind, Hints, Hit, ManagerReply, ManagerRequest, Result};
use outcore_server::manager::{DESCRIBING_ATTRIBUTE, MAX_MADE_ON_THE_WAY, Manager, User};
use outcore_server::store::conformance::{delete, put};
use outcore_server::store::{MAX_RANGE, MemoryStore, Store};

use crate::pool::*;

fn pages(
    manager: &mut Manager<MemoryStore>,
    who: &User,
    path: &str,
    query: &str,
    most: u64,
) -> Result<Vec<Hit>> {
    let (mut found, mut after) = (Vec::new(), Vec::new());
    loop {
        let request = ManagerRequest::Find { path: path.into(), query: query.into(), after, most };
        match ask(manager, who, request)? {
            ManagerReply::Found { hits, next } => {
                found.extend(hits);
                let Some(next) = next else { return Ok(found) };
                after = next;
            }
            other => panic!("answered by {other:?}"),
        }
    }
}

/// The sorted paths of a search, the same with pages of one record and without the index.
fn find_as(manager: &mut Manager<MemoryStore>, who: &User, path: &str, query: &str) -> Vec<String> {
    let mut paths = |query: &str, most| {
        let hits = pages(manager, who, path, query, most).unwrap_or_else(|error| panic!("{query}: {error}"));
        let mut paths: Vec<String> = hits.into_iter().map(|hit| hit.path).collect();
        paths.sort();
        paths.dedup();
        paths
    };
    let found = paths(query, 1000);
    assert_eq!(paths(query, 1), found, "{query}");
    if !query.is_empty() {
        // No file has an empty name, and the index has no names.
        assert_eq!(paths(&format!("({query}) or name = \"\""), 1000), found, "{query}");
    }
    found
}

fn find(manager: &mut Manager<MemoryStore>, query: &str) -> Vec<String> {
    find_as(manager, &root(), "", query)
}

fn describe(manager: &mut Manager<MemoryStore>, path: &str, description: &str) {
    let request = set_extended(path, DESCRIBING_ATTRIBUTE, Some(description.as_bytes()));
    ask(manager, &root(), request).unwrap();
}

/// Two runs with arrays, and a plain file with a tail.
fn runs() -> (MemoryStore, Manager<MemoryStore>) {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 2);
    for (run, n) in [("x12", 60_000_u64), ("x13", 40_000)] {
        let path = format!("runs/{run}/A");
        ask(&mut manager, &root(), make_directory(&path, 0o755)).unwrap();
        let size = 16 * n * n;
        describe(
            &mut manager,
            &path,
            &format!(
                r#"{{"kind": "array", "dtype": "c16", "shape": [{n}, {n}], "dims": ["row", "column"], "size": {size}}}"#
            ),
        );
        ask(&mut manager, &root(), set_extended(&path, "run", Some(run.as_bytes()))).unwrap();
        ask(&mut manager, &root(), set_extended(&path, "level", Some(b"5"))).unwrap();
    }
    let hints = Hints { stripe_count: Some(1), ..Hints::default() };
    ask(&mut manager, &root(), create_with("runs/notes.txt", hints)).unwrap();
    ask(&mut manager, &root(), set_time("runs/notes.txt", 1_793_491_200 * SECOND_NS)).unwrap();
    ask(&mut manager, &root(), set_owner("runs/notes.txt", Some(1000), None)).unwrap();
    (store, manager)
}

#[test]
fn fields_of_all_kinds_are_found() {
    let (_, mut manager) = runs();
    let (x12, x13, notes) = ("runs/x12/A", "runs/x13/A", "runs/notes.txt");
    let both = &[x12, x13][..];
    for (query, expected) in [
        (r#"dtype = "c16" and shape[0] > 50000 and attr.run = "x12""#, &[x12][..]),
        (r#"dtype = "c16" AND (shape[1] <= 4e4 OR attr.run = 'x12')"#, both),
        (r#"attr.run ~ "x*""#, both),
        (r#"attr.run ~ "*3""#, &[x13]),
        (r#"attr.run != "x12""#, &[x13]),
        (r#"kind = "array" and not attr.run = "x12""#, &[x13]),
        ("attr.level = 5", both),
        (r#"attr.level = "5""#, both),
        ("attr.level < 4.5", &[]),
        (r#"attr."level" >= 5"#, both),
        ("size > 50 GB", &[x12]),
        ("size > 2e10 and size < 30 GB", &[x13]),
        (r#"dims = "row" and dims[1] ~ "col*""#, both),
        (r#"dims[0] = "column""#, &[]),
        (r#"kind = "file""#, &[notes]),
        (r#"kind = "directory""#, &["runs", "runs/x12", "runs/x13"]),
        (r#"name = "A" or name ~ "notes.*""#, &[notes, x12, x13]),
        (r#"path ~ "runs/*/A""#, both),
        ("owner = 1000", &[notes]),
        ("mtime >= 2026-11-01", &[notes]),
        (r#"mtime = "2026-11-01T00:00:00Z""#, &[notes]),
        ("mtime > 2026-11-01T00:00", &[]),
        ("stripe_count = 1", &[notes]),
        ("server = 0 or server = 1", &[notes]),
        ("steps > 0", &[]),
        ("ndim = 2 and not order = \"F\"", &[]),
        (r#"not dtype = "c8" and kind = "array" and size > 5e10"#, &[x12]),
        (r#"dtype = "c16" or attr.level = 6 or shape = 7"#, both),
        (r#"(dtype = "c16" and attr.run = "x13") or (chunks > 5 and kind ~ "a*")"#, &[x13]),
        (r#"kind != "array" and name = "notes.txt""#, &[notes]),
    ] {
        assert_eq!(find(&mut manager, query), expected, "{query}");
    }
    assert_eq!(find(&mut manager, "").len(), 6);
    assert_eq!(find_as(&mut manager, &root(), "runs/x13", ""), ["runs/x13", x13]);
    assert_eq!(find_as(&mut manager, &root(), "runs/x13", "attr.level = 5"), [x13]);
    assert_eq!(find_as(&mut manager, &root(), x13, "attr.level = 5"), [x13]);
    assert_eq!(find_as(&mut manager, &root(), notes, "owner = 1000"), [notes]);
    assert_eq!(find_as(&mut manager, &root(), notes, "owner = 0"), Vec::<String>::new());
    let hits = pages(&mut manager, &root(), "", r#"attr.run = "x12""#, 9).unwrap();
    assert!(hits[0].description.starts_with(br#"{"kind": "array""#) && hits[0].inode.is_directory());
}

#[test]
fn errors_name_the_character() {
    let (_, mut manager) = runs();
    for (query, character, need) in [
        ("dtype == \"c16\"", 8, "a number, a time, or a text in quotes"),
        ("dtype", 6, "one of = != < <= > >= ~"),
        ("shap[0] > 3", 1, "a field"),
        ("ü = 3", 1, "a field"),
        ("name = \"ü\" and 3 > size", 16, "a field"),
        ("shape[x] > 3", 7, "the number of an element"),
        ("shape[0 > 3", 9, "a closing bracket"),
        ("dtype[0] = \"c16\"", 6, "an operator"),
        ("shape > \"x\"", 9, "a number to compare with shape"),
        ("name = 5", 8, "a text in quotes to compare with name"),
        ("mtime > \"yesterday\"", 9, "a time to compare with mtime"),
        ("attr.run ~ 5", 10, "one of = != < <= > >="),
        ("attr.run = \"x12", 16, "the closing quote"),
        ("dtype = \"c17\"", 9, "a data type"),
        ("kind = \"matrix\"", 8, "a kind"),
        ("(owner = 1", 11, "a closing parenthesis"),
        ("owner = 1)", 10, "\"and\", \"or\", or the end"),
        ("owner = 1 and", 14, "a field"),
        ("owner = 5 Parsec", 11, "\"and\", \"or\", or the end"),
        ("attr. = 5", 6, "the name of an attribute"),
        (&format!("{}owner = 1", "(".repeat(40)), 34, "at most 32 parentheses"),
    ] {
        let request = ManagerRequest::Find { path: "".into(), query: query.into(), after: vec![], most: 9 };
        let error = ask(&mut manager, &root(), request).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        let place = format!(" at character {character} of the query");
        assert!(error.message.contains(&place) && error.message.contains(need), "{query}: {error}");
    }
    for (query, after) in [("x".repeat(5000), vec![]), (String::new(), b"?".to_vec())] {
        let request = ManagerRequest::Find { path: "".into(), query, after, most: 9 };
        assert_eq!(kind(ask(&mut manager, &root(), request)), ErrorKind::Invalid);
    }
    let request = ManagerRequest::Find { path: "none".into(), query: "".into(), after: vec![], most: 9 };
    assert_eq!(kind(ask(&mut manager, &root(), request)), ErrorKind::NotFound);
}

#[test]
fn a_search_shows_what_its_user_may_list_and_read() {
    let (_, mut manager) = runs();
    let stranger = user(7, &[7]);
    let query = "attr.level = 5";
    assert_eq!(find_as(&mut manager, &stranger, "", query), ["runs/x12/A", "runs/x13/A"]);
    // The names in a directory without the right to read, or to search, are hidden.
    for mode in [0o711, 0o744] {
        ask(&mut manager, &root(), set_mode("runs/x12", mode)).unwrap();
        assert_eq!(find_as(&mut manager, &stranger, "", query), ["runs/x13/A"], "{mode:o}");
        assert!(find_as(&mut manager, &stranger, "", "").contains(&"runs/x12".to_owned()));
        assert!(!find_as(&mut manager, &stranger, "", "").contains(&"runs/x12/A".to_owned()));
    }
    assert_eq!(kind(pages(&mut manager, &stranger, "runs/x12", "", 9)), ErrorKind::Denied);
    // The attributes of a file without the right to read are hidden, its name and record are not.
    ask(&mut manager, &root(), set_mode("runs/x13/A", 0o711)).unwrap();
    assert_eq!(find_as(&mut manager, &stranger, "", query), Vec::<String>::new());
    assert_eq!(find_as(&mut manager, &stranger, "", r#"not kind = "array" and name = "A""#), ["runs/x13/A"]);
    let hits = pages(&mut manager, &stranger, "", r#"name = "A""#, 9).unwrap();
    assert_eq!((hits.len(), hits[0].description.len()), (1, 0));
    assert_eq!(find(&mut manager, query).len(), 2);
}

#[test]
fn a_search_follows_each_change() {
    let (_, mut manager) = runs();
    let level = "attr.level = 5";
    ask(&mut manager, &root(), rename("runs/x12", "old")).unwrap();
    ask(&mut manager, &root(), rename("runs/x13/A", "old/B")).unwrap();
    assert_eq!(find(&mut manager, level), ["old/A", "old/B"]);
    ask(&mut manager, &root(), set_extended("old/A", "level", Some(b"6"))).unwrap();
    assert_eq!(find(&mut manager, level), ["old/B"]);
    assert_eq!(find(&mut manager, "attr.level = 6"), ["old/A"]);
    ask(&mut manager, &root(), set_extended("old/A", "level", None)).unwrap();
    assert_eq!(find(&mut manager, "attr.level > 0"), ["old/B"]);
    // A file with an attribute, renamed and kept.
    ask(&mut manager, &root(), set_extended("runs/notes.txt", "level", Some(b"5"))).unwrap();
    ask(&mut manager, &root(), create("other")).unwrap();
    let kept = Some("runs/kept".to_owned());
    ask(
        &mut manager,
        &root(),
        ManagerRequest::Move { from: "other".into(), to: "runs/notes.txt".into(), kept },
    )
    .unwrap();
    assert_eq!(find(&mut manager, level), ["old/B", "runs/kept"]);
    ask(&mut manager, &root(), rename("runs/kept", "n")).unwrap();
    assert_eq!(find(&mut manager, "attr.level = 5 and name = \"n\""), ["n"]);
    for path in ["n", "old"] {
        ask(&mut manager, &root(), remove(path, true)).unwrap();
    }
    assert_eq!(find(&mut manager, level), Vec::<String>::new());
}

#[test]
fn a_name_and_the_description_of_its_directory_are_one_commit() {
    let (store, mut manager) = runs();
    let stranger = user(7, &[7]);
    ask(&mut manager, &root(), create("runs/part")).unwrap();
    let described = |text| rename_describing("runs/part", "runs/zarr.json", Some(text));
    let too_long = vec![b' '; (64 << 10) + 1];
    assert_eq!(kind(ask(&mut manager, &stranger, described(b"{}"))), ErrorKind::Denied);
    assert_eq!(kind(ask(&mut manager, &root(), described(&too_long))), ErrorKind::Invalid);
    assert_eq!(find(&mut manager, r#"name = "part""#), ["runs/part"]);

    let group: &[u8] = br#"{"kind": "group"}"#;
    ask(&mut manager, &root(), described(group)).unwrap();
    assert_eq!(find(&mut manager, r#"kind = "group""#), ["runs"]);
    let versions = |from: &[u8], until: &[u8], end: &[u8]| {
        let found = store.range(from, until, MAX_RANGE).unwrap().into_iter();
        found.filter(|(key, _)| key.ends_with(end)).map(|(_, found)| found.version).max().unwrap()
    };
    let of_name = versions(b"n", b"o", b"zarr.json");
    let of_description = versions(b"x", b"y", DESCRIBING_ATTRIBUTE.as_bytes());
    assert_eq!(of_name, of_description);
    // The same description again costs nothing, and another one replaces its entries.
    ask(&mut manager, &root(), create("runs/part")).unwrap();
    ask(&mut manager, &root(), described(group)).unwrap();
    assert_eq!(versions(b"x", b"y", DESCRIBING_ATTRIBUTE.as_bytes()), of_description);
    assert!(versions(b"n", b"o", b"zarr.json") > of_name);
    ask(&mut manager, &root(), create("runs/part")).unwrap();
    ask(&mut manager, &root(), described(br#"{"kind": "array", "shape": [1]}"#)).unwrap();
    assert_eq!(find(&mut manager, r#"kind = "group""#), Vec::<String>::new());
    assert_eq!(find(&mut manager, "shape = 1"), ["runs"]);
    for _ in 0..2 {
        ask(&mut manager, &root(), create("runs/part")).unwrap();
        ask(&mut manager, &root(), described(b"")).unwrap();
        assert_eq!(find(&mut manager, "shape = 1"), Vec::<String>::new());
    }
}

#[test]
fn arrays_and_groups_are_found_by_the_group_that_contains_them() {
    let (_, mut manager) = runs();
    for (path, kind) in [("g", "group"), ("g/A", "array"), ("g/sub", "group"), ("g/sub/B", "array")] {
        ask(&mut manager, &root(), make_directory(path, 0o755)).unwrap();
        describe(&mut manager, path, &format!(r#"{{"kind": "{kind}"}}"#));
    }
    ask(&mut manager, &root(), create("g/notes")).unwrap();
    let (x12, x13) = ("runs/x12/A", "runs/x13/A");
    assert_eq!(find(&mut manager, r#"group = "g""#), ["g/A", "g/sub"]);
    assert_eq!(find(&mut manager, r#"group ~ "g/*" and kind = "array""#), ["g/sub/B"]);
    assert_eq!(find(&mut manager, r#"kind = "array" and not group ~ "*""#), [x12, x13]);
    assert_eq!(find_as(&mut manager, &root(), "g/sub", r#"group = "g""#), ["g/sub"]);
    ask(&mut manager, &root(), rename("g", "h")).unwrap();
    assert_eq!(find(&mut manager, r#"group ~ "h*""#), ["h/A", "h/sub", "h/sub/B"]);
    // Whether a directory is a group is hidden from users who may not read it.
    ask(&mut manager, &root(), set_mode("h", 0o711)).unwrap();
    let stranger = user(7, &[7]);
    assert_eq!(find_as(&mut manager, &stranger, "h/sub", r#"group ~ "h*""#), ["h/sub/B"]);
    describe(&mut manager, "h/sub", r#"{"kind": "array"}"#);
    assert_eq!(find(&mut manager, r#"group = "h/sub""#), Vec::<String>::new());
}

#[test]
fn a_page_has_few_bytes() {
    let (_, mut manager) = runs();
    let long = format!(r#"{{"kind": "group", "odd": "{}"}}"#, "x".repeat(60_000));
    for number in 0..300 {
        let path = format!("long/{number}");
        ask(&mut manager, &root(), make_directory(&path, 0o755)).unwrap();
        describe(&mut manager, &path, &long);
    }
    let (mut counts, mut after) = (Vec::new(), Vec::new());
    loop {
        let query = r#"kind = "group""#.into();
        let request = ManagerRequest::Find { path: "".into(), query, after, most: 1000 };
        let ManagerReply::Found { hits, next } = ask(&mut manager, &root(), request).unwrap() else {
            panic!()
        };
        counts.push(hits.len());
        let Some(next) = next else { break };
        after = next;
    }
    assert_eq!(counts, [280, 20]);
}

#[test]
fn many_classes_of_descriptions_are_searched_too() {
    let (_, mut manager) = runs();
    for number in 0..520 {
        let path = format!("many/{number:03}");
        ask(&mut manager, &root(), make_directory(&path, 0o755)).unwrap();
        describe(&mut manager, &path, &format!(r#"{{"kind": "array", "dims": ["d{number:03}"]}}"#));
    }
    for (query, expected) in [(r#"dims = "d007""#, 1), (r#"dims ~ "d51*""#, 10), (r#"kind = "array""#, 522)] {
        let mut hits = pages(&mut manager, &root(), "", query, 100).unwrap();
        hits.sort_by(|one, other| one.path.cmp(&other.path));
        hits.dedup_by(|one, other| one.path == other.path);
        assert_eq!(hits.len(), expected, "{query}");
    }
}

/// The records of the index, and of noted names.
fn indexed(store: &MemoryStore) -> Vec<Vec<u8>> {
    let found = store.range(b"w", b"z", MAX_RANGE).unwrap();
    found.into_iter().map(|(key, _)| key).filter(|key| key[0] != b'x').collect()
}

#[test]
fn nothing_is_left_of_removed_files() {
    let (store, mut manager) = runs();
    ask(&mut manager, &root(), set_extended("runs/notes.txt", "level", Some(b"5"))).unwrap();
    // An attribute with more entries than a commit may have; and many attributes.
    let many: Vec<String> = (0..90).map(|n| format!("\"{n}\"")).collect();
    describe(&mut manager, "runs/x12", &format!(r#"{{"dims": [{}]}}"#, many.join(",")));
    assert_eq!(find(&mut manager, "dims = \"77\""), ["runs/x12"]);
    for number in 0..70 {
        ask(&mut manager, &root(), set_extended("runs/notes.txt", &format!("a{number}"), Some(b"1")))
            .unwrap();
    }
    let gone = ask(&mut manager, &root(), remove("runs", true)).unwrap();
    ask(&mut manager, &root(), orphans(&handles(gone), 0, 9)).unwrap();
    assert_eq!(indexed(&store), Vec::<Vec<u8>>::new());
    assert_eq!(store.range(b"x", b"y", 9).unwrap(), []);
}

#[test]
fn an_older_pool_gets_its_index_and_a_damaged_one_is_mended() {
    let (store, mut manager) = runs();
    let whole = indexed(&store);
    assert!(whole.len() > 10, "{whole:?}");
    let mut writes: Vec<_> = whole.iter().map(|key| delete(key)).collect();
    writes.push(delete(b"q"));
    let _ = store.clone().commit(&[], &writes).unwrap();
    let request = ManagerRequest::Find { path: "".into(), query: "".into(), after: vec![], most: 9 };
    assert_eq!(kind(ask(&mut manager, &root(), request)), ErrorKind::Busy);
    let mut manager = open(store.clone());
    assert_eq!(indexed(&store), whole);

    let stray = [&b"yattr.gone\0\x02x\0"[..], &9_u64.to_be_bytes()].concat();
    let mut writes: Vec<_> = whole.iter().step_by(2).map(|key| delete(key)).collect();
    let lost = writes.len();
    writes.push(put(&stray, b""));
    let _ = store.clone().commit(&[], &writes).unwrap();
    let check = |manager: &mut Manager<MemoryStore>| match ask(
        manager,
        &root(),
        ManagerRequest::Check { after: vec![], most: 1000 },
    )
    .unwrap()
    {
        ManagerReply::Checked { odd, .. } => odd.len(),
        other => panic!("answered by {other:?}"),
    };
    let odd = check(&mut manager);
    assert!((3..=lost + 1).contains(&odd), "{odd}");
    let mut after = vec![];
    loop {
        match ask(&mut manager, &root(), ManagerRequest::Mend { after, most: 3 }).unwrap() {
            ManagerReply::Checked { next: Some(next), .. } => after = next,
            ManagerReply::Checked { next: None, .. } => break,
            other => panic!("answered by {other:?}"),
        }
    }
    assert_eq!(indexed(&store), whole);
    assert_eq!(check(&mut manager), 0);
    let request = ManagerRequest::Mend { after: vec![], most: 9 };
    assert_eq!(kind(ask(&mut manager, &user(1, &[1]), request)), ErrorKind::Denied);
}

#[test]
fn the_deepest_new_path_with_the_most_hints_fits_one_commit() {
    let (_, mut manager) = runs();
    let others = (0..32).map(|n| (format!("h{n}"), "v".to_owned())).collect();
    let path = "d/".repeat(MAX_MADE_ON_THE_WAY) + "f";
    ask(&mut manager, &root(), create_with(&path, Hints { others, ..Hints::default() })).unwrap();
    assert_eq!(find(&mut manager, "attr.hint.h7 = \"v\""), [path]);
}
