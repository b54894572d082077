//! Which style makes a set of pages come back soonest: what `auto` chooses.

use std::{cmp::Ordering, fmt};

use crate::style::Style;

/// The effect of a style on the pages in question, or on a sample of them: how small it packs them, and how fast they
/// are unpacked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The style that was tried.
    pub style: Style,
    /// How many times smaller the stored pages get; pages of one word are stored nowhere, and not counted.
    pub ratio: f64,
    /// Bytes of memory that one core unpacks a second.
    pub unpack_bytes_s: f64,
}

/// How pages come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Pages come back as a set, with a wake: some are unpacked while others are read.
    Together,
    /// With a fault each, and a few neighbours: nothing overlaps.
    ByFault,
}

/// The speed and the processors that the host offers to pages that come back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Host {
    /// How its pages come back.
    pub arrival: Arrival,
    /// Bytes that the disk gives a second, read as the working set is.
    pub read_bytes_s: f64,
    /// Cores that a wake has: those that are idle, and no more than the container's quota.
    pub cores: f64,
    /// So many threads unpack at most.
    pub threads: f64,
    /// Bytes of memory that one core checks and puts to their places a second, packed before or not. The places are fresh: most
    /// of the time the host makes frames for them.
    pub place_bytes_s: f64,
}

impl Host {
    /// Cores that unpack.
    fn unpacking(&self) -> f64 {
        if self.arrival == Arrival::ByFault {
            return self.cores.min(1.0);
        }
        (self.cores - ELSEWHERE).max(self.cores / 2.0).min(self.threads)
    }

    /// How long a byte takes that is read at this rate, and takes a core so long to be unpacked.
    fn seconds(&self, read_bytes_s: f64, unpack_seconds: f64) -> f64 {
        let read = 1.0 / read_bytes_s;
        let work = (unpack_seconds + 1.0 / self.place_bytes_s) / self.unpacking();
        match self.arrival {
            Arrival::Together => read.max(work) + read.min(work) * ALONE,
            Arrival::ByFault => FAULT_SECONDS / FAULT_BYTES + read + work,
        }
    }

    fn raw_seconds(&self) -> f64 {
        self.seconds(self.read_bytes_s, 0.0)
    }

    fn packed_seconds(&self, candidate: &Candidate) -> f64 {
        self.seconds(candidate.ratio * self.read_bytes_s, 1.0 / candidate.unpack_bytes_s)
    }

    fn has_cores(&self) -> bool {
        is_plausible(self.cores, 1e5)
            && is_plausible(self.unpacking(), 1e5)
            && is_plausible(self.place_bytes_s, 1e13)
    }
}

/// The style that was chosen, and the prediction that decided. Its [`Display`](fmt::Display) says why, in one sentence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The style that brings pages back soonest.
    pub style: Style,
    /// How long a byte of memory takes to come back by the chosen style, as it was predicted; 0 if the disk's speed is not known.
    pub seconds_per_byte: f64,
    /// How long a byte of memory takes to come back that is stored as it is; 0 if the disk's speed is not known.
    pub raw_seconds_per_byte: f64,
    /// The numbers that decided, those of the candidate that is chosen, or of the one that came nearest.
    host: Host,
    nearest: Option<Candidate>,
}

/// Packed pages have to take no more than this share of the time that raw ones take: the prediction is no better than
/// that, and unpacking is work, which raw pages spare.
const WORTH: f64 = 0.9;
/// Pages that come one by one, most of which never do, are worth room on the disk: of the candidates that need no more than so much of
/// the time, the smallest is taken.
const WORTH_BY_FAULT: f64 = 1.2;
/// Seconds that a fault takes apart from its `FAULT_BYTES` (those of a partition, with what lies around it): the disk's
/// answer, and two switches of tasks.
const FAULT_SECONDS: f64 = 100e-6;
const FAULT_BYTES: f64 = 65536.0;
/// Candidates so much slower than the fastest are as good; the smallest of them is taken.
const AS_GOOD: f64 = 1.03;
/// Reading and unpacking overlap, except that nothing can be unpacked during the first read, and nothing is read during the
/// last unpacking: one part of 512 KiB among the sixteen of a working set of 8 MiB.
const ALONE: f64 = 1.0 / 16.0;
/// Cores that the rest of a wake's work takes meanwhile: it makes entries present, maps them, and lets programs run.
/// With few cores that work has to wait for its turn, and half of the cores unpack. (Measured with two cores, of
/// working sets of 6 MB.)
const ELSEWHERE: f64 = 0.75;

