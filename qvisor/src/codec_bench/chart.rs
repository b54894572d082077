//! The measurement as an SVG: ratio and unpacking speed of each codec side by side, by page and by partition.

use codec::{Measured, Style};

use super::report::name;
use crate::measuring::bars::{Bar, chart};

/// By page, and by partition.
const COLOURS: [&str; 2] = ["#2f6f8f", "#b5651d"];

/// A whole SVG file. `title`: whose pages they are.
pub fn draw(title: &str, measured: &[Measured]) -> String {
    let ratios = bars(measured, |one| (one.ratio(), None, format!("{:.2}", one.ratio())));
    let packed: Vec<Measured> = measured.iter().filter(|one| one.style != Style::None).cloned().collect();
    let speeds = bars(&packed, |one| {
        let speed = one.unpack;
        (speed.median, Some((speed.slowest, speed.fastest)), format!("{:.0}", speed.median))
    });
    let legend = [("by page of 4 KiB", COLOURS[0]), ("by partition of 64 KiB", COLOURS[1])];
    let panels = [
        ("how many times smaller, pages of one word not counted", ratios),
        ("unpacking, MB/s of memory for one core", speeds),
    ];
    chart(&format!("Codecs on pages of {title}"), &legend, &panels)
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
}
