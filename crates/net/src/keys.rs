//! Keys of pools and users: derivation, key files, and proofs.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use hmac::{Hmac, Mac};
use outcore_core::wire::KeyKind;
use outcore_core::{Error, ErrorKind, Result};
use sha2::Sha256;

use crate::system::{own_ids, random};

/// Signed bytes start with their purpose, so that no signature is valid for another purpose.
const OF_USERS: &[u8] = b"outcore user 1\0";

const OF_POOL: &str = "outcore-pool-key-1";
const OF_USER: &str = "outcore-user-key-1";

/// A secret of 32 bytes: a pool's or a user's key. Debug output hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// The identity of a user. The manager uses it as owner and groups of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name, for messages.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group ids, with the main one first.
    pub gids: Vec<u32>,
}

impl User {
    /// The user of this process.
    pub fn own() -> Self {
        let (uid, gids) = own_ids();
        Self { name: format!("uid-{uid}"), uid, gids }
    }

    /// The text in key files, to which a derived key is bound.
    fn text(&self) -> String {
        let gids: Vec<String> = self.gids.iter().map(u32::to_string).collect();
        format!("{}:{}:{}", self.name, self.uid, gids.join(","))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (name, uid, gids) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
        let gids: Vec<u32> = gids.split(',').map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
        (parts.next().is_none() && is_name(name)).then(|| Self { name: name.to_owned(), uid, gids })
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 255 && name.chars().all(|c| c.is_alphanumeric() || "-_.@".contains(c))
}

impl Key {
    /// A key from these bytes, which must come from a cryptographic random source.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// A new key for a pool.
    pub fn random() -> Result<Self> {
        random().map(Self)
    }

    /// Parses 64 hexadecimal digits. Processes pass keys in this form.
    pub fn from_hex(digits: &str) -> Result<Self> {
        let bytes = unhex(digits).map(Self);
        bytes.ok_or_else(|| Error::invalid("need a key of 64 hexadecimal digits, have something else"))
    }

    /// The bytes of the key. The caller must keep them secret.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Derives the key of a user. The user can neither compute the pool's key from it, nor claim another
    /// identity.
    pub fn of_user(&self, user: &User) -> Self {
        Self(self.mac(&[OF_USERS, user.text().as_bytes()]).finalize().into_bytes().into())
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    pub(crate) fn prove(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Checks a proof, in constant time.
    pub(crate) fn is_proof(&self, parts: &[&[u8]], proof: &[u8; 32]) -> bool {
        self.mac(parts).verify_slice(proof).is_ok()
    }

    /// Reads the pool's key from a file. Refuses a file that others may read.
    pub fn from_file(path: &Path) -> Result<Self> {
        match Credentials::from_file(path)? {
            Credentials::Pool { key, .. } => Ok(key),
            _ => Err(Error::invalid(format!(
                "{} is the key of a user; servers need the pool's",
                path.display()
            ))),
        }
    }

    /// Writes the pool's key to a new file that only its owner may read.
    pub fn save(&self, path: &Path) -> Result<()> {
        write_new(path, &format!("{OF_POOL} {}\n", hex(&self.0)))
    }

    /// Writes the key of a user to a new file that only its owner may read.
    pub fn save_of_user(&self, user: &User, path: &Path) -> Result<()> {
        if !is_name(&user.name) || user.gids.is_empty() {
            return Err(Error::invalid(format!(
                "need a user's name of letters, digits and any of -_.@, and a group, have {:?}",
                user.name
            )));
        }
        write_new(path, &format!("{OF_USER} {} {}\n", user.text(), hex(&self.of_user(user).0)))
    }
}

/// The means by which a client proves its identity.
#[derive(Clone, Debug)]
pub enum Credentials {
    /// The pool's key. Its holder may claim any identity.
    Pool {
        /// The key.
        key: Key,
        /// The claimed identity.
        user: User,
    },
    /// A key that was derived for a user.
    User {
        /// The key.
        key: Key,
        /// The user of the key.
        user: User,
    },
    /// The operating system's report on this process; for UNIX sockets only.
    Peer,
}

impl Credentials {
    /// Reads a key file. The pool's key makes its holder the user of this process with all rights; a user's
    /// key names its user.
    pub fn from_file(path: &Path) -> Result<Self> {
        let cannot = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => ErrorKind::NotFound,
                std::io::ErrorKind::PermissionDenied => ErrorKind::Denied,
                _ => ErrorKind::Io,
            };
            Error::new(kind, format!("cannot read the key file {}: {error}; check the path", path.display()))
        };
        let mode = fs::metadata(path).map_err(cannot)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "need a key file that only its owner can read, have {} of mode {mode:03o}; chmod 600 it",
                    path.display()
                ),
            ));
        }
        let text = fs::read_to_string(path).map_err(cannot)?;
        let words: Vec<&str> = text.split_whitespace().collect();
        let found = match words[..] {
            [OF_POOL, key] => unhex(key).map(|key| Self::Pool { key: Key(key), user: User::own() }),
            [OF_USER, user, key] => {
                User::parse(user).and_then(|user| unhex(key).map(|key| Self::User { key: Key(key), user }))
            }
            _ => None,
        };
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!("{} is not a key file of outcore; give the file that the pool made", path.display()),
            )
        })
    }

    pub(crate) fn kind(&self) -> KeyKind {
        match self {
            Self::Pool { .. } => KeyKind::Pool,
            Self::User { .. } => KeyKind::User,
            Self::Peer => KeyKind::Peer,
        }
    }

    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Self::Pool { key, .. } | Self::User { key, .. } => Some(key),
            Self::Peer => None,
        }
    }

    pub(crate) fn user(&self) -> User {
        match self {
            Self::Pool { user, .. } | Self::User { user, .. } => user.clone(),
            Self::Peer => User::own(),
        }
    }
}

