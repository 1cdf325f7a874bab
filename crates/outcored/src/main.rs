//! The daemon of a pool: its manager, or one of its I/O servers.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use outcore_core::{Error, Result};
use outcore_net::wait_for_termination;
use outcored::{IoSettings, ManagerSettings, Settings, serve_io, serve_manager};

const USAGE: &str = "outcored manager --config FILE\noutcored io --config FILE";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["manager", "--config", file] => run_manager(Path::new(file)),
        ["io", "--config", file] => run_io(Path::new(file)),
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

fn run_manager(file: &Path) -> Result<()> {
    let settings = ManagerSettings::from_settings(Settings::from_file(file)?)?;
    let daemon = wait_for_termination(|| {
        let daemon = serve_manager(&settings)?;
        say(&format!("manager of pool {:032x} listens on {}", daemon.pool(), list(daemon.addresses())))?;
        Ok(daemon)
    })?;
    daemon.stop();
    Ok(())
}

fn run_io(file: &Path) -> Result<()> {
    let settings = IoSettings::from_settings(Settings::from_file(file)?)?;
    let daemon = wait_for_termination(|| {
        let daemon = serve_io(&settings)?;
        let (server, pool) = (daemon.server().0, daemon.pool());
        say(&format!("I/O server {server} of pool {pool:032x} listens on {}", list(daemon.addresses())))?;
        Ok(daemon)
    })?;
    daemon.stop();
    Ok(())
}

fn list(addresses: &[outcore_net::Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// One line, at once: whoever started this waits for it.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    let said = writeln!(out, "outcored: {line}").and_then(|()| out.flush());
    said.map_err(|error| Error::invalid(format!("cannot write to the standard output: {error}")))
}
