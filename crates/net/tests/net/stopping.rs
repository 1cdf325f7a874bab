//! A server that stops while clients wait for each other.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use outcore_core::wire::{Kind, Role, decode, encode};
use outcore_core::*;
use outcore_memory::Region;
use outcore_net::{Caller, Handler, listen};

use crate::bytes::{Raw, frame};
use crate::pool::*;

/// A handler that answers no request before the server stops.
#[derive(Default)]
struct Waits {
    waiting: Mutex<Vec<OnAnswer<Region>>>,
    ended: AtomicUsize,
}

impl Handler for Waits {
    fn io(&self, _caller: &Caller, _request: IoRequest, _buffer: Region, done: OnAnswer<Region>) {
        self.waiting.lock().unwrap().push(done);
    }

    fn end_waits(&self) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        for done in self.waiting.lock().unwrap().drain(..) {
            let (reply, buffer) = (IoReply::Absent, Region::empty());
            done(Answer { reply, buffer, incarnation: Incarnation::NONE, started_ns: 0, finished_ns: 0 });
        }
    }
}

#[test]
fn who_waits_for_others_is_answered_when_a_server_stops_and_who_went_away_holds_nothing() {
    let handler = Arc::<Waits>::default();
    let server = listen(&tcp(), handler.clone(), config(Role::IoServer(SERVER))).unwrap();
    let waiting = |count| until("requests wait", || handler.waiting.lock().unwrap().len() == count);
    let asks = frame(Kind::IoRequest, &encode(&IoRequest::Status));
    let mut stays = Raw::introduced(&server.addresses()[0]);
    stays.send(&asks);
    waiting(1);
    let mut goes = Raw::introduced(&server.addresses()[0]);
    goes.send(&asks);
    waiting(2);
    drop(goes);
    server.stop();
    assert_eq!(handler.ended.load(Ordering::SeqCst), 1);
    assert_eq!(Arc::strong_count(&handler), 1, "connections that nobody waits for are gone");
    let answer = loop {
        let (header, control) = stays.receive();
        if header.kind == Kind::IoReply {
            break decode::<IoReply>(&control).unwrap();
        }
        assert_eq!(header.kind, Kind::Working);
    };
    assert_eq!(answer, IoReply::Absent);
}
