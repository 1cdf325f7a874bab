//! Permissions, compared with a table of the EACCES and EPERM conditions that POSIX.1-2017 specifies for `open()`,
//! `mkdir()`, `unlink()` and others.

use outcore_core::{ErrorKind, Handle, Hints, ManagerReply, ManagerRequest, files_among};
use outcore_server::manager::User;

use crate::pool::*;

const R: u32 = 4;
const W: u32 = 2;
const X: u32 = 1;

/// A request, and exactly the rights that it needs on its path. Directories `top`, `top/in`, `top/to`,
/// `top/in/sub`; files `top/in/file`, `top/to/old`.
struct Case {
    request: fn() -> ManagerRequest,
    needs: &'static [(&'static str, u32)],
}

fn case(request: fn() -> ManagerRequest, needs: &'static [(&'static str, u32)]) -> Case {
    Case { request, needs }
}

fn table() -> Vec<Case> {
    vec![
        // open(): "Search permission is denied on a component of the path prefix, or the file exists and the permissions
        // specified by oflag are denied, or the file does not exist and write permission is denied for the parent
        // directory of the file to be created".
        case(|| open_file("top/in/file", false), &[("top", X), ("top/in", X), ("top/in/file", R)]),
        case(|| create("top/in/new"), &[("top", X), ("top/in", W | X)]),
        // mkdir(), which here also creates the directories above.
        case(|| make_directory("top/in/new", 0o755), &[("top", X), ("top/in", W | X)]),
        case(|| make_directory("top/in/new/newer", 0o755), &[("top", X), ("top/in", W | X)]),
        case(|| create("top/in/new/newer"), &[("top", X), ("top/in", W | X)]),
        // stat().
        case(|| stat("top/in/file"), &[("top", X), ("top/in", X)]),
        case(|| stat("top/in"), &[("top", X)]),
        // opendir(), and stat() of each name.
        case(|| list("top/in", "", 9), &[("top", X), ("top/in", R | X)]),
        case(|| look("top/in", "", 9), &[("top", X), ("top/in", R | X)]),
        case(|| look("top/in/file", "", 9), &[("top", X), ("top/in", X)]),
        // unlink(), rmdir(): the rights to the file itself do not matter.
        case(|| remove("top/in/file", false), &[("top", X), ("top/in", W | X)]),
        case(|| remove("top/in/sub", false), &[("top", X), ("top/in", W | X)]),
        // rename(): "or write permission is required and is denied for a directory pointed to by the old or new
        // arguments", which it is where the parent changes.
        case(|| rename("top/in/file", "top/in/other"), &[("top", X), ("top/in", W | X)]),
        case(|| rename("top/in/file", "top/to/other"), &[("top", X), ("top/in", W | X), ("top/to", W | X)]),
        case(|| rename("top/in/file", "top/to/old"), &[("top", X), ("top/in", W | X), ("top/to", W | X)]),
        case(
            || rename("top/in/sub", "top/to/sub"),
            &[("top", X), ("top/in", W | X), ("top/to", W | X), ("top/in/sub", W)],
        ),
        case(|| rename("top/in/sub", "top/in/bus"), &[("top", X), ("top/in", W | X)]),
        case(
            || replace("top/in/sub", "top/to"),
            &[("top", W | X), ("top/in", W | X), ("top/in/sub", W), ("top/to", R | W | X)],
        ),
        // rm -r reads each directory and removes its entries one by one.
        case(|| remove("top/in", true), &[("top", W | X), ("top/in", R | W | X)]),
        // Extended attributes of users need the same rights as the content, xattr(7).
        case(|| get_extended("top/in/file", ""), &[("top", X), ("top/in", X), ("top/in/file", R)]),
        case(
            || set_extended("top/in/file", "a", Some(b"1")),
            &[("top", X), ("top/in", X), ("top/in/file", W)],
        ),
    ]
}

