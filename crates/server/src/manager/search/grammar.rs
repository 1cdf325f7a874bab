//! The language of searches: parses a query, and checks its fields and types. Errors say at which character.

use outcore_core::element_types::TYPES;
use outcore_core::{Error, Result};
use winnow::ModalResult;
use winnow::ascii::multispace0;
use winnow::combinator::{alt, cut_err, eof, fail, opt, terminated};
use winnow::error::{ContextError, StrContext, StrContextValue};
use winnow::prelude::*;
use winnow::stream::LocatingSlice;
use winnow::token::{any, one_of, take_while};

use super::query::{Comparison, Field, Literal, Operator, Stored, Tree, Type};
use super::times::time_ns;

/// Bytes of a query, at most.
pub const MAX_QUERY_BYTES: usize = 4096;
/// Parentheses and `not` inside one another, at most.
const MAX_DEPTH: usize = 32;

type Input<'a> = LocatingSlice<&'a str>;

/// A comparison as it was written. Positions are in bytes.
struct Written {
    field: Vec<String>,
    position: Option<(usize, usize)>,
    field_at: usize,
    operator: Operator,
    operator_at: usize,
    literal: Literal,
    literal_at: usize,
}

/// Parses a query. An empty one means everything.
pub(super) fn parse(query: &str) -> Result<Tree<Comparison>> {
    if query.len() > MAX_QUERY_BYTES {
        return Err(Error::invalid(format!(
            "need a query of at most {MAX_QUERY_BYTES} bytes, have {}; search in parts",
            query.len()
        )));
    }
    if query.trim().is_empty() {
        return Ok(Tree::All(Vec::new()));
    }
    let written = whole.parse(LocatingSlice::new(query)).map_err(|error| {
        let need = expected(error.inner()).unwrap_or("\"and\", \"or\", or the end of the query");
        wrong(query, error.offset(), need, "compare fields with values, such as name = \"u\" and size > 1 GB")
    })?;
    written.try_map(&mut |comparison| check(query, comparison))
}

fn expected(error: &ContextError) -> Option<&'static str> {
    error.context().find_map(|context| match context {
        StrContext::Expected(StrContextValue::Description(what)) => Some(*what),
        _ => None,
    })
}

/// The error for something wrong at a byte of the query.
fn wrong(query: &str, at: usize, need: &str, fix: &str) -> Error {
    let rest: String = query[at..].chars().take(20).collect();
    let have = if rest.is_empty() { "its end".to_owned() } else { format!("{rest:?}") };
    let character = query[..at].chars().count() + 1;
    Error::invalid(format!("need {need} at character {character} of the query {query:?}, have {have}; {fix}"))
}

fn need(what: &'static str) -> StrContext {
    StrContext::Expected(StrContextValue::Description(what))
}

fn whole(input: &mut Input<'_>) -> ModalResult<Tree<Written>> {
    multispace0.parse_next(input)?;
    terminated(|input: &mut Input<'_>| any_of(input, 0), eof).parse_next(input)
}

fn any_of(input: &mut Input<'_>, depth: usize) -> ModalResult<Tree<Written>> {
    let mut each = vec![all_of(input, depth)?];
    while opt(word("or")).parse_next(input)?.is_some() {
        each.push(all_of(input, depth)?);
    }
    Ok(if each.len() == 1 { each.remove(0) } else { Tree::Any(each) })
}

fn all_of(input: &mut Input<'_>, depth: usize) -> ModalResult<Tree<Written>> {
    let mut each = vec![one(input, depth)?];
    while opt(word("and")).parse_next(input)?.is_some() {
        each.push(one(input, depth)?);
    }
    Ok(if each.len() == 1 { each.remove(0) } else { Tree::All(each) })
}

fn one(input: &mut Input<'_>, depth: usize) -> ModalResult<Tree<Written>> {
    if depth > MAX_DEPTH {
        return cut_err(fail.context(need("at most 32 parentheses and \"not\" inside one another")))
            .parse_next(input);
    }
    if opt(word("not")).parse_next(input)?.is_some() {
        return Ok(Tree::Not(Box::new(one(input, depth + 1)?)));
    }
    if opt(sign("(")).parse_next(input)?.is_some() {
        let inner = any_of(input, depth + 1)?;
        cut_err(sign(")").context(need("\"and\", \"or\", or a closing parenthesis"))).parse_next(input)?;
        return Ok(inner);
    }
    comparison(input).map(Tree::One)
}

fn comparison(input: &mut Input<'_>) -> ModalResult<Written> {
    let names = cut_err(field.context(need("a field"))).with_span();
    let (field, field_at) = terminated(names, multispace0).parse_next(input)?;
    let position = opt(position).parse_next(input)?;
    let signs = cut_err(operator.context(need("one of = != < <= > >= ~")));
    let (operator, operator_at) = terminated(signs.with_span(), multispace0).parse_next(input)?;
    let values = cut_err(literal.context(need("a number, a time, or a text in quotes")));
    let (literal, literal_at) = terminated(values.with_span(), multispace0).parse_next(input)?;
    Ok(Written {
        field,
        position,
        field_at: field_at.start,
        operator,
        operator_at: operator_at.start,
        literal,
        literal_at: literal_at.start,
    })
}

/// A word of the language, in small or capital letters.
fn word<'a>(text: &'static str) -> impl Parser<Input<'a>, &'a str, winnow::error::ErrMode<ContextError>> {
    let letters = take_while(1.., |c: char| c.is_ascii_alphanumeric() || c == '_');
    terminated(letters.verify(move |found: &str| found.eq_ignore_ascii_case(text)), multispace0)
}

