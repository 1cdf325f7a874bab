//! A disk that keeps what it promised and nothing else: at a crash, what was written since the last sync is there,
//! or not, sector by sector.

use std::collections::BTreeMap;

use outcore_core::{Buffer, Error, ErrorKind, FileId, Operation, Request, Result};
use outcore_server::io_server::{NameAnswer, NameOperation};

use crate::buffer::SimBuffer;
use crate::random::Random;

/// What a disk writes as a whole, or not at all.
const SECTOR_BYTES: usize = 512;

/// Bytes that were written and not made safe.
#[derive(Clone, Debug)]
struct Unsafe {
    offset: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct File {
    /// What a read sees.
    now: Vec<u8>,
    /// What is there after a crash, at least.
    safe: Vec<u8>,
    written: Vec<Unsafe>,
}

impl File {
    /// Puts bytes into a content.
    fn put(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
        if content.len() < offset + bytes.len() {
            content.resize(offset + bytes.len(), 0);
        }
        content[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    /// Puts some sectors of a write into a content.
    fn tear(content: &mut Vec<u8>, written: &Unsafe, random: &mut Random) {
        let mut at = 0;
        while at < written.bytes.len() {
            let sector_end = (written.offset + at) / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES;
            let end = (sector_end - written.offset).min(written.bytes.len());
            if random.once_in(2) {
                Self::put(content, written.offset + at, &written.bytes[at..end]);
            }
            at = end;
        }
    }
}

/// One disk, with its files.
#[derive(Debug, Default)]
pub struct SimDisk {
    files: BTreeMap<String, File>,
    open: BTreeMap<FileId, String>,
    next: u64,
    /// Whether it forgets to make things safe: a planted bug.
    pub skips_sync: bool,
}

impl SimDisk {
    /// Does a request, all of it, now.
    pub fn transfer(&mut self, request: &mut Request<SimBuffer>) -> Result<usize> {
        let closed = || Error::new(ErrorKind::Closed, "the file is closed");
        let name = self.open.get(&request.file).ok_or_else(closed)?;
        let file = self.files.get_mut(name).ok_or_else(closed)?;
        let (offset, length) = (request.offset as usize, request.buffer.len());
        match request.operation {
            Operation::Read => {
                let end = file.now.len().min(offset + length);
                let bytes = file.now.get(offset..end).unwrap_or_default();
                request.buffer.copy_in(0, bytes);
                Ok(bytes.len())
            }
            Operation::Write => {
                let bytes = request.buffer.bytes();
                File::put(&mut file.now, offset, &bytes);
                file.written.push(Unsafe { offset, bytes });
                Ok(length)
            }
            Operation::Sync => {
                if !self.skips_sync {
                    file.safe.clone_from(&file.now);
                    file.written.clear();
                }
                Ok(0)
            }
        }
    }

    /// Does an operation on names. They are safe at once.
    pub fn name(&mut self, operation: NameOperation) -> Result<NameAnswer> {
        let missing = |path: &str| Error::new(ErrorKind::NotFound, format!("there is no file {path}"));
        match operation {
            NameOperation::Open { path } => {
                if !self.files.contains_key(&path) {
                    return Err(missing(&path));
                }
                Ok(self.opened(path))
            }
            NameOperation::Make { path } => {
                if self.files.contains_key(&path) {
                    return Err(Error::new(ErrorKind::Exists, format!("{path} exists")));
                }
                self.files.insert(path.clone(), File::default());
                Ok(self.opened(path))
            }
            NameOperation::Resize { path, length, .. } => {
                let file = self.files.get_mut(&path).ok_or_else(|| missing(&path))?;
                file.now.resize(length as usize, 0);
                file.safe.resize(length as usize, 0);
                for written in &mut file.written {
                    written.bytes.truncate((length as usize).saturating_sub(written.offset));
                }
                Ok(NameAnswer::Done)
            }
            NameOperation::Remove { path } => {
                self.files.remove(&path).map(|_| NameAnswer::Done).ok_or_else(|| missing(&path))
            }
            NameOperation::Close { file } => {
                self.open.remove(&file);
                Ok(NameAnswer::Done)
            }
            NameOperation::Length { file } => {
                let name = self.open.get(&file).ok_or_else(|| missing("?"))?;
                let found = self.files.get(name).ok_or_else(|| missing(name))?;
                Ok(NameAnswer::Bytes(found.now.len() as u64))
            }
            NameOperation::Free => Ok(NameAnswer::Bytes(1 << 40)),
        }
    }

    fn opened(&mut self, path: String) -> NameAnswer {
        let length = self.files.get(&path).map_or(0, |file| file.now.len() as u64);
        self.next += 1;
        let file = FileId(self.next);
        self.open.insert(file, path);
        NameAnswer::Opened { file, length }
    }

    /// The power fails, while `under_way` was being written.
    pub fn crash(&mut self, under_way: &[Request<SimBuffer>], random: &mut Random) {
        for request in under_way.iter().filter(|request| request.operation == Operation::Write) {
            if let Some(file) = self.open.get(&request.file).and_then(|name| self.files.get_mut(name)) {
                let (offset, bytes) = (request.offset as usize, request.buffer.bytes());
                file.written.push(Unsafe { offset, bytes });
            }
        }
        self.open.clear();
        for file in self.files.values_mut() {
            let length = file.now.len().max(file.safe.len());
            for written in std::mem::take(&mut file.written) {
                File::tear(&mut file.safe, &written, random);
            }
            file.safe.truncate(length.max(file.safe.len()));
            file.now.clone_from(&file.safe);
        }
    }

    /// Changes a bit of what is on the disk; tells where, if there is anything.
    pub fn flip(&mut self, random: &mut Random) -> Option<(String, usize)> {
        let names: Vec<String> = self
            .files
            .iter()
            .filter(|(name, file)| name.starts_with("data/") && !file.now.is_empty())
            .map(|(name, _)| name.clone())
            .collect();
        if names.is_empty() {
            return None;
        }
        let name = random.pick(&names).clone();
        let file = self.files.get_mut(&name)?;
        let at = random.below(file.now.len() as u64) as usize;
        let bit = 1 << random.below(8);
        file.now[at] ^= bit;
        if let Some(byte) = file.safe.get_mut(at) {
            *byte ^= bit;
        }
        Some((name, at))
    }
}
