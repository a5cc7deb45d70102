//! Time against rows, both logarithmic, as an SVG.

use std::fmt::Write;

use super::{Peer, Report};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 460.0;
const MARGIN: f64 = 60.0;

/// The plot of a report: floor, read, the layer and peers.
pub fn svg(report: &Report, peers: &[Peer]) -> String {
    let line = |value: fn(&super::Row) -> f64| {
        report.rows.iter().map(|row| (row.rows, value(row))).collect::<Vec<_>>()
    };
    let mut lines = vec![
        ("floor", "#999999", line(super::Row::floor)),
        ("read", "#3a86c8", line(|row| row.read)),
        ("layer", "#c8372d", line(super::Row::median)),
    ];
    let colors = ["#4f9d4f", "#b07cc6", "#d9a441"];
    lines.extend(
        peers
            .iter()
            .zip(colors.iter().cycle())
            .map(|(peer, color)| (peer.name.as_str(), *color, peer.times.clone())),
    );
    let points = || lines.iter().flat_map(|(_, _, line)| line.iter());
    let range = |of: fn(&(usize, f64)) -> f64| {
        points().map(of).fold((f64::INFINITY, 1.0f64), |(low, high), value| (low.min(value), high.max(value)))
    };
    let (x, y) = (
        scale(range(|point| point.0 as f64), MARGIN, WIDTH - MARGIN),
        scale(range(|point| point.1), HEIGHT - MARGIN, MARGIN),
    );
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    for row in &report.rows {
        let at = x(row.rows as f64);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - MARGIN + 18.0,
            row.rows
        );
    }
    for (i, (name, color, line)) in lines.iter().enumerate() {
        let path: Vec<String> =
            line.iter().map(|(rows, time)| format!("{:.1},{:.1}", x(*rows as f64), y(*time))).collect();
        let _ = writeln!(
            text,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        let top = MARGIN + 16.0 * i as f64;
        let name = name.replace('&', "&amp;").replace('<', "&lt;");
        let _ =
            writeln!(text, "<text x=\"{:.1}\" y=\"{top:.1}\" fill=\"{color}\">{name}</text>", MARGIN + 8.0);
    }
    for (rows, time) in lines.iter().filter(|(name, ..)| *name == "layer").flat_map(|(_, _, line)| line) {
        let (at, up) = (x(*rows as f64), y(*time) - 6.0);
        let _ = writeln!(
            text,
            "<text x=\"{at:.1}\" y=\"{up:.1}\" text-anchor=\"middle\" fill=\"#c8372d\">{time:.0}</text>"
        );
    }
    let _ = writeln!(
        text,
        "<text x=\"{:.1}\" y=\"24\" text-anchor=\"middle\">{}: microseconds a layer by rows, {} routing{}</text>",
        WIDTH / 2.0,
        report.device,
        report.routing,
        if report.partial() { ", partial layer" } else { "" }
    );
    text + "</svg>\n"
}

/// Maps a logarithmic range to `from..to`.
fn scale((low, high): (f64, f64), from: f64, to: f64) -> impl Fn(f64) -> f64 {
    let (low, high) = (low.max(1e-3).ln(), high.max(1e-2).ln());
    move |value| from + (value.max(1e-3).ln() - low) / (high - low).max(1e-9) * (to - from)
}
