//! The requests of a group share their reads.

use outcore_core::{Hints, ManagerReply, ManagerRequest, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, Manager, Now, User};
use outcore_server::store::PostgresStore;

use super::server::Gate;
use super::shared;

fn asked(request: ManagerRequest) -> Asked {
    Asked { who: User { uid: 0, gids: vec![0], is_root: true }, origin: None, request }
}

fn create(path: String) -> Asked {
    asked(ManagerRequest::Create { path, hints: Hints::default(), mode: 0o644 })
}

#[test]
fn a_group_waits_for_the_database_as_often_as_one_request() {
    let Some(server) = shared() else { return };
    let (gate, name) = (Gate::before(server), server.database());
    let open = || {
        let store = PostgresStore::open(&gate.url(&name)).unwrap();
        let mut manager = Manager::open(store, Key::new([1; 32]), Config::new(1)).unwrap();
        manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] }).unwrap();
        // The first request of a manager reserves handles.
        do_all(&mut manager, vec![create(format!("first/of-{}", gate.waits()))]);
        manager
    };
    let waits = |requests: Vec<Asked>| {
        let mut manager = open();
        let before = gate.waits();
        do_all(&mut manager, requests);
        gate.waits() - before
    };
    let creates = |run: &'static str, files: usize| {
        (0..files).map(move |file| create(format!("a/b{}/c/{run}-{file}", file % 3))).collect()
    };
    // The directories exist then.
    waits(creates("first", 3));
    let one = waits(creates("one", 1));
    assert_eq!(waits(creates("many", 100)), one);
    // Begin, four names, the last file itself, the writes, and commit.
    assert!(one <= 9, "{one}");
    let rename = |file: usize| {
        let (from, to) = (format!("a/b{}/c/many-{file}", file % 3), format!("a/b{}/c/new-{file}", file % 3));
        asked(ManagerRequest::Rename { from, to, durable: vec![], generations: vec![], description: None })
    };
    let one = waits(vec![rename(0)]);
    assert_eq!(waits((1..100).map(rename).collect()), one);
    assert!(one <= 10, "{one}");
}

fn do_all(manager: &mut Manager<PostgresStore>, requests: Vec<Asked>) {
    for reply in manager.handle_many(Now { unix_ns: 1, running_ns: 0 }, requests) {
        assert!(!matches!(reply, ManagerReply::Failed(_)), "{reply:?}");
    }
}
