//! I/O servers that resume at another address, which they report to the manager.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::wire::Role;
use outcore_core::*;
use outcore_memory::Region;
use outcore_net::{Address, Listening, NetLink, Options, listen};

use crate::pool::*;
use crate::proxy::Proxy;

type Calls = Vec<mpsc::Receiver<Answer<Region>>>;

/// Starts the server of a pool at another address, and reports it to the manager.
fn serve_again(pool: &Arc<Files>, places: &[Address]) -> Listening {
    let server = listen(places, Arc::new(Served(pool.clone())), config(Role::IoServer(SERVER))).unwrap();
    *pool.addresses.lock().unwrap() = server.addresses().iter().map(Address::to_string).collect();
    server
}

/// Writes in flight, each to its own file.
fn writes(link: &NetLink) -> Calls {
    let data = |i: u64| region(&pattern(i as usize, 100_000));
    (0..8).map(|i| start(link, write_of(i, 0, 100_000), data(i))).collect()
}

fn check(link: &NetLink, calls: &Calls) {
    for (i, call) in calls.iter().enumerate() {
        assert_eq!(wait(call).reply, IoReply::Done);
        assert_eq!(read(link, i as u64, 0, 100_000), pattern(i, 100_000));
    }
}

/// A pool whose manager is behind a proxy, and a client of it.
fn behind_proxy() -> (Pool, Proxy, NetLink) {
    let pool = Pool::new(&tcp());
    let proxy = Proxy::new(&pool.manager.addresses()[0]);
    let link = NetLink::connect(std::slice::from_ref(&proxy.address), options()).unwrap();
    (pool, proxy, link)
}

/// Waits until a client has tried to reach its manager twice more. It does so when it has lost a server.
fn until_tried_in_vain(proxy: &Proxy) {
    let before = proxy.came();
    until("the client has looked for the manager", || proxy.came() > before + 1);
}

#[test]
fn calls_go_on_where_a_server_has_moved_and_the_manager_is_asked_only_where_it_is_lost() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        check(&link, &writes(&link));
        let Pool { files, manager: _manager, server } = pool;
        assert_eq!(files.asked(), 1, "to connect");
        let lost = Instant::now();
        server.stop();
        let calls = writes(&link);
        // The server is down for some time.
        until("the manager is asked", || files.asked() > 3);
        let times = files.asked() as u32 - 1;
        // 20 ms after the first request, and then twice as long each time.
        let least = Duration::from_millis(20) * (2_u32.pow(times - 1) - 1);
        assert!(lost.elapsed() >= least, "{times} times in {:?}", lost.elapsed());
        let server = serve_again(&files, &places);
        check(&link, &calls);
        let asked_then = files.asked();
        check(&link, &writes(&link));
        assert_eq!(files.asked(), asked_then);
        // Move it again.
        server.stop();
        let calls = writes(&link);
        let _server = serve_again(&files, &places);
        check(&link, &calls);
    }
}

#[test]
fn a_write_that_was_being_done_is_not_done_twice_over_another_address() {
    let pool = Pool::new(&tcp());
    let straight = pool.files.addresses.lock().unwrap().clone();
    let proxy = Proxy::new(&pool.server.addresses()[0]);
    *pool.files.addresses.lock().unwrap() = vec![proxy.address.to_string()];
    let link =
        NetLink::connect(pool.manager.addresses(), Options { connections_per_address: 1, ..options() })
            .unwrap();
    (0..3).for_each(|i| assert_eq!(write(&link, i, 0, &[1]), IoReply::Done));
    pool.files.shut_gate(true);
    let writing = start(&link, write_of(1, 0, 1), region(&[2]));
    until("the server is at it", || pool.files.under_way() == 1);
    let traffic = traffic(&pool.server);
    let before = traffic().received_bytes;
    *pool.files.addresses.lock().unwrap() = straight;
    proxy.end();
    until("it has come again", || pool.files.asked() > 1 && traffic().received_bytes > before);
    // The server takes the requests of a connection in order, so that it has taken that one before this.
    let later = start(&link, IoRequest::Await { collective: 7, rank: 0, round: Some(0) }, Region::empty());
    until("the server has taken a later one", || pool.files.waits.lock().unwrap().len() == 1);
    assert_eq!(pool.files.under_way(), 1);
    pool.files.end_waits();
    assert_eq!(wait(&later).reply, IoReply::Done);
    pool.files.shut_gate(false);
    assert_eq!(wait(&writing).reply, IoReply::Done);
    assert_eq!(pool.files.writes.load(Ordering::SeqCst), 4);
    assert_eq!(read(&link, 1, 0, 1), [2]);
}

