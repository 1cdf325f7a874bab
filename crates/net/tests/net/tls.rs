//! Encrypted connections: the same behaviour as others, and protection against attackers in between.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use outcore_core::wire::{HEADER_BYTES, Header, Kind, Role, decode};
use outcore_core::*;
use outcore_net::{Address, Credentials, Key, Listening, NetLink, Options, User, listen};
use proptest::prelude::*;

use crate::bytes::{Raw, RawServer, frame_of_write, numbered_write};
use crate::pool::*;
use crate::proxy::Proxy;
use crate::tls_peer;
use crate::transfers::there_and_back;

/// A manager reachable through TLS, for the servers of another pool.
fn encrypted_manager(pool: &Pool) -> Listening {
    listen(&tls(), Arc::new(Served(pool.files.clone())), config(Role::Manager)).unwrap()
}

fn refused(places: &[Address], options: Options) -> Error {
    let begun = Instant::now();
    let error = NetLink::connect(places, options).err().expect("a refusal");
    assert!(begun.elapsed() < LONG, "at once");
    error
}

/// The same place, with another kind of address.
fn instead(address: &Address, scheme: &str) -> Vec<Address> {
    let text = address.to_string();
    let (_, place) = text.split_once(':').unwrap();
    vec![format!("{scheme}:{place}").parse().unwrap()]
}

#[test]
fn bytes_there_and_back() {
    there_and_back(&tls());
    let pool = Pool::new(&tls());
    let manager = encrypted_manager(&pool);
    let link = NetLink::connect(manager.addresses(), options()).unwrap();
    assert_eq!(write(&link, 1, 0, b"secret"), IoReply::Done);
    assert_eq!(read(&link, 1, 0, 6), b"secret");
}

#[test]
fn over_every_kind_of_address_at_once() {
    let root = tempfile::tempdir().unwrap();
    let near = Address::Unix(root.path().join("io.sock"));
    there_and_back(&[tcp()[0].clone(), tls()[0].clone(), near]);
}

#[test]
fn large_payloads_go_both_ways_at_the_same_time() {
    let pool = Pool::new(&tls());
    let one = Options { connections_per_address: 1, ..options() };
    let link = NetLink::connect(pool.manager.addresses(), one).unwrap();
    let bytes = 3 << 20;
    let data: Vec<Vec<u8>> = (0..4).map(|i| pattern(i, bytes)).collect();
    for (i, each) in data.iter().enumerate() {
        assert_eq!(write(&link, i as u64, 0, each), IoReply::Done);
    }
    let calls: Vec<_> = (0..6)
        .flat_map(|round| (0..4).map(move |i| (round, i)))
        .map(|(round, i)| {
            let (old, new) = (i as u64, 10 + i as u64);
            let asked = start(&link, read_of(old, 0, bytes as u64), region(&vec![0; bytes]));
            let said = start(&link, write_of(new, round * bytes as u64, bytes as u64), region(&data[i]));
            (i, asked, said)
        })
        .collect();
    for (i, asked, said) in calls {
        assert!(bytes_of(&wait(&asked).buffer) == data[i]);
        assert_eq!(wait(&said).reply, IoReply::Done);
    }
    assert!(read(&link, 13, 5 * bytes as u64, bytes) == data[3]);
}

#[test]
fn bytes_on_the_wire_are_not_those_of_the_payload() {
    let pool = Pool::new(&tls());
    let secret = b"what nobody between the two ends may read";
    let tap = Tap::new(&pool.server.addresses()[0]);
    *pool.files.addresses.lock().unwrap() = vec![tap.address.to_string()];
    let link = pool.link();
    assert_eq!(write(&link, 1, 0, secret), IoReply::Done);
    assert_eq!(read(&link, 1, 0, secret.len()), secret);
    let seen = tap.seen.lock().unwrap();
    assert!(seen.len() > 2 * secret.len());
    for word in [&secret[..], &secret[..8], b"ada", b"OUTC"] {
        assert!(!seen.windows(word.len()).any(|bytes| bytes == word));
    }
}

/// An attacker that negotiates keys with both sides and forwards their frames gets neither a request nor a
/// valid proof.
#[test]
fn a_man_in_the_middle_is_refused() {
    let pool = Pool::new(&tls());
    let manager = encrypted_manager(&pool);
    // A proxy that only forwards bytes works.
    let carrier = Proxy::new(&manager.addresses()[0]);
    assert!(NetLink::connect(std::slice::from_ref(&carrier.address), options()).is_ok());

    let middle = Middle::new(&manager.addresses()[0]);
    let error = refused(std::slice::from_ref(&middle.address), options());
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("answers there, or somebody sits in between"), "{error}");
    assert_eq!(middle.frames.load(Ordering::SeqCst), 1, "a greeting, and no proof");
}

