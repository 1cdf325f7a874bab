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
    pub(crate) svg: String,
}

/// A line of a chart: its name, its colour, and values at times, which are seconds before now and negative.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) colour: (u8, u8, u8),
    pub(crate) points: Vec<(f64, f64)>,
}

/// Draws a chart. `format` writes a value on the axis.
pub(crate) fn draw(title: &'static str, lines: Vec<Line>, format: &dyn Fn(f64) -> String) -> Chart {
    let mut svg = String::new();
    // Drawing into text cannot fail, but its interface can.
    let svg = match draw_into(&mut svg, &lines, format) {
        Ok(()) => svg,
        Err(error) => format!("The chart cannot be drawn: {error}."),
    };
    Chart { title, svg }
}

fn draw_into(
    svg: &mut String,
    lines: &[Line],
    format: &dyn Fn(f64) -> String,
) -> std::result::Result<(), Box<dyn Error>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let most = points().map(|(_, value)| *value).fold(0.0, f64::max);
    let first = points().map(|(at, _)| *at).fold(-LEAST_S, f64::min);
    let most = if most > 0.0 { most * 1.1 } else { 1.0 };
    let area = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&area)
        .margin(6)
        .x_label_area_size(22)
        .y_label_area_size(78)
        .build_cartesian_2d(first..0.0, 0.0..most)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(BLACK.mix(0.12))
        .axis_style(BLACK.mix(0.4))
        .label_style(("sans-serif", 13))
        .x_labels(5)
        .y_labels(4)
        .x_label_formatter(&|at| format!("{at:.0} s"))
        .y_label_formatter(&|value| format(*value))
        .draw()?;
    for Line { name, colour: (red, green, blue), points } in lines {
        let style = RGBColor(*red, *green, *blue).stroke_width(2);
        let series = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        series.label(*name).legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], style));
    }
    if lines.len() > 1 {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .label_font(("sans-serif", 13))
            .draw()?;
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
        let chart = draw("bytes", vec![line("read", 17), line("written", 34)], &|value| format!("{value:e}"));
        for text in ["<svg", "#110000", "#220000", "read", "written", "-20 s"] {
            assert!(chart.svg.contains(text), "{text} is not in {}", chart.svg);
        }
    }

    #[test]
    fn nothing_and_zeros_can_be_drawn() {
        for points in [vec![], vec![(0.0, 0.0)], vec![(-2.0, 0.0), (0.0, 0.0)]] {
            let line = Line { name: "read", colour: (1, 2, 3), points };
            assert!(draw("bytes", vec![line], &|value| value.to_string()).svg.contains("<svg"));
        }
    }
}
