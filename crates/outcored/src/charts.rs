//! Charts of values over the last minutes, as SVG.

use std::error::Error;

use plotters::prelude::*;

/// Width and height of a chart.
const SIZE: (u32, u32) = (480, 220);

/// Seconds that a chart shows, at least.
const LEAST_S: f64 = 60.0;

/// A chart.
pub(crate) struct Chart {
    pub(crate) title: &'static str,
    /// Name and colour of each line, unless there is only one.
    pub(crate) names: Vec<(&'static str, String)>,
    pub(crate) svg: String,
}

/// A unit of values, by its size and its name.
pub(crate) type Unit = (f64, &'static str);

/// A line of a chart: its name, its colour, and values at times, which are seconds before now and negative.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) colour: (u8, u8, u8),
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws a chart. `unit_of` gives the unit in which a value is short: the axis has round values in that of the largest one.
pub(crate) fn draw(title: &'static str, lines: Vec<Line>, unit_of: impl Fn(f64) -> Unit) -> Chart {
    let mut svg = String::new();
    // Drawing into text cannot fail, but its interface can.
    let svg = match draw_into(&mut svg, &lines, unit_of) {
        Ok(()) => svg,
        Err(error) => format!("The chart cannot be drawn: {error}."),
    };
    let named = |Line { name, colour: (r, g, b), .. }: &Line| (*name, format!("#{r:02x}{g:02x}{b:02x}"));
    let names = if lines.len() > 1 { lines.iter().map(named).collect() } else { vec![] };
    Chart { title, names, svg }
}

fn draw_into(
    svg: &mut String,
    lines: &[Line],
    unit_of: impl Fn(f64) -> Unit,
) -> std::result::Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let (size, unit) = unit_of(most);
    let most = most / size;
    let first = points().map(|(at, _)| *at).fold(-LEAST_S, f64::min);
    let most = if most > 0.0 { most * 1.1 } else { 1.0 };
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(6)
        .margin_top(14)
        .margin_right(18)
        .x_label_area_size(26)
        .y_label_area_size(84)
        .build_cartesian_2d(first..0.0, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .axis_style(BLACK.mix(0.4))
        .label_style(("sans-serif", 17))
        .x_labels(5)
        .y_labels(5)
        .x_label_formatter(&|at| format!("{at:.0} s"))
        // Without the last digits of 0.1 + 0.2.
        .y_label_formatter(&|value| format!("{} {unit}", (value * 1e6).round() / 1e6))
        .draw()?;
    for Line { colour: (red, green, blue), points, .. } in lines {
        let style = RGBColor(*red, *green, *blue).stroke_width(2);
        let scaled = points.iter().map(|(at, value)| (*at, value / size));
        chart.draw_series(LineSeries::new(scaled, style))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_in_the_drawing_with_its_colour_and_name() {
        let line = |name, red| Line { name, colour: (red, 0, 0), points: vec![(-9.0, 1.0), (0.0, 3e9)] };
        let chart = draw("bytes", vec![line("read", 17), line("written", 34)], |_| (1e9, "GB"));
        for text in ["<svg", "#110000", "#220000", "-20 s", "\n2 GB\n", "\n3 GB\n"] {
            assert!(chart.svg.contains(text), "{text} is not in {}", chart.svg);
        }
        assert_eq!(chart.names, [("read", "#110000".to_owned()), ("written", "#220000".to_owned())]);
    }

    #[test]
    fn nothing_and_zeros_can_be_drawn() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(-2.0, 0.0), (0.0, 0.0)]] {
            let line = Line { name: "read", colour: (1, 2, 3), points };
            assert!(draw("bytes", vec![line], |_| (1.0, "B")).svg.contains("<svg"));
        }
    }
}
