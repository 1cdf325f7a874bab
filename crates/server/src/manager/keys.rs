//! The keys of the manager's records. `docs/format.md` has the table.
//!
//! The key of a name contains the handle of its directory, not a path. Moving a directory therefore changes one
//! record, whatever is below it. Handles are big-endian here, so that keys sort by handle.

use outcore_core::{Handle, ServerId};

/// The number of the pool.
pub(super) const POOL: &[u8] = b"p";
/// The next free handle.
pub(super) const NEXT_HANDLE: &[u8] = b"h";
/// Present from the restoration of the store from a copy until the next allocation of handles.
pub(super) const RESTORED: &[u8] = b"j";
/// Written with every change of a server.
pub(super) const SERVERS_CHANGED: &[u8] = b"v";
/// Written when a directory moves to another directory. If two move concurrently, one retries.
pub(super) const DIRECTORY_MOVED: &[u8] = b"m";

/// Present while mounts may hold locks, so that the next run of the manager lets them reclaim these.
pub(super) const LEASES: &[u8] = b"l";

/// The rules of the index of attributes; absent without a whole index.
pub(super) const INDEXED: &[u8] = b"q";

/// The next free number for an I/O server.
pub(super) const NEXT_SERVER: &[u8] = b"k";

/// The keys from the first, inclusive, to the second, exclusive.
pub(super) type KeyRange = (Vec<u8>, Vec<u8>);

fn below(letter: u8, number: u64, rest: &[u8]) -> Vec<u8> {
    let mut key = vec![letter];
    key.extend(number.to_be_bytes());
    key.extend(rest);
    key
}

/// All keys that begin with a letter and a number.
fn all_below(letter: u8, number: u64) -> KeyRange {
    let until = number.checked_add(1).map_or(vec![letter + 1], |next| below(letter, next, &[]));
    (below(letter, number, &[]), until)
}

/// The records of files and directories after a handle.
pub(super) fn inodes(after: Handle) -> KeyRange {
    all_after(b'i', after)
}

/// All keys of a letter with a number after `after`.
fn all_after(letter: u8, after: Handle) -> KeyRange {
    let until = vec![letter + 1];
    (after.0.checked_add(1).map_or(until.clone(), |next| below(letter, next, &[])), until)
}

/// The record of a file or directory.
pub(super) fn inode(handle: Handle) -> Vec<u8> {
    below(b'i', handle.0, &[])
}

/// A name in a directory.
pub(super) fn name(directory: Handle, name: &str) -> Vec<u8> {
    below(b'n', directory.0, name.as_bytes())
}

/// The names in a directory after a given one; all of them if it is empty.
pub(super) fn names(directory: Handle, after: &str) -> KeyRange {
    let (first, until) = all_below(b'n', directory.0);
    if after.is_empty() {
        return (first, until);
    }
    let mut from = name(directory, after);
    from.push(0);
    (from, until)
}

/// The name in a key of [`name`] or [`extended`].
pub(super) fn name_in(key: &[u8]) -> Option<&str> {
    std::str::from_utf8(key.get(9..)?).ok()
}

/// All names.
pub(super) fn all_names() -> KeyRange {
    (b"n".to_vec(), b"o".to_vec())
}

/// All extended attributes.
pub(super) fn all_attributes() -> KeyRange {
    (b"x".to_vec(), b"y".to_vec())
}

/// The noted name of a directory, or of a file with attributes.
pub(super) fn noted_name(handle: Handle) -> Vec<u8> {
    below(b'w', handle.0, &[])
}

/// An extended attribute of a file or directory.
pub(super) fn extended(handle: Handle, name: &str) -> Vec<u8> {
    below(b'x', handle.0, name.as_bytes())
}

/// Whether a key is one of [`extended`].
pub(super) fn is_extended(key: &[u8]) -> bool {
    key.first() == Some(&b'x')
}

/// All extended attributes of a file or directory. [`name_in`] returns their names.
pub(super) fn all_extended(handle: Handle) -> KeyRange {
    all_below(b'x', handle.0)
}

/// An orphan: a file without a name.
pub(super) fn orphan(handle: Handle) -> Vec<u8> {
    below(b'o', handle.0, &[])
}

/// The orphans after a handle.
pub(super) fn orphans(after: Handle) -> KeyRange {
    all_after(b'o', after)
}

