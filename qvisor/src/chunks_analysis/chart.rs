//! The figures of an analysis as an SVG: the parts of each snapshot's memory, and what chunks of each size find and take.

use std::fmt::Write;

use runtime::snapshot::{Analysed, Analysis, Estimate, Region};

use super::{mib, parts, percent, regions};

/// Words and colours of the parts of memory, in their order, and of the lines.
const COLOURS: [(&str, &str); 7] = [
    ("untouched", "#e4e4e4"),
    ("elsewhere", "#b8b8b8"),
    (Region::Executable.name(), "#2f6f8f"),
    (Region::File.name(), "#5bb5c4"),
    (Region::Anonymous.name(), "#d4a017"),
    (Region::Memory.name(), "#4c8c4a"),
    (Region::Kernel.name(), "#b03a2e"),
];
const BAR: f64 = 14.0;
const LABEL: f64 = 150.0;
const WIDTH: f64 = 960.0;
const TOP: f64 = 58.0;
const PANEL_WIDTH: f64 = 380.0;
const PANEL_HEIGHT: f64 = 220.0;
const STEPS: u32 = 5;

fn colour(name: &str) -> &'static str {
    COLOURS.iter().find(|(words, _)| *words == name).map_or("#222", |(_, colour)| colour)
}

/// A whole SVG file.
pub fn draw(analysis: &Analysis) -> String {
    let bars_end = TOP + 20.0 + BAR * analysis.snapshots.len() as f64;
    let height = bars_end + PANEL_HEIGHT + 110.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\">\n\
         <style>text{{font:11px sans-serif;fill:#222}}.title{{font-weight:bold;font-size:13px}}\
         .axis{{fill:#777;font-size:10px}}</style>\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"20\" class=\"title\">Memory of {} snapshots</text>\n",
        analysis.snapshots.len()
    );
    for (number, (words, colour)) in COLOURS.into_iter().enumerate() {
        let x = LABEL + 110.0 * number as f64;
        // Writing to a string does not fail.
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"31\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"40\">{words}</text>", x + 15.0);
    }
    bars(&mut svg, &analysis.snapshots);
    let redundancy = |estimate: &Estimate| percent(estimate.repeated_bytes(), estimate.filled_bytes());
    let total = |estimate: &Estimate| mib(estimate.total_bytes());
    let top = bars_end + 60.0;
    lines(&mut svg, (60.0, top), "repeated, % of what is not zeros", analysis, &redundancy);
    lines(&mut svg, (60.0 + WIDTH / 2.0, top), "chunks and metadata, MiB", analysis, &total);
    svg + "</svg>\n"
}

/// One bar of parts for each snapshot.
fn bars(svg: &mut String, snapshots: &[Analysed]) {
    let whole = |one: &Analysed| parts(one).iter().map(|(_, bytes)| bytes).sum::<u64>();
    let most = mib(snapshots.iter().map(whole).max().unwrap_or(0).max(1));
    let scale = (WIDTH - LABEL - 70.0) / most;
    for (number, one) in snapshots.iter().enumerate() {
        let y = TOP + BAR * number as f64;
        let (text_y, name) = (y + BAR - 4.0, escape(&one.name));
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{text_y}\" text-anchor=\"end\">{name}</text>", LABEL - 6.0);
        let mut x = LABEL;
        for (part, bytes) in parts(one).into_iter().filter(|(_, bytes)| *bytes > 0) {
            let (long, colour) = (mib(bytes) * scale, colour(part));
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{long:.1}\" height=\"{}\" fill=\"{colour}\"><title>{name}, {part}: {:.1} \
                 MiB</title></rect>",
                BAR - 3.0,
                mib(bytes)
            );
            x += long;
        }
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{text_y}\" class=\"axis\">{:.0} MiB</text>",
            x + 4.0,
            mib(whole(one))
        );
    }
}

/// A line for each region, by bytes of a chunk.
fn lines(
    svg: &mut String,
    (left, top): (f64, f64),
    title: &str,
    analysis: &Analysis,
    value: &dyn Fn(&Estimate) -> f64,
) {
    let all = || regions(analysis).flat_map(|(_, estimates)| estimates);
    let most = all().map(value).fold(0.0, f64::max).max(1.0);
    let y_of = |value: f64| top + PANEL_HEIGHT * (1.0 - value / most);
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"{}\" class=\"title\">{}</text>", top - 16.0, escape(title));
    for step in 0..=STEPS {
        let shown = most * f64::from(step) / f64::from(STEPS);
        let (y, end) = (y_of(shown), left + PANEL_WIDTH);
        let _ =
            writeln!(svg, "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{end}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>");
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\" class=\"axis\">{shown:.0}</text>",
            left - 5.0,
            y + 3.0
        );
    }
    for (region, estimates) in regions(analysis) {
        let apart = PANEL_WIDTH / (estimates.len() - 1).max(1) as f64;
        let (mut points, colour) = (String::new(), colour(region.name()));
        for (number, estimate) in estimates.iter().enumerate() {
            let (x, y) = (left + apart * number as f64, y_of(value(estimate)));
            let _ = write!(points, "{x:.1},{y:.1} ");
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\" fill=\"{colour}\"><title>{}, {} bytes: {:.1}</title></circle>",
                region.name(),
                estimate.chunk_bytes,
                value(estimate)
            );
        }
        let points = points.trim_end();
        let _ = writeln!(
            svg,
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
        );
    }
    for (number, estimate) in analysis.estimates[0].iter().enumerate() {
        let x = left + PANEL_WIDTH / (analysis.estimates[0].len() - 1).max(1) as f64 * number as f64;
        let y = top + PANEL_HEIGHT + 16.0;
        let bytes = estimate.chunk_bytes;
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" class=\"axis\">{bytes}</text>"
        );
    }
    let (x, y) = (left + PANEL_WIDTH / 2.0, top + PANEL_HEIGHT + 32.0);
    let _ = writeln!(
        svg,
        "<text x=\"{x}\" y=\"{y}\" text-anchor=\"middle\" class=\"axis\">bytes of a chunk</text>"
    );
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_snapshot_and_region_is_drawn() {
        let svg = draw(&super::super::tests::analysis());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf") && !svg.contains("a<b"));
        // Of each of two snapshots four parts; of each of two regions a line in two panels.
        assert_eq!(svg.matches("</title></rect>").count(), 2 * 4);
        assert_eq!(svg.matches("<polyline").count(), 2 * 2);
        for tag in ["text", "circle", "svg", "title"] {
            assert_eq!(
                svg.matches(&format!("<{tag} ")).count() + svg.matches(&format!("<{tag}>")).count(),
                svg.matches(&format!("</{tag}>")).count(),
                "{tag}"
            );
        }
    }
}
