//! The parts of the store that a search reads: ranges of the index, or all names.

use outcore_core::Result;

use super::super::keys::{self, KeyRange};
use super::super::step::Step;
use super::query::{Comparison, DESCRIPTION, Field, Indexed, Scalar, Stored, Term, Tree, indexed};
use super::terms;
use crate::store::{MAX_RANGE, Store};

/// Conditions of which a search counts the entries, at most.
const MAX_COUNTED: usize = 8;
/// Entries of a condition that the first count reads, at most.
const FIRST_COUNT: usize = 64;
/// Classes that a search tries, at most. It reads all descriptions of the rest.
const MAX_CLASSES: usize = 512;

/// Parts of the index with an entry of each file of the result.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan<'a> {
    /// Ranges, in order and without common keys.
    ranges: Vec<KeyRange>,
    /// Queries that hold for described files only: the entries of the classes for which one of them may hold.
    described: Vec<&'a Tree<Comparison>>,
}

/// The plans of a query: one for each condition whose values the index sorts, and one for all conditions on
/// descriptions together. Without any, a search reads all names.
pub(super) fn plans(query: &Tree<Comparison>) -> Vec<Plan<'_>> {
    let trees = match query {
        Tree::All(trees) => trees.as_slice(),
        tree => std::slice::from_ref(tree),
    };
    let sorted = trees.iter().filter_map(plan).filter(|plan| !plan.ranges.is_empty()).take(MAX_COUNTED);
    sorted.chain(of_described(query)).collect()
}

fn plan(query: &Tree<Comparison>) -> Option<Plan<'_>> {
    match query {
        Tree::One(comparison) => {
            let sorted =
                terms::range(comparison).map(|range| Plan { ranges: vec![range], ..Plan::default() });
            sorted.or_else(|| of_described(query))
        }
        Tree::Any(trees) => {
            let each = trees.iter().map(plan).collect::<Option<Vec<_>>>()?;
            let described = each.iter().flat_map(|plan| plan.described.clone()).collect();
            let ranges = each.into_iter().flat_map(|plan| plan.ranges).collect();
            Some(Plan { ranges: in_order(ranges), described })
        }
        Tree::All(trees) => {
            trees.iter().filter_map(plan).min_by_key(|plan| (plan.described.len(), plan.ranges.len()))
        }
        Tree::Not(_) => of_described(query),
    }
}

/// The plan of a query that holds for no file without a description.
fn of_described(query: &Tree<Comparison>) -> Option<Plan<'_>> {
    let holds_for_others = query.known(&|comparison| known(comparison, None)) != Some(false);
    (!holds_for_others).then(|| Plan { ranges: Vec::new(), described: vec![query] })
}

/// The same ranges in order, without common keys.
fn in_order(mut ranges: Vec<KeyRange>) -> Vec<KeyRange> {
    ranges.sort();
    let mut apart: Vec<KeyRange> = Vec::new();
    for (from, until) in ranges {
        match apart.last_mut().filter(|(_, end)| from <= *end) {
            Some((_, end)) => *end = until.max(std::mem::take(end)),
            None => apart.push((from, until)),
        }
    }
    apart
}

/// Whether a comparison holds for a file, as far as that follows from the class of its description. `None` is a file
/// without a description, or with one that the user may not read.
fn known(comparison: &Comparison, class: Option<&[Term]>) -> Option<bool> {
    let values = |field: &Stored| field.values(class.unwrap_or_default());
    match &comparison.field {
        Field::Stored(stored) if stored.attribute == DESCRIPTION => {
            let is_known = class.is_none() || indexed(&stored.field) == Indexed::InClass;
            is_known.then(|| comparison.holds(&values(stored)))
        }
        // An array or a group is in a group or not. Nothing else is.
        Field::Group => match values(&Stored::described("kind")).as_slice() {
            [Scalar::Text(kind)] if matches!(kind.as_str(), "array" | "group") => None,
            _ => Some(false),
        },
        Field::Kind => {
            let described = values(&Stored::described("kind"));
            if !described.is_empty() {
                return Some(comparison.holds(&described));
            }
            let recorded =
                super::RECORDED_KINDS.map(|kind| comparison.holds(&[Scalar::Text(kind.to_owned())]));
            recorded.iter().all(|holds| *holds == recorded[0]).then_some(recorded[0])
        }
        _ => None,
    }
}

