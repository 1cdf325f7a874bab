//! A served pool, from its daemons to a client's volume.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outcore_client::PoolVolume;
use outcore_core::{
    ErrorKind, Handle, IoReply, IoRequest, Link, ManagerReply, ManagerRequest, OpenMode, Operation, Result,
    ScrubPlace, ServerId, Volume, conformance,
};
use outcore_memory::Region;
use outcore_net::{Credentials, Key, NetLink, Options, User};
use outcored::{IoDaemon, IoSettings, ManagerDaemon, ManagerSettings, Settings, serve_io, serve_manager};

use crate::daemon::{
    directory, end, io_settings, manager_settings, pattern, region, spawn, tcp, transfer, wall_clock,
};

struct Pool {
    root: tempfile::TempDir,
    key: Key,
    manager: ManagerDaemon,
    servers: Vec<IoDaemon>,
}

impl Pool {
    fn new(servers: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let key = Key::random().unwrap();
        let settings = manager_settings(directory(root.path(), "0"), &key);
        let manager = serve_manager(&settings).unwrap();
        let start = |i: usize| {
            let directory = directory(root.path(), &i.to_string());
            serve_io(&io_settings(directory, manager.addresses(), &key)).unwrap()
        };
        let servers = (0..servers).map(start).collect();
        Self { root, key, manager, servers }
    }

    fn volume(&self, credentials: Credentials) -> Result<PoolVolume<NetLink>> {
        let link = NetLink::connect(self.manager.addresses(), Options::new(credentials))?;
        PoolVolume::new(Arc::new(link), wall_clock())
    }

    fn own_volume(&self) -> PoolVolume<NetLink> {
        self.volume(Credentials::Pool { key: self.key.clone(), user: User::own() }).unwrap()
    }
}

#[test]
fn a_served_pool_conforms() {
    let pool = Pool::new(3);
    assert_eq!(pool.servers.iter().map(IoDaemon::server).collect::<Vec<_>>(), [0, 1, 2].map(ServerId));
    conformance::volume(&pool.own_volume(), &region, &|| std::thread::sleep(Duration::from_millis(20)));
    for server in pool.servers {
        server.stop();
    }
    pool.manager.stop();
}

#[test]
fn files_survive_their_daemons() {
    let Pool { root, key, manager, mut servers } = Pool::new(2);
    let address = manager.addresses().to_vec();
    let credentials = Credentials::Pool { key: key.clone(), user: User::own() };
    let link = NetLink::connect(&address, Options::new(credentials)).unwrap();
    let volume = PoolVolume::new(Arc::new(link), wall_clock()).unwrap();
    let file = volume.open("a/b", OpenMode::Create { length: 500_000, reserve: false }).unwrap();
    let data = pattern(500_000);
    transfer(&volume, file, Operation::Write, 0, &data).unwrap();
    transfer(&volume, file, Operation::Sync, 0, &[]).unwrap();

    // One of the servers restarts at the same address. Requests made meanwhile succeed afterwards.
    let stopped = servers.remove(1);
    let listen = stopped.addresses().to_vec();
    stopped.stop();
    let again = IoSettings { listen, ..io_settings(root.path().join("1"), &address, &key) };
    let reading = std::thread::scope(|scope| {
        let reading = scope.spawn(|| transfer(&volume, file, Operation::Read, 0, &vec![0; 500_000]));
        servers.push(serve_io(&again).unwrap());
        reading.join().unwrap()
    });
    assert_eq!(reading.unwrap(), data);
    assert_eq!(servers[1].server(), ServerId(1), "as its directory says");

    // A directory has at most one server at a time.
    let error = serve_io(&IoSettings { listen: tcp(), ..again }).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Busy);
    let settings = manager_settings(root.path().join("0"), &key);
    assert_eq!(serve_manager(&settings).err().unwrap().kind, ErrorKind::Busy);
}

