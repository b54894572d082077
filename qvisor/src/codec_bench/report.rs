//! The results of a measurement, as a table for people and as JSON for programs.

use std::fmt::Write;

use codec::{Arrival, Candidate, Choice, Host, Measured, PIECE_BYTES, Speed, choose};
use serde_json::{Value, json};
use vmm::hibernate::Codec;

use super::cores::Cores;
use super::disk::Disk;

pub struct Report {
    /// Whose pages they are, in words.
    pub pages_of: String,
    /// How many bytes there were, of which all or a sample was measured.
    pub bytes_there: u64,
    pub bytes: usize,
    pub rounds: u16,
    pub measured: Vec<Measured>,
    /// Bytes that one core checks and puts to fresh places a second.
    pub place_bytes_s: f64,
    pub disk: Disk,
    pub cores: Cores,
    /// Why no accelerator was measured, if none was.
    pub no_accelerator: Option<String>,
}

/// The codec's name, as `--codec` takes it.
pub fn name(one: &Measured) -> String {
    if one.by_engine { Codec::Iaa.to_string() } else { one.style.to_string() }
}

impl Report {
    /// The choice that `auto` would make: working sets are packed by partition.
    pub fn choice(&self) -> Choice {
        let host = Host {
            arrival: Arrival::Together,
            read_bytes_s: self.disk.read_bytes_s,
            cores: self.cores.usable(),
            threads: self.cores.online.min(swap::THREADS),
            place_bytes_s: self.place_bytes_s,
        };
        // Accelerators are not chosen by themselves.
        let is_candidate = |one: &&Measured| one.piece_bytes == PIECE_BYTES && !one.by_engine;
        let partitions = self.measured.iter().filter(is_candidate);
        let candidates: Vec<Candidate> = partitions
            .map(|one| Candidate {
                style: one.style,
                ratio: one.ratio(),
                unpack_bytes_s: one.unpack.median * 1e6,
            })
            .collect();
        choose(&host, &candidates)
    }

    pub fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        let (pages, words) = self.measured.first().map_or((0, 0), |one| (one.pages, one.word_pages));
        write!(text, "Pages of {}: {pages}", self.pages_of)?;
        if self.bytes_there > self.bytes as u64 {
            write!(text, ", evenly spread over {} MiB", self.bytes_there >> 20)?;
        }
        writeln!(text, "; {words} hold one word again and again, and are stored nowhere.")?;
        writeln!(
            text,
            "MB/s of memory for one core, the median of {} rounds (slowest-fastest); \"all\" is the ratio with the pages of one word.",
            self.rounds
        )?;
        for one in &self.measured {
            let speed =
                |speed: Speed| format!("{:.0} ({:.0}-{:.0})", speed.median, speed.slowest, speed.fastest);
            if one.style == codec::Style::None {
                let size = format!("by {} KiB", one.piece_bytes >> 10);
                let raw = "left raw";
                writeln!(
                    text,
                    "\n{size:16} {:>7} {:>7}  {:>20}  {:>20}  {raw:>9}",
                    "ratio", "all", "pack", "unpack"
                )?;
            }
            writeln!(
                text,
                "{:16} {:>7.2} {:>7.2}  {:>20}  {:>20}  {:>9}",
                name(one),
                one.ratio(),
                one.ratio_of_all(),
                speed(one.pack),
                speed(one.unpack),
                one.raw_pieces
            )?;
        }
        if let Some(why) = &self.no_accelerator {
            writeln!(text, "\niaa was not measured: {why}.")?;
        }
        let (disk, cores) = (&self.disk, &self.cores);
        write!(
            text,
            "\n{} reads {:.0} MB/s ({:.0}-{:.0}), three reads of 512 KiB at a time{}. {:.1} of {} cores are idle",
            disk.dir.display(),
            disk.read_bytes_s / 1e6,
            disk.slowest_bytes_s / 1e6,
            disk.fastest_bytes_s / 1e6,
            if disk.is_direct { ", past the page cache" } else { "; there is no way past its page cache" },
            cores.idle,
            cores.online
        )?;
        match cores.quota {
            Some(quota) if quota < cores.online => {
                writeln!(text, ", and the control group allows {quota:.1}.")?;
            }
            _ => writeln!(text, ".")?,
        }
        writeln!(text, "One core puts {:.0} MB/s of pages to their places.", self.place_bytes_s / 1e6)?;
        writeln!(text, "auto would choose {}.", self.choice())?;
        Ok(text)
    }

    pub fn json(&self) -> Value {
        let speed = |speed: Speed| json!({"median": speed.median, "slowest": speed.slowest, "fastest": speed.fastest});
        let codecs: Vec<Value> = self
            .measured
            .iter()
            .map(|one| {
                json!({
                    "codec": name(one),
                    "piece_bytes": one.piece_bytes,
                    "ratio": one.ratio(),
                    "ratio_of_all": one.ratio_of_all(),
                    "packed_bytes": one.packed_bytes,
                    "raw_pieces": one.raw_pieces,
                    "pack_mb_s": speed(one.pack),
                    "unpack_mb_s": speed(one.unpack),
                })
            })
            .collect();
        let choice = self.choice();
        let (pages, words) = self.measured.first().map_or((0, 0), |one| (one.pages, one.word_pages));
        json!({
            "pages_of": self.pages_of,
            "bytes_there": self.bytes_there,
            "pages": pages,
            "word_pages": words,
            "rounds": self.rounds,
            "codecs": codecs,
            "disk": self.disk,
            "cores": self.cores,
            "no_accelerator": self.no_accelerator,
            "place_bytes_s": self.place_bytes_s,
            "auto": {
                "codec": choice.style.to_string(),
                "why": choice.to_string(),
                "seconds_per_byte": choice.seconds_per_byte,
                "raw_seconds_per_byte": choice.raw_seconds_per_byte,
            },
        })
    }
}
