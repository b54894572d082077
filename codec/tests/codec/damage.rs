//! Packed bytes that were changed: an error, or something of the right length. Never a panic, never old bytes.

use codec::{Corrupt, PAGE_BYTES, PIECE_BYTES, Style, Unpacker};
use proptest::prelude::*;

use crate::pages::{Random, Way, kinds, pack, packer, pointers, text, unpacker};

const DEFLATES: [Way; 4] = [
    Way::Style(Style::DeflateFixed),
    Way::Style(Style::DeflateDynamic),
    Way::Style(Style::DeflateCanned),
    Way::Several,
];

fn unpack(unpacker: &mut Unpacker, packed: &[u8], len: usize) -> Result<Vec<u8>, Corrupt> {
    let mut out = vec![0; len];
    unpacker.unpack(packed, &mut out).map(|()| out)
}

#[test]
fn every_truncation_is_found() {
    for style in Way::all() {
        let (mut packer, mut unpacker) = (packer(style), unpacker(style));
        for piece in
            [text(PAGE_BYTES), pointers(PAGE_BYTES, 1), vec![0; PAGE_BYTES], text(40), Vec::from("a")]
        {
            let packed = pack(&mut packer, &piece);
            for len in 0..packed.len() {
                assert!(
                    unpack(&mut unpacker, &packed[..len], piece.len()).is_err(),
                    "{style}, {len} of {}",
                    packed.len()
                );
            }
            // The unpacker is as good as before.
            assert_eq!(unpack(&mut unpacker, &packed, piece.len()).unwrap(), piece);
        }
    }
}

#[test]
fn what_is_longer_or_shorter_than_its_room_is_found() {
    for style in Way::all() {
        let (mut packer, mut unpacker) = (packer(style), unpacker(style));
        let packed = pack(&mut packer, &text(PAGE_BYTES));
        for len in [0, 1, PAGE_BYTES - 1, PAGE_BYTES + 1, 2 * PAGE_BYTES, PIECE_BYTES] {
            assert!(unpack(&mut unpacker, &packed, len).is_err(), "{style}, {len}");
        }
        // zstd takes a frame of nothing, and lz4 does not end itself.
        if !style.is_zstd() {
            let longer = [packed, vec![0]].concat();
            assert!(unpack(&mut unpacker, &longer, PAGE_BYTES).is_err(), "{style}");
        }
    }
}

#[test]
fn every_flipped_bit_gives_an_error_or_as_many_bytes() {
    for style in Way::all() {
        let (mut packer, mut unpacker) = (packer(style), unpacker(style));
        for piece in [text(700), pointers(900, 1), vec![0; 500]] {
            let packed = pack(&mut packer, &piece);
            let mut errors = 0;
            for bit in 0..packed.len() * 8 {
                let mut changed = packed.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                errors += usize::from(unpack(&mut unpacker, &changed, piece.len()).is_err());
            }
            assert!(errors > 0 || style == Way::Style(Style::None), "{style}: nothing was found");
        }
    }
}

#[test]
fn nothing_of_the_piece_before_shows() {
    let secret = vec![0x5a; PIECE_BYTES];
    for style in DEFLATES {
        let (mut packer, mut unpacker) = (packer(style), unpacker(style));
        let (packed, old) = (pack(&mut packer, &text(600)), pack(&mut packer, &secret));
        unpack(&mut unpacker, &old, secret.len()).unwrap();
        for bit in 0..packed.len() * 8 {
            let mut changed = packed.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            if let Ok(out) = unpack(&mut unpacker, &changed, 600) {
                assert!(!out.windows(8).any(|window| window == [0x5a; 8]), "{style}, bit {bit}");
            }
        }
    }
}

#[test]
fn many_changes_to_every_kind_do_no_harm() {
    let mut random = Random(42);
    for style in Way::all() {
        let (mut packer, mut unpacker) = (packer(style), unpacker(style));
        for (_, piece) in kinds(PAGE_BYTES) {
            let packed = pack(&mut packer, &piece);
            for _ in 0..50 {
                let mut changed = packed.clone();
                for _ in 0..=random.below(5) {
                    let at = random.below(changed.len());
                    changed[at] = random.next().to_le_bytes()[0];
                }
                _ = unpack(&mut unpacker, &changed, PAGE_BYTES);
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_unpacked_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..600), len in 0..9000_usize) {
        for style in Way::all() {
            _ = unpack(&mut unpacker(style), &bytes, len);
        }
        // A block that begins well is read further.
        for begin in [3, 5, 1, 0] {
            let mut bytes = bytes.clone();
            if let Some(first) = bytes.first_mut() {
                *first = *first & !7 | begin;
            }
            _ = unpack(&mut unpacker(Style::DeflateDynamic), &bytes, len);
        }
    }
}
