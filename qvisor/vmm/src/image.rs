//! Loads the kernel's ELF image.
//!
//! The kernel is a static position-independent executable; the only relocations it may have are
//! `R_X86_64_RELATIVE`. The bytes come with the VMM, yet every range is checked: a wrong build ends in a message.

use std::fs::File;
use std::os::fd::AsFd;

use abi::layout::{KERNEL_IMAGE_PHYS, PAGE_SIZE};

use crate::host_paths::HostPaths;
use crate::memory::{MemoryError, SandboxMemory};

/// The kernel this VMM was built with, on pages of its own.
pub static KERNEL: &[u8] = &PageAligned(*include_bytes!(concat!(env!("OUT_DIR"), "/kernel.elf"))).0;

/// The SHA-256 of [`KERNEL`] in hexadecimal digits.
pub const KERNEL_DIGEST: &str = env!("DORMOUSE_KERNEL_DIGEST");

/// The SHA-256 of the stub's image, likewise. The kernel's memory refers to the stub's code.
pub const STUB_DIGEST: &str = env!("DORMOUSE_STUB_DIGEST");

#[repr(C, align(4096))]
struct PageAligned<B: ?Sized>(B);

/// The file that an image's bytes are in, page for page: pages that stay as they are in it need not be copied, and all
/// sandboxes share them.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
    /// Of the image's first byte.
    offset: u64,
}

impl ImageFile {
    /// The program's own file, if [`KERNEL`] is mapped from it and it can be opened.
    #[must_use]
    pub fn of_the_kernel(_: &HostPaths) -> Option<Self> {
        let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
        let at = KERNEL.as_ptr() as u64;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let offset = maps.lines().find_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (start, end) = fields.next()?.split_once('-')?;
            let start = number(start).filter(|start| *start <= at)?;
            number(end).filter(|end| at + KERNEL.len() as u64 <= *end)?;
            let offset = number(fields.nth(1)?)? + (at - start);
            let inode = fields.nth(1)?;
            (inode != "0" && offset.is_multiple_of(PAGE_SIZE)).then_some(offset)
        })?;
        Some(Self { file: File::open("/proc/self/exe").ok()?, offset })
    }
}

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const PT_GNU_RELRO: u32 = 0x6474_e552;
const PF_X: u32 = 1;
const PF_W: u32 = 2;
const R_X86_64_RELATIVE: u64 = 8;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_RELAENT: u64 = 9;
const DT_REL: u64 = 17;
const DT_JMPREL: u64 = 23;
const DT_RELR: u64 = 36;

/// Why a kernel image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error("the kernel image is not an x86-64 position-independent executable")]
    Kind,
    #[error("the kernel image is truncated or has a range out of bounds")]
    Bounds,
    #[error("the kernel image has relocations of kind {0}; only R_X86_64_RELATIVE is allowed")]
    Relocation(u64),
    #[error("the kernel image needs {0} bytes, more than kernel memory has")]
    Size(u64),
    #[error("the kernel image cannot be protected")]
    Protect(#[from] MemoryError),
}

/// Whole pages of a loaded image, and their protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    pub phys: u64,
    pub len: u64,
    pub writable: bool,
    pub executable: bool,
}

/// A kernel in guest memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedImage {
    /// Linear address of the entry point.
    pub entry: u64,
    /// If two of them overlap, the later one counts.
    pub parts: Vec<Part>,
    /// First guest-physical byte behind the image, at a page boundary.
    pub end_phys: u64,
    /// Places and lengths of what is as it is in the file, and mapped from it.
    pub constant: Vec<(u64, u64)>,
}

#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    vaddr: u64,
    file_len: u64,
    mem_len: u64,
}