impl<S: Store> Step<'_, S> {
    /// The ranges of a plan in order, with keys from `from` on; without a plan, that of all names.
    pub(super) fn ranges(&self, plan: Option<&Plan<'_>>, from: &[u8]) -> Result<Vec<KeyRange>> {
        let ranges = match plan {
            Some(plan) => [&[terms::entries_of_all()][..], &self.classes(plan, from)?, &plan.ranges].concat(),
            None => vec![keys::all_names()],
        };
        let rest = ranges.into_iter().map(|(first, until)| (first.max(from.to_vec()), until));
        Ok(rest.filter(|(first, until)| first < until).collect())
    }

    /// The ranges of the classes of a plan, from a key on.
    fn classes(&self, plan: &Plan<'_>, from: &[u8]) -> Result<Vec<KeyRange>> {
        let mut found = Vec::new();
        if plan.described.is_empty() {
            return Ok(found);
        }
        let (first, end) = terms::all_classes();
        let mut at = first.max(from.to_vec());
        for _ in 0..MAX_CLASSES {
            let next = self.store.range(&at, &end, 1)?.into_iter().next();
            let Some((key, _)) = next else { return Ok(found) };
            let (class, after) = (terms::class_in(&key), terms::after_class(&key));
            let may_hold = |query: &&Tree<Comparison>| {
                query.known(&|comparison| known(comparison, Some(&class))) != Some(false)
            };
            if plan.described.iter().any(may_hold) {
                found.push((key, after.clone()));
            }
            at = after;
        }
        found.push((at, end));
        Ok(found)
    }

    /// The number of the plan with the fewest entries. It counts them only as far as needed.
    pub(super) fn shortest(&self, plans: &[Plan<'_>]) -> Result<u16> {
        let each = plans.iter().map(|plan| self.ranges(Some(plan), &[])).collect::<Result<Vec<_>>>()?;
        let mut most = FIRST_COUNT;
        loop {
            let mut best = (most, 0);
            for (ranges, number) in each.iter().zip(0..) {
                let count = self.count(ranges, best.0)?;
                best = best.min((count, number));
            }
            if best.0 < most || most == MAX_RANGE || plans.is_empty() {
                return Ok(best.1);
            }
            most = MAX_RANGE.min(4 * most);
        }
    }

    /// The number of entries in some ranges, at most `most`.
    fn count(&self, ranges: &[KeyRange], most: usize) -> Result<usize> {
        let mut count = 0;
        for (from, until) in ranges {
            count += self.store.range(from, until, most - count)?.len();
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_in_order_have_nothing_in_common() {
        let of = |from: &str, until: &str| (from.as_bytes().to_vec(), until.as_bytes().to_vec());
        let found = in_order(vec![of("ye", "yg"), of("ya", "yd"), of("yb", "yc"), of("yf", "yh")]);
        assert_eq!(found, [of("ya", "yd"), of("ye", "yh")]);
    }

    #[test]
    fn conditions_on_descriptions_leave_out_files_without_one() {
        let numbers = |query: &str| {
            let query = super::super::grammar::parse(query).unwrap();
            let found = plans(&query);
            let described = found.iter().filter(|plan| !plan.described.is_empty()).count();
            (found.len() - described, described)
        };
        for (query, expected) in [
            ("kind = \"array\"", (0, 1)),
            ("dtype = \"c16\"", (0, 1)),
            ("dtype = \"c16\" and ndim = 2", (0, 1)),
            ("chunks = 5", (0, 1)),
            ("shape != 5", (0, 1)),
            ("group ~ \"*\"", (0, 1)),
            ("kind = \"array\" and size > 5 and attr.run = 5", (1, 1)),
            ("ndim = 2 or order = \"F\"", (0, 1)),
            ("not kind ~ \"*\"", (0, 1)),
            ("shape[0] > 5", (1, 1)),
            ("dtype = \"c16\" or attr.run = 5", (0, 1)),
            ("attr.run = 5", (1, 0)),
            ("kind = \"file\"", (0, 0)),
            ("kind != \"array\"", (0, 0)),
            ("not dtype = \"c16\"", (0, 0)),
            ("dtype = \"c16\" or size > 5", (0, 0)),
            ("", (0, 0)),
        ] {
            assert_eq!(numbers(query), expected, "{query}");
        }
    }
}
