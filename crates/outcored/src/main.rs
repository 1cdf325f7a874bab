//! The daemon of a pool: its manager, one of its I/O servers, or a mount.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use outcore_core::{Error, Result};
use outcore_net::{wait_for_termination, wait_while};
use outcored::{
    IoSettings, ManagerSettings, MountSettings, Settings, mount, notify_ready, serve_io, serve_manager_under,
    wait_for_lease,
};

const USAGE: &str = "outcored manager --config FILE [--check]\noutcored io --config FILE [--check]\n\
                     outcored mount --config FILE [--check]\n\
                     --check only reads the settings";

/// Follows the addresses of a server that does not write.
const ONLY_READS: &str =
    "; its disk takes no writes, but its data can be read: free space, or make it writable, and restart";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["manager", "--config", file] => run_manager(file),
        ["io", "--config", file] => run_io(file),
        ["mount", "--config", file] => run_mount(file),
        ["manager", "--config", file, "--check"] => read(file, ManagerSettings::from_settings).map(drop),
        ["io", "--config", file, "--check"] => read(file, IoSettings::from_settings).map(drop),
        ["mount", "--config", file, "--check"] => read(file, MountSettings::from_settings).map(drop),
        ["--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        _ => Err(Error::invalid(format!("need one of\n{USAGE}"))),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outcored: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read<T>(file: &str, settings: impl FnOnce(Settings) -> Result<T>) -> Result<T> {
    settings(Settings::from_file(Path::new(file))?)
}

fn run_manager(file: &str) -> Result<()> {
    let settings = read(file, ManagerSettings::from_settings)?;
    // A stand-by ends at any signal.
    let turned = wait_for_lease(&settings)?;
    let daemon = wait_for_termination(|| {
        let daemon = serve_manager_under(&settings, turned)?;
        daemon.end_process_on_failure();
        let page = daemon.page().map_or(String::new(), |address| format!("; page at http://{address}/"));
        let metrics = at(daemon.metrics()) + &page;
        say(&format!(
            "manager of pool {:032x} listens on {}{metrics}",
            daemon.pool(),
            list(daemon.addresses())
        ))?;
        notify_ready();
        Ok(daemon)
    })?;
    daemon.stop();
    Ok(())
}

fn run_io(file: &str) -> Result<()> {
    let settings = read(file, IoSettings::from_settings)?;
    let daemon = wait_for_termination(|| {
        let daemon = serve_io(&settings)?;
        let (server, pool) = (daemon.server().0, daemon.pool());
        let (addresses, metrics) = (list(daemon.addresses()), at(daemon.metrics()));
        let only_reads = if daemon.is_writable() { "" } else { ONLY_READS };
        say(&format!("I/O server {server} of pool {pool:032x} listens on {addresses}{metrics}{only_reads}"))?;
        notify_ready();
        Ok(daemon)
    })?;
    daemon.stop();
    Ok(())
}

fn run_mount(file: &str) -> Result<()> {
    let settings = read(file, MountSettings::from_settings)?;
    let mounted = wait_while(
        || {
            let mounted = mount(&settings)?;
            say(&format!("{} is mounted at {}", settings.address(), settings.directory.display()))?;
            notify_ready();
            Ok(mounted)
        },
        |mounted| mounted.wait(Duration::ZERO).map(|is_over| !is_over),
    )?;
    mounted.stop()
}

fn list(addresses: &[outcore_net::Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

fn at(metrics: Option<SocketAddr>) -> String {
    metrics.map_or(String::new(), |address| format!("; metrics at http://{address}/metrics"))
}

/// Prints one line and flushes it, because the process that started this one waits for it.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "outcored: {line}").and_then(|()| out.flush());
    said.map_err(|error| Error::invalid(format!("cannot write to the standard output: {error}")))
}
