//! Sequences of requests by several users to two managers of one store, compared with the model.

use std::fmt::Debug;

use outcore_core::{ErrorKind, Handle, Hints, ManagerReply, ManagerRequest, Result};
use outcore_server::manager::{Manager, User};
use outcore_server::store::{MemoryStore, SqliteStore, Store};
use proptest::prelude::*;

use crate::model::{Done, Model};
use crate::pool::*;

const SERVERS: u32 = 4;

#[derive(Clone, Debug)]
enum Operation {
    Create {
        path: String,
        mode: u32,
        count: Option<u64>,
    },
    MakeDirectory {
        path: String,
        mode: u32,
    },
    MakeLink {
        path: String,
        target: String,
    },
    Open {
        path: String,
        write: bool,
    },
    Stat {
        path: String,
    },
    List {
        path: String,
        after: String,
    },
    Remove {
        path: String,
        recursive: bool,
    },
    Rename {
        from: String,
        to: String,
    },
    Replace {
        from: String,
        to: String,
    },
    SetAttributes {
        path: String,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        time: Option<u64>,
    },
    SetDefault {
        path: String,
        count: Option<u64>,
    },
    GetExtended {
        path: String,
        name: String,
    },
    SetExtended {
        path: String,
        name: String,
        value: Option<Vec<u8>>,
    },
    Forget {
        which: usize,
    },
    Restart,
}

fn path(least: usize) -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", "b", "c"]), least..4)
        .prop_map(|names| names.join("/"))
}

fn mode() -> impl Strategy<Value = u32> {
    prop_oneof![
        3 => Just(0o777),
        3 => Just(0o755),
        3 => Just(0o644),
        1 => prop::sample::select(vec![0o1777, 0o1755, 0o700, 0o600, 0o770, 0o750, 0o070, 0o007, 0o311, 0o444, 0]),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as O;
    let count = || prop::option::of(prop::sample::select(vec![1_u64, 2, 9]));
    let name = || prop::sample::select(vec!["x", "y"]).prop_map(str::to_owned);
    let id = || prop::option::weighted(0.4, prop::sample::select(vec![0_u32, 1, 2, 3, 10, 20]));
    prop_oneof![
        8 => (path(1), mode(), count()).prop_map(|(path, mode, count)| O::Create { path, mode, count }),
        5 => (path(1), mode()).prop_map(|(path, mode)| O::MakeDirectory { path, mode }),
        4 => (path(1), path(1)).prop_map(|(path, target)| O::MakeLink { path, target }),
        2 => (path(0), any::<bool>()).prop_map(|(path, write)| O::Open { path, write }),
        1 => path(0).prop_map(|path| O::Stat { path }),
        2 => (path(0), "[abc]?").prop_map(|(path, after)| O::List { path, after }),
        4 => (path(1), any::<bool>()).prop_map(|(path, recursive)| O::Remove { path, recursive }),
        8 => (path(1), path(1)).prop_map(|(from, to)| O::Rename { from, to }),
        6 => (path(1), path(1)).prop_map(|(from, to)| O::Replace { from, to }),
        4 => (path(0), prop::option::of(mode()), id(), id(), prop::option::weighted(0.2, any::<u64>()))
            .prop_map(|(path, mode, owner, group, time)| O::SetAttributes { path, mode, owner, group, time }),
        2 => (path(0), count()).prop_map(|(path, count)| O::SetDefault { path, count }),
        1 => (path(0), "[xy]?").prop_map(|(path, name)| O::GetExtended { path, name }),
        2 => (path(0), name(), prop::option::of(prop::collection::vec(any::<u8>(), 0..4)))
            .prop_map(|(path, name, value)| O::SetExtended { path, name, value }),
        2 => any::<usize>().prop_map(|which| O::Forget { which }),
        1 => Just(O::Restart),
    ]
}

fn users() -> [User; 4] {
    [root(), user(1, &[10]), user(2, &[20, 10]), user(3, &[])]
}

fn check<T: Debug + PartialEq>(step: usize, found: Result<T>, expected: Done<T>) {
    let message = format!("step {step}: {found:?}, expected {expected:?}");
    match (found, expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found, expected, "step {step}"),
        (Err(error), Err(kind)) => assert_eq!(error.kind, kind, "{message}"),
        _ => panic!("{message}"),
    }
}

fn done(reply: Result<ManagerReply>) -> Result<()> {
    reply.map(|_| ())
}

