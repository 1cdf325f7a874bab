//! The index: records whose keys sort the values of extended attributes, so that a search reads a range of them.
//!
//! An entry only proposes a file. The search compares the attributes themselves, so an entry without its attribute does no
//! harm. Each attribute determines its entries.
//!
//! Most fields of a description have few different values. One entry has all of them: the class of the description. A
//! search tries each class that exists, so a new array needs few entries.

use std::collections::BTreeSet;

use outcore_core::Handle;
use serde_json::{Map, Value};

use super::super::files::HINT_PREFIX;
use super::super::keys::KeyRange;
use super::query::{
    Comparison, DESCRIBED, DESCRIPTION, Field, Indexed, Literal, Operator, Scalar, Stored, Term, Type,
    beginning, indexed,
};

/// Entries of one attribute, at most. One with more has a single entry, which proposes the file to all searches.
const MAX_ENTRIES: usize = 16;
/// Bytes of a text in an entry, at most: the rest does not sort.
const MAX_TEXT_BYTES: usize = 128;
/// Bytes of a class, at most. A description with a longer one has a single entry, too.
const MAX_CLASS_BYTES: usize = 400;

const LETTER: u8 = b'y';
const OF_ALL: u8 = 0;
const NUMBER: u8 = 1;
const TEXT: u8 = 2;
const TIME: u8 = 3;
const CLASS: u8 = 4;
/// Above each handle.
const LAST: [u8; 9] = [0xff; 9];

/// The values that an extended attribute contains.
pub(super) fn terms(name: &str, value: &[u8]) -> Vec<Term> {
    if name == DESCRIPTION {
        return fields_of(value).map_or_else(Vec::new, |fields| described(&fields, |_| true));
    }
    let Ok(text) = std::str::from_utf8(value) else { return Vec::new() };
    let field = Stored::attribute(name).field;
    vec![Term { field, position: 0, value: Scalar::Text(text.to_owned()) }]
}

/// The fields of a description.
fn fields_of(description: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(description).ok()
}

/// The values of the fields of a description that the index treats in some ways.
fn described(fields: &Map<String, Value>, is_wanted: impl Fn(Indexed) -> bool) -> Vec<Term> {
    let wanted = DESCRIBED.iter().filter(|(.., indexed)| is_wanted(*indexed));
    let each = wanted.flat_map(|(field, of, is_list, _)| {
        terms_of(field, *of, *is_list, fields.get(*field).unwrap_or(&Value::Null))
    });
    each.collect()
}

/// The values of a field of a description.
fn terms_of(field: &str, of: Type, is_list: bool, value: &Value) -> Vec<Term> {
    let values = match value {
        Value::Array(values) if is_list => values.as_slice(),
        value if !is_list => std::slice::from_ref(value),
        _ => &[],
    };
    let scalar = |value: &Value| match of {
        Type::Number => value.as_f64().map(Scalar::Number),
        _ => value.as_str().map(|text| Scalar::Text(text.to_owned())),
    };
    let terms = values.iter().enumerate().filter_map(|(position, value)| {
        scalar(value).map(|value| Term { field: field.to_owned(), position, value })
    });
    terms.collect()
}

/// The class of a description: a JSON list of the values of its fields of [`Indexed::InClass`], in their order.
fn class_of(fields: &Map<String, Value>) -> String {
    let values = in_class().map(|(field, ..)| fields.get(field).cloned().unwrap_or(Value::Null));
    Value::Array(values.collect()).to_string()
}

fn in_class() -> impl Iterator<Item = (&'static str, Type, bool)> {
    let fields = DESCRIBED.iter().filter(|(.., indexed)| *indexed == Indexed::InClass);
    fields.map(|(field, of, is_list, _)| (*field, *of, *is_list))
}

/// The keys of the entries of an attribute.
pub(in super::super) fn entries(handle: Handle, name: &str, value: &[u8]) -> BTreeSet<Vec<u8>> {
    if name.starts_with(HINT_PREFIX) {
        return BTreeSet::new();
    }
    let with_handle = |sorted: Vec<u8>| [sorted, handle.0.to_be_bytes().to_vec()].concat();
    let single = || BTreeSet::from([with_handle([&of_all()[..], name.as_bytes(), &[0]].concat())]);
    let mut found = BTreeSet::new();
    let alone = if name == DESCRIPTION {
        let Some(fields) = fields_of(value) else { return found };
        let class = class_of(&fields);
        if class.len() > MAX_CLASS_BYTES {
            return single();
        }
        found.insert(with_handle([&start("", CLASS)[..], class.as_bytes(), &[0]].concat()));
        described(&fields, |indexed| indexed == Indexed::Alone)
    } else {
        terms(name, value)
    };
    for Term { field, value, .. } in alone {
        let mut add = |sorted: Vec<u8>| found.insert(with_handle(sorted));
        if let Scalar::Text(text) = &value {
            add(sorted_text(&field, text));
        }
        if let Some(number) = value.as_number() {
            add(sorted_number(&field, number));
        }
        if let Some(time) = value.as_time() {
            add(sorted_time(&field, time));
        }
    }
    if found.len() > MAX_ENTRIES { single() } else { found }
}

