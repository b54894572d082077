//! The vDSO: the clocks without a system call.
//!
//! Two pages shared by all address spaces: the clock parameters ([`crate::time::ClockPage`], read-only), and behind it
//! an ELF shared object made at boot from the position-independent code below.

use abi::word::len32;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::arch::global_asm;

use crate::errno::{Errno, Result};
use crate::mm::map::{NewMapping, Placement};
use crate::mm::vma::VmaFlags;
use crate::mm::{self, AddressSpace, IoBuf, MemoryObject, PAGE, PAGE_BYTES, PageStore, Prot};
use crate::platform;
use crate::rank::Rank;
use crate::spin::SpinLock;
use crate::time;

/// Offset of the code in the ELF page; the assembly knows it.
const CODE_OFFSET: usize = 0x800;

// The clock page lies 0x1000 before the ELF page, so 0x1800 before the first instruction. Its fields: 0 seq,
// 8 base_tsc, 16 base_ns, 24 mult, 32 real offset, 40 boot offset.
global_asm!(
    ".pushsection .rodata.vdso,\"a\",@progbits",
    ".balign 16",
    "qk_vdso_start:",
    // rdi: clock id. Returns nanoseconds in rax; the carry flag is set for clocks that need the kernel.
    "qk_vdso_read:",
    "cmp edi, 7",
    "ja 8f",
    "mov eax, 0xe3", // clocks 0, 1, 5, 6, 7
    "bt eax, edi",
    "jnc 8f",
    "lea r8, [rip + qk_vdso_start - 0x1800]",
    "2:",
    "mov r9, [r8]",
    "test r9b, 1",
    "jnz 5f",
    "lfence",
    "rdtsc",
    "shl rdx, 32",
    "or rax, rdx",
    "sub rax, [r8 + 8]",
    "jns 3f",
    "xor eax, eax",
    "3:",
    "mul qword ptr [r8 + 24]",
    "shrd rax, rdx, 32",
    "add rax, [r8 + 16]",
    "mov edx, 0x21", // clocks 0 and 5 count from the epoch
    "bt edx, edi",
    "jnc 4f",
    "add rax, [r8 + 32]",
    "4:",
    "cmp edi, 7",
    "jne 6f",
    "add rax, [r8 + 40]",
    "6:",
    "cmp r9, [r8]",
    "jne 2b",
    "clc",
    "ret",
    "5:",
    "pause",
    "jmp 2b",
    "8:",
    "stc",
    "ret",
    ".balign 16",
    "qk_vdso_clock_gettime:",
    "call qk_vdso_read",
    "jc 2f",
    "mov ecx, 1000000000",
    "xor edx, edx",
    "div rcx",
    "mov [rsi], rax",
    "mov [rsi + 8], rdx",
    "xor eax, eax",
    "ret",
    "2:",
    "mov eax, 228",
    "syscall",
    "ret",
    ".balign 16",
    "qk_vdso_gettimeofday:",
    "mov r10, rdi",
    "mov r11, rsi",
    "test r10, r10",
    "jz 2f",
    "xor edi, edi",
    "call qk_vdso_read",
    "mov ecx, 1000",
    "xor edx, edx",
    "div rcx",
    "mov ecx, 1000000",
    "xor edx, edx",
    "div rcx",
    "mov [r10], rax",
    "mov [r10 + 8], rdx",
    "2:",
    "test r11, r11",
    "jz 3f",
    "mov qword ptr [r11], 0",
    "3:",
    "xor eax, eax",
    "ret",
    ".balign 16",
    "qk_vdso_time:",
    "mov r10, rdi",
    "xor edi, edi",
    "call qk_vdso_read",
    "mov ecx, 1000000000",
    "xor edx, edx",
    "div rcx",
    "test r10, r10",
    "jz 2f",
    "mov [r10], rax",
    "2:",
    "ret",
    "qk_vdso_end:",
    ".popsection",
);

unsafe extern "C" {
    static qk_vdso_start: u8;
    static qk_vdso_end: u8;
    static qk_vdso_clock_gettime: u8;
    static qk_vdso_gettimeofday: u8;
    static qk_vdso_time: u8;
}

fn code() -> &'static [u8] {
    let start = &raw const qk_vdso_start;
    let end = &raw const qk_vdso_end;
    // SAFETY: the labels bound the assembly above, in this order.
    unsafe { core::slice::from_raw_parts(start, end as usize - start as usize) }
}

fn symbols() -> [(&'static str, u64); 3] {
    let offset =
        |label: *const u8| (CODE_OFFSET + label as usize - (&raw const qk_vdso_start) as usize) as u64;
    [
        ("__vdso_clock_gettime", offset(&raw const qk_vdso_clock_gettime)),
        ("__vdso_gettimeofday", offset(&raw const qk_vdso_gettimeofday)),
        ("__vdso_time", offset(&raw const qk_vdso_time)),
    ]
}

/// Writes little-endian fields one after another.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(&mut self, values: &[u16]) -> &mut Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
    fn u32(&mut self, values: &[u32]) -> &mut Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
    fn u64(&mut self, values: &[u64]) -> &mut Self {
        self.0.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        self
    }
}

/// The hash of System V ABI hash tables and versions.
fn elf_hash(name: &str) -> u32 {
    name.bytes().fold(0u32, |hash, byte| {
        let hash = (hash << 4).wrapping_add(u32::from(byte));
        let high = hash & 0xf000_0000;
        (hash ^ (high >> 24)) & !high
    })
}

const VERSION: &str = "LINUX_2.6";
const SONAME: &str = "linux-vdso.so.1";

