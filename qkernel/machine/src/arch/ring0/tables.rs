//! Descriptor tables: GDT, TSS and IDT.

use abi::layout::MAX_CPUS;
use abi::word::to_usize;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use super::entry::vector_stub;

/// Selectors, the same numbers as Linux's: programs look at CS and SS.
pub const KERNEL_CODE: u16 = 0x10;
pub const USER_DATA: u16 = 0x2b;
pub const USER_CODE: u16 = 0x33;
/// Base of the selectors `sysret` derives: its SS is 8 above, its 64-bit CS 16 above.
pub const SYSRET_BASE: u16 = 0x23;
const TASK_STATE: u16 = 0x40;

const DESCRIPTOR_KERNEL_CODE: u64 = 0x00af_9b00_0000_ffff;
const DESCRIPTOR_KERNEL_DATA: u64 = 0x00cf_9300_0000_ffff;
const DESCRIPTOR_USER_DATA: u64 = 0x00cf_f300_0000_ffff;
const DESCRIPTOR_USER_CODE: u64 = 0x00af_fb00_0000_ffff;

const ENTRY_STACK_BYTES: usize = 4096;
const FATAL_STACK_BYTES: usize = 8192;

/// The task state segment; only its stack pointers matter.
#[repr(C, packed)]
struct TaskState {
    _reserved0: u32,
    rsp: [u64; 3],
    _reserved1: u64,
    ist: [u64; 7],
    _reserved2: u64,
    _reserved3: u16,
    iomap_base: u16,
}
const _: () = assert!(size_of::<TaskState>() == 104);

/// The structures that one CPU's descriptor tables point at, and its stacks. In zeroed memory, so that a CPU the sandbox
/// does not have costs nothing.
#[repr(C, align(4096))]
struct CpuTables {
    entry_stack: [u8; ENTRY_STACK_BYTES],
    debug_stack: [u8; ENTRY_STACK_BYTES],
    nmi_stack: [u8; ENTRY_STACK_BYTES],
    machine_check_stack: [u8; FATAL_STACK_BYTES],
    double_fault_stack: [u8; FATAL_STACK_BYTES],
    task_state: TaskState,
    gdt: [u64; 10],
}

#[repr(transparent)]
struct PerCpu(UnsafeCell<CpuTables>);
// SAFETY: element `i` is written by CPU `i` alone, in `load`, and afterwards used by its processor only.
unsafe impl Sync for PerCpu {}

static CPU_TABLES: [PerCpu; MAX_CPUS as usize] = {
    // SAFETY: all-zero bytes are a valid `CpuTables`: it holds integers only.
    [const { PerCpu(UnsafeCell::new(unsafe { core::mem::zeroed() })) }; MAX_CPUS as usize]
};

/// The interrupt descriptor table, shared by all CPUs. Each of them writes the same entries before it loads the table.
#[repr(C, align(4096))]
struct Idt([[AtomicU64; 2]; 256]);
static IDT: Idt = Idt([const { [const { AtomicU64::new(0) }; 2] }; 256]);

/// Interrupt stacks (`TSS.ist`), counted from 1.
const IST_DOUBLE_FAULT: u64 = 1;
const IST_NMI: u64 = 2;
const IST_DEBUG: u64 = 3;
const IST_MACHINE_CHECK: u64 = 4;

fn interrupt_stack(vector: usize) -> u64 {
    match vector {
        1 => IST_DEBUG,
        2 => IST_NMI,
        8 => IST_DOUBLE_FAULT,
        18 => IST_MACHINE_CHECK,
        _ => 0,
    }
}

fn fill_idt() {
    for (vector, gate) in IDT.0.iter().enumerate() {
        let stub = vector_stub(vector);
        // User code may raise breakpoint and overflow by instruction; any other `int n` is a protection fault.
        let privilege = if vector == 3 || vector == 4 { 3 } else { 0 };
        let kind = 0x8e00 | privilege << 13;
        let low = (stub & 0xffff)
            | u64::from(KERNEL_CODE) << 16
            | interrupt_stack(vector) << 32
            | kind << 32
            | (stub >> 16 & 0xffff) << 48;
        gate[0].store(low, Ordering::Relaxed);
        gate[1].store(stub >> 32, Ordering::Relaxed);
    }
}

