//! Tables of canned DEFLATE from a file: any bytes are a table or refused, and a table that is taken unpacks and packs
//! without harm. The first byte says how much of the input is the table.
#![no_main]

use std::sync::Arc;

use codec::{Packer, Style, Table, Unpacker};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((len, rest)) = input.split_first() else { return };
    let (bytes, body) = rest.split_at((*len as usize).min(rest.len()));
    let Ok(table) = Table::from_bytes(bytes) else { return };
    assert_eq!(table.to_bytes(), bytes);
    assert!(table.header_bits().div_ceil(8) == bytes.len());
    let table = Arc::new(table);
    let mut unpacker = Unpacker::new(Style::DeflateCanned, Some(table.clone()));
    _ = unpacker.unpack(body, &mut [0; 4096]);
    // A hostile table may lack symbols; what it packs comes back all the same.
    let mut packed = [0; 8192];
    if let Some(count) = Packer::new(Style::DeflateCanned, Some(table)).pack(body, &mut packed) {
        let mut back = vec![0; body.len()];
        unpacker.unpack(&packed[..count], &mut back).expect("it was just packed");
        assert_eq!(back, body);
    }
});
