//! Rights, times and extended attributes of names in a pool.

use outcore_core::{Error, ErrorKind, Gather, Link, ManagerReply, ManagerRequest, Result, handle_in};

use crate::PoolVolume;
use crate::pool::call::unexpected;
use crate::pool::shared::{MOST_NS, checked};

/// Changes to a file or directory. `None` keeps an attribute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// User id.
    pub owner: Option<u32>,
    /// Group id.
    pub group: Option<u32>,
    /// Time of the last write, in nanoseconds since 1970.
    pub modified_ns: Option<u64>,
}

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    /// Changes attributes of a file or directory.
    pub fn set_attributes(&self, path: &str, wanted: Attributes) -> Result<()> {
        let path = checked(path)?;
        let Attributes { mode, owner, group, modified_ns } = wanted;
        let request = ManagerRequest::SetAttributes { path: path.clone(), mode, owner, group, modified_ns };
        if let Some(modified_ns) = modified_ns {
            if modified_ns > MOST_NS {
                return Err(Error::invalid(format!(
                    "need a time before the year 2262, at most {MOST_NS} ns since 1970, have {modified_ns}; give an earlier one"
                )));
            }
            // Otherwise the manager would learn of earlier writes later, and replace the new time.
            if let Some((handle, "")) = handle_in(&path) {
                return self.0.instead_of_written(handle, || self.done(request).map(|()| ((), true)));
            }
            self.0.tell_written(&path)?;
        }
        self.done(request)
    }

    /// Sets the time of the last write to the manager's time.
    pub fn touch(&self, path: &str) -> Result<()> {
        let path = checked(path)?;
        self.0.tell_written(&path)?;
        self.done(ManagerRequest::Touch { path })
    }

    /// The value of an extended attribute.
    pub fn extended(&self, path: &str, name: &str) -> Result<Vec<u8>> {
        if name.is_empty() {
            return Err(Error::invalid("need the name of an extended attribute, have an empty one"));
        }
        self.values(path, name).map(|values| values.into_iter().next().unwrap_or_default())
    }

    /// The names of the extended attributes, sorted.
    pub fn extended_names(&self, path: &str) -> Result<Vec<String>> {
        let names = self.values(path, "")?;
        names
            .into_iter()
            .map(|name| {
                String::from_utf8(name).map_err(|_| {
                    let text =
                        format!("need names of extended attributes in UTF-8 at {path:?}, have other bytes");
                    Error::new(ErrorKind::Corrupt, text)
                })
            })
            .collect()
    }

    /// Sets an extended attribute, or removes it.
    pub fn set_extended(&self, path: &str, name: &str, value: Option<Vec<u8>>) -> Result<()> {
        self.done(ManagerRequest::SetExtended { path: checked(path)?, name: name.into(), value })
    }

    fn values(&self, path: &str, name: &str) -> Result<Vec<Vec<u8>>> {
        match self.0.manager(ManagerRequest::GetExtended { path: checked(path)?, name: name.into() })? {
            ManagerReply::Values(values) => Ok(values),
            reply => Err(unexpected(&reply)),
        }
    }

    fn done(&self, request: ManagerRequest) -> Result<()> {
        match self.0.manager(request)? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }
}
