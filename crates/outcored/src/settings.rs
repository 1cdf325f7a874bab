//! Settings from a file: lines of `name = value`. A value is a number, a text in quotes, or a list of texts; `#`
//! begins a comment. Unknown names are refused.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use outcore_core::{Error, ErrorKind, Result};

/// Size of a settings file, at most.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Text(String),
    List(Vec<String>),
}

/// The settings of a file that the daemon has not yet taken.
#[derive(Debug)]
pub struct Settings {
    values: BTreeMap<String, (usize, Value)>,
    file: String,
}

impl Settings {
    /// Reads the settings from a file.
    pub fn from_file(path: &Path) -> Result<Self> {
        let file = path.display().to_string();
        let text = read(path).map_err(|error| {
            let kind = if error.kind() == std::io::ErrorKind::NotFound {
                ErrorKind::NotFound
            } else {
                ErrorKind::Io
            };
            Error::new(kind, format!("cannot read the settings {file}: {error}; check the path"))
        })?;
        if text.len() as u64 > MOST_BYTES {
            return Err(Error::invalid(format!(
                "need settings of at most {MOST_BYTES} bytes, {file} has more; check the path"
            )));
        }
        Self::from_text(&text, &file)
    }

    /// Reads the settings from text. `file` is for error messages.
    pub fn from_text(text: &str, file: &str) -> Result<Self> {
        let mut values = BTreeMap::new();
        for (i, line) in text.lines().enumerate() {
            let number = i + 1;
            let unusable = |what: &str| Error::invalid(format!("{file}, line {number}: {what}"));
            let Some((name, value)) = line.split_once('=') else {
                if is_empty(line) {
                    continue;
                }
                return Err(unusable("need name = value"));
            };
            if is_empty(name) {
                // The equals sign is in a comment.
                continue;
            }
            let value = parse(value.trim()).ok_or_else(|| {
                unusable(
                    "need a number, a text in double quotes without a backslash, or a list of such texts",
                )
            })?;
            if values.insert(name.trim().to_owned(), (number, value)).is_some() {
                return Err(unusable(&format!("{} is there twice", name.trim())));
            }
        }
        Ok(Self { values, file: file.to_owned() })
    }

    fn wrong(&self, name: &str, need: &str) -> Error {
        Error::invalid(format!("{}: need {name} = {need}", self.file))
    }

    pub(crate) fn text(&mut self, name: &str, example: &str) -> Result<Option<String>> {
        match self.values.remove(name) {
            None => Ok(None),
            Some((_, Value::Text(text))) => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, example)),
        }
    }

    pub(crate) fn number(&mut self, name: &str, example: &str) -> Result<Option<u64>> {
        match self.values.remove(name) {
            None => Ok(None),
            Some((_, Value::Number(number))) => Ok(Some(number)),
            Some(_) => Err(self.wrong(name, example)),
        }
    }

    /// Takes a list of texts; a single text becomes a list of one.
    pub(crate) fn list(&mut self, name: &str, example: &str) -> Result<Option<Vec<String>>> {
        match self.values.remove(name) {
            None => Ok(None),
            Some((_, Value::List(list))) => Ok(Some(list)),
            Some((_, Value::Text(text))) => Ok(Some(vec![text])),
            Some(_) => Err(self.wrong(name, example)),
        }
    }

    pub(crate) fn required<T>(&self, value: Option<T>, name: &str, example: &str) -> Result<T> {
        value.ok_or_else(|| self.wrong(name, example))
    }

    /// Refuses settings that nobody took. `known` lists the valid names.
    pub(crate) fn finish(&self, known: &str) -> Result<()> {
        match self.values.iter().next() {
            None => Ok(()),
            Some((name, (line, _))) => Err(Error::invalid(format!(
                "{}, line {line}: {name} is no setting; there are {known}",
                self.file
            ))),
        }
    }
}

