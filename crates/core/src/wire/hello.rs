//! The start of a connection: both sides identify themselves and prove that they have the key.

use std::fmt;

use crate::wire::record::{choice, structure};
use crate::{Error, Incarnation, ServerId};

/// The means by which a client proves its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// The pool's key: the client may claim any identity.
    Pool,
    /// A key derived from it for the user, group ids and name that the client claims.
    User,
    /// The operating system's report on the peer of a UNIX socket.
    Peer,
}

/// The first record of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// A random number that the client creates at its start. All its connections have the same.
    pub client: u128,
    /// A random nonce.
    pub nonce: [u8; 32],
    /// The client's means of proof.
    pub key: KeyKind,
    /// The user's name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The group ids, with the main one first.
    pub gids: Vec<u32>,
}

/// The role of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The manager of its pool.
    Manager,
    /// An I/O server of its pool.
    IoServer(ServerId),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Manager => f.write_str("the manager"),
            Self::IoServer(server) => write!(f, "I/O server {}", server.0),
        }
    }
}

/// The answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// A random nonce.
    pub nonce: [u8; 32],
    /// The role of the server.
    pub role: Role,
    /// HMAC-SHA256 of the records so far, by the key; zeros without one.
    pub proof: [u8; 32],
}

/// The second record of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// HMAC-SHA256 of the records so far, by the key; zeros without one.
    pub proof: [u8; 32],
}

/// The connection is open for requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Maximum bytes of a request's payload, and of its answer's.
    pub payload_bytes: u64,
    /// Milliseconds after which the server reports that it is still working.
    pub working_ms: u32,
    /// This run of the server. All answers on the connection come from it.
    pub incarnation: Incarnation,
}

/// The connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The reason.
    pub error: Error,
}

choice!(KeyKind { 1 = Pool, 2 = User, 3 = Peer });
structure!(Hello { client, nonce, key, name, uid, gids });
choice!(Role { 1 = Manager, 2 = IoServer(id) });
structure!(Challenge { nonce, role, proof });
structure!(Proof { proof });
structure!(Incarnation { 0 });
structure!(Welcome { payload_bytes, working_ms, incarnation });
structure!(Refused { error });