/// Chooses a style for a set of pages that a wake reads and unpacks at the same time, or [`Style::None`]. It leaves
/// candidates out whose numbers cannot be true, and knows [`Style::None`] without being given it.
#[must_use]
pub fn choose(host: &Host, candidates: &[Candidate]) -> Choice {
    let is_known = is_plausible(host.read_bytes_s, 1e13);
    let raw = match is_known && host.has_cores() {
        true => host.raw_seconds(),
        false if is_known => 1.0 / host.read_bytes_s,
        false => 0.0,
    };
    let mut choice = Choice {
        style: Style::None,
        seconds_per_byte: raw,
        raw_seconds_per_byte: raw,
        host: *host,
        nearest: None,
    };
    if !is_known || !host.has_cores() {
        return choice;
    }
    let times: Vec<(Candidate, f64)> = candidates
        .iter()
        .filter(|one| one.style != Style::None)
        .filter(|one| is_plausible(one.ratio, 1e6) && is_plausible(one.unpack_bytes_s, 1e13))
        .map(|one| (*one, host.packed_seconds(one)))
        .collect();
    let Some(fastest) = times.iter().copied().min_by(|one, other| one.1.total_cmp(&other.1)) else {
        return choice;
    };
    choice.nearest = Some(fastest.0);
    let limit = match host.arrival {
        Arrival::Together => (fastest.1 * AS_GOOD).min(raw * WORTH),
        Arrival::ByFault => raw * WORTH_BY_FAULT,
    };
    let as_good = times.into_iter().filter(|one| one.1 <= limit);
    if let Some((candidate, seconds)) = as_good.max_by(smaller_then_faster) {
        choice.style = candidate.style;
        choice.seconds_per_byte = seconds;
        choice.nearest = Some(candidate);
    }
    choice
}

/// Above zero, and no more than `most`, which is beyond what any machine does.
fn is_plausible(value: f64, most: f64) -> bool {
    value > 1e-6 && value <= most
}

