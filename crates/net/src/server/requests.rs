//! The requests of one connection: reads them, checks them, reserves memory, and passes them on.

use std::sync::Arc;
use std::time::{Duration, Instant};

use outcore_core::wire::{Header, Kind, MAX_RUNS, Refused, decode, encode};
use outcore_core::{
    Error, ErrorKind, IoReply, IoRequest, ManagerReply, ManagerRequest, Origin, Regions, Result, Target,
};
use outcore_memory::{Region, Waiter};

use crate::server::Caller;
use crate::server::admission::{Lease, Owner};
use crate::server::answer::Due;
use crate::server::connection::{Connection, Outgoing};
use crate::server::listening::Shared;
use crate::server::session::{Begin, Session};

/// Control parts up to this length need no lease: a connection has one at a time.
const SHORT_CONTROL_BYTES: usize = 16 << 10;

/// Memory of regions per byte on the wire, including that byte.
const BYTES_IN_MEMORY: usize = 4;

/// Maximum time to send the reason to a refused client.
const TIME_TO_REFUSE: Duration = Duration::from_secs(1);

/// The requests of one connection.
pub(crate) struct Requests {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connection: Arc<Connection>,
    pub(crate) session: Arc<Session<Arc<Connection>>>,
    pub(crate) caller: Caller,
    /// The number that the client chose for itself.
    pub(crate) client: u128,
}

impl Requests {
    /// Reads requests until the connection ends. A client that violates the protocol gets the reason.
    pub(crate) fn serve(&self) {
        loop {
            let connection = &self.connection;
            let header = match connection.socket.receive_header(&connection.watch()) {
                Ok(Some(header)) => header,
                Ok(None) => return,
                Err(error) => return self.give_up(&error),
            };
            if let Err(error) = self.take(&header) {
                return self.give_up(&error);
            }
        }
    }

    fn give_up(&self, error: &Error) {
        // After loss or damage on a connection, a correct client retries on another.
        if error.kind == ErrorKind::Invalid && self.connection.owe().is_ok() {
            let control = Arc::new(encode(&Refused { error: error.clone() }));
            let (kind, payload) = (Kind::Refused, Region::empty());
            self.connection.answer(Outgoing { kind, request: 0, control, payload, leases: vec![] });
            self.connection.drain(Instant::now() + TIME_TO_REFUSE);
        }
    }

    /// Reads one request and starts it. An error ends the connection.
    fn take(&self, header: &Header) -> Result<()> {
        let is_io = match header.kind {
            Kind::IoRequest => true,
            Kind::ManagerRequest => false,
            kind => return Err(Error::invalid(format!("need a request, have a frame of kind {kind:?}"))),
        };
        self.connection.owe()?;
        let mut due = Due {
            connection: self.connection.clone(),
            session: self.session.clone(),
            is_io,
            request: header.request,
            is_remembered: false,
            leases: vec![],
            is_owed: false,
        };
        let length = header.control_bytes as usize;
        if length > SHORT_CONTROL_BYTES {
            let controls = &self.shared.controls;
            match controls.take(self.owner(), length.saturating_mul(BYTES_IN_MEMORY)) {
                Ok(lease) => due.leases.push(lease),
                Err(error) => return self.refuse_unread(header, u64::from(header.control_bytes), due, error),
            }
        }
        let connection = &self.connection;
        let control = connection.socket.receive_control(header, &connection.watch_holding(&due.leases))?;
        self.connection.channel.received(header.frame_bytes() - header.payload_bytes);
        if is_io { self.take_io(header, &control, due) } else { self.take_manager(header, &control, due) }
    }

    /// Answers with an error, and discards the unread rest of the request.
    fn refuse_unread(&self, header: &Header, unread_control: u64, due: Due, error: Error) -> Result<()> {
        let unread = unread_control + header.payload_bytes;
        self.connection.socket.discard(unread, &self.connection.watch_holding(&due.leases))?;
        due.failed(error);
        Ok(())
    }

