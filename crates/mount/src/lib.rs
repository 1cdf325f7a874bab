//! A directory of a pool as a file system of the operating system, through FUSE.
//!
//! [`Mount`] runs it until it is unmounted. A request of the kernel (`filesystem`) becomes a call on names (`tree`)
//! or bytes (`open_files`), which the client of the pool sends to the manager or the I/O servers. Writes wait here
//! for a second at most (`behind`), as do attributes of new files (`new_files`), and bytes that are read ahead (`ahead`).
//! The kernel caches names and attributes for a second, unless the mount has a lease for locks (`shown`).

mod ahead;
mod attributes;
mod behind;
mod buffers;
mod entries;
mod errors;
mod extended;
mod filesystem;
mod gathered;
mod links;
mod listings;
mod lock_calls;
mod lock_errors;
mod lock_waits;
mod locks;
mod new_files;
mod nodes;
mod open_files;
mod opening;
mod place;
mod removal;
mod replies;
mod shown;
mod space;
mod storage;
mod term;
mod tree;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use fuser::{Config, MountOption, Notifier, Session, SessionACL, SessionUnmounter};
use outcore_client::PoolVolume;
use outcore_core::{Error, ErrorKind, Link, Result};
use outcore_memory::Region;

use crate::filesystem::PoolFilesystem;
use crate::locks::Locks;
use crate::tree::Tree;

pub use crate::place::{address_at, check_outside_mounts, check_place, unmount_at};
pub use crate::storage::{manager_in, pool_directory_of};

/// A client of a pool, over any link.
pub type Client = PoolVolume<dyn Link<Buffer = Region>>;

/// Requests that the mount answers at the same time.
const THREADS: usize = 16;
/// How long a mount that ends waits for programs that have files open.
const OPEN_FILES: Duration = Duration::from_secs(10);
/// How long the kernel caches names and attributes.
const FRESH: Duration = Duration::from_secs(1);

/// How to mount.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Path of the directory in the pool; empty for all of the pool.
    pub root: String,
    /// Prefix of the address of each path, as in `outcore://node1:7171/`.
    pub address: String,
    /// Whether other users of this machine may use the mount.
    pub allow_other: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether each call asks the pool. Otherwise the kernel keeps attributes for a second, and the mount gathers
    /// writes and reads ahead.
    pub strict: bool,
    /// Whether programs may lock files. Otherwise locks fail with `ENOLCK`.
    pub locks: bool,
}

/// A mounted directory. Dropping it unmounts.
pub struct Mount {
    place: PathBuf,
    unmounter: SessionUnmounter,
    ended: Receiver<io::Result<()>>,
}

impl Mount {
    /// Mounts a directory of a pool at `place`, an empty directory. The client leaves symbolic links and the umask
    /// to the kernel from then on.
    ///
    /// # Errors
    ///
    /// Those of [`check_place`], and if the pool has no such directory, or the system refuses the mount.
    pub fn new(client: Arc<Client>, place: &Path, options: &Options) -> Result<Self> {
        check_place(place)?;
        let tree = Tree::new(client, &options.root, options.allow_other, !options.strict)?;
        let fresh = if options.strict { Duration::ZERO } else { FRESH };
        let locks = options.locks.then(|| Arc::new(Locks::new(tree.client.clone())));
        let notifier = Arc::<OnceLock<Notifier>>::default();
        let filesystem = PoolFilesystem::new(tree, options.address.clone(), fresh, locks, notifier.clone());
        let refused = |error: io::Error| refused(place, &error);
        let mut session = Session::new(filesystem, place, &config(options)).map_err(refused)?;
        // Nobody else sets it.
        let _ = notifier.set(session.notifier());
        let unmounter = session.unmount_callable();
        let (send, ended) = channel();
        let run = move || {
            // The receiver may be gone.
            let _ = send.send(session.run());
        };
        thread::Builder::new().name("mount".into()).spawn(run).map_err(refused)?;
        Ok(Self { place: place.into(), unmounter, ended })
    }

    /// Waits for the end of the mount. Returns whether it has ended within `at_most`.
    ///
    /// # Errors
    ///
    /// If the mount failed.
    pub fn wait(&self, at_most: Duration) -> Result<bool> {
        match self.ended.recv_timeout(at_most) {
            Err(RecvTimeoutError::Timeout) => Ok(false),
            Ok(Ok(())) | Err(RecvTimeoutError::Disconnected) => Ok(true),
            Ok(Err(error)) => Err(refused(&self.place, &error)),
        }
    }

    /// Unmounts. Programs that have files open there can use them for another 10 s, and then get errors.
    ///
    /// # Errors
    ///
    /// If the system refuses, or the mount failed.
    pub fn stop(&self) -> Result<()> {
        if self.wait(Duration::ZERO)? {
            // Another mount may be at this directory now.
            return Ok(());
        }
        if address_at(&self.place)?.is_some() {
            unmount_at(&self.place, true)?;
        }
        self.wait(OPEN_FILES).map(drop)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nobody can get the error.
        let _ = self.unmounter.unmount();
    }
}

fn config(options: &Options) -> Config {
    let mut config = Config::default();
    let access = if options.read_only { MountOption::RO } else { MountOption::RW };
    let name = format!("{}{}", options.address, options.root);
    config.mount_options = vec![
        MountOption::FSName(name.replace(',', "\\,")),
        MountOption::Subtype("outcore".into()),
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoAtime,
        access,
    ];
    if options.allow_other {
        // The pool checks the rights of the mount's user only.
        config.mount_options.push(MountOption::DefaultPermissions);
    }
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    config
}

fn refused(place: &Path, error: &io::Error) -> Error {
    let (place, why) = (place.display(), error.to_string());
    let fix = match error.raw_os_error() {
        Some(libc::ENOENT) => "make the directory first, and check that /dev/fuse exists",
        Some(libc::EPERM | libc::EACCES) => "mount as root, or install fusermount3 and allow /dev/fuse",
        // fusermount3 says so to users who are not root.
        _ if why.contains("user_allow_other") => "have root set it, or leave out allow-other",
        _ => "check the mount point",
    };
    Error::new(ErrorKind::Io, format!("cannot mount at {place}: {}; {fix}", why.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_ends_with_the_fix() {
        let of_helper =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n";
        for (error, ending) in [
            (io::Error::from_raw_os_error(libc::EACCES), "or install fusermount3 and allow /dev/fuse"),
            (
                io::Error::other(of_helper),
                "is set in /etc/fuse.conf; have root set it, or leave out allow-other",
            ),
        ] {
            let found = refused(Path::new("/mnt/pool"), &error);
            assert!(found.message.starts_with("cannot mount at /mnt/pool: "), "{found}");
            assert!(found.message.ends_with(ending), "{found}");
        }
    }
}
