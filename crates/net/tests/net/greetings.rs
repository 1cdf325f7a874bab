//! Accepted clients, and the errors of refused ones.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use outcore_core::wire::*;
use outcore_core::*;
use outcore_net::{Address, Config, Credentials, Key, NetLink, Options, User, Who, listen};

use crate::bytes::{Raw, RawServer, frame};
use crate::pool::*;

fn with(credentials: Credentials) -> Options {
    Options { credentials, ..options() }
}

fn ada() -> User {
    User { name: "ada".into(), uid: 1815, gids: vec![10, 20] }
}

fn refused(pool: &Pool, credentials: Credentials) -> Error {
    let begun = Instant::now();
    let error = NetLink::connect(pool.manager.addresses(), with(credentials)).err().expect("a refusal");
    assert!(begun.elapsed() < LONG, "at once");
    error
}

#[test]
fn a_wrong_key_is_refused_clearly_by_both_sides() {
    let pool = Pool::new(&tcp());
    let error = refused(&pool, Credentials::Pool { key: Key::new([1; 32]), user: ada() });
    assert_eq!(error.kind, ErrorKind::Denied);
    let at = pool.manager.addresses()[0].to_string();
    assert!(error.message.contains("whose server answers there") && error.message.contains(&at), "{error}");

    // The server refuses too, if the client does not check.
    let mut raw = Raw::new(&pool.manager.addresses()[0]);
    raw.introduce(1, &[1; 32]);
    let error = raw.refusal();
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("give the pool's key file"), "{error}");
}

#[test]
fn a_server_that_does_not_have_the_key_gets_no_request() {
    let pool = Pool::new(&tcp());
    let server = RawServer::new([2; 32]);
    *pool.files.addresses.lock().unwrap() = vec![server.address.to_string()];
    let error = failure(write(&pool.link(), 1, 0, &[1; 10]));
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("whose server answers there"), "{error}");
    assert_eq!(server.proofs(), 0, "nor a proof of the client's");
}

#[test]
fn a_users_key_makes_nobody_else() {
    let pool = Pool::new(&tcp());
    let key = Key::new(KEY).of_user(&ada());
    let link =
        NetLink::connect(pool.manager.addresses(), with(Credentials::User { key: key.clone(), user: ada() }))
            .unwrap();
    drop(link);
    let who = Who { name: "ada".into(), uid: 1815, gids: vec![10, 20], is_root: false };
    assert_eq!(*pool.files.callers.lock().unwrap(), [who]);
    for other in [
        User { uid: 0, ..ada() },
        User { gids: vec![10, 20, 0], ..ada() },
        User { name: "root".into(), ..ada() },
    ] {
        let error = refused(&pool, Credentials::User { key: key.clone(), user: other });
        assert_eq!(error.kind, ErrorKind::Denied);
    }
    assert_eq!(refused(&pool, Credentials::Pool { key, user: ada() }).kind, ErrorKind::Denied);
}

#[test]
fn a_users_key_is_derived_and_used_as_the_page_says() {
    let pool = Pool::new(&tcp());
    let mut raw = Raw::new(&pool.manager.addresses()[0]);
    raw.introduce_user("ada:1815:10,20", &KEY);
    assert_eq!(raw.receive().0.kind, Kind::Welcome);
    // The manager notes its callers before it answers them.
    let control = encode(&ManagerRequest::Servers);
    let header = Header { request: 1, settled: 1, ..Header::of(Kind::ManagerRequest, &control) };
    raw.send(&[&header.encode().unwrap()[..], &control].concat());
    while raw.receive().0.kind != Kind::ManagerReply {}
    assert_eq!(pool.files.callers.lock().unwrap()[0].gids, [10, 20]);
    let mut raw = Raw::new(&pool.manager.addresses()[0]);
    raw.introduce_user("ada:1815:10,20", &[1; 32]);
    assert_eq!(raw.refusal().kind, ErrorKind::Denied);
}

