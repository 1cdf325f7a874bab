//! Access rights by owner, group and mode, as in POSIX.1-2017, base definitions, section 4.5 "File Access
//! Permissions".

use outcore_core::{Error, ErrorKind, Inode, Result};

use super::User;

/// The right to read a file, or to list a directory.
pub(super) const READ: u32 = 4;
/// The right to write a file, or to create and remove names in a directory.
pub(super) const WRITE: u32 = 2;
/// The right to access the entries of a directory.
pub(super) const SEARCH: u32 = 1;
/// Restricts the removal of a name from a directory to the owner of the entry or of the directory.
pub(super) const STICKY: u32 = 0o1000;
/// Gives the group of a directory to new names in it, and this bit to new directories.
pub(super) const SET_GROUP: u32 = 0o2000;
/// All bits of the mode of a file.
const FILE_BITS: u32 = 0o1777;
/// All bits of the mode of a directory.
const DIRECTORY_BITS: u32 = FILE_BITS | SET_GROUP;

/// Whether the bits of the user's class contain all `wanted` bits. The first matching class counts, even if a
/// later one has more bits.
pub(super) fn allows(inode: &Inode, who: &User, wanted: u32) -> bool {
    let class = if who.uid == inode.owner {
        6
    } else if who.gids.contains(&inode.group) {
        3
    } else {
        0
    };
    who.is_root || inode.mode >> class & wanted == wanted
}

/// Returns an error unless the user has these rights for `path`.
pub(super) fn require(inode: &Inode, who: &User, wanted: u32, path: &str) -> Result<()> {
    if allows(inode, who, wanted) {
        return Ok(());
    }
    let verbs: Vec<&str> = [(READ, "read"), (WRITE, "write"), (SEARCH, "search")]
        .into_iter()
        .filter_map(|(bit, verb)| (wanted & bit != 0).then_some(verb))
        .collect();
    Err(denied(inode, who, &verbs.join(" and "), path, "ask its owner for that"))
}

/// Returns an error unless the user is the owner or root.
pub(super) fn require_owner(inode: &Inode, who: &User, what: &str, path: &str) -> Result<()> {
    if who.is_root || who.uid == inode.owner {
        return Ok(());
    }
    Err(denied(inode, who, what, path, "ask its owner to do it"))
}

/// Returns an error if the directory is sticky and the user may not remove a name from it.
pub(super) fn require_unstuck(directory: &Inode, entry: &Inode, who: &User, path: &str) -> Result<()> {
    let free = directory.mode & STICKY == 0 || who.is_root;
    if free || who.uid == entry.owner || who.uid == directory.owner {
        return Ok(());
    }
    Err(denied(entry, who, "remove from its sticky directory", path, "ask its owner to do it"))
}

/// Refuses bits that do not belong to the mode of a file or directory.
pub(super) fn check_mode(mode: u32, is_directory: bool) -> Result<()> {
    let (bits, kind) = if is_directory { (DIRECTORY_BITS, "directory") } else { (FILE_BITS, "file") };
    if mode & !bits == 0 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need permission bits within {bits:#o} for a {kind}, have {mode:#o}; leave the others out"
    )))
}

/// The bits that a mode has after `who` sets it. Only root and members of the group set the set-group-ID bit.
///
/// Source: POSIX.1-2017, `chmod()`; Linux does the same for directories.
pub(super) fn settable(mode: u32, inode: &Inode, who: &User) -> u32 {
    if who.is_root || who.gids.contains(&inode.group) { mode } else { mode & !SET_GROUP }
}

fn denied(inode: &Inode, who: &User, what: &str, path: &str, fix: &str) -> Error {
    let path = if path.is_empty() { "the pool's root" } else { path };
    Error::new(
        ErrorKind::Denied,
        format!(
            "need the right to {what} {path:?}, have mode {:04o} of user {} and group {}, and are user {} of groups \
             {:?}; {fix}",
            inode.mode, inode.owner, inode.group, who.uid, who.gids
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::Handle;

    fn inode(owner: u32, group: u32, mode: u32) -> Inode {
        let durable = outcore_core::Durable::default();
        Inode {
            handle: Handle(1),
            layout: None,
            owner,
            group,
            mode,
            modified_ns: 0,
            changed_ns: 0,
            durable,
            target: None,
        }
    }

    fn user(uid: u32, gids: &[u32]) -> User {
        User { uid, gids: gids.to_vec(), is_root: false }
    }

    /// Each bit of a mode, for each class of user, as POSIX specifies.
    #[test]
    fn bits_are_for_the_classes_of_the_standard() {
        let (owner, member, other) = (user(1, &[9]), user(2, &[8, 5]), user(3, &[9]));
        let table = [
            (0o400, [READ, 0, 0]),
            (0o200, [WRITE, 0, 0]),
            (0o100, [SEARCH, 0, 0]),
            (0o040, [0, READ, 0]),
            (0o020, [0, WRITE, 0]),
            (0o010, [0, SEARCH, 0]),
            (0o004, [0, 0, READ]),
            (0o002, [0, 0, WRITE]),
            (0o001, [0, 0, SEARCH]),
            (0o754, [7, 5, 4]),
            (0o1777, [7, 7, 7]),
            // For the owner only the owner's class counts, whatever rights the others have.
            (0o077, [0, 7, 7]),
            (0o707, [7, 0, 7]),
        ];
        for (mode, rights) in table {
            let inode = inode(1, 5, mode);
            for (who, right) in [&owner, &member, &other].into_iter().zip(rights) {
                for wanted in 1..8 {
                    assert_eq!(
                        allows(&inode, who, wanted),
                        wanted & right == wanted,
                        "{mode:o} {who:?} {wanted}"
                    );
                }
            }
        }
    }

    #[test]
    fn an_owner_who_is_a_member_too_has_the_owners_bits() {
        assert!(!allows(&inode(1, 5, 0o070), &user(1, &[5]), READ));
    }

    #[test]
    fn root_passes() {
        let root = User { uid: 0, gids: vec![], is_root: true };
        assert!(allows(&inode(1, 5, 0), &root, 7));
        assert!(!allows(&inode(1, 5, 0), &user(0, &[0]), READ), "the number alone is not root");
        require_owner(&inode(1, 5, 0), &root, "do it", "x").unwrap();
        require_unstuck(&inode(1, 5, 0o1777), &inode(2, 5, 0), &root, "x").unwrap();
    }

    #[test]
    fn sticky_directories_keep_names_from_strangers() {
        let entry = inode(2, 5, 0o777);
        for (uid, may) in [(1, true), (2, true), (3, false)] {
            let who = user(uid, &[5]);
            assert_eq!(require_unstuck(&inode(1, 5, 0o1777), &entry, &who, "x").is_ok(), may, "{uid}");
            require_unstuck(&inode(1, 5, 0o777), &entry, &who, "x").unwrap();
        }
    }

    #[test]
    fn refusals_say_what_is_needed() {
        let error = require(&inode(1, 5, 0o400), &user(3, &[9]), READ | WRITE, "a/b").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied);
        assert_eq!(
            error.message,
            "need the right to read and write \"a/b\", have mode 0400 of user 1 and group 5, and are user 3 of groups \
             [9]; ask its owner for that"
        );
        for (mode, is_directory) in [(0o4755, false), (0o2755, false), (0o4755, true)] {
            assert_eq!(check_mode(mode, is_directory).unwrap_err().kind, ErrorKind::Invalid);
        }
        check_mode(0o3777, true).unwrap();
    }
}
