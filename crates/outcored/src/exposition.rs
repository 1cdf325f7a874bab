//! Metrics in version 0.0.4 of Prometheus' text exposition format
//! (<https://prometheus.io/docs/instrumenting/exposition_formats/>).

use std::fmt::{Display, Write};

/// The content type for HTTP.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A page of metrics.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// Starts a metric of a kind: `counter`, `gauge` or `histogram`.
    pub(crate) fn metric(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a value of the current metric.
    pub(crate) fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.0.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.0.push(if i == 0 { '{' } else { ',' });
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{label}=\"{text}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        let _ = writeln!(self.0, " {value}");
    }

    /// Adds a metric with one value.
    pub(crate) fn single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.metric(name, kind, help);
        self.value(name, &[], value);
    }

    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_as_the_format_says() {
        let mut page = Page::default();
        page.single("a", "gauge", "what it is", 1.5);
        page.metric("b_total", "counter", "more");
        page.value("b_total", &[("x", "a\"b\\c\nd"), ("y", "")], 7);
        let expected = "# HELP a what it is\n# TYPE a gauge\na 1.5\n# HELP b_total more\n# TYPE b_total counter\n\
                        b_total{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 7\n";
        assert_eq!(page.into_text(), expected);
    }
}
