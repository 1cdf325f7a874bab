//! The durable lengths of files, as clients report them.

use outcore_core::{Durable, ErrorKind, Handle, Hints, ManagerReply, ManagerRequest, Result};
use outcore_server::manager::{Manager, User};
use outcore_server::store::MemoryStore;

use crate::pool::*;

struct Told {
    manager: Manager<MemoryStore>,
    handle: Handle,
}

impl Told {
    /// A file on two servers.
    fn new() -> Self {
        let mut manager = pool();
        let hints = Hints { stripe_count: Some(2), ..Hints::default() };
        let request = ManagerRequest::Create { path: "f".into(), hints, mode: 0o644 };
        let handle = opened(ask(&mut manager, &user(1, &[1]), request).unwrap()).inode.handle;
        Self { manager, handle }
    }

    fn ask_as(&mut self, who: &User, request: ManagerRequest) -> Result<Durable> {
        match ask(&mut self.manager, who, request)? {
            ManagerReply::Inode(inode) => Ok(inode.durable),
            other => panic!("answered by {other:?}"),
        }
    }

    fn ask(&mut self, request: ManagerRequest) -> Durable {
        self.ask_as(&user(1, &[1]), request).unwrap()
    }

    fn tell(&mut self, cuts: u64, lengths: &[u64]) -> Vec<u64> {
        let durable = lengths.to_vec();
        self.report(cuts, durable, vec![]).lengths
    }

    fn report(&mut self, cuts: u64, durable: Vec<u64>, generations: Vec<u64>) -> Durable {
        let handle = self.handle;
        self.ask(ManagerRequest::Wrote { handle, modified_ns: None, cuts, durable, generations })
    }

    fn begin(&mut self, lengths: &[u64]) -> Durable {
        self.ask(ManagerRequest::BeginCut { handle: self.handle, lengths: lengths.to_vec() })
    }

    fn end(&mut self) -> Durable {
        self.ask(ManagerRequest::EndCut { handle: self.handle })
    }
}

fn durable(lengths: &[u64], cuts: u64, cuts_done: u64) -> Durable {
    Durable { lengths: lengths.to_vec(), cuts, cuts_done, generations: vec![] }
}

#[test]
fn the_end_of_a_truncation_sets_the_time_of_the_last_write() {
    let mut told = Told::new();
    let handle = told.handle;
    let mut times = |request| match ask(&mut told.manager, &user(1, &[1]), request).unwrap() {
        ManagerReply::Inode(inode) => (inode.modified_ns, inode.changed_ns),
        other => panic!("answered by {other:?}"),
    };
    let before = times(ManagerRequest::Describe { handle });
    // It rises whatever the clock says.
    for _ in 0..2 {
        let begun = times(ManagerRequest::BeginCut { handle, lengths: vec![0, 0] });
        let ended = times(ManagerRequest::EndCut { handle });
        assert!(begun.0 >= before.0 && ended.0 > begun.0);
    }
}

#[test]
fn what_several_clients_tell_is_kept_together() {
    let mut told = Told::new();
    assert_eq!(told.tell(0, &[]), Vec::<u64>::new());
    assert_eq!(told.tell(0, &[10, 0]), [10, 0]);
    assert_eq!(told.tell(0, &[5, 7]), [10, 7], "who knows less takes nothing back");
    assert_eq!(
        opened(ask(&mut told.manager, &root(), open_file("f", false)).unwrap()).inode.durable,
        durable(&[10, 7], 0, 0)
    );
}

#[test]
fn what_is_told_late_does_not_count() {
    let mut told = Told::new();
    told.tell(0, &[100, 100]);
    assert_eq!(told.begin(&[10, 20]), durable(&[10, 20], 1, 0));
    assert_eq!(told.tell(0, &[100, 100]), [10, 20], "it may be cut off since");
    assert_eq!(told.tell(1, &[100, 100]), [10, 20], "it may be cut off right now");
    assert_eq!(told.begin(&[50, 5]), durable(&[10, 5], 2, 0));
    told.end();
    assert_eq!(told.tell(2, &[100, 100]), [10, 5], "somebody is not done yet");
    assert_eq!(told.end(), durable(&[10, 5], 2, 2));
    assert_eq!(told.tell(1, &[100, 100]), [10, 5]);
    assert_eq!(told.tell(2, &[30, 0]), [30, 5], "who has seen it all is believed");
    assert_eq!(told.end(), durable(&[30, 5], 2, 2), "nobody ends what was not begun");
}

