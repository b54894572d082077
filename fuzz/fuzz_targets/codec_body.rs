//! Packed bytes from a file: any bytes are unpacked or refused. The first two bytes say in which style, canned by one table or by
//! three, and to what length.
#![no_main]

use std::{cell::RefCell, sync::Arc};

use codec::{Statistics, Style, Table, TableSet, Unpacker};
use libfuzzer_sys::fuzz_target;

fn table(text: &[u8]) -> Table {
    let mut statistics = Statistics::new();
    statistics.add(text);
    Table::from(&statistics)
}

thread_local! {
    static UNPACKERS: RefCell<Vec<Unpacker>> = RefCell::new({
        let one = Arc::new(table(include_bytes!("codec_body.rs")));
        let styles = [Style::Lz4, Style::DeflateDynamic, Style::DeflateCanned, Style::Zstd(1)];
        let mut unpackers: Vec<Unpacker> =
            styles.map(|style| Unpacker::new(style, Some(one.clone()))).into();
        // One number has no table.
        let three = vec![table(include_bytes!("codec_body.rs")), table(&[0; 4096]), table(b"")];
        unpackers.push(Unpacker::new(Style::DeflateCanned, TableSet::new(three)));
        unpackers
    });
}

fuzz_target!(|input: &[u8]| {
    let [choice, len, packed @ ..] = input else { return };
    let mut out = vec![0; [*len as usize, 4096, 4096 + *len as usize, 65536][*choice as usize / 5 % 4]];
    UNPACKERS.with_borrow_mut(|unpackers| {
        _ = unpackers[*choice as usize % 5].unpack(packed, &mut out);
    });
});