/// Loads `elf` at `KERNEL_IMAGE_PHYS` for a kernel whose linear map begins at `linear_base`, and relocates it. With
/// `protect`, text and constants become read-only in the VMM's own mapping too (systrap runs the kernel from it).
/// Its pages are mapped from `file`, if there is one, instead of being copied.
pub fn load(
    elf: &[u8],
    file: Option<&ImageFile>,
    memory: &SandboxMemory,
    linear_base: u64,
    protect: bool,
) -> Result<LoadedImage, ImageError> {
    let segments = segments(elf)?;
    let loads = || segments.iter().filter(|s| s.kind == PT_LOAD);
    let low = loads().map(|s| s.vaddr).min().ok_or(ImageError::Bounds)?;
    let low = low - low % PAGE_SIZE;
    let (mut high, mut constant) = (0, Vec::new());
    for segment in loads() {
        let bytes = range(elf, segment.offset, segment.file_len)?;
        let end = segment.vaddr.checked_add(segment.mem_len).ok_or(ImageError::Bounds)?;
        if segment.file_len > segment.mem_len {
            return Err(ImageError::Bounds);
        }
        high = high.max(end - low);
        let phys = place(segment.vaddr, low)?;
        memory.host_ptr(phys, segment.mem_len).ok_or(ImageError::Size(high))?;
        let mapped = file.and_then(|file| map(file, segment, phys, memory));
        let (before, after) = mapped.unwrap_or((bytes.len(), bytes.len()));
        if before < after && segment.flags & PF_W == 0 {
            constant.push((phys + before as u64, (after - before) as u64));
        }
        memory.copy_out(phys, &bytes[..before]).ok_or(ImageError::Size(high))?;
        memory.copy_out(phys + after as u64, &bytes[after..]).ok_or(ImageError::Size(high))?;
    }
    let bias = linear_base.wrapping_add(KERNEL_IMAGE_PHYS).wrapping_sub(low);
    let relocated = relocate(elf, &segments, memory, low, bias)?;
    constant.retain(|(phys, len)| !relocated.iter().any(|at| (*phys..phys + len).contains(at)));
    let parts = parts(&segments, low)?;
    if protect {
        for part in &parts {
            memory.protect_kernel(part.phys, part.len, part.writable, part.executable)?;
        }
    }
    let entry = u64_at(elf, 24)?;
    if entry < low || entry - low >= high {
        return Err(ImageError::Bounds);
    }
    let end_phys = (KERNEL_IMAGE_PHYS + high).next_multiple_of(PAGE_SIZE);
    Ok(LoadedImage { entry: entry.wrapping_add(bias), parts, end_phys, constant })
}

/// Maps the whole pages of a segment from the file. Result: the range of its bytes that was mapped; `None` if none
/// could be.
fn map(image: &ImageFile, segment: &Segment, phys: u64, memory: &SandboxMemory) -> Option<(usize, usize)> {
    let start = phys.next_multiple_of(PAGE_SIZE);
    let end = (phys + segment.file_len) / PAGE_SIZE * PAGE_SIZE;
    let offset = image.offset.checked_add(segment.offset)?.checked_add(start - phys)?;
    if start >= end || !offset.is_multiple_of(PAGE_SIZE) {
        return None;
    }
    memory.map_kernel_image(start, end - start, image.file.as_fd(), offset).ok()?;
    Some((usize::try_from(start - phys).ok()?, usize::try_from(end - phys).ok()?))
}

/// The pages of the segments, then those that are constant once relocated.
fn parts(segments: &[Segment], low: u64) -> Result<Vec<Part>, ImageError> {
    let kinds = [PT_LOAD, PT_GNU_RELRO];
    let mut parts = Vec::new();
    for segment in kinds.iter().flat_map(|kind| segments.iter().filter(move |s| s.kind == *kind)) {
        let start = place(segment.vaddr, low)?;
        let end = start.checked_add(segment.mem_len).ok_or(ImageError::Bounds)?;
        let relro = segment.kind == PT_GNU_RELRO;
        let (start, end) = if relro {
            (start.next_multiple_of(PAGE_SIZE), end - end % PAGE_SIZE)
        } else {
            (start - start % PAGE_SIZE, end.next_multiple_of(PAGE_SIZE))
        };
        if start < end {
            let writable = segment.flags & PF_W != 0 && !relro;
            let executable = segment.flags & PF_X != 0;
            parts.push(Part { phys: start, len: end - start, writable, executable });
        }
    }
    Ok(parts)
}

