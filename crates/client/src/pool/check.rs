//! Checks of a pool: reports of its servers and its manager on their data, and the removal of data without an
//! owner. Allowed for holders of the pool's key and for the user who runs the pool.

use outcore_core::{
    DataFile, ErrorKind, Gather, Handle, Inspection, IoReply, IoRequest, Known, Link, ManagerReply,
    ManagerRequest, OddRecord, Result, ScrubPlace, Scrubbed, ServerId, Stripes, Target,
};

use crate::pool::call::{Call, unexpected};
use crate::pool::shared::{TRIES, is_done};
use crate::pool::volume::PoolVolume;

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    fn ask_one(&self, server: ServerId, request: IoRequest) -> Result<IoReply> {
        let buffer = self.0.none.clone();
        let mut replies = self.0.servers.wait_all(vec![Call::new(server, request, buffer)])?;
        Ok(replies.remove(0))
    }

    /// Compares blocks of a server with their checksums, starting at `from`; initially handle 0, byte 0.
    pub fn scrub(&self, server: ServerId, from: ScrubPlace, most_bytes: u64) -> Result<Scrubbed> {
        match self.ask_one(server, IoRequest::Scrub { from, most_bytes })? {
            IoReply::Scrubbed(scrubbed) => Ok(*scrubbed),
            reply => Err(unexpected(&reply)),
        }
    }

    /// A page of the data files of a server, and whether more follow. The first page comes after handle 0.
    pub fn data_files(&self, server: ServerId, after: Handle, most: u64) -> Result<(Vec<DataFile>, bool)> {
        match self.ask_one(server, IoRequest::DataFiles { after, most })? {
            IoReply::DataFiles { files, more } => Ok((files, more)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// A server's report on some data files, at most 1000.
    pub fn inspect(&self, server: ServerId, handles: Vec<Handle>) -> Result<Vec<Inspection>> {
        let count = handles.len();
        match self.ask_one(server, IoRequest::Inspect { handles })? {
            IoReply::Inspected(found) if found.len() == count => Ok(found),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Cuts the bytes of data files of a server that no write explains; at most 1000 files.
    pub fn cut(&self, server: ServerId, handles: Vec<Handle>) -> Result<()> {
        self.ask_one(server, IoRequest::Cut { handles }).and_then(|reply| is_done(&reply))
    }

    /// A page of the manager's files, with or without a name, and whether more follow.
    pub fn files(&self, after: Handle, most: u64) -> Result<(Vec<Known>, bool)> {
        match self.0.manager(ManagerRequest::Files { after, most })? {
            ManagerReply::Known { known, more } => Ok((known, more)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// The manager's knowledge of some handles, at most 1000.
    pub fn know(&self, handles: Vec<Handle>) -> Result<Vec<Known>> {
        let count = handles.len();
        match self.0.manager(ManagerRequest::Know { handles })? {
            ManagerReply::Known { known, .. } if known.len() == count => Ok(known),
            reply => Err(unexpected(&reply)),
        }
    }

    /// A page of the manager's records that contradict others, and the key after which to continue. The first
    /// page comes after the empty key.
    pub fn odd_records(&self, after: Vec<u8>, most: u64) -> Result<(Vec<OddRecord>, Option<Vec<u8>>)> {
        match self.0.manager(ManagerRequest::Check { after, most })? {
            ManagerReply::Checked { odd, next } => Ok((odd, next)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Repairs the index of attributes for a page of records. Returns the repaired ones, and the key after which to
    /// continue. The first page comes after the empty key.
    pub fn mend(&self, after: Vec<u8>, most: u64) -> Result<(Vec<OddRecord>, Option<Vec<u8>>)> {
        match self.0.manager(ManagerRequest::Mend { after, most })? {
            ManagerReply::Checked { odd, next } => Ok((odd, next)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// The paths of some files, at most 100.
    pub fn paths(&self, handles: Vec<Handle>) -> Result<Vec<Option<String>>> {
        let count = handles.len();
        match self.0.manager(ManagerRequest::Paths { handles })? {
            ManagerReply::Paths(paths) if paths.len() == count => Ok(paths),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Removes data files of a server that no file owns, if the manager still confirms that. Returns the
    /// removed ones.
    pub fn remove_strays(&self, server: ServerId, handles: Vec<Handle>) -> Result<Vec<Handle>> {
        let (mut removed, mut done, mut tries) = (Vec::new(), 0, 1);
        'anew: while done < handles.len() {
            for known in self.know(handles[done..].to_vec())? {
                if let Known::Gone(grant) = known {
                    let target = Target {
                        handle: handles[done],
                        stripes: Stripes::new(1, 1)?,
                        entry: 0,
                        generation: 0,
                    };
                    match self
                        .ask_one(server, IoRequest::Remove { target, grant })
                        .and_then(|reply| is_done(&reply))
                    {
                        // Continue here with new grants.
                        Err(error) if error.kind == ErrorKind::Denied && tries < TRIES => {
                            tries += 1;
                            continue 'anew;
                        }
                        removal => removal?,
                    }
                    removed.push(handles[done]);
                }
                (done, tries) = (done + 1, 1);
            }
        }
        Ok(removed)
    }

    /// Removes the data files of all files without a name, and the rest of removed directories.
    pub fn finish_removals(&self) -> Result<()> {
        self.0.finish_removals()
    }
}