#[test]
fn a_proof_is_bound_to_its_connection() {
    let pool = Pool::new(&tls());
    let place = &pool.server.addresses()[0];
    // The protocol as in docs/protocol.md.
    let mut raw = Raw::introduced(place);
    raw.send(&frame_of_write(1, 0, b"by hand"));
    assert_eq!(decode::<IoReply>(&raw.receive().1), Ok(IoReply::Done));
    // The server refuses a proof that is bound to nothing, or to another connection.
    for binding in [&b""[..], b"tls-exporter0123456789abcdef0123456789abcdef"] {
        let mut raw = Raw::new(place).bound_to(binding);
        raw.introduce(1, &KEY);
        let error = raw.refusal();
        assert_eq!(error.kind, ErrorKind::Denied);
        assert!(error.message.contains("not that of this pool"), "{error}");
    }
}

#[test]
fn a_wrong_key_and_none_are_refused() {
    let pool = Pool::new(&tls());
    let manager = encrypted_manager(&pool);
    let user = User { name: "eve".into(), uid: 1, gids: vec![1] };
    let wrong = Credentials::Pool { key: Key::new([1; 32]), user };
    let error = refused(manager.addresses(), Options { credentials: wrong, ..options() });
    assert!(error.kind == ErrorKind::Denied && error.message.contains("whose server answers"), "{error}");
    let none = Options { credentials: Credentials::Peer, ..options() };
    let error = refused(manager.addresses(), none);
    assert!(error.kind == ErrorKind::Denied && error.message.contains("need a key over TCP"), "{error}");
    let without =
        listen(&tls(), Arc::new(Served(Arc::default())), outcore_net::Config::new(Role::Manager, None));
    assert!(without.err().unwrap().message.contains("need a key to listen"));
}