/// The address at which the byte linked at `vaddr` is loaded.
fn place(vaddr: u64, low: u64) -> Result<u64, ImageError> {
    vaddr.checked_sub(low).and_then(|at| at.checked_add(KERNEL_IMAGE_PHYS)).ok_or(ImageError::Bounds)
}

fn segments(elf: &[u8]) -> Result<Vec<Segment>, ImageError> {
    let ident = elf.get(..20).ok_or(ImageError::Bounds)?;
    // 64-bit, little endian; ET_DYN; EM_X86_64.
    if !ident.starts_with(b"\x7fELF\x02\x01\x01") || ident[16..20] != [3, 0, 62, 0] {
        return Err(ImageError::Kind);
    }
    let (table, size, count) = (u64_at(elf, 32)?, u16_at(elf, 54)?, u16_at(elf, 56)?);
    if size != 56 {
        return Err(ImageError::Kind);
    }
    let mut found = Vec::new();
    for i in 0..u64::from(count) {
        let at = table.checked_add(i * 56).ok_or(ImageError::Bounds)?;
        let segment = Segment {
            kind: u32_at(elf, at)?,
            flags: u32_at(elf, at + 4)?,
            offset: u64_at(elf, at + 8)?,
            vaddr: u64_at(elf, at + 16)?,
            file_len: u64_at(elf, at + 32)?,
            mem_len: u64_at(elf, at + 40)?,
        };
        if segment.kind == PT_INTERP {
            return Err(ImageError::Kind);
        }
        found.push(segment);
    }
    Ok(found)
}

/// Applies the relocations of the dynamic section, if there is one; the places that it changed.
fn relocate(
    elf: &[u8],
    segments: &[Segment],
    memory: &SandboxMemory,
    low: u64,
    bias: u64,
) -> Result<Vec<u64>, ImageError> {
    let mut changed = Vec::new();
    let Some(dynamic) = segments.iter().find(|s| s.kind == PT_DYNAMIC) else { return Ok(changed) };
    let (mut table, mut len) = (None, 0);
    for entry in range(elf, dynamic.offset, dynamic.file_len)?.chunks_exact(16) {
        let (tag, value) = (u64_at(entry, 0)?, u64_at(entry, 8)?);
        match tag {
            0 => break,
            DT_RELA => table = Some(value),
            DT_RELASZ => len = value,
            DT_RELAENT if value != 24 => return Err(ImageError::Kind),
            DT_REL | DT_JMPREL | DT_RELR => return Err(ImageError::Relocation(tag)),
            _ => {}
        }
    }
    let Some(table) = table else { return Ok(changed) };
    let rela = memory.copy_in(place(table, low)?, len).ok_or(ImageError::Bounds)?;
    for entry in rela.chunks_exact(24) {
        let (offset, info, addend) = (u64_at(entry, 0)?, u64_at(entry, 8)?, u64_at(entry, 16)?);
        if info != R_X86_64_RELATIVE {
            return Err(ImageError::Relocation(info & 0xffff_ffff));
        }
        let (at, value) = (place(offset, low)?, addend.wrapping_add(bias));
        // The build has relocated it for systrap: a word that is right already stays the file's, and its page shared.
        if memory.read::<u64>(at).ok_or(ImageError::Bounds)? != value {
            memory.write(at, &value).ok_or(ImageError::Bounds)?;
            changed.push(at);
        }
    }
    Ok(changed)
}