fn sign<'a>(text: &'static str) -> impl Parser<Input<'a>, &'a str, winnow::error::ErrMode<ContextError>> {
    terminated(text, multispace0)
}

/// The name of a field; after `attr.` that of an attribute, which may be in quotes.
fn field(input: &mut Input<'_>) -> ModalResult<Vec<String>> {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut first =
        take_while(1.., letters).verify(|name: &str| !name.starts_with(|c: char| c.is_ascii_digit()));
    let first = first.parse_next(input)?;
    if first != "attr" || opt('.').parse_next(input)?.is_none() {
        return Ok(vec![first.to_owned()]);
    }
    let plain = take_while(1.., |c: char| c.is_alphanumeric() || "_-.:".contains(c)).map(str::to_owned);
    let name = cut_err(alt((text, plain)).context(need("the name of an attribute"))).parse_next(input)?;
    Ok(vec![first.to_owned(), name])
}

/// The number of an element of a list, and its place in the query.
fn position(input: &mut Input<'_>) -> ModalResult<(usize, usize)> {
    let (_, at) = sign("[").with_span().parse_next(input)?;
    let digits = take_while(1..4, |c: char| c.is_ascii_digit()).parse_to::<usize>();
    let mut digits = cut_err(terminated(digits, multispace0).context(need("the number of an element")));
    let number = digits.parse_next(input)?;
    cut_err(sign("]").context(need("a closing bracket"))).parse_next(input)?;
    Ok((number, at.start))
}

fn operator(input: &mut Input<'_>) -> ModalResult<Operator> {
    alt((
        "<=".value(Operator::AtMost),
        ">=".value(Operator::AtLeast),
        "!=".value(Operator::Unequal),
        "=".value(Operator::Equal),
        "<".value(Operator::Below),
        ">".value(Operator::Above),
        "~".value(Operator::Like),
    ))
    .parse_next(input)
}

fn literal(input: &mut Input<'_>) -> ModalResult<Literal> {
    alt((text.map(Literal::Text), plain_literal)).parse_next(input)
}

/// A text in quotes. After a backslash, a quote or a backslash is part of the text.
fn text(input: &mut Input<'_>) -> ModalResult<String> {
    let quote = one_of(['"', '\'']).parse_next(input)?;
    let mut found = String::new();
    loop {
        let next = cut_err(any.context(need("the closing quote"))).parse_next(input)?;
        match next {
            next if next == quote => return Ok(found),
            '\\' if input.starts_with(['"', '\'', '\\']) => found.push(any.parse_next(input)?),
            next => found.push(next),
        }
    }
}

/// A number, perhaps with a unit of bytes, or a time.
fn plain_literal(input: &mut Input<'_>) -> ModalResult<Literal> {
    let mut letters = take_while(1.., |c: char| c.is_ascii_alphanumeric() || "+-.:".contains(c));
    let found = letters.parse_next(input)?;
    if let Some(time) = time_ns(found) {
        return Ok(Literal::Time(time));
    }
    let digits = found.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = match number_of(found) {
        Some(number) => {
            let mut after = opt((multispace0, alt(UNITS.map(|(name, _)| name))).map(|(_, unit)| unit));
            (number, after.parse_next(input)?)
        }
        None => match number_of(digits) {
            Some(number) => (number, Some(&found[digits.len()..])),
            None => return fail.parse_next(input),
        },
    };
    let Some(unit) = unit else { return Ok(Literal::Number(number)) };
    match UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, bytes)) => Ok(Literal::Number(number * bytes)),
        None => fail.parse_next(input),
    }
}

