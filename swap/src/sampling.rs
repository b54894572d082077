//! The choice that `auto` makes: from a sample of the pages, the speed of the disk, and that of the processors.

use std::time::{Duration, Instant};

use codec::{Arrival, Packer, Statistics, Style, TableSet, Unpacker};

use crate::aligned::AlignedPage;
use crate::error::SwapError;
use crate::large::Large;
use crate::packed::Source;
use crate::page::PAGE_BYTES;
use crate::piece::Piece;
use crate::pool;

/// Pages of a run of the sample, and how many runs.
const RUN_PAGES: usize = 512;
const RUNS: usize = 2;
/// Of each so many pieces one is packed.
const PIECE_STEP: usize = 4;
/// Pages of a piece.
const PIECE_PAGES: usize = 16;
/// Fewer pages are not worth a look.
const PAGES_MIN: usize = 16;
/// The styles that are tried.
const STYLES: [Style; 3] = [Style::Lz4, Style::Zstd(Style::ZSTD_LEVEL), Style::DeflateCanned];

/// The facts about the host and the pages that a choice goes by.
pub struct Host {
    /// The fastest that pages were seen to come from the disk; 0: not seen.
    pub read_bytes_s: u64,
    /// Processors that may be used, if not all.
    pub cpus: Option<f64>,
    /// Whether the pages come back together, so that several threads unpack them.
    pub is_working: bool,
}

/// The style for the pages of `source`; `None`: stopped.
pub fn choose(
    host: &Host,
    pages: usize,
    source: &mut dyn Source,
    goes_on: &dyn Fn() -> bool,
) -> Result<Option<Style>, SwapError> {
    if pages < PAGES_MIN {
        return Ok(Some(Style::None));
    }
    let (mut sample, seen) = sample(pages, source)?;
    let Some(place_bytes_s) = placing_bytes_s(AlignedPage::bytes(&sample)) else {
        return Ok(Some(Style::None));
    };
    let mut candidates = Vec::new();
    for style in STYLES {
        if !goes_on() {
            return Ok(None);
        }
        candidates.extend(try_out(style, &mut sample));
    }
    let processors = pool::processors();
    #[expect(clippy::cast_precision_loss, reason = "a speed")]
    let host = codec::Host {
        arrival: if host.is_working { Arrival::Together } else { Arrival::ByFault },
        read_bytes_s: host.read_bytes_s.max(seen) as f64,
        cores: host.cpus.unwrap_or(f64::MAX).min(processors),
        threads: pool::THREADS.min(processors),
        place_bytes_s,
    };
    Ok(Some(codec::choose(&host, &candidates).style))
}

/// How many bytes a second of this thread's processor time are checked and copied to pages that nobody has touched yet, as they
/// are when they come back. `None`: there is no memory for it, or it took no time that can be measured.
#[must_use]
pub fn placing_bytes_s(content: &[u8]) -> Option<f64> {
    let (pages, _) = content.as_chunks::<PAGE_BYTES>();
    let fresh = Large::shared(pages.len())?;
    let start = thread_time();
    for (place, page) in pages.iter().enumerate() {
        std::hint::black_box(crc32c::crc32c(page));
        // SAFETY: the mapping has room for as many pages, and nobody has a reference to any of them.
        unsafe { Piece::new(fresh.first().add(place).cast(), PAGE_BYTES) }.copy_in(page);
    }
    let time = thread_time().saturating_sub(start).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "measured")]
    let bytes = size_of_val(pages) as f64;
    (time > 0.0 && bytes > 0.0).then(|| bytes / time)
}

/// Pages from several places, and how many bytes a second they came with.
fn sample(pages: usize, source: &mut dyn Source) -> Result<(Vec<AlignedPage>, u64), SwapError> {
    let run = RUN_PAGES.min(pages);
    let runs = RUNS.min(pages / run);
    let mut sample = vec![AlignedPage::ZERO; run * runs];
    let mut fastest = 0;
    for (number, into) in sample.chunks_mut(run).enumerate() {
        let first = if runs > 1 { (pages - run) * number / (runs - 1) } else { 0 };
        let start = Instant::now();
        source.read(first..first + run, into)?;
        let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX).max(1);
        // A thread that others may interrupt at any time sees the disk's speed by chance alone.
        fastest = fastest.max((size_of_val(into) as u64).saturating_mul(1_000_000) / micros);
    }
    Ok((sample, fastest))
}

/// Measures a style with the sample; `None`: there is nothing that can be measured.
fn try_out(style: Style, sample: &mut [AlignedPage]) -> Option<codec::Candidate> {
    let bytes: &[u8] = AlignedPage::bytes_mut(sample);
    let step = if bytes.len() > PIECE_STEP * PIECE_PAGES * PAGE_BYTES { PIECE_STEP } else { 1 };
    // Not the pieces that canned tables are made from, where there are enough: most pages of a set are others, too.
    let pieces = bytes.chunks(PIECE_PAGES * PAGE_BYTES).skip(usize::from(step > 1)).step_by(step);
    let pieces: Vec<&[u8]> = pieces.collect();
    let tables = (style == Style::DeflateCanned).then(|| {
        let mut statistics = Statistics::new();
        statistics.add_sample(bytes, PIECE_PAGES * PAGE_BYTES);
        statistics.tables(TableSet::MOST)
    });
    let mut packer = Packer::new(style, tables.clone());
    let packed: Vec<(usize, Vec<u8>)> = pieces
        .iter()
        .filter_map(|piece| {
            let mut out = vec![0; piece.len() - piece.len() / 8];
            let len = packer.pack(piece, &mut out)?;
            out.truncate(len);
            Some((piece.len(), out))
        })
        .collect();
    let taken = pieces.iter().map(|piece| piece.len()).sum::<usize>();
    let (input, output): (Vec<usize>, Vec<usize>) =
        packed.iter().map(|(input, out)| (*input, out.len())).unzip();
    let (input, output) = (input.iter().sum::<usize>(), output.iter().sum::<usize>());
    let mut unpacker = Unpacker::new(style, tables);
    let mut out = vec![0; PIECE_PAGES * PAGE_BYTES];
    let start = thread_time();
    for (len, packed) in &packed {
        unpacker.unpack(packed, &mut out[..*len]).ok()?;
        std::hint::black_box(&out);
    }
    let time = thread_time().saturating_sub(start).as_secs_f64();
    // Pieces that packing makes hardly smaller stay as they are.
    #[expect(clippy::cast_precision_loss, reason = "measured")]
    let (ratio, speed) = (taken as f64 / (taken - input + output) as f64, input as f64 / time);
    (input > 0 && time > 0.0).then_some(codec::Candidate { style, ratio, unpack_bytes_s: speed })
}

/// The processor time of this thread.
pub fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is this function's own.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}
