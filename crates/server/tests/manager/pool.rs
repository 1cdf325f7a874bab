//! Managers to test, and helper functions to call them.

use std::collections::BTreeMap;

use outcore_core::{
    Error, ErrorKind, Handle, Hints, Inode, LockFamily, LockKind, LockOwner, LockWish, ManagerReply,
    ManagerRequest, Named, Opened, Result, ServerAddress, ServerId,
};
use outcore_server::grants::Key;
use outcore_server::manager::{Config, Manager, Now, User};
use outcore_server::store::{MemoryStore, Store};

pub const POOL: u128 = 0x1234;
pub const SECOND_NS: u64 = 1_000_000_000;

pub fn key() -> Key {
    Key::new([3; 32])
}

pub fn root() -> User {
    User { uid: 0, gids: vec![0], is_root: true }
}

pub fn user(uid: u32, gids: &[u32]) -> User {
    User { uid, gids: gids.to_vec(), is_root: false }
}

pub fn at(ns: u64) -> Now {
    Now { unix_ns: ns, running_ns: ns }
}

/// A manager whose root directory is writable for everybody.
pub fn open<S: Store>(store: S) -> Manager<S> {
    Manager::open(store, key(), Config { mode: 0o777, ..Config::new(POOL) }).unwrap()
}

pub fn add_servers<S: Store>(manager: &mut Manager<S>, count: u32) {
    for id in 0..count {
        manager
            .add_server(ServerAddress { id: ServerId(id), addresses: vec![format!("tcp:h{id}:1")] })
            .unwrap();
    }
}

/// A pool in memory with four servers.
pub fn pool() -> Manager<MemoryStore> {
    let mut manager = open(MemoryStore::new());
    add_servers(&mut manager, 4);
    manager
}

/// Calls a manager at second 1, and returns a failure as an error.
pub fn ask<S: Store>(manager: &mut Manager<S>, who: &User, request: ManagerRequest) -> Result<ManagerReply> {
    ask_at(manager, SECOND_NS, who, request)
}

pub fn ask_at<S: Store>(
    manager: &mut Manager<S>,
    ns: u64,
    who: &User,
    request: ManagerRequest,
) -> Result<ManagerReply> {
    match manager.handle(at(ns), who, request) {
        ManagerReply::Failed(error) => {
            let fix = error.message.rsplit_once("; ").map(|(_, fix)| fix.trim());
            assert!(error.message.starts_with("need ") && error.message.contains("have "), "{error}");
            assert!(fix.is_some_and(|fix| !fix.is_empty()), "{error}");
            Err(error)
        }
        // The manager never answers with this kind of error: clients do.
        ManagerReply::Link { path, target } => {
            Err(Error::new(ErrorKind::Loop, format!("the link {path:?} to {target:?}")))
        }
        reply => Ok(reply),
    }
}

pub fn kind<T: std::fmt::Debug>(result: Result<T>) -> ErrorKind {
    result.expect_err("must be refused").kind
}

pub fn create(path: &str) -> ManagerRequest {
    create_as(path, 0o644)
}

pub fn create_as(path: &str, mode: u32) -> ManagerRequest {
    ManagerRequest::Create { path: path.into(), hints: Hints::default(), mode }
}

pub fn create_with(path: &str, hints: Hints) -> ManagerRequest {
    ManagerRequest::Create { path: path.into(), hints, mode: 0o644 }
}

pub fn make_directory(path: &str, mode: u32) -> ManagerRequest {
    ManagerRequest::MakeDirectory { path: path.into(), mode }
}

pub fn make_link(path: &str, target: &str) -> ManagerRequest {
    ManagerRequest::MakeLink { path: path.into(), target: target.into() }
}

pub fn open_file(path: &str, write: bool) -> ManagerRequest {
    ManagerRequest::Open { path: path.into(), write }
}

pub fn stat(path: &str) -> ManagerRequest {
    ManagerRequest::Stat { path: path.into() }
}

pub fn list(path: &str, after: &str, most: u64) -> ManagerRequest {
    ManagerRequest::List { path: path.into(), after: after.into(), most }
}

pub fn look(path: &str, after: &str, most: u64) -> ManagerRequest {
    ManagerRequest::Look { path: path.into(), after: after.into(), most }
}