/// The values of the class in the key of its entry.
pub(super) fn class_in(key: &[u8]) -> Vec<Term> {
    let text =
        key.strip_prefix(&start("", CLASS)[..]).and_then(|rest| rest.get(..rest.len().checked_sub(9)?));
    let Some(Ok(values)) = text.map(serde_json::from_slice::<Vec<Value>>) else { return Vec::new() };
    let each = in_class().zip(&values);
    each.flat_map(|((field, of, is_list), value)| terms_of(field, of, is_list, value)).collect()
}

/// The key after all entries of the class of an entry.
pub(super) fn after_class(key: &[u8]) -> Vec<u8> {
    [&key[..key.len().saturating_sub(9)], &[1]].concat()
}

/// The entries of all classes.
pub(super) fn all_classes() -> KeyRange {
    (start("", CLASS), start("", CLASS + 1))
}

/// The handle and the attribute of an entry, if the key is one.
pub(in super::super) fn entry_in(key: &[u8]) -> Option<(Handle, String)> {
    let (rest, handle) = key.split_last_chunk::<8>()?;
    let rest = rest.strip_prefix(&[LETTER])?;
    let of = rest.iter().position(|byte| *byte == 0)?;
    let field = match rest.get(of + 1)? {
        &OF_ALL => rest.get(of + 2..)?.strip_suffix(&[0])?,
        _ => &rest[..of],
    };
    let field = std::str::from_utf8(field).ok()?;
    let name = match (rest[of + 1], field.strip_prefix("attr.")) {
        (OF_ALL, _) => field,
        (_, Some(name)) => name,
        (_, None) => DESCRIPTION,
    };
    Some((Handle(u64::from_be_bytes(*handle)), name.to_owned()))
}

/// All entries.
pub(in super::super) fn all_entries() -> KeyRange {
    (vec![LETTER], vec![LETTER + 1])
}

/// The start of the entries that every search reads.
fn of_all() -> Vec<u8> {
    start("", OF_ALL)
}

/// The entries that every search reads. They come before all others.
pub(super) fn entries_of_all() -> KeyRange {
    (of_all(), start("", OF_ALL + 1))
}

/// The start of the entries of a field with values of a type.
fn start(field: &str, of: u8) -> Vec<u8> {
    [&[LETTER], field.as_bytes(), &[0, of]].concat()
}

