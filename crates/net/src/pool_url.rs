//! URLs of served pools, and of names in pools. Every client of a pool by its URL parses the URL here.

use std::fmt;
use std::mem::discriminant;
use std::str::FromStr;
use std::time::Duration;

use outcore_core::{Error, Result};

use crate::{Address, Credentials, ServedLink};

/// The address of a pool: that of its manager, with those of the managers that may take over.
///
/// As text it is the prefix of the names in the pool: `outcore://HOST:PORT,HOST:PORT/`, `outcore+tls://HOST:PORT/`, or
/// `outcore:/PATH::` of a UNIX socket or of the first directory of an embedded pool.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolUrl {
    /// At least one; all with TLS, all without, or one UNIX socket.
    managers: Vec<Address>,
}

impl PoolUrl {
    /// The URL of the pool with these managers. A URL has one way to connect, so this takes the managers that are reached as
    /// the first one is, and only one UNIX socket. `None` if there is no manager.
    pub fn of(managers: &[Address]) -> Option<Self> {
        let first = managers.first()?;
        let alike = managers.iter().filter(|each| discriminant(*each) == discriminant(first));
        let most = if matches!(first, Address::Unix(_)) { 1 } else { managers.len() };
        Some(Self { managers: alike.take(most).cloned().collect() })
    }

    /// Splits the URL of a name in a pool into that of the pool and the name.
    ///
    /// The forms are `outcore://HOST:PORT/NAME`, `outcore+tls://HOST:PORT/NAME`, `outcore:/PATH::NAME` and
    /// `outcore:///PATH:/NAME`; `HOST:PORT,HOST:PORT` names several managers. Before a host, one `/` may stand for two,
    /// because some libraries normalise paths.
    ///
    /// # Errors
    ///
    /// If it is not the URL of a name in a pool.
    pub fn split(url: &str) -> Result<(Self, &str)> {
        let why = match Parts::of(url) {
            Parts::Served(pool, name) => return Ok((pool, name)),
            Parts::NoPlace(place) => format!(": {place:?} is no HOST:PORT"),
            Parts::Path(path) => match path_and_name(path) {
                Some((path, name)) => return Ok((Self::of_path(path), name)),
                None => String::new(),
            },
            Parts::Other => String::new(),
        };
        Err(Error::invalid(format!(
            "{url} is no name in a pool{why}; need outcore://HOST:PORT/NAME, outcore+tls://HOST:PORT/NAME, \
             outcore://HOST:PORT,HOST:PORT/NAME with a stand-by manager, or outcore:/PATH::NAME of a directory or UNIX socket"
        )))
    }

    /// The addresses of the managers.
    pub fn managers(&self) -> &[Address] {
        &self.managers
    }

    /// Connects to the manager that answers. Calls fail after a server was unreachable for `patience`.
    ///
    /// # Errors
    ///
    /// If no manager answers, or it refuses the credentials.
    pub fn connect(&self, credentials: Credentials, patience: Option<Duration>) -> Result<ServedLink> {
        ServedLink::connect(&self.managers, credentials, patience)
    }

    fn of_path(path: &str) -> Self {
        Self { managers: vec![Address::Unix(path.into())] }
    }
}

impl FromStr for PoolUrl {
    type Err = Error;

    /// Parses the URL of a served pool, without a name in it.
    fn from_str(url: &str) -> Result<Self> {
        let why = match Parts::of(url) {
            Parts::Served(pool, "") => return Ok(pool),
            Parts::Served(_, name) => format!(", but of {name:?} in it"),
            Parts::NoPlace(place) => format!(": {place:?} is no HOST:PORT"),
            Parts::Path(path) => match socket(path) {
                Some(path) => return Ok(Self::of_path(path)),
                None => String::new(),
            },
            Parts::Other => String::new(),
        };
        Err(Error::invalid(format!(
            "{url:?} is no address of a pool{why}; write outcore://HOST:PORT, outcore+tls://HOST:PORT, \
             outcore://HOST:PORT,HOST:PORT with a stand-by manager, or outcore:/PATH of a UNIX socket"
        )))
    }
}

impl fmt::Display for PoolUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, manager) in self.managers.iter().enumerate() {
            let (scheme, place) = match manager {
                Address::Unix(path) => return write!(f, "outcore:{}::", path.display()),
                Address::Tcp(place) => ("outcore://", place),
                Address::Tls(place) => ("outcore+tls://", place),
            };
            write!(f, "{}{place}", if number == 0 { scheme } else { "," })?;
        }
        f.write_str("/")
    }
}

