//! Any piece comes back from every style. An input is read as literals and copies, so that it grows long repeats.
#![no_main]

use std::{cell::RefCell, sync::Arc};

use codec::{PIECE_BYTES, Packer, Statistics, Style, Table, TableSet, Unpacker};
use libfuzzer_sys::fuzz_target;

/// Bytes as they are, but 0xff with a distance and a length in the four bytes behind it, which copies.
fn piece(input: &[u8]) -> Vec<u8> {
    let mut piece = Vec::new();
    let mut rest = input;
    loop {
        rest = match rest {
            [] => break,
            [0xff, near, far, short, long, rest @ ..] => {
                let distance = usize::from(u16::from_le_bytes([*near, *far])) + 1;
                for _ in 0..usize::from(u16::from_le_bytes([*short, *long & 15])) {
                    piece.push(piece.len().checked_sub(distance).map_or(0, |at| piece[at]));
                }
                rest
            }
            [byte, rest @ ..] => {
                piece.push(*byte);
                rest
            }
        };
        if piece.len() >= PIECE_BYTES {
            break;
        }
    }
    piece.truncate(PIECE_BYTES);
    piece
}

thread_local! {
    static CODERS: RefCell<Vec<(Packer, Unpacker)>> = RefCell::new({
        let mut statistics = Statistics::new();
        statistics.add(include_bytes!("codec_round_trip.rs"));
        let one: TableSet = Arc::new(Table::from(&statistics)).into();
        let several = [&b"a b c"[..], &[0; 4096], include_bytes!("codec_round_trip.rs"), &[0xff, 1, 2, 3]].map(|text| {
            let mut statistics = Statistics::new();
            statistics.add(text);
            Table::from(&statistics)
        });
        let several = TableSet::new(several.into()).expect("four tables");
        let ways = Style::ALL.map(|style| (style, &one)).into_iter().chain([(Style::DeflateCanned, &several)]);
        ways.map(|(style, tables)| {
            (Packer::new(style, Some(tables.clone())), Unpacker::new(style, Some(tables.clone())))
        }).collect()
    });
}

fuzz_target!(|input: &[u8]| {
    let piece = piece(input);
    let mut packed = vec![0; 2 * PIECE_BYTES + 1024];
    CODERS.with_borrow_mut(|coders| {
        for (packer, unpacker) in coders {
            let len = packer.pack(&piece, &mut packed).expect("there is room");
            let mut back = vec![1; piece.len()];
            unpacker.unpack(&packed[..len], &mut back).expect("it was just packed");
            assert!(back == piece);
        }
    });
});
