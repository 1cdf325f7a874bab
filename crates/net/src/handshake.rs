//! The start of a connection: both sides prove that they have the key, and the server learns the client's
//! identity.

use std::time::{Duration, Instant};

use outcore_core::wire::{Challenge, Hello, KeyKind, Kind, Proof, Refused, Role, Welcome, encode};
use outcore_core::{Error, ErrorKind, Result};

use crate::keys::{Credentials, Key, User};
use crate::server::Who;
use crate::socket::{Socket, Watch};
use crate::system::random;

/// Signed bytes start with their purpose, so that a proof of one side is not valid for the other.
const OF_SERVERS: &[u8] = b"outcore server 1\0";
const OF_CLIENTS: &[u8] = b"outcore client 1\0";

/// Maximum duration of the handshake.
pub(crate) const TIME_TO_BEGIN: Duration = Duration::from_secs(10);

/// Limits that exceed all real names and group lists.
const MOST_NAME_BYTES: usize = 255;
const MOST_GROUPS: usize = 1024;

/// The reason why a connection to a server could not be opened.
pub(crate) struct Unopened {
    pub(crate) error: Error,
    /// Whether another program may have answered: nothing proves that it is the server.
    pub(crate) is_other: bool,
}

impl From<Error> for Unopened {
    fn from(error: Error) -> Self {
        Self { error, is_other: false }
    }
}

struct Deadline(Instant);

impl Deadline {
    fn new(time: Duration) -> Self {
        Self(Instant::now() + time)
    }

    fn check(&self) -> Result<()> {
        if Instant::now() > self.0 {
            return Err(Error::new(ErrorKind::Io, "the peer did not identify itself in time"));
        }
        Ok(())
    }
}

impl Watch for Deadline {
    /// Slowly arriving bytes do not extend the deadline.
    fn moved(&self, _bytes: usize) -> Result<()> {
        self.check()
    }

    fn idle(&self, _is_inside_frame: bool) -> Result<()> {
        self.check()
    }
}

/// The client's side of the handshake. `expected` is the role that the server must have.
pub(crate) fn introduce(
    socket: &Socket,
    credentials: &Credentials,
    client: u128,
    expected: Role,
    timeout: Duration,
) -> std::result::Result<Welcome, Unopened> {
    let watch = Deadline::new(timeout);
    if credentials.key().is_none() && !socket.is_local() {
        // The client could not identify the server either.
        return Err(Error::new(
            ErrorKind::Denied,
            "need a key over TCP; set OUTCORE_KEY to the file of your key, or of the pool's",
        )
        .into());
    }
    let other = |error| Unopened { error, is_other: true };
    socket.begin(&watch).map_err(other)?;
    let binding = socket.binding();
    let User { name, uid, gids } = credentials.user();
    let hello = Hello { client, nonce: random()?, key: credentials.kind(), name, uid, gids };
    let first = socket.send_record(Kind::Hello, &hello, &watch)?;
    let (challenge, _) = socket.receive_record::<Challenge>(Kind::Challenge, &watch).map_err(other)?;
    let mut proof = [0; 32];
    if let Some(key) = credentials.key() {
        let open = encode(&Challenge { proof: [0; 32], ..challenge });
        if !key.is_proof(&[OF_SERVERS, &first, &open, binding], &challenge.proof) {
            let or_else = if binding.is_empty() { "" } else { ", or somebody sits in between" };
            return Err(other(Error::new(
                ErrorKind::Denied,
                format!(
                    "the key is not that of the pool whose server answers there{or_else}; check the address and \
                     the key file"
                ),
            )));
        }
        proof = key.prove(&[OF_CLIENTS, &first, &encode(&challenge), binding]);
    }
    if challenge.role != expected {
        return Err(other(Error::invalid(format!(
            "need {expected} at this address, {} answers there; check the addresses of the pool's servers",
            challenge.role
        ))));
    }
    socket.send_record(Kind::Proof, &Proof { proof }, &watch)?;
    Ok(socket.receive_record(Kind::Welcome, &watch)?.0)
}

