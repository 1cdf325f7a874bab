//! The address of a server, as text: `tcp:HOST:PORT`, `tls:HOST:PORT` or `unix:PATH`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use outcore_core::{Error, Result};

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host, by name or number, and a port.
    Tcp(String),
    /// The same, with encryption.
    Tls(String),
    /// A UNIX socket of this host.
    Unix(PathBuf),
}

impl Address {
    /// The manager's address in the URL of a served pool: `outcore://HOST:PORT`, `outcore+tls://HOST:PORT`, or
    /// `outcore:/PATH` of a UNIX socket. One `/` may stand behind the port.
    pub fn from_url(url: &str) -> Result<Self> {
        let place = |scheme| url.strip_prefix(scheme).map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let text = match (place("outcore+tls://"), place("outcore://"), url.strip_prefix("outcore:/")) {
            (Some(place), _, _) => format!("tls:{place}"),
            (None, Some(place), _) => format!("tcp:{place}"),
            (None, None, Some(path)) => format!("unix:/{}", path.strip_suffix("::").unwrap_or(path)),
            (None, None, None) => String::new(),
        };
        let address = if text.starts_with("unix:") || !text.contains('/') { text.parse().ok() } else { None };
        address.ok_or_else(|| {
            Error::invalid(format!(
                "need the address of a pool, have {url:?}; write outcore://HOST:PORT, outcore+tls://HOST:PORT, or \
                 outcore:/PATH of a UNIX socket"
            ))
        })
    }

    /// The URL of the served pool whose manager has this address. A path in the pool follows it.
    pub fn to_url(&self) -> String {
        match self {
            Self::Tcp(place) => format!("outcore://{place}/"),
            Self::Tls(place) => format!("outcore+tls://{place}/"),
            Self::Unix(path) => format!("outcore:{}::", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let unusable = || {
            Error::invalid(format!(
                "need an address such as tcp:node1:7171, tls:node1:7171 or unix:/run/pool.sock, have {text:?}"
            ))
        };
        if let Some(path) = text.strip_prefix("unix:").filter(|path| path.starts_with('/')) {
            return Ok(Self::Unix(path.into()));
        }
        let (scheme, place) = text.split_once(':').ok_or_else(unusable)?;
        let (host, port) = place.rsplit_once(':').ok_or_else(unusable)?;
        if host.is_empty() || port.parse::<u16>().is_err() {
            return Err(unusable());
        }
        match scheme {
            "tcp" => Ok(Self::Tcp(place.to_owned())),
            "tls" => Ok(Self::Tls(place.to_owned())),
            _ => Err(unusable()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(place) => write!(f, "tcp:{place}"),
            Self::Tls(place) => write!(f, "tls:{place}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_pools_have_addresses() {
        for (url, text) in [
            ("outcore://node1:7171", "tcp:node1:7171"),
            ("outcore://[::1]:7171/", "tcp:[::1]:7171"),
            ("outcore+tls://node1:7171", "tls:node1:7171"),
            ("outcore:/run/a b.sock", "unix:/run/a b.sock"),
            ("outcore:/run/pool.sock::", "unix:/run/pool.sock"),
        ] {
            assert_eq!(Address::from_url(url).unwrap().to_string(), text);
        }
        for url in
            ["", "node1:7171", "outcore://node1", "outcore://node1:7171/sim", "outcore:///a:/b", "outcore:a"]
        {
            let error = Address::from_url(url).unwrap_err();
            assert!(error.message.contains("outcore://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn addresses_are_what_they_say() {
        for text in ["tcp:node1:7171", "tcp:[::1]:0", "tls:node1:7171", "unix:/run/a b.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "node1:7171",
            "tcp:node1",
            "tcp::7171",
            "tcp:a:70000",
            "unix:relative",
            "udp:a:1",
            "tls:node1",
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.message.contains("tcp:node1:7171"), "{error}");
        }
    }
}
