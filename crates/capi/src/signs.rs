//! Signs of life: locks by which the processes of a program see which of them have died.
//!
//! A sign is a lock on one byte of a file or of the pool's top directory, behind all bytes that programs of a mount can lock.
//! The manager keeps it under a lease, which a thread renews, even while the program computes. If the process or its machine
//! dies, the lease ends. It also has the locks of the process on bytes of files: see `locks.rs`.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::{Error, ErrorKind, FileId, Handle, LockFamily, LockKind, LockOwner, LockWish, Result};

use crate::boundary::{call, count};
use crate::file::File;
use crate::pool::{Client, Pool};

/// The first byte that no program of a mount can lock.
pub(crate) const FIRST: u64 = 1 << 63;
/// The thread renews the lease this many times in its term.
const RENEWALS: u32 = 4;

/// The place of a sign: a file, or the top directory of the pool.
type Place = Option<FileId>;

/// Signs and locks by place and number. Numbers of locks are from [`FIRST`] on.
pub(crate) type Given = HashMap<(Place, u64), Sign>;

/// The signs of life that this process gives to the others, and its locks.
pub(crate) struct Signs {
    pub(crate) client: Arc<Client>,
    pub(crate) lease: u128,
    /// Held during requests to the manager.
    given: Mutex<Given>,
    /// The number of the last lock.
    pub(crate) last_lock: AtomicU64,
    renewing: OnceLock<()>,
    top: OnceLock<Handle>,
}

/// A sign, or a lock on bytes of a file.
#[derive(Clone, Copy)]
pub(crate) struct Sign {
    pub(crate) wish: LockWish,
    pub(crate) state: State,
}

/// The manager's knowledge of a sign or lock.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum State {
    Known,
    /// The manager has forgotten it.
    Forgotten,
    /// The process took it back, and the manager did not answer.
    Withdrawn,
}

impl Sign {
    fn is_lock(&self) -> bool {
        self.wish.owner.number >= FIRST
    }
}

impl Signs {
    pub fn new(client: Arc<Client>) -> Self {
        let random = || u128::from(RandomState::new().hash_one((Instant::now(), std::process::id())));
        let lease = random() << 64 | random();
        let (renewing, top) = (OnceLock::new(), OnceLock::new());
        Self { client, lease, given: Mutex::default(), last_lock: AtomicU64::new(FIRST), renewing, top }
    }

