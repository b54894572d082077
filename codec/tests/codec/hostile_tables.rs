//! Tables from a file that anybody may have written.

use std::sync::Arc;

use codec::{PAGE_BYTES, Style, Table};
use proptest::prelude::*;

use crate::pages::{by_table, pack, packer, table, table_of, text};

/// Bits, the lowest first, as bytes.
fn bytes(bits: &[(u32, usize)]) -> Vec<u8> {
    let all: Vec<u8> =
        bits.iter().flat_map(|(value, count)| (0..*count).map(move |bit| (value >> bit & 1) as u8)).collect();
    all.chunks(8).map(|byte| byte.iter().enumerate().map(|(at, bit)| bit << at).sum()).collect()
}

/// A header whose code of code lengths has the symbols 0, 1, 2 and 18 at two bits each, for these lengths.
fn header(litlens: &[u8], distances: &[u8]) -> Vec<u8> {
    let small = |count: usize| u32::try_from(count).unwrap();
    let mut bits = vec![(5, 3), (small(litlens.len() - 257), 5), (small(distances.len() - 1), 5), (14, 4)];
    // 16 17 18 0 8 7 9 6 10 5 11 4 12 3 13 2 14 1
    for given in [0, 0, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 2] {
        bits.push((given, 3));
    }
    // Codes in order of their symbols, first bit lowest: 0, 1, 2, 18.
    let code = |length: u8| match length {
        0 => (0b00, 2),
        1 => (0b10, 2),
        _ => (0b01, 2),
    };
    bits.extend(litlens.iter().chain(distances).map(|length| code(*length)));
    bytes(&bits)
}

fn litlens(set: &[(usize, u8)]) -> Vec<u8> {
    let mut lengths = vec![0; 257 + 1];
    for (symbol, length) in set {
        lengths[*symbol] = *length;
    }
    lengths
}

#[test]
fn tables_come_back() {
    for table in [table(), table_of(&[]), table_of(&[&text(PAGE_BYTES)])] {
        let back = Table::from_bytes(table.to_bytes()).unwrap();
        assert!(back.to_bytes() == table.to_bytes() && back.code_lengths() == table.code_lengths());
        assert_eq!(back.header_bits(), table.header_bits());
        let body = pack(&mut by_table(table).0, &text(PAGE_BYTES));
        let mut out = vec![0; PAGE_BYTES];
        by_table(Arc::new(back)).1.unpack(&body, &mut out).unwrap();
        assert_eq!(out, text(PAGE_BYTES));
    }
}

#[test]
fn tables_are_made_of_code_lengths() {
    let table = table();
    let (litlens, distances) = table.code_lengths();
    let same = Table::from_code_lengths(litlens, distances).unwrap();
    assert!(same.to_bytes() == table.to_bytes() && same.code_words() == table.code_words());
    assert!(Table::from_code_lengths(&litlens[1..], distances).is_err());
    assert!(Table::from_code_lengths(&[1; 287], distances).is_err());
    assert!(Table::from_code_lengths(litlens, &[200]).is_err());
    assert!(Table::from_code_lengths(litlens, &[1; 31]).is_err());
    assert!(Table::from_code_lengths(&[], &[]).is_err());
}

#[test]
fn a_body_ends_itself() {
    let body = pack(&mut packer(Style::DeflateCanned), &text(PAGE_BYTES));
    let longer = [&body[..], &[0xff; 30]].concat();
    let mut unpacker = crate::pages::unpacker(Style::DeflateCanned);
    let mut out = vec![0; 2 * PAGE_BYTES];
    assert_eq!(unpacker.unpack_prefix(&longer, &mut out), Ok((body.len(), PAGE_BYTES)));
    assert_eq!(out[..PAGE_BYTES], text(PAGE_BYTES));
    assert!(unpacker.unpack_prefix(&body, &mut out[..PAGE_BYTES - 1]).is_err());
    assert!(unpacker.unpack_prefix(&body[..body.len() - 2], &mut out).is_err());
    assert!(crate::pages::unpacker(Style::DeflateDynamic).unpack_prefix(&body, &mut out).is_err());
}

