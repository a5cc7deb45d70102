//! Line charts as SVG.

use std::fmt::Write;

/// A chart of several lines over one logarithmic axis.
#[derive(Debug, Clone)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What the horizontal axis, which is logarithmic, shows.
    pub(crate) across: String,
    /// What the vertical axis, which begins at 0, shows.
    pub(crate) up: String,
    pub(crate) lines: Vec<Line>,
}

/// A line of a chart.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    /// Points from left to right; what lies left of 1 counts as 1.
    pub(crate) points: Vec<(f64, f64)>,
}

const SIZE: (f64, f64) = (760.0, 440.0);
/// Left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (64.0, 190.0, 40.0, 48.0);
const COLORS: [&str; 8] =
    ["#1b6ca8", "#c8553d", "#3f7d20", "#8a4fff", "#b8860b", "#0f8b8d", "#a23e48", "#555555"];

impl Chart {
    /// The chart as the text of an SVG file.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let right = points().map(|p| p.0).fold(2.0, f64::max).log2();
        let (step, top) = scale(points().map(|p| p.1).fold(0.0, f64::max));
        let (width, height) = (SIZE.0 - MARGIN.0 - MARGIN.1, SIZE.1 - MARGIN.2 - MARGIN.3);
        let x = |value: f64| MARGIN.0 + width * value.max(1.0).log2() / right;
        let y = |value: f64| MARGIN.2 + height * (1.0 - value / top);
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
            SIZE.0, SIZE.1
        );
        text(&mut out, (MARGIN.0, 22.0), "start", &self.title);
        text(&mut out, (MARGIN.0 + width / 2.0, SIZE.1 - 10.0), "middle", &self.across);
        text(&mut out, (MARGIN.0, MARGIN.2 - 6.0), "start", &self.up);
        for power in 0..=right.floor() as i32 {
            let at = f64::from(power).exp2();
            rule(&mut out, (x(at), MARGIN.2), (x(at), MARGIN.2 + height));
            text(&mut out, (x(at), MARGIN.2 + height + 16.0), "middle", &format!("{at}"));
        }
        for i in 0..=(top / step).round() as i32 {
            let at = f64::from(i) * step;
            rule(&mut out, (MARGIN.0, y(at)), (MARGIN.0 + width, y(at)));
            let digits = (-step.log10().floor()).max(0.0) as usize;
            text(&mut out, (MARGIN.0 - 6.0, y(at) + 4.0), "end", &format!("{at:.digits$}"));
        }
        for (i, line) in self.lines.iter().enumerate() {
            let color = COLORS[i % COLORS.len()];
            let path: Vec<String> =
                line.points.iter().map(|p| format!("{:.1},{:.1}", x(p.0), y(p.1))).collect();
            let _ = writeln!(
                out,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
                path.join(" ")
            );
            let at = (SIZE.0 - MARGIN.1 + 12.0, MARGIN.2 + 12.0 + 18.0 * i as f64);
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"4\" fill=\"{color}\"/>",
                at.0,
                at.1 - 6.0
            );
            text(&mut out, (at.0 + 18.0, at.1), "start", &line.name);
        }
        out.push_str("</svg>\n");
        out
    }
}

/// Distance of the marks of an axis from 0 to at least `most`, and its end.
fn scale(most: f64) -> (f64, f64) {
    let most = if most > 0.0 && most.is_finite() { most } else { 1.0 };
    let power = 10f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| step * 6.0 >= most);
    let step = step.unwrap_or(10.0 * power);
    (step, step * (most / step).ceil())
}

fn text(out: &mut String, at: (f64, f64), anchor: &str, text: &str) {
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ =
        writeln!(out, "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{escaped}</text>", at.0, at.1);
}

fn rule(out: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        out,
        "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#dddddd\"/>",
        from.0, from.1, to.0, to.1
    );
}

#[cfg(test)]
mod tests {
    use super::{Chart, Line, scale};

    #[test]
    fn an_axis_reaches_what_it_shows() {
        for most in [0.0, 1e-6, 0.9, 1.0, 7.3, 59.9, 60.0, 1e9, f64::NAN] {
            let (step, top) = scale(most);
            assert!(step > 0.0 && (most.is_nan() || top >= most), "{most}: {step}, {top}");
            assert!(top / step <= 7.0, "{most}: {step}, {top}");
        }
    }

    #[test]
    fn a_chart_holds_its_lines_and_escapes_names() {
        let line = Line { name: "a < b".to_owned(), points: vec![(1.0, 1.0), (8.0, 2.0)] };
        let (title, across, up) = ("t".to_owned(), "rows".to_owned(), "ms".to_owned());
        let svg = Chart { title, across, up, lines: vec![line] }.svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<polyline").count(), 1);
        assert!(svg.contains("a &lt; b"));
    }
}
