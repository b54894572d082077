//! The throw-away machine.

use kvm_bindings::{Msrs, kvm_msr_entry, kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd};
use std::arch::asm;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use super::report::Measured;
use crate::platform::kvm::{GuestWatchdog, special_registers};

/// Iterations of the loop, and instructions in one.
const ITERATIONS: u32 = 2000;
const INSTRUCTIONS: f64 = 4.0;
const ROUNDS: usize = 5;
/// How long one stay in the guest may take. An interpreter needs some 5 ms for the loop.
const LONGEST_STAY: Duration = Duration::from_secs(1);

/// Guest-physical, and virtual, addresses.
const MEMORY_BYTES: usize = 2 << 20;
const ROOT: u64 = 0x1000;
const LOOP_CODE: u64 = 0x8000;
const USER_CODE: u64 = 0x9000;
const SYSCALL_CODE: u64 = 0xa000;
const STACK: u64 = 0x1_0000;

const PORT_READY: u16 = 0xd1;
const PORT_DONE: u16 = 0xd2;
const PORT_SYSCALL: u16 = 0xd3;

/// `out 0xd1, eax` twice, so that the time of a mere exit is known; the loop; `out 0xd2, eax`; again.
const LOOP: [u8; 21] = {
    let [a, b, c, d] = ITERATIONS.to_le_bytes();
    [
        0xe7, 0xd1, 0xe7, 0xd1, // out 0xd1, eax; out 0xd1, eax
        0xb9, a, b, c, d, // mov ecx, ITERATIONS
        0x01, 0xc8, 0x31, 0xc8, 0xff, 0xc9, 0x75,
        0xf8, // 1: add eax, ecx; xor eax, ecx; dec ecx; jnz 1b
        0xe7, 0xd2, 0xeb, 0xeb, // out 0xd2, eax; jmp to the start
    ]
};
/// `mov eax, SYSCALL_RAX; syscall; hlt`
const USER: [u8; 8] = {
    let [a, b, c, d] = SYSCALL_RAX.to_le_bytes();
    [0xb8, a, b, c, d, 0x0f, 0x05, 0xf4]
};
/// `out 0xd3, eax; hlt`
const SYSCALL: [u8; 3] = [0xe7, 0xd3, 0xf4];

const SYSCALL_RAX: u32 = 0x1234_5678;
const SYSCALL_RDI: u64 = 0xfedc_ba98_7654_3210;
const USER_FLAGS: u64 = 0x202 | 0x41;

const MSR_STAR: u32 = 0xc000_0081;
const MSR_LSTAR: u32 = 0xc000_0082;
const MSR_SFMASK: u32 = 0xc000_0084;

/// Memory of the trial machine.
struct Scratch(*mut u8);