    fn take_io(&self, header: &Header, control: &[u8], mut due: Due) -> Result<()> {
        let request = match decode::<IoRequest>(control) {
            Ok(request) => request,
            Err(error) => return self.refuse_unread(header, 0, due, error),
        };
        let bytes = match self.payload_of(&request, header) {
            Ok(bytes) => bytes,
            Err(error) => return self.refuse_unread(header, 0, due, error),
        };
        if header.payload_bytes > 0 {
            // Reserve memory only after the first byte arrived, so that a client that sends nothing holds
            // none.
            self.connection.socket.wait_for_bytes(&self.connection.watch_holding(&due.leases))?;
        }
        let mut buffer = Region::empty();
        if bytes > 0 {
            match self.memory(bytes) {
                Ok((region, lease)) => {
                    buffer = region;
                    due.leases.push(lease);
                }
                Err(error) => return self.refuse_unread(header, 0, due, error),
            }
        }
        let is_read = request.is_read();
        if header.payload_bytes > 0 {
            let connection = &self.connection;
            connection.socket.receive_payload(header, &buffer, &connection.watch_holding(&due.leases))?;
            self.connection.channel.received(header.payload_bytes);
        }
        let changes = matches!(
            request,
            IoRequest::Write { .. }
                | IoRequest::SetLength { .. }
                | IoRequest::Reserve { .. }
                | IoRequest::Remove { .. }
        );
        if changes {
            match self.begin(header, due) {
                Some(known) => due = known,
                None => return Ok(()),
            }
        }
        due.is_owed = true;
        let done = move |answer: outcore_core::Answer<Region>| {
            let is_filled = is_read && answer.reply == IoReply::Done;
            let payload = if is_filled { answer.buffer } else { Region::empty() };
            due.io(&answer.reply, payload);
        };
        self.shared.handler.io(&self.caller, request, buffer, Box::new(done));
        Ok(())
    }

    fn take_manager(&self, header: &Header, control: &[u8], mut due: Due) -> Result<()> {
        if header.payload_bytes > 0 {
            let error = Error::invalid("a request to the manager has no payload");
            return self.refuse_unread(header, 0, due, error);
        }
        let request = match decode::<ManagerRequest>(control) {
            Ok(request) => request,
            Err(error) => return self.refuse_unread(header, 0, due, error),
        };
        if request.is_change() {
            match self.begin(header, due) {
                Some(known) => due = known,
                None => return Ok(()),
            }
        }
        due.is_owed = true;
        let origin = Origin { client: self.client, number: header.request };
        let done = move |reply: ManagerReply| due.manager(&reply);
        self.shared.handler.manager(&self.caller.who, origin, request, Box::new(done));
        Ok(())
    }

    /// Returns whether to execute a request that makes changes. If not, the request is answered here or by
    /// another thread.
    fn begin(&self, header: &Header, mut due: Due) -> Option<Due> {
        match self.session.begin(header.request, header.settled, self.connection.clone()) {
            Begin::Run => {
                due.is_remembered = true;
                return Some(due);
            }
            // The thread that executes it also answers this one.
            Begin::Running => {}
            Begin::Done(control) => due.again(control),
            Begin::Late => due.failed(Error::new(
                ErrorKind::Io,
                "a request was repeated so late that the server does not know whether it carried it out; check, and repeat it if not",
            )),
        }
        None
    }

    /// Bytes of the request's payload, or of its answer's.
    fn payload_of(&self, request: &IoRequest, header: &Header) -> Result<usize> {
        let bytes = match request {
            IoRequest::Read { target, regions, .. } | IoRequest::Write { target, regions, .. } => {
                local_bytes(target, regions)?
            }
            IoRequest::Give { bytes, .. } | IoRequest::Take { bytes, .. } => *bytes,
            _ => 0,
        };
        let sent = if request.is_read() { 0 } else { bytes };
        if header.payload_bytes != sent {
            return Err(Error::invalid(format!(
                "need a payload of {sent} bytes for these regions, have {}",
                header.payload_bytes
            )));
        }
        let most = self.shared.payload_bytes;
        if bytes > most as u64 {
            return Err(Error::new(
                ErrorKind::Budget,
                format!("need {bytes} bytes at once, the server moves at most {most}; divide the request"),
            ));
        }
        Ok(bytes as usize)
    }

    /// The owner of memory reserved here.
    fn owner(&self) -> Owner {
        let who = &self.caller.who;
        Owner { client: self.session.number, user: (!who.is_root).then_some(who.uid) }
    }

    /// Reserves memory for a payload. Waits in the queue, and reads nothing meanwhile.
    fn memory(&self, bytes: usize) -> Result<(Region, Lease)> {
        let lease = self.shared.payloads.take(self.owner(), bytes.next_multiple_of(4096))?;
        loop {
            let (sender, receiver) = std::sync::mpsc::channel();
            let waiter: Waiter = Box::new(move || sender.send(()).unwrap_or(()));
            match self.shared.arena.allocate_or_wait(bytes, waiter) {
                Some(block) => return Ok((Region::whole(Arc::new(block?)), lease)),
                // An answered request still holds its buffer for a moment.
                None => drop(receiver.recv()),
            }
        }
    }
}

/// Bytes of a request on its target server, computed in bounded time.
fn local_bytes(target: &Target, regions: &Regions) -> Result<u64> {
    if regions.run_count() > MAX_RUNS || target.entry >= target.stripes.count() {
        return Err(Error::invalid(format!(
            "need at most {MAX_RUNS} runs and an entry below {}, have {} and {}; divide the request",
            target.stripes.count(),
            regions.run_count(),
            target.entry
        )));
    }
    Ok(regions.local_bytes(target.stripes, target.entry))
}
