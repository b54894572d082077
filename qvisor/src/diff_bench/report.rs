//! The results of a measurement, as a table for people and as JSON for programs.

use std::fmt::Write;
use std::time::Duration;

use codec::PAGE_BYTES;
use serde_json::{Value, json};
use swap::{DiffMeasured, Spread};

use super::peers::Peer;

/// The name of the way that is measured.
pub const OURS: &str = "differences";

pub struct Report {
    /// Whose pages the base has, and whose are made small, in words.
    pub base_of: String,
    pub base_pages: usize,
    pub data_of: String,
    pub pages: usize,
    pub rounds: u16,
    pub measured: DiffMeasured,
    pub peers: Vec<Peer>,
    /// Why xdelta3 was not measured, if it was not.
    pub no_xdelta: Option<String>,
}

/// One way to make a memory small, with its costs where they are paid.
pub struct Row<'r> {
    pub name: &'r str,
    pub bytes: u64,
    pub once_a_base: Option<Spread>,
    pub once_a_sleeper: Spread,
    /// Before the first page is there.
    pub at_a_wake: Option<Spread>,
}

impl Report {
    /// Bytes of all pages.
    pub fn data_bytes(&self) -> u64 {
        (self.pages * PAGE_BYTES) as u64
    }

    /// All ways; what packs differences once more pays their costs, too.
    pub fn rows(&self) -> Vec<Row<'_>> {
        let measured = &self.measured;
        let ours = Row {
            name: OURS,
            bytes: measured.bytes,
            once_a_base: Some(measured.index),
            once_a_sleeper: measured.pack,
            at_a_wake: None,
        };
        let others = self.peers.iter().map(|peer| {
            let is_on_top = peer.name.starts_with('+');
            Row {
                name: peer.name,
                bytes: peer.bytes as u64,
                once_a_base: is_on_top.then_some(measured.index),
                once_a_sleeper: if is_on_top { sum(measured.pack, peer.pack) } else { peer.pack },
                at_a_wake: Some(peer.unpack),
            }
        });
        [ours].into_iter().chain(others).collect()
    }

    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let measured = &self.measured;
        let mut text = String::new();
        writeln!(text, "Pages of {}: {}", self.data_of, pages(self.pages))?;
        writeln!(text, "Base, {}: {}", self.base_of, pages(self.base_pages))?;
        writeln!(
            text,
            "Milliseconds of one processor, the median of {} rounds (lowest-highest), where they are paid:\n",
            self.rounds
        )?;
        writeln!(
            text,
            "{:16} {:>11} {:>7}  {:>17}  {:>19}  {:>19}",
            "", "bytes", "share", "once a base", "once a sleeper", "before a wake"
        )?;
        for row in self.rows() {
            let share = percent(row.bytes, self.data_bytes());
            writeln!(
                text,
                "{:16} {:>11} {:>5.1} %  {:>17}  {:>19}  {:>19}",
                row.name,
                row.bytes,
                share,
                row.once_a_base.map_or("-".into(), millis),
                millis(row.once_a_sleeper),
                row.at_a_wake.map_or("-".into(), millis)
            )?;
        }
        match &self.no_xdelta {
            Some(why) => writeln!(text, "\nxdelta3 was not measured: {why}.")?,
            None => writeln!(
                text,
                "\nThe times of xdelta3 have the start of its program in them; beyond five seconds it has one round."
            )?,
        }
        writeln!(
            text,
            "The index has {} bytes and is made at {:.0} MB/s; pages are packed at {:.0} MB/s.",
            measured.index_bytes,
            speed(self.base_pages, measured.index.median),
            speed(self.pages, measured.pack.median)
        )?;
        self.put_pages(&mut text)?;
        writeln!(text, "\n{:16} {:>11} {:>11} {:>9}", "kept as", "pages", "bytes", "a page")?;
        for way in &measured.ways {
            let each = way.bytes.checked_div(way.pages).unwrap_or(0);
            writeln!(text, "{:16} {:>11} {:>11} {:>9}", way.name, way.pages, way.bytes, each)?;
        }
        Ok(text)
    }

    fn put_pages(&self, text: &mut String) -> std::fmt::Result {
        let measured = &self.measured;
        writeln!(
            text,
            "As differences pages come one by one; all of them take {} ms, {:.0} MB/s.\n",
            millis(measured.unpack),
            speed(self.pages, measured.unpack.median)
        )?;
        writeln!(text, "{:28} {:>22}  {:>22}", "nanoseconds a page", "median", "99th percentile")?;
        for (when, (median, p99)) in
            [("with the base mapped", measured.page), ("right after a rest", measured.page_after_rest)]
        {
            writeln!(text, "{when:28} {:>22}  {:>22}", nanos(median), nanos(p99))?;
        }
        Ok(())
    }

    pub fn json(&self) -> Value {
        let measured = &self.measured;
        let time = |spread: Spread| {
            let [median, lowest, highest] =
                [spread.median, spread.lowest, spread.highest].map(|time| time.as_secs_f64());
            json!({"median": median, "lowest": lowest, "highest": highest})
        };
        let row = |row: Row| {
            json!({
                "name": row.name,
                "bytes": row.bytes,
                "share": percent(row.bytes, self.data_bytes()) / 100.0,
                "once_a_base_s": row.once_a_base.map(time),
                "once_a_sleeper_s": time(row.once_a_sleeper),
                "before_a_wake_s": row.at_a_wake.map(time),
            })
        };
        let pages = |(median, p99): (Spread, Spread)| json!({"median_s": time(median), "p99_s": time(p99)});
        let ways = measured.ways.iter();
        let way = |way: &swap::WayMeasured| json!({"way": way.name, "pages": way.pages, "bytes": way.bytes});
        json!({
            "base_of": self.base_of,
            "base_pages": self.base_pages,
            "pages_of": self.data_of,
            "pages": self.pages,
            "rounds": self.rounds,
            "methods": self.rows().into_iter().map(row).collect::<Vec<_>>(),
            "index_bytes": measured.index_bytes,
            "all_pages_s": time(measured.unpack),
            "page": pages(measured.page),
            "page_after_rest": pages(measured.page_after_rest),
            "ways": ways.map(way).collect::<Vec<_>>(),
            "no_xdelta": self.no_xdelta,
        })
    }
}

