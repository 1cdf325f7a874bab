//! The layout of a new file, from its hints, the hints of its directories, and the pool's.

use outcore_core::{Error, Hints, Layout, Result, ServerId, Stripes};

/// Unknown hints of one file, at most.
pub const MAX_OTHER_HINTS: usize = 32;
/// Bytes of a hint's name, at most.
const MAX_HINT_NAME_BYTES: usize = 250;
/// Bytes of a hint's value, at most, as in most MPI libraries (`MPI_MAX_INFO_VAL`).
const MAX_HINT_VALUE_BYTES: usize = 1024;
/// Bytes of a stripe unit without a hint.
const STRIPE_UNIT_BYTES: u64 = 1 << 20;

/// Checks hints, and finds known ones among `others`: those of outcore, and those of MPI-4.0, section 14.2.8.
///
/// An invalid value in a field of its own is an error. An invalid value in a text hint is kept and ignored, as MPI
/// specifies for hints.
pub(super) fn understood(hints: &Hints, servers: usize) -> Result<Hints> {
    let mut found = hints.clone();
    check_others(&hints.others)?;
    check_known(hints, servers)?;
    found.others.retain(|(name, text)| {
        let (slot, can_be): (&mut Option<u64>, &dyn Fn(u64) -> bool) = match name.as_str() {
            "striping_unit" | "stripe_unit_bytes" => {
                (&mut found.stripe_unit_bytes, &|unit| Stripes::new(unit, 1).is_ok())
            }
            "round_units" => (&mut found.round_units, &|units| units > 0),
            "striping_factor" | "stripe_count" => (&mut found.stripe_count, &|count| count > 0),
            "start_iodevice" | "base" => (&mut found.base, &|base| base < servers as u64),
            _ => return true,
        };
        let value = text.trim().parse().ok().filter(|&value| can_be(value));
        *slot = slot.or(value);
        value.is_none()
    });
    Ok(found)
}

fn check_others(others: &[(String, String)]) -> Result<()> {
    let is_long = |(name, value): &(String, String)| {
        name.len() > MAX_HINT_NAME_BYTES || value.len() > MAX_HINT_VALUE_BYTES
    };
    if others.len() > MAX_OTHER_HINTS || others.iter().any(is_long) {
        return Err(Error::invalid(format!(
            "need at most {MAX_OTHER_HINTS} hints besides the known ones, with names of at most {MAX_HINT_NAME_BYTES} bytes \
             and values of at most {MAX_HINT_VALUE_BYTES}, have {} or longer ones; leave some out",
            others.len()
        )));
    }
    let is_empty = |(name, _): &(String, String)| name.is_empty() || name.contains('\0');
    if others.iter().any(is_empty) {
        return Err(Error::invalid("need hints with names, have one without; leave it out"));
    }
    Ok(())
}

fn check_known(hints: &Hints, servers: usize) -> Result<()> {
    if let Some(unit) = hints.stripe_unit_bytes {
        Stripes::new(unit, 1)?;
    }
    Stripes::new(1, 1)?.with_round_units(hints.round_units)?;
    if hints.stripe_count == Some(0) {
        return Err(Error::invalid(
            "need a stripe count of at least 1, have 0; leave it out for all servers",
        ));
    }
    match hints.base {
        Some(base) if base >= servers as u64 => Err(Error::invalid(format!(
            "need a base among the pool's {servers} I/O servers, which are counted from 0, have {base}; choose another"
        ))),
        _ => Ok(()),
    }
}

/// The hints of `first`, completed by those of `then`.
pub(super) fn merged(first: &Hints, then: &Hints) -> Hints {
    let mut others = first.others.clone();
    for (name, value) in &then.others {
        if others.len() < MAX_OTHER_HINTS && others.iter().all(|(known, _)| known != name) {
            others.push((name.clone(), value.clone()));
        }
    }
    Hints {
        stripe_unit_bytes: first.stripe_unit_bytes.or(then.stripe_unit_bytes),
        round_units: first.round_units.or(then.round_units),
        stripe_count: first.stripe_count.or(then.stripe_count),
        base: first.base.or(then.base),
        others,
    }
}

