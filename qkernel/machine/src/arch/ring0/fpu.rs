//! Floating-point and vector state, in XSAVE's standard format.

use abi::word::{high32, low32};
use core::arch::asm;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Components the kernel enabled (XCR0).
static MASK: AtomicU64 = AtomicU64::new(0);
/// MXCSR bits this processor accepts.
static MXCSR_MASK: AtomicU32 = AtomicU32::new(0xffbf);

/// Offset of MXCSR, and of the bits it accepts, in the legacy part of an image.
const MXCSR: usize = 24;
const MXCSR_ACCEPTED: usize = 28;
/// Offset of an image's header.
const HEADER: usize = 512;

const FCW_DEFAULT: u16 = 0x37f;
const MXCSR_DEFAULT: u32 = 0x1f80;

/// An image with every component in its initial state.
#[repr(C, align(64))]
struct InitialImage {
    legacy: [u32; 128],
    header: [u64; 8],
}
static INITIAL: InitialImage = {
    let mut legacy = [0; 128];
    legacy[0] = FCW_DEFAULT as u32;
    legacy[MXCSR / 4] = MXCSR_DEFAULT;
    InitialImage { legacy, header: [0; 8] }
};

/// Enables the components in `mask` and loads their initial state. CR4.OSXSAVE is set.
pub fn init(mask: u64) {
    MASK.store(mask, Ordering::Relaxed);
    let (low, high) = (low32(mask), high32(mask));
    let mut legacy = InitialImage { legacy: [0; 128], header: [0; 8] };
    // SAFETY: the VMM offers only components the processor has; the image is aligned and large enough for FXSAVE.
    unsafe {
        asm!("xsetbv", in("ecx") 0, in("eax") low, in("edx") high, options(nostack, preserves_flags));
        asm!("fxsave64 [{}]", in(reg) &raw mut legacy, options(nostack, preserves_flags));
    }
    let accepted = legacy.legacy[MXCSR_ACCEPTED / 4];
    if accepted != 0 {
        MXCSR_MASK.store(accepted, Ordering::Relaxed);
    }
    // SAFETY: the initial image is valid for every processor.
    unsafe { load((&raw const INITIAL).cast(), mask) };
}

/// Saves this CPU's state to `area`. Every enabled component is written.
///
/// # Safety
/// `area` is 64-byte aligned and has `BootInfo::xsave_size` bytes.
pub unsafe fn save_fpu(area: *mut u8) {
    let mask = MASK.load(Ordering::Relaxed);
    let (low, high) = (low32(mask), high32(mask));
    // SAFETY: the caller vouches for the area. XSAVE writes the header's first word and leaves the rest, which must
    // be zero for XRSTOR.
    unsafe {
        let header = area.add(HEADER).cast::<u64>();
        for word in 0..8 {
            header.add(word).write(0);
        }
        asm!("xsave64 [{}]", in(reg) area, in("eax") low, in("edx") high, options(nostack, preserves_flags));
    }
}

/// Loads this CPU's state from `area`, or the initial state if the processor would refuse the image.
///
/// # Safety
/// `area` is 64-byte aligned and has `BootInfo::xsave_size` bytes. Their content may be anything.
pub unsafe fn restore_fpu(area: *const u8) {
    let mask = MASK.load(Ordering::Relaxed);
    // SAFETY: the caller vouches for the area's size and alignment, and only a valid image is loaded.
    unsafe {
        let area = if fpu_image_is_valid(area) { area } else { (&raw const INITIAL).cast() };
        load(area, mask);
    }
}

/// # Safety
/// `area` is aligned, and valid in the sense of [`fpu_image_is_valid`].
unsafe fn load(area: *const u8, mask: u64) {
    let (low, high) = (low32(mask), high32(mask));
    // SAFETY: the caller vouches for the image, so the instruction cannot fault.
    unsafe {
        asm!("xrstor64 [{}]", in(reg) area, in("eax") low, in("edx") high, options(nostack, preserves_flags))
    };
}

/// Whether the processor accepts the image at `area`: known components, standard format, no reserved bit.
/// `rt_sigreturn` asks, before it takes an image the user has had in hand.
///
/// # Safety
/// `area` is 8-byte aligned and has at least 576 bytes.
pub unsafe fn fpu_image_is_valid(area: *const u8) -> bool {
    // SAFETY: the caller vouches for the area.
    let (mxcsr, header) =
        unsafe { (area.add(MXCSR).cast::<u32>().read(), area.add(HEADER).cast::<[u64; 8]>().read()) };
    let [components, reserved @ ..] = header;
    components & !MASK.load(Ordering::Relaxed) == 0
        && reserved == [0; 7]
        && mxcsr & !MXCSR_MASK.load(Ordering::Relaxed) == 0
}

/// Writes the state of a new program to `area`.
///
/// # Safety
/// `area` is 64-byte aligned and has at least 576 bytes.
pub unsafe fn init_fpu(area: *mut u8) {
    // SAFETY: the caller vouches for the area.
    unsafe { area.cast::<InitialImage>().copy_from_nonoverlapping(&raw const INITIAL, 1) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> InitialImage {
        let mut image = InitialImage { legacy: [0xff; 128], header: [1; 8] };
        // SAFETY: the image is aligned and has 576 bytes.
        unsafe { init_fpu((&raw mut image).cast()) };
        image
    }

    fn accepted(image: &InitialImage) -> bool {
        // SAFETY: the image is aligned and has 576 bytes.
        unsafe { fpu_image_is_valid((&raw const *image).cast()) }
    }

    #[test]
    fn hostile_images_are_refused() {
        MASK.store(7, Ordering::Relaxed);
        assert!(accepted(&image()));
        for (word, bad) in [(0, 8), (0, 1 << 63), (1, 1 << 63), (1, 1), (2, 1), (7, 1)] {
            let mut image = image();
            image.header[word] = bad;
            assert!(!accepted(&image), "header word {word}");
        }
        let mut image = image();
        image.legacy[MXCSR / 4] = 0x1_0000;
        assert!(!accepted(&image));
    }
}
