//! A directory tree as a namespace: it checks names, and reads, replaces and appends small files durably.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use outcore_core::{DiskSize, Entry, Error, Result};

use crate::freeing::{Freeing, LEAST_BYTES, Then};
use crate::system::{check_kind, describe, free_bytes, size, total_bytes};

/// Large files of one removal whose space is freed in the background, at most.
const MOST_LARGE: usize = 16;

/// Permission bits of other users.
const OTHERS: u32 = 0o077;
/// Permission bits of files and directories that only their owner may use.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIRECTORY: u32 = 0o700;

/// A directory tree. Paths are relative to its root; they cannot leave it.
#[derive(Clone)]
pub struct Directory {
    root: PathBuf,
    /// Whether new files and directories are closed to other users.
    is_private: bool,
    freeing: Arc<Freeing>,
}

impl std::fmt::Debug for Directory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Directory").field("root", &self.root).finish_non_exhaustive()
    }
}

impl Directory {
    /// The tree below `root`, which must be a directory.
    pub fn new(root: impl Into<PathBuf>) -> Result<Self> {
        let root = root.into();
        let status = fs::metadata(&root).map_err(|e| describe("open the directory", &root, &e))?;
        if !status.is_dir() {
            return Err(Error::invalid(format!("{} is not a directory; give a directory", root.display())));
        }
        Ok(Self { root, is_private: false, freeing: Freeing::shared(status.dev()) })
    }

    /// The tree below `root`, which only its owner may use: files get mode 0600 and directories 0700, independent
    /// of the process's umask. Existing files and directories with one of `names`, and everything below them, get
    /// these modes now. If the disk refuses to change a mode, it stays as it is.
    pub fn private(root: impl Into<PathBuf>, names: &[&str]) -> Result<Self> {
        let directory = Self::new(root)?;
        for name in names {
            keep_others_out(&directory.resolve(name)?);
        }
        Ok(Self { is_private: true, ..directory })
    }

    /// The options to create a file here.
    pub(crate) fn making(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        if self.is_private {
            options.mode(PRIVATE_FILE);
        }
        options
    }

    /// The root.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The full path of a name below the root.
    pub fn resolve(&self, path: &str) -> Result<PathBuf> {
        let inside =
            Path::new(path).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !inside || path.contains('\0') {
            return Err(Error::invalid(format!(
                "the path {path:?} leaves its volume; use a relative path without '..'"
            )));
        }
        Ok(self.root.join(path))
    }

    /// The full path of a file to create. Creates missing directories above it.
    pub(crate) fn resolve_new(&self, path: &str) -> Result<PathBuf> {
        let full = self.resolve(path)?;
        if let Some(above) = full.parent() {
            let fresh: Vec<&Path> = above.ancestors().take_while(|a| !a.exists()).collect();
            let mut builder = DirBuilder::new();
            if self.is_private {
                builder.mode(PRIVATE_DIRECTORY);
            }
            builder.recursive(true).create(above).map_err(|e| describe("make the directory", above, &e))?;
            // A file is only as durable as every directory entry on its path.
            for directory in fresh {
                self.sync_above(directory)?;
            }
        }
        Ok(full)
    }

    /// The whole content of a small file.
    pub fn read_small(&self, path: &str) -> Result<Vec<u8>> {
        let full = self.resolve(path)?;
        check_kind(&full).and_then(|()| fs::read(&full)).map_err(|e| describe("read", &full, &e))
    }

