//! The initial stack of a program: its arguments, its environment, and the auxiliary vector.

use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

use crate::creds::Creds;
use crate::task::elf::Image;
use crate::task::rseq;
use machine::errno::{Errno, Result};
use machine::mm::aspace::Layout;
use machine::mm::map::Placement;
use machine::mm::vma::VmaFlags;
use machine::mm::{AddressSpace, PAGE, Prot, UserAddr, page_down, page_up};

use super::{Program, mapping};

const INITIAL_STACK_BYTES: u64 = 132 * 1024;

/// A loaded program, as its initial stack tells of it.
pub(super) struct Facts<'a> {
    pub(super) image: &'a Image,
    pub(super) bias: u64,
    pub(super) base: u64,
    pub(super) vdso: u64,
    pub(super) creds: &'a Creds,
    pub(super) secure: bool,
}

const AT_NULL: u64 = 0;
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
const AT_PAGESZ: u64 = 6;
const AT_BASE: u64 = 7;
const AT_FLAGS: u64 = 8;
const AT_ENTRY: u64 = 9;
const AT_UID: u64 = 11;
const AT_EUID: u64 = 12;
const AT_GID: u64 = 13;
const AT_EGID: u64 = 14;
const AT_PLATFORM: u64 = 15;
const AT_HWCAP: u64 = 16;
const AT_CLKTCK: u64 = 17;
const AT_SECURE: u64 = 23;
const AT_RANDOM: u64 = 25;
const AT_RSEQ_FEATURE_SIZE: u64 = 27;
const AT_RSEQ_ALIGN: u64 = 28;
const AT_EXECFN: u64 = 31;
const AT_SYSINFO_EHDR: u64 = 33;
const AT_MINSIGSTKSZ: u64 = 51;

/// Lays out the initial stack (System V ABI, "Process Initialization"); returns the stack pointer.
pub(super) fn build_stack(
    aspace: &Arc<AddressSpace>,
    program: &Program,
    facts: &Facts<'_>,
    top: u64,
) -> Result<u64> {
    let strings: usize = program.args.iter().chain(&program.env).map(|string| string.len() + 1).sum();
    let words = program.args.len() + program.env.len() + 64;
    let need = (strings + words * 8 + program.name.len() + 1024) as u64;
    let top = top & !15;
    let end = page_up(top).ok_or(Errno::ENOMEM)?;
    let start = page_down(top - need - INITIAL_STACK_BYTES);
    let mut prot = Prot::READ | Prot::WRITE;
    if facts.image.executable_stack {
        prot |= Prot::EXEC;
    }
    let mut new = mapping(Placement::Fixed(start), end - start, prot, None, 0);
    new.flags = VmaFlags::GROWS_DOWN | VmaFlags::STACK;
    aspace.map(new)?;

    let mut writer = StackWriter { bytes: Vec::new(), top };
    let execfn = writer.push_string(&program.name);
    let platform = writer.push_string(b"x86_64");
    let mut seed = [0u8; 16];
    machine::host::random(&mut seed);
    let random = writer.push(&seed);
    let mut layout = Layout { start_stack: 0, ..Default::default() };
    layout.env_end = writer.next();
    let env: Vec<u64> = program.env.iter().rev().map(|string| writer.push_string(string)).collect();
    layout.env_start = writer.next();
    layout.arg_end = layout.env_start;
    let args: Vec<u64> = program.args.iter().rev().map(|string| writer.push_string(string)).collect();
    layout.arg_start = writer.next();

    let auxv = auxiliary_vector(facts, execfn, platform, random);
    let mut table: Vec<u64> = vec![args.len() as u64];
    table.extend(args.iter().rev());
    table.push(0);
    table.extend(env.iter().rev());
    table.push(0);
    table.extend(&auxv);
    let sp = (writer.next() - table.len() as u64 * 8) & !15;
    let table_bytes: Vec<u8> = table.iter().flat_map(|word| word.to_le_bytes()).collect();
    aspace.copy_out(UserAddr::new(sp), &table_bytes)?;
    writer.finish(aspace)?;
    fill_layout(aspace, layout, facts, sp, auxv);
    Ok(sp)
}

fn fill_layout(aspace: &AddressSpace, mut layout: Layout, facts: &Facts<'_>, sp: u64, auxv: Vec<u64>) {
    layout.start_stack = sp;
    layout.vdso = facts.vdso;
    layout.auxv = auxv;
    for segment in &facts.image.segments {
        let start = facts.bias.wrapping_add(segment.vaddr);
        let end = start.wrapping_add(segment.memory_bytes);
        if segment.prot.contains(Prot::EXEC) && layout.start_code == 0 {
            (layout.start_code, layout.end_code) = (start, end);
        } else if segment.prot.contains(Prot::WRITE) {
            (layout.start_data, layout.end_data) = (start, end);
        }
    }
    aspace.with_layout(|slot| *slot = layout);
}

fn auxiliary_vector(facts: &Facts<'_>, execfn: u64, platform: u64, random: u64) -> Vec<u64> {
    let creds = facts.creds;
    let header = &facts.image.header;
    let min_stack = machine::platform::xsave_size() as u64 + 1024;
    let mut auxv = Vec::new();
    let pairs = [
        (AT_SYSINFO_EHDR, facts.vdso),
        (AT_HWCAP, u64::from(machine::arch::cpu_features())),
        (AT_PAGESZ, PAGE),
        (AT_CLKTCK, 100),
        (AT_PHDR, facts.bias.wrapping_add(facts.image.program_headers_address())),
        (AT_PHENT, 56),
        (AT_PHNUM, header.program_headers as u64),
        (AT_BASE, facts.base),
        (AT_FLAGS, 0),
        (AT_ENTRY, facts.bias.wrapping_add(header.entry)),
        (AT_UID, u64::from(creds.uid)),
        (AT_EUID, u64::from(creds.euid)),
        (AT_GID, u64::from(creds.gid)),
        (AT_EGID, u64::from(creds.egid)),
        (AT_SECURE, u64::from(facts.secure)),
        (AT_RANDOM, random),
        (AT_RSEQ_FEATURE_SIZE, u64::from(rseq::FEATURE_BYTES)),
        (AT_RSEQ_ALIGN, u64::from(rseq::ORIGINAL_BYTES)),
        (AT_EXECFN, execfn),
        (AT_PLATFORM, platform),
        (AT_MINSIGSTKSZ, min_stack),
        (AT_NULL, 0),
    ];
    for (key, value) in pairs {
        if key != AT_SYSINFO_EHDR || value != 0 {
            auxv.extend([key, value]);
        }
    }
    auxv
}

/// Collects the strings of a new stack from the top down.
struct StackWriter {
    /// In reverse order of addresses: pushed chunks, each already reversed.
    bytes: Vec<u8>,
    top: u64,
}

impl StackWriter {
    fn next(&self) -> u64 {
        self.top - self.bytes.len() as u64
    }
    fn push(&mut self, data: &[u8]) -> u64 {
        self.bytes.extend(data.iter().rev());
        self.next()
    }
    fn push_string(&mut self, string: &[u8]) -> u64 {
        self.bytes.push(0);
        self.push(string)
    }
    fn finish(mut self, aspace: &AddressSpace) -> Result<()> {
        let start = self.next();
        self.bytes.reverse();
        aspace.copy_out(UserAddr::new(start), &self.bytes)
    }
}
