//! The ELF loader's parser on arbitrary files: it never panics, and what it accepts keeps its promises.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qkernel::task::elf::{HEADER_BYTES, Header, Image};

fuzz_target!(|file: &[u8]| {
    let Some(head) = file.get(..HEADER_BYTES) else { return };
    let Ok(header) = Header::parse(head) else { return };
    let start = usize::try_from(header.program_headers_offset).unwrap_or(usize::MAX);
    let table = start.checked_add(header.program_header_bytes()).and_then(|end| file.get(start..end));
    // Also with the table right behind the header, so that the fuzzer gets past the offset easily.
    for table in [table, file.get(HEADER_BYTES..)].into_iter().flatten() {
        let Ok(image) = Image::parse(header, table) else { continue };
        let (first, last) = image.span();
        assert!(first < last && last <= abi::layout::USER_MAX);
        for segment in &image.segments {
            assert!(segment.file_bytes <= segment.memory_bytes);
            assert!(segment.vaddr >= first && segment.vaddr + segment.memory_bytes <= last);
        }
        let _ = image.program_headers_address();
    }
});