#[test]
fn who_has_the_pools_key_is_whom_it_says_with_all_rights() {
    let pool = Pool::new(&tcp());
    drop(pool.link());
    let who = Who { name: "ada".into(), uid: 1815, gids: vec![10], is_root: true };
    assert_eq!(*pool.files.callers.lock().unwrap(), [who]);
}

#[test]
fn on_a_unix_socket_the_system_says_who_comes() {
    let root = tempfile::tempdir().unwrap();
    let place = [Address::Unix(root.path().join("manager.sock"))];
    let files = Arc::<Files>::default();
    *files.addresses.lock().unwrap() = vec![place[0].to_string()];
    let server =
        listen(&place, Arc::new(Served(files.clone())), Config { key: None, ..config(Role::Manager) });
    let server = server.unwrap();
    drop(NetLink::connect(&place, with(Credentials::Peer)).unwrap());
    let caller = files.callers.lock().unwrap()[0].clone();
    assert_eq!((caller.uid, caller.gids), (User::own().uid, User::own().gids));
    assert!(caller.is_root, "who runs the server");
    // A server without a key cannot check one.
    let error = NetLink::connect(&place, options()).err().unwrap();
    assert!(error.kind == ErrorKind::Denied && error.message.contains("no key"), "{error}");
    drop(server);
}

#[test]
fn over_tcp_nobody_comes_without_a_key() {
    let pool = Pool::new(&tcp());
    let error = refused(&pool, Credentials::Peer);
    assert!(error.kind == ErrorKind::Denied && error.message.contains("need a key over TCP"), "{error}");
    // The server refuses too, if the client does not check.
    let mut raw = Raw::new(&pool.manager.addresses()[0]);
    let (nonce, key, name) = ([5; 32], KeyKind::Peer, "raw".into());
    raw.send(&frame(Kind::Hello, &encode(&Hello { client: 1, nonce, key, name, uid: 0, gids: vec![0] })));
    raw.receive();
    raw.send(&frame(Kind::Proof, &encode(&Proof { proof: [0; 32] })));
    let error = raw.refusal();
    assert!(error.kind == ErrorKind::Denied && error.message.contains("need a key over TCP"), "{error}");
    let handler = Arc::new(Served(Arc::default()));
    let error = listen(&tcp(), handler, Config { key: None, ..config(Role::Manager) }).err().unwrap();
    assert!(error.kind == ErrorKind::Denied && error.message.contains("need a key to listen"), "{error}");
}

/// A version that comes later.
const OTHER: u8 = VERSION as u8 + 1;

#[test]
fn a_foreign_version_is_refused_clearly_by_both_sides() {
    let pool = Pool::new(&tcp());
    let mut bytes = frame(Kind::Hello, b"in a way that is not known here");
    bytes[4] = OTHER;
    let mut raw = Raw::new(&pool.manager.addresses()[0]);
    raw.send(&bytes);
    let error = raw.refusal();
    assert!(
        [VERSION, u16::from(OTHER)]
            .iter()
            .all(|version| error.message.contains(&format!("version {version}"))),
        "{error}"
    );

    // A server of another version answers in its own format, of which only the first six bytes are known.
    let foreign = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let place = [Address::Tcp(foreign.local_addr().unwrap().to_string())];
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        while let Ok((mut stream, _)) = foreign.accept() {
            stream.write_all(&[b'O', b'U', b'T', b'C', OTHER, 0]).unwrap();
            stream.write_all(b" and then something else, of another shape entirely").unwrap();
            let _ = stream.read_to_end(&mut vec![]);
        }
    });
    let error = NetLink::connect(&place, options()).err().unwrap();
    assert!(
        [VERSION, u16::from(OTHER)]
            .iter()
            .all(|version| error.message.contains(&format!("version {version}"))),
        "{error}"
    );
}

