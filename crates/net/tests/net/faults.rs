//! Connections that die, hang, or damage bytes.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::wire::{Kind, Role};
use outcore_core::*;
use outcore_net::{Address, Config, NetLink, Options};

use crate::bytes::{Raw, frame, frame_of_write, numbered_write};
use crate::pool::*;
use crate::proxy::Proxy;

/// Makes the pool's I/O server reachable through proxies only.
fn behind(pool: &Pool, count: usize) -> Vec<Proxy> {
    let proxies: Vec<Proxy> = (0..count).map(|_| Proxy::new(&pool.server.addresses()[0])).collect();
    *pool.files.addresses.lock().unwrap() = proxies.iter().map(|p| p.address.to_string()).collect();
    proxies
}

/// A client with these options soon closes a connection without an answer, even if the machine is merely busy.
fn one_channel_each() -> Options {
    Options { connections_per_address: 1, least_silence: Duration::from_millis(400), ..options() }
}

/// Makes calls until each proxy has carried one.
fn use_all(link: &NetLink, proxies: &[Proxy]) {
    // Many more bytes than a client sends before its first call.
    let bytes = 50_000;
    until("all channels are up", || {
        let calls = proxies.iter().map(|_| start(link, write_of(9, 0, bytes), region(&pattern(9, 50_000))));
        let calls: Vec<_> = calls.collect();
        assert!(calls.iter().all(|each| wait(each).reply == IoReply::Done));
        proxies.iter().all(|proxy| proxy.carried() as u64 > bytes)
    });
}

fn link(pool: &Pool, options: Options) -> Arc<NetLink> {
    Arc::new(NetLink::connect(pool.manager.addresses(), options).unwrap())
}

#[test]
fn calls_of_a_channel_that_is_cut_complete_on_another() {
    for places in networks() {
        let pool = Pool::new(&places);
        let proxies = behind(&pool, 2);
        let link = link(&pool, one_channel_each());
        write(&link, 1, 0, &[1]);
        until("both channels are up", || proxies.iter().all(|proxy| proxy.accepted() > 0));
        let is_over = Arc::new(AtomicBool::new(false));
        let proxies = Arc::new(proxies);
        let cutter = {
            let (is_over, proxies) = (is_over.clone(), proxies.clone());
            thread::spawn(move || {
                for i in 0.. {
                    if is_over.load(Ordering::SeqCst) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(60));
                    proxies[i % 2].cut();
                }
            })
        };
        let connections = || proxies.iter().map(Proxy::accepted).sum::<usize>();
        let mut round = 0;
        while round < 3 || connections() <= 10 {
            let calls: Vec<_> = (0..8_u64)
                .map(|i| {
                    (i, start(&link, write_of(i, 0, 300_000), region(&pattern(round + i as usize, 300_000))))
                })
                .collect();
            for (i, each) in &calls {
                assert_eq!(wait(each).reply, IoReply::Done, "{i} in round {round}");
            }
            for i in 0..8 {
                assert_eq!(read(&link, i, 0, 300_000), pattern(round + i as usize, 300_000));
            }
            round += 1;
        }
        is_over.store(true, Ordering::SeqCst);
        cutter.join().unwrap();
    }
}

#[test]
fn a_half_open_connection_is_given_up_and_its_calls_complete_on_another() {
    for places in networks() {
        let pool = Pool::new(&places);
        let proxies = behind(&pool, 2);
        let link = link(&pool, one_channel_each());
        use_all(&link, &proxies);
        proxies[0].hold(true);
        let begun = Instant::now();
        // While the other channel has calls too, some of them go to this one.
        pool.files.shut_gate(true);
        let mut calls = vec![];
        until("the proxy holds a call", || {
            calls.extend((0..20).map(|i| start(&link, write_of(1, i * 10, 10), region(&[i as u8; 10]))));
            proxies[0].holding().is_some()
        });
        let held = proxies[0].holding().unwrap();
        pool.files.shut_gate(false);
        assert!(calls.iter().all(|each| wait(each).reply == IoReply::Done));
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        // The held bytes arrive at last, and must change nothing.
        until("the client is back", || proxies[0].accepted() > held + 1);
        assert_eq!(write(&link, 1, 0, &[0xAB; 200]), IoReply::Done);
        proxies[0].hold(false);
        until("the server has received them", || proxies[0].is_over(held));
        until("the server is done", || pool.files.under_way() == 0);
        assert_eq!(read(&link, 1, 0, 200), [0xAB; 200]);
    }
}