fn range(bytes: &[u8], offset: u64, len: u64) -> Result<&[u8], ImageError> {
    let start = usize::try_from(offset).map_err(|_| ImageError::Bounds)?;
    let len = usize::try_from(len).map_err(|_| ImageError::Bounds)?;
    let end = start.checked_add(len).ok_or(ImageError::Bounds)?;
    bytes.get(start..end).ok_or(ImageError::Bounds)
}

fn array<const N: usize>(bytes: &[u8], at: u64) -> Result<[u8; N], ImageError> {
    range(bytes, at, N as u64)?.try_into().map_err(|_| ImageError::Bounds)
}

fn u16_at(bytes: &[u8], at: u64) -> Result<u16, ImageError> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: u64) -> Result<u32, ImageError> {
    array(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: u64) -> Result<u64, ImageError> {
    array(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use abi::boot::Platform;

    use super::*;

    fn memory() -> SandboxMemory {
        SandboxMemory::new(Platform::Kvm, 64 << 20, 4 << 20).unwrap()
    }

    #[test]
    fn the_kernel_loads() {
        let memory = memory();
        let image = load(KERNEL, None, &memory, 0x1000, false).unwrap();
        assert!(image.entry >= 0x1000 + KERNEL_IMAGE_PHYS && image.entry < 0x1000 + image.end_phys);
    }

    #[test]
    fn a_mapped_image_is_the_same_as_a_copied_one() {
        let file = ImageFile::of_the_kernel(&HostPaths::of_new_process())
            .expect("the test's own program holds the kernel");
        let (copied, mapped) = (memory(), memory());
        let image = load(KERNEL, None, &copied, 0x1000, false).unwrap();
        let mut of_file = load(KERNEL, Some(&file), &mapped, 0x1000, false).unwrap();
        let constant = std::mem::take(&mut of_file.constant);
        assert_eq!(of_file, image);
        let bytes = |memory: &SandboxMemory| {
            memory.copy_in(KERNEL_IMAGE_PHYS, image.end_phys - KERNEL_IMAGE_PHYS).unwrap()
        };
        assert!(bytes(&copied) == bytes(&mapped));
        // Most of it may go at any time, and comes back.
        let in_file: u64 = constant.iter().map(|(_, len)| len).sum();
        assert!(in_file > KERNEL.len() as u64 / 4, "{constant:?}");
        constant.iter().for_each(|(phys, len)| mapped.give_back_image(*phys, *len));
        assert!(bytes(&copied) == bytes(&mapped));
    }

    #[test]
    fn the_build_has_relocated_it_for_systrap() {
        let memory = memory();
        let image = load(KERNEL, None, &memory, abi::layout::LINEAR_BASE_SYSTRAP, false).unwrap();
        let segments = segments(KERNEL).unwrap();
        let low = segments.iter().filter(|s| s.kind == PT_LOAD).map(|s| s.vaddr).min().unwrap();
        for segment in segments.iter().filter(|s| s.kind == PT_LOAD) {
            let loaded = memory.copy_in(place(segment.vaddr, low).unwrap(), segment.file_len).unwrap();
            assert!(loaded == range(KERNEL, segment.offset, segment.file_len).unwrap());
        }
        assert!(image.entry > abi::layout::LINEAR_BASE_SYSTRAP);
    }

    #[test]
    fn cut_images_are_refused() {
        let memory = memory();
        for len in (0..KERNEL.len().min(8192)).step_by(61) {
            assert!(load(&KERNEL[..len], None, &memory, 0, false).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn damaged_headers_do_no_harm() {
        let memory = memory();
        let mut bytes = KERNEL.to_vec();
        for at in 0..512.min(bytes.len()) {
            for value in [0, 0x7f, 0xff] {
                let old = std::mem::replace(&mut bytes[at], value);
                let _ = load(&bytes, None, &memory, 0, false);
                bytes[at] = old;
            }
        }
    }
}