/// Performs one operation on the manager and the model, and compares the results.
fn both<S: Store>(
    manager: &mut Manager<S>,
    model: &mut Model,
    who: &User,
    step: usize,
    operation: &Operation,
) {
    use Operation as O;
    let now = (step as u64 + 1) * 1000;
    let mut asked = |request: ManagerRequest| ask_at(manager, now, who, request);
    match operation.clone() {
        O::Create { path, mode, count } => {
            let hints = Hints { stripe_count: count, ..Hints::default() };
            let expected = model.create(who, &path, mode, &hints, now);
            let found = asked(ManagerRequest::Create { path: path.clone(), hints, mode }).map(opened);
            if let Ok(opened) = &found {
                let handle = opened.inode.handle;
                assert!(model.handles.insert(handle), "step {step}: handle {handle:?} was used before");
                let entry = model.find(&root(), &path).unwrap();
                entry.handle = Some(handle);
                key().verify(&opened.grant, handle, true, now / SECOND_NS).unwrap();
            }
            check(step, found.map(|_| ()), expected);
        }
        O::MakeDirectory { path, mode } => {
            let found = done(asked(make_directory(&path, mode)));
            check(step, found, model.make_directory(who, &path, mode, now));
        }
        O::MakeLink { path, target } => {
            let found = done(asked(make_link(&path, &target)));
            check(step, found, model.make_link(who, &path, &target, now));
        }
        O::Open { path, write } => {
            let found = asked(open_file(&path, write)).map(|reply| opened(reply).inode.handle);
            check(step, found, model.open(who, &path, write));
        }
        O::Stat { path } => {
            let found = asked(stat(&path)).map(|reply| inode(reply).mode);
            check(step, found, model.find(who, &path).map(|entry| entry.mode));
        }
        O::List { path, after } => {
            let found = asked(list(&path, &after, 1000))
                .map(|reply| names(reply).0.into_iter().map(|named| named.name).collect::<Vec<_>>());
            let expected = model.list(who, &path);
            check(
                step,
                found,
                expected.map(|names| names.into_iter().filter(|name| *name > after).collect()),
            );
        }
        O::Remove { path, recursive } => {
            let found = done(asked(remove(&path, recursive)));
            check(step, found, model.remove(who, &path, recursive, now));
        }
        O::Rename { from, to } => {
            let found = done(asked(rename(&from, &to)));
            check(step, found, model.rename(who, &from, &to, false, now));
        }
        O::Replace { from, to } => {
            let found = done(asked(replace(&from, &to)));
            check(step, found, model.rename(who, &from, &to, true, now));
        }
        O::SetAttributes { path, mode, owner, group, time } => {
            let expected = model.set_attributes(who, &path, (mode, owner, group, time), now);
            let request = ManagerRequest::SetAttributes { path, mode, owner, group, modified_ns: time };
            check(step, done(asked(request)), expected);
        }
        O::SetDefault { path, count } => {
            let hints = Hints { stripe_count: count, ..Hints::default() };
            let expected = model.set_default(who, &path, count, now);
            check(step, done(asked(ManagerRequest::SetDefaultLayout { path, hints })), expected);
        }
        O::GetExtended { path, name } => {
            let found = asked(get_extended(&path, &name)).map(values);
            check(step, found, model.get_extended(who, &path, &name));
        }
        O::SetExtended { path, name, value } => {
            let expected = model.set_extended(who, &path, &name, value.as_deref(), now);
            check(step, done(asked(set_extended(&path, &name, value.as_deref()))), expected);
        }
        O::Forget { which } => {
            let Some((&handle, &remover)) = model.orphans.iter().nth(which % model.orphans.len().max(1))
            else {
                return;
            };
            let found = done(asked(orphans(&[handle], 0, 1)));
            let may = who.is_root || who.uid == remover;
            check(step, found, if may { Ok(()) } else { Err(ErrorKind::Denied) });
            if may {
                model.orphans.remove(&handle);
            }
        }
        O::Restart => {}
    }
}

/// Compares the manager's entire visible state with the model.
fn compare<S: Store>(manager: &mut Manager<S>, model: &mut Model, step: usize) {
    let found = tree(manager);
    let paths: Vec<String> = model.paths().into_keys().collect();
    assert_eq!(found.keys().cloned().collect::<Vec<_>>(), paths, "step {step}");
    for (path, inode) in &found {
        let entry = model.find(&root(), path).unwrap();
        assert_eq!(inode.is_directory(), entry.below.is_some(), "step {step}: {path}");
        assert_eq!(inode.target, entry.target, "step {step}: {path}");
        let expected = (entry.owner, entry.group, entry.mode, entry.modified_ns, entry.changed_ns);
        let have = (inode.owner, inode.group, inode.mode, inode.modified_ns, inode.changed_ns);
        assert_eq!(have, expected, "step {step}: {path}");
        if let Some(layout) = &inode.layout {
            assert_eq!(Some(layout.stripes.count()), entry.stripe_count, "step {step}: {path}");
        }
        match entry.handle {
            Some(handle) => assert_eq!(inode.handle, handle, "step {step}: {path}"),
            None => {
                entry.handle = Some(inode.handle);
                assert!(model.handles.insert(inode.handle), "step {step}: {path} has a handle used before");
            }
        }
    }
    for who in users() {
        let mut expected: Vec<Handle> = Vec::new();
        for (&handle, &remover) in &model.orphans {
            if who.is_root || who.uid == remover {
                expected.push(handle);
            }
        }
        let mut found = Vec::new();
        loop {
            let after = found.last().map_or(0, |handle: &Handle| handle.0);
            let page = handles(ask(manager, &who, orphans(&[], after, 2)).unwrap());
            if page.is_empty() {
                break;
            }
            found.extend(page);
        }
        assert_eq!(found, expected, "step {step}: orphans of {who:?}");
    }
}

fn run<S: Store>(open_store: &dyn Fn() -> S, operations: &[(usize, usize, Operation)]) {
    let mut managers = [open(open_store()), open(open_store())];
    add_servers(&mut managers[0], SERVERS);
    let mut model = Model::new(u64::from(SERVERS));
    for (step, (which, who, operation)) in operations.iter().enumerate() {
        if let Operation::Restart = operation {
            managers[*which] = open(open_store());
        }
        both(&mut managers[*which], &mut model, &users()[*who], step, operation);
        compare(&mut managers[1 - *which], &mut model, step);
    }
}

fn operations(most: usize) -> impl Strategy<Value = Vec<(usize, usize, Operation)>> {
    prop::collection::vec((0..2_usize, 0..4_usize, operation()), 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn a_pool_in_memory_is_as_the_model(operations in operations(60)) {
        let store = MemoryStore::new();
        run(&|| store.clone(), &operations);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn a_pool_in_sqlite_is_as_the_model(operations in operations(40)) {
        let root = tempfile::tempdir().unwrap();
        run(&|| SqliteStore::open(root.path().join("metadata")).unwrap(), &operations);
    }
}
