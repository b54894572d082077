//! The measurement as an SVG: sizes, and times where they are paid, as figures 1 and 2 of *Phoenix* have them.

use std::time::Duration;

use super::report::{OURS, Report, percent};
use crate::measuring::bars::{Bar, chart};

/// The colours of a size, and of times that are paid once a base, once a sleeper, before a wake, and page by page.
const SIZE: &str = "#2f6f8f";
const PAID: [(&str, &str); 4] = [
    ("once a base", "#5bb5c4"),
    ("once a sleeper", "#4c8c4a"),
    ("before a wake", "#b03a2e"),
    ("page by page", "#d4a017"),
];

/// A whole SVG file.
pub fn draw(report: &Report) -> String {
    let (mut sizes, mut times) = (Vec::new(), Vec::new());
    for row in report.rows() {
        let share = percent(row.bytes, report.data_bytes());
        let label = row.name.to_owned();
        sizes.push(Bar {
            label: label.clone(),
            colour: SIZE,
            value: share,
            range: None,
            shown: format!("{share:.1}"),
        });
        let pages = (row.name == OURS).then_some(report.measured.unpack);
        let paid = [row.once_a_base, Some(row.once_a_sleeper), row.at_a_wake, pages];
        for ((_, colour), spread) in PAID.into_iter().zip(paid) {
            let Some(spread) = spread else { continue };
            let [value, lowest, highest] = [spread.median, spread.lowest, spread.highest].map(millis);
            let shown = format!("{value:.1}");
            times.push(Bar { label: label.clone(), colour, value, range: Some((lowest, highest)), shown });
        }
    }
    let panels = [("size, % of the pages", sizes), ("ms of one processor, for all pages", times)];
    chart(&format!("Differences of {}", report.data_of), &PAID, &panels)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_its_bars() {
        let svg = draw(&super::super::report::tests::report());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        // Six sizes; three times of differences, of what packs them once more, and two of each other way.
        assert_eq!(svg.matches("height=\"13\"").count(), 6 + 3 + 2 * 3 + 3 * 2);
        for (words, _) in PAID {
            assert!(svg.contains(&format!(">{words}</text>")), "{words}");
        }
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
