//! Paths that begin at a handle, and moves that keep files.

use outcore_core::{ErrorKind, Handle, Inode, ManagerReply, ManagerRequest, path_at};
use outcore_server::manager::Manager;
use outcore_server::store::MemoryStore;

use crate::pool::*;

fn below(handle: Handle, name: &str) -> String {
    format!("{}/{name}", path_at(handle))
}

fn stat_of(manager: &mut Manager<MemoryStore>, path: &str) -> Inode {
    match ask(manager, &root(), ManagerRequest::Stat { path: path.into() }) {
        Ok(ManagerReply::Inode(inode)) => *inode,
        reply => panic!("{reply:?}"),
    }
}

fn relocate(from: &str, to: &str, kept: Option<&str>) -> ManagerRequest {
    ManagerRequest::Move { from: from.into(), to: to.into(), kept: kept.map(str::to_owned) }
}

#[test]
fn a_handle_leads_to_a_file_whatever_its_name_is() {
    let mut manager = pool();
    ask(&mut manager, &root(), create("d/e/f")).unwrap();
    let (directory, file) = (stat_of(&mut manager, "d/e"), stat_of(&mut manager, "d/e/f"));
    ask(&mut manager, &root(), rename("d", "moved")).unwrap();
    ask(&mut manager, &root(), rename("moved/e/f", "moved/e/g")).unwrap();
    assert_eq!(stat_of(&mut manager, &path_at(file.handle)).handle, file.handle);
    assert_eq!(stat_of(&mut manager, &below(directory.handle, "g")).handle, file.handle);
    ask(&mut manager, &root(), create(&below(directory.handle, "new"))).unwrap();
    assert_ne!(stat_of(&mut manager, "moved/e/new").handle, file.handle);
    ask(&mut manager, &root(), rename(&below(directory.handle, "g"), &below(Handle(1), "h"))).unwrap();
    assert_eq!(stat_of(&mut manager, "h").handle, file.handle);
    // A file is no directory, and a handle alone is no name.
    for (request, wanted) in [
        (create(&below(file.handle, "x")), ErrorKind::NotFound),
        (create(&path_at(Handle(999))), ErrorKind::Invalid),
        (create(&below(Handle(999), "x")), ErrorKind::NotFound),
        (rename(&path_at(file.handle), "i"), ErrorKind::Invalid),
    ] {
        assert_eq!(kind(ask(&mut manager, &root(), request)), wanted);
    }
}

#[test]
fn a_handle_needs_the_right_to_search_all_directories_above_it() {
    let mut manager = pool();
    let (owner, other) = (user(5, &[5]), user(6, &[6]));
    ask(&mut manager, &owner, ManagerRequest::MakeDirectory { path: "d".into(), mode: 0o700 }).unwrap();
    ask(&mut manager, &owner, create_as("d/f", 0o666)).unwrap();
    let file = stat_of(&mut manager, "d/f");
    let open = || ManagerRequest::Open { path: path_at(file.handle), write: true };
    ask(&mut manager, &owner, open()).unwrap();
    assert_eq!(kind(ask(&mut manager, &other, open())), ErrorKind::Denied);
}

#[test]
fn nothing_is_moved_into_itself_by_handles() {
    let mut manager = pool();
    ask(&mut manager, &root(), create("d/e/f")).unwrap();
    let (outer, inner) = (stat_of(&mut manager, "d"), stat_of(&mut manager, "d/e"));
    for (from, to) in [
        (below(Handle(1), "d"), below(inner.handle, "x")),
        ("d".into(), below(outer.handle, "x")),
        (below(Handle(1), "d"), "d/e/x".into()),
    ] {
        assert_eq!(
            kind(ask(&mut manager, &root(), rename(&from, &to))),
            ErrorKind::Invalid,
            "{from:?} {to:?}"
        );
        assert_eq!(kind(ask(&mut manager, &root(), relocate(&from, &to, None))), ErrorKind::Invalid);
    }
    let replace = ManagerRequest::Replace { from: below(inner.handle, "f"), to: below(Handle(1), "d") };
    assert_eq!(kind(ask(&mut manager, &root(), replace)), ErrorKind::Invalid);
}

