//! A mount of a pool whose settings are in a file.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use outcore_client::system_clock;
use outcore_core::{Error, Link, Result};
use outcore_memory::Region;
use outcore_mount::{Client, Mount, Options, check_place};
use outcore_net::{Address, Credentials, PoolUrl, ServedLink};

use crate::Settings;
use crate::manager::addresses;

const KNOWN: &str = "directory, manager, path, key_file, timeout_s, options";

const OF_MANAGER: &str = "[\"tcp:node1:7171\"]";
const OF_OPTIONS: &str = "[\"allow-other\", \"read-only\", \"strict\", \"no-locks\"], or some of these";

/// Settings of a mount.
#[derive(Clone, Debug)]
pub struct MountSettings {
    /// The directory to mount at.
    pub directory: PathBuf,
    /// The addresses of the pool's manager, and of the one that stands by.
    pub manager: Vec<Address>,
    /// The pool's key or a user's key. A UNIX socket needs none.
    pub key_file: Option<PathBuf>,
    /// How long the mount waits for a server. Calls then fail with `EIO`.
    pub timeout: Option<Duration>,
    /// The directory in the pool, and how to mount it.
    pub options: Options,
}

impl MountSettings {
    /// Reads the settings from a file.
    pub fn from_settings(mut settings: Settings) -> Result<Self> {
        let of_directory = "\"/mnt/pool\"";
        let directory = settings.text("directory", of_directory)?;
        let directory = settings.required(directory, "directory", of_directory)?.into();
        let manager = settings.list("manager", OF_MANAGER)?.filter(|list| !list.is_empty());
        let manager = addresses(&settings.required(manager, "manager", OF_MANAGER)?)?;
        let root = settings.text("path", "\"sim/results\"")?.unwrap_or_default();
        let key_file = settings.text("key_file", "\"/etc/outcore/user.key\"")?.map(PathBuf::from);
        let timeout = settings.number("timeout_s", "60")?.map(Duration::from_secs);
        if timeout.is_some_and(|timeout| timeout.is_zero()) {
            return Err(Error::invalid("need timeout_s = 60 or another number from 1, have 0"));
        }
        // The list is not empty.
        let address = PoolUrl::of(&manager).map(|url| url.to_string()).unwrap_or_default();
        let mut options = Options { root, address, locks: true, ..Options::default() };
        for name in settings.list("options", OF_OPTIONS)?.unwrap_or_default() {
            match name.as_str() {
                "allow-other" => options.allow_other = true,
                "read-only" => options.read_only = true,
                "strict" => options.strict = true,
                "no-locks" => options.locks = false,
                _ => return Err(Error::invalid(format!("need options = {OF_OPTIONS}, have {name:?}"))),
            }
        }
        settings.finish(KNOWN)?;
        Ok(Self { directory, manager, key_file, timeout, options })
    }

    /// URL of the directory that is mounted.
    pub fn address(&self) -> String {
        format!("{}{}", self.options.address, self.options.root)
    }
}

/// Mounts a directory of a served pool. Threads of this process serve the mount.
///
/// # Errors
///
/// If the directory cannot be mounted on, no manager answers or it refuses the key, or the system refuses the mount.
pub fn mount(settings: &MountSettings) -> Result<Mount> {
    // Before the manager is asked, which may take long.
    check_place(&settings.directory)?;
    let key = settings.key_file.as_deref();
    let credentials = key.map_or(Ok(Credentials::Peer), Credentials::from_file)?;
    let link = ServedLink::connect(&settings.manager, credentials, settings.timeout)?;
    let link: Arc<dyn Link<Buffer = Region>> = Arc::new(link);
    let client = Arc::new(Client::new(link, system_clock())?);
    Mount::new(client, &settings.directory, &settings.options)
}
