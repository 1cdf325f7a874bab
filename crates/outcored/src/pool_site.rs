//! The manager's page for people: its readers, and its address.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use outcore_core::{Error, Result};
use outcore_net::Key;

use crate::http::{Get, Got, PageServer};
use crate::manager::PageSettings;
use crate::pool_page::pool_page;
use crate::watch::Watch;

/// The content type of the page.
const CONTENT_TYPE: &str = "text/html; charset=utf-8";

/// The content of the page.
pub(crate) enum View {
    /// A page that is made already.
    Text(String),
    /// The pool, from the watch.
    Pool(Watch),
}

/// The page, and its view.
pub(crate) struct PoolSite {
    // The fields are dropped in this order: no request reads the view when it ends.
    pub(crate) server: PageServer,
    view: Arc<Mutex<Arc<View>>>,
}

impl PoolSite {
    /// Serves the page at an address. Without a password, that is an address of this machine only.
    pub(crate) fn start(settings: &PageSettings, view: View) -> Result<Self> {
        let PageSettings { address, password } = settings.clone();
        if password.is_none() && !is_loopback(name_of(&address)) {
            return Err(Error::invalid(format!(
                "need page_key_file for a page that other machines can read, have page = \"{address}\" without one; set \
                 page_key_file, or page = \"127.0.0.1:9470\""
            )));
        }
        let view = Arc::new(Mutex::new(Arc::new(view)));
        let shown = view.clone();
        let server = PageServer::start("page", &address, move |get| {
            match &password {
                Some(password) if !has_password(get, password) => return Got::Locked,
                // A page of another site, whose name was bound to this machine's address, could read this one.
                None if !get.host.is_some_and(|host| is_loopback(name_of(host))) => {
                    return Got::Missing("the page is at http://127.0.0.1 or http://localhost");
                }
                _ => {}
            }
            match get.path {
                "/" => {
                    let shown = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    let page = match &*shown {
                        View::Text(page) => page.clone(),
                        View::Pool(watch) => pool_page(&watch.moments()),
                    };
                    Got::Page(CONTENT_TYPE, page)
                }
                _ => Got::Missing("the page is at /"),
            }
        })?;
        Ok(Self { server, view })
    }

    /// Shows a view in a page that is served already, if there is one; else serves the page.
    pub(crate) fn show_in(page: Option<Self>, settings: &PageSettings, view: View) -> Result<Self> {
        match page {
            Some(page) => {
                page.show(view);
                Ok(page)
            }
            None => Self::start(settings, view),
        }
    }

    /// Shows another view from now on.
    pub(crate) fn show(&self, view: View) {
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(view);
    }
}

/// The host of `HOST:PORT`.
fn name_of(place: &str) -> &str {
    place.rsplit_once(':').map_or(place, |(host, _)| host)
}

fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a request has the digits of the key as its password, for any user (RFC 7617).
fn has_password(get: &Get<'_>, key: &Key) -> bool {
    let given = get.authorization.and_then(|value| value.strip_prefix("Basic "));
    let text = given.and_then(decoded).and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(given) = text.as_deref().and_then(|text| text.split_once(':')) else { return false };
    let Ok(given) = Key::from_hex(given.1) else { return false };
    // The time does not tell how many bytes are right.
    given.bytes().iter().zip(key.bytes()).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
}

/// Decodes base 64 (RFC 4648, section 4).
fn decoded(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (vec![], 0_u32, 0);
    for character in text.trim_end_matches('=').bytes() {
        let six = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(six);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_vectors_of_rfc_4648_are_decoded() {
        let vectors = [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmFy", "foobar"),
        ];
        for (text, bytes) in vectors {
            assert_eq!(decoded(text), Some(bytes.as_bytes().to_vec()));
        }
        assert_eq!(decoded("Zm9v!"), None);
    }

    #[test]
    fn only_addresses_of_this_machine_are_open_to_all() {
        for (host, is_so) in
            [("127.0.0.1", true), ("[::1]", true), ("localhost", true), ("0.0.0.0", false), ("node1", false)]
        {
            assert_eq!(is_loopback(host), is_so, "{host}");
        }
    }
}