#[test]
fn a_file_made_empty_has_nothing_to_miss() {
    let mut told = Told::new();
    told.tell(0, &[100, 100]);
    assert_eq!(told.begin(&[0, 0]), durable(&[], 1, 0));
}

#[test]
fn a_name_is_given_with_what_is_durable() {
    let mut told = Told::new();
    let (from, to) = ("f".to_owned(), "g".to_owned());
    let who = user(1, &[1]);
    ask(
        &mut told.manager,
        &who,
        ManagerRequest::Rename { from, to, durable: vec![4, 5], generations: vec![2], description: None },
    )
    .unwrap();
    let known = told.ask(ManagerRequest::Describe { handle: told.handle });
    assert_eq!(known, Durable { generations: vec![2, 0], ..durable(&[4, 5], 0, 0) });
}

#[test]
fn who_may_not_write_tells_nothing() {
    let mut told = Told::new();
    let (handle, other) = (told.handle, user(2, &[2]));
    for request in [
        ManagerRequest::Wrote {
            handle,
            modified_ns: None,
            cuts: 0,
            durable: vec![1, 1],
            generations: vec![],
        },
        ManagerRequest::BeginCut { handle, lengths: vec![0, 0] },
        ManagerRequest::EndCut { handle },
    ] {
        assert_eq!(told.ask_as(&other, request).unwrap_err().kind, ErrorKind::Denied);
    }
    assert_eq!(told.ask_as(&other, ManagerRequest::Describe { handle }), Ok(Durable::default()));
}

#[test]
fn lengths_that_no_data_file_has_are_refused() {
    let mut told = Told::new();
    let (handle, who) = (told.handle, user(1, &[1]));
    // More lengths than data files, or lengths with which the file would reach beyond 2^63 bytes.
    for durable in [vec![1; 3], vec![1 << 63, 0], vec![0, (1 << 62) + (1 << 40)], vec![u64::MAX]] {
        for request in [
            ManagerRequest::Wrote {
                handle,
                modified_ns: None,
                cuts: 0,
                durable: durable.clone(),
                generations: vec![],
            },
            ManagerRequest::BeginCut { handle, lengths: durable.clone() },
            ManagerRequest::Rename {
                from: "f".into(),
                to: "g".into(),
                durable: durable.clone(),
                generations: vec![],
                description: None,
            },
        ] {
            assert_eq!(told.ask_as(&who, request).unwrap_err().kind, ErrorKind::Invalid, "{durable:?}");
        }
    }
    assert_eq!(told.tell(0, &[1 << 61, 1 << 61]), [1 << 61, 1 << 61], "which is 2^62 bytes");
}

#[test]
fn generations_rise_and_a_truncation_forgets_them() {
    let mut told = Told::new();
    assert_eq!(told.report(0, vec![], vec![3, 0]).generations, [3, 0]);
    assert_eq!(told.report(0, vec![9, 9], vec![2, 5]).generations, [3, 5]);
    assert_eq!(told.report(1, vec![], vec![8, 8]).generations, [3, 5], "of another number of truncations");
    let handle = told.handle;
    let many = ManagerRequest::Wrote {
        handle,
        modified_ns: None,
        cuts: 0,
        durable: vec![],
        generations: vec![1; 3],
    };
    assert_eq!(told.ask_as(&user(1, &[1]), many).unwrap_err().kind, ErrorKind::Invalid);
    assert!(told.begin(&[4, 4]).generations.is_empty());
    assert!(told.report(0, vec![], vec![7, 7]).generations.is_empty());
    told.end();
    assert_eq!(told.report(1, vec![], vec![4, 6]).generations, [4, 6]);
}
