//! A query as a tree of comparisons of fields with values.

use std::cmp::Ordering;

use outcore_core::Result;

use super::grammar::number_of;
use super::times::time_ns;

/// Comparisons with `and`, `or` and `not` between them.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Tree<C> {
    /// All hold; without any, it is everything.
    All(Vec<Self>),
    /// At least one holds.
    Any(Vec<Self>),
    Not(Box<Self>),
    One(C),
}

impl<C> Tree<C> {
    /// The same tree of other comparisons.
    pub(super) fn try_map<D>(self, change: &mut impl FnMut(C) -> Result<D>) -> Result<Tree<D>> {
        let each = |trees: Vec<Self>, change: &mut _| {
            trees.into_iter().map(|tree| tree.try_map(change)).collect::<Result<Vec<_>>>()
        };
        Ok(match self {
            Self::All(trees) => Tree::All(each(trees, change)?),
            Self::Any(trees) => Tree::Any(each(trees, change)?),
            Self::Not(tree) => Tree::Not(Box::new(tree.try_map(change)?)),
            Self::One(comparison) => Tree::One(change(comparison)?),
        })
    }

    /// Whether the query holds, if that follows from the comparisons of which `holds` knows it.
    pub(super) fn known(&self, holds: &impl Fn(&C) -> Option<bool>) -> Option<bool> {
        // One tree with the value `by` decides; all others must be known to have the opposite value.
        let decided = |trees: &[Self], by: bool| {
            let each: Vec<_> = trees.iter().map(|tree| tree.known(holds)).collect();
            if each.contains(&Some(by)) {
                return Some(by);
            }
            each.iter().all(Option::is_some).then_some(!by)
        };
        match self {
            Self::One(comparison) => holds(comparison),
            Self::Not(tree) => tree.known(holds).map(|holds| !holds),
            Self::All(trees) => decided(trees, false),
            Self::Any(trees) => decided(trees, true),
        }
    }

    /// All comparisons.
    pub(super) fn comparisons(&self) -> Vec<&C> {
        match self {
            Self::One(comparison) => vec![comparison],
            Self::Not(tree) => tree.comparisons(),
            Self::All(trees) | Self::Any(trees) => trees.iter().flat_map(Self::comparisons).collect(),
        }
    }

    /// Whether the query holds, if `holds` says so of each comparison.
    pub(super) fn holds(&self, holds: &mut impl FnMut(&C) -> Result<bool>) -> Result<bool> {
        match self {
            Self::One(comparison) => holds(comparison),
            Self::Not(tree) => Ok(!tree.holds(holds)?),
            Self::All(trees) => {
                for tree in trees {
                    if !tree.holds(holds)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Self::Any(trees) => {
                for tree in trees {
                    if tree.holds(holds)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

/// A field, an operator and a value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    pub field: Field,
    pub operator: Operator,
    pub literal: Literal,
}

/// How a field compares with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Equal,
    Unequal,
    Below,
    AtMost,
    Above,
    AtLeast,
    /// A text fits a pattern: `*` means any text, `?` any character, and a backslash makes the next character plain.
    Like,
}

/// A value of a query. Times are in nanoseconds since 1970.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal {
    Number(f64),
    Text(String),
    Time(i64),
}

/// The type of a field; of `Any`, the value chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Any,
    Number,
    Text,
    Time,
}

/// A field of a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Name,
    Path,
    Kind,
    Size,
    Owner,
    OwnerGroup,
    Modified,
    Changed,
    StripeUnit,
    StripeCount,
    Server,
    /// The path of the Zarr group that contains an array or a group.
    Group,
    Stored(Stored),
}

/// A field that an extended attribute contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The name of the attribute.
    pub attribute: String,
    /// The field in the index.
    pub field: String,
    /// The element of a list; without it, any element.
    pub position: Option<usize>,
}

/// The extended attribute that describes an array, a group or a report: a JSON object of [`DESCRIBED`] fields.
pub const DESCRIPTION: &str = "outcore.description";

/// The place of a field of descriptions in the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Indexed {
    /// In the class of the description: the values of all fields with few different values.
    InClass,
    /// Each value has an entry.
    Alone,
    /// A search by it reads all descriptions.
    Not,
}