/// Ends before a zero byte: the texts of entries have none, so one behind them keeps their order.
fn shortened(text: &str) -> &[u8] {
    let bytes = &text.as_bytes()[..text.len().min(MAX_TEXT_BYTES)];
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn sorted_text(field: &str, text: &str) -> Vec<u8> {
    [&start(field, TEXT)[..], shortened(text), &[0]].concat()
}

/// The bits of a number, so that they sort as numbers do: negative ones first, and these backwards.
fn sorted_number(field: &str, number: f64) -> Vec<u8> {
    let bits = (number + 0.0).to_bits(); // -0.0 is 0.0
    let sorted = if bits >> 63 == 0 { bits ^ (1 << 63) } else { !bits };
    [&start(field, NUMBER)[..], &sorted.to_be_bytes()].concat()
}

fn sorted_time(field: &str, time: i64) -> Vec<u8> {
    [&start(field, TIME)[..], &((time as u64) ^ (1 << 63)).to_be_bytes()].concat()
}

/// The entries among which are those of all files for which a comparison holds; `None` if the index does not have
/// them.
pub(super) fn range(comparison: &Comparison) -> Option<KeyRange> {
    let Comparison { field, operator, literal } = comparison;
    let field = match field {
        Field::Stored(stored)
            if indexed(&stored.field) == Indexed::Alone && !stored.attribute.starts_with(HINT_PREFIX) =>
        {
            stored.field.as_str()
        }
        _ => return None,
    };
    let (of, at) = match literal {
        Literal::Number(number) => (NUMBER, sorted_number(field, *number)),
        Literal::Text(text) => (TEXT, sorted_text(field, text)),
        Literal::Time(time) => (TIME, sorted_time(field, *time)),
    };
    let (first, last) = (start(field, of), start(field, of + 1));
    let behind = [&at[..], &LAST].concat();
    Some(match (operator, literal) {
        (Operator::Unequal, _) => return None,
        (Operator::Like, Literal::Text(pattern)) => {
            let beginning = beginning(pattern);
            let begun = [&first[..], shortened(&beginning)].concat();
            (begun.clone(), [&begun[..], &LAST].concat())
        }
        (Operator::Like, _) => return None,
        (Operator::Equal, _) => (at, behind),
        (Operator::Below | Operator::AtMost, _) => (first, behind),
        (Operator::Above | Operator::AtLeast, _) => (at, last),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn holds_and_range(operator: Operator, literal: Literal, value: &str) -> (bool, bool) {
        let comparison = Comparison { field: Field::Stored(Stored::attribute("a")), operator, literal };
        let Some((from, until)) = range(&comparison) else { return (false, false) };
        let in_range =
            entries(Handle(7), "a", value.as_bytes()).iter().any(|key| from <= *key && *key < until);
        (comparison.holds(&[Scalar::Text(value.to_owned())]), in_range)
    }

    const OPERATORS: [Operator; 6] = [
        Operator::Equal,
        Operator::Below,
        Operator::AtMost,
        Operator::Above,
        Operator::AtLeast,
        Operator::Like,
    ];

    proptest! {
        /// Each file for which a comparison holds is in the range of its entries.
        #[test]
        fn ranges_have_all_that_holds(
            value in "[ -~\0ü*]{0,4}|-?[0-9]{1,3}(\\.[0-9])?",
            text in "[ -~\0ü*]{0,4}",
            number in prop_oneof![Just(0.0), Just(-0.0), -200.0..200.0_f64],
            operator in prop::sample::select(&OPERATORS[..]),
        ) {
            for literal in [Literal::Text(text.clone()), Literal::Text(value.clone()), Literal::Number(number)] {
                let (holds, in_range) = holds_and_range(operator, literal, &value);
                prop_assert!(in_range || !holds);
            }
        }

        #[test]
        fn long_texts_are_found_by_their_beginning(length in 100..300_usize, more in "[a-c]{0,3}") {
            let (value, literal) = ("x".repeat(length), "x".repeat(length) + &more);
            for operator in OPERATORS {
                let (holds, in_range) = holds_and_range(operator, Literal::Text(literal.clone()), &value);
                prop_assert!(in_range || !holds);
            }
        }

        #[test]
        fn numbers_sort(one in any::<f64>(), other in any::<f64>()) {
            prop_assume!(one.is_finite() && other.is_finite());
            prop_assert_eq!(one < other, sorted_number("a", one) < sorted_number("a", other));
        }
    }

    #[test]
    fn entries_name_their_attribute() {
        let value = br#"{"kind": "array", "shape": [3, 4, 3], "dims": ["x", "2026-11-01"], "odd": 1, "dtype": 5, "size": 9, "method": "7"}"#;
        let keys = entries(Handle(9), DESCRIPTION, value);
        // The class, two numbers, and a text that is also a number.
        assert_eq!(keys.len(), 5);
        for key in &keys {
            assert_eq!(entry_in(key), Some((Handle(9), DESCRIPTION.to_owned())));
        }
        for key in entries(Handle(9), "run", b"12") {
            assert_eq!(entry_in(&key), Some((Handle(9), "run".to_owned())));
        }
        let many: Vec<String> = (0..50).map(|n| format!("{n}")).collect();
        let many = format!("{{\"shape\": [{}]}}", many.join(","));
        let long = format!("{{\"dims\": [\"{}\"]}}", "x".repeat(MAX_CLASS_BYTES));
        let (from, until) = entries_of_all();
        for value in [many, long] {
            let keys: Vec<_> = entries(Handle(9), DESCRIPTION, value.as_bytes()).into_iter().collect();
            assert_eq!(keys.len(), 1);
            assert_eq!(entry_in(&keys[0]), Some((Handle(9), DESCRIPTION.to_owned())));
            assert!(from <= keys[0] && keys[0] < until);
        }
        assert!(entries(Handle(9), "hint.a", b"b").is_empty() && entries(Handle(9), "a", b"\xff").is_empty());
        assert!(entries(Handle(9), DESCRIPTION, b"no JSON").is_empty());
    }

    #[test]
    fn an_entry_has_its_class() {
        let value =
            br#"{"kind": "array", "dtype": "c16", "dims": ["x\u0000", null, "y"], "ndim": 3, "shape": [1]}"#;
        let keys = entries(Handle(u64::MAX), DESCRIPTION, value);
        let (from, until) = all_classes();
        let class = keys.iter().find(|key| from <= **key && **key < until).unwrap();
        let found = class_in(class);
        let is_in_class = |term: &Term| indexed(&term.field) == Indexed::InClass;
        let expected: Vec<Term> = terms(DESCRIPTION, value).into_iter().filter(is_in_class).collect();
        assert_eq!(found, expected);
        assert_eq!(found.len(), 5);
        assert!(*class < after_class(class) && after_class(class) < until);
        let other = entries(Handle(0), DESCRIPTION, br#"{"kind": "array", "dtype": "c8"}"#);
        assert!(
            other.iter().all(|key| *key > after_class(class) || *key < class[..class.len() - 8].to_vec())
        );
        assert!(class_in(b"yshape\0\x01").is_empty());
    }
}
