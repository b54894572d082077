//! The FPU image in a signal frame: an XSAVE area in standard format, described by the bytes FXSAVE leaves to software.

use abi::word::len32;

use machine::platform::FPU_AREA_BYTES;

const MAGIC1: u32 = 0x4650_5853;
const MAGIC2: u32 = 0x4650_5845;
/// Bytes of `MAGIC2` behind the image.
pub const TAIL_BYTES: usize = 4;
/// Bytes of the part FXSAVE knows.
pub const LEGACY_BYTES: usize = 512;
/// Offset of the software bytes (`struct _fpx_sw_bytes`).
const SOFTWARE: usize = 464;
/// The XSAVE header: `XSTATE_BV`, `XCOMP_BV`, reserved.
const HEADER: usize = LEGACY_BYTES;
const HEADER_BYTES: usize = 64;
const SMALLEST_BYTES: usize = HEADER + HEADER_BYTES;
const X87: u64 = 1;
const SSE: u64 = 2;
const MXCSR: usize = 24;
const MXCSR_RESET: u32 = 0x1f80;
const MXCSR_KNOWN: u32 = 0xffff;
const FCW_RESET: u16 = 0x37f;

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |bytes| u32::from_le_bytes(core::array::from_fn(|i| bytes[i])))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    if let Some(to) = bytes.get_mut(at..at + field.len()) {
        to.copy_from_slice(field);
    }
}

/// Whether images of this size have a header and extended state.
fn is_extended(bytes: usize) -> bool {
    (SMALLEST_BYTES..=FPU_AREA_BYTES).contains(&bytes)
}

/// Bytes a frame needs for a state of `state_bytes`.
pub fn frame_bytes(state_bytes: usize) -> usize {
    if is_extended(state_bytes) { state_bytes + TAIL_BYTES } else { LEGACY_BYTES }
}

/// Turns a saved state of `state_bytes` with the components of `mask` into what a frame holds.
pub fn seal(image: &mut alloc::vec::Vec<u8>, state_bytes: usize, mask: u64) {
    image.resize(frame_bytes(state_bytes), 0);
    if !is_extended(state_bytes) {
        return;
    }
    let present = u64_at(image, HEADER);
    // Components in their initial state may have been left out of the image; a handler reads these two regardless.
    if present & X87 == 0 {
        image[..MXCSR].fill(0);
        put(image, 0, &FCW_RESET.to_le_bytes());
        image[32..160].fill(0);
    }
    if present & SSE == 0 {
        image[160..416].fill(0);
    }
    put(image, HEADER, &(present & mask | X87 | SSE).to_le_bytes());
    image[HEADER + 8..HEADER + HEADER_BYTES].fill(0);
    image[SOFTWARE..LEGACY_BYTES].fill(0);
    let size = u32::try_from(state_bytes).unwrap_or(0);
    put(image, SOFTWARE, &MAGIC1.to_le_bytes());
    put(image, SOFTWARE + 4, &(size + len32(TAIL_BYTES)).to_le_bytes());
    put(image, SOFTWARE + 8, &mask.to_le_bytes());
    put(image, SOFTWARE + 16, &size.to_le_bytes());
    put(image, state_bytes, &MAGIC2.to_le_bytes());
}

/// How many bytes of extended image the legacy part announces; `None` when it stands alone.
pub fn announced(legacy: &[u8], state_bytes: usize) -> Option<usize> {
    let size = u32_at(legacy, SOFTWARE + 16) as usize;
    let fits = (SMALLEST_BYTES..=state_bytes).contains(&size)
        && size <= u32_at(legacy, SOFTWARE + 4) as usize
        && is_extended(state_bytes);
    (u32_at(legacy, SOFTWARE) == MAGIC1 && fits).then_some(size)
}

/// Makes the initial state of `area`.
pub fn reset(area: &mut [u8]) {
    area.fill(0);
    put(area, 0, &FCW_RESET.to_le_bytes());
    put(area, MXCSR, &MXCSR_RESET.to_le_bytes());
}