impl Scratch {
    fn new() -> Result<Self, String> {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new anonymous mapping.
        let at = unsafe { libc::mmap(null_mut(), MEMORY_BYTES, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(format!("no memory to try KVM with ({})", std::io::Error::last_os_error()));
        }
        Ok(Self(at.cast()))
    }

    fn write(&self, phys: u64, bytes: &[u8]) {
        let offset = usize::try_from(phys).unwrap_or(MEMORY_BYTES);
        assert!(offset + bytes.len() <= MEMORY_BYTES);
        // SAFETY: the range was just checked, and no vCPU runs.
        unsafe { self.0.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Code, and page tables that map the 2 MiB to themselves for both rings.
    fn fill(&self) {
        const TABLE: u64 = 7;
        const LARGE: u64 = 0x80;
        self.write(ROOT, &((ROOT + 0x1000) | TABLE).to_le_bytes());
        self.write(ROOT + 0x1000, &((ROOT + 0x2000) | TABLE).to_le_bytes());
        self.write(ROOT + 0x2000, &(TABLE | LARGE).to_le_bytes());
        self.write(LOOP_CODE, &LOOP);
        self.write(USER_CODE, &USER);
        self.write(SYSCALL_CODE, &SYSCALL);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the machine that used it is gone: it is declared, and dropped, before it.
        unsafe { libc::munmap(self.0.cast(), MEMORY_BYTES) };
    }
}

/// Tries KVM out. An error says, in a sentence, what does not work.
pub fn run(kvm: &Kvm) -> Result<Measured, String> {
    let failed = |what: &'static str| move |error| format!("KVM cannot {what} ({error})");
    let scratch = Scratch::new()?;
    scratch.fill();
    let vm = kvm.create_vm().map_err(failed("create a machine"))?;
    let region = kvm_userspace_memory_region {
        memory_size: MEMORY_BYTES as u64,
        userspace_addr: scratch.0 as u64,
        ..Default::default()
    };
    // SAFETY: the memory outlives the machine, which is dropped first.
    unsafe { vm.set_user_memory_region(region) }.map_err(failed("map guest memory"))?;
    let mut vcpu = vm.create_vcpu(0).map_err(failed("create a vCPU"))?;
    let cpuid =
        kvm.get_supported_cpuid(kvm_bindings::KVM_MAX_CPUID_ENTRIES).map_err(failed("name its features"))?;
    vcpu.set_cpuid2(&cpuid).map_err(failed("describe the processor"))?;
    let watchdog =
        GuestWatchdog::new(&mut vcpu).map_err(|error| format!("no timer to watch over KVM ({error})"))?;
    set_ring0(&vcpu).map_err(failed("set a vCPU's registers"))?;
    let (loop_ns, exit_ns) = time_loop(&mut vcpu, &watchdog)?;
    set_ring3(&vcpu).map_err(failed("set a vCPU's registers"))?;
    let syscall_works = try_syscall(&mut vcpu, &watchdog);
    let instructions = f64::from(ITERATIONS) * INSTRUCTIONS;
    Ok(Measured {
        ns_per_ring0_instruction: (loop_ns - exit_ns).max(0.0) / instructions,
        ns_per_host_instruction: host_loop_ns() / instructions,
        ns_per_exit: exit_ns,
        syscall_works,
    })
}

fn set_ring0(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    vcpu.set_sregs(&special_registers(vcpu.get_sregs()?, ROOT, 0))?;
    vcpu.set_regs(&kvm_regs { rip: LOOP_CODE, rsp: STACK, rflags: 2, ..Default::default() })
}

fn set_ring3(vcpu: &VcpuFd) -> Result<(), kvm_ioctls::Error> {
    let ring0 = special_registers(vcpu.get_sregs()?, ROOT, 0);
    let user = |segment: kvm_segment, selector| kvm_segment { selector, dpl: 3, ..segment };
    let mut sregs = ring0;
    (sregs.cs, sregs.ss) = (user(ring0.cs, 0x33), user(ring0.ss, 0x2b));
    (sregs.ds, sregs.es) = (sregs.ss, sregs.ss);
    vcpu.set_sregs(&sregs)?;
    let msr = |index, data| kvm_msr_entry { index, data, ..Default::default() };
    let msrs = [msr(MSR_STAR, 0x23 << 48 | 0x10 << 32), msr(MSR_LSTAR, SYSCALL_CODE), msr(MSR_SFMASK, 0x200)];
    let msrs = Msrs::from_entries(&msrs).map_err(|_| kvm_ioctls::Error::new(libc::EINVAL))?;
    vcpu.set_msrs(&msrs)?;
    let (rip, rdi, rflags) = (USER_CODE, SYSCALL_RDI, USER_FLAGS);
    vcpu.set_regs(&kvm_regs { rip, rdi, rsp: STACK, rflags, ..Default::default() })
}

/// Runs the vCPU until it writes to `port`; answers how long that took in nanoseconds.
fn run_to(vcpu: &mut VcpuFd, watchdog: &GuestWatchdog, port: u16) -> Result<f64, String> {
    watchdog.start(LONGEST_STAY);
    let start = Instant::now();
    let exit = loop {
        match vcpu.run() {
            Err(error) if error.errno() == libc::EINTR => {
                if start.elapsed() >= LONGEST_STAY {
                    return Err("a guest under KVM does not come to an end".into());
                }
                vcpu.set_kvm_immediate_exit(0);
            }
            other => break other,
        }
    };
    let ns = start.elapsed().as_nanos() as f64;
    watchdog.stop();
    match exit {
        Ok(VcpuExit::IoOut(found, _)) if found == port => Ok(ns),
        Ok(exit) => Err(format!("a guest under KVM ended in a strange way ({exit:?})")),
        Err(error) => Err(format!("KVM cannot run a guest ({error})")),
    }
}

/// The best times of the loop with its exit, and of an exit alone.
fn time_loop(vcpu: &mut VcpuFd, watchdog: &GuestWatchdog) -> Result<(f64, f64), String> {
    let (mut best_loop, mut best_exit) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        run_to(vcpu, watchdog, PORT_READY)?;
        best_exit = best_exit.min(run_to(vcpu, watchdog, PORT_READY)?);
        best_loop = best_loop.min(run_to(vcpu, watchdog, PORT_DONE)?);
    }
    Ok((best_loop, best_exit))
}

/// Whether `syscall` in ring 3 arrives at the right place in ring 0, with the right registers.
fn try_syscall(vcpu: &mut VcpuFd, watchdog: &GuestWatchdog) -> bool {
    if run_to(vcpu, watchdog, PORT_SYSCALL).is_err() {
        return false;
    }
    let (Ok(regs), Ok(sregs)) = (vcpu.get_regs(), vcpu.get_sregs()) else {
        return false;
    };
    let arrived = (SYSCALL_CODE..=SYSCALL_CODE + 2).contains(&regs.rip)
        && sregs.cs.dpl == 0
        && sregs.cs.selector == 0x10;
    let remembered = regs.rcx == USER_CODE + 7 && regs.r11 == USER_FLAGS && regs.rflags & 0x200 == 0;
    let kept = regs.rax == u64::from(SYSCALL_RAX) && regs.rdi == SYSCALL_RDI && regs.rsp == STACK;
    arrived && remembered && kept
}

/// The best time of the same loop on the host.
fn host_loop_ns() -> f64 {
    let mut best = f64::MAX;
    for _ in 0..ROUNDS * 2 {
        let start = Instant::now();
        // SAFETY: the loop changes the two registers it names, and flags.
        unsafe {
            asm!("2:", "add {a:e}, {n:e}", "xor {a:e}, {n:e}", "dec {n:e}", "jnz 2b",
                n = inout(reg) ITERATIONS => _, a = inout(reg) 0 => _, options(nomem, nostack));
        }
        best = best.min(start.elapsed().as_nanos() as f64);
    }
    best.max(1.0)
}
