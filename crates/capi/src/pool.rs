//! Pools: served and embedded.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use outcore_client::{PoolVolume, system_clock};
use outcore_core::{Error, Link, Result};
use outcore_memory::Region;
use outcore_net::{Credentials, PoolUrl};
use outcored::EmbeddedLink;

use crate::boundary::{Handle, call, hand_out, release, unusable_time};
use crate::context::{Context, OwnedContext};
use crate::signs::Signs;
use crate::text::{check_count, optional_text, text_of};

/// A client of a pool, over any link.
pub(crate) type Client = PoolVolume<dyn Link<Buffer = Region>>;

/// A pool that is open.
pub struct Pool {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Arc<Client>,
    pub(crate) signs: Arc<Signs>,
    close: Box<dyn Fn() + Send + Sync>,
}

impl Handle for Pool {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Pool {
    fn over(
        context: &Arc<Context>,
        link: Arc<dyn Link<Buffer = Region>>,
        close: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self> {
        let client = Arc::new(Client::new(link, system_clock())?);
        let signs = Arc::new(Signs::new(client.clone()));
        Ok(Self { context: context.clone(), client, signs, close })
    }
}

/// The credentials in a key file; by default in the file that the environment names; else those of a UNIX socket.
fn credentials(key_file: Option<&str>) -> Result<Credentials> {
    let named = std::env::var_os("OUTCORE_KEY").map(PathBuf::from);
    match key_file.map(PathBuf::from).or(named) {
        Some(file) => Credentials::from_file(Path::new(&file)),
        None => Ok(Credentials::Peer),
    }
}

/// Connects to a served pool.
///
/// `url` is outcore://HOST:PORT of its manager; outcore+tls://HOST:PORT if it listens with TLS; or outcore:/PATH of its
/// UNIX socket. With a stand-by manager it is outcore://HOST:PORT,HOST:PORT: the library connects to the manager that
/// answers, and to the other one after a takeover. `key_file` is the file of the pool's key or a user's key; for NULL, the
/// variable OUTCORE_KEY names it. A UNIX socket needs no key. Calls fail with -EIO after a server did not answer for
/// `timeout_s` seconds; 0 means 60.
///
/// Errors: -ENOENT (no key file), -EACCES (wrong key), -EIO (no server answers), -EINVAL.
///
/// # Safety
/// The texts are NULL, or end with a zero byte; `pool` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_pool_connect(
    context: *const OwnedContext,
    url: *const c_char,
    key_file: *const c_char,
    timeout_s: f64,
    pool: *mut *mut Pool,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { context.as_ref() }, |context| unsafe {
        hand_out(pool, || {
            let url: PoolUrl = text_of(url, "URL of a pool")?.parse()?;
            let timeout = Duration::try_from_secs_f64(timeout_s).map_err(|_| unusable_time(timeout_s))?;
            let credentials = credentials(optional_text(key_file, "path of the key file")?)?;
            let patience = (!timeout.is_zero()).then_some(timeout);
            let link = Arc::new(url.connect(credentials, patience)?);
            let closing = link.clone();
            Pool::over(&context.0, link, Box::new(move || closing.close()))
        })
    })
}

/// Opens or creates the pool in `count` directories of this machine, with its servers in this process.
///
/// There is one directory for each server, best on separate disks; missing ones are created. The first one also holds
/// the names of all files. To open a pool, pass all of its directories. `threads` is the number of concurrent requests
/// in each directory; 0 means 4.
///
/// Errors: -EBUSY (the pool is open already), -EINVAL (directories that are not one pool), -EACCES.
///
/// # Safety
/// `directories` points to `count` texts that end with a zero byte; `pool` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_pool_embed(
    context: *const OwnedContext,
    directories: *const *const c_char,
    count: usize,
    threads: u32,
    pool: *mut *mut Pool,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { context.as_ref() }, |context| unsafe {
        hand_out(pool, || {
            if directories.is_null() {
                return Err(Error::invalid("need directories of a pool, have NULL; pass their paths"));
            }
            check_count(count, "directories")?;
            let given = std::slice::from_raw_parts(directories, count);
            let names = given.iter().map(|&name| text_of(name, "directory of a pool").map(str::to_owned));
            let names: Vec<String> = names.collect::<Result<_>>()?;
            let threads = if threads == 0 { outcore_disk::DEFAULT_THREADS } else { threads as usize };
            let link = Arc::new(EmbeddedLink::open(&names, threads, false)?);
            let closing = link.clone();
            Pool::over(&context.0, link, Box::new(move || closing.close()))
        })
    })
}

/// Closes a pool, and frees the handle: ends the connections, or stops the servers. Files that are still open in it
/// become unusable (-EBADF), but must be closed. NULL is ignored.
///
/// # Safety
/// `pool` is NULL, or a pool that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_pool_close(pool: *mut Pool) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        release(pool, |pool| {
            pool.signs.end();
            pool.client.tell_written();
            (pool.close)();
            Ok(())
        })
    }
}
