//! Bytes in both directions, with one client and many.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use outcore_core::wire::{Header, Kind, Role, decode, encode};
use outcore_core::*;
use outcore_memory::{Arena, Region, Segment};
use outcore_net::{Address, Config};

use crate::bytes::{Raw, RawServer};
use crate::pool::*;
use crate::proxy::Proxy;

pub fn there_and_back(places: &[Address]) {
    let pool = Pool::new(places);
    let links = [pool.link(), pool.link()];
    assert_eq!(links[0].pool(), 77);
    for (i, link) in links.iter().enumerate() {
        for bytes in [1, 511, 70_000, 3 << 20] {
            let data = pattern(i, bytes);
            assert_eq!(write(link, i as u64, 5, &data), IoReply::Done);
            assert_eq!(read(link, i as u64, 5, bytes), data);
            assert_eq!(read(&links[1 - i], i as u64, 5, bytes), data, "seen by the other client");
        }
    }
    let length = call(&links[0], IoRequest::Length { target: target(1), grant: grant() }, Region::empty());
    assert_eq!(length.reply, IoReply::Length(5 + (3 << 20)));
    assert!(length.finished_ns >= length.started_ns);
}

#[test]
fn over_tcp() {
    there_and_back(&tcp());
}

#[test]
fn over_a_unix_socket() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("io.sock");
    there_and_back(&[Address::Unix(path.clone())]);
    assert!(!path.exists(), "the socket goes with its server");
}

#[test]
fn over_both_at_once() {
    let root = tempfile::tempdir().unwrap();
    let mut places = tcp();
    places.extend(tcp());
    places.push(Address::Unix(root.path().join("io.sock")));
    there_and_back(&places);
}

#[test]
fn memory_in_many_runs_is_sent_and_filled_where_it_is() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        // More runs than one system call takes.
        let block = Arc::new(Arena::new(64 << 10).allocate(40_000).unwrap());
        let segments: Vec<_> = (0..3000).map(|i| Segment { offset: 13 * i, bytes: 1 + i % 12 }).collect();
        let mut scattered = Region::new(block.clone(), segments.clone()).unwrap();
        let data = pattern(1, scattered.len());
        scattered.copy_in(0, &data);
        let request = write_of(1, 0, data.len() as u64);
        assert_eq!(call(&link, request, scattered).reply, IoReply::Done);
        assert_eq!(read(&link, 1, 0, data.len()), data);

        Region::whole(block.clone()).copy_in(0, &[0xEE; 40_000]);
        let into = Region::new(block.clone(), segments.clone()).unwrap();
        let answer = call(&link, read_of(1, 0, data.len() as u64), into);
        assert_eq!(bytes_of(&answer.buffer), data);
        let whole = bytes_of(&Region::whole(block));
        let between = segments.windows(2).flat_map(|s| s[0].offset + s[0].bytes..s[1].offset);
        assert!(between.into_iter().all(|at| whole[at] == 0xEE), "and nothing beside");
    }
}

#[test]
fn strided_requests_move_their_bytes_only() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        write(&link, 1, 0, &pattern(0, 3000));
        let regions = Regions::strided(400, 300, 500, 2, 800, 400).unwrap();
        let request = IoRequest::Read { target: target(1), grant: grant(), regions: regions.clone() };
        let answer = call(&link, request, region(&[0; 1700]));
        let all = pattern(0, 3000);
        let expected: Vec<u8> =
            regions.runs().flat_map(|r| all[r.offset as usize..][..r.length as usize].to_vec()).collect();
        assert_eq!(bytes_of(&answer.buffer), expected);
    }
}

#[test]
fn what_is_too_large_for_one_message_goes_as_several() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        let data = pattern(2, 30 << 20);
        assert_eq!(write(&link, 1, 7, &data), IoReply::Done);
        assert_eq!(pool.files.writes.load(Ordering::SeqCst), 8, "messages of 4 MiB");
        // Every second MiB, in reverse.
        let part = |i: u64| Nested { offset: 7 + ((28 - 2 * i) << 20), run_bytes: 1 << 20, levels: vec![] };
        let regions = Regions::new((0..15).map(part).collect()).unwrap();
        let request = IoRequest::Read { target: target(1), grant: grant(), regions };
        let answer = call(&link, request, region(&vec![0; 15 << 20]));
        assert_eq!(answer.reply, IoReply::Done);
        let expected: Vec<u8> =
            (0..15).flat_map(|i| data[(28 - 2 * i) << 20..][..1 << 20].to_vec()).collect();
        assert!(bytes_of(&answer.buffer) == expected);
    }
}