#[test]
fn only_codes_that_the_rfc_allows_are_taken() {
    let taken = |lit: &[(usize, u8)], dist: &[u8]| {
        Table::from_bytes(&header(&litlens(lit), dist)).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(taken(&[(0, 1), (256, 1)], &[0]), Ok(()));
    assert_eq!(taken(&[(0, 1), (1, 2), (256, 2)], &[1, 1]), Ok(()));
    // One distance of one bit, and nothing but the end.
    assert_eq!(taken(&[(0, 1), (256, 1)], &[1]), Ok(()));
    assert_eq!(taken(&[(256, 1)], &[0]), Ok(()));
    type Refused<'a> = (&'a [(usize, u8)], &'a [u8], &'a str);
    let refused: [Refused; 6] = [
        (&[(0, 1), (1, 1)], &[0], "no end"),
        (&[(0, 1), (1, 1), (256, 1)], &[0], "literals"),
        (&[(0, 2), (1, 2), (256, 2)], &[0], "literals"),
        (&[(256, 2)], &[0], "literals"),
        (&[(0, 1), (256, 1)], &[1, 1, 1], "distances"),
        (&[(0, 1), (256, 1)], &[2, 2], "distances"),
    ];
    for (lit, dist, why) in refused {
        let error = taken(lit, dist).unwrap_err();
        assert!(error.contains(why), "{error} is not about {why}");
    }
}

#[test]
fn a_table_without_a_symbol_packs_no_piece_that_needs_it() {
    let table = Arc::new(Table::from_bytes(&header(&litlens(&[(0, 1), (256, 2), (257, 2)]), &[1])).unwrap());
    let (mut packer, mut unpacker) = by_table(table);
    let mut out = [0; 100];
    assert_eq!(packer.pack(&[0, 0], &mut out), Some(1));
    assert_eq!(packer.pack(&[0, 1], &mut out), None);
    assert_eq!(packer.pack(&[0; 100], &mut out), None);
    // Its codes that mean nothing are refused when they are read.
    assert_eq!(unpacker.unpack(&[0b0000_0110, 0b1], &mut [0; 8]), Ok(()));
    assert!(unpacker.unpack(&[0b0000_1110, 0b1], &mut [0; 8]).is_err());
    assert!(unpacker.unpack(&[0b1111_1110, 0xff], &mut [0; 8]).is_err());
}

#[test]
fn every_flipped_bit_and_truncation_of_a_table_is_refused_or_read() {
    let good = table();
    let body = pack(&mut packer(Style::DeflateCanned), &text(PAGE_BYTES));
    for len in 0..good.to_bytes().len() {
        assert!(Table::from_bytes(&good.to_bytes()[..len]).is_err());
    }
    assert!(Table::from_bytes(&[good.to_bytes(), &[0]].concat()).is_err());
    assert!(Table::from_bytes(&vec![0xff; 10_000]).is_err());
    let mut refused = 0;
    for bit in 0..good.to_bytes().len() * 8 {
        let mut changed = good.to_bytes().to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        match Table::from_bytes(&changed) {
            Err(_) => refused += 1,
            Ok(table) => {
                let (_, mut unpacker) = by_table(Arc::new(table));
                _ = unpacker.unpack(&body, &mut vec![0; PAGE_BYTES]);
            }
        }
    }
    assert!(refused > good.to_bytes().len() * 7, "{refused}");
}

proptest! {
    #[test]
    fn any_bytes_are_a_table_or_none(
        bytes in prop::collection::vec(any::<u8>(), 0..200), body in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = *first & !7 | 5;
        }
        if let Ok(table) = Table::from_bytes(&bytes) {
            _ = by_table(Arc::new(table)).1.unpack(&body, &mut [0; 500]);
        }
    }
}