/// Takes a state from what user memory held: `image` is the legacy part, or an extended image with its tail. Whatever
/// the processor would refuse to load is refused here (`None`); `area` is changed only on success.
pub fn open(area: &mut [u8], image: &[u8], mask: u64) -> Option<()> {
    if u32_at(image, MXCSR) & !MXCSR_KNOWN != 0 {
        return None;
    }
    let state = image.len().saturating_sub(TAIL_BYTES);
    let extended = state >= SMALLEST_BYTES && u32_at(image, state) == MAGIC2;
    let taken = if extended { state } else { LEGACY_BYTES };
    if area.len() < taken || image.len() < taken {
        return None;
    }
    let present = if extended { u64_at(image, HEADER) } else { X87 | SSE };
    let header_clean = !extended || image[HEADER + 8..SMALLEST_BYTES].iter().all(|byte| *byte == 0);
    if present & !(mask | X87 | SSE) != 0 || !header_clean {
        return None;
    }
    area.fill(0);
    area[..taken].copy_from_slice(&image[..taken]);
    put(area, HEADER, &present.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    const BYTES: usize = 832;
    const AVX: u64 = 4;
    const MASK: u64 = X87 | SSE | AVX;

    fn sealed() -> alloc::vec::Vec<u8> {
        let mut image = vec![0x11u8; BYTES];
        put(&mut image, MXCSR, &MXCSR_RESET.to_le_bytes());
        put(&mut image, HEADER, &(SSE | AVX).to_le_bytes());
        seal(&mut image, BYTES, MASK);
        image
    }

    #[test]
    fn a_sealed_image_opens_to_the_same_state() {
        let image = sealed();
        assert_eq!(image.len(), BYTES + TAIL_BYTES);
        assert_eq!(announced(&image[..LEGACY_BYTES], BYTES), Some(BYTES));
        let mut area = vec![0u8; 4096];
        assert_eq!(open(&mut area, &image, MASK), Some(()));
        assert_eq!(area[160..416], [0x11; 256]);
        assert_eq!(area[576..BYTES], [0x11; 256]);
        assert_eq!(u64_at(&area, HEADER), MASK);
        // x87 was in its initial state.
        assert_eq!(area[..2], FCW_RESET.to_le_bytes());
        assert_eq!(area[32..160], [0; 128]);
    }

    #[test]
    fn what_the_processor_refuses_is_refused() {
        let mut area = vec![0u8; 4096];
        for (at, value) in
            [(MXCSR + 2, 1u8), (HEADER, 0x80), (HEADER + 7, 1), (HEADER + 8, 1), (HEADER + 63, 1)]
        {
            let mut image = sealed();
            image[at] |= value;
            assert_eq!(open(&mut area, &image, MASK), None, "byte {at}");
        }
        assert!(area.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_damaged_announcement_leaves_the_legacy_part() {
        let mut image = sealed();
        image[SOFTWARE] ^= 1;
        assert_eq!(announced(&image[..LEGACY_BYTES], BYTES), None);
        let mut area = vec![0u8; 4096];
        assert_eq!(open(&mut area, &image[..LEGACY_BYTES], MASK), Some(()));
        assert_eq!(u64_at(&area, HEADER), X87 | SSE);
        assert_eq!(area[576..BYTES], [0; 256]);
        // The same when the second magic number is gone.
        let mut image = sealed();
        image[BYTES] ^= 1;
        assert_eq!(open(&mut area, &image, MASK), Some(()));
        assert_eq!(u64_at(&area, HEADER), X87 | SSE);
        // An announcement larger than the state is none.
        let mut image = sealed();
        put(&mut image, SOFTWARE + 16, &4000u32.to_le_bytes());
        assert_eq!(announced(&image[..LEGACY_BYTES], BYTES), None);
    }
}
