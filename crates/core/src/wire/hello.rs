//! How a connection begins: who is who, and that both have the key.

use std::fmt;

use crate::wire::record::{choice, structure};
use crate::{Error, Incarnation, ServerId};

/// With what a client proves who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// The pool's key: the client may be whom it says.
    Pool,
    /// A key derived from it for the user, the group ids and the name that the client says.
    User,
    /// By what the operating system says of the other end of a UNIX socket.
    Peer,
}

/// The first record of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Made at random by the client when it begins; all its connections have the same.
    pub client: u128,
    /// Random.
    pub nonce: [u8; 32],
    /// With what it proves who it is.
    pub key: KeyKind,
    /// The user's name.
    pub name: String,
    /// The user id.
    pub uid: u32,
    /// The group ids, the main one first.
    pub gids: Vec<u32>,
}

/// What a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The manager of its pool.
    Manager,
    /// An I/O server of it.
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
    /// Random.
    pub nonce: [u8; 32],
    /// What the server is.
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
    /// Most bytes of a request's payload, and of its answer's.
    pub payload_bytes: u64,
    /// Milliseconds after which the server says that it is still at work.
    pub working_ms: u32,
    /// This run of the server. All answers over the connection are its.
    pub incarnation: Incarnation,
}

/// The connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Why.
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
