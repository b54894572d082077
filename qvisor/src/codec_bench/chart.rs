//! The measurement as an SVG: ratio and unpacking speed of each codec side by side, by page and by partition.

use std::fmt::Write;

use codec::{Measured, Style};

use super::report::name;

/// By page, and by partition.
const COLOURS: [&str; 2] = ["#2f6f8f", "#b5651d"];
const BAR: f64 = 17.0;
const LABEL: f64 = 150.0;
const WIDTH: f64 = 300.0;
/// One panel with its label and room for the last number.
const PANEL: f64 = LABEL + WIDTH + 60.0;
const TOP: f64 = 62.0;

struct Bar {
    label: String,
    colour: &'static str,
    value: f64,
    /// The slowest and the fastest round.
    range: Option<(f64, f64)>,
    shown: String,
}

/// A whole SVG file. `title`: whose pages they are.
pub fn draw(title: &str, measured: &[Measured]) -> String {
    let ratios = bars(measured, |one| (one.ratio(), None, format!("{:.2}", one.ratio())));
    let packed: Vec<Measured> = measured.iter().filter(|one| one.style != Style::None).cloned().collect();
    let speeds = bars(&packed, |one| {
        let speed = one.unpack;
        (speed.median, Some((speed.slowest, speed.fastest)), format!("{:.0}", speed.median))
    });
    let (width, height) = (2.0 * PANEL, TOP + BAR * ratios.len().max(speeds.len()).max(1) as f64 + 30.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
         <style>text{{font:11px sans-serif;fill:#222}}.title{{font-weight:bold;font-size:13px}}\
         .axis{{fill:#777;font-size:10px}}.value{{font-size:10px}}</style>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"10\" y=\"22\" class=\"title\">Codecs on pages of {}</text>\n",
        escape(title)
    );
    // Writing to a string does not fail.
    for (place, (words, colour)) in
        ["by page of 4 KiB", "by partition of 64 KiB"].iter().zip(COLOURS).enumerate()
    {
        let x = width - 320.0 + 150.0 * place as f64;
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"13\" width=\"11\" height=\"11\" fill=\"{colour}\"/>");
        let _ = writeln!(svg, "<text x=\"{}\" y=\"22\">{words}</text>", x + 16.0);
    }
    panel(&mut svg, 0.0, "how many times smaller, pages of one word not counted", &ratios);
    panel(&mut svg, PANEL, "unpacking, MB/s of memory for one core", &speeds);
    svg + "</svg>\n"
}

/// By codec, then by size.
fn bars(measured: &[Measured], value: impl Fn(&Measured) -> (f64, Option<(f64, f64)>, String)) -> Vec<Bar> {
    let mut sizes: Vec<usize> = measured.iter().map(|one| one.piece_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut sorted: Vec<&Measured> = measured.iter().collect();
    let place = |style: Style| Style::ALL.iter().position(|one| *one == style);
    sorted.sort_by_key(|one| (one.by_engine, place(one.style), one.piece_bytes));
    let bar = |one: &Measured| {
        let (value, range, shown) = value(one);
        let colour = COLOURS[usize::from(sizes.first() != Some(&one.piece_bytes))];
        Bar { label: name(one), colour, value, range, shown }
    };
    sorted.into_iter().map(bar).collect()
}

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
    fn every_codec_has_its_bars_and_every_name_is_escaped() {
        let memory: Vec<u8> = (0..20_000_u32).flat_map(|number| (number % 700).to_le_bytes()).collect();
        let measured = codec::measure(&memory, &Style::ALL, 1).unwrap();
        let of_engine: Vec<Measured> =
            measured[..2].iter().map(|one| Measured { by_engine: true, ..one.clone() }).collect();
        assert_eq!(draw("a file", &of_engine).matches(">iaa</text>").count(), 2);
        let svg = draw("a <file> & more", &measured);
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt;file&gt; &amp; more") && !svg.contains("NaN") && !svg.contains("inf"));
        let bars = svg.matches("height=\"13\"").count();
        // Two panels of two sizes; what is stored as it is has no speed.
        assert_eq!(bars, 2 * Style::ALL.len() + 2 * (Style::ALL.len() - 1));
        for style in Style::ALL {
            let label = format!(">{style}</text>");
            assert_eq!(svg.matches(&label).count(), if style == Style::None { 1 } else { 2 });
        }
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    #[test]
    fn axes_have_round_numbers() {
        for (most, expected) in [(4.0, 1.0), (5.6, 1.0), (9.0, 2.0), (3154.0, 500.0), (0.9, 0.2), (0.0, 0.2)]
        {
            assert!((step(most) - expected).abs() < 1e-9, "{most}: {}", step(most));
        }
    }
}
