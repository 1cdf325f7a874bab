//! Directories in which pools store their data: recognising them by their files.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The first bytes of a SQLite database.
const SQLITE: &[u8; 16] = b"SQLite format 3\0";
/// The place of the number of the application in them, and that of pools.
const APPLICATION_AT: usize = 68;
const APPLICATION: &[u8; 4] = b"outc";
/// The directory of a manager's files, if a server has the directory above it.
const MANAGER: &str = "manager";

/// The directory at or above a path in which a server or the manager of a pool stores its data.
pub fn pool_directory_of(path: &Path) -> Option<PathBuf> {
    let is_one = |place: &Path| has_server(place) || manager_in(place).is_some();
    let found = path.ancestors().find(|place| is_one(place))?;
    let above = found.parent().filter(|above| found.ends_with(MANAGER) && is_one(above));
    Some(above.unwrap_or(found).to_path_buf())
}

/// The directory with the files of a manager: `manager` in a directory, or the directory itself.
pub fn manager_in(directory: &Path) -> Option<PathBuf> {
    [directory.join(MANAGER), directory.to_path_buf()].into_iter().find(|place| has_manager(place))
}

/// Whether a directory has the files of a manager. Other programs may have a database of the same name, and a lock.
fn has_manager(directory: &Path) -> bool {
    let store = directory.join("metadata.sqlite");
    let mut header = [0; APPLICATION_AT + APPLICATION.len()];
    let is_file = store.is_file();
    let is_read = is_file && File::open(store).and_then(|file| file.read_exact_at(&mut header, 0)).is_ok();
    if is_read && header.starts_with(SQLITE) {
        return header.ends_with(APPLICATION);
    }
    // A damaged or unreadable store is one too.
    is_file && directory.join("lock").is_file()
}

fn has_server(directory: &Path) -> bool {
    let names = ["\"format\"", "\"pool\"", "\"server\""];
    fs::read_to_string(directory.join("server.json"))
        .is_ok_and(|text| names.iter().all(|name| text.contains(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_of_managers_are_told_from_databases_of_other_programs() {
        let root = tempfile::tempdir().unwrap();
        let store = |application: &[u8]| [&SQLITE[..], &[0; 52], application, &[7; 1000]].concat();
        let cases = [
            ("a store", store(APPLICATION), false, true),
            ("a store in use", store(APPLICATION), true, true),
            ("a store whose header is damaged", vec![0; 4096], true, true),
            ("an empty store", vec![], true, true),
            ("another program's database", store(&[0; 4]), false, false),
            ("one that is locked", store(b"gpkg"), true, false),
            ("a file of the name", b"text".to_vec(), false, false),
        ];
        for (number, (about, content, is_locked, expected)) in cases.into_iter().enumerate() {
            let below = root.path().join(format!("{number}/a"));
            fs::create_dir_all(&below).unwrap();
            let above = below.parent().unwrap();
            fs::write(above.join("metadata.sqlite"), content).unwrap();
            if is_locked {
                fs::write(above.join("lock"), "").unwrap();
            }
            let found = expected.then(|| above.to_path_buf());
            assert_eq!((manager_in(above), pool_directory_of(&below)), (found.clone(), found), "{about}");
        }
    }

    #[test]
    fn the_directory_of_a_server_contains_that_of_the_manager() {
        let root = tempfile::tempdir().unwrap();
        let (server, manager) = (root.path().join("s"), root.path().join("s/manager"));
        fs::create_dir_all(&manager).unwrap();
        for name in ["metadata.sqlite", "lock"] {
            fs::write(manager.join(name), "").unwrap();
        }
        assert_eq!(pool_directory_of(&manager), Some(server.clone()));
        fs::write(server.join("server.json"), r#"{"format": 2, "server": 0}"#).unwrap();
        assert_eq!(pool_directory_of(&server.join("data")), Some(server.clone()));
        fs::remove_dir_all(&manager).unwrap();
        assert_eq!(pool_directory_of(&server.join("data")), None, "a server of something else");
        fs::write(server.join("server.json"), r#"{"format": 2, "pool": "x", "server": 0}"#).unwrap();
        assert_eq!(pool_directory_of(&server.join("data")), Some(server));
        assert_eq!(pool_directory_of(root.path()), None);
    }
}
