//! Rules for paths, and their names.

use outcore_core::{Error, Handle, Result, handle_in};

/// Bytes of a path, at most.
pub const MAX_PATH_BYTES: usize = 4096;
/// Bytes of one name, at most.
pub const MAX_NAME_BYTES: usize = 255;

/// The names of a path relative to the pool's root. The root is the empty path.
pub(super) fn names(path: &str) -> Result<Vec<&str>> {
    if path.is_empty() {
        return Ok(Vec::new());
    }
    check_length(path)?;
    let names: Vec<&str> = path.split('/').collect();
    for name in &names {
        check_name(name, path)?;
    }
    Ok(names)
}

/// The handle at which a path begins, if any, and its names.
pub(super) fn parts(path: &str) -> Result<(Option<Handle>, Vec<&str>)> {
    match handle_in(path) {
        Some((handle, below)) if !path.ends_with('/') => Ok((Some(handle), names(below)?)),
        _ => Ok((None, names(path)?)),
    }
}

fn check_length(path: &str) -> Result<()> {
    if path.len() <= MAX_PATH_BYTES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need a path of at most {MAX_PATH_BYTES} bytes, have {}; use shorter names",
        path.len()
    )))
}

fn check_name(name: &str, path: &str) -> Result<()> {
    let have = match name {
        "" => "an empty name",
        "." => "the name '.'",
        ".." => "the name '..'",
        _ if name.contains('\0') => "a zero byte",
        _ if name.len() > MAX_NAME_BYTES => "a name of more than 255 bytes",
        _ => return Ok(()),
    };
    Err(Error::invalid(format!(
        "need a path relative to the pool's root, with one '/' between names, have {have} in {path:?}; write it without"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::ErrorKind;

    #[test]
    fn names_are_between_slashes() {
        assert_eq!(names("").unwrap(), Vec::<&str>::new());
        assert_eq!(names("a").unwrap(), ["a"]);
        assert_eq!(names("a/b c/..d/ü").unwrap(), ["a", "b c", "..d", "ü"]);
        assert_eq!(names(&"x".repeat(255)).unwrap().len(), 1);
        assert_eq!(names(&"x/".repeat(2047)[..4093]).unwrap().len(), 2047);
    }

    #[test]
    fn a_path_may_begin_at_a_handle() {
        assert_eq!(parts("a/b").unwrap(), (None, vec!["a", "b"]));
        assert_eq!(parts("\x007").unwrap(), (Some(Handle(7)), vec![]));
        assert_eq!(parts("\x007/a/b").unwrap(), (Some(Handle(7)), vec!["a", "b"]));
        for bad in [
            "\x00",
            "\x00/a",
            "\x007/",
            "\x007//a",
            "\x00+7",
            "\x007/..",
            "\x00x/a",
            "a/\x007",
            "\x0099999999999999999999",
        ] {
            assert_eq!(parts(bad).unwrap_err().kind, ErrorKind::Invalid, "{bad:?}");
        }
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let long = "x".repeat(256);
        let many = "x/".repeat(2049);
        for bad in ["/", "/a", "a/", "a//b", ".", "a/./b", "..", "a/..", "a/../b", "a\0b", &long, &many] {
            let error = names(bad).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid, "{bad:?}");
            assert!(error.message.starts_with("need ") && error.message.contains("; "), "{error}");
        }
    }
}