#[test]
fn many_calls_at_once_each_get_their_own_answer() {
    for places in networks() {
        let pool = Pool::new(&places);
        pool.files.delay_us.store(300, Ordering::SeqCst);
        let link = pool.link();
        let calls: Vec<_> = (0..300_u64)
            .map(|i| start(&link, write_of(1, i * 1000, 1000), region(&pattern(i as usize, 1000))))
            .collect();
        assert!(calls.iter().all(|each| wait(each).reply == IoReply::Done));
        let calls: Vec<_> =
            (0..300_u64).map(|i| start(&link, read_of(1, i * 1000, 1000), region(&[0; 1000]))).collect();
        for (i, each) in calls.iter().enumerate() {
            assert_eq!(bytes_of(&wait(each).buffer), pattern(i, 1000), "{i}");
        }
        assert_eq!(pool.files.writes.load(Ordering::SeqCst), 300);
        assert!(pool.files.most_under_way.load(Ordering::SeqCst) > 1, "answered in whatever order");
    }
}

#[test]
fn memory_is_free_when_the_answer_is_there() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        let arena = Arena::new(1 << 20);
        for i in 0..200 {
            // The whole budget: the next round fails if anything still holds memory.
            let block = Arc::new(arena.allocate(1 << 20).unwrap());
            let (sender, receiver) = std::sync::mpsc::channel();
            let done = Box::new(move |answer: Answer<Region>| {
                let reply = answer.reply;
                drop(answer.buffer);
                sender.send(reply).unwrap();
            });
            let request = if i % 2 == 0 { write_of(1, 0, 1 << 20) } else { read_of(1, 0, 1 << 20) };
            link.io(SERVER, request, Region::whole(block), done);
            assert_eq!(receiver.recv(), Ok(IoReply::Done));
        }
    }
}

#[test]
fn an_answer_that_comes_before_all_was_sent_waits_for_the_memory() {
    for server in [RawServer::new(KEY), RawServer::over_tls(KEY)] {
        let pool = Pool::new(&tcp());
        *pool.files.addresses.lock().unwrap() = vec![server.address.to_string()];
        let link = pool.link();
        let bytes = 6 << 20;
        let arena = Arena::new(bytes);
        for _ in 0..5 {
            // More than the sockets buffer: the client is still sending when the answer arrives.
            let block = Arc::new(arena.allocate(bytes).unwrap());
            let answer = call(&link, write_of(1, 0, bytes as u64), Region::whole(block));
            assert_eq!(failure(answer.reply).message, "not today");
            assert_eq!(answer.buffer.len(), bytes);
        }
    }
}