pub fn remove(path: &str, recursive: bool) -> ManagerRequest {
    ManagerRequest::Remove { path: path.into(), recursive }
}

pub fn rename(from: &str, to: &str) -> ManagerRequest {
    rename_describing(from, to, None)
}

pub fn rename_describing(from: &str, to: &str, description: Option<&[u8]>) -> ManagerRequest {
    ManagerRequest::Rename {
        from: from.into(),
        to: to.into(),
        durable: vec![],
        generations: vec![],
        description: description.map(<[u8]>::to_vec),
    }
}

pub fn replace(from: &str, to: &str) -> ManagerRequest {
    ManagerRequest::Replace { from: from.into(), to: to.into() }
}

pub fn orphans(gone: &[Handle], after: u64, most: u64) -> ManagerRequest {
    ManagerRequest::Orphans { gone: gone.to_vec(), after: Handle(after), most }
}

pub fn set_mode(path: &str, mode: u32) -> ManagerRequest {
    ManagerRequest::SetAttributes {
        path: path.into(),
        mode: Some(mode),
        owner: None,
        group: None,
        modified_ns: None,
    }
}

pub fn set_owner(path: &str, owner: Option<u32>, group: Option<u32>) -> ManagerRequest {
    ManagerRequest::SetAttributes { path: path.into(), mode: None, owner, group, modified_ns: None }
}

pub fn set_time(path: &str, modified_ns: u64) -> ManagerRequest {
    ManagerRequest::SetAttributes {
        path: path.into(),
        mode: None,
        owner: None,
        group: None,
        modified_ns: Some(modified_ns),
    }
}

pub fn set_extended(path: &str, name: &str, value: Option<&[u8]>) -> ManagerRequest {
    ManagerRequest::SetExtended { path: path.into(), name: name.into(), value: value.map(<[u8]>::to_vec) }
}

pub fn get_extended(path: &str, name: &str) -> ManagerRequest {
    ManagerRequest::GetExtended { path: path.into(), name: name.into() }
}

/// A wish for an exclusive lock on the first ten bytes of a file.
pub fn lock(handle: Handle, lease: u128) -> LockWish {
    let owner = LockOwner { lease, family: LockFamily::Fcntl, number: 1 };
    LockWish { handle, owner, process: 9, start: 0, end: 9, kind: LockKind::Exclusive, reclaims: false }
}

pub fn opened(reply: ManagerReply) -> Opened {
    match reply {
        ManagerReply::Opened(opened) => *opened,
        other => panic!("not opened: {other:?}"),
    }
}

pub fn inode(reply: ManagerReply) -> Inode {
    match reply {
        ManagerReply::Inode(inode) => *inode,
        other => panic!("not an inode: {other:?}"),
    }
}

pub fn names(reply: ManagerReply) -> (Vec<Named>, bool) {
    match reply {
        ManagerReply::Names { names, more } => (names, more),
        other => panic!("not names: {other:?}"),
    }
}

pub fn handles(reply: ManagerReply) -> Vec<Handle> {
    match reply {
        ManagerReply::Orphans(files) => files.iter().map(|file| file.inode.handle).collect(),
        other => panic!("not orphans: {other:?}"),
    }
}

pub fn values(reply: ManagerReply) -> Vec<Vec<u8>> {
    match reply {
        ManagerReply::Values(values) => values,
        other => panic!("not values: {other:?}"),
    }
}

/// Every entry below the root, by path, as root sees it in pages of two names.
pub fn tree<S: Store>(manager: &mut Manager<S>) -> BTreeMap<String, Inode> {
    let mut found = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(directory) = left.pop() {
        let mut after = String::new();
        loop {
            let (page, more) = names(ask(manager, &root(), list(&directory, &after, 2)).unwrap());
            assert!(page.len() <= 2 && (page.len() == 2 || !more));
            for named in page {
                assert!(named.name > after, "sorted, and each once");
                let path = if directory.is_empty() {
                    named.name.clone()
                } else {
                    format!("{directory}/{}", named.name)
                };
                if named.inode.is_directory() {
                    left.push(path.clone());
                }
                found.insert(path, named.inode);
                after = named.name;
            }
            if !more {
                break;
            }
        }
    }
    found
}