/// The fields of a description: name, type, whether they are lists, and their place in the index. `kind` and `size` are
/// also fields of files.
pub(super) const DESCRIBED: [(&str, Type, bool, Indexed); 15] = [
    ("kind", Type::Text, false, Indexed::InClass),
    ("size", Type::Number, false, Indexed::Not),
    ("dtype", Type::Text, false, Indexed::InClass),
    ("shape", Type::Number, true, Indexed::Alone),
    ("chunks", Type::Number, true, Indexed::Not),
    ("dims", Type::Text, true, Indexed::InClass),
    ("ndim", Type::Number, false, Indexed::InClass),
    ("order", Type::Text, false, Indexed::InClass),
    ("chunk_order", Type::Text, false, Indexed::InClass),
    ("state", Type::Text, false, Indexed::InClass),
    ("steps", Type::Number, false, Indexed::Alone),
    ("method", Type::Text, false, Indexed::Alone),
    ("residual", Type::Number, false, Indexed::Alone),
    ("condition", Type::Number, false, Indexed::Alone),
    ("time", Type::Number, false, Indexed::Alone),
];

/// The place of a field in the index. Fields other than [`DESCRIBED`] are attributes of users.
pub(super) fn indexed(field: &str) -> Indexed {
    let described = DESCRIBED.iter().find(|(name, ..)| *name == field);
    described.map_or(Indexed::Alone, |(.., indexed)| *indexed)
}

/// The fields of the manager's records, and the group, which is a field of two of them.
const RECORDED: [(&str, Field, Type); 12] = [
    ("name", Field::Name, Type::Text),
    ("path", Field::Path, Type::Text),
    ("kind", Field::Kind, Type::Text),
    ("size", Field::Size, Type::Number),
    ("owner", Field::Owner, Type::Number),
    ("owner_group", Field::OwnerGroup, Type::Number),
    ("mtime", Field::Modified, Type::Time),
    ("ctime", Field::Changed, Type::Time),
    ("stripe_unit_bytes", Field::StripeUnit, Type::Number),
    ("stripe_count", Field::StripeCount, Type::Number),
    ("server", Field::Server, Type::Number),
    ("group", Field::Group, Type::Text),
];

impl Field {
    /// A field other than an attribute, its type, and whether it is a stored list.
    pub(super) fn known(name: &str) -> Option<(Self, Type, bool)> {
        if let Some((_, field, of)) = RECORDED.iter().find(|(known, ..)| *known == name) {
            return Some((field.clone(), *of, false));
        }
        let (_, of, is_list, _) = DESCRIBED.iter().find(|(known, ..)| *known == name)?;
        Some((Self::Stored(Stored::described(name)), *of, *is_list))
    }

    /// The names of these fields.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        let described =
            DESCRIBED.iter().map(|(name, ..)| *name).filter(|name| !matches!(*name, "kind" | "size"));
        RECORDED.iter().map(|(name, ..)| *name).chain(described)
    }

    /// The extended attribute from which a search reads the field.
    pub(super) fn attribute(&self) -> Option<&str> {
        match self {
            Self::Kind | Self::Size | Self::Group => Some(DESCRIPTION),
            Self::Stored(stored) => Some(&stored.attribute),
            _ => None,
        }
    }
}

impl Stored {
    /// The field of a user's attribute.
    pub(super) fn attribute(name: &str) -> Self {
        Self { attribute: name.to_owned(), field: format!("attr.{name}"), position: None }
    }

    /// A field of the description.
    pub(super) fn described(name: &str) -> Self {
        Self { attribute: DESCRIPTION.to_owned(), field: name.to_owned(), position: None }
    }

    /// The values of the field among those of its attribute.
    pub(super) fn values(&self, terms: &[Term]) -> Vec<Scalar> {
        let is_of = |term: &&Term| {
            term.field == self.field && self.position.is_none_or(|position| term.position == position)
        };
        terms.iter().filter(is_of).map(|term| term.value.clone()).collect()
    }
}