#[test]
fn sixty_four_clients_share_bounded_memory() {
    for places in networks() {
        let memory_bytes = 1 << 20;
        let pool = Pool::with(&places, Config { memory_bytes, ..config(Role::IoServer(SERVER)) });
        pool.files.delay_us.store(1000, Ordering::SeqCst);
        let clients: Vec<_> = (0..64_u64)
            .map(|i| {
                let link = pool.link();
                thread::spawn(move || {
                    let data = pattern(i as usize, 200_000);
                    for round in 0..3 {
                        let calls: Vec<_> = (0..3)
                            .map(|part| start(&link, write_of(i, part * 200_000, 200_000), region(&data)))
                            .collect();
                        assert!(calls.iter().all(|each| wait(each).reply == IoReply::Done), "{round}");
                        assert_eq!(read(&link, i, 200_000, 200_000), data);
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
        assert!(pool.server.peak_bytes() <= memory_bytes, "{}", pool.server.peak_bytes());
        assert!(pool.files.most_under_way.load(Ordering::SeqCst) <= memory_bytes / 200_000);
    }
}

#[test]
fn more_than_a_server_moves_at_once_is_refused_with_its_limit() {
    for places in networks() {
        let pool = Pool::with(&places, Config { memory_bytes: 400_000, ..config(Role::IoServer(SERVER)) });
        let link = pool.link();
        // Before the first answer the client does not know the limit.
        let error = failure(call(&link, write_of(1, 0, 100_001), region(&[1; 100_001])).reply);
        assert_eq!(error.kind, ErrorKind::Budget);
        assert!(error.message.contains("100001") && error.message.contains("100000"), "{error}");
        assert_eq!(link.payload_bytes(SERVER), Ok(100_000));
        assert_eq!(write(&link, 1, 0, &[1; 250_000]), IoReply::Done, "then it divides what is larger");
        assert_eq!(read(&link, 1, 0, 250_000), [1; 250_000]);
    }
}

#[test]
fn long_lists_of_regions_are_bounded_too() {
    for places in networks() {
        let pool = Pool::with(&places, Config { control_bytes: 1 << 20, ..config(Role::IoServer(SERVER)) });
        let link = pool.link();
        let list = |count: u64| {
            let part = |i| Nested { offset: i * 16, run_bytes: 1, levels: vec![] };
            let regions = Regions::new((0..count).map(part).collect()).unwrap();
            let request = IoRequest::Read { target: target(1), grant: grant(), regions };
            call(&link, request, region(&vec![0; count as usize])).reply
        };
        assert_eq!(list(10_000), IoReply::Done);
        assert_eq!(failure(list(20_000)).kind, ErrorKind::Budget);
        assert_eq!(list(10_000), IoReply::Done);
        // Strides that describe too many runs to walk.
        let level = Level { count: 1 << 20, step_bytes: 1 };
        let parts = vec![Nested { offset: 0, run_bytes: 1, levels: vec![level; 2] }];
        let regions = Regions::new(parts).unwrap();
        let request = IoRequest::Read { target: target(1), grant: grant(), regions };
        let error = failure(call(&link, request, region(&[0; 10])).reply);
        assert!(error.message.contains("runs"), "{error}");
    }
}

#[test]
fn what_describes_too_many_runs_goes_as_several() {
    let pool = Pool::new(&tcp());
    let link = pool.link();
    let regions = |count| {
        let levels = vec![Level { count, step_bytes: 4 }];
        Regions::new(vec![Nested { offset: 0, run_bytes: 1, levels }]).unwrap()
    };
    for (count, messages) in [(1 << 20, 1), ((1 << 20) + 1, 2)] {
        let before = pool.files.writes.load(Ordering::SeqCst);
        let request = IoRequest::Write { target: target(1), grant: grant(), regions: regions(count) };
        assert_eq!(call(&link, request, region(&vec![7; count as usize])).reply, IoReply::Done);
        assert_eq!(pool.files.writes.load(Ordering::SeqCst) - before, messages);
    }
    assert_eq!(read(&link, 1, 4 << 20, 2), [7, 0]);
    // A client that does not split it is refused before the server walks the runs: few bytes lie here, of
    // very many runs.
    let mut raw = Raw::introduced(&pool.server.addresses()[0]);
    let stripes = Stripes::new(65_536, 1 << 12).unwrap();
    let target = Target { stripes, ..target(1) };
    let levels = vec![Level { count: 2, step_bytes: 1 << 40 }, Level { count: 1 << 39, step_bytes: 2 }];
    let far = Nested { offset: 0, run_bytes: 1, levels };
    for regions in [regions((1 << 20) + 1), Regions::new(vec![far]).unwrap()] {
        let control = encode(&IoRequest::Read { target, grant: grant(), regions });
        let header = Header { request: 1, settled: 1, ..Header::of(Kind::IoRequest, &control) };
        raw.send(&[&header.encode().unwrap()[..], &control].concat());
        let error = failure(decode::<IoReply>(&raw.receive().1).unwrap());
        assert!(error.kind == ErrorKind::Invalid && error.message.contains("divide the request"), "{error}");
    }
}

#[test]
fn a_slow_disk_is_not_taken_for_a_dead_server() {
    let pool = Pool::new(&tcp());
    let proxy = Proxy::new(&pool.server.addresses()[0]);
    *pool.files.addresses.lock().unwrap() = vec![proxy.address.to_string()];
    let link = pool.link();
    pool.files.delay_us.store(1_500_000, Ordering::SeqCst);
    assert_eq!(write(&link, 1, 0, &[1; 10]), IoReply::Done);
    assert_eq!(proxy.accepted(), 2, "the two connections that it began with");
    assert_eq!(pool.files.writes.load(Ordering::SeqCst), 1, "sent once");
}

#[test]
fn a_server_that_stops_answers_what_it_has() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        write(&link, 1, 0, &[1; 10]);
        pool.files.delay_us.store(200_000, Ordering::SeqCst);
        let call = start(&link, write_of(1, 0, 4), region(&[7; 4]));
        until("the write is under way", || pool.files.under_way() > 0);
        pool.server.stop();
        assert_eq!(wait(&call).reply, IoReply::Done);
        assert_eq!(pool.files.writes.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_closed_link_fails_what_waits() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        pool.files.shut_gate(true);
        let call = start(&link, write_of(1, 0, 4), region(&[7; 4]));
        until("the server is at it", || pool.files.under_way() == 1);
        drop(link);
        assert_eq!(failure(wait(&call).reply).kind, ErrorKind::Closed);
        pool.files.shut_gate(false);
    }
}