#[test]
fn what_a_given_up_connection_holds_does_not_undo_later_writes() {
    let pool = Pool::new(&tcp());
    let proxies = behind(&pool, 1);
    let straight = pool.server.addresses()[0].to_string();
    let link = link(&pool, one_channel_each());
    write(&link, 1, 0, &[1; 10]);
    proxies[0].hold(true);
    let old = start(&link, write_of(1, 0, 10), region(&[2; 10]));
    until("the proxy holds the write", || proxies[0].holding().is_some());
    let held = proxies[0].holding().unwrap();
    // The proxy would forward nothing of a new connection, so that the client needs another address.
    pool.files.addresses.lock().unwrap().push(straight);
    proxies[0].accept_no_more();
    assert_eq!(wait(&old).reply, IoReply::Done);
    assert_eq!(write(&link, 1, 0, &[3; 10]), IoReply::Done);
    assert_eq!(proxies[0].holding(), Some(held), "the old write is still on its way");
    proxies[0].hold(false);
    until("the server has received it", || proxies[0].is_over(held));
    until("the server is done", || pool.files.under_way() == 0);
    assert_eq!(read(&link, 1, 0, 10), [3; 10]);
}

#[test]
fn a_write_that_comes_late_is_not_done() {
    let pool = Pool::new(&tcp());
    let place = &pool.server.addresses()[0];
    let (mut old, mut new) = (Raw::introduced_as(place, 5), Raw::introduced_as(place, 5));
    let ask = |raw: &mut Raw, request, settled, byte| -> IoReply {
        raw.send(&numbered_write(request, settled, 1, 0, &[byte; 10]));
        outcore_core::wire::decode(&raw.receive().1).unwrap()
    };
    assert_eq!(ask(&mut new, 1, 1, 1), IoReply::Done);
    assert_eq!(ask(&mut old, 1, 1, 9), IoReply::Done, "answered as before, and not done again");
    assert_eq!(ask(&mut new, 2, 2, 2), IoReply::Done);
    assert!(failure(ask(&mut old, 1, 1, 9)).message.contains("so late"));
    assert_eq!(pool.files.writes.load(Ordering::SeqCst), 2);
    assert_eq!(read(&pool.link(), 1, 0, 10), [2; 10]);
}

#[test]
fn damage_on_the_way_is_noticed_and_the_request_repeated() {
    for places in networks() {
        let pool = Pool::new(&places);
        let proxies = behind(&pool, 1);
        let link = link(&pool, one_channel_each());
        write(&link, 1, 0, &[1]);
        let data = pattern(3, 100_000);
        for at in [3, 20, 60, 200, 250, 5_000, 90_000] {
            let (connections, writes) = (proxies[0].accepted(), pool.files.writes.load(Ordering::SeqCst));
            proxies[0].damage_after(at);
            assert_eq!(write(&link, 1, 0, &data), IoReply::Done, "damage at {at}");
            assert_eq!(read(&link, 1, 0, data.len()), data, "damage at {at}");
            assert!(proxies[0].accepted() > connections, "dropped after damage at {at}");
            assert_eq!(pool.files.writes.load(Ordering::SeqCst), writes + 1, "damage at {at}");
        }
    }
}

#[test]
fn a_server_that_comes_back_is_found_again() {
    for places in networks() {
        let pool = Pool::new(&places);
        let address = pool.server.addresses().to_vec();
        let link = pool.link();
        write(&link, 1, 0, &[1; 10]);
        let Pool { files, manager: _manager, server } = pool;
        server.stop();
        let call = start(&link, write_of(1, 0, 10), region(&[2; 10]));
        // The client asks the manager when it has found no server.
        until("the client has tried in vain", || files.asked() > 1);
        let again = Arc::new(Served(files.clone()));
        let _server = outcore_net::listen(&address, again, config(Role::IoServer(SERVER))).unwrap();
        assert_eq!(wait(&call).reply, IoReply::Done);
        assert_eq!(read(&link, 1, 0, 10), [2; 10]);
    }
}

/// Starts another run of a server, at the same addresses.
fn again(files: &Arc<Files>, places: &[Address], run: u64) -> outcore_net::Listening {
    let config = Config { incarnation: Incarnation(run), ..config(Role::IoServer(SERVER)) };
    outcore_net::listen(places, Arc::new(Served(files.clone())), config).unwrap()
}