fn write_new(path: &Path, text: &str) -> Result<()> {
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    })();
    written.map_err(|error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::new(
            ErrorKind::Exists,
            format!(
                "the key file {} exists, and pools made with it need it; choose another name",
                path.display()
            ),
        ),
        _ => Error::new(ErrorKind::Io, format!("cannot write the key file {}: {error}", path.display())),
    })
}

fn hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_come_back_from_their_files() {
        let root = tempfile::tempdir().unwrap();
        let (pool, mine) = (root.path().join("pool.key"), root.path().join("ada.key"));
        let key = Key::random().unwrap();
        let user = User { name: "ada".into(), uid: 1815, gids: vec![10, 20] };
        key.save(&pool).unwrap();
        key.save_of_user(&user, &mine).unwrap();
        assert_eq!(Key::from_file(&pool).unwrap(), key);
        let Credentials::User { key: derived, user: found } = Credentials::from_file(&mine).unwrap() else {
            panic!("a user's key");
        };
        assert_eq!((derived, found), (key.of_user(&user), user));
        assert_eq!(key.save(&pool).unwrap_err().kind, ErrorKind::Exists);
        assert!(Key::from_file(&mine).unwrap_err().message.contains("servers need the pool's"));
    }

    #[test]
    fn keys_are_handed_on_as_digits() {
        assert_eq!(Key::from_hex(&"0a".repeat(32)).unwrap(), Key::new([10; 32]));
        for wrong in ["", &"0".repeat(63), &"0".repeat(65), &"+1".repeat(32)] {
            let error = Key::from_hex(wrong).unwrap_err();
            assert!(error.kind == ErrorKind::Invalid && !error.message.contains("000"), "{error}");
        }
    }

    #[test]
    fn the_key_of_a_user_is_that_of_the_page() {
        // Computed by openssl dgst -sha256 -mac HMAC -macopt hexkey:0707...
        let user = User { name: "ada".into(), uid: 1815, gids: vec![10, 20] };
        let found = hex(&Key::new([7; 32]).of_user(&user).0);
        assert!(include_str!("../../../docs/protocol.md").contains(&found), "{found}");
        assert_eq!(found, "1c30be54c11553221d32a8254b5dfc6877b0b558d9ae667926f606349bd5ff09");
    }

    #[test]
    fn a_derived_key_is_of_one_user_in_its_groups() {
        let key = Key::new([7; 32]);
        let user = |name: &str, uid, gids: &[u32]| User { name: name.into(), uid, gids: gids.to_vec() };
        let mine = key.of_user(&user("ada", 1, &[10]));
        for other in [user("ada", 2, &[10]), user("ada", 1, &[10, 0]), user("eve", 1, &[10])] {
            assert_ne!(mine, key.of_user(&other));
        }
        let error = key.save_of_user(&user("ada:0", 1, &[0]), Path::new("/nowhere")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
    }

    #[test]
    fn files_that_others_can_read_and_other_files_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("key");
        Key::new([1; 32]).save(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Key::from_file(&path).unwrap_err();
        assert!(error.kind == ErrorKind::Denied && error.message.contains("640"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        for text in ["", "outcore-pool-key-1 12", "outcore-user-key-1 ada:1 00", "-----BEGIN RSA"] {
            fs::write(&path, text).unwrap();
            assert_eq!(Key::from_file(&path).unwrap_err().kind, ErrorKind::Corrupt, "{text}");
        }
        assert_eq!(Key::from_file(&root.path().join("none")).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(format!("{:?}", Key::new([1; 32])), "Key(secret)");
    }
}
