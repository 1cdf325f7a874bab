//! Keys, and the grants that they sign: the manager allows access, and the I/O servers verify it without asking
//! the manager.

use std::fmt;

use hmac::{Hmac, Mac};
use outcore_core::{Error, ErrorKind, Grant, Handle, LengthGrant, Result};
use sha2::Sha256;

/// Maximum lifetime of a grant, in seconds.
pub const MOST_GRANT_S: u64 = 3600;

/// Every signed message begins with its purpose, so a signature for one purpose never serves another.
const OF_GRANTS: &[u8] = b"outcore grant 1\0";
const OF_REMOVALS: &[u8] = b"outcore removal 1\0";
const OF_LENGTHS: &[u8] = b"outcore lengths 1\0";

/// The secret of a pool, 32 bytes. `Debug` does not print it.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// Makes a key of these bytes, which must come from a cryptographically secure random generator.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes. Store them only where authorized readers can read them.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Grants the right to read a file, or to read and write it, until `expires_s`.
    pub fn sign(&self, handle: Handle, write: bool, expires_s: u64) -> Grant {
        let mac = self.mac_of(handle, write, expires_s).finalize().into_bytes().into();
        Grant { handle, write, expires_s, mac }
    }

    /// Grants the right to remove the data files of a file that has no name left, until `expires_s`. It allows
    /// nothing else.
    pub fn sign_removal(&self, handle: Handle, expires_s: u64) -> Grant {
        let mac = self.mac_of_removal(handle, expires_s).finalize().into_bytes().into();
        Grant { handle, write: true, expires_s, mac }
    }

    /// Refuses a grant that this key did not sign, that names another file, that only allows reading where `write`
    /// is set, or that has expired.
    pub fn verify(&self, grant: &Grant, handle: Handle, write: bool, now_s: u64) -> Result<()> {
        let mac = self.mac_of(grant.handle, grant.write, grant.expires_s);
        check(mac, grant, handle, "open the file again", now_s)?;
        if write && !grant.write {
            return denied(format!(
                "need a grant to write file {}, have one to read it; open it for writing",
                handle.0
            ));
        }
        Ok(())
    }

    /// Refuses a grant that [`Key::sign_removal`] did not make with this key, that names another file, or that has
    /// expired.
    pub fn verify_removal(&self, grant: &Grant, handle: Handle, now_s: u64) -> Result<()> {
        let mac = self.mac_of_removal(grant.handle, grant.expires_s);
        check(mac, grant, handle, "remove the file by its name", now_s)
    }

    /// Grants the right to query the lengths of these files, until `expires_s`.
    pub fn sign_lengths(&self, handles: &[Handle], expires_s: u64) -> LengthGrant {
        LengthGrant { expires_s, mac: self.mac_of_lengths(handles, expires_s).finalize().into_bytes().into() }
    }

    /// Refuses a grant that this key did not sign for these files, or that has expired.
    pub fn verify_lengths(&self, grant: &LengthGrant, handles: &[Handle], now_s: u64) -> Result<()> {
        // Constant-time comparison, and before all other checks: an unsigned grant proves nothing.
        if self.mac_of_lengths(handles, grant.expires_s).verify_slice(&grant.mac).is_err() {
            return denied(
                "need a grant of this pool for the lengths of these files, have one that its key did not sign; list them \
                 again"
                    .to_owned(),
            );
        }
        if grant.expires_s <= now_s {
            return denied(format!(
                "need a grant for lengths that is not over, have one that ended {} s ago; list the files again",
                now_s - grant.expires_s
            ));
        }
        Ok(())
    }

    fn mac_of_lengths(&self, handles: &[Handle], expires_s: u64) -> Hmac<Sha256> {
        let mut mac = authenticate(&self.0, &[OF_LENGTHS, &expires_s.to_le_bytes()]);
        handles.iter().for_each(|handle| mac.update(&handle.0.to_le_bytes()));
        mac
    }

    fn mac_of_removal(&self, handle: Handle, expires_s: u64) -> Hmac<Sha256> {
        authenticate(&self.0, &[OF_REMOVALS, &handle.0.to_le_bytes(), &expires_s.to_le_bytes()])
    }

    fn mac_of(&self, handle: Handle, write: bool, expires_s: u64) -> Hmac<Sha256> {
        let (handle, expires) = (handle.0.to_le_bytes(), expires_s.to_le_bytes());
        authenticate(&self.0, &[OF_GRANTS, &handle, &[u8::from(write)], &expires])
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

fn denied(message: String) -> Result<()> {
    Err(Error::new(ErrorKind::Denied, message))
}

/// Refuses a grant whose signature differs from `mac`, that names another file, or that has expired. `fix` tells
/// the caller how to get a new grant.
fn check(mac: Hmac<Sha256>, grant: &Grant, handle: Handle, fix: &str, now_s: u64) -> Result<()> {
    // Constant-time comparison, and before all other checks: an unsigned grant proves nothing.
    if mac.verify_slice(&grant.mac).is_err() {
        return denied(format!(
            "need a grant of this pool for this request to file {}, have one that its key did not sign; {fix}",
            handle.0
        ));
    }
    if grant.handle != handle {
        return denied(format!(
            "need a grant for file {}, have one for file {}; use the grant of that opening",
            handle.0, grant.handle.0
        ));
    }
    if grant.expires_s <= now_s {
        return denied(format!(
            "need a grant for file {} that is not over, have one that ended {} s ago; renew it",
            handle.0,
            now_s - grant.expires_s
        ));
    }
    Ok(())
}

/// HMAC-SHA256 (RFC 2104, FIPS 198-1) of the concatenated parts.
fn authenticate(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of every length");
    for part in parts {
        mac.update(part);
    }
    mac
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// RFC 4231, section 4: test cases 1 to 4, 6 and 7. Case 5 truncates the output, so it does not apply.
    #[test]
    fn the_vectors_of_rfc_4231_hold() {
        let counted: Vec<u8> = (1..=25).collect();
        let cases: [(&[u8], &[u8], &str); 6] = [
            (
                &[0x0b; 20],
                b"Hi There",
                "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7",
            ),
            (
                b"Jefe",
                b"what do ya want for nothing?",
                "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843",
            ),
            (
                &[0xaa; 20],
                &[0xdd; 50],
                "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe",
            ),
            (
                &counted,
                &[0xcd; 50],
                "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b",
            ),
            (
                &[0xaa; 131],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
            ),
            (
                &[0xaa; 131],
                b"This is a test using a larger than block-size key and a larger than block-size data. The key \
                  needs to be hashed before being used by the HMAC algorithm.",
                "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2",
            ),
        ];
        for (key, message, mac) in cases {
            let (first, rest) = message.split_at(message.len() / 2);
            assert_eq!(hex(&authenticate(key, &[first, rest]).finalize().into_bytes()), mac);
        }
    }

    #[test]
    fn a_grant_is_good_for_what_it_says() {
        let key = Key::new([7; 32]);
        let grant = key.sign(Handle(5), true, 100);
        for write in [false, true] {
            key.verify(&grant, Handle(5), write, 99).unwrap();
        }
        key.verify(&key.sign(Handle(5), false, 100), Handle(5), false, 0).unwrap();
    }

    #[test]
    fn a_grant_is_good_for_nothing_else() {
        let key = Key::new([7; 32]);
        let (reads, writes) = (key.sign(Handle(5), false, 100), key.sign(Handle(5), true, 100));
        let refused = |grant: &Grant, handle, write, now_s, why: &str| {
            let error = key.verify(grant, Handle(handle), write, now_s).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Denied);
            assert!(error.message.contains(why), "{error}");
            assert!(error.message.starts_with("need ") && error.message.contains("; "), "{error}");
        };
        refused(&reads, 5, true, 0, "one to read");
        refused(&writes, 6, false, 0, "one for file 5");
        refused(&writes, 5, false, 100, "ended 0 s ago");
        refused(&writes, 5, false, 160, "ended 60 s ago");
        let mut flipped = writes;
        flipped.mac[31] ^= 1;
        let forged = [
            Grant { write: true, ..reads },
            Grant { handle: Handle(6), ..writes },
            Grant { expires_s: 1000, ..writes },
            Key::new([8; 32]).sign(Handle(5), true, 100),
            flipped,
        ];
        for grant in forged {
            refused(&grant, grant.handle.0, grant.write, 0, "did not sign");
        }
    }

    #[test]
    fn a_grant_to_write_is_none_to_remove_and_the_reverse() {
        let key = Key::new([7; 32]);
        let (writes, removes) = (key.sign(Handle(5), true, 100), key.sign_removal(Handle(5), 100));
        key.verify_removal(&removes, Handle(5), 99).unwrap();
        let over = Grant { expires_s: 1000, ..removes };
        for grant in [writes, over, Key::new([8; 32]).sign_removal(Handle(5), 100)] {
            let error = key.verify_removal(&grant, Handle(5), 0).unwrap_err();
            assert!(error.kind == ErrorKind::Denied && error.message.contains("did not sign"), "{error}");
        }
        assert!(key.verify_removal(&removes, Handle(6), 0).is_err());
        assert!(key.verify_removal(&removes, Handle(5), 100).is_err());
        for write in [false, true] {
            assert_eq!(key.verify(&removes, Handle(5), write, 0).unwrap_err().kind, ErrorKind::Denied);
        }
    }

    #[test]
    fn a_grant_for_lengths_is_for_these_files_until_its_end() {
        let (key, files) = (Key::new([7; 32]), [Handle(5), Handle(9)]);
        let grant = key.sign_lengths(&files, 100);
        key.verify_lengths(&grant, &files, 99).unwrap();
        let refused = |grant: &LengthGrant, handles: &[Handle], now_s| {
            assert_eq!(key.verify_lengths(grant, handles, now_s).unwrap_err().kind, ErrorKind::Denied);
        };
        refused(&grant, &files, 100);
        refused(&LengthGrant { expires_s: 1000, ..grant }, &files, 0);
        for others in [&[Handle(5)][..], &[Handle(9), Handle(5)], &[Handle(5), Handle(9), Handle(1)], &[]] {
            refused(&grant, others, 0);
        }
        refused(&Key::new([8; 32]).sign_lengths(&files, 100), &files, 0);
        // A length grant does not allow reading, and a read grant does not allow length queries.
        let read = Grant { handle: Handle(5), write: false, expires_s: 100, mac: grant.mac };
        assert!(key.verify(&read, Handle(5), false, 0).is_err());
        let length = LengthGrant { expires_s: 100, mac: key.sign(Handle(5), false, 100).mac };
        refused(&length, &[Handle(5)], 0);
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", Key::new([1; 32])), "Key(secret)");
    }
}
