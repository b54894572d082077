//! Differences: a chunk as what sets it apart from another one, its *base* ("SnapStore", section 6.2.1, leaves this to others; "Phoenix",
//! sections 3.1 and 3.2, does it for sandboxes that began with one snapshot).
//!
//! Programs that were started twice have their memory at other addresses, so that most pages of their own differ, though in addresses alone.
//! What is like each other is therefore looked for by what stays: words that look like addresses count by their place in a page only. In
//! a difference an address is the base's and one of a few distances, each of which is said once.

/// Bytes of a chunk that has differences.
pub const PAGE: usize = 4096;
/// How many features a chunk has.
pub const FEATURES: usize = 2;
/// Bytes of a difference are fewer.
pub const DIFFERENCE_MAX: usize = PAGE / 2;

const WORD: usize = 8;
const WORDS: usize = PAGE / WORD;
/// Words that count together for a feature.
const PART_WORDS: usize = 4;
/// Distances that a difference can have, and those of which the ones that come more than once are taken.
const DISTANCES_MAX: usize = 31;
const DISTANCES_SEEN: usize = 64;
/// Equal words that one byte can stand for.
const SKIP_MAX: usize = 128;
/// A word that is as far from the base's as a distance says; above it, one by exclusive or.
const DISTANCE: u8 = 0x80;
const XOR: u8 = 0xc0;

/// Hashes by which a chunk is looked for among those that are like it: if two have many words in common, they likely have one of these in common.
pub type Features = [u32; FEATURES];

fn words(page: &[u8]) -> impl Iterator<Item = u64> {
    page.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word))
}

/// Whether a word looks like a random address of a program, or of a kernel that is code in one.
const fn is_address(word: u64) -> bool {
    word >> 46 == 1
}

/// A word as it is at other addresses as well.
const fn steady(word: u64) -> u64 {
    if is_address(word) { word & 0xfff | 1 << 63 } else { word }
}

const fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ word >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word ^ word >> 32
}

/// The features of a chunk of [`PAGE`] bytes, by a key. `None`: it has hardly any content.
pub fn features(key: u64, page: &[u8]) -> Option<Features> {
    let mut least = [u64::MAX; FEATURES];
    let mut part = [0; PART_WORDS];
    let mut words = words(page).map(steady);
    for number in 0..(WORDS / PART_WORDS) as u64 {
        part.fill_with(|| words.next().unwrap_or(0));
        if part == [0; PART_WORDS] {
            continue;
        }
        let hash = part.iter().fold(mix(key ^ number), |hash, word| mix(hash.rotate_left(7) ^ word));
        for (number, least) in (1..).zip(&mut least) {
            *least = (*least).min(mix(hash ^ number << 56));
        }
    }
    // The upper half of what is least is nearly 0.
    let low = |least: u64| u32::try_from(least & u64::from(u32::MAX)).unwrap_or(0);
    (least[0] != u64::MAX).then(|| least.map(low))
}

/// How far addresses of a page are from those of its base, if more than one is so far.
fn distances(page: &[u8], base: &[u8]) -> Vec<u64> {
    let mut seen: Vec<(u64, bool)> = Vec::new();
    for (word, of_base) in words(page).zip(words(base)).filter(|(word, of_base)| word != of_base) {
        if let Some(distance) = distance(word, of_base) {
            match seen.iter().position(|(known, _)| *known == distance) {
                Some(at) => seen[at].1 = true,
                None if seen.len() < DISTANCES_SEEN => seen.push((distance, false)),
                None => {}
            }
        }
    }
    seen.into_iter().filter(|(_, again)| *again).map(|(distance, _)| distance).take(DISTANCES_MAX).collect()
}

const fn distance(word: u64, of_base: u64) -> Option<u64> {
    if is_address(word) && steady(word) == steady(of_base) { Some(word.wrapping_sub(of_base)) } else { None }
}

/// Appends the difference of a page from a base. False: it is not shorter than `most`, and what was appended is of no use.
pub fn encode(page: &[u8], base: &[u8], most: usize, out: &mut Vec<u8>) -> bool {
    let most = out.len() + most;
    let distances = distances(page, base);
    out.push(u8::try_from(distances.len()).unwrap_or(0));
    distances.iter().for_each(|distance| out.extend_from_slice(&distance.to_le_bytes()));
    let mut equal = 0;
    for (word, of_base) in words(page).zip(words(base)) {
        if word == of_base {
            equal += 1;
            continue;
        }
        while equal > 0 {
            let now = SKIP_MAX.min(equal);
            out.push(u8::try_from(now - 1).unwrap_or(0));
            equal -= now;
        }
        let known = distance(word, of_base).and_then(|far| distances.iter().position(|known| *known == far));
        if let Some(number) = known {
            out.push(DISTANCE | u8::try_from(number).unwrap_or(0));
        } else {
            put_xor(word ^ of_base, out);
        }
        if out.len() >= most {
            return false;
        }
    }
    out.len() < most
}

/// Appends the bytes of a word that are not 0, which it has.
fn put_xor(word: u64, out: &mut Vec<u8>) {
    let (first, last) = (word.trailing_zeros() / 8, 7 - word.leading_zeros() / 8);
    let head = first << 3 | (last - first);
    out.push(XOR | u8::try_from(head).unwrap_or(0));
    out.extend_from_slice(&word.to_le_bytes()[first as usize..=last as usize]);
}

