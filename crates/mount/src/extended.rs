//! Extended attributes.

use std::ffi::OsStr;

use fuser::{Errno, INodeNo};
use outcore_core::ErrorKind;

use crate::errors::{Answer, OrErrno};
use crate::tree::{Tree, text};

impl Tree {
    /// The value of an extended attribute.
    pub fn extended(&self, number: INodeNo, name: &OsStr) -> Answer<Vec<u8>> {
        let name = extended_name(name)?;
        match self.client.extended(&self.nodes.at(number), name) {
            Err(error) if error.kind == ErrorKind::NotFound => Err(Errno::NO_XATTR),
            found => found.or_errno(),
        }
    }

    /// The names of the extended attributes, each with a zero byte behind it.
    pub fn extended_names(&self, number: INodeNo) -> Answer<Vec<u8>> {
        let names = match self.client.extended_names(&self.nodes.at(number)) {
            // A link has none.
            Err(error) if error.kind == ErrorKind::Loop => vec![],
            names => names.or_errno()?,
        };
        let shown = names.iter().filter(|name| extended_name(OsStr::new(name)).is_ok());
        Ok(shown.flat_map(|name| [name.as_bytes(), &[0]].concat()).collect())
    }

    /// Sets an extended attribute, or removes it. `flags` are those of setxattr(2).
    pub fn set_extended(
        &self,
        number: INodeNo,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
    ) -> Answer<()> {
        let name = extended_name(name)?;
        if value.is_none() || flags != 0 {
            let found = self.extended(number, OsStr::new(name));
            match found.map_err(Errno::code) {
                Ok(_) if flags & libc::XATTR_CREATE != 0 => return Err(Errno::EEXIST),
                Err(code) if code != Errno::NO_XATTR.code() => return Err(Errno::from_i32(code)),
                Err(_) if flags & libc::XATTR_CREATE == 0 => return Err(Errno::NO_XATTR),
                _ => {}
            }
        }
        self.files.send_attributes(number).or_errno()?;
        self.client.set_extended(&self.nodes.at(number), name, value.map(<[u8]>::to_vec)).or_errno()
    }
}

/// The name of an extended attribute that programs may use.
fn extended_name(name: &OsStr) -> Answer<&str> {
    text(name)?.starts_with("user.").then_some(text(name)?).ok_or(Errno::EOPNOTSUPP)
}
