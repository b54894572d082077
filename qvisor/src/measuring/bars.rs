//! Bars side by side, as an SVG has them.

use std::fmt::Write;

const BAR: f64 = 17.0;
const LABEL: f64 = 150.0;
const WIDTH: f64 = 300.0;
/// One panel with its label and room for the last number.
const PANEL: f64 = LABEL + WIDTH + 60.0;
const TOP: f64 = 62.0;

/// One bar.
pub struct Bar {
    pub label: String,
    pub colour: &'static str,
    pub value: f64,
    /// The round with the lowest value, and the one with the highest.
    pub range: Option<(f64, f64)>,
    pub shown: String,
}

/// A whole SVG file of panels side by side, each with its title. `legend`: the words of the colours.
pub fn chart(title: &str, legend: &[(&str, &str)], panels: &[(&str, Vec<Bar>)]) -> String {
    let most = panels.iter().map(|(_, bars)| bars.len()).max().unwrap_or(0).max(1);
    let (width, height) = (PANEL * panels.len() as f64, TOP + BAR * most as f64 + 30.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>text{{font:11px sans-serif;fill:#222}}.title{{font-weight:bold;font-size:13px}}\
         .axis{{fill:#777;font-size:10px}}.value{{font-size:10px}}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"22\" class=\"title\">{}</text>\n",
        escape(title)
    );
    // Writing to a string does not fail.
    let longest = legend.iter().map(|(words, _)| words.len()).max().unwrap_or(0);
    let room = 30.0 + 6.0 * longest as f64;
    for (place, (words, colour)) in legend.iter().enumerate() {
        let x = width - 10.0 - room * (legend.len() - place) as f64;
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"13\" width=\"11\" height=\"11\" fill=\"{colour}\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"22\">{}</text>", x + 16.0, escape(words));
    }
    for (place, (title, bars)) in panels.iter().enumerate() {
        panel(&mut svg, PANEL * place as f64, title, bars);
    }
    svg + "</svg>\n"
}

/// Draws bars below a title, from `left` on.
fn panel(svg: &mut String, left: f64, title: &str, bars: &[Bar]) {
    let most = bars.iter().map(|bar| bar.range.map_or(bar.value, |range| range.1)).fold(0.0, f64::max);
    let step = step(most);
    let full = (most / step).ceil().max(1.0) * step;
    let start = left + LABEL;
    let at = |value: f64| start + value.clamp(0.0, full) / full * WIDTH;
    let bottom = TOP + BAR * bars.len() as f64;
    let _ = writeln!(svg, "<text x=\"{}\" y=\"{}\">{}</text>", left + 10.0, TOP - 14.0, escape(title));
    let mut lines = 0.0;
    while lines * step <= full * 1.001 {
        // Without what adding up leaves behind.
        let line = (lines * step * 100.0).round() / 100.0;
        let x = at(line);
        let _ =
            writeln!(svg, "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom}\" stroke=\"#ddd\"/>");
        let y = bottom + 14.0;
        let _ =
            writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\" class=\"axis\">{line}</text>");
        lines += 1.0;
    }
    for (number, bar) in bars.iter().enumerate() {
        let y = TOP + BAR * number as f64 + 2.0;
        let (end, high) = (at(bar.value), BAR - 4.0);
        let is_first = number == 0 || bars[number - 1].label != bar.label;
        if is_first {
            let (x, y, label) = (start - 6.0, y + 11.0, escape(&bar.label));
            let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"end\">{label}</text>");
        }
        let (long, colour) = ((end - start).max(1.0), bar.colour);
        let _ = writeln!(
            svg,
            "<rect x=\"{start}\" y=\"{y}\" width=\"{long:.1}\" height=\"{high}\" fill=\"{colour}\"/>"
        );
        let mut text_at = end;
        if let Some((slowest, fastest)) = bar.range {
            let (from, to, y) = (at(slowest), at(fastest), y + high / 2.0);
            text_at = to.max(end);
            let _ = writeln!(
                svg,
                "<line x1=\"{from:.1}\" y1=\"{y}\" x2=\"{to:.1}\" y2=\"{y}\" stroke=\"#222\"/>"
            );
        }
        let (x, y) = (text_at + 4.0, y + 11.0);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y}\" class=\"value\">{}</text>", escape(&bar.shown));
    }
}

/// A round number of which four to ten make the axis.
fn step(most: f64) -> f64 {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let power = 10_f64.powf((most / 4.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|times| times * power).find(|step| most / step >= 4.0).unwrap_or(power)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_round_numbers() {
        for (most, expected) in [(4.0, 1.0), (5.6, 1.0), (9.0, 2.0), (3154.0, 500.0), (0.9, 0.2), (0.0, 0.2)]
        {
            assert!((step(most) - expected).abs() < 1e-9, "{most}: {}", step(most));
        }
    }
}