    pub(crate) fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self, place: Place) -> Result<Handle> {
        match (place, self.top.get()) {
            (Some(file), _) => self.client.handle(file),
            (None, Some(&top)) => Ok(top),
            (None, None) => {
                let top = self.client.stat("")?.handle;
                Ok(*self.top.get_or_init(|| top))
            }
        }
    }

    /// Gives a sign of life until it is withdrawn.
    pub fn give(self: &Arc<Self>, place: Place, number: u64) -> Result<()> {
        let handle = self.handle(place)?;
        let mut given = self.given();
        if given.get(&(place, number)).is_some_and(|sign| sign.state != State::Withdrawn) {
            return Ok(());
        }
        let wish = wish(self.lease, handle, number, LockKind::Exclusive)?;
        self.begin(&mut given)?;
        self.take(wish, &mut given)?;
        given.insert((place, number), Sign { wish, state: State::Known });
        Ok(())
    }

    /// Takes the lease, and starts the thread that renews it, for the first sign or lock.
    pub(crate) fn begin(self: &Arc<Self>, given: &mut Given) -> Result<()> {
        if self.renewing.get().is_none() {
            let term_s = self.renew(given)?;
            self.renewing.get_or_init(|| renew_in_time(self, Duration::from_secs(term_s) / RENEWALS));
        }
        Ok(())
    }

    /// Renews the lease, and notes whether the manager has forgotten it. Returns its term in seconds.
    pub(crate) fn renew(&self, given: &mut Given) -> Result<u64> {
        let (term_s, has_none) = self.client.renew_lease(self.lease)?;
        for sign in given.values_mut().filter(|sign| has_none && sign.state == State::Known) {
            sign.state = State::Forgotten;
        }
        Ok(term_s)
    }

    /// Takes the lock of a sign.
    fn take(&self, mut wish: LockWish, given: &mut Given) -> Result<()> {
        for is_last in [false, false, true] {
            match self.client.set_lock(wish).map_err(|error| (error.kind, error)) {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => {
                    let text =
                        "need a number that no other process has, have one of another; choose a random one";
                    return Err(Error::new(ErrorKind::Exists, text));
                }
                // After a restart, the manager grants only locks from before, and no other process can want this one.
                Err((ErrorKind::Busy, _)) if !is_last => wish.reclaims = true,
                Err((ErrorKind::Lost, _)) if !is_last => {
                    wish.reclaims = false;
                    self.renew(given)?;
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Releases a lock. Returns whether the manager has it no more.
    fn release(&self, wish: LockWish) -> bool {
        match self.client.set_lock(LockWish { kind: LockKind::None, ..wish }) {
            Ok(_) => true,
            // Its lease has ended.
            Err(error) => error.kind == ErrorKind::Lost,
        }
    }

    /// Withdraws the signs and locks at a place for which `is_meant` holds.
    pub fn withdraw(&self, place: Place, is_meant: impl Fn(u64) -> bool) {
        let mut given = self.given();
        given.retain(|(at, number), sign| {
            if *at != place || !is_meant(*number) {
                return true;
            }
            sign.state = State::Withdrawn;
            !self.release(sign.wish)
        });
    }

    /// Ends the lease, and all signs with it.
    pub fn end(&self) {
        if self.renewing.get().is_some() {
            self.given().clear();
            // If the manager does not answer, the lease ends after its term.
            let _ = self.client.end_lease(self.lease);
        }
    }

    /// Whether any process gives the sign with this number.
    pub fn is_given(&self, place: Place, number: u64) -> Result<bool> {
        // No lease has this number, so locks of this process count, too.
        let wish = wish(0, self.handle(place)?, number, LockKind::Exclusive)?;
        self.client.test_lock(wish).map(|lock| lock.is_some())
    }

    /// Renews the lease, and repeats messages that the manager has missed.
    fn tick(&self) {
        let mut given = self.given();
        // If the manager does not answer, the next turn asks again.
        if self.renew(&mut given).is_err() {
            return;
        }
        given.retain(|_, sign| sign.state != State::Withdrawn || !self.release(sign.wish));
        let all = given.iter().map(|(&place, &sign)| (place, sign));
        let forgotten: Vec<_> = all.filter(|(_, sign)| sign.state == State::Forgotten).collect();
        for (place, sign) in forgotten {
            let taken =
                if sign.is_lock() { self.reclaim(sign.wish) } else { self.take(sign.wish, &mut given) };
            if let (Ok(()), Some(sign)) = (taken, given.get_mut(&place)) {
                sign.state = State::Known;
            }
        }
    }
}

/// A request for the lock of a sign.
fn wish(lease: u128, handle: Handle, number: u64, kind: LockKind) -> Result<LockWish> {
    let byte = FIRST.checked_add(number).ok_or_else(|| {
        Error::invalid(format!(
            "need a number below 2^63 for a sign of life, have {number}; pass a smaller one"
        ))
    })?;
    let owner = LockOwner { lease, family: LockFamily::Fcntl, number };
    let process = std::process::id();
    Ok(LockWish { handle, owner, process, start: byte, end: byte, kind, reclaims: false })
}

/// Starts the thread that renews the lease as long as the pool is open.
fn renew_in_time(signs: &Arc<Signs>, pause: Duration) {
    let signs: Weak<Signs> = Arc::downgrade(signs);
    let renew = move || {
        loop {
            thread::sleep(pause);
            let Some(signs) = signs.upgrade() else { return };
            signs.tick();
        }
    };
    // Without the thread, the lease ends, and the process seems to be dead.
    let _ = thread::Builder::new().name("outcore-lease".into()).spawn(renew);
}

/// Gives other processes a sign that this one lives, until `outcore_sign_withdraw` or the close of the file.
///
/// The manager of the pool keeps the sign while a thread of this process renews it. If the process dies, the sign ends
/// within the term of a lease: `lease_seconds` of the manager, 10 by default. A process that cannot reach the manager for
/// so long, or is stopped, also loses its sign, and gives it again afterwards. `number` is below 2^63, and no other process
/// may use it for this file: begin with a random number.
///
/// Errors: -EEXIST (another process gives this sign), -EINVAL (the user has too many leases), -EIO.
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_sign_give(file: *const File, number: u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { file.as_ref() }, |file| file.signs.give(Some(file.file), number))
}

/// Withdraws a sign of this process.
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_sign_withdraw(file: *const File, number: u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { file.as_ref() }, |file| {
        file.signs.withdraw(Some(file.file), |given| given == number);
        Ok(())
    })
}

/// Returns 1 if a process gives the sign with this number, and 0 if none does, or -errno.
///
/// Errors: -EBUSY (the manager has restarted and does not know yet), -ENOENT (the file was removed), -EIO.
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_sign_is_given(file: *const File, number: u64) -> c_int {
    // SAFETY: as the caller promises. The number is 0, 1, or that of an error, which is small.
    count(unsafe { file.as_ref() }, |file| file.signs.is_given(Some(file.file), number).map(u64::from))
        as c_int
}

/// Gives a sign like `outcore_sign_give`, but to all processes that use the pool, until `outcore_pool_sign_withdraw` or the close
/// of the pool. No other process may use `number` for this pool.
///
/// Errors: those of `outcore_sign_give`, and -EACCES (the user may neither read nor write the top directory of the pool).
///
/// # Safety
/// `pool` is a pool, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_pool_sign_give(pool: *const Pool, number: u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| pool.signs.give(None, number))
}

/// Withdraws a sign of this process for a pool.
///
/// # Safety
/// `pool` is a pool, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_pool_sign_withdraw(pool: *const Pool, number: u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| {
        pool.signs.withdraw(None, |given| given == number);
        Ok(())
    })
}

/// Returns 1 if a process gives the sign with this number for the pool, and 0 if none does, or -errno.
///
/// Errors: -EBUSY (the manager has restarted and does not know yet), -EACCES, -EIO.
///
/// # Safety
/// `pool` is a pool, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_pool_sign_is_given(pool: *const Pool, number: u64) -> c_int {
    // SAFETY: as the caller promises. The number is 0, 1, or that of an error, which is small.
    count(unsafe { pool.as_ref() }, |pool| pool.signs.is_given(None, number).map(u64::from)) as c_int
}
