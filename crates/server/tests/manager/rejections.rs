//! Invalid requests: each is refused with the right kind of error, and changes nothing. `ask` checks that every
//! message has the parts "need", "have" and a fix.

use outcore_core::{ErrorKind, Handle, Hints, ManagerRequest, ServerAddress, ServerId};
use outcore_server::manager::{MAX_EXTENDED, MAX_EXTENDED_BYTES, MAX_MADE_ON_THE_WAY, MAX_OTHER_HINTS};
use outcore_server::store::{MAX_RANGE, MemoryStore, Store};

use crate::pool::*;

#[test]
fn what_cannot_be_done_is_refused_and_changes_nothing() {
    use ErrorKind::{Denied, Exists, Invalid, NotFound};
    let store = MemoryStore::new();
    let mut pool = open(store.clone());
    add_servers(&mut pool, 4);
    for path in ["d/e/f", "d/g", "h"] {
        ask(&mut pool, &root(), create(path)).unwrap();
    }
    ask(&mut pool, &root(), make_directory("empty", 0o755)).unwrap();
    let deep = "x/".repeat(MAX_MADE_ON_THE_WAY + 1) + "f";
    let long = "n".repeat(256);
    let hints = |hints: Hints| create_with("new", hints);
    let none = Hints::default;
    let many = vec![("a".to_owned(), "b".to_owned()); MAX_OTHER_HINTS + 1];
    let cases = vec![
        (create(""), Invalid),
        (create("/abs"), Invalid),
        (create("d/../x"), Invalid),
        (create(&long), Invalid),
        (create(&deep), Invalid),
        (create_as("new", 0o4755), Invalid),
        (create("h"), Exists),
        (create("d"), Exists),
        (create("h/below"), NotFound),
        (hints(Hints { stripe_unit_bytes: Some(0), ..none() }), Invalid),
        (hints(Hints { stripe_count: Some(0), ..none() }), Invalid),
        (hints(Hints { round_units: Some(0), ..none() }), Invalid),
        (hints(Hints { base: Some(4), ..none() }), Invalid),
        (hints(Hints { others: many, ..none() }), Invalid),
        (make_directory("", 0o755), Invalid),
        (make_directory("d", 0o755), Exists),
        (make_directory("h", 0o755), Exists),
        (make_directory("new", 0o10000), Invalid),
        (open_file("none", false), NotFound),
        (open_file("none/f", false), NotFound),
        (open_file("d", false), Invalid),
        (open_file("", true), Invalid),
        (stat("none"), NotFound),
        (stat("h/below"), NotFound),
        (stat("d//e"), Invalid),
        (list("none", "", 9), NotFound),
        (list("h", "", 9), Invalid),
        (remove("", true), Invalid),
        (remove("none", true), NotFound),
        (remove("d", false), Exists),
        (rename("", "x"), Invalid),
        (rename("h", ""), Invalid),
        (rename("none", "x"), NotFound),
        (rename("d", "d/e/inside"), Invalid),
        (rename("d", "d/new"), Invalid),
        (rename("d", "d/e/f/x"), Invalid),
        (rename("h", "d"), Exists),
        (rename("h", "empty"), Exists),
        (rename("d", "h"), Exists),
        (rename("empty", "d"), Exists),
        (rename("d/e", "d"), Exists),
        (rename("h", "d/g/x"), NotFound),
        (replace("none", "d"), NotFound),
        (replace("h", "d"), Exists),
        (replace("d", "h"), Exists),
        (replace("d/e", "d"), Invalid),
        (replace("d/e/f", "d"), Invalid),
        (replace("d", "d/e"), Invalid),
        (replace("", "d"), Invalid),
        (replace("d", ""), Invalid),
        (set_mode("none", 0o700), NotFound),
        (set_mode("h", 0o2755), Invalid),
        (ManagerRequest::SetDefaultLayout { path: "h".into(), hints: none() }, Invalid),
        (
            ManagerRequest::SetDefaultLayout {
                path: "d".into(),
                hints: Hints { round_units: Some(2), ..none() },
            },
            Invalid,
        ),
        (
            ManagerRequest::SetDefaultLayout { path: "d".into(), hints: Hints { base: Some(9), ..none() } },
            Invalid,
        ),
        (get_extended("h", "none"), NotFound),
        (get_extended("h", &long), Invalid),
        (set_extended("h", "", Some(b"")), Invalid),
        (set_extended("h", &long, Some(b"")), Invalid),
        (set_extended("h", "a\0", Some(b"")), Invalid),
        (set_extended("h", "none", None), NotFound),
        (set_extended("h", "large", Some(&vec![0; MAX_EXTENDED_BYTES + 1])), Invalid),
        (ManagerRequest::Renew { handle: Handle(999_999), write: false }, NotFound),
        (ManagerRequest::Renew { handle: Handle(1), write: false }, Invalid),
        (orphans(&[Handle(7); 1001], 0, 1), Invalid),
    ];
    // Refused requests do not even reserve handles.
    let all = |store: &MemoryStore| store.range(b"", b"\xff", MAX_RANGE).unwrap();
    let before = all(&store);
    for (request, expected) in cases {
        assert_eq!(kind(ask(&mut pool, &root(), request.clone())), expected, "{request:?}");
        assert_eq!(all(&store), before, "{request:?}");
    }
    let stranger = user(5, &[5]);
    for request in [create("d/x"), remove("d/g", false), set_mode("h", 0o777), open_file("h", true)] {
        assert_eq!(kind(ask(&mut pool, &stranger, request.clone())), Denied, "{request:?}");
        assert_eq!(all(&store), before, "{request:?}");
    }
}