#[test]
fn servers_that_join_at_one_moment_get_numbers_of_their_own() {
    let mut pool = Pool::new(1);
    let join = |i: usize| {
        let directory = directory(pool.root.path(), &format!("new{i}"));
        serve_io(&io_settings(directory, pool.manager.addresses(), &pool.key)).unwrap()
    };
    let joined: Vec<IoDaemon> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6).map(|i| scope.spawn(move || join(i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut numbers: Vec<u32> = joined.iter().map(|server| server.server().0).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    pool.servers.extend(joined);
    conformance::volume(&pool.own_volume(), &region, &|| std::thread::sleep(Duration::from_millis(20)));
}

#[test]
fn an_empty_directory_does_not_take_the_place_of_a_server() {
    let pool = Pool::new(1);
    let as_server = |name: &str, number| IoSettings {
        server: Some(ServerId(number)),
        ..io_settings(directory(pool.root.path(), name), pool.manager.addresses(), &pool.key)
    };
    let error = serve_io(&as_server("new", 0)).err().unwrap();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("is empty, and the pool has a server 0"), "{error}");
    let chosen = serve_io(&as_server("new", 5)).unwrap();
    assert_eq!(chosen.server(), ServerId(5));
    chosen.stop();
    assert_eq!(serve_io(&as_server("new", 5)).unwrap().server(), ServerId(5), "its own directory");
}

#[test]
fn only_root_checks_a_server() {
    let pool = Pool::new(1);
    let (me, other) = (User::own(), User { name: "u".into(), uid: 12345, gids: vec![12345] });
    let requests = || {
        let from = ScrubPlace { handle: Handle(0), offset: 0 };
        [
            IoRequest::Scrub { from, most_bytes: 1 },
            IoRequest::DataFiles { after: Handle(0), most: 1 },
            IoRequest::Inspect { handles: vec![Handle(1)] },
            IoRequest::Metrics,
        ]
    };
    let ask = |credentials: &Credentials, request: IoRequest| {
        let link = NetLink::connect(pool.manager.addresses(), Options::new(credentials.clone())).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        link.io(
            ServerId(0),
            request,
            Region::empty(),
            Box::new(move |answer| sender.send(answer.reply).unwrap()),
        );
        receiver.recv().unwrap()
    };
    let of_other = Credentials::User { key: pool.key.of_user(&other), user: other };
    let of_pool = Credentials::Pool { key: pool.key.clone(), user: me };
    for request in requests() {
        let refused = ask(&of_other, request.clone());
        assert!(matches!(&refused, IoReply::Failed(error) if error.kind == ErrorKind::Denied), "{refused:?}");
        assert!(!matches!(ask(&of_pool, request), IoReply::Failed(_)));
    }
}

#[test]
fn what_a_user_may_do_is_what_the_key_says() {
    let pool = Pool::new(1);
    let user = |name: &str, uid| User { name: name.into(), uid, gids: vec![uid] };
    let of = |user: &User| Credentials::User { key: pool.key.of_user(user), user: user.clone() };
    let own = pool.own_volume();
    own.open("mine", OpenMode::Create { length: 10, reserve: false }).unwrap();
    let eve = pool.volume(of(&user("eve", 4242))).unwrap();
    let denied = eve.open("mine", OpenMode::ReadWrite).unwrap_err();
    assert_eq!(denied.kind, ErrorKind::Denied, "{denied}");
    let denied = eve.open("hers", OpenMode::Create { length: 10, reserve: false }).unwrap_err();
    assert_eq!(denied.kind, ErrorKind::Denied, "{denied}");
    eve.open("mine", OpenMode::Read).unwrap();

    // An ordinary user cannot add servers.
    let link = NetLink::connect(pool.manager.addresses(), Options::new(of(&user("eve", 4242)))).unwrap();
    let server = outcore_core::ServerAddress { id: ServerId(0), addresses: vec!["tcp:evil:1".into()] };
    let reply = outcore_core::Link::manager(
        &link,
        outcore_core::ManagerRequest::AddServer { server, highest: outcore_core::Handle(0) },
    )
    .unwrap();
    assert!(matches!(reply, outcore_core::ManagerReply::Failed(error) if error.kind == ErrorKind::Denied));
    let stranger = Credentials::Pool { key: Key::random().unwrap(), user: User::own() };
    assert_eq!(pool.volume(stranger).err().unwrap().kind, ErrorKind::Denied);
}

#[test]
fn servers_listen_where_clients_can_find_them() {
    let pool = Pool::new(1);
    for everywhere in ["tcp:0.0.0.0:0", "tls:0.0.0.0:0"] {
        let settings = IoSettings {
            listen: vec![everywhere.parse().unwrap()],
            ..io_settings(directory(pool.root.path(), "9"), pool.manager.addresses(), &pool.key)
        };
        let error = serve_io(&settings).err().unwrap();
        assert!(error.message.contains("advertise ="), "{error}");
    }
    let other =
        IoSettings { server: Some(ServerId(5)), ..io_settings(pool.root.path().join("9"), &[], &pool.key) };
    let other = IoSettings { manager: pool.manager.addresses().to_vec(), ..other };
    let error = serve_io(&other).err().unwrap();
    assert!(error.message.contains("is of server 1, the settings say 5"), "{error}");
}

#[test]
fn settings_are_read_strictly() {
    let root = tempfile::tempdir().unwrap();
    let key_file = root.path().join("key");
    Key::random().unwrap().save(&key_file).unwrap();
    let common =
        format!("directory = \"/mnt/a\"\nlisten = \"tcp:a:1\"\nkey_file = \"{}\"\n", key_file.display());
    let io = |text: &str| IoSettings::from_settings(Settings::from_text(text, "f").unwrap());
    let settings =
        io(&format!("{common}manager = [\"tcp:m:7171\"]\nserver = 7\nmemory_bytes = 67_108_864")).unwrap();
    assert_eq!((settings.server, settings.memory_bytes), (Some(ServerId(7)), Some(64 << 20)));
    assert_eq!(settings.manager[0].to_string(), "tcp:m:7171");
    for (text, expected) in [
        (common.clone(), "need manager = "),
        (common.replace("directory", "folder"), "need directory = "),
        (common.replace("tcp:a:1", "a:1"), "have \"a:1\""),
        (common.replace(&key_file.display().to_string(), "/nowhere"), "cannot read the key file /nowhere"),
        (format!("{common}manager = \"tcp:m:1\"\nserver = 4294967296"), "below 2^32"),
        (format!("{common}manager = \"tcp:m:1\"\nthreads = 0"), "threads of 1 to 256"),
        (format!("{common}manager = \"tcp:m:1\"\nthread = 4"), "thread is no setting"),
    ] {
        let error = io(&text).unwrap_err();
        assert!(error.message.contains(expected), "{text}: {error}");
    }
    let manager = |text: &str| ManagerSettings::from_settings(Settings::from_text(text, "f").unwrap());
    assert!(manager(&common).is_ok());
    assert!(manager(&format!("{common}manager = \"tcp:m:1\"")).is_err());
}

/// A daemon as a process, and its output line.
#[test]
fn the_binary_says_where_it_listens_and_stops_when_told() {
    let root = tempfile::tempdir().unwrap();
    let key_file = root.path().join("key");
    let key = Key::random().unwrap();
    key.save(&key_file).unwrap();
    let (a, b) = (directory(root.path(), "a"), directory(root.path(), "b"));
    let of = |directory: &Path, listen: &str| {
        format!(
            "directory = \"{}\"\nlisten = \"{listen}\"\nkey_file = \"{}\"\n",
            directory.display(),
            key_file.display()
        )
    };
    let socket = root.path().join("manager.sock");
    let place = format!("unix:{}", socket.display());
    let (manager, line) = spawn("manager", &of(&a, &place), root.path());
    assert!(line.starts_with("outcored: manager of pool ") && line.trim().ends_with(&place), "{line}");
    let io = format!("{}manager = \"{place}\"\n", of(&b, "tcp:127.0.0.1:0"));
    let (server, line) = spawn("io", &io, root.path());
    assert!(line.contains("I/O server 0 of pool ") && line.contains("tcp:127.0.0.1:"), "{line}");

    let connect = || {
        let credentials = Credentials::Pool { key: key.clone(), user: User::own() };
        let link = NetLink::connect(&[place.parse().unwrap()], Options::new(credentials)).unwrap();
        PoolVolume::new(Arc::new(link), wall_clock()).unwrap()
    };
    let volume = connect();
    let file = volume.open("f", OpenMode::Create { length: 100_000, reserve: false }).unwrap();
    transfer(&volume, file, Operation::Write, 0, &pattern(100_000)).unwrap();
    transfer(&volume, file, Operation::Sync, 0, &[]).unwrap();
    drop(volume);

    // The server is killed and restarted: synced data are there.
    end(server, 9);
    let (server, _) = spawn("io", &io, root.path());
    let volume = connect();
    let file = volume.open("f", OpenMode::Read).unwrap();
    assert_eq!(transfer(&volume, file, Operation::Read, 0, &vec![0; 100_000]).unwrap(), pattern(100_000));
    assert!(end(server, 15).success());
    assert!(end(manager, 15).success());
    assert!(!socket.exists());
}

#[test]
fn a_client_is_told_when_a_server_was_killed_before_a_sync() {
    let root = tempfile::tempdir().unwrap();
    let key_file = root.path().join("key");
    let key = Key::random().unwrap();
    key.save(&key_file).unwrap();
    let settings = manager_settings(directory(root.path(), "m"), &key);
    let manager = serve_manager(&settings).unwrap();
    let text = format!(
        "directory = \"{}\"\nlisten = \"unix:{}\"\nkey_file = \"{}\"\nmanager = \"{}\"\n",
        directory(root.path(), "d").display(),
        root.path().join("io.sock").display(),
        key_file.display(),
        manager.addresses()[0]
    );
    let (server, _) = spawn("io", &text, root.path());
    let credentials = Credentials::Pool { key, user: User::own() };
    let link = NetLink::connect(manager.addresses(), Options::new(credentials)).unwrap();
    let volume = PoolVolume::new(Arc::new(link), wall_clock()).unwrap();
    // 20 MB, so that each server gets parts of the write in several messages.
    let data = pattern(20_000_000);
    let file = volume.open("f", OpenMode::Create { length: data.len() as u64, reserve: false }).unwrap();
    transfer(&volume, file, Operation::Write, 0, &data).unwrap();
    end(server, 9);
    let (server, _) = spawn("io", &text, root.path());
    let error = transfer(&volume, file, Operation::Sync, 0, &[]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Lost, "{error}");
    assert!(error.message.contains("I/O server 0 was restarted after a write to f"), "{error}");
    transfer(&volume, file, Operation::Write, 0, &data).unwrap();
    transfer(&volume, file, Operation::Sync, 0, &[]).unwrap();
    // Synced data need no repetition.
    end(server, 9);
    let (server, _) = spawn("io", &text, root.path());
    transfer(&volume, file, Operation::Sync, 0, &[]).unwrap();
    assert_eq!(transfer(&volume, file, Operation::Read, 0, &vec![0; data.len()]).unwrap(), data);
    assert!(end(server, 15).success());
}

#[test]
fn names_are_made_once_however_often_the_manager_is_killed() {
    let root = tempfile::tempdir().unwrap();
    let key_file = root.path().join("key");
    let key = Key::random().unwrap();
    key.save(&key_file).unwrap();
    let place = format!("unix:{}", root.path().join("manager.sock").display());
    let text = format!(
        "directory = \"{}\"\nlisten = \"{place}\"\nkey_file = \"{}\"\n",
        directory(root.path(), "m").display(),
        key_file.display(),
    );
    let (manager, _) = spawn("manager", &text, root.path());
    let credentials = || Credentials::Pool { key: key.clone(), user: User::own() };
    let connect = || NetLink::connect(&[place.parse().unwrap()], Options::new(credentials())).unwrap();
    let links: Vec<NetLink> = (0..4).map(|_| connect()).collect();
    let is_over = AtomicBool::new(false);
    // Directories are created and renamed, and every second one is removed. Executing a request twice would be an
    // error.
    let work = &|worker: usize, link: &NetLink| {
        let mut made = 0;
        while !is_over.load(Ordering::SeqCst) {
            let (path, to) = (format!("{worker}-{made}"), format!("{worker}-{made}-new"));
            let steps = [
                ManagerRequest::MakeDirectory { path: path.clone(), mode: 0o755 },
                ManagerRequest::Rename {
                    from: path,
                    to: to.clone(),
                    durable: vec![],
                    generations: vec![],
                    description: None,
                },
                ManagerRequest::Remove { path: to, recursive: false },
            ];
            for request in steps.into_iter().take(2 + made % 2) {
                match link.manager(request.clone()) {
                    Ok(ManagerReply::Failed(error)) | Err(error) => {
                        return Err(format!("{request:?}: {error}"));
                    }
                    Ok(_) => {}
                }
            }
            made += 1;
        }
        Ok(made)
    };
    let (manager, made) = std::thread::scope(|scope| {
        let mut running = manager;
        let workers: Vec<_> =
            links.iter().enumerate().map(|(i, link)| scope.spawn(move || work(i, link))).collect();
        for _ in 0..8 {
            std::thread::sleep(Duration::from_millis(60));
            end(running, 9);
            running = spawn("manager", &text, root.path()).0;
        }
        is_over.store(true, Ordering::SeqCst);
        let made: std::result::Result<Vec<usize>, String> =
            workers.into_iter().map(|worker| worker.join().unwrap()).collect();
        (running, made)
    });
    let names = PoolVolume::new(Arc::new(connect()), wall_clock()).and_then(|volume| volume.names(""));
    // Stop the daemon before any assertion fails.
    assert!(end(manager, 15).success());
    let made = made.unwrap();
    let mut found: Vec<String> = names.unwrap().into_iter().map(|named| named.name).collect();
    let mut left: Vec<String> =
        (0..4).flat_map(|i| (0..made[i]).step_by(2).map(move |k| format!("{i}-{k}-new"))).collect();
    found.sort();
    left.sort();
    assert!(found == left && left.len() > 8, "{found:?} {left:?}");
}

#[test]
fn a_daemon_that_cannot_start_says_why() {
    let root = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_outcored")).args(arguments).output().unwrap();
        (out.status.success(), String::from_utf8(out.stderr).unwrap())
    };
    let (fine, said) = run(&["serve"]);
    assert!(!fine && said.contains("outcored manager --config FILE"), "{said}");
    let file = root.path().join("none.conf");
    let (fine, said) = run(&["io", "--config", file.to_str().unwrap()]);
    assert!(!fine && said.contains("cannot read the settings"), "{said}");
}