fn smaller_then_faster(one: &(Candidate, f64), other: &(Candidate, f64)) -> Ordering {
    one.0.ratio.total_cmp(&other.0.ratio).then(other.1.total_cmp(&one.1))
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.style)?;
        if self.raw_seconds_per_byte == 0.0 {
            return f.write_str("how fast the disk reads is not known");
        }
        let disk = self.host.read_bytes_s / 1e6;
        let Some(nearest) = self.nearest else {
            return match self.host.has_cores() {
                true => write!(f, "the disk reads {disk:.0} MB/s, and no codec was measured"),
                false => write!(f, "the disk reads {disk:.0} MB/s, and no core is idle to unpack"),
            };
        };
        let (ratio, cores) = (nearest.ratio, self.host.unpacking());
        let unpack = cores / (1.0 / nearest.unpack_bytes_s + 1.0 / self.host.place_bytes_s) / 1e6;
        let saved = 100.0 * (1.0 - self.host.packed_seconds(&nearest) / self.raw_seconds_per_byte);
        let plural = if cores > 1.0 { "cores unpack" } else { "core unpacks" };
        write!(f, "the disk reads {disk:.0} MB/s, {cores:.1} {plural} {unpack:.0} MB/s")?;
        if self.style == Style::None {
            let style = nearest.style;
            match saved > 0.0 {
                true => write!(
                    f,
                    ", so {style}, {ratio:.2} times smaller, saves {saved:.0} % of the time, not 10 %"
                ),
                false => write!(
                    f,
                    ", so {style}, {ratio:.2} times smaller, takes {:.0} % more time than raw pages",
                    -saved
                ),
            }
        } else {
            write!(f, ", so pages that are {ratio:.2} times smaller come back in {saved:.0} % less time")
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LZ4: Candidate = Candidate { style: Style::Lz4, ratio: 2.66, unpack_bytes_s: 2.7e9 };
    const ZSTD: Candidate = Candidate { style: Style::Zstd(1), ratio: 4.28, unpack_bytes_s: 0.935e9 };
    const CANNED: Candidate = Candidate { style: Style::DeflateCanned, ratio: 4.02, unpack_bytes_s: 0.983e9 };
    const MEASURED: [Candidate; 3] = [LZ4, ZSTD, CANNED];

    /// A wake that leaves so many cores, which put pages to their places in no time.
    fn host_of(read_bytes_s: f64, unpacking: f64) -> Host {
        let cores = if unpacking > ELSEWHERE { unpacking + ELSEWHERE } else { unpacking * 2.0 };
        Host { arrival: Arrival::Together, read_bytes_s, cores, threads: 3.0, place_bytes_s: 1e13 }
    }

    fn chosen(read_bytes_s: f64, unpacking: f64, candidates: &[Candidate]) -> Choice {
        choose(&host_of(read_bytes_s, unpacking), candidates)
    }

    #[test]
    fn slow_disks_are_worth_the_best_ratio_and_fast_ones_the_fastest_codec_or_none() {
        for (disk, unpacking, style) in [
            (100e6, 1.0, Style::Zstd(1)),
            (550e6, 1.0, Style::Lz4),
            (400e6, 2.0, Style::Zstd(1)),
            (2.0e9, 2.0, Style::Lz4),
            (10.0e9, 1.0, Style::None),
            (2.0e9, 0.1, Style::None),
        ] {
            let choice = chosen(disk, unpacking, &MEASURED);
            assert_eq!(choice.style, style, "{choice}");
        }
    }

    /// Predicted times are near those measured on the machine that the constants come from: two cores, and a working
    /// set of 6.6 MB.
    #[test]
    fn a_function_is_predicted_as_it_was_seen() {
        let with = |read_bytes_s: f64| Host {
            arrival: Arrival::Together,
            read_bytes_s,
            cores: 2.0,
            threads: 2.0,
            place_bytes_s: 1.3e9,
        };
        let lz4 = Candidate { style: Style::Lz4, ratio: 2.32, unpack_bytes_s: 2.4e9 };
        let zstd = Candidate { style: Style::Zstd(1), ratio: 3.15, unpack_bytes_s: 1.5e9 };
        let millis = |seconds: f64| seconds * 6.6e6 * 1e3;
        let is_near = |found: f64, seen: f64| assert!((found / seen - 1.0).abs() < 0.15, "{found} {seen}");
        for (disk, raw, by_lz4, by_zstd) in [(550e6, 12.1, 6.3, 7.4), (1.3e9, 5.4, 6.0, 7.2)] {
            is_near(millis(with(disk).raw_seconds()), raw);
            is_near(millis(with(disk).packed_seconds(&lz4)), by_lz4);
            is_near(millis(with(disk).packed_seconds(&zstd)), by_zstd);
        }
        assert_eq!(choose(&with(550e6), &[lz4, zstd]).style, Style::Lz4);
        assert_eq!(choose(&with(1.3e9), &[lz4, zstd]).style, Style::None);
        assert_eq!(choose(&with(200e6), &[lz4, zstd]).style, Style::Zstd(1));
    }

    #[test]
    fn pages_that_come_one_by_one_are_packed_small_where_that_makes_faults_hardly_slower() {
        let arrival = Arrival::ByFault;
        let host =
            |read_bytes_s| Host { arrival, read_bytes_s, cores: 2.0, threads: 1.0, place_bytes_s: 1.3e9 };
        for disk in [100e6, 550e6, 1.3e9] {
            let choice = choose(&host(disk), &MEASURED);
            assert_eq!(choice.style, Style::Zstd(1), "{choice}");
            assert!(choice.seconds_per_byte <= choice.raw_seconds_per_byte * WORTH_BY_FAULT);
        }
        let slow = Candidate { unpack_bytes_s: 0.2e9, ..ZSTD };
        assert_eq!(choose(&host(3e9), &[slow]).style, Style::None);
        assert_eq!(choose(&host(3e9), &[slow, LZ4]).style, Style::Lz4);
    }

    #[test]
    fn times_are_those_of_reading_and_unpacking_at_once() {
        // A byte takes 1 ns to read raw; packed 0.25 ns to read, and 0.5 ns to unpack.
        let candidate = Candidate { style: Style::Lz4, ratio: 4.0, unpack_bytes_s: 1e9 };
        let choice = chosen(1e9, 2.0, &[candidate]);
        assert_eq!(choice.style, Style::Lz4);
        assert!((choice.raw_seconds_per_byte - 1e-9).abs() < 1e-12);
        assert!((choice.seconds_per_byte - (0.5 + 0.25 / 16.0) * 1e-9).abs() < 1e-12, "{choice:?}");
    }

    #[test]
    fn of_candidates_that_are_as_fast_the_smallest_is_taken() {
        let fastest = Candidate { unpack_bytes_s: 1.0e9, ..CANNED };
        let smaller = Candidate { style: Style::DeflateDynamic, ratio: 9.0, unpack_bytes_s: 0.98e9 };
        let slower = Candidate { unpack_bytes_s: 0.9e9, ..smaller };
        assert_eq!(chosen(0.8e9, 1.0, &[fastest, smaller]).style, smaller.style);
        assert_eq!(chosen(0.8e9, 1.0, &[smaller, fastest]).style, smaller.style);
        assert_eq!(chosen(0.8e9, 1.0, &[fastest, slower]).style, fastest.style);
        // Not one that is no longer worth it.
        assert_eq!(chosen(0.88e9, 1.0, &[fastest, smaller]).style, fastest.style);
    }

    #[test]
    fn the_reason_is_one_sentence_with_the_numbers() {
        for (choice, words) in [
            (
                chosen(550e6, 2.0, &MEASURED),
                "deflate-canned: the disk reads 550 MB/s, 2.0 cores unpack 1966 MB/s, so pages",
            ),
            (chosen(8e9, 1.0, &MEASURED), "% more time than raw pages"),
            (chosen(2.6e9, 1.0, &[LZ4]), "lz4, 2.66 times smaller, saves 1 % of the time, not 10 %"),
            (chosen(550e6, 0.0, &MEASURED), "none: the disk reads 550 MB/s, and no core is idle"),
            (chosen(550e6, 1.0, &[]), "none: the disk reads 550 MB/s, and no codec was measured"),
            (chosen(f64::NAN, 1.0, &MEASURED), "none: how fast the disk reads is not known"),
        ] {
            let text = choice.to_string();
            assert!(text.contains(words), "{text}");
            assert!(!text.contains(['\n', ';']) && !text.ends_with('.'), "{text}");
        }
    }

    /// Numbers that no machine has.
    fn absurd() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(f64::NAN),
            Just(0.0),
            Just(-0.0),
            Just(-1e9),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY),
            Just(f64::MIN_POSITIVE),
            Just(f64::MAX),
        ]
    }

    fn host() -> impl Strategy<Value = Host> {
        (1e6..2e10, 0.05..64.0, 1.0..4.0, 1e8..1e11).prop_map(
            |(read_bytes_s, cores, threads, place_bytes_s)| Host {
                arrival: Arrival::Together,
                read_bytes_s,
                cores,
                threads,
                place_bytes_s,
            },
        )
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let style = prop::sample::select(Style::ALL.to_vec());
        let one = (style, 0.5..20.0, 1e7..1e10).prop_map(|(style, ratio, unpack_bytes_s)| Candidate {
            style,
            ratio,
            unpack_bytes_s,
        });
        prop::collection::vec(one, 0..8)
    }

    proptest! {
        #[test]
        fn packed_pages_are_worth_it_and_nothing_is_much_faster(host in host(), candidates in candidates()) {
            let choice = choose(&host, &candidates);
            let times = candidates.iter().filter(|one| one.style != Style::None).map(|one| host.packed_seconds(one));
            let fastest = times.fold(f64::INFINITY, f64::min);
            if choice.style == Style::None {
                prop_assert_eq!(choice.seconds_per_byte, choice.raw_seconds_per_byte);
                prop_assert!(fastest > WORTH * choice.raw_seconds_per_byte);
            } else {
                prop_assert!(choice.seconds_per_byte <= WORTH * choice.raw_seconds_per_byte);
                prop_assert!(choice.seconds_per_byte <= AS_GOOD * fastest);
                prop_assert!(candidates.iter().any(|one| one.style == choice.style));
            }
            prop_assert!(!choice.to_string().contains("NaN"));
        }

        #[test]
        fn what_is_worth_it_stays_so_on_a_slower_disk_and_with_more_cores(
            host in host(), candidates in candidates(), slower in 0.01..1.0, more in 1.0..10.0,
        ) {
            let choice = choose(&host, &candidates);
            if choice.style != Style::None {
                let slow = Host { read_bytes_s: host.read_bytes_s * slower, ..host };
                prop_assert!(choose(&slow, &candidates).style != Style::None);
                let large = Host { cores: host.cores * more, ..host };
                prop_assert!(choose(&large, &candidates).style != Style::None);
            }
        }

        #[test]
        fn the_order_does_not_count(host in host(), mut candidates in candidates()) {
            let choice = choose(&host, &candidates);
            candidates.reverse();
            prop_assert_eq!(choose(&host, &candidates).seconds_per_byte, choice.seconds_per_byte);
        }

        #[test]
        fn absurd_numbers_choose_none(host in host(), candidates in candidates(), value in absurd(), which in 0..5) {
            let choice = match which {
                0 => choose(&Host { read_bytes_s: value, ..host }, &candidates),
                1 => choose(&Host { cores: value, ..host }, &candidates),
                4 => choose(&Host { place_bytes_s: value, ..host }, &candidates),
                _ => {
                    let absurd = candidates.iter().map(|one| match which {
                        2 => Candidate { ratio: value, ..*one },
                        _ => Candidate { unpack_bytes_s: value, ..*one },
                    });
                    choose(&host, &absurd.collect::<Vec<_>>())
                }
            };
            prop_assert_eq!(choice.style, Style::None);
            prop_assert!(choice.seconds_per_byte.is_finite() && choice.raw_seconds_per_byte.is_finite());
        }

        #[test]
        fn a_candidate_with_absurd_numbers_takes_nothing_from_the_others(
            host in host(), mut candidates in candidates(), value in absurd(),
        ) {
            let choice = choose(&host, &candidates);
            candidates.push(Candidate { style: Style::Lz4, ratio: value, unpack_bytes_s: 1e9 });
            candidates.push(Candidate { style: Style::Lz4, ratio: 3.0, unpack_bytes_s: value });
            prop_assert_eq!(choose(&host, &candidates), choice);
        }
    }
}
