//! How well and how fast the styles pack given pages.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    error::Corrupt,
    packer::Packer,
    piece::{PAGE_BYTES, PIECE_BYTES},
    statistics::Statistics,
    style::Style,
    table_set::TableSet,
    unpacker::Unpacker,
};

/// Measurements of one style with pieces of one size: how small it packs them, and how fast it packs and unpacks.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The style that was measured.
    pub style: Style,
    /// An [`Engine`](crate::Engine) packed and unpacked, not this processor.
    pub by_engine: bool,
    /// Bytes of a piece.
    pub piece_bytes: usize,
    /// Pages given.
    pub pages: usize,
    /// Pages that hold one word again and again; these are not packed but counted as nothing.
    pub word_pages: usize,
    /// Bytes that pages of more than one word take up packed; pieces that packing makes hardly smaller count as they
    /// are.
    pub packed_bytes: usize,
    /// How many pieces stay as they are.
    pub raw_pieces: usize,
    /// How fast pieces were packed.
    pub pack: Speed,
    /// How fast pieces were unpacked.
    pub unpack: Speed,
}

/// How fast pieces were packed or unpacked: megabytes (10^6) of memory a second of one processor's time, over some rounds.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// The speed of the round in the middle.
    pub median: f64,
    /// The speed of the slowest round.
    pub slowest: f64,
    /// The speed of the fastest round.
    pub fastest: f64,
    /// Processor time of one round.
    pub cpu: Duration,
    /// Time that went by in one round: more than [`Self::cpu`] where others want the processor too.
    pub wall: Duration,
}

impl Measured {
    /// How many times smaller the pages get, those of one word not counted.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        ratio((self.pages - self.word_pages) * PAGE_BYTES, self.packed_bytes)
    }

    /// How many times smaller all pages get.
    #[must_use]
    pub fn ratio_of_all(&self) -> f64 {
        ratio(self.pages * PAGE_BYTES, self.packed_bytes)
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn ratio(bytes: usize, packed: usize) -> f64 {
    bytes as f64 / packed.max(1) as f64
}

/// How much packing has to save of a piece: an eighth.
pub(crate) fn room_for(piece: usize) -> usize {
    piece - piece / 8
}

/// Whether a page holds one word again and again.
pub(crate) fn is_word(page: &[u8]) -> bool {
    page[8..] == page[..page.len() - 8]
}

/// Packs and unpacks `memory`, whole pages, by page and by partition of 64 KiB, `rounds` times each. What comes back is compared.
/// Packing makes canned tables, too.
///
/// # Errors
/// Something came back different.
pub fn measure(memory: &[u8], styles: &[Style], rounds: usize) -> Result<Vec<Measured>, Corrupt> {
    let mut packable = Vec::with_capacity(memory.len());
    for page in memory.chunks_exact(PAGE_BYTES) {
        if !is_word(page) {
            packable.extend_from_slice(page);
        }
    }
    let pages = memory.len() / PAGE_BYTES;
    let mut all = Vec::new();
    for piece_bytes in [PAGE_BYTES, PIECE_BYTES] {
        for &style in styles {
            let mut one = measure_one(&packable, style, piece_bytes, rounds.max(1))?;
            one.pages = pages;
            one.word_pages = pages - packable.len() / PAGE_BYTES;
            all.push(one);
        }
    }
    Ok(all)
}

/// Canned tables, as a store makes them.
fn tables_of(memory: &[u8], piece_bytes: usize) -> TableSet {
    let mut statistics = Statistics::new();
    statistics.add_sample(memory, piece_bytes);
    statistics.tables(TableSet::MOST)
}

fn measure_one(memory: &[u8], style: Style, piece_bytes: usize, rounds: usize) -> Result<Measured, Corrupt> {
    let mut tables = None;
    let mut store = vec![0; memory.len()];
    let mut lengths: Vec<Option<usize>> = Vec::new();
    let mut packed_bytes = 0;
    let pack = time(rounds, memory.len(), || {
        tables = (style == Style::DeflateCanned).then(|| tables_of(memory, piece_bytes));
        let mut packer = Packer::new(style, tables.clone());
        lengths.clear();
        packed_bytes = 0;
        for piece in memory.chunks(piece_bytes) {
            let room = if style == Style::None { piece.len() } else { room_for(piece.len()) };
            let len = packer.pack(piece, &mut store[packed_bytes..packed_bytes + room]);
            if len.is_none() {
                store[packed_bytes..packed_bytes + piece.len()].copy_from_slice(piece);
            }
            packed_bytes += len.unwrap_or(piece.len());
            lengths.push(len);
        }
        Ok(())
    })?;
    let mut unpacker = Unpacker::new(style, tables);
    let mut back = vec![0; memory.len()];
    let unpack = time(rounds, memory.len(), || {
        let mut at = 0;
        for (piece, len) in back.chunks_mut(piece_bytes).zip(&lengths) {
            let end = at + len.unwrap_or(piece.len());
            match len {
                Some(_) => unpacker.unpack(&store[at..end], piece)?,
                None => piece.copy_from_slice(&store[at..end]),
            }
            at = end;
        }
        Ok(())
    })?;
    if back != memory {
        return Err(Corrupt("it came back different"));
    }
    let raw_pieces = lengths.iter().filter(|len| len.is_none()).count();
    let (by_engine, pages, word_pages) = (false, 0, 0);
    Ok(Measured { style, by_engine, piece_bytes, pages, word_pages, packed_bytes, raw_pieces, pack, unpack })
}

pub(crate) fn time(
    rounds: usize,
    bytes: usize,
    mut work: impl FnMut() -> Result<(), Corrupt>,
) -> Result<Speed, Corrupt> {
    let mut speeds = Vec::with_capacity(rounds);
    let (begin, start) = (cpu_time(), Instant::now());
    for _ in 0..rounds {
        let start = cpu_time();
        work()?;
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        speeds.push(bytes as f64 / 1e6 / (cpu_time() - start).as_secs_f64().max(1e-9));
    }
    let each = |time: Duration| time / u32::try_from(rounds).unwrap_or(u32::MAX);
    let (cpu, wall) = (each(cpu_time() - begin), each(start.elapsed()));
    speeds.sort_unstable_by(f64::total_cmp);
    Ok(Speed { median: speeds[rounds / 2], slowest: speeds[0], fastest: speeds[rounds - 1], cpu, wall })
}

/// The processor time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_one_word_count_as_nothing_and_random_ones_stay_as_they_are() {
        let mut memory = vec![7; PAGE_BYTES];
        memory.extend(b"nothing happens twice ".iter().cycle().take(2 * PAGE_BYTES));
        let mut seed = 1_u64;
        memory.extend((0..PAGE_BYTES).map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 56) as u8
        }));
        for one in measure(&memory, &Style::ALL, 2).unwrap() {
            assert_eq!((one.pages, one.word_pages), (4, 1));
            let raw = usize::from(one.style != Style::None && one.piece_bytes == PAGE_BYTES);
            assert_eq!(one.raw_pieces, raw, "{one:?}");
            let least = if one.style == Style::None { 3 * PAGE_BYTES } else { PAGE_BYTES };
            assert!(one.packed_bytes >= least && one.packed_bytes <= least + 600, "{one:?}");
            assert!(one.ratio_of_all() > one.ratio());
        }
    }
}