/// A value of a file.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Number(f64),
    Text(String),
    Time(i64),
}

/// A value of a field, and its place in a list.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Term {
    pub field: String,
    pub position: usize,
    pub value: Scalar,
}

impl Scalar {
    pub(super) fn as_number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => number_of(text),
            Self::Time(_) => None,
        }
    }

    pub(super) fn as_time(&self) -> Option<i64> {
        match self {
            Self::Time(time) => Some(*time),
            Self::Text(text) => time_ns(text),
            Self::Number(_) => None,
        }
    }

    /// The order of the value and a literal; `None` if the value is none of the literal's type.
    fn compare(&self, literal: &Literal) -> Option<Ordering> {
        match (self, literal) {
            (Self::Text(text), Literal::Text(other)) => Some(text.cmp(other)),
            (_, Literal::Text(_)) => None,
            (value, Literal::Number(number)) => value.as_number()?.partial_cmp(number),
            (value, Literal::Time(time)) => Some(value.as_time()?.cmp(time)),
        }
    }
}

impl Comparison {
    /// Whether the comparison holds for a field with these values. It holds if it does for one of them, but
    /// inequality must hold for all; without a value of the literal's type, none holds.
    pub(super) fn holds(&self, values: &[Scalar]) -> bool {
        if self.operator == Operator::Like {
            let Literal::Text(pattern) = &self.literal else { return false };
            let fits = |value: &Scalar| matches!(value, Scalar::Text(text) if fits(pattern, text));
            return values.iter().any(fits);
        }
        let mut orders = values.iter().filter_map(|value| value.compare(&self.literal)).peekable();
        match self.operator {
            Operator::Equal => orders.any(Ordering::is_eq),
            Operator::Unequal => orders.peek().is_some() && orders.all(Ordering::is_ne),
            Operator::Below => orders.any(Ordering::is_lt),
            Operator::AtMost => orders.any(Ordering::is_le),
            Operator::Above => orders.any(Ordering::is_gt),
            Operator::AtLeast => orders.any(Ordering::is_ge),
            Operator::Like => false,
        }
    }
}

/// The characters of a pattern: `None` for `*`, and for each other whether any character fits.
fn parts(pattern: &str) -> Vec<Option<(char, bool)>> {
    let mut parts = Vec::new();
    let mut left = pattern.chars();
    while let Some(next) = left.next() {
        parts.push(match next {
            '*' => None,
            '?' => Some(('?', true)),
            '\\' => Some((left.next().unwrap_or('\\'), false)),
            plain => Some((plain, false)),
        });
    }
    parts
}

/// The text with which all texts begin that fit a pattern.
pub(super) fn beginning(pattern: &str) -> String {
    parts(pattern).iter().map_while(|part| part.filter(|(_, any)| !any).map(|(plain, _)| plain)).collect()
}

/// Whether a text fits a pattern. After a `*`, it retries at each later character, so the time is at most the
/// product of both lengths.
fn fits(pattern: &str, text: &str) -> bool {
    let (parts, text) = (parts(pattern), text.chars().collect::<Vec<_>>());
    let (mut at, mut from, mut star) = (0, 0, None);
    while from < text.len() {
        match parts.get(at) {
            Some(None) => {
                star = Some((at, from));
                at += 1;
            }
            Some(Some((plain, any))) if *any || *plain == text[from] => {
                at += 1;
                from += 1;
            }
            _ => match star {
                Some((place, begun)) => {
                    star = Some((place, begun + 1));
                    (at, from) = (place + 1, begun + 1);
                }
                None => return false,
            },
        }
    }
    parts[at..].iter().all(Option::is_none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_in_a_shell() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*", "abc", true),
            ("*c", "abcbc", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxayyb", true),
            ("*a*b*", "xxbyya", false),
            ("a\\*", "a*", true),
            ("a\\*", "ab", false),
            ("ü?", "üß", true),
            ("[a]", "a", false),
        ] {
            assert_eq!(fits(pattern, text), expected, "{pattern} {text}");
        }
        assert_eq!(beginning("ab?c*"), "ab");
        assert_eq!(beginning("a\\*b*"), "a*b");
    }
}