#[test]
fn as_many_directories_are_made_at_once_as_promised() {
    let mut pool = pool();
    let others = (0..MAX_OTHER_HINTS).map(|i| (format!("hint {i}"), "v".to_owned())).collect();
    let path = "x/".repeat(MAX_MADE_ON_THE_WAY) + "f";
    ask(&mut pool, &root(), create_with(&path, Hints { others, ..Hints::default() })).unwrap();
    assert_eq!(tree(&mut pool).len(), MAX_MADE_ON_THE_WAY + 1);
    assert_eq!(values(ask(&mut pool, &root(), get_extended(&path, "")).unwrap()).len(), MAX_OTHER_HINTS);
}

#[test]
fn extended_attributes_are_bounded() {
    let mut pool = pool();
    ask(&mut pool, &root(), create("f")).unwrap();
    let largest = vec![1; MAX_EXTENDED_BYTES];
    for i in 0..MAX_EXTENDED {
        ask(&mut pool, &root(), set_extended("f", &format!("a{i}"), Some(&largest))).unwrap();
    }
    let more = ask(&mut pool, &root(), set_extended("f", "one more", Some(b"")));
    assert_eq!(kind(more), ErrorKind::Invalid);
    ask(&mut pool, &root(), set_extended("f", "a7", Some(b"again"))).unwrap();
    assert_eq!(values(ask(&mut pool, &root(), get_extended("f", "a7")).unwrap()), [b"again".to_vec()]);
    assert_eq!(values(ask(&mut pool, &root(), get_extended("f", "a8")).unwrap()), [largest]);
    ask(&mut pool, &root(), set_extended("f", "a7", None)).unwrap();
    ask(&mut pool, &root(), set_extended("f", "one more", Some(b""))).unwrap();
}

#[test]
fn a_pool_without_servers_has_directories_but_no_files() {
    let mut pool = open(MemoryStore::new());
    ask(&mut pool, &root(), make_directory("d", 0o755)).unwrap();
    assert_eq!(kind(ask(&mut pool, &root(), create("d/f"))), ErrorKind::Invalid);
}

#[test]
fn servers_that_are_added_leave_old_files_where_they_are() {
    let store = MemoryStore::new();
    let (mut one, mut other) = (open(store.clone()), open(store));
    add_servers(&mut one, 2);
    let laid = |manager: &mut _, path: &str| {
        opened(ask(manager, &root(), create(path)).unwrap()).inode.layout.unwrap().servers
    };
    let old = laid(&mut other, "old");
    assert_eq!(old.len(), 2);
    one.add_server(ServerAddress { id: ServerId(9), addresses: vec!["unix:/run/9".into()] }).unwrap();
    assert_eq!(laid(&mut other, "new").len(), 3, "the other manager knows");
    let kept = inode(ask(&mut one, &root(), stat("old")).unwrap()).layout.unwrap().servers;
    assert_eq!(kept, old);
    let moved = ServerAddress { id: ServerId(0), addresses: vec!["tcp:a:1".into(), "tcp:b:1".into()] };
    one.add_server(moved.clone()).unwrap();
    match ask(&mut other, &root(), ManagerRequest::Servers).unwrap() {
        outcore_core::ManagerReply::Servers { pool, servers, retired } => {
            assert_eq!((pool, retired), (POOL, vec![]));
            assert_eq!(servers.iter().map(|server| server.id.0).collect::<Vec<_>>(), [0, 1, 9]);
            assert_eq!(servers[0], moved);
        }
        reply => panic!("{reply:?}"),
    }
    let long = ServerAddress { id: ServerId(3), addresses: vec!["x".repeat(256)] };
    assert_eq!(one.add_server(long).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn files_begin_at_one_server_after_the_other() {
    let mut pool = pool();
    let mut bases = [0; 4];
    for i in 0..40 {
        let file = opened(ask(&mut pool, &root(), create(&format!("d{i}/f"))).unwrap());
        bases[file.inode.layout.unwrap().servers[0].0 as usize] += 1;
    }
    assert_eq!(bases, [10; 4]);
}

#[test]
fn unknown_hints_are_kept_and_read_back() {
    let mut pool = pool();
    let hint = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let default = Hints { others: vec![hint("a", "far"), hint("striping_factor", "2")], ..Hints::default() };
    ask(&mut pool, &root(), make_directory("d", 0o755)).unwrap();
    ask(&mut pool, &root(), ManagerRequest::SetDefaultLayout { path: "d".into(), hints: default }).unwrap();
    let hints = Hints { others: vec![hint("cb_nodes", "4")], ..Hints::default() };
    let file = opened(ask(&mut pool, &root(), create_with("d/sub/f", hints)).unwrap());
    assert_eq!(file.inode.layout.unwrap().servers.len(), 2);
    let read = |pool: &mut _, name: &str| values(ask(pool, &root(), get_extended("d/sub/f", name)).unwrap());
    assert_eq!(read(&mut pool, ""), [b"hint.a".to_vec(), b"hint.cb_nodes".to_vec()]);
    assert_eq!(read(&mut pool, "hint.cb_nodes"), [b"4".to_vec()]);
}

#[test]
fn a_store_is_of_one_pool() {
    let store = MemoryStore::new();
    assert_eq!(open(store.clone()).pool(), POOL);
    let again = outcore_server::manager::Config::new(77);
    let manager = outcore_server::manager::Manager::open(store, key(), again).unwrap();
    assert_eq!(manager.pool(), POOL, "the number of the store counts");
}
