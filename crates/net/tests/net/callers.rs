//! Concurrent callers of the manager on one connection, which receive each other's answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use outcore_core::*;
use outcore_net::{Address, NetLink};

use crate::pool::*;
use crate::proxy::Proxy;

const CALLERS: usize = 6;
const CALLS: usize = 150;

fn make_directory() -> ManagerRequest {
    ManagerRequest::MakeDirectory { path: "a".into(), mode: 0o755 }
}

/// Sends a request that depends on `number`, and checks the answer.
fn ask(link: &NetLink, number: usize) -> bool {
    match number % 3 {
        0 => matches!(link.manager(ManagerRequest::Servers), Ok(ManagerReply::Servers { .. })),
        1 => matches!(link.manager(ManagerRequest::NewServer), Ok(ManagerReply::Failed(_))),
        _ => link.manager(make_directory()) == Ok(ManagerReply::Done),
    }
}

/// Each of many callers gets its own answers, and all of them.
fn call_much(link: &Arc<NetLink>) {
    let (sender, receiver) = mpsc::channel();
    for number in 0..CALLERS {
        let (link, sender) = (link.clone(), sender.clone());
        thread::spawn(move || sender.send((0..CALLS).all(|call| ask(&link, number + call))));
    }
    for _ in 0..CALLERS {
        assert_eq!(receiver.recv_timeout(3 * LONG), Ok(true));
    }
}

#[test]
fn each_gets_its_own_answers() {
    for (of_manager, delay_us) in [(tcp(), 0), (tcp(), 300), (tls(), 300)] {
        let pool = Pool::with_manager_at(&of_manager);
        pool.files.delay_us.store(delay_us, Ordering::SeqCst);
        let link = pool.link();
        call_much(&Arc::new(link));
    }
}

#[test]
fn a_connection_that_is_cut_costs_nobody_an_answer() {
    let pool = Pool::new(&tcp());
    pool.files.delay_us.store(2000, Ordering::SeqCst);
    let proxy = Proxy::new(&pool.manager.addresses()[0]);
    let link = Arc::new(NetLink::connect(std::slice::from_ref(&proxy.address), options()).unwrap());
    let proxy = Arc::new(proxy);
    let is_over = Arc::new(AtomicBool::new(false));
    let cutter = {
        let (is_over, proxy) = (is_over.clone(), proxy.clone());
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(80));
                proxy.cut();
            }
        })
    };
    // On a fast machine all calls may complete before the connection is cut.
    while proxy.accepted() <= 2 {
        call_much(&link);
    }
    is_over.store(true, Ordering::SeqCst);
    cutter.join().unwrap();
}

#[test]
fn who_waits_long_keeps_nobody_from_his_answer() {
    let pool = Pool::new(&tcp());
    let link = Arc::new(pool.link());
    pool.files.shut_gate(true);
    let slow = |number| {
        let link = link.clone();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || sender.send(link.manager(make_directory())));
        until("the manager is at it", || pool.files.under_way() == number);
        receiver
    };
    let (first, second) = (slow(1), slow(2));
    assert!((0..20).all(|_| ask(&link, 0)));
    pool.files.shut_gate(false);
    for receiver in [first, second] {
        assert_eq!(receiver.recv_timeout(3 * LONG), Ok(Ok(ManagerReply::Done)));
    }
}

#[test]
fn a_manager_that_went_away_and_came_back_while_nobody_asked_is_found() {
    let root = tempfile::tempdir().unwrap();
    for place in [tcp(), vec![Address::Unix(root.path().join("manager.sock"))]] {
        let pool = Pool::with_manager_at(&place);
        let link = pool.link();
        assert!(ask(&link, 2));
        let Pool { files, manager, server: _server } = pool;
        let address = manager.addresses().to_vec();
        // The manager has ended its connections when this returns.
        manager.stop();
        let again = Arc::new(Served(files.clone()));
        let _manager =
            outcore_net::listen(&address, again, config(outcore_core::wire::Role::Manager)).unwrap();
        assert!((0..6).all(|number| ask(&link, number)));
        assert_eq!(files.creates.load(Ordering::SeqCst), 3);
    }
}