/// The server's part of the handshake data.
pub(crate) struct Host<'a> {
    pub(crate) role: Role,
    /// The pool's key; `None` if clients connect by UNIX sockets only.
    pub(crate) key: Option<&'a Key>,
    pub(crate) welcome: Welcome,
    /// Time limit for the handshake.
    pub(crate) time: Duration,
    /// Decides whether the server has room for a client that has proved its identity.
    pub(crate) enter: &'a dyn Fn() -> Result<()>,
}

/// The server's side of the handshake. Returns the client's identity and number. A refused client gets the
/// reason.
pub(crate) fn admit(socket: &Socket, host: &Host<'_>) -> Result<(Who, u128)> {
    let watch = Deadline::new(host.time);
    let examined = socket.begin(&watch).and_then(|()| examine(socket, host, &watch));
    let admitted = examined.and_then(|found| (host.enter)().map(|()| found));
    if let Err(error) = &admitted {
        refuse(socket, error);
    }
    let (who, client) = admitted?;
    socket.send_record(Kind::Welcome, &host.welcome, &watch)?;
    Ok((who, client))
}

/// Sends the reason for ending the connection to the peer.
pub(crate) fn refuse(socket: &Socket, error: &Error) {
    let watch = Deadline::new(Duration::from_secs(1));
    // If the peer does not use TLS, the refusal goes out as a plain frame. The peer may be gone already.
    let _ = socket.begin(&watch);
    let _ = socket.send_record(Kind::Refused, &Refused { error: error.clone() }, &watch);
}

fn examine(socket: &Socket, host: &Host<'_>, watch: &Deadline) -> Result<(Who, u128)> {
    let denied = |message: &str| Err(Error::new(ErrorKind::Denied, message));
    let binding = socket.binding();
    let (hello, first) = socket.receive_record::<Hello>(Kind::Hello, watch)?;
    if hello.name.len() > MOST_NAME_BYTES || hello.gids.is_empty() || hello.gids.len() > MOST_GROUPS {
        return denied("need a name, and 1 to 1024 groups; use the user's own key file");
    }
    let said = User { name: hello.name, uid: hello.uid, gids: hello.gids };
    let key = match (hello.key, host.key) {
        (KeyKind::Peer, _) => None,
        (KeyKind::Pool, Some(key)) => Some(key.clone()),
        (KeyKind::User, Some(key)) => Some(key.of_user(&said)),
        (_, None) => return denied("this server has no key; come by its UNIX socket, without one"),
    };
    let open = Challenge { nonce: random()?, role: host.role, proof: [0; 32] };
    let proof = key.as_ref().map_or([0; 32], |key| key.prove(&[OF_SERVERS, &first, &encode(&open), binding]));
    let challenge = Challenge { proof, ..open };
    let asked = socket.send_record(Kind::Challenge, &challenge, watch)?;
    let (answer, _) = socket.receive_record::<Proof>(Kind::Proof, watch)?;
    let Some(key) = key else {
        return match socket.peer_ids() {
            Some(ids) => {
                let name = format!("uid-{}", ids.uid);
                // The user who runs the server could change its files anyway.
                let is_root = ids.uid == 0 || ids.uid == User::own().uid;
                Ok((Who { name, uid: ids.uid, gids: ids.gids, is_root }, hello.client))
            }
            None => denied("need a key over TCP; set OUTCORE_KEY to the file of your key, or of the pool's"),
        };
    };
    if !key.is_proof(&[OF_CLIENTS, &first, &asked, binding], &answer.proof) {
        return denied("the key is not that of this pool; give the pool's key file, or your own");
    }
    let is_root = hello.key == KeyKind::Pool;
    Ok((Who { name: said.name, uid: said.uid, gids: said.gids, is_root }, hello.client))
}