/// Offsets of the parts of the ELF page.
const DYNAMIC: usize = 0x100;
const SYMBOLS: usize = 0x200;
const HASH: usize = 0x300;
const VERSIONS: usize = 0x380;
const DEFINITIONS: usize = 0x3a0;
const STRINGS: usize = 0x400;
const _: () =
    assert!(HASH + 16 + 3 * 4 <= VERSIONS && VERSIONS + 8 <= DEFINITIONS && DEFINITIONS + 56 <= STRINGS);

/// The ELF page.
fn image() -> Vec<u8> {
    let mut strings = vec![0u8];
    let mut string = |text: &str| {
        let at = len32(strings.len());
        strings.extend_from_slice(text.as_bytes());
        strings.push(0);
        at
    };
    let (soname, version) = (string(SONAME), string(VERSION));
    let symbols = symbols();
    let mut table = Bytes::default();
    table.u64(&[0, 0, 0]);
    for (name, value) in symbols {
        // Global function, default visibility, in a section that isn't listed.
        table.u32(&[string(name)]).u16(&[0x12, 1]).u64(&[value, 0]);
    }
    let count = len32(symbols.len()) + 1;
    let mut hash = Bytes::default();
    // One bucket: symbol 1, then 2, …, then the end.
    hash.u32(&[1, count, 1, 0]);
    for i in 1..count {
        hash.u32(&[if i + 1 < count { i + 1 } else { 0 }]);
    }
    let mut versions = Bytes::default();
    versions.u16(&[0, 2, 2, 2]);
    let mut definitions = Bytes::default();
    definitions.u16(&[1, 1, 1, 1]).u32(&[elf_hash(SONAME), 20, 28]).u32(&[soname, 0]);
    definitions.u16(&[1, 0, 2, 1]).u32(&[elf_hash(VERSION), 20, 0]).u32(&[version, 0]);
    let mut dynamic = Bytes::default();
    for (tag, value) in [
        (14, u64::from(soname)),
        (4, HASH as u64),
        (5, STRINGS as u64),
        (6, SYMBOLS as u64),
        (10, strings.len() as u64),
        (11, 24),
        (0x6fff_fff0, VERSIONS as u64),
        (0x6fff_fffc, DEFINITIONS as u64),
        (0x6fff_fffd, 2),
        (0, 0),
    ] {
        dynamic.u64(&[tag, value]);
    }
    let mut page = vec![0u8; PAGE_BYTES];
    let parts = [
        (0, header(dynamic.0.len() as u64)),
        (DYNAMIC, dynamic.0),
        (SYMBOLS, table.0),
        (HASH, hash.0),
        (VERSIONS, versions.0),
        (DEFINITIONS, definitions.0),
        (STRINGS, strings),
        (CODE_OFFSET, code().to_vec()),
    ];
    for (at, part) in parts {
        if let Some(slot) = page.get_mut(at..at + part.len()) {
            slot.copy_from_slice(&part);
        }
    }
    page
}

/// ELF header and program headers: everything loaded at 0, and the dynamic table.
fn header(dynamic_bytes: u64) -> Vec<u8> {
    let mut header = Bytes(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec());
    header.u16(&[3, 62]).u32(&[1]).u64(&[0, 64, 0]).u32(&[0]).u16(&[64, 56, 2, 64, 0, 0]);
    header.u32(&[1, 5]).u64(&[0, 0, 0, PAGE, PAGE, PAGE]);
    let at = DYNAMIC as u64;
    header.u32(&[2, 4]).u64(&[at, at, at, dynamic_bytes, dynamic_bytes, 8]);
    header.0
}

static STORE: SpinLock<Option<Arc<PageStore>>> = SpinLock::new(Rank::ClockPage, None);

/// The two pages, made at first use.
fn store() -> Result<Arc<PageStore>> {
    if let Some(store) = &*STORE.lock() {
        return Ok(store.clone());
    }
    let made = PageStore::new(2 * PAGE);
    made.write(PAGE, &mut IoBuf::constant(&image())).map_err(|_| Errno::ENOMEM)?;
    let clock = made.frame(0)?;
    let mut slot = STORE.lock();
    // Another task may have been faster.
    let store = slot.get_or_insert_with(|| {
        mm::residency::pin(clock.frame());
        time::share(platform::linear(clock.addr()));
        made
    });
    Ok(store.clone())
}

/// Makes the pages now: whoever counts frames later finds them counted already.
#[cfg(feature = "harness")]
pub fn prepare() {
    let _ = store();
}

/// Maps the vDSO; returns the address of its ELF header.
pub fn map(aspace: &Arc<AddressSpace>) -> Result<u64> {
    let store = store()?;
    let new = |placement, len, prot, offset| NewMapping {
        placement,
        len,
        prot,
        max_prot: prot,
        flags: VmaFlags::SHARED | VmaFlags::SPECIAL,
        object: Some(MemoryObject::Store(store.clone())),
        offset,
    };
    let base = aspace.map(new(Placement::Hint(0), 2 * PAGE, Prot::READ, 0))?;
    aspace.map(new(Placement::Fixed(base + PAGE), PAGE, Prot::READ | Prot::EXEC, PAGE))?;
    Ok(base + PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_has_room_for_its_parts() {
        assert!(code().len() <= PAGE_BYTES - CODE_OFFSET);
        let page = image();
        let strings = &page[STRINGS..CODE_OFFSET];
        assert!(strings.windows(20).any(|window| window == b"__vdso_clock_gettime"));
        assert_eq!(elf_hash("LINUX_2.6"), 61_765_110);
    }
}
