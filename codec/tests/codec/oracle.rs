//! Another implementation of DEFLATE reads what is packed here, and packs what is read here.

use std::io::{Read, Write};

use codec::{PAGE_BYTES, PIECE_BYTES, Style, Table};
use flate2::{Compression, read::DeflateDecoder, write::DeflateEncoder};

use crate::pages::{kinds, pack, packer, table, table_of, unpacker};

fn inflate(packed: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    DeflateDecoder::new(packed).read_to_end(&mut out).expect("it is DEFLATE");
    out
}

/// A table's header and a body as one stream of bits.
fn joined(table: &Table, body: &[u8]) -> Vec<u8> {
    let mut stream = table.to_bytes().to_vec();
    let shift = table.header_bits() % 8;
    for byte in body {
        if shift == 0 {
            stream.push(*byte);
        } else {
            *stream.last_mut().unwrap() |= byte << shift;
            stream.push(byte >> (8 - shift));
        }
    }
    stream
}

#[test]
fn others_read_streams_packed_here() {
    for style in [Style::DeflateFixed, Style::DeflateDynamic] {
        let mut packer = packer(style);
        for len in [1, 100, PAGE_BYTES, PIECE_BYTES] {
            for (kind, piece) in kinds(len.max(700)) {
                let piece = &piece[..len];
                assert!(inflate(&pack(&mut packer, piece)) == piece, "{style}, {kind}, {len}");
            }
        }
    }
}

#[test]
fn others_read_a_table_with_a_body_behind_it() {
    let tables = [
        table(),
        table_of(&[]),
        table_of(&[&[0; PAGE_BYTES]]),
        table_of(&[&crate::pages::random(PIECE_BYTES, 1)]),
    ];
    for table in tables {
        let mut packer = codec::Packer::new(Style::DeflateCanned, Some(table.clone()));
        for len in [PAGE_BYTES, PIECE_BYTES] {
            for (kind, piece) in kinds(len) {
                let body = pack(&mut packer, &piece);
                assert!(inflate(&joined(&table, &body)) == piece, "{kind}, {len}");
            }
        }
    }
}

#[test]
fn streams_of_others_are_read_here() {
    let mut unpacker = unpacker(Style::DeflateDynamic);
    for level in 0..=9 {
        for (kind, piece) in kinds(PAGE_BYTES).into_iter().chain(kinds(PIECE_BYTES)) {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
            encoder.write_all(&piece).unwrap();
            let packed = encoder.finish().unwrap();
            let mut back = vec![0; piece.len()];
            unpacker
                .unpack(&packed, &mut back)
                .unwrap_or_else(|error| panic!("level {level}, {kind}: {error}"));
            assert!(back == piece, "level {level}, {kind}");
        }
    }
}

#[test]
fn streams_of_many_blocks_are_read_here() {
    let piece = crate::pages::text(PIECE_BYTES);
    for level in [0, 1, 6] {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
        for part in piece.chunks(1500) {
            encoder.write_all(part).unwrap();
            encoder.flush().unwrap();
        }
        let mut back = vec![0; piece.len()];
        unpacker(Style::DeflateFixed).unpack(&encoder.finish().unwrap(), &mut back).unwrap();
        assert!(back == piece, "level {level}");
    }
}