fn sum(a: Spread, b: Spread) -> Spread {
    Spread { median: a.median + b.median, lowest: a.lowest + b.lowest, highest: a.highest + b.highest }
}

/// So many pages, in words.
fn pages(count: usize) -> String {
    format!("{count} ({:.1} MB)", megabytes(count))
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn megabytes(pages: usize) -> f64 {
    (pages * PAGE_BYTES) as f64 / 1e6
}

/// The share of all bytes, in percent.
#[expect(clippy::cast_precision_loss, reason = "for people")]
pub fn percent(bytes: u64, of: u64) -> f64 {
    bytes as f64 * 100.0 / of.max(1) as f64
}

/// Megabytes a second.
fn speed(pages: usize, time: Duration) -> f64 {
    megabytes(pages) / time.as_secs_f64().max(1e-9)
}

fn millis(spread: Spread) -> String {
    let [median, lowest, highest] =
        [spread.median, spread.lowest, spread.highest].map(|time| time.as_secs_f64() * 1e3);
    if highest < 100.0 {
        format!("{median:.1} ({lowest:.1}-{highest:.1})")
    } else {
        format!("{median:.0} ({lowest:.0}-{highest:.0})")
    }
}

fn nanos(spread: Spread) -> String {
    format!("{} ({}-{})", spread.median.as_nanos(), spread.lowest.as_nanos(), spread.highest.as_nanos())
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use swap::{PagesInMemory, measure_diffs};

    pub fn report() -> Report {
        let page = |seed: usize| std::array::from_fn(|at| u8::try_from((at * seed) % 251).unwrap());
        let base: PagesInMemory = (0..20).map(|id| (id, page(id as usize + 3))).collect();
        let mut data = base.clone();
        data.content[3][9] ^= 1;
        data.content[4] = [0; PAGE_BYTES];
        let measured = measure_diffs(&base, &data, 1).unwrap();
        let peers = super::super::peers::measure(&base, &data, &measured.diff, 1).unwrap();
        Report {
            base_of: "snapshot <b>".into(),
            base_pages: 20,
            data_of: "a file".into(),
            pages: 20,
            rounds: 1,
            measured,
            peers,
            no_xdelta: Some("it is not installed".into()),
        }
    }

    #[test]
    fn the_table_fits_a_terminal_and_has_every_method() {
        let report = report();
        let text = report.text().unwrap();
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        for name in [OURS, "+ lz4", "+ zstd", "lz4", "zstd", "zstd on the base", "same place", "xor", "raw"] {
            assert!(text.lines().any(|line| line.starts_with(&format!("{name:16} "))), "{name}: {text}");
        }
        assert!(text.contains("\nxdelta3 was not measured: it is not installed.\n"), "{text}");
    }

    #[test]
    fn json_has_the_figures_of_the_table() {
        let report = report();
        let json = report.json();
        assert_eq!(json["pages"], 20);
        let methods = json["methods"].as_array().unwrap();
        assert_eq!(methods.len(), 6);
        assert_eq!(methods[0]["bytes"], report.measured.bytes);
        assert!(methods[0]["before_a_wake_s"].is_null() && methods[3]["once_a_base_s"].is_null());
        assert!(
            methods[1]["once_a_sleeper_s"]["median"].as_f64()
                >= methods[0]["once_a_sleeper_s"]["median"].as_f64()
        );
        let ways = json["ways"].as_array().unwrap();
        let pages: u64 = ways.iter().map(|way| way["pages"].as_u64().unwrap()).sum();
        assert_eq!(pages, 20);
    }
}
