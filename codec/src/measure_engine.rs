//! How well and how fast an engine packs given pages.

use std::sync::Arc;

use crate::{
    engine::{Engine, Work},
    error::Corrupt,
    measure::{Measured, is_word, room_for, time},
    piece::{ENGINE_WINDOW_BYTES, PAGE_BYTES, PIECE_BYTES},
    statistics::Statistics,
    style::Style,
    table::Table,
};

/// Packs and unpacks `memory` as [`measure`](crate::measure) does, by an engine: canned, with its window. What it takes of the
/// processor's time is the caller's, waiting included.
///
/// # Errors
/// Something came back different.
pub fn measure_by(engine: &dyn Engine, memory: &[u8], rounds: usize) -> Result<Vec<Measured>, Corrupt> {
    let pages = memory.len() / PAGE_BYTES;
    let packable: Vec<&[u8]> = memory.chunks_exact(PAGE_BYTES).filter(|page| !is_word(page)).collect();
    let packable = packable.concat();
    let word_pages = pages - packable.len() / PAGE_BYTES;
    let of_size = |piece_bytes| {
        let measured = measure_one(engine, &packable, piece_bytes, rounds.max(1))?;
        Ok(Measured { pages, word_pages, ..measured })
    };
    [PAGE_BYTES, PIECE_BYTES].into_iter().map(of_size).collect()
}

fn measure_one(
    engine: &dyn Engine,
    memory: &[u8],
    piece_bytes: usize,
    rounds: usize,
) -> Result<Measured, Corrupt> {
    let make_table = || {
        let mut statistics = Statistics::new().with_window(ENGINE_WINDOW_BYTES);
        statistics.add_sample(memory, piece_bytes);
        Arc::new(Table::from(&statistics))
    };
    let mut table = make_table();
    let mut store = vec![0; memory.len()];
    let mut lengths: Vec<Option<usize>> = Vec::new();
    let pack = time(rounds, memory.len(), || {
        table = make_table();
        let mut work: Vec<Work<'_>> = memory
            .chunks(piece_bytes)
            .zip(store.chunks_mut(piece_bytes))
            .map(|(piece, room)| {
                let out = &mut room[..room_for(piece.len())];
                Work::Pack { piece, out, packed_bytes: None }
            })
            .collect();
        engine.run(&table, &mut work).map_err(|(_, error)| error)?;
        let length = |work: Work<'_>| match work {
            Work::Pack { packed_bytes, .. } => packed_bytes,
            Work::Unpack { .. } => None,
        };
        lengths = work.into_iter().map(length).collect();
        Ok(())
    })?;
    let mut back = vec![0; memory.len()];
    let unpack = time(rounds, memory.len(), || {
        let mut work: Vec<Work<'_>> = Vec::with_capacity(lengths.len());
        let pieces = memory.chunks(piece_bytes).zip(store.chunks(piece_bytes)).zip(&lengths);
        for (((piece, packed), len), out) in pieces.zip(back.chunks_mut(piece_bytes)) {
            match len {
                Some(len) => work.push(Work::Unpack { packed: &packed[..*len], out }),
                None => out.copy_from_slice(piece),
            }
        }
        engine.run(&table, &mut work).map_err(|(_, error)| error)
    })?;
    if back != memory {
        return Err(Corrupt("it came back different"));
    }
    let stored = |(piece, len): (&[u8], &Option<usize>)| len.unwrap_or(piece.len());
    let packed_bytes = memory.chunks(piece_bytes).zip(&lengths).map(stored).sum();
    Ok(Measured {
        style: Style::DeflateCanned,
        by_engine: true,
        piece_bytes,
        pages: 0,
        word_pages: 0,
        packed_bytes,
        raw_pieces: lengths.iter().filter(|len| len.is_none()).count(),
        pack,
        unpack,
    })
}
