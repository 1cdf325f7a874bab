//! Mount points: which pool is mounted at a directory, whether a pool can be mounted there, and unmounting.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use outcore_core::{Error, ErrorKind, Result};

use crate::storage::pool_directory_of;

/// Types of mounted pools in the kernel's list. The second one is that of mounts by fusermount3.
const TYPES: [&str; 2] = ["fuse", "fuse.outcore"];
const ADDRESSES: [&str; 2] = ["outcore:", "outcore+tls:"];

/// The programs that unmount for users without rights of the system.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Returns the address of the pool that is mounted at `place`. A mount whose process has ended counts too.
///
/// # Errors
///
/// If the kernel does not list the mounts.
pub fn address_at(place: &Path) -> Result<Option<String>> {
    let (text, place) = (list_of_mounts()?, absolute(place));
    // Later mounts hide earlier ones.
    let mut pools = text.rsplit(|byte| *byte == b'\n').filter_map(mounted_pool);
    Ok(pools.find(|(point, _)| *point == place).map(|(_, address)| address))
}

/// Refuses a directory in a mounted pool: a pool that stores its data in itself waits for itself. If the kernel does
/// not list the mounts, the directory passes.
///
/// # Errors
///
/// If the directory is in a mounted pool.
pub fn check_outside_mounts(directory: &Path) -> Result<()> {
    let Ok(text) = list_of_mounts() else { return Ok(()) };
    let full = fs::canonicalize(directory).unwrap_or_else(|_| absolute(directory));
    let Some((point, address)) = pool_around(&text, &full) else { return Ok(()) };
    Err(Error::invalid(format!(
        "need a directory outside of mounted pools for the data of a pool, have {} in {}, where {address} is mounted; choose \
         a directory on a disk",
        directory.display(),
        point.display()
    )))
}

fn list_of_mounts() -> Result<Vec<u8>> {
    let list = "/proc/self/mountinfo";
    fs::read(list)
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot read {list}: {error}; mount /proc")))
}

/// The mount point and the address of the pool that contains a path, in the kernel's list.
fn pool_around(list: &[u8], path: &Path) -> Option<(PathBuf, String)> {
    let around = list.split(|byte| *byte == b'\n').filter_map(|line| Some((line, mount_point(line)?)));
    // The nearest one counts. Among several mounts at one point, this is the last.
    let nearest = around.filter(|(_, point)| path.starts_with(point));
    nearest.max_by_key(|(_, point)| point.components().count()).and_then(|(line, _)| mounted_pool(line))
}

/// Refuses a directory that cannot be mounted on. Unmounts a dead mount there, which a killed process left.
///
/// # Errors
///
/// If it does not exist, is no directory, is not empty, is in a directory where a pool stores its data, or has a pool
/// mounted.
pub fn check_place(place: &Path) -> Result<()> {
    let shown = place.display();
    let count = |place| Ok(fs::read_dir(place)?.count());
    let counted = count(place).or_else(|error: std::io::Error| {
        if error.raw_os_error() == Some(libc::ENOTCONN) && unmount_at(place, true).is_ok() {
            count(place)
        } else {
            Err(error)
        }
    });
    let names = counted.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let text = format!("need a directory to mount at, have nothing at {shown}; create it first");
            Error::new(ErrorKind::NotFound, text)
        }
        std::io::ErrorKind::NotADirectory => {
            Error::invalid(format!("need a directory to mount at, have the file {shown}; create a directory"))
        }
        _ => Error::new(ErrorKind::Io, format!("cannot mount at {shown}: {error}")),
    })?;
    if let Some(address) = address_at(place)? {
        return Err(Error::new(
            ErrorKind::Exists,
            format!(
                "need a directory without a mount, have {shown}, where {address} is mounted; run: outcore umount {shown}"
            ),
        ));
    }
    if names > 0 {
        return Err(Error::invalid(format!(
            "need an empty directory to mount at, have names in {shown} ({names}), which the mount would hide; choose \
             another directory"
        )));
    }
    if let Some(inside) = pool_directory_of(&fs::canonicalize(place).unwrap_or_else(|_| place.into())) {
        return Err(Error::invalid(format!(
            "need a directory outside of those in which pools store their data, have {shown} in {}, where a pool does; \
             choose another directory",
            inside.display()
        )));
    }
    Ok(())
}