/// Whether a request succeeds in a pool in which one class of users has exactly the needed rights, except
/// `without`. The other classes have all rights, which must not help.
fn granted(needs: &[(&str, u32)], class: u32, without: Option<(&str, u32)>, request: ManagerRequest) -> bool {
    let mut pool = pool();
    for path in ["top/in/sub", "top/to"] {
        ask(&mut pool, &root(), make_directory(path, 0o777)).unwrap();
    }
    for path in ["top/in/file", "top/to/old"] {
        ask(&mut pool, &root(), create_as(path, 0o777)).unwrap();
    }
    for path in ["top", "top/in", "top/to", "top/in/sub", "top/in/file", "top/to/old"] {
        let mut bits = needs.iter().find(|need| need.0 == path).map_or(0, |need| need.1);
        if let Some((_, bit)) = without.filter(|without| without.0 == path) {
            bits &= !bit;
        }
        let mode = 0o777 & !(7 << class) | bits << class;
        ask(&mut pool, &root(), set_owner(path, Some(7), Some(70))).unwrap();
        ask(&mut pool, &root(), set_mode(path, mode)).unwrap();
    }
    let who = match class {
        6 => user(7, &[9, 70]),
        3 => user(8, &[9, 70]),
        _ => user(9, &[9]),
    };
    match ask(&mut pool, &who, request) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind, ErrorKind::Denied, "{error}");
            false
        }
    }
}

#[test]
fn each_request_needs_what_posix_says_and_no_more() {
    for Case { request, needs } in table() {
        for class in [6, 3, 0] {
            assert!(granted(needs, class, None, request()), "{:?} by class {class}", request());
            for &(path, bits) in needs {
                for bit in [R, W, X].into_iter().filter(|bit| bits & bit != 0) {
                    let without = Some((path, bit));
                    assert!(
                        !granted(needs, class, without, request()),
                        "{:?} without {without:?}",
                        request()
                    );
                }
            }
        }
    }
}

#[test]
fn root_needs_nothing() {
    for Case { request, .. } in table() {
        let mut pool = pool();
        for path in ["top/in/sub", "top/to"] {
            ask(&mut pool, &root(), make_directory(path, 0o777)).unwrap();
        }
        for path in ["top/in/file", "top/to/old"] {
            ask(&mut pool, &root(), create_as(path, 0)).unwrap();
        }
        for path in ["top", "top/in", "top/to", "top/in/sub"] {
            ask(&mut pool, &root(), set_owner(path, Some(7), Some(70))).unwrap();
            ask(&mut pool, &root(), set_mode(path, 0)).unwrap();
        }
        ask(&mut pool, &root(), request()).unwrap();
    }
}

#[test]
fn times_after_2262_are_refused() {
    let mut manager = pool();
    ask(&mut manager, &root(), create("f")).unwrap();
    // 2262-04-11T23:47:16Z, the last whole second in 63 bits of nanoseconds.
    let last_ns = 9_223_372_036 * SECOND_NS;
    for late_ns in [last_ns + 1, i64::MAX as u64, u64::MAX] {
        let error = ask(&mut manager, &root(), set_time("f", late_ns)).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("2262-04-11"), "{error}");
    }
    ask(&mut manager, &root(), set_time("f", last_ns)).unwrap();
    assert_eq!(inode(ask(&mut manager, &root(), stat("f")).unwrap()).modified_ns, last_ns);
}

/// chmod(), chown(), utimensat() by the owner, a member of the group, another user, and root.
#[test]
fn attributes_are_changed_by_those_who_may() {
    let time = |path: &str| set_time(path, 5);
    let touch = |path: &str| ManagerRequest::Touch { path: path.into() };
    let hints = || ManagerRequest::SetDefaultLayout { path: "d".into(), hints: Hints::default() };
    let table: Vec<(ManagerRequest, u32, [bool; 4])> = vec![
        (set_mode("d/f", 0o700), 0o777, [true, false, false, true]),
        (set_owner("d/f", Some(8), None), 0o777, [false, false, false, true]),
        // chown(): "the effective user ID does not match the owner of the file" is EPERM, whatever the change.
        (set_owner("d/f", Some(7), None), 0o777, [true, false, false, true]),
        (set_owner("d/f", None, Some(70)), 0o777, [true, false, false, true]),
        (set_owner("d/f", None, None), 0o777, [true, false, false, true]),
        // A group with owner and member, and a group without users.
        (set_owner("d/f", None, Some(71)), 0o777, [true, false, false, true]),
        (set_owner("d/f", None, Some(99)), 0o777, [false, false, false, true]),
        (time("d/f"), 0o755, [true, false, false, true]),
        (time("d/f"), 0o777, [true, false, false, true]),
        // utimensat() without times: "or has write access".
        (touch("d/f"), 0o755, [true, false, false, true]),
        (touch("d/f"), 0o775, [true, true, false, true]),
        (touch("d/f"), 0o057, [true, false, true, true]),
        (hints(), 0o777, [true, false, false, true]),
    ];
    let users: [User; 4] = [user(7, &[70, 71]), user(8, &[70, 71]), user(9, &[9]), root()];
    for (request, mode, may) in table {
        for (who, may) in users.iter().zip(may) {
            let mut pool = pool();
            ask(&mut pool, &root(), create_as("d/f", mode)).unwrap();
            ask(&mut pool, &root(), set_mode("d", 0o777)).unwrap();
            for path in ["d", "d/f"] {
                ask(&mut pool, &root(), set_owner(path, Some(7), Some(70))).unwrap();
            }
            let result = ask(&mut pool, who, request.clone());
            assert_eq!(result.is_ok(), may, "{request:?} of {who:?}: {result:?}");
            assert!(result.is_ok() || kind(result) == ErrorKind::Denied);
        }
    }
}

