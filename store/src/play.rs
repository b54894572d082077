//! Strangers' recipes, dblocks and differences, for fuzzing: their checksums are right.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::bytes::{begin, seal};
use crate::dblock::{Dblock, Footer, TRAILER_FRONT};
use crate::difference::{self, DIFFERENCE_MAX, PAGE};
use crate::recipe::Recipe;
use crate::region::CHUNK_MAX;

/// Reads any bytes as what the store reads.
#[expect(clippy::missing_panics_doc, reason = "that is what is looked for")]
pub fn play(input: &[u8]) {
    let Some((kind, input)) = input.split_first() else { return };
    match kind % 4 {
        0 => recipe(input),
        1 => dblock(input),
        2 => apply(input),
        _ => compare(input),
    }
}

fn sealed(kind: &[u8; 8], version: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = begin(kind, version);
    bytes.extend_from_slice(content);
    seal(&mut bytes);
    bytes
}

fn recipe(input: &[u8]) {
    let _ = Recipe::decode(input);
    let bytes = sealed(crate::recipe::KIND, crate::recipe::VERSION, input);
    if let Ok(recipe) = Recipe::decode(&bytes) {
        assert_eq!(recipe.encode(), bytes);
        let _ = (recipe.bytes(), recipe.dblocks());
    }
}

/// The front of the trailer, then the chunks and the entries.
fn dblock(input: &[u8]) {
    let Some((front, behind)) = input.split_at_checked(TRAILER_FRONT) else { return };
    let Ok(file) = memfd_create("play", MemfdFlags::CLOEXEC).map(File::from) else { return };
    let data_len = front.last_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len) as usize);
    let entries = behind.get(data_len..).unwrap_or_default();
    let trailer = sealed(
        crate::dblock::KIND,
        crate::dblock::VERSION,
        &[front, &crc32c::crc32c(entries).to_le_bytes()].concat(),
    );
    if file.write_all_at(&[behind, &trailer].concat(), 0).is_err() {
        return;
    }
    let Ok(footer) = Footer::read(1, &file) else { return };
    let dblock = Dblock { id: 1, file, footer };
    let mut room = [0; CHUNK_MAX as usize];
    for slot in (0..=u16::MAX).take(dblock.footer.entries.len()) {
        let _ = (dblock.chunk(slot, &mut room).is_ok(), dblock.record(slot).is_ok());
    }
}

fn apply(input: &[u8]) {
    let mut page = [0x5a; PAGE];
    let _ = difference::decode(input, &mut page);
}

/// Two pages of these bytes.
fn compare(input: &[u8]) {
    let half = input.len() / 2;
    let [page, base] = [&input[..half], &input[half..]].map(|from| {
        let mut page = [0; PAGE];
        from.iter()
            .cycle()
            .take(if from.is_empty() { 0 } else { PAGE })
            .zip(&mut page)
            .for_each(|(byte, to)| *to = *byte);
        page
    });
    let mut out = Vec::new();
    if difference::encode(&page, &base, DIFFERENCE_MAX, &mut out) {
        let mut restored = base;
        difference::decode(&out, &mut restored).expect("a difference");
        assert_eq!(restored, page);
    }
    let _ = difference::features(7, &page);
}
