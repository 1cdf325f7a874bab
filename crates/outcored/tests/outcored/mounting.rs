//! A mount as a process, and its settings.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use outcore_core::ErrorKind;
use outcore_mount::address_at;
use outcore_net::Key;
use outcored::{IoSettings, MountSettings, Settings, mount, serve_io, serve_manager};

use crate::daemon::{directory, end, io_settings, manager_settings, spawn};

fn served(root: &Path) -> (outcored::ManagerDaemon, outcored::IoDaemon) {
    let key = Key::random().unwrap();
    key.save(&root.join("key")).unwrap();
    let manager = serve_manager(&manager_settings(directory(root, "m"), &key)).unwrap();
    let settings = io_settings(directory(root, "d"), manager.addresses(), &key);
    let settings = IoSettings { threads: 1, memory_bytes: None, ..settings };
    let server = serve_io(&settings).unwrap();
    (manager, server)
}

/// The text of the settings of a mount at `place`.
fn text_for(root: &Path, manager: &outcored::ManagerDaemon, place: &Path) -> String {
    format!(
        "directory = \"{}\"\nmanager = \"{}\"\nkey_file = \"{}\"\n",
        place.display(),
        manager.addresses()[0],
        root.join("key").display()
    )
}

fn parsed(text: &str) -> outcore_core::Result<MountSettings> {
    MountSettings::from_settings(Settings::from_text(text, "mount.conf")?)
}

#[test]
fn a_mount_serves_until_a_signal_or_until_it_is_unmounted() {
    let root = tempfile::tempdir().unwrap();
    let (manager, _server) = served(root.path());
    let place = directory(root.path(), "here");
    let text = text_for(root.path(), &manager, &place);
    match mount(&parsed(&text).unwrap()) {
        Ok(mounted) => mounted.stop().unwrap(),
        // A container may have the device and yet refuse mounts.
        Err(error)
            if error.message.contains("Operation not permitted") || !Path::new("/dev/fuse").exists() =>
        {
            eprintln!("not tested: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    }
    for signal in [15, 2] {
        let (process, line) = spawn("mount", &text, root.path());
        let port = manager.addresses()[0].to_string().replace("tcp:", "outcore://");
        assert_eq!(line, format!("outcored: {port}/ is mounted at {}\n", place.display()));
        assert_eq!(address_at(&place).unwrap(), Some(format!("{port}/")));
        let file = place.join(signal.to_string());
        // The umask of the program counts, and not that of the process that serves the mount.
        let program = format!("umask 0; printf abc > {}", file.display());
        assert!(Command::new("sh").args(["-c", &program]).status().unwrap().success());
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o666);
        assert!(end(process, signal).success());
        assert_eq!(address_at(&place), Ok(None));
    }
    let (mut process, _) = spawn("mount", &text, root.path());
    assert_eq!(std::fs::read_to_string(place.join("15")).unwrap(), "abc");
    outcore_mount::unmount_at(&place, false).unwrap();
    assert!(process.wait().unwrap().success());
    // A killed process leaves a dead mount, which the next one replaces.
    let (process, _) = spawn("mount", &text, root.path());
    end(process, 9);
    assert_eq!(std::fs::read_dir(&place).unwrap_err().raw_os_error(), Some(107));
    let (process, _) = spawn("mount", &text, root.path());
    assert_eq!(std::fs::read_to_string(place.join("2")).unwrap(), "abc");
    assert!(end(process, 15).success());
}

#[test]
fn a_mount_that_has_ended_leaves_the_next_one_alone() {
    let root = tempfile::tempdir().unwrap();
    let (manager, _server) = served(root.path());
    let place = directory(root.path(), "here");
    let text = text_for(root.path(), &manager, &place);
    let settings = parsed(&text).unwrap();
    let Ok(first) = mount(&settings) else { return };
    outcore_mount::unmount_at(&place, false).unwrap();
    while !first.wait(Duration::from_millis(10)).unwrap() {}
    let second = mount(&settings).unwrap();
    first.stop().unwrap();
    assert!(address_at(&place).unwrap().is_some());
    second.stop().unwrap();
    assert_eq!(address_at(&place), Ok(None));
}

#[test]
fn the_settings_of_a_mount() {
    let text = "directory = \"/mnt/sim\"\nmanager = [\"tls:node1:7171\", \"tcp:node1:7172\"]\npath = \"sim\"\n\
                timeout_s = 5\noptions = [\"allow-other\", \"strict\"]";
    let settings = parsed(text).unwrap();
    assert_eq!(settings.address(), "outcore+tls://node1:7171/sim");
    assert_eq!(settings.timeout.unwrap().as_secs(), 5);
    let two = "directory = \"/mnt\"\nmanager = [\"tcp:node1:7171\", \"tcp:node2:7171\"]";
    assert_eq!(parsed(two).unwrap().address(), "outcore://node1:7171,node2:7171/");
    let options = settings.options;
    assert!(options.allow_other && options.strict && options.locks && !options.read_only);
    for (wrong, why) in [
        ("manager = \"tcp:a:1\"", "need directory = "),
        ("directory = \"/a\"", "need manager = "),
        ("directory = \"/a\"\nmanager = \"tcp:a:1\"\noptions = \"fast\"", "have \"fast\""),
        ("directory = \"/a\"\nmanager = \"tcp:a:1\"\ntimeout_s = 0", "have 0"),
        ("directory = \"/a\"\nmanager = \"tcp:a:1\"\nlisten = \"tcp:a:1\"", "listen is no setting"),
    ] {
        let error = parsed(wrong).unwrap_err();
        assert!(error.kind == ErrorKind::Invalid && error.message.contains(why), "{error}");
    }
}