/// The parts of a URL.
enum Parts<'a> {
    /// Managers that are reached over a network, and a name.
    Served(PoolUrl, &'a str),
    /// A part of a list of managers that is none.
    NoPlace(&'a str),
    /// A path in the file system, perhaps with a name. It begins with `/`.
    Path(&'a str),
    /// Another text.
    Other,
}

impl<'a> Parts<'a> {
    fn of(url: &'a str) -> Self {
        let (way, rest) = match (url.strip_prefix("outcore:"), url.strip_prefix("outcore+tls:")) {
            (Some(rest), _) => ("tcp", rest),
            (None, Some(rest)) => ("tls", rest),
            (None, None) => return Self::Other,
        };
        let Some(after) = rest.strip_prefix('/') else { return Self::Other };
        let twice = after.strip_prefix('/');
        let served = twice.unwrap_or(after);
        let (places, name) = served.split_once('/').unwrap_or((served, ""));
        let is_served = match twice {
            _ if way == "tls" => true,
            Some(served) => !served.starts_with('/'),
            None => places.split(',').all(is_place) && !name.contains("::"),
        };
        if !is_served {
            return Self::Path(rest);
        }
        let mut managers = vec![];
        for place in places.split(',') {
            match format!("{way}:{place}").parse() {
                Ok(manager) => managers.push(manager),
                Err(_) => return Self::NoPlace(place),
            }
        }
        Self::Served(PoolUrl { managers }, name)
    }
}

/// Whether a text looks like HOST:PORT, and not like a path before `::`.
fn is_place(text: &str) -> bool {
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_host = !host.is_empty() && (host.starts_with('[') || !host.contains(':'));
        is_host && !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// The path of a UNIX socket, without `::` behind it and another `//` before it.
fn socket(text: &str) -> Option<&str> {
    let path = match text.strip_prefix("//") {
        Some(local) if local.contains(":/") => return None,
        Some(local) => local,
        None => text,
    };
    let path = path.strip_suffix("::").unwrap_or(path);
    (path != "/").then_some(path)
}

/// Divides `/PATH::NAME`, or `///PATH:/NAME`, where an empty name needs no `/`.
fn path_and_name(text: &str) -> Option<(&str, &str)> {
    let Some(local) = text.strip_prefix("//") else { return text.split_once("::") };
    let whole = local.strip_suffix(':').filter(|path| !path.ends_with(':')).map(|path| (path, ""));
    local.split_once(":/").or(whole).or_else(|| local.split_once("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pool: &PoolUrl) -> String {
        let texts: Vec<String> = pool.managers().iter().map(ToString::to_string).collect();
        texts.join(" ")
    }

    #[test]
    fn urls_of_pools_have_addresses() {
        for (url, addresses, prefix) in [
            ("outcore://node1:7171", "tcp:node1:7171", "outcore://node1:7171/"),
            ("outcore://[::1]:7171/", "tcp:[::1]:7171", "outcore://[::1]:7171/"),
            ("outcore:/node1:7171", "tcp:node1:7171", "outcore://node1:7171/"),
            ("outcore+tls://node1:7171", "tls:node1:7171", "outcore+tls://node1:7171/"),
            ("outcore://a:1,b:2", "tcp:a:1 tcp:b:2", "outcore://a:1,b:2/"),
            ("outcore:/a:1,[::1]:2/", "tcp:a:1 tcp:[::1]:2", "outcore://a:1,[::1]:2/"),
            ("outcore+tls://a:1,b:2,c:3/", "tls:a:1 tls:b:2 tls:c:3", "outcore+tls://a:1,b:2,c:3/"),
            ("outcore:/run/a b.sock", "unix:/run/a b.sock", "outcore:/run/a b.sock::"),
            ("outcore:/run/pool.sock::", "unix:/run/pool.sock", "outcore:/run/pool.sock::"),
            ("outcore:///run/pool.sock", "unix:/run/pool.sock", "outcore:/run/pool.sock::"),
        ] {
            let pool: PoolUrl = url.parse().unwrap();
            assert_eq!((texts(&pool).as_str(), pool.to_string().as_str()), (addresses, prefix), "{url}");
            assert_eq!(PoolUrl::split(prefix).unwrap(), (pool, ""), "{url}");
        }
    }

    #[test]
    fn other_texts_are_refused_with_the_part_that_is_wrong() {
        for (url, wrong) in [
            ("", ""),
            ("node1:7171", ""),
            ("outcore:a", ""),
            ("outcore:/", ""),
            ("outcore:///a:/b", ""),
            ("outcore://node1", ": \"node1\" is no HOST:PORT"),
            ("outcore://node1:7171/sim", ", but of \"sim\" in it"),
            ("outcore://a:1,b", ": \"b\" is no HOST:PORT"),
            ("outcore://a:1,", ": \"\" is no HOST:PORT"),
            ("outcore://,a:1", ": \"\" is no HOST:PORT"),
            ("outcore://a:1, b:2", ": \" b:2\" is no HOST:PORT"),
            ("outcore:/a:1,b:70000", ": \"b:70000\" is no HOST:PORT"),
            ("outcore://a:1,outcore://b:2", ": \"outcore:\" is no HOST:PORT"),
            ("outcore://a:1,unix:/run/b.sock", ": \"unix:\" is no HOST:PORT"),
            ("outcore+tls:/a", ": \"a\" is no HOST:PORT"),
        ] {
            let error = url.parse::<PoolUrl>().unwrap_err();
            let expected = format!("{url:?} is no address of a pool{wrong}; write outcore://HOST:PORT, ");
            assert!(error.message.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn urls_of_names_are_split() {
        for (url, prefix, name) in [
            ("outcore://node1:7171/sim/u", "outcore://node1:7171/", "sim/u"),
            ("outcore://node1:7171", "outcore://node1:7171/", ""),
            ("outcore:/node1:7171/u", "outcore://node1:7171/", "u"),
            ("outcore://a:1,b:2/sim/u,v", "outcore://a:1,b:2/", "sim/u,v"),
            ("outcore+tls://[::1]:1,b:2/u", "outcore+tls://[::1]:1,b:2/", "u"),
            ("outcore://a:1/u::v", "outcore://a:1/", "u::v"),
            ("outcore:/mnt/a::sim/u", "outcore:/mnt/a::", "sim/u"),
            ("outcore:/mnt::7", "outcore:/mnt::", "7"),
            ("outcore:/a,b:1::u", "outcore:/a,b:1::", "u"),
            ("outcore:/a:1/b::u", "outcore:/a:1/b::", "u"),
            ("outcore:///mnt/a:/u:/v", "outcore:/mnt/a::", "u:/v"),
            ("outcore:///mnt/a:", "outcore:/mnt/a::", ""),
            ("outcore:///mnt/a::u", "outcore:/mnt/a::", "u"),
            ("outcore:///mnt/a::", "outcore:/mnt/a::", ""),
        ] {
            let (pool, found) = PoolUrl::split(url).unwrap();
            assert_eq!((pool.to_string().as_str(), found), (prefix, name), "{url}");
        }
        for (url, wrong) in [
            ("outcore:", ""),
            ("outcore:u", ""),
            ("outcore:/nowhere", ""),
            ("outcore:///u", ""),
            ("outcore:node1:1/u", ""),
            ("outcore://node1/u", ": \"node1\" is no HOST:PORT"),
            ("outcore://a:1,,b:2/u", ": \"\" is no HOST:PORT"),
        ] {
            let error = PoolUrl::split(url).unwrap_err();
            let expected = format!("{url} is no name in a pool{wrong}; need outcore://HOST:PORT/NAME, ");
            assert!(error.message.starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn a_url_has_the_managers_that_are_reached_in_one_way() {
        for (addresses, url) in [
            ("tcp:a:1", "outcore://a:1/"),
            ("tcp:a:1 tcp:b:2", "outcore://a:1,b:2/"),
            ("tls:a:1 tcp:a:2 tls:b:1", "outcore+tls://a:1,b:1/"),
            ("unix:/a tcp:b:1 unix:/c", "outcore:/a::"),
        ] {
            let managers: Vec<Address> = addresses.split(' ').map(|text| text.parse().unwrap()).collect();
            assert_eq!(PoolUrl::of(&managers).unwrap().to_string(), url);
        }
        assert_eq!(PoolUrl::of(&[]), None);
    }
}