#[test]
fn answers_say_which_run_of_a_server_they_are_of() {
    let of_server = Config { incarnation: Incarnation(7), ..config(Role::IoServer(SERVER)) };
    let pool = Pool::with(&tcp(), of_server);
    let address = pool.server.addresses().to_vec();
    let link = pool.link();
    let small = || start(&link, write_of(1, 0, 10), region(&[1; 10]));
    let large = || start(&link, write_of(1, 0, 40 << 20), region(&vec![1; 40 << 20]));
    assert_eq!(wait(&small()).incarnation, Incarnation(7));
    assert_eq!(wait(&large()).incarnation, Incarnation(7), "of all parts");
    let Pool { files, manager: _manager, server } = pool;
    server.stop();
    // Not sent yet: the next run executes it, and says so.
    let call = small();
    let server = again(&files, &address, 8);
    assert_eq!(wait(&call).incarnation, Incarnation(8));
    // This run executes some parts of a large request, and the next run the others: no run has all of it.
    files.delay_us.store(100_000, Ordering::SeqCst);
    let before = files.writes.load(Ordering::SeqCst);
    let call = large();
    until("a part is done", || files.writes.load(Ordering::SeqCst) > before);
    server.stop();
    let _server = again(&files, &address, 9);
    let answer = wait(&call);
    assert_eq!((answer.reply, answer.incarnation), (IoReply::Done, Incarnation::NONE));
    assert_eq!(wait(&large()).incarnation, Incarnation(9));
}

#[test]
fn a_server_that_does_not_come_back_is_an_error_in_time() {
    let pool = Pool::new(&tcp());
    // On a busy machine a server that is there may need long to answer.
    let link = [500, 5_000, 50_000].into_iter().find_map(|patience_ms| {
        let patience = Duration::from_millis(patience_ms);
        let link = NetLink::connect(pool.manager.addresses(), Options { patience, ..options() }).ok()?;
        (write(&link, 1, 0, &[1; 10]) == IoReply::Done).then_some(link)
    });
    let link = link.expect("a server that answers");
    let place = pool.server.addresses()[0].to_string();
    pool.server.stop();
    let begun = Instant::now();
    let error = failure(write(&link, 1, 0, &[2; 10]));
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(error.message.contains("is the server running"), "{error}");
    assert!(
        error.message.starts_with(&format!("I/O server {}: no connection to {place} ", SERVER.0)),
        "{error}"
    );
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
}

#[test]
fn a_client_that_dies_mid_write_changes_nothing_and_holds_nothing() {
    for places in networks() {
        let memory_bytes = 400_000;
        let pool = Pool::with(&places, Config { memory_bytes, ..config(Role::IoServer(SERVER)) });
        let link = pool.link();
        write(&link, 1, 0, &[1; 100_000]);
        for _ in 0..20 {
            let mut raw = Raw::introduced(&pool.server.addresses()[0]);
            let frame = frame_of_write(1, 0, &[2; 100_000]);
            raw.send(&frame[..60_000]);
        }
        assert_eq!(read(&link, 1, 0, 100_000), [1; 100_000]);
        let calls: Vec<_> =
            (0..4).map(|_| start(&link, write_of(2, 0, 100_000), region(&[3; 100_000]))).collect();
        assert!(calls.iter().all(|each| wait(each).reply == IoReply::Done), "all of the memory is there");
        assert_eq!(read(&link, 1, 0, 100_000), [1; 100_000]);
    }
}

#[test]
fn a_slow_client_does_not_stall_others() {
    for places in networks() {
        // With much patience the server still has the slow clients when it has served the others.
        for patience in [2 * LONG, Duration::from_millis(700)] {
            let memory_bytes = 400_000;
            let pool =
                Pool::with(&places, Config { memory_bytes, patience, ..config(Role::IoServer(SERVER)) });
            let traffic = traffic(&pool.server);
            let frame = frame_of_write(1, 0, &[2; 100_000]);
            // Three connections of one client that stop in the middle of a frame, and six that announce a payload
            // and send none.
            let client = 99;
            let mut slow: Vec<Raw> =
                (0..3).map(|_| Raw::introduced_as(&pool.server.addresses()[0], client)).collect();
            slow.iter_mut().for_each(|raw| raw.send(&frame[..60_000]));
            let announced = frame.len() - 100_000;
            let mut silent: Vec<Raw> = (0..6).map(|_| Raw::introduced(&pool.server.addresses()[0])).collect();
            silent.iter_mut().for_each(|raw| raw.send(&frame[..announced]));
            until("the server has begun with all of them", || {
                traffic().received_bytes == 9 * announced as u64
            });
            if patience > LONG {
                let watcher = pool.server.watcher();
                until("one holds memory for which two wait", || watcher.waiting() == 2);
            }
            let link = pool.link();
            let begun = Instant::now();
            for _ in 0..20 {
                assert_eq!(write(&link, 2, 0, &[3; 100_000]), IoReply::Done);
            }
            if patience > LONG {
                assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
            } else {
                until("who moves nothing is cut off", || {
                    slow.iter_mut().chain(&mut silent).all(Raw::is_over)
                });
            }
        }
    }
}