/// A directory without a name, which may still have entries.
pub(super) fn detached(handle: Handle) -> Vec<u8> {
    below(b't', handle.0, &[])
}

/// All directories without a name.
pub(super) fn all_detached() -> KeyRange {
    (b"t".to_vec(), b"u".to_vec())
}

/// The handle in a key of [`inode`], [`orphan`] or [`detached`], or at the start of one of [`name`] or [`extended`].
pub(super) fn handle_in(key: &[u8]) -> Option<Handle> {
    Some(Handle(u64::from_be_bytes(key.get(1..9)?.try_into().ok()?)))
}

/// A client, identified by a hash of its user and the number that it chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Client(pub u128);

/// The note on a completed request, in one of the client's slots.
pub(super) fn answer((client, place): (Client, u8)) -> Vec<u8> {
    let mut key = vec![b'a'];
    key.extend(client.0.to_be_bytes());
    key.push(place);
    key
}

/// All notes on completed requests.
pub(super) fn all_answers() -> KeyRange {
    (b"a".to_vec(), b"b".to_vec())
}

/// The client and slot in a key of [`answer`].
pub(super) fn answer_in(key: &[u8]) -> Option<(Client, u8)> {
    let client = u128::from_be_bytes(key.get(1..17)?.try_into().ok()?);
    Some((Client(client), *key.get(17)?))
}

/// The record of an I/O server.
pub(super) fn server(id: ServerId) -> Vec<u8> {
    let mut key = vec![b's'];
    key.extend(id.0.to_be_bytes());
    key
}

/// The records of all I/O servers.
pub(super) fn all_servers() -> KeyRange {
    (b"s".to_vec(), b"t".to_vec())
}

/// The mark of a retired I/O server.
pub(super) fn retired(id: ServerId) -> Vec<u8> {
    let mut key = vec![b'r'];
    key.extend(id.0.to_be_bytes());
    key
}

/// The marks of all retired I/O servers.
pub(super) fn all_retired() -> KeyRange {
    (b"r".to_vec(), b"s".to_vec())
}

/// The server in a key of [`server`] or [`retired`].
pub(super) fn server_in(key: &[u8]) -> Option<ServerId> {
    Some(ServerId(u32::from_be_bytes(key.get(1..)?.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(range: &KeyRange, key: &[u8]) -> bool {
        range.0.as_slice() <= key && key < range.1.as_slice()
    }

    #[test]
    fn what_is_of_a_directory_is_in_its_range_only() {
        for handle in [1, 255, 256, u64::MAX - 1, u64::MAX] {
            let all = names(Handle(handle), "");
            for text in ["\u{1}", "a", "\u{10ffff}"] {
                let key = name(Handle(handle), text);
                assert!(holds(&all, &key), "{handle} {text:?}");
                assert_eq!(name_in(&key), Some(text));
                assert!(!holds(&names(Handle(handle), text), &key), "not after itself");
                for other in [handle - 1, handle.wrapping_add(1)] {
                    assert!(!holds(&all, &name(Handle(other), text)), "{handle} {other}");
                }
            }
            assert!(holds(&names(Handle(handle), "a"), &name(Handle(handle), "a\u{1}")));
            assert!(!holds(&all, &extended(Handle(handle), "a")));
            assert!(holds(&orphans(Handle(handle - 1)), &orphan(Handle(handle))));
            assert!(!holds(&orphans(Handle(handle)), &orphan(Handle(handle))));
            assert!(holds(&inodes(Handle(handle - 1)), &inode(Handle(handle))));
            assert!(!holds(&inodes(Handle(handle)), &inode(Handle(handle))));
            assert_eq!(handle_in(&detached(Handle(handle))), Some(Handle(handle)));
            assert!(holds(&all_detached(), &detached(Handle(handle))));
        }
        for client in [0, u128::MAX] {
            let key = answer((Client(client), 15));
            assert!(holds(&all_answers(), &key));
            assert_eq!(answer_in(&key), Some((Client(client), 15)));
        }
        for id in [0, 258, u32::MAX].map(ServerId) {
            assert!(holds(&all_servers(), &server(id)) && !holds(&all_retired(), &server(id)));
            assert!(holds(&all_retired(), &retired(id)) && !holds(&all_servers(), &retired(id)));
            assert_eq!([server_in(&server(id)), server_in(&retired(id))], [Some(id); 2]);
        }
    }
}
