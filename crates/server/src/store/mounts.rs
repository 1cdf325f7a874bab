//! The file system that contains a file.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use outcore_core::{Error, Result};

/// File systems on which SQLite's write-ahead log is unsafe, because their locks are unreliable or machines cannot
/// share their memory maps.
/// See <https://sqlite.org/wal.html>, "All processes using a database must be on the same host computer".
const OF_NETWORKS: [&str; 20] = [
    "9p",
    "afs",
    "beegfs",
    "ceph",
    "cifs",
    "coda",
    "fuse.beegfs",
    "fuse.ceph",
    "fuse.glusterfs",
    "fuse.sshfs",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "panfs",
    "smb3",
    "smbfs",
];

/// Returns an error for a directory on a network file system. If the file system is unknown, the directory passes.
pub(super) fn check_is_local(directory: &Path) -> Result<()> {
    let (Ok(full), Ok(mounts)) = (directory.canonicalize(), fs::read_to_string("/proc/self/mountinfo"))
    else {
        return Ok(());
    };
    match file_system(&mounts, full.as_os_str().as_bytes()) {
        Some(kind) if OF_NETWORKS.contains(&kind) => Err(Error::invalid(format!(
            "need a local file system for the metadata store, have {kind} at {}; choose a directory on a local disk",
            full.display()
        ))),
        _ => Ok(()),
    }
}

/// The type of the file system that contains a path, from the text of `/proc/self/mountinfo`; see
/// `proc_pid_mountinfo(5)`.
fn file_system<'a>(mounts: &'a str, path: &[u8]) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (before.split(' ').nth(4), after.split(' ').next()) else { continue };
        let point = unescape(point);
        let is_above = point == b"/"
            || path.strip_prefix(point.as_slice()).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        // The last of several mounts on one point is visible.
        if is_above && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind)
}

/// Decodes spaces and similar characters, which are written as a backslash and three octal digits.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { &after[3..] } else { after };
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /home rw shared:1 - nfs4 server:/home rw
31 30 7:0 / /home/my\\040disk rw - xfs /dev/sdb1 rw
32 27 7:1 / /scratch rw - ext4 /dev/sdc1 rw
33 27 0:41 / /scratch rw - lustre x@tcp:/scratch rw
";

    #[test]
    fn the_mount_nearest_above_counts() {
        let kind = |path: &str| file_system(MOUNTS, path.as_bytes()).unwrap();
        assert_eq!(kind("/var/lib"), "ext4");
        assert_eq!(kind("/home"), "nfs4");
        assert_eq!(kind("/home/me/pool"), "nfs4");
        assert_eq!(kind("/homestead"), "ext4");
        assert_eq!(kind("/home/my disk/pool"), "xfs");
        assert_eq!(kind("/scratch/pool"), "lustre");
    }

    #[test]
    fn a_local_directory_is_taken() {
        check_is_local(Path::new("/proc")).unwrap();
    }
}
