//! Canned pieces by several tables.

use std::sync::Arc;

use codec::{PAGE_BYTES, Packer, Statistics, Style, Table, TableSet, Unpacker};
use proptest::prelude::*;

use crate::pages::{by_table, kinds, pack, pointers, random, table_of, table_set, text};

fn coders(set: &TableSet) -> (Packer, Unpacker) {
    let packer = Packer::new(Style::DeflateCanned, Some(set.clone()));
    (packer, Unpacker::new(Style::DeflateCanned, Some(set.clone())))
}

/// A copy of a table.
fn copy(table: &Table) -> Table {
    Table::from_bytes(table.to_bytes()).unwrap()
}

fn set_of(tables: &[&Arc<Table>]) -> TableSet {
    TableSet::new(tables.iter().map(|table| copy(table)).collect()).unwrap()
}

#[test]
fn a_set_has_one_to_four_tables() {
    let table = table_of(&[&text(PAGE_BYTES)]);
    let set = |count| TableSet::new((0..count).map(|_| copy(&table)).collect());
    assert!(set(0).is_none() && set(5).is_none());
    assert!((1..=4).all(|count| set(count).unwrap().tables().len() == count));
}

#[test]
fn pieces_that_differ_get_tables_of_their_own() {
    let set = table_set();
    assert!((3..=4).contains(&set.tables().len()), "{}", set.tables().len());
    let mut statistics = Statistics::new();
    statistics.add(&text(PAGE_BYTES));
    assert_eq!(statistics.tables(TableSet::MOST).tables().len(), 1, "of a page");
    for seed in 0..20 {
        statistics.add(&text(16 * PAGE_BYTES));
        statistics.add(&pointers(16 * PAGE_BYTES, seed));
    }
    assert_eq!(statistics.tables(1).tables().len(), 1);
    assert_eq!(statistics.tables(1).tables()[0].to_bytes(), Table::from(&statistics).to_bytes());
    assert_eq!(statistics.tables(2).tables().len(), 2);
    assert_eq!(Statistics::new().tables(TableSet::MOST).tables().len(), 1);
}

#[test]
fn pieces_that_are_alike_get_few_tables() {
    for piece in [vec![0; PAGE_BYTES], random(PAGE_BYTES, 1), text(PAGE_BYTES), b"abc".to_vec(), Vec::new()] {
        let mut statistics = Statistics::new();
        (0..100).for_each(|_| statistics.add(&piece));
        assert_eq!(statistics.tables(TableSet::MOST).tables().len(), 1);
    }
}

#[test]
fn a_page_is_packed_by_the_table_that_packs_it_best() {
    let set = table_set();
    let (mut packer, _) = coders(&set);
    let mut ones: Vec<Packer> = set.tables().iter().map(|table| by_table(Arc::clone(table)).0).collect();
    for (kind, piece) in kinds(PAGE_BYTES) {
        let best = ones.iter_mut().map(|one| pack(one, &piece).len()).min().unwrap();
        let len = pack(&mut packer, &piece).len();
        // Two bits more.
        assert!(len >= best && len <= best + 1, "{kind}: {len}, {best}");
    }
}

#[test]
fn a_piece_of_two_kinds_takes_two_tables() {
    let (of_text, of_pointers) =
        (table_of(&[&text(16 * PAGE_BYTES)]), table_of(&[&pointers(16 * PAGE_BYTES, 1)]));
    let (mut packer, mut unpacker) = coders(&set_of(&[&of_text, &of_pointers]));
    let piece = [text(4 * PAGE_BYTES), pointers(4 * PAGE_BYTES, 7), text(PAGE_BYTES)].concat();
    let packed = pack(&mut packer, &piece);
    for one in [of_text, of_pointers] {
        let (mut packer, mut other) = by_table(one);
        let alone = pack(&mut packer, &piece);
        assert!(packed.len() + 200 < alone.len(), "{} of {}", packed.len(), alone.len());
        // What one packed the others refuse, or it is something else.
        let mut back = vec![0; piece.len()];
        assert!(other.unpack(&packed, &mut back).is_err() || back != piece);
        assert!(unpacker.unpack(&alone, &mut back).is_err() || back != piece);
    }
    let mut back = vec![0; piece.len()];
    unpacker.unpack(&packed, &mut back).unwrap();
    assert!(back == piece);
    assert!(unpacker.unpack_prefix(&packed, &mut back).is_err());
}

#[test]
fn a_number_without_a_table_is_refused() {
    let table = table_of(&[&text(PAGE_BYTES)]);
    for count in 2..=4 {
        let (mut packer, mut unpacker) = coders(&set_of(&vec![&table; count]));
        let packed = pack(&mut packer, &text(PAGE_BYTES));
        for number in 0..4_u8 {
            let mut changed = packed.clone();
            changed[0] = changed[0] & !3 | number;
            let mut back = vec![0; PAGE_BYTES];
            let result = unpacker.unpack(&changed, &mut back);
            if usize::from(number) < count {
                assert!(result == Ok(()) && back == text(PAGE_BYTES));
            } else {
                assert!(result.unwrap_err().to_string().contains("no table of this number"));
            }
        }
    }
}

#[test]
fn parts_of_nothing_come_to_an_end() {
    // The end of a block is a bit 0, a length of three a bit 1.
    let mut litlens = [0; 258];
    litlens[256..].fill(1);
    let table = Arc::new(Table::from_code_lengths(&litlens, &[1]).unwrap());
    let (_, mut unpacker) = coders(&set_of(&[&table, &table]));
    for len in [0, 1, 100, 10_000] {
        assert!(unpacker.unpack(&vec![0; len], &mut [0; 8]).is_err());
    }
    // Nothing needs a part, too.
    assert!(unpacker.unpack(&[], &mut []).is_err());
    assert_eq!(unpacker.unpack(&[0], &mut []), Ok(()));
    assert!(unpacker.unpack(&[0, 0], &mut []).is_err());
}

proptest! {
    #[test]
    fn any_bytes_are_unpacked_or_refused_by_any_tables(
        lengths in prop::collection::vec(prop::collection::vec(1..=15_u8, 258..286), 2..=4),
        body in prop::collection::vec(any::<u8>(), 0..300),
        len in 0..9000_usize,
    ) {
        let tables = lengths.iter().filter_map(|lengths| Table::from_code_lengths(lengths, &[1, 1]).ok());
        let tables = tables.chain([copy(&table_of(&[&random(PAGE_BYTES, 1)]))]).collect();
        let (_, mut unpacker) = coders(&TableSet::new(tables).unwrap());
        _ = unpacker.unpack(&body, &mut vec![0; len]);
    }
}