    /// Replaces a small file: writes a new one, syncs it, and renames it.
    pub fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.freeing.with_room(|| self.replace_once(path, bytes))
    }

    fn replace_once(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let full = self.resolve_new(path)?;
        let mut name = full.file_name().unwrap_or_default().to_os_string();
        name.push(format!(".{}.new", std::process::id()));
        let fresh = full.with_file_name(name);
        let written = (|| {
            let mut file = self.making().write(true).create(true).truncate(true).open(&fresh)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&fresh, &full)
        })();
        if let Err(error) = written {
            let _ = fs::remove_file(&fresh);
            return Err(describe("write", &full, &error));
        }
        self.sync_above(&full)
    }

    /// Appends to a small file, creating it if necessary, and syncs it.
    pub fn append_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let full = self.resolve_new(path)?;
        let is_new = !full.exists();
        let appended = (|| {
            let mut file = self.making().append(true).create(true).open(&full)?;
            file.write_all(bytes)?;
            file.sync_data()
        })();
        appended.map_err(|e| describe("append to", &full, &e))?;
        if is_new { self.sync_above(&full) } else { Ok(()) }
    }

    /// The names in a directory, sorted.
    pub fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let full = self.resolve(path)?;
        let listed = (|| {
            let mut entries = Vec::new();
            for item in fs::read_dir(&full)? {
                let item = item?;
                let status = match item.metadata() {
                    Ok(status) => status,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue, // removed meanwhile
                    Err(error) => return Err(error),
                };
                entries.push(Entry {
                    name: item.file_name().to_string_lossy().into_owned(),
                    is_directory: status.is_dir(),
                    length: if status.is_dir() { 0 } else { status.len() },
                });
            }
            Ok(entries)
        })();
        let mut entries = listed.map_err(|e| describe("list", &full, &e))?;
        entries.sort();
        Ok(entries)
    }

    /// The names in a directory, in any order.
    pub fn list_names(&self, path: &str) -> Result<Vec<String>> {
        let full = self.resolve(path)?;
        let listed = fs::read_dir(&full).and_then(|items| {
            items.map(|item| Ok(item?.file_name().to_string_lossy().into_owned())).collect()
        });
        listed.map_err(|e| describe("list", &full, &e))
    }

    /// Whether the name exists.
    pub fn exists(&self, path: &str) -> Result<bool> {
        let full = self.resolve(path)?;
        match full.try_exists() {
            Err(error) if error.raw_os_error() == Some(libc::ENOTDIR) => Ok(false),
            found => found.map_err(|e| describe("look at", &full, &e)),
        }
    }

    /// Removes a file, or a directory with everything below it.
    pub fn remove(&self, path: &str) -> Result<()> {
        self.remove_all(path, |_, _| {})
    }

    /// Removes a file, or a directory with everything below it. The space of large files is freed in the
    /// background, once nobody has them open.
    pub fn remove_soon(&self, path: &str) -> Result<()> {
        self.remove_and(path, Then::Close)
    }

    /// Removes a file that nobody uses, or a directory with everything below it. The space of large files is freed
    /// in the background, in steps.
    pub(crate) fn remove_unused(&self, path: &str) -> Result<()> {
        self.remove_and(path, Then::Shorten)
    }

    fn remove_and(&self, path: &str, then: Then) -> Result<()> {
        let mut large = Vec::new();
        self.remove_all(path, |full, status| find_large(full, status, &mut large))?;
        // Freeing starts only after the removal is durable, so that after a crash a file is complete or gone.
        large.into_iter().for_each(|file| self.freeing.give_back(file, then));
        Ok(())
    }

    fn remove_all(&self, path: &str, look: impl FnOnce(&Path, &Metadata)) -> Result<()> {
        let full = self.resolve(path)?;
        let removed = fs::symlink_metadata(&full).and_then(|status| {
            look(&full, &status);
            if status.is_dir() { fs::remove_dir_all(&full) } else { fs::remove_file(&full) }
        });
        removed.map_err(|e| describe("remove", &full, &e))?;
        self.sync_above(&full)
    }

    /// The files of this disk whose space is being freed.
    pub(crate) fn freeing(&self) -> &Arc<Freeing> {
        &self.freeing
    }

    /// Renames a file or directory.
    pub fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (old, new) = (self.resolve(from)?, self.resolve_new(to)?);
        fs::rename(&old, &new).map_err(|e| describe("rename", &old, &e))?;
        self.sync_above(&old)?;
        self.sync_above(&new)
    }

    /// Time of a file's last write, in nanoseconds since 1970. Times outside the range wrap modulo 2^64.
    pub fn modified_ns(&self, path: &str) -> Result<u64> {
        let full = self.resolve(path)?;
        let status = fs::metadata(&full).map_err(|e| describe("look at", &full, &e))?;
        Ok((status.mtime() as u64).wrapping_mul(1_000_000_000).wrapping_add(status.mtime_nsec() as u64))
    }

    /// Makes the content and the times of a file durable.
    pub fn settle(&self, path: &str) -> Result<()> {
        let full = self.resolve(path)?;
        File::open(&full).and_then(|file| file.sync_all()).map_err(|e| describe("sync", &full, &e))
    }

    /// Bytes that can still be written. They include the space being freed in the background: a write that finds
    /// the disk full waits for that.
    pub fn free_bytes(&self) -> Result<u64> {
        // Read first, so that bytes freed in between are not missed.
        let soon = self.freeing.bytes();
        free_bytes(&self.root).map(|now| now.saturating_add(soon))
    }

    /// Size of the file system.
    pub fn size(&self) -> Result<DiskSize> {
        size(&self.root)
    }

    /// Bytes of the whole file system.
    pub fn total_bytes(&self) -> Result<u64> {
        total_bytes(&self.root)
    }

    /// Makes the entry of `full` in its directory durable.
    pub(crate) fn sync_above(&self, full: &Path) -> Result<()> {
        let above = full.parent().unwrap_or(&self.root);
        let synced = File::open(above).and_then(|directory| directory.sync_all());
        synced.map_err(|e| describe("sync the directory", above, &e))
    }
}

/// Removes the rights of other users to a file, or to a directory and everything below it. The directory comes
/// after its entries, so an interrupted call leaves it open and the next call repeats the work. Links are left
/// unchanged, except for `path` itself.
fn keep_others_out(path: &Path) {
    let Ok(status) = fs::metadata(path) else { return };
    if status.mode() & OTHERS == 0 {
        return;
    }
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir() || kind.is_file()) {
            keep_others_out(&entry.path());
        }
    }
    let mode = if status.is_dir() { PRIVATE_DIRECTORY } else { PRIVATE_FILE };
    let _ = fs::set_permissions(path, Permissions::from_mode(mode));
}

/// Opens large files for freeing: this one, or those below this directory. A file that cannot be opened, or
/// exceeds the limit, is freed by its removal.
fn find_large(path: &Path, status: &Metadata, found: &mut Vec<File>) {
    if status.is_dir() {
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            if let Ok(status) = entry.metadata() {
                find_large(&entry.path(), &status, found);
            }
        }
    } else if status.is_file() && status.blocks() * 512 >= LEAST_BYTES && found.len() < MOST_LARGE {
        found.extend(OpenOptions::new().write(true).open(path));
    }
}