const UNITS: [(&str, f64); 9] = [
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1_048_576.0),
    ("GiB", 1_073_741_824.0),
    ("TiB", 1_099_511_627_776.0),
    ("B", 1.0),
];

/// The finite number that a text is.
pub(super) fn number_of(text: &str) -> Option<f64> {
    let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c));
    text.parse().ok().filter(|number: &f64| is_number && number.is_finite())
}

/// Checks the field and the type of a comparison.
fn check(query: &str, written: Written) -> Result<Comparison> {
    let (field, of, is_list) = match written.field.as_slice() {
        [_, name] => (Field::Stored(Stored::attribute(name)), Type::Any, false),
        [name] => Field::known(name).ok_or_else(|| {
            let known: Vec<&str> = Field::names().collect();
            wrong(
                query,
                written.field_at,
                "a field",
                &format!("write one of attr.NAME, {}", known.join(", ")),
            )
        })?,
        _ => return Err(wrong(query, written.field_at, "a field", "write its name")),
    };
    let name = written.field.join(".");
    let field = match (field, written.position) {
        (field, None) => field,
        (Field::Stored(stored), Some((position, _))) if is_list => {
            Field::Stored(Stored { position: Some(position), ..stored })
        }
        (_, Some((_, at))) => {
            let fix = format!("{name} has no elements; leave the brackets out");
            return Err(wrong(query, at, "an operator", &fix));
        }
    };
    let literal = match (of, written.literal) {
        (Type::Time, Literal::Text(text)) => match time_ns(&text) {
            Some(time) => Literal::Time(time),
            None => Literal::Text(text),
        },
        (_, literal) => literal,
    };
    let fits = matches!(
        (of, &literal),
        (Type::Any, _)
            | (Type::Number, Literal::Number(_))
            | (Type::Text, Literal::Text(_))
            | (Type::Time, Literal::Time(_))
    );
    if !fits {
        let (need, example) = match of {
            Type::Number => ("a number", "1e5 or 1 GB"),
            Type::Time => ("a time", "2026-11-01 or 2026-11-01T12:30:00Z"),
            _ => ("a text in quotes", "\"u\""),
        };
        let need = format!("{need} to compare with {name}");
        return Err(wrong(query, written.literal_at, &need, &format!("write one, such as {example}")));
    }
    let is_text = matches!(literal, Literal::Text(_));
    if written.operator == Operator::Like && !is_text {
        let need = "one of = != < <= > >= before a value that is no text";
        return Err(wrong(
            query,
            written.operator_at,
            need,
            "~ compares texts with patterns such as \"run*\"",
        ));
    }
    let literal = match literal {
        Literal::Text(text) if written.operator != Operator::Like => {
            Literal::Text(word_of(&name, text).map_err(|(need, known)| {
                wrong(query, written.literal_at, need, &format!("write one of {}", known.join(", ")))
            })?)
        }
        literal => literal,
    };
    Ok(Comparison { field, operator: written.operator, literal })
}

/// The known word of a field that a text names. The error has the text that the query needs there, and the known words.
fn word_of(field: &str, text: String) -> std::result::Result<String, (&'static str, Vec<&'static str>)> {
    let (need, known) = match field {
        "dtype" => {
            let name = text.trim_start_matches(['<', '>', '=', '|']);
            let of_zarr = TYPES.iter().find(|(known, short, _)| [*known, *short].contains(&name));
            let Some((_, short, _)) = of_zarr else {
                return Err(("a data type", TYPES.iter().map(|(_, short, _)| *short).collect()));
            };
            return Ok((*short).to_owned());
        }
        "kind" => ("a kind", KINDS),
        _ => return Ok(text),
    };
    if known.contains(&text.as_str()) { Ok(text) } else { Err((need, known.to_vec())) }
}

/// The kinds that a search tells apart.
const KINDS: &[&str] = &["array", "group", "report", "file", "directory", "link"];
