//! The time that decides when grants expire: the time of the manager, which signs them. The clock of this machine
//! counts only while the manager has been unreachable since the server started.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use outcore_core::{Buffer, Error, ErrorKind, IoRequest, Result};

use super::event::Effect;
use super::server::check_entry;
use super::shared::Shared;
use super::wait::{Permits, Slot};
use crate::grants::MOST_GRANT_S;

/// The last known time of the manager.
pub(super) struct Time {
    /// The time in seconds since 1970, and the server's event time when it arrived, in nanoseconds.
    told: Cell<Option<(u64, u64)>>,
    /// Serializes queries.
    gate: Permits,
    waiting: RefCell<Option<Slot<()>>>,
    /// Number of requests for the time, and the last of them that a query covered.
    wanted: Cell<u64>,
    asked: Cell<u64>,
}

impl Default for Time {
    fn default() -> Self {
        Self {
            told: Cell::new(None),
            gate: Permits::new(1),
            waiting: RefCell::default(),
            wanted: Cell::new(0),
            asked: Cell::new(0),
        }
    }
}

impl Time {
    /// Records the answer to a query.
    pub fn told(&self, now_ns: u64, manager_s: Option<u64>, own_s: u64) {
        // If the manager does not answer, its last known time is more reliable than this machine's clock.
        if let Some(told_s) = manager_s.or(Some(own_s).filter(|_| self.told.get().is_none())) {
            self.told.set(Some((told_s, now_ns)));
        }
        if let Some(slot) = self.waiting.take() {
            slot.give(());
        }
    }

    fn now_s(&self, now_ns: u64) -> Option<u64> {
        let since =
            |(told_s, at_ns): (u64, u64)| told_s.saturating_add(now_ns.saturating_sub(at_ns) / 1_000_000_000);
        self.told.get().map(since)
    }
}

impl<B: Buffer> Shared<B> {
    /// Checks the grant of a request. If the grant seems to have expired, or to outlast the maximum lifetime, the
    /// server first asks the manager for its time, because clocks jump.
    pub async fn admit(self: &Rc<Self>, request: &IoRequest) -> Result<()> {
        let (ends_s, target) = match request {
            IoRequest::Read { target, grant, .. }
            | IoRequest::Write { target, grant, .. }
            | IoRequest::Sync { target, grant }
            | IoRequest::Length { target, grant }
            | IoRequest::SetLength { target, grant, .. }
            | IoRequest::Reserve { target, grant, .. }
            | IoRequest::Remove { target, grant }
            | IoRequest::Join { target, grant, .. } => (grant.expires_s, Some(*target)),
            IoRequest::Lengths { grant, .. } => (grant.expires_s, None),
            _ => return Ok(()),
        };
        let now_s = || self.time.now_s(self.now_ns.get()).filter(|now_s| is_plausible(ends_s, *now_s));
        let mut known_s = now_s();
        // The first check needs no time: without a valid grant of this pool, the server does not ask the manager.
        self.verify(request, known_s.unwrap_or(0))?;
        if known_s.is_none() {
            self.ask_time().await;
            known_s = now_s();
            self.verify(request, self.time.now_s(self.now_ns.get()).unwrap_or(0))?;
        }
        if known_s.is_none() {
            return Err(Error::new(
                ErrorKind::Denied,
                "need a grant that ends within the hour, have one from when the manager's clock was ahead; renew it",
            ));
        }
        target.map_or(Ok(()), check_entry)
    }

    fn verify(&self, request: &IoRequest, now_s: u64) -> Result<()> {
        match request {
            IoRequest::Read { target, grant, .. }
            | IoRequest::Sync { target, grant }
            | IoRequest::Length { target, grant } => self.verify.verify(grant, target.handle, false, now_s),
            IoRequest::Write { target, grant, .. }
            | IoRequest::SetLength { target, grant, .. }
            | IoRequest::Reserve { target, grant, .. } => {
                self.verify.verify(grant, target.handle, true, now_s)
            }
            IoRequest::Remove { target, grant } => self.verify.verify_removal(grant, target.handle, now_s),
            IoRequest::Join { target, grant, spec, .. } => {
                self.verify.verify(grant, target.handle, spec.write, now_s)
            }
            IoRequest::Lengths { handles, grant, .. } => self.verify.verify_lengths(grant, handles, now_s),
            _ => Ok(()),
        }
    }

    /// Asks the manager for its time. Calls that arrive during a query share the next one.
    async fn ask_time(&self) {
        let time = &self.time;
        time.wanted.set(time.wanted.get() + 1);
        let wanted = time.wanted.get();
        let _turn = time.gate.take().await;
        if time.asked.get() < wanted {
            time.asked.set(time.wanted.get());
            let slot = Slot::new();
            *time.waiting.borrow_mut() = Some(slot.clone());
            self.effects.borrow_mut().push(Effect::AskTime);
            slot.await;
        }
    }
}

/// Whether a valid grant may expire at this time.
fn is_plausible(ends_s: u64, now_s: u64) -> bool {
    ends_s > now_s && ends_s - now_s <= MOST_GRANT_S
}