#[test]
fn a_side_without_tls_is_told_so_at_once() {
    let pool = Pool::new(&tls());
    let manager = encrypted_manager(&pool);
    let error = refused(&instead(&manager.addresses()[0], "tcp"), options());
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("need TLS") && error.message.contains("outcore+tls://"), "{error}");
    let error = refused(&instead(&pool.manager.addresses()[0], "tls"), options());
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("this one is without; write tcp:"), "{error}");

    // Nor does the client accept another program at the address as a server.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = [Address::Tls(other.local_addr().unwrap().to_string())];
    thread::spawn(move || {
        while let Ok((mut stream, _)) = other.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = refused(&place, options());
    assert!(error.message.contains("encrypted connection was broken"), "{error}");
}

/// A client that requests an encrypted pool never uses an unencrypted one.
#[test]
fn who_came_encrypted_goes_nowhere_without() {
    let pool = Pool::new(&tcp());
    let manager = encrypted_manager(&pool);
    let link = NetLink::connect(manager.addresses(), options()).unwrap();
    let error = failure(write(&link, 1, 0, b"secret"));
    assert!(error.kind == ErrorKind::Denied && error.message.contains("listen on tls:"), "{error}");
    drop(link);

    let both = Pool::new(&[tcp()[0].clone(), tls()[0].clone()]);
    let plain = Proxy::new(&both.server.addresses()[0]);
    *both.files.addresses.lock().unwrap() =
        vec![plain.address.to_string(), both.server.addresses()[1].to_string()];
    let manager = encrypted_manager(&both);
    let link = NetLink::connect(manager.addresses(), options()).unwrap();
    assert_eq!(write(&link, 1, 0, b"secret"), IoReply::Done);
    assert_eq!(plain.accepted(), 0);
}

#[test]
fn keys_are_changed_under_way() {
    let pool = Pool::new(&tls());
    let mut raw = Raw::introduced(&pool.server.addresses()[0]);
    for i in 0..10 * tls_peer::RECORDS_BY_ONE_KEY {
        raw.send(&numbered_write(1 + i, 1 + i, 1, i, &[i as u8]));
        // On a busy machine the server sends signs of life meanwhile.
        let mut answer = raw.receive();
        while answer.0.kind == Kind::Working {
            answer = raw.receive();
        }
        assert_eq!(decode::<IoReply>(&answer.1), Ok(IoReply::Done), "{i}");
    }
    assert_eq!(read(&pool.link(), 1, 0, 200), (0..200).collect::<Vec<u8>>());
}

#[test]
fn a_connection_ends_with_the_sign_of_it() {
    let end = || {
        let pool = Pool::new(&tls());
        let mut raw = Raw::introduced(&pool.server.addresses()[0]);
        pool.server.stop();
        // Without `close_notify`, TLS reports an error at the end.
        raw.rest()
    };
    // The server leaves the sign out while a thread still sends: on a busy machine, it may not have returned from
    // sending the answer that the client has received.
    let ends = std::iter::repeat_with(end).take(20);
    assert_eq!(ends.flatten().next().unwrap(), b"");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Random bytes, and handshakes with random bytes in them, end in an error or silence, and do not affect
    /// others.
    #[test]
    fn noise_at_the_port_harms_nobody(
        start in 0_usize..4,
        noise in prop::collection::vec(any::<u8>(), 0..400),
        at in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let pool = shared_pool();
        let mut greeting = vec![];
        tls_peer::client_session().unwrap().write_tls(&mut greeting).unwrap();
        let bytes = match start {
            0 => noise,
            1 => [&[0x16, 3, 1][..], &noise].concat(),
            2 => [&greeting[..], &noise].concat(),
            _ => {
                let place = at.index(greeting.len());
                greeting[place] ^= flip;
                greeting
            }
        };
        let Address::Tls(place) = &pool.server.addresses()[0] else { unreachable!() };
        let mut stream = TcpStream::connect(place).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = vec![];
        if let Err(error) = stream.read_to_end(&mut answer) {
            prop_assert!(error.kind() == std::io::ErrorKind::ConnectionReset, "{}", error);
        }
        prop_assert!(answer.len() < 4096);
    }

    /// The same, inside an encrypted connection.
    #[test]
    fn noise_inside_ends_the_connection(noise in prop::collection::vec(any::<u8>(), 0..400)) {
        let pool = shared_pool();
        let mut raw = Raw::new(&pool.server.addresses()[0]);
        raw.send(&noise);
        raw.shut();
        match raw.rest() {
            Ok(rest) => prop_assert!(rest.len() < 4096),
            Err(error) => prop_assert!(error.kind() == std::io::ErrorKind::ConnectionReset, "{}", error),
        }
    }
}

/// One pool for all cases.
fn shared_pool() -> std::sync::MutexGuard<'static, Pool> {
    static POOL: Mutex<Option<&Mutex<Pool>>> = Mutex::new(None);
    let mut pool = POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let pool = pool.get_or_insert_with(|| Box::leak(Box::new(Mutex::new(Pool::new(&tls())))));
    pool.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn an_answer_that_comes_while_a_payload_is_stuck_is_taken() {
    let server = RawServer::over_tls(KEY);
    let pool = Pool::new(&tls());
    *pool.files.addresses.lock().unwrap() = vec![server.address.to_string()];
    let data = vec![7; 8 << 20];
    assert_eq!(failure(write(&pool.link(), 1, 0, &data)).message, "not today");
}

/// Forwards bytes, and records them.
struct Tap {
    address: Address,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    fn new(to: &Address) -> Self {
        let Address::Tls(to) = to.clone() else { panic!("an encrypted address") };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tls(listener.local_addr().unwrap().to_string());
        let seen = Arc::<Mutex<Vec<u8>>>::default();
        let tap = Self { address, seen: seen.clone() };
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let server = TcpStream::connect(&to).unwrap();
                let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                for (mut from, mut to) in [(client, server), back] {
                    let seen = seen.clone();
                    thread::spawn(move || {
                        let mut bytes = [0; 4096];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            seen.lock().unwrap().extend_from_slice(&bytes[..count]);
                            to.write_all(&bytes[..count]).unwrap();
                        }
                    });
                }
            }
        });
        tap
    }
}

/// Has one encrypted connection with a client and one with the server, and forwards frames alternately.
struct Middle {
    address: Address,
    /// Frames received from clients.
    frames: Arc<AtomicUsize>,
}

impl Middle {
    fn new(to: &Address) -> Self {
        let Address::Tls(to) = to.clone() else { panic!("an encrypted address") };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = Address::Tls(listener.local_addr().unwrap().to_string());
        let frames = Arc::<AtomicUsize>::default();
        let middle = Self { address, frames: frames.clone() };
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let _ = hand_on(client, &to, &frames);
            }
        });
        middle
    }
}

fn hand_on(client: TcpStream, to: &str, frames: &AtomicUsize) -> std::io::Result<()> {
    let (mut client, _) = tls_peer::server(client)?;
    let (mut server, _) = tls_peer::client(TcpStream::connect(to)?)?;
    loop {
        let asked = frame_from(&mut client)?;
        frames.fetch_add(1, Ordering::SeqCst);
        server.write_all(&asked)?;
        client.write_all(&frame_from(&mut server)?)?;
    }
}

fn frame_from(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; HEADER_BYTES];
    stream.read_exact(&mut bytes)?;
    let header = Header::decode(bytes[..].try_into().unwrap()).unwrap();
    assert_eq!(header.payload_bytes, 0);
    bytes.resize(HEADER_BYTES + header.control_bytes as usize, 0);
    stream.read_exact(&mut bytes[HEADER_BYTES..])?;
    Ok(bytes)
}
