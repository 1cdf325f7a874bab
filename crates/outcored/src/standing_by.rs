//! A manager before it is the active one: it waits for the lease in the database, and its page says who has it.

use std::fs;

use askama::Template;
use outcore_core::Result;
use outcore_net::Address;
use outcore_server::store::{PostgresLease, Seen};

use crate::manager::ManagerSettings;
use crate::notify::notify_ready;
use crate::pool_site::{PoolSite, View};
use crate::turn::Heart;

/// The right to be the active manager, and the page that it has served as a stand-by.
#[derive(Default)]
pub struct Turned {
    pub(crate) heart: Option<Heart>,
    pub(crate) page: Option<PoolSite>,
}

#[derive(Template)]
#[template(path = "standby.html")]
struct StandbyPage<'a> {
    own: String,
    version: &'static str,
    database: &'a str,
    active: String,
    is_bad: bool,
}

/// Takes the lease of a manager whose metadata are in a database. A stand-by waits for it: before that it serves its page, and
/// tells systemd that it runs.
pub fn wait_for_lease(settings: &ManagerSettings) -> Result<Turned> {
    let Some(database) = &settings.store else { return Ok(Turned::default()) };
    let name = on_this_host(&listed(&settings.listen));
    if !settings.stand_by {
        let lease = PostgresLease::take(database, &name)?;
        return Ok(Turned { heart: Some(Heart::start(lease)?), page: None });
    }
    let page_of = |seen| standby_page(&settings.listen, database.name(), seen);
    let page =
        settings.page.as_ref().map(|page| PoolSite::start(page, View::Text(page_of(None)))).transpose()?;
    notify_ready();
    let lease = PostgresLease::stand_by(database, &name, |seen| {
        if let Some(page) = &page {
            page.show(View::Text(page_of(Some(seen))));
        }
    })?;
    Ok(Turned { heart: Some(Heart::start(lease)?), page })
}

/// A name for the holder of a lease, with the host on which it runs: its addresses may say only 0.0.0.0.
pub(crate) fn on_this_host(name: &str) -> String {
    match fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(host) => format!("{name} on host {}", host.trim_end()),
        Err(_) => name.to_owned(),
    }
}

fn listed(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Generates the page of a stand-by that listens at `own` once it is active; `None` before its first look at the lease.
fn standby_page(own: &[Address], database: &str, seen: Option<Seen>) -> String {
    let (active, is_bad) = match seen {
        None => ("It has not yet asked which manager is active.".into(), false),
        Some(Seen::Active(name)) if name.is_empty() => {
            ("A manager of an earlier version is active.".into(), false)
        }
        Some(Seen::Active(name)) => (format!("Active: {name}."), false),
        Some(Seen::Nobody) => ("No other manager is active: this one takes over.".into(), true),
        Some(Seen::Unreachable(why)) => (format!("It cannot ask which manager is active: {why}"), true),
    };
    let version = env!("CARGO_PKG_VERSION");
    let page = StandbyPage { own: listed(own), version, database, active, is_bad };
    page.render().unwrap_or_else(|error| format!("<!doctype html><p>The page cannot be drawn: {error}</p>"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_the_active_manager_or_says_why_it_cannot() {
        let own = ["tcp:node2:7171".parse().unwrap()];
        let cases = [
            (None, "not yet asked", false),
            (
                Some(Seen::Active("tcp:node1:7171 on host node1".into())),
                "Active: tcp:node1:7171 on host node1.",
                false,
            ),
            (Some(Seen::Active(String::new())), "A manager of an earlier version is active.", false),
            (Some(Seen::Nobody), "this one takes over", true),
            (Some(Seen::Unreachable("no <route>".into())), "no &#60;route&#62;", true),
        ];
        for (seen, text, is_bad) in cases {
            let page = standby_page(&own, "pool at db1:5432", seen);
            for part in ["Manager tcp:node2:7171 stands by", "pool at db1:5432", "content=\"5\"", text] {
                assert!(page.contains(part), "{part} is not in {page}");
            }
            assert_eq!(page.contains("<p id=\"active\" class=\"bad\">"), is_bad, "{page}");
        }
    }

    #[test]
    fn a_holder_of_the_lease_is_named_with_its_host() {
        let name = on_this_host("tcp:0.0.0.0:7171");
        assert!(
            name.strip_prefix("tcp:0.0.0.0:7171 on host ").is_some_and(|host| !host.is_empty()),
            "{name}"
        );
    }
}
