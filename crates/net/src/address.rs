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
        if host.is_empty() || host.contains(char::is_whitespace) || port.parse::<u16>().is_err() {
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
    fn addresses_are_what_they_say() {
        for text in ["tcp:node1:7171", "tcp:[::1]:0", "tls:node1:7171", "unix:/run/a b.sock"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "node1:7171",
            "tcp:node1",
            "tcp::7171",
            "tcp: a:7171",
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