#[test]
fn a_move_replaces_nothing_or_keeps_it() {
    let mut manager = pool();
    for path in ["a", "b", "c"] {
        ask(&mut manager, &root(), create(path)).unwrap();
    }
    let (a, b) = (stat_of(&mut manager, "a"), stat_of(&mut manager, "b"));
    for (from, to, kept) in [("a", "b", None), ("a", "a", None), ("a", "b", Some("c"))] {
        assert_eq!(
            kind(ask(&mut manager, &root(), relocate(from, to, kept))),
            ErrorKind::Exists,
            "{from} {to}"
        );
    }
    assert_eq!(ask(&mut manager, &root(), relocate("a", "b", Some("kept"))), Ok(ManagerReply::Done));
    assert_eq!(stat_of(&mut manager, "b").handle, a.handle);
    assert_eq!(stat_of(&mut manager, "kept").handle, b.handle);
    assert_eq!(ask(&mut manager, &root(), relocate("b", "new", None)), Ok(ManagerReply::Done));
    assert_eq!(ask(&mut manager, &root(), relocate("new", "b", Some("unused"))), Ok(ManagerReply::Done));
    assert_eq!(
        kind(ask(&mut manager, &root(), ManagerRequest::Stat { path: "unused".into() })),
        ErrorKind::NotFound
    );
    assert_eq!(stat_of(&mut manager, "b").handle, a.handle);
}

/// The link that a request meets.
fn met(manager: &mut Manager<MemoryStore>, request: ManagerRequest) -> (String, String) {
    match manager.handle(at(1), &root(), request) {
        ManagerReply::Link { path, target } => (path, target),
        reply => panic!("{reply:?}"),
    }
}

#[test]
fn a_link_below_a_handle_is_met_with_the_beginning_of_the_path() {
    let mut manager = pool();
    ask(&mut manager, &root(), create("d/e/f")).unwrap();
    ask(&mut manager, &root(), make_link("d/l", "e")).unwrap();
    let (directory, link) = (stat_of(&mut manager, "d").handle, stat_of(&mut manager, "d/l").handle);
    let (there, other) = (below(directory, "l"), below(directory, "e/f"));
    let inside = format!("{there}/f");
    let expected = (there.clone(), "e".to_owned());
    for request in [
        stat(&inside),
        open_file(&inside, true),
        open_file(&there, true),
        list(&there, "", 9),
        create(&format!("{there}/new/er")),
        make_link(&format!("{there}/new"), "x"),
        remove(&inside, false),
        rename(&inside, &other),
        rename(&other, &format!("{there}/g")),
        relocate(&other, &format!("{there}/g"), None),
        relocate(&inside, "d/g", None),
    ] {
        assert_eq!(met(&mut manager, request.clone()), expected, "{request:?}");
    }
    ask(&mut manager, &root(), create("h")).unwrap();
    let kept = relocate("h", &other, Some(&format!("{there}/kept")));
    assert_eq!(met(&mut manager, kept), expected);
    // At its handle, a link is met under that handle.
    let expected = (path_at(link), "e".to_owned());
    for request in [
        open_file(&path_at(link), true),
        get_extended(&path_at(link), "a"),
        stat(&below(link, "f")),
        create(&below(link, "new")),
        rename(&below(link, "f"), "g"),
    ] {
        assert_eq!(met(&mut manager, request.clone()), expected, "{request:?}");
    }
    assert_eq!(stat_of(&mut manager, &path_at(link)).target.as_deref(), Some("e"));
    let before: Vec<String> = tree(&mut manager).into_keys().collect();
    assert_eq!(before, ["d", "d/e", "d/e/f", "d/l", "h"], "nothing was done");
}

#[test]
fn a_move_concerns_the_link_itself() {
    let mut manager = pool();
    ask(&mut manager, &root(), make_link("l", "nowhere")).unwrap();
    ask(&mut manager, &root(), create("f")).unwrap();
    let (link, file) = (stat_of(&mut manager, "l").handle, stat_of(&mut manager, "f").handle);
    assert_eq!(kind(ask(&mut manager, &root(), relocate("f", "l", None))), ErrorKind::Exists);
    assert_eq!(ask(&mut manager, &root(), relocate("l", "f", Some("kept"))), Ok(ManagerReply::Done));
    assert_eq!((stat_of(&mut manager, "f").handle, stat_of(&mut manager, "kept").handle), (link, file));
    assert_eq!(ask(&mut manager, &root(), relocate("kept", "f", Some("old"))), Ok(ManagerReply::Done));
    assert_eq!((stat_of(&mut manager, "f").handle, stat_of(&mut manager, "old").handle), (file, link));
    assert_eq!(ask(&mut manager, &root(), relocate("old", "far/away", None)), Ok(ManagerReply::Done));
    assert_eq!(stat_of(&mut manager, "far").mode, 0o700, "as above a renamed link");
}
