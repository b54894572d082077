//! Tests that packed pieces come back unchanged.

use codec::{PAGE_BYTES, PIECE_BYTES, Style};
use proptest::prelude::*;

use crate::pages::{Way, kinds, pack, packer, random, unpacker};

#[test]
fn every_kind_of_piece_comes_back_from_every_style() {
    for style in Way::all() {
        let (mut packer, mut unpacker) = (packer(style), unpacker(style));
        for len in [PAGE_BYTES, 3 * PAGE_BYTES, PIECE_BYTES] {
            for (kind, piece) in kinds(len) {
                let packed = pack(&mut packer, &piece);
                let mut back = vec![0xee; len];
                unpacker
                    .unpack(&packed, &mut back)
                    .unwrap_or_else(|error| panic!("{style}, {kind}, {len}: {error}"));
                assert!(back == piece, "{style}, {kind}, {len}");
            }
        }
    }
}

#[test]
fn every_length_of_a_piece_comes_back() {
    for style in Way::all() {
        let (mut packer, mut unpacker) = (packer(style), unpacker(style));
        for len in 0..300 {
            for piece in [vec![0; len], random(len, 1), crate::pages::periodic(len, 9)] {
                let mut back = vec![0xee; len];
                unpacker
                    .unpack(&pack(&mut packer, &piece), &mut back)
                    .unwrap_or_else(|error| panic!("{style}, {len}: {error}"));
                assert_eq!(back, piece, "{style}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_not_packed_and_nothing_is_written_behind_the_room() {
    let piece = crate::pages::text(PAGE_BYTES);
    for style in Way::all() {
        let mut packer = packer(style);
        let whole = pack(&mut packer, &piece);
        for room in (0..whole.len()).rev().take(40).chain([0, 1, 7, 100]) {
            let mut out = vec![0xdd; whole.len() + 64];
            assert_eq!(packer.pack(&piece, &mut out[..room]), None, "{style}, {room}");
            assert!(out[room..].iter().all(|byte| *byte == 0xdd), "{style}, {room}");
        }
        let mut out = vec![0; whole.len()];
        if !style.is_zstd() {
            assert_eq!(packer.pack(&piece, &mut out), Some(whole.len()), "{style}");
            assert_eq!(out, whole);
        }
        assert_eq!(packer.pack(&random(PAGE_BYTES, 1), &mut vec![0; PAGE_BYTES - 1]), None, "{style}");
    }
}

#[test]
fn a_piece_is_packed_the_same_whatever_was_packed_before() {
    for style in Way::all() {
        let (mut packer, mut fresh) = (packer(style), packer(style));
        for (kind, piece) in kinds(2 * PAGE_BYTES) {
            pack(&mut packer, &piece);
            let small = crate::pages::pointers(PAGE_BYTES, 4);
            assert!(pack(&mut packer, &small) == pack(&mut fresh, &small), "{style} after {kind}");
        }
    }
}

#[test]
fn a_smaller_window_is_kept_to() {
    let mut packer = packer(Style::DeflateFixed).with_window(PAGE_BYTES);
    let near = crate::pages::one_repeat(3 * PAGE_BYTES, PAGE_BYTES, 258);
    let far = crate::pages::one_repeat(3 * PAGE_BYTES, PAGE_BYTES + 1, 258);
    let (near, far) = (pack(&mut packer, &near).len(), pack(&mut packer, &far).len());
    assert!(far > near + 200, "{near} {far}");
}

/// Pieces of bytes, runs of a byte, and copies from before.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        prop::collection::vec(any::<u8>(), 1..40).prop_map(|bytes| (bytes, 0, 0)),
        (any::<u8>(), 1..400_usize).prop_map(|(byte, count)| (vec![byte; count], 0, 0)),
        (1..70_000_usize, 3..600_usize).prop_map(|(distance, count)| (Vec::new(), distance, count)),
        (1..20_usize, 3..600_usize).prop_map(|(distance, count)| (Vec::new(), distance, count)),
    ];
    prop::collection::vec(part, 1..200).prop_map(|parts| {
        let mut piece = Vec::new();
        for (bytes, distance, count) in parts {
            piece.extend_from_slice(&bytes);
            for _ in 0..count {
                piece.push(piece.len().checked_sub(distance).map_or(1, |at| piece[at]));
            }
        }
        piece.truncate(PIECE_BYTES);
        piece
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn any_piece_comes_back(piece in piece()) {
        for style in Way::all() {
            let packed = pack(&mut packer(style), &piece);
            let mut back = vec![0xee; piece.len()];
            prop_assert_eq!(unpacker(style).unpack(&packed, &mut back), Ok(()), "{}", style);
            prop_assert!(back == piece, "{}", style);
        }
    }
}
