//! Daemons as processes, and tools for their clients.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use outcore_client::PoolVolume;
use outcore_core::{Buffer, FileId, Operation, Regions, Result, VolumeRequest, conformance};
use outcore_memory::{Arena, Region};
use outcore_net::{Address, Key, NetLink};
use outcored::{IoSettings, ManagerSettings};

pub fn directory(root: &Path, name: &str) -> PathBuf {
    let path = root.join(name);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Any free port of this machine.
pub fn tcp() -> Vec<Address> {
    vec!["tcp:127.0.0.1:0".parse().unwrap()]
}

/// Settings of an I/O server in a directory.
pub fn io_settings(directory: PathBuf, manager: &[Address], key: &Key) -> IoSettings {
    IoSettings {
        directory,
        listen: tcp(),
        advertise: None,
        key: key.clone(),
        manager: manager.to_vec(),
        server: None,
        threads: 2,
        memory_bytes: Some(32 << 20),
        reads_memory: true,
        metrics: None,
    }
}

/// Settings of a manager in a directory.
pub fn manager_settings(directory: PathBuf, key: &Key) -> ManagerSettings {
    ManagerSettings {
        directory,
        listen: tcp(),
        key: key.clone(),
        lease_s: None,
        metrics: None,
        store: None,
        stand_by: false,
        page: None,
    }
}

pub fn wall_clock() -> Arc<dyn Fn() -> u64 + Send + Sync> {
    Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64)
}

pub fn region(bytes: &[u8]) -> Region {
    if bytes.is_empty() {
        return Region::empty();
    }
    let arena = Arena::new(bytes.len().next_multiple_of(4096));
    let mut region = Region::whole(Arc::new(arena.allocate(bytes.len()).unwrap()));
    region.copy_in(0, bytes);
    region
}

pub fn transfer(
    volume: &PoolVolume<NetLink>,
    file: FileId,
    operation: Operation,
    offset: u64,
    bytes: &[u8],
) -> Result<Vec<u8>> {
    let regions = match operation {
        Operation::Sync => Regions::default(),
        _ => Regions::contiguous(offset, bytes.len() as u64)?,
    };
    let buffer =
        conformance::complete(volume, VolumeRequest { file, operation, regions, buffer: region(bytes) })?;
    let mut out = vec![0; buffer.len()];
    buffer.copy_out(0, &mut out);
    Ok(out)
}

pub fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251) as u8).collect()
}

pub fn spawn(role: &str, settings: &str, root: &Path) -> (Child, String) {
    let file = root.join(format!("{role}.conf"));
    std::fs::write(&file, settings).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_outcored"))
        .args([role, "--config"])
        .arg(&file)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line)
}

pub fn end(mut child: Child, signal: i32) -> std::process::ExitStatus {
    let killed = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status();
    assert!(killed.unwrap().success());
    child.wait().unwrap()
}