/// Makes the base, which `page` holds, the page that the difference was taken of. `None`: it is no difference.
pub fn decode(difference: &[u8], page: &mut [u8]) -> Option<()> {
    let (count, rest) = difference.split_first()?;
    if usize::from(*count) > DISTANCES_MAX {
        return None;
    }
    let (distances, mut rest) = rest.split_at_checked(usize::from(*count) * WORD)?;
    let (distances, _) = distances.as_chunks::<WORD>();
    let mut words = page.as_chunks_mut::<WORD>().0.iter_mut();
    while let Some((head, behind)) = rest.split_first() {
        rest = behind;
        if *head < DISTANCE {
            // Words that are equal lie before others.
            words.nth(usize::from(*head))?;
            continue;
        }
        let word = words.next()?;
        let of_base = u64::from_le_bytes(*word);
        if *head < XOR {
            let distance = distances.get(usize::from(head & !DISTANCE))?;
            *word = of_base.wrapping_add(u64::from_le_bytes(*distance)).to_le_bytes();
            continue;
        }
        let (first, count) = (usize::from(head >> 3 & 7), usize::from(head & 7) + 1);
        let (bytes, behind) = rest.split_at_checked(count)?;
        rest = behind;
        for (byte, of_base) in bytes.iter().zip(word.get_mut(first..first + count)?) {
            *of_base ^= byte;
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn page(word: impl Fn(u64) -> u64) -> Vec<u8> {
        (0..512).flat_map(|at| word(at).to_le_bytes()).collect()
    }

    fn difference(page: &[u8], base: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        encode(page, base, DIFFERENCE_MAX, &mut out).then_some(out)
    }

    fn restored(difference: &[u8], base: &[u8]) -> Vec<u8> {
        let mut page = base.to_vec();
        decode(difference, &mut page).unwrap();
        page
    }

    /// A page as programs have it: numbers, and addresses in two places.
    fn at_addresses(heap: u64, library: u64) -> Vec<u8> {
        page(|at| match at % 4 {
            0 => heap + at * 0x48,
            1 if at % 3 == 0 => library + at * 0x1010,
            _ => mix(at) % 1000,
        })
    }

    #[test]
    fn a_page_at_other_addresses_is_found_and_short() {
        let one = at_addresses(0x5581_0000_0000, 0x7f01_2345_6000);
        let other = at_addresses(0x5642_1357_9000, 0x7f43_2100_0000);
        assert_eq!(features(7, &one), features(7, &other));
        assert_ne!(features(7, &one), features(8, &one));
        let short = difference(&other, &one).unwrap();
        assert!(short.len() < 400, "{}", short.len());
        assert_eq!(restored(&short, &one), other);
        assert_eq!(features(7, &[0; PAGE]), None);
    }

    #[test]
    fn a_page_that_is_like_another_has_a_feature_in_common_with_it() {
        let base = page(|at| mix(at) % 5000);
        let found = (0..200_u64).filter(|seed| {
            let like = page(|at| if mix(at ^ seed << 32).is_multiple_of(40) { at } else { mix(at) % 5000 });
            let both = features(3, &base).unwrap().into_iter().zip(features(3, &like).unwrap());
            both.into_iter().any(|(one, other)| one == other)
        });
        assert!(found.count() > 150);
    }

    #[test]
    fn the_longest_and_the_shortest_difference() {
        let base = page(mix);
        assert_eq!(difference(&base, &base).unwrap(), [0]);
        assert!(difference(&page(|at| mix(at + 512)), &base).is_none());
        let mut last = base.clone();
        last[4095] ^= 0x80;
        let one = difference(&last, &base).unwrap();
        assert_eq!(one, [0, 127, 127, 127, 126, 0xf8, 0x80]);
        assert_eq!(restored(&one, &base), last);
    }

    #[test]
    fn what_is_no_difference_is_refused() {
        let base = page(mix);
        for bad in [&[][..], &[32], &[1, 2, 3], &[0, 0x80], &[0, 0xc1], &[0, 0xff, 1, 2, 3, 4, 5, 6, 7, 8]] {
            assert_eq!(decode(bad, &mut base.clone()), None, "{bad:?}");
        }
        assert_eq!(decode(&[0, 127, 127, 127, 127, 0], &mut base.clone()), None);
    }

    proptest! {
        #[test]
        fn differences_come_back(base in any::<u64>(), changes in proptest::collection::vec((0_usize..512, any::<u64>()), 0..200)) {
            let base = page(|at| if at % 3 == 0 { 0x7f00_0000_0000 + (mix(at ^ base) & 0xff_ffff) } else { mix(at) });
            let mut other = base.clone();
            for (at, word) in changes {
                let word = if word % 2 == 0 { 0x5500_0000_0000 + word % 4096 } else { word };
                other[at * 8..at * 8 + 8].copy_from_slice(&word.to_le_bytes());
            }
            let mut out = Vec::new();
            if encode(&other, &base, PAGE, &mut out) {
                prop_assert_eq!(restored(&out, &base), other);
            }
        }

        #[test]
        fn anything_is_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut page = page(mix);
            let _ = decode(&bytes, &mut page);
        }
    }
}
