//! The unit files for systemd: systemd accepts all of them, the binary accepts their commands, and a daemon
//! notifies systemd when it listens.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use outcore_net::Key;

const BINARY: &str = env!("CARGO_BIN_EXE_outcored");

fn units() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd");
    let read = |name: &str| (name.to_owned(), std::fs::read_to_string(directory.join(name)).unwrap());
    ["outcore-manager.service", "outcore-io@.service", "outcore-mount@.service"].map(read).to_vec()
}

/// The values of a setting.
fn values<'a>(unit: &'a str, name: &str) -> Vec<&'a str> {
    unit.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).collect()
}

/// Settings files of a manager, of an I/O server, and of a mount.
fn settings(root: &Path) -> [PathBuf; 3] {
    let key_file = root.join("key");
    Key::random().unwrap().save(&key_file).unwrap();
    let common = format!(
        "directory = \"{}\"\nlisten = \"unix:{}\"\nkey_file = \"{}\"\n",
        root.display(),
        root.join("socket").display(),
        key_file.display()
    );
    let files = ["manager.conf", "io.conf", "mount.conf"].map(|name| root.join(name));
    std::fs::write(&files[0], &common).unwrap();
    std::fs::write(&files[1], format!("{common}manager = \"tcp:node1:7171\"\n")).unwrap();
    std::fs::write(&files[2], "directory = \"/mnt/sim\"\nmanager = \"tcp:node1:7171\"\n").unwrap();
    files
}

#[test]
fn the_commands_of_the_units_are_those_of_the_binary() {
    let root = tempfile::tempdir().unwrap();
    let files = settings(root.path());
    for ((name, unit), file) in units().into_iter().zip(files) {
        let commands = values(&unit, "ExecStart");
        assert_eq!(commands.len(), 1, "{name}");
        let mut words = commands[0].split_whitespace();
        assert_eq!(words.next(), Some("/usr/local/bin/outcored"));
        let arguments: Vec<&str> = words
            .map(|word| if word.starts_with("/etc/outcore/") { file.to_str().unwrap() } else { word })
            .collect();
        let run = |more: &[&str]| Command::new(BINARY).args(&arguments).args(more).output().unwrap();
        let out = run(&["--check"]);
        assert!(out.status.success() && out.stderr.is_empty(), "{name}: {out:?}");
        assert!(!run(&["--chekc"]).status.success(), "others are not accepted");
        std::fs::write(&file, "directory = 1\n").unwrap();
        let out = run(&["--check"]);
        assert!(!out.status.success() && !out.stderr.is_empty(), "{name}: a check looks at the settings");
    }
}

#[test]
fn the_units_are_what_services_should_be() {
    for (name, unit) in units() {
        for (setting, value) in [
            ("Type", "notify"),
            ("Restart", "on-failure"),
            ("LimitNOFILE", "65536"),
            ("NoNewPrivileges", "yes"),
            ("WantedBy", "multi-user.target"),
        ] {
            assert_eq!(values(&unit, setting), [value], "{name}: {setting}");
        }
        // With file systems of its own, a mount would be invisible to other processes.
        let is_mount = name.starts_with("outcore-mount");
        let rights = if is_mount { "CAP_SYS_ADMIN CAP_DAC_READ_SEARCH" } else { "" };
        assert_eq!(values(&unit, "CapabilityBoundingSet"), [rights], "{name}");
        assert_eq!(values(&unit, "ProtectSystem"), ["full"][usize::from(is_mount)..], "{name}");
    }
}

/// If systemd is installed, it accepts the units without a warning.
#[test]
fn systemd_understands_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for (name, unit) in units() {
        let file = root.path().join(&name);
        // systemd checks that the command exists.
        std::fs::write(&file, unit.replace("/usr/local/bin/outcored", BINARY)).unwrap();
        let out = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && said.is_empty(), "{name}: {said}");
    }
}

#[test]
fn systemd_is_told_when_a_daemon_listens() {
    let root = tempfile::tempdir().unwrap();
    let [manager, ..] = settings(root.path());
    let path = root.path().join("notify");
    let hidden = format!("outcore-test-{}", std::process::id());
    let sockets = [
        (path.display().to_string(), UnixDatagram::bind(&path).unwrap()),
        (
            format!("@{hidden}"),
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&hidden).unwrap()).unwrap(),
        ),
    ];
    for (name, socket) in sockets {
        let mut child = Command::new(BINARY)
            .args(["manager", "--config"])
            .arg(&manager)
            .env("NOTIFY_SOCKET", &name)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut said = [0; 64];
        let bytes = socket.recv(&mut said);
        let listens = std::os::unix::net::UnixStream::connect(root.path().join("socket")).is_ok();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(&said[..bytes.unwrap()], b"READY=1\n", "{name}");
        assert!(listens, "it is said when it is so");
    }
}