/// The layout of a new file. A stripe count above the number of servers means all of them. Without a base, `turn`
/// selects the first server.
pub(super) fn layout(hints: &Hints, servers: &[ServerId], turn: u64) -> Result<Layout> {
    let all = servers.len() as u64;
    if all == 0 {
        return Err(Error::invalid("need an I/O server for a file, have none in this pool; add one"));
    }
    let count = hints.stripe_count.unwrap_or(all).min(all);
    let base = hints.base.unwrap_or(turn) % all;
    let entries = (0..count).map(|entry| servers[((base + entry) % all) as usize]).collect();
    Layout::new(hints.stripe_unit_bytes.unwrap_or(STRIPE_UNIT_BYTES), entries)?
        .with_round_units(hints.round_units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::ErrorKind;

    fn others(pairs: &[(&str, &str)]) -> Hints {
        let others = pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Hints { others, ..Hints::default() }
    }

    fn ids(numbers: &[u32]) -> Vec<ServerId> {
        numbers.iter().map(|&number| ServerId(number)).collect()
    }

    #[test]
    fn mpis_names_are_known() {
        let found = understood(
            &others(&[
                ("striping_unit", "65536"),
                ("striping_factor", " 2 "),
                ("start_iodevice", "3"),
                ("cb_nodes", "8"),
            ]),
            4,
        )
        .unwrap();
        let known = Hints {
            stripe_unit_bytes: Some(65536),
            stripe_count: Some(2),
            base: Some(3),
            ..Hints::default()
        };
        assert_eq!(found, Hints { others: vec![("cb_nodes".into(), "8".into())], ..known });
        let ours = Hints { base: Some(1), ..others(&[("start_iodevice", "2"), ("stripe_count", "5")]) };
        let found = understood(&ours, 4).unwrap();
        assert_eq!((found.base, found.stripe_count), (Some(1), Some(5)), "ours count first");
    }

    #[test]
    fn texts_that_cannot_be_are_kept_and_ignored() {
        let texts = others(&[
            ("striping_unit", "0"),
            ("stripe_unit_bytes", "99999999999999"),
            ("round_units", "0"),
            ("striping_factor", "many"),
            ("stripe_count", "0"),
            ("start_iodevice", "4"),
            ("base", "-1"),
        ]);
        let found = understood(&texts, 4).unwrap();
        assert_eq!(found, texts);
    }

    #[test]
    fn values_that_cannot_be_are_refused() {
        let many = others(&[("x", "y"); 33]).others;
        let cases = [
            Hints { stripe_unit_bytes: Some(0), ..Hints::default() },
            Hints { stripe_unit_bytes: Some(u64::MAX), ..Hints::default() },
            Hints { round_units: Some(0), ..Hints::default() },
            Hints { stripe_count: Some(0), ..Hints::default() },
            Hints { base: Some(4), ..Hints::default() },
            Hints { others: many, ..Hints::default() },
            others(&[("", "v")]),
            others(&[(&"n".repeat(251), "v")]),
            others(&[("n", &"v".repeat(1025))]),
        ];
        for hints in cases {
            assert_eq!(understood(&hints, 4).unwrap_err().kind, ErrorKind::Invalid, "{hints:?}");
        }
    }

    #[test]
    fn servers_go_round_from_the_base() {
        let servers = ids(&[3, 5, 8, 9]);
        let hints = |count, base| Hints { stripe_count: count, base, ..Hints::default() };
        let laid = |hints: &Hints, turn| layout(hints, &servers, turn).unwrap();
        assert_eq!(laid(&hints(None, None), 0).servers, servers);
        assert_eq!(laid(&hints(None, None), 6).servers, ids(&[8, 9, 3, 5]));
        assert_eq!(laid(&hints(Some(2), Some(3)), 1).servers, ids(&[9, 3]));
        assert_eq!(laid(&hints(Some(100), Some(1)), 0).servers, ids(&[5, 8, 9, 3]), "all there are");
        assert_eq!(laid(&hints(None, None), 0).stripes.unit_bytes(), 1 << 20);
        assert_eq!(laid(&hints(None, None), 0).stripes.round_units(), None);
        let ending = Hints { round_units: Some(4), ..hints(None, None) };
        assert_eq!(laid(&ending, 0).stripes.round_units(), Some(4));
        assert_eq!(layout(&Hints::default(), &[], 0).unwrap_err().kind, ErrorKind::Invalid);
    }

    #[test]
    fn nearer_hints_count_first() {
        let near = Hints { stripe_count: Some(1), ..others(&[("a", "near")]) };
        let far = Hints { stripe_count: Some(2), base: Some(3), ..others(&[("a", "far"), ("b", "far")]) };
        let both = merged(&near, &far);
        assert_eq!((both.stripe_count, both.base, both.stripe_unit_bytes), (Some(1), Some(3), None));
        assert_eq!(both.others, others(&[("a", "near"), ("b", "far")]).others);
    }
}