/// open() for writing alone needs only the right to write. A grant to write also allows reading here. Only the
/// owner, whose right to change the mode implies both, may open such a file.
#[test]
fn files_that_are_only_written_are_their_owners() {
    let users = [user(7, &[70]), user(8, &[70]), user(9, &[9]), root()];
    for (mode, may) in [
        (0o222, [true, false, false, true]),
        (0o444, [false, false, false, true]),
        (0o266, [true, true, true, true]),
        (0o060, [false, true, false, true]),
        (0o006, [false, false, true, true]),
    ] {
        for (who, may) in users.iter().zip(may) {
            let mut pool = pool();
            ask(&mut pool, &root(), create_as("d/f", mode)).unwrap();
            ask(&mut pool, &root(), set_mode("d", 0o777)).unwrap();
            ask(&mut pool, &root(), set_owner("d/f", Some(7), Some(70))).unwrap();
            let result = ask(&mut pool, who, open_file("d/f", true));
            assert_eq!(result.is_ok(), may, "{mode:o} {who:?}: {result:?}");
        }
    }
}

#[test]
fn who_may_write_says_when_and_nobody_runs_ahead() {
    let (owner, member, other) = (user(7, &[70]), user(8, &[70]), user(9, &[9]));
    let mut pool = pool();
    let file = opened(ask(&mut pool, &owner, create_as("d/f", 0o664)).unwrap()).inode;
    let wrote = |handle, at_ns| ManagerRequest::Wrote {
        handle,
        modified_ns: Some(at_ns),
        cuts: 0,
        durable: vec![],
        generations: vec![],
    };
    let now_ns = file.modified_ns + 1000;
    let mut last_ns = file.modified_ns;
    // The time comes from the client's clock, which may be wrong, but it increases by at least a nanosecond.
    for (at_ns, expected_ns) in [
        (now_ns - 10, now_ns - 10),
        (5, now_ns - 9),
        (now_ns + 9, now_ns),
        (u64::MAX, now_ns + 1),
        (0, now_ns + 2),
    ] {
        let found = inode(ask_at(&mut pool, now_ns, &member, wrote(file.handle, at_ns)).unwrap());
        assert_eq!((found.modified_ns, found.changed_ns), (expected_ns, now_ns));
        assert!(found.modified_ns > last_ns);
        last_ns = found.modified_ns;
    }
    assert_eq!(kind(ask(&mut pool, &other, wrote(file.handle, 5))), ErrorKind::Denied);
    ask(&mut pool, &owner, set_mode("d/f", 0o444)).unwrap();
    assert_eq!(kind(ask(&mut pool, &member, wrote(file.handle, 5))), ErrorKind::Denied);
    ask(&mut pool, &owner, wrote(file.handle, 5)).unwrap();
    assert_eq!(kind(ask(&mut pool, &root(), wrote(Handle(999), 5))), ErrorKind::NotFound);
    ask_at(&mut pool, 77, &owner, ManagerRequest::Touch { path: "d/f".into() }).unwrap();
    assert_eq!(inode(ask(&mut pool, &root(), stat("d/f")).unwrap()).modified_ns, 77);
}