/// Connections of one user, each of a different client, that announce large writes and send bytes slowly.
#[test]
fn who_sends_slowly_keeps_no_memory_for_which_others_wait() {
    for is_user in [true, false] {
        let (memory_bytes, patience) = (400_000, Duration::from_secs(6));
        let pool = Pool::with(&tcp(), Config { memory_bytes, patience, ..config(Role::IoServer(SERVER)) });
        let frame = frame_of_write(1, 0, &[2; 100_000]);
        let announced = frame.len() - 100_000;
        let is_over = Arc::new(AtomicBool::new(false));
        let (began, begins) = mpsc::channel();
        let threads: Vec<_> = (0..12)
            .map(|_| {
                let address = &pool.server.addresses()[0];
                let mut raw = if is_user { Raw::user(address, 4242) } else { Raw::introduced(address) };
                let (frame, is_over, began) = (frame.clone(), is_over.clone(), began.clone());
                thread::spawn(move || {
                    raw.send(&frame[..announced + 1]);
                    began.send(()).unwrap();
                    // Far too often to be disconnected for silence, and it never completes.
                    for byte in announced + 1..frame.len() - 1 {
                        thread::sleep(Duration::from_millis(20));
                        if is_over.load(Ordering::SeqCst) || raw.try_send(&frame[byte..=byte]).is_err() {
                            return;
                        }
                    }
                })
            })
            .collect();
        (0..12).for_each(|_| begins.recv().unwrap());
        let link = pool.link();
        for _ in 0..3 {
            assert_eq!(write(&link, 2, 0, &[3; 100_000]), IoReply::Done);
        }
        assert_eq!(read(&link, 2, 0, 100_000), [3; 100_000]);
        is_over.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    }
}

#[test]
fn who_does_not_say_who_he_is_is_cut_off_however_slowly_he_goes_on() {
    for places in networks() {
        let patience = Duration::from_millis(300);
        let pool = Pool::with(&places, Config { patience, ..config(Role::IoServer(SERVER)) });
        let place = pool.server.addresses()[0].to_string();
        let (_, place) = place.split_once(':').unwrap();
        // A correct start, one byte at a time: a frame, or a record of TLS.
        let mut start = frame(Kind::Hello, &[0; 60_000]);
        if matches!(places[0], Address::Tls(_)) {
            start = [&[22, 3, 1, 0x3F, 0xFF, 1, 0, 0x3F, 0xF0][..], &[0; 50_000]].concat();
        }
        let mut stream = TcpStream::connect(place).unwrap();
        let begun = Instant::now();
        for byte in start {
            if stream.write_all(&[byte]).is_err() {
                break;
            }
            assert!(begun.elapsed() < LONG, "still there");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn mutations_of_the_manager_are_done_once() {
    let pool = Pool::new(&tcp());
    let proxy = Proxy::new(&pool.manager.addresses()[0]);
    let link = Arc::new(NetLink::connect(std::slice::from_ref(&proxy.address), options()).unwrap());
    pool.files.shut_gate(true);
    let (sender, receiver) = mpsc::channel();
    let caller = link.clone();
    thread::spawn(move || {
        let request = ManagerRequest::MakeDirectory { path: "a".into(), mode: 0o755 };
        sender.send(caller.manager(request)).unwrap();
    });
    until("the manager is at it", || pool.files.under_way() == 1);
    // The connection dies while the manager works on the request; the client retries it on the next
    // connection.
    let traffic = traffic(&pool.manager);
    let before = traffic().received_bytes;
    proxy.cut();
    until("the client is back", || proxy.accepted() > 1);
    until("the request has come again", || traffic().received_bytes > before);
    // The manager takes the requests of a connection in order, so that it has taken that one before this.
    assert!(matches!(link.manager(ManagerRequest::Servers), Ok(ManagerReply::Servers { .. })));
    assert_eq!(pool.files.under_way(), 1);
    pool.files.shut_gate(false);
    let reply = receiver.recv_timeout(LONG).unwrap();
    assert_eq!(reply, Ok(ManagerReply::Done));
    assert_eq!(pool.files.creates.load(Ordering::SeqCst), 1);
}

#[test]
fn an_address_that_leads_nowhere_does_no_harm() {
    let pool = Pool::new(&tcp());
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    pool.files.addresses.lock().unwrap().insert(0, Address::Tcp(nowhere.to_string()).to_string());
    let link = pool.link();
    assert_eq!(write(&link, 1, 0, &[1; 10]), IoReply::Done);
}
