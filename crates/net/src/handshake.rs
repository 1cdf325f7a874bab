//! How a connection begins: both sides prove that they have the key, and the server learns who the client is.

use std::time::{Duration, Instant};

use outcore_core::wire::{Challenge, Hello, KeyKind, Kind, Proof, Refused, Role, Welcome, encode};
use outcore_core::{Error, ErrorKind, Result};

use crate::keys::{Credentials, Key, User};
use crate::server::Who;
use crate::socket::{Socket, Watch};
use crate::system::random;

/// What is signed begins with what it is for: a proof of one side is none of the other.
const OF_SERVERS: &[u8] = b"outcore server 1\0";
const OF_CLIENTS: &[u8] = b"outcore client 1\0";

/// Nobody takes longer to say who he is.
pub(crate) const TIME_TO_BEGIN: Duration = Duration::from_secs(10);

/// More names or groups than anybody has.
const MOST_NAME_BYTES: usize = 255;
const MOST_GROUPS: usize = 1024;

/// Why a connection to a server could not be opened.
pub(crate) struct Unopened {
    pub(crate) error: Error,
    /// Whether somebody else may answer there: nothing shows that it is the server.
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
            return Err(Error::new(ErrorKind::Io, "the other side did not say in time who it is"));
        }
        Ok(())
    }
}

impl Watch for Deadline {
    /// Bytes that trickle in do not put it off.
    fn moved(&self, _bytes: usize) -> Result<()> {
        self.check()
    }

    fn idle(&self, _is_inside_frame: bool) -> Result<()> {
        self.check()
    }
}

/// The client's side. `expected` is what must be at the other end.
pub(crate) fn introduce(
    socket: &Socket,
    credentials: &Credentials,
    client: u128,
    expected: Role,
    timeout: Duration,
) -> std::result::Result<Welcome, Unopened> {
    let watch = Deadline::new(timeout);
    if credentials.key().is_none() && !socket.is_local() {
        // Nor would the client know who answers there.
        return Err(Error::new(
            ErrorKind::Denied,
            "need a key over TCP; give the pool's key file, or your own",
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

/// What a server knows of itself when a client comes.
pub(crate) struct Host<'a> {
    pub(crate) role: Role,
    /// `None`: clients come by UNIX sockets only.
    pub(crate) key: Option<&'a Key>,
    pub(crate) welcome: Welcome,
    /// The client must have said who it is within this time.
    pub(crate) time: Duration,
}

/// The server's side: who the client is, and its number. The client was told if it is refused.
pub(crate) fn admit(socket: &Socket, host: &Host<'_>) -> Result<(Who, u128)> {
    let watch = Deadline::new(host.time);
    let admitted = socket.begin(&watch).and_then(|()| examine(socket, host, &watch));
    if let Err(error) = &admitted {
        refuse(socket, error);
    }
    let (who, client) = admitted?;
    socket.send_record(Kind::Welcome, &host.welcome, &watch)?;
    Ok((who, client))
}

/// Tells the other side why the connection ends.
pub(crate) fn refuse(socket: &Socket, error: &Error) {
    let watch = Deadline::new(Duration::from_secs(1));
    // Where the connection is not encrypted as it should be, a frame says so as it is. The other side may be gone.
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
                // Who runs the server could change its files anyway.
                let is_root = ids.uid == 0 || ids.uid == User::own().uid;
                Ok((Who { name, uid: ids.uid, gids: ids.gids, is_root }, hello.client))
            }
            None => denied("need a key over TCP; give the pool's key file, or your own"),
        };
    };
    if !key.is_proof(&[OF_CLIENTS, &first, &asked, binding], &answer.proof) {
        return denied("the key is not that of this pool; give the pool's key file, or your own");
    }
    let is_root = hello.key == KeyKind::Pool;
    Ok((Who { name: said.name, uid: said.uid, gids: said.gids, is_root }, hello.client))
}