/// Unmounts the pool at `place`; with `lazy` the directory is detached now, although files are open there.
///
/// # Errors
///
/// If no pool is mounted there, or the system refuses, as it does while files are open there.
pub fn unmount_at(place: &Path, lazy: bool) -> Result<()> {
    let shown = place.display();
    if address_at(place)?.is_none() {
        return Err(Error::new(ErrorKind::NotFound, format!("no pool is mounted at {shown}; see: findmnt")));
    }
    let helper = HELPERS.into_iter().find(|name| is_installed(name)).filter(|_| !is_root());
    let mut command = Command::new(helper.unwrap_or("umount"));
    match helper {
        Some(_) => command.arg("-u").args(lazy.then_some("-z")),
        None => command.args(lazy.then_some("--lazy")),
    };
    let refused = |why: &str| {
        let fix = "close the files that are open there, or give --lazy";
        Error::new(ErrorKind::Io, format!("cannot unmount {shown}: {why}; {fix}"))
    };
    let done =
        command.arg("--").arg(absolute(place)).output().map_err(|error| refused(&error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    let said = if done.stderr.is_empty() { done.stdout } else { done.stderr };
    Err(refused(String::from_utf8_lossy(&said).trim()))
}

/// The path without links in its parent. The directory itself cannot be looked at if its mount is dead.
fn absolute(place: &Path) -> PathBuf {
    let place = std::path::absolute(place).unwrap_or_else(|_| place.into());
    match (place.parent(), place.file_name()) {
        (Some(parent), Some(name)) => fs::canonicalize(parent).unwrap_or_else(|_| parent.into()).join(name),
        _ => place,
    }
}

/// The mount point in a line of the kernel's list, whose format is in proc_pid_mountinfo(5).
fn mount_point(line: &[u8]) -> Option<PathBuf> {
    line.split(|byte| *byte == b' ').nth(4).map(|word| unescaped(word).into())
}

/// The mount point and the address of a pool in a line of the kernel's list.
fn mounted_pool(line: &[u8]) -> Option<(PathBuf, String)> {
    let point = mount_point(line)?;
    let words = line.split(|byte| *byte == b' ').skip(5);
    let mut rest = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source) = (rest.next()?, unescaped(rest.next()?));
    let address = source.into_string().ok()?;
    let is_pool = TYPES.iter().any(|name| name.as_bytes() == kind)
        && ADDRESSES.iter().any(|prefix| address.starts_with(prefix));
    is_pool.then_some((point, address))
}

/// The text of a word in the kernel's list, which has spaces and a few other characters in octal.
fn unescaped(word: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let code = rest.get(1..4).filter(|_| first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &rest[4..] } else { after };
    }
    OsString::from_vec(bytes)
}

/// Whether this process runs as root: the kernel gives its directory to its user.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|found| found.uid() == 0)
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel() {
        let line = "36 35 98:0 / /mnt/a\\040b rw,noatime shared:1 - fuse outcore://node1:7171/x\\134y rw";
        let (point, address) = mounted_pool(line.as_bytes()).unwrap();
        assert_eq!((point.to_str(), address.as_str()), (Some("/mnt/a b"), "outcore://node1:7171/x\\y"));
        let tls = "36 35 98:0 / /mnt rw - fuse.outcore outcore+tls://node1:7171/ rw";
        assert_eq!(mounted_pool(tls.as_bytes()).unwrap().1, "outcore+tls://node1:7171/");
        for other in [
            "",
            "36 35 98:0 / /mnt rw",
            "36 35 98:0 / /mnt rw shared:1 - ext4 /dev/vda rw",
            "36 35 98:0 / /mnt rw - fuse sshfs:/x rw",
            "36 35 98:0 / /mnt rw - ext4 outcore:/x rw",
        ] {
            assert_eq!(mounted_pool(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn the_nearest_mount_around_a_path_counts() {
        let list = "36 35 98:0 / / rw - ext4 /dev/vda rw\n\
                    37 36 98:0 / /mnt/pool rw - fuse outcore:/a::x rw\n\
                    38 37 98:0 / /mnt/pool/disk rw - ext4 /dev/vdb rw\n\
                    39 36 98:0 / /twice rw - ext4 /dev/vdc rw\n\
                    40 39 98:0 / /twice rw - fuse.outcore outcore://node1:7171/ rw\n";
        for (path, address) in [
            ("/home", None),
            ("/mnt/pool", Some("outcore:/a::x")),
            ("/mnt/pool/a/b", Some("outcore:/a::x")),
            ("/mnt/pools", None),
            ("/mnt/pool/disk/a", None),
            ("/twice/a", Some("outcore://node1:7171/")),
        ] {
            let found = pool_around(list.as_bytes(), Path::new(path)).map(|(_, address)| address);
            assert_eq!(found.as_deref(), address, "{path}");
        }
    }

    #[test]
    fn places_that_cannot_be_mounted_on() {
        let root = tempfile::tempdir().unwrap();
        let refused = |place: &Path| check_place(place).unwrap_err();
        assert_eq!(refused(&root.path().join("none")).kind, ErrorKind::NotFound);
        assert_eq!(check_place(root.path()), Ok(()));
        fs::write(root.path().join("file"), "").unwrap();
        let inside = root.path().join("a/b");
        fs::create_dir_all(&inside).unwrap();
        fs::write(root.path().join("metadata.sqlite"), "").unwrap();
        assert_eq!(check_place(&inside), Ok(()), "it may be of another program");
        fs::write(root.path().join("lock"), "").unwrap();
        assert!(refused(&inside).message.contains("choose another directory"));
        assert!(refused(&root.path().join("file")).message.contains("have the file"));
        assert!(refused(root.path()).message.contains("(4), which the mount would hide"));
        assert_eq!(address_at(root.path()), Ok(None));
        assert_eq!(unmount_at(root.path(), true).unwrap_err().kind, ErrorKind::NotFound);
    }
}
