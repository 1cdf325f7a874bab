//! Values of metrics at one moment, read from Prometheus' text format, and the differences between two moments.

use std::collections::BTreeMap;

/// The labels of a value.
pub(crate) type Labels = BTreeMap<String, String>;

/// The values of a daemon's metrics at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample(Vec<(String, Labels, f64)>);

impl Sample {
    /// Reads a page of metrics. Lines that are no values are left out.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(parse_line).collect())
    }

    /// All values of a metric, with their labels.
    pub(crate) fn each<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Labels, f64)> {
        self.0.iter().filter(move |(each, ..)| each == name).map(|(_, labels, value)| (labels, *value))
    }

    /// The sum of a metric's values whose labels satisfy a condition.
    pub(crate) fn sum(&self, name: &str, is_wanted: impl Fn(&Labels) -> bool) -> f64 {
        self.each(name).filter(|(labels, _)| is_wanted(labels)).map(|(_, value)| value).sum::<f64>() + 0.0
    }

    /// The only value of a metric, or `None` if the page lacks it.
    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.each(name).next().map(|(_, value)| value)
    }

    /// The only labels of a metric.
    pub(crate) fn label(&self, name: &str, label: &str) -> String {
        self.each(name).next().and_then(|(labels, _)| labels.get(label).cloned()).unwrap_or_default()
    }

    /// Upper bounds and cumulative counts of a histogram, summed over the labels that satisfy a condition.
    fn buckets(&self, name: &str, is_wanted: impl Fn(&Labels) -> bool) -> Vec<(f64, f64)> {
        let name = format!("{name}_bucket");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (labels, count) in self.each(&name).filter(|(labels, _)| is_wanted(labels)) {
            let bound = labels.get("le").and_then(|text| match text.as_str() {
                "+Inf" => Some(f64::INFINITY),
                text => text.parse().ok(),
            });
            let Some(bound) = bound else { continue };
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += count,
                None => buckets.push((bound, count)),
            }
        }
        buckets.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        buckets
    }
}

/// Quantiles of the times that came into a histogram between two samples; `None` if there were none. Inside a bucket
/// they are interpolated, as by Prometheus' `histogram_quantile`.
pub(crate) fn quantiles<const N: usize>(
    pairs: &[(&Sample, &Sample)],
    name: &str,
    is_wanted: impl Fn(&Labels) -> bool,
    shares: [f64; N],
) -> Option<[f64; N]> {
    let mut counts: Vec<(f64, f64)> = Vec::new();
    for (before, after) in pairs {
        let (before, after) = (before.buckets(name, &is_wanted), after.buckets(name, &is_wanted));
        for (bound, count) in after {
            let earlier = before.iter().find(|(known, _)| *known == bound).map_or(0.0, |(_, count)| *count);
            match counts.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, sum)) => *sum += count - earlier,
                None => counts.push((bound, count - earlier)),
            }
        }
    }
    let total = counts.last().map_or(0.0, |(_, count)| *count);
    if total <= 0.0 {
        return None;
    }
    let quantile = |share: f64| {
        let rank = share * total;
        let at = counts.iter().position(|(_, count)| *count >= rank).unwrap_or(counts.len() - 1);
        let (low, below) = if at == 0 { (0.0, 0.0) } else { counts[at - 1] };
        let (high, count) = counts[at];
        if high.is_infinite() || count <= below {
            return low;
        }
        low + (high - low) * (rank - below) / (count - below)
    };
    Some(shares.map(quantile))
}

fn parse_line(line: &str) -> Option<(String, Labels, f64)> {
    if line.starts_with('#') {
        return None;
    }
    let (head, value) = line.rsplit_once(' ')?;
    let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok()? };
    let Some((name, inside)) = head.split_once('{') else {
        return Some((head.to_owned(), Labels::new(), value));
    };
    let mut labels = Labels::new();
    let mut rest = inside.strip_suffix('}')?;
    while !rest.is_empty() {
        let (label, quoted) = rest.split_once("=\"")?;
        let (mut text, mut characters) = (String::new(), quoted.char_indices());
        let end = loop {
            match characters.next()? {
                (end, '"') => break end,
                (_, '\\') => match characters.next()?.1 {
                    'n' => text.push('\n'),
                    other => text.push(other),
                },
                (_, other) => text.push(other),
            }
        };
        labels.insert(label.to_owned(), text);
        rest = quoted[end + 1..].trim_start_matches(',');
    }
    Some((name.to_owned(), labels, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exposition::Page;

    #[test]
    fn what_a_page_says_is_read_back() {
        let mut page = Page::default();
        page.single("a", "gauge", "what it is", 1.5);
        page.metric("b_total", "counter", "more");
        page.value("b_total", &[("x", "a\"b\\c\nd, }"), ("y", "")], 7);
        page.value("b_total", &[("x", "z"), ("y", "2")], 3);
        let sample = Sample::parse(&page.into_text());
        assert_eq!((sample.value("a"), sample.value("c")), (Some(1.5), None));
        assert_eq!(sample.label("b_total", "x"), "a\"b\\c\nd, }");
        assert_eq!(sample.sum("b_total", |_| true), 10.0);
        assert_eq!(sample.sum("b_total", |labels| labels["y"] == "2"), 3.0);
    }

    #[test]
    fn lines_that_are_no_values_are_left_out() {
        let text = "a{x=\"1} 2\na{x} 1\nb\nc word\n\n# HELP d e\nd 4";
        assert_eq!(Sample::parse(text).0, [("d".to_owned(), Labels::new(), 4.0)]);
    }

    #[test]
    fn quantiles_are_those_of_the_requests_in_between() {
        let page = |counts: [u64; 3]| {
            let mut page = Page::default();
            page.metric("t", "histogram", "times");
            for (le, count) in ["1", "2", "+Inf"].into_iter().zip(counts) {
                page.value("t_bucket", &[("kind", "read"), ("le", le)], count);
                page.value("t_bucket", &[("kind", "join"), ("le", le)], 100);
            }
            Sample::parse(&page.into_text())
        };
        let (before, after) = (page([1000, 1000, 1000]), page([1050, 1100, 1100]));
        let is_read = |labels: &Labels| labels["kind"] == "read";
        let of = |shares| quantiles(&[(&before, &after)], "t", is_read, shares);
        // 50 of 100 times are up to 1 s, the others up to 2 s.
        assert_eq!(of([0.25, 0.5, 0.75, 0.99]), Some([0.5, 1.0, 1.5, 1.98]));
        assert_eq!(quantiles(&[(&before, &before)], "t", is_read, [0.5]), None);
        let slow = page([1000, 1000, 1010]);
        assert_eq!(quantiles(&[(&before, &slow)], "t", is_read, [0.5]), Some([2.0]), "the last known bound");
    }
}