#[test]
fn who_answers_in_the_place_of_a_server_that_has_moved_does_not_stand_for_it() {
    // One link that has used the server, and one that has not.
    for is_used in [true, false] {
        let pool = Pool::new(&tcp());
        let link = pool.link();
        if is_used {
            assert_eq!(write(&link, 1, 0, &[1]), IoReply::Done);
        }
        let Pool { files, manager: _manager, server } = pool;
        let places = server.addresses().to_vec();
        server.stop();
        let other = Arc::new(Served(Arc::<Files>::default()));
        let listening = listen(&places, other.clone(), config(Role::IoServer(ServerId(9)))).unwrap();
        let mut server = (!is_used).then(|| serve_again(&files, &tcp()));
        let calls = writes(&link);
        if is_used {
            until("the manager has confirmed the old address", || files.asked() > 2);
            // Each of the two channels tries once at a time, so that one has then been refused.
            let (traffic, tried) = (traffic(&listening), traffic(&listening)().accepted);
            until("the client has tried again", || traffic().accepted > tried + 2);
            server = Some(serve_again(&files, &tcp()));
        }
        check(&link, &calls);
        drop(server);
        assert_eq!(other.0.writes.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn a_program_that_is_no_server_does_not_stand_for_one_that_has_moved() {
    let pool = Pool::new(&tcp());
    let link = pool.link();
    assert_eq!(write(&link, 1, 0, &[1]), IoReply::Done);
    let Pool { files, manager: _manager, server } = pool;
    let Address::Tcp(place) = server.addresses()[0].clone() else { unreachable!() };
    server.stop();
    let other = TcpListener::bind(place).unwrap();
    let answered = Arc::<AtomicUsize>::default();
    let count = answered.clone();
    thread::spawn(move || {
        while let Ok((mut stream, _)) = other.accept() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&[b"HTTP/1.1 400 Bad Request\r\n\r\n", &[b'x'; 100][..]].concat());
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    let calls = writes(&link);
    // After the manager has confirmed the old address.
    until("it has answered", || files.asked() > 2 && answered.load(Ordering::SeqCst) > 3);
    let _server = serve_again(&files, &tcp());
    check(&link, &calls);
}

#[test]
fn calls_go_on_when_the_manager_was_away_too() {
    let (pool, proxy, link) = behind_proxy();
    assert_eq!(write(&link, 1, 0, &[1]), IoReply::Done);
    let Pool { files, manager, server } = pool;
    let place = manager.addresses().to_vec();
    manager.stop();
    server.stop();
    let calls = writes(&link);
    until_tried_in_vain(&proxy);
    let _server = serve_again(&files, &tcp());
    until_tried_in_vain(&proxy);
    let _manager = listen(&place, Arc::new(Served(files.clone())), config(Role::Manager)).unwrap();
    check(&link, &calls);
}

#[test]
fn who_closes_a_pool_does_not_wait_for_servers_that_are_looked_for() {
    let (pool, proxy, link) = behind_proxy();
    assert_eq!(write(&link, 1, 0, &[1]), IoReply::Done);
    let Pool { manager, server, .. } = pool;
    manager.stop();
    server.stop();
    let calls = writes(&link);
    until_tried_in_vain(&proxy);
    drop(link);
    for call in &calls {
        assert_eq!(failure(wait(call).reply).kind, ErrorKind::Closed);
    }
}

#[test]
fn who_waits_for_a_server_is_told_when_it_is_retired_and_may_call_others() {
    let pool = Pool::new(&tcp());
    let link = Arc::new(pool.link());
    assert_eq!(write(&link, 1, 0, &[1]), IoReply::Done);
    let Pool { files, manager: _manager, server } = pool;
    server.stop();
    let (sender, receiver) = mpsc::channel();
    let again = link.clone();
    let done = Box::new(move |answer: Answer<Region>| {
        let then = again.is_retired(SERVER);
        sender.send((answer.reply, then)).unwrap();
    });
    link.io(SERVER, write_of(1, 0, 1), region(&[2]), done);
    files.is_retired.store(true, Ordering::SeqCst);
    let (reply, is_retired) = receiver.recv_timeout(3 * LONG).unwrap();
    assert!(failure(reply).message.contains("was retired"));
    assert!(is_retired);
}