/// The content of a file, truncated shortly after the limit.
fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    // Opening a pipe would wait for its writer.
    if path.metadata()?.file_type().is_fifo() {
        return Err(io::Error::other("it is a pipe, and no file"));
    }
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES {
        // The limit may lie within a character.
        return Ok(String::from_utf8_lossy(&bytes).into_owned());
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

fn is_empty(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || text.starts_with('#')
}

/// Parses a value, followed by nothing but a comment.
fn parse(text: &str) -> Option<Value> {
    let (value, rest) = if let Some(inner) = text.strip_prefix('[') {
        let (mut list, mut rest) = (Vec::new(), inner.trim_start());
        loop {
            if let Some(end) = rest.strip_prefix(']') {
                break (Value::List(list), end);
            }
            let (item, after) = quoted(rest)?;
            list.push(item);
            rest = after.trim_start();
            match rest.strip_prefix(',') {
                Some(after) => rest = after.trim_start(),
                None if rest.starts_with(']') => {}
                None => return None,
            }
        }
    } else if text.starts_with('"') {
        let (text, rest) = quoted(text)?;
        (Value::Text(text), rest)
    } else {
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        (Value::Number(text[..end].replace('_', "").parse().ok()?), &text[end..])
    };
    is_empty(rest).then_some(value)
}

fn quoted(text: &str) -> Option<(String, &str)> {
    let (inner, rest) = text.strip_prefix('"')?.split_once('"')?;
    (!inner.contains('\\')).then(|| (inner.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_each_kind() {
        let text = "# a = comment\n\ndirectory = \"/mnt/a = b\"  # where\nmemory_bytes = 64_000\n\
                    listen = [\"tcp:a:1\", \"unix:/b\",] # both\nmanager=\"tcp:c:2\"\nnone = []";
        let mut settings = Settings::from_text(text, "f").unwrap();
        assert_eq!(settings.text("directory", ""), Ok(Some("/mnt/a = b".into())));
        assert_eq!(settings.number("memory_bytes", ""), Ok(Some(64_000)));
        assert_eq!(settings.list("listen", ""), Ok(Some(vec!["tcp:a:1".into(), "unix:/b".into()])));
        assert_eq!(settings.list("manager", ""), Ok(Some(vec!["tcp:c:2".into()])));
        assert_eq!(settings.list("none", ""), Ok(Some(vec![])));
        assert_eq!(settings.text("absent", ""), Ok(None));
        assert_eq!(settings.finish(""), Ok(()));
    }

    #[test]
    fn a_file_that_does_not_end_is_refused() {
        let error = Settings::from_file(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains("1048576 bytes, /dev/zero has more"), "{error}");
        let absent = Settings::from_file(Path::new("/dev/null/absent")).unwrap_err();
        assert!(absent.message.contains("check the path"), "{absent}");
    }

    #[test]
    fn what_is_not_understood_is_refused_with_its_line() {
        for text in [
            "a",
            "a = ",
            "a = b",
            "a = \"b",
            "a = \"b\" c",
            "a = 1 2",
            "a = [\"b\" \"c\"]",
            "a = [b]",
            "a = -1",
            "a = \"b\\n\"",
            "a = 99999999999999999999",
            "a = 1\na = 2",
        ] {
            let error = Settings::from_text(&format!("x = 1\n{text}"), "file").unwrap_err();
            assert!(error.message.contains("file, line "), "{text}: {error}");
        }
        let settings = Settings::from_text("\ndirectroy = \"/a\"", "file").unwrap();
        let error = settings.finish("directory, listen").unwrap_err();
        assert!(error.message.contains("line 2: directroy is no setting; there are directory"), "{error}");
        let mut settings = Settings::from_text("directory = 1", "file").unwrap();
        let error = settings.text("directory", "\"/mnt/a\"").unwrap_err();
        assert!(error.message.contains("need directory = \"/mnt/a\""), "{error}");
    }
}