#[test]
fn an_address_of_another_server_is_noticed() {
    let pool = Pool::new(&tcp());
    let error = NetLink::connect(pool.server.addresses(), options()).err().unwrap();
    assert!(error.message.contains("need the manager at this address"), "{error}");
}

#[test]
fn a_2_to_the_63_length_and_noise_end_the_connection_and_nothing_else() {
    let pool = Pool::new(&tcp());
    let link = pool.link();
    let mut huge = frame(Kind::IoRequest, b"");
    huge[24..32].copy_from_slice(&(1_u64 << 63).to_le_bytes());
    let crc = crc32c(&huge[..44]);
    huge[44..48].copy_from_slice(&crc.to_le_bytes());
    let mut raw = Raw::introduced(&pool.server.addresses()[0]);
    raw.send(&huge);
    assert!(raw.refusal().message.contains("at most"));
    for noise in [&b"GET / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html,*/*\r\n\r\n"[..], &[0xFF; 300]] {
        let mut raw = Raw::new(&pool.server.addresses()[0]);
        raw.send(noise);
        until("noise ends the connection", || raw.is_over());
    }
    // An unreadable record is answered, and the connection stays open.
    let mut raw = Raw::introduced(&pool.server.addresses()[0]);
    for _ in 0..2 {
        raw.send(&frame(Kind::IoRequest, &[1, 2, 3]));
        let (header, control) = raw.receive();
        assert_eq!(header.kind, Kind::IoReply);
        assert_eq!(failure(decode(&control).unwrap()).kind, ErrorKind::Corrupt);
    }
    assert_eq!(write(&link, 1, 0, &[1]), IoReply::Done, "others notice nothing");
}

#[test]
fn a_stale_socket_is_taken_over_and_a_live_one_is_not() {
    let root = tempfile::tempdir().unwrap();
    let place = [Address::Unix(root.path().join("io.sock"))];
    drop(std::os::unix::net::UnixListener::bind(root.path().join("io.sock")).unwrap());
    let handler = Arc::new(Served(Arc::default()));
    let first = listen(&place, handler.clone(), config(Role::Manager)).unwrap();
    let error = listen(&place, handler, config(Role::Manager)).err().unwrap();
    assert!(error.kind == ErrorKind::Busy && error.message.contains("io.sock"), "{error}");
    first.stop();
}

/// A client without a key uses the UNIX socket, although the TCP address of the same server refuses first.
#[test]
fn one_address_that_refuses_does_not_stand_for_the_others() {
    let root = tempfile::tempdir().unwrap();
    let near: Address = format!("unix:{}", root.path().join("near").display()).parse().unwrap();
    let pool = Pool::new(&[tcp()[0].clone(), near.clone()]);
    let slow = root.path().join("slow");
    let far = pool.server.addresses()[0].to_string();
    *pool.files.addresses.lock().unwrap() = vec![far, format!("unix:{}", slow.display())];
    let listener = UnixListener::bind(&slow).unwrap();
    let tcp = traffic(&pool.server);
    thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        until("the client has tried the TCP address", || tcp().accepted > 0 && tcp().open == 0);
        let Address::Unix(near) = near else { unreachable!() };
        let server = UnixStream::connect(near).unwrap();
        let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from, &mut to));
        let _ = std::io::copy(&mut &server, &mut &client);
    });
    let manager = listen_near(root.path(), &pool);
    let link = NetLink::connect(manager.addresses(), with(Credentials::Peer)).unwrap();
    assert_eq!(write(&link, 1, 0, &[1; 10]), IoReply::Done);
    assert_eq!(read(&link, 1, 0, 10), [1; 10]);
}

fn listen_near(root: &Path, pool: &Pool) -> outcore_net::Listening {
    let place: Address = format!("unix:{}", root.join("manager").display()).parse().unwrap();
    listen(&[place], Arc::new(Served(pool.files.clone())), config(Role::Manager)).unwrap()
}