/// Sticky directories like `/tmp`: POSIX.1-2017, `unlink()` and `rename()`, EPERM.
#[test]
fn sticky_directories_protect_names_from_other_users() {
    let users = [user(1, &[5]), user(2, &[5]), user(3, &[5]), root()];
    // User 1 owns the directory, user 2 the file.
    for (who, may) in users.iter().zip([true, true, false, true]) {
        let requests = [
            remove("d/f", false),
            rename("d/f", "d/g"),
            rename("d/f", "e"),
            rename("own", "d/f"),
            remove("d", true),
            replace("directory", "d"),
        ];
        for request in requests {
            let mut pool = pool();
            ask(&mut pool, &users[0], make_directory("d", 0o1777)).unwrap();
            ask(&mut pool, &users[1], create("d/f")).unwrap();
            ask(&mut pool, who, create("own")).unwrap();
            ask(&mut pool, who, make_directory("directory", 0o777)).unwrap();
            let result = ask(&mut pool, who, request.clone());
            assert_eq!(result.is_ok(), may, "{request:?} of {who:?}: {result:?}");
        }
    }
}

#[test]
fn new_files_are_of_their_maker_and_the_makers_first_group() {
    let mut pool = pool();
    ask(&mut pool, &root(), make_directory("d", 0o777)).unwrap();
    ask(&mut pool, &root(), set_owner("d", None, Some(44))).unwrap();
    let made = opened(ask(&mut pool, &user(5, &[50, 51]), create("d/f")).unwrap()).inode;
    assert_eq!((made.owner, made.group, made.mode), (5, 50, 0o644));
    let made = opened(ask(&mut pool, &user(6, &[]), create("d/g")).unwrap()).inode;
    assert_eq!((made.owner, made.group), (6, 44), "of the directory's group, for want of another");
}

/// POSIX.1-2017, `open()` and `mkdir()`, leave the group of new names open; a set-group-ID directory decides it, as on
/// Linux.
#[test]
fn a_directory_with_the_set_group_bit_passes_on_its_group() {
    let mut pool = pool();
    ask(&mut pool, &root(), make_directory("d", 0o777)).unwrap();
    ask(&mut pool, &root(), set_owner("d", None, Some(44))).unwrap();
    ask(&mut pool, &root(), set_mode("d", 0o2777)).unwrap();
    let maker = user(5, &[50, 51]);
    ask(&mut pool, &maker, create_as("d/f", 0o640)).unwrap();
    ask(&mut pool, &maker, make_directory("d/sub", 0o750)).unwrap();
    ask(&mut pool, &maker, make_link("d/link", "f")).unwrap();
    // Directories on the way are new directories, too.
    ask(&mut pool, &maker, create_as("d/sub/way/g", 0o600)).unwrap();
    let expected =
        [("f", 0o640), ("sub", 0o2750), ("link", 0o777), ("sub/way", 0o2700), ("sub/way/g", 0o600)];
    for (name, mode) in expected {
        let found = inode(ask(&mut pool, &root(), stat(&format!("d/{name}"))).unwrap());
        assert_eq!((found.owner, found.group, found.mode), (5, 44, mode), "{name}");
    }
    ask(&mut pool, &root(), set_mode("d", 0o777)).unwrap();
    let made = opened(ask(&mut pool, &maker, create("d/own")).unwrap()).inode;
    assert_eq!(made.group, 50);
}

/// POSIX.1-2017, `chmod()`: the bit is cleared if the user is not a member of the group. Linux does so for directories.
#[test]
fn the_set_group_bit_is_that_of_members_of_the_group() {
    let owner = user(7, &[70, 71]);
    for (group, who, mode) in
        [(70, &owner, 0o2750), (71, &owner, 0o2750), (99, &owner, 0o750), (99, &root(), 0o2750)]
    {
        let mut pool = pool();
        ask(&mut pool, &owner, make_directory("d", 0o777)).unwrap();
        ask(&mut pool, &root(), set_owner("d", None, Some(group))).unwrap();
        ask(&mut pool, who, set_mode("d", 0o2750)).unwrap();
        assert_eq!(inode(ask(&mut pool, &root(), stat("d")).unwrap()).mode, mode, "{group} {who:?}");
    }
    let mut pool = pool();
    ask(&mut pool, &owner, create("f")).unwrap();
    assert_eq!(kind(ask(&mut pool, &owner, set_mode("f", 0o2750))), ErrorKind::Invalid);
    assert_eq!(kind(ask(&mut pool, &owner, create_as("g", 0o2750))), ErrorKind::Invalid);
}

