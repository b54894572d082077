//! Tables of canned DEFLATE from a file: any bytes are a table or refused, and tables that are taken unpack and pack without
//! harm. The first byte says how much of the input is the first table, the next how much is the second one, if there is one.
#![no_main]

use std::sync::Arc;

use codec::{Packer, Style, Table, TableSet, Unpacker};
use libfuzzer_sys::fuzz_target;

/// A table, and what follows it.
fn table(input: &[u8]) -> Option<(Table, &[u8])> {
    let (len, rest) = input.split_first()?;
    let (bytes, rest) = rest.split_at((*len as usize).min(rest.len()));
    let table = Table::from_bytes(bytes).ok()?;
    assert_eq!(table.to_bytes(), bytes);
    assert!(table.header_bits().div_ceil(8) == bytes.len());
    Some((table, rest))
}

fn work(tables: &TableSet, body: &[u8]) {
    let mut unpacker = Unpacker::new(Style::DeflateCanned, Some(tables.clone()));
    _ = unpacker.unpack(body, &mut [0; 4096]);
    // A hostile table may lack symbols; what it packs comes back all the same.
    let mut packed = [0; 8192];
    if let Some(count) = Packer::new(Style::DeflateCanned, Some(tables.clone())).pack(body, &mut packed) {
        let mut back = vec![0; body.len()];
        unpacker.unpack(&packed[..count], &mut back).expect("it was just packed");
        assert_eq!(back, body);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = table(input) else { return };
    let first = Arc::new(first);
    work(&first.clone().into(), rest);
    if let Some((second, body)) = table(rest) {
        let copy = Table::from_bytes(first.to_bytes()).expect("it is a table");
        work(&TableSet::new(vec![copy, second]).expect("two tables"), body);
    }
});