/// The operand of `lgdt` and `lidt`.
#[repr(C, packed)]
struct TablePointer {
    limit: u16,
    base: u64,
}

/// Points a CPU's task state segment at its stacks, and its GDT at that segment.
///
/// # Safety
/// `tables` is the element of a CPU that does not use it yet, and nobody else does.
unsafe fn fill_cpu_tables(tables: *mut CpuTables) {
    // SAFETY: as the caller says.
    unsafe {
        let end = |stack: *mut u8, bytes: usize| stack.add(bytes) as u64;
        let mut ist = [0; 7];
        ist[to_usize(IST_DOUBLE_FAULT) - 1] =
            end((&raw mut (*tables).double_fault_stack).cast(), FATAL_STACK_BYTES);
        ist[to_usize(IST_NMI) - 1] = end((&raw mut (*tables).nmi_stack).cast(), ENTRY_STACK_BYTES);
        ist[to_usize(IST_DEBUG) - 1] = end((&raw mut (*tables).debug_stack).cast(), ENTRY_STACK_BYTES);
        ist[to_usize(IST_MACHINE_CHECK) - 1] =
            end((&raw mut (*tables).machine_check_stack).cast(), FATAL_STACK_BYTES);
        let rsp0 = end((&raw mut (*tables).entry_stack).cast(), ENTRY_STACK_BYTES);
        (*tables).task_state = TaskState {
            _reserved0: 0,
            rsp: [rsp0, 0, 0],
            _reserved1: 0,
            ist,
            _reserved2: 0,
            _reserved3: 0,
            // Behind the limit: no port is open to user code.
            iomap_base: 104,
        };
        let base = &raw const (*tables).task_state as u64;
        let descriptor = 103 | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56;
        (*tables).gdt = [
            0,
            0,
            DESCRIPTOR_KERNEL_CODE,
            DESCRIPTOR_KERNEL_DATA,
            // No 32-bit code segment: user code cannot leave 64-bit mode.
            0,
            DESCRIPTOR_USER_DATA,
            DESCRIPTOR_USER_CODE,
            0,
            descriptor,
            base >> 32,
        ];
    }
}

/// Fills and loads the descriptor tables of CPU `cpu`, and nulls the data segment registers. GS base must be restored
/// by the caller.
///
/// # Safety
/// Runs once on each CPU, which is `cpu` and in ring 0, before any exception can happen.
pub unsafe fn load(cpu: usize) {
    let tables = CPU_TABLES[cpu].0.get();
    // SAFETY: the element is this CPU's alone, and nothing uses it yet.
    unsafe { fill_cpu_tables(tables) };
    fill_idt();
    let gdt = TablePointer {
        limit: 10 * 8 - 1,
        base: tables as u64 + core::mem::offset_of!(CpuTables, gdt) as u64,
    };
    let idt = TablePointer { limit: 4096 - 1, base: IDT.0.as_ptr() as u64 };
    // SAFETY: both tables were just filled and live for ever; the selectors name what they hold.
    unsafe {
        core::arch::asm!(
            "lgdt [{gdt}]",
            "lidt [{idt}]",
            "push {code}",
            "lea {tmp}, [rip + 2f]",
            "push {tmp}",
            "retfq",
            "2:",
            "xor {tmp:e}, {tmp:e}",
            "mov ds, {tmp:e}",
            "mov es, {tmp:e}",
            "mov ss, {tmp:e}",
            "mov fs, {tmp:e}",
            "mov gs, {tmp:e}",
            "mov {tmp:e}, {task}",
            "ltr {tmp:x}",
            gdt = in(reg) &raw const gdt,
            idt = in(reg) &raw const idt,
            code = const KERNEL_CODE,
            task = const TASK_STATE,
            tmp = out(reg) _,
            options(preserves_flags),
        );
    }
}
