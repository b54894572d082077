//! Packed bytes from a file: any bytes are unpacked or refused. The first two bytes say in which style, and to what length.
#![no_main]

use std::{cell::RefCell, sync::Arc};

use codec::{Statistics, Style, Table, Unpacker};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static UNPACKERS: RefCell<Vec<Unpacker>> = RefCell::new({
        let mut statistics = Statistics::new();
        statistics.add(include_bytes!("codec_body.rs"));
        let table = Arc::new(Table::from(&statistics));
        [Style::Lz4, Style::DeflateDynamic, Style::DeflateCanned, Style::Zstd(1)]
            .map(|style| Unpacker::new(style, Some(table.clone()))).into()
    });
}

fuzz_target!(|input: &[u8]| {
    let [choice, len, packed @ ..] = input else { return };
    let mut out = vec![0; [*len as usize, 4096, 4096 + *len as usize, 65536][*choice as usize / 4 % 4]];
    UNPACKERS.with_borrow_mut(|unpackers| {
        _ = unpackers[*choice as usize % 4].unpack(packed, &mut out);
    });
});