/// A guessed handle gives no more rights than the path.
#[test]
fn renewal_needs_what_opening_needs() {
    let (owner, other) = (user(7, &[70]), user(9, &[9]));
    let mut pool = pool();
    let file = opened(ask(&mut pool, &owner, create_as("home/private/f", 0o444)).unwrap()).inode.handle;
    let renew = |write| ManagerRequest::Renew { handle: file, write };
    for write in [false, true] {
        ask(&mut pool, &owner, renew(write)).unwrap();
        assert_eq!(ask(&mut pool, &other, renew(write)).is_ok(), !write);
    }
    for path in ["home", "home/private"] {
        ask(&mut pool, &owner, set_mode(path, 0o700)).unwrap();
        assert_eq!(kind(ask(&mut pool, &other, renew(false))), ErrorKind::Denied);
        ask(&mut pool, &owner, renew(true)).unwrap();
        ask(&mut pool, &owner, set_mode(path, 0o711)).unwrap();
        ask(&mut pool, &other, renew(false)).unwrap();
    }
    ask(&mut pool, &owner, make_directory("secret", 0o700)).unwrap();
    ask(&mut pool, &owner, rename("home/private/f", "secret/f")).unwrap();
    assert_eq!(kind(ask(&mut pool, &other, renew(false))), ErrorKind::Denied, "where it is now");
    ask(&mut pool, &owner, remove("secret/f", false)).unwrap();
    assert_eq!(kind(ask(&mut pool, &owner, renew(false))), ErrorKind::NotFound);
}

#[test]
fn grants_are_for_what_was_asked_and_end() {
    let mut pool = pool();
    let now_s = 5000;
    let asked = |pool: &mut _, request| ask_at(pool, now_s * SECOND_NS, &root(), request).unwrap();
    let file = opened(asked(&mut pool, create("f")));
    let handle = file.inode.handle;
    let (key, end) = (key(), now_s + 600);
    key.verify(&file.grant, handle, true, end - 1).unwrap();
    assert_eq!(file.grant.expires_s, end);
    let reader = opened(asked(&mut pool, open_file("f", false))).grant;
    key.verify(&reader, handle, false, end - 1).unwrap();
    assert_eq!(key.verify(&reader, handle, true, now_s).unwrap_err().kind, ErrorKind::Denied);
    assert!(opened(asked(&mut pool, open_file("f", true))).grant.write);
}

#[test]
fn who_looks_may_ask_how_long_the_files_are_that_it_saw() {
    let mut pool = pool();
    let now_s = 5000;
    let asked = |pool: &mut _, request| ask_at(pool, now_s * SECOND_NS, &root(), request).unwrap();
    for name in ["d/a", "d/b", "d/c/e"] {
        asked(&mut pool, create_as(name, 0));
    }
    let looked = |reply| match reply {
        ManagerReply::Looked { names, more, grant } => (names, more, grant),
        other => panic!("not looked: {other:?}"),
    };
    for (path, after, most) in [("d", "", 9), ("d", "", 1), ("d", "a", 1), ("d/a", "", 9)] {
        let (found, more, grant) = looked(asked(&mut pool, look(path, after, most)));
        if path == "d" {
            assert_eq!((found.clone(), more), names(asked(&mut pool, list(path, after, most))));
        } else {
            assert_eq!((found.len(), found[0].name.as_str(), more), (1, "", false));
            assert_eq!(found[0].inode, inode(asked(&mut pool, stat(path))));
        }
        let files = files_among(&found);
        assert_eq!(files.len(), found.iter().filter(|named| named.name != "c").count());
        key().verify_lengths(&grant, &files, now_s + 599).unwrap();
        assert_eq!(grant.expires_s, now_s + 600);
        let more = [&files[..], &[Handle(1)]].concat();
        assert_eq!(key().verify_lengths(&grant, &more, now_s).unwrap_err().kind, ErrorKind::Denied);
    }
    assert_eq!(kind(ask(&mut pool, &root(), look("none", "", 9))), ErrorKind::NotFound);
}
