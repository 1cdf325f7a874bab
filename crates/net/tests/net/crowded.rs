//! More connections than a server may have: the ones that it ends, and the ones that it keeps.

use std::env;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use outcore_core::wire::*;
use outcore_core::*;
use outcore_net::{Address, Config};

use crate::bytes::{Raw, frame, frame_of_write, numbered_write};
use crate::pool::*;

/// Maximum number of connections of the servers here; a quarter is for clients that prove their key.
const MOST: usize = 8;
const MOST_ADMITTED: usize = 6;

fn crowded(places: &[Address]) -> Pool {
    Pool::with(places, Config { connections: MOST, ..config(Role::IoServer(SERVER)) })
}

/// A connection that the server has accepted, and whose client proves no key.
fn unproven(address: &Address) -> Raw {
    let mut raw = Raw::new(address);
    let (name, nonce) = ("mallory".into(), [5; 32]);
    let hello = Hello { client: 1, nonce, key: KeyKind::Pool, name, uid: 1, gids: vec![1] };
    raw.send(&frame(Kind::Hello, &encode(&hello)));
    assert_eq!(raw.receive().0.kind, Kind::Challenge);
    raw
}

/// Waits for the answer to a request, on a connection that the server must not have ended.
fn ask(raw: &mut Raw) {
    raw.send(&frame(Kind::IoRequest, &encode(&IoRequest::Length { target: target(1), grant: grant() })));
    while raw.receive().0.kind == Kind::Working {}
}

/// An admitted connection, once the server has room for it.
fn eventually_introduced(address: &Address) -> Raw {
    let mut admitted = None;
    until("the server has room", || {
        let mut raw = Raw::new(address);
        raw.introduce(1, &KEY);
        if raw.receive().0.kind == Kind::Welcome {
            admitted = Some(raw);
        }
        admitted.is_some()
    });
    admitted.unwrap()
}

#[test]
fn clients_without_a_key_take_no_admitted_client_its_connection() {
    for places in networks() {
        let pool = crowded(&places);
        let address = &pool.server.addresses()[0];
        let mut admitted: Vec<Raw> = (0..MOST_ADMITTED).map(|_| Raw::introduced(address)).collect();
        let mut others: Vec<Raw> = (0..3 * MOST).map(|_| unproven(address)).collect();
        admitted.iter_mut().for_each(ask);
        // The oldest of them end, and the newest ones stay.
        let kept = others.split_off(others.len() - (MOST - MOST_ADMITTED));
        for mut other in others {
            until("the server ends the connection", || other.is_over());
        }
        for mut other in kept {
            assert!(!other.is_over());
        }
    }
}

#[test]
fn a_client_with_the_key_takes_the_place_of_the_one_that_was_idle_longest() {
    let pool = crowded(&tcp());
    let address = &pool.server.addresses()[0];
    let mut admitted: Vec<Raw> = (0..MOST_ADMITTED).map(|_| Raw::introduced(address)).collect();
    ask(&mut admitted[0]);
    let _without = unproven(address);
    let mut latest = Raw::introduced(address);
    until("the server ends the connection", || admitted[1].is_over());
    admitted.remove(1);
    admitted.iter_mut().for_each(ask);
    ask(&mut latest);
}

#[test]
fn a_client_that_comes_while_all_are_at_work_is_told_so() {
    let pool = crowded(&tcp());
    let address = &pool.server.addresses()[0];
    pool.files.shut_gate(true);
    let mut admitted: Vec<Raw> = (0..MOST_ADMITTED).map(|_| Raw::introduced(address)).collect();
    for (number, raw) in admitted.iter_mut().enumerate() {
        raw.send(&frame_of_write(number as u64, 0, &[1; 10]));
    }
    until("all are at work", || pool.files.under_way() == MOST_ADMITTED);
    let mut late = Raw::new(address);
    late.introduce(1, &KEY);
    let error = late.refusal();
    assert!(error.kind == ErrorKind::Busy && error.message.contains("try later"), "{error}");
    pool.files.shut_gate(false);
    for raw in &mut admitted {
        while raw.receive().0.kind == Kind::Working {}
    }
}

#[test]
fn connections_that_have_ended_do_not_count() {
    let pool = crowded(&tcp());
    let address = &pool.server.addresses()[0];
    pool.files.shut_gate(true);
    for number in 1..=MOST as u64 {
        let before = pool.files.under_way();
        let mut goes = eventually_introduced(address);
        goes.send(&numbered_write(number, 1, number, 0, &[1; 10]));
        until("the request runs", || pool.files.under_way() > before);
        drop(goes);
    }
    let mut comes = eventually_introduced(address);
    pool.files.shut_gate(false);
    ask(&mut comes);
}

/// File descriptors of the server below. Its limit of connections is far above.
const DESCRIPTORS: usize = 40;
const FEW: &str = "OUTCORE_TEST_FEW_DESCRIPTORS";

/// Runs in a separate process with few descriptors, for the test below: a server until its input ends.
#[test]
#[ignore = "a part of the test below"]
fn server_with_few_descriptors() {
    if env::var_os(FEW).is_none() {
        return;
    }
    let pool = Pool::new(&tcp());
    println!("\n{}", pool.server.addresses()[0]);
    std::io::stdout().flush().unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

struct Few {
    child: Child,
    _said: Lines<BufReader<ChildStdout>>,
}

impl Few {
    fn start() -> (Self, Address) {
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -n {DESCRIPTORS} && exec \"$@\""), "sh"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", "crowded::server_with_few_descriptors", "--ignored", "--nocapture"])
            .env(FEW, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = said.by_ref().map(|line| line.unwrap()).find(|line| line.starts_with("tcp:")).unwrap();
        (Self { child, _said: said }, address.parse().unwrap())
    }
}

impl Drop for Few {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn a_server_without_descriptors_ends_connections_in_the_same_order() {
    let (_server, address) = Few::start();
    let mut admitted: Vec<Raw> = (0..5).map(|_| Raw::introduced(&address)).collect();
    let mut others: Vec<Raw> = (0..2 * DESCRIPTORS).map(|_| unproven(&address)).collect();
    admitted.iter_mut().for_each(ask);
    assert!(!others.last_mut().unwrap().is_over());
    drop(others);
    // Clients with the key take each other's place, because nothing else is left to end.
    let mut last = Vec::new();
    for _ in 0..2 * DESCRIPTORS {
        last.push(Raw::introduced(&address));
    }
    for mut raw in admitted {
        until("the server ends the connection", || raw.is_over());
    }
    last.iter_mut().rev().take(5).for_each(ask);
    // Now all descriptors belong to admitted clients.
    for _ in 0..DESCRIPTORS {
        unproven(&address);
    }
    last.iter_mut().rev().take(5).for_each(ask);
}
