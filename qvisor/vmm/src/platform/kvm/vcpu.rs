//! The vCPU loop: entering the guest, and handling its exits.

use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;

use abi::HostCall;
use abi::hostcall::HOSTCALL_PORT;
use abi::kvm::{VECTOR_BUS, VECTOR_KICK};
use kvm_bindings::{KVM_VCPUEVENT_VALID_SHADOW, kvm_interrupt};
use kvm_ioctls::{VcpuExit, VcpuFd};

use super::error::{Failure, GuestRegisters};
use super::exits::{ExitCounters, count};
use super::kick::{self, Kicker};
use crate::platform::machine::{Reply, Upcalls};
use crate::vcpu::Cpus;

/// `_IOW(KVMIO, 0x86, struct kvm_interrupt)`
const KVM_INTERRUPT: libc::c_ulong = 0x4004_ae86;

/// How long an interrupt may take before it is raised again.
const AGAIN_NS: u64 = 20_000_000;

/// A vCPU. Its loop runs on one thread.
pub struct Vcpu<'m> {
    pub(super) fd: VcpuFd,
    pub(super) cpu: u32,
    pub(super) kicker: &'m Kicker,
    pub(super) exits: &'m ExitCounters,
}

/// The step that is left to do after an exit.
enum After {
    /// The guest's kernel runs on, and looks at `pending` by itself.
    Resume,
    /// The guest may be in user mode: look at `pending` first.
    Check,
    /// The sandbox ends.
    Stop,
}

impl Vcpu<'_> {
    /// Runs the guest on this thread until it ends.
    pub fn run(&mut self, sandbox: &dyn Upcalls) -> Result<(), Failure> {
        let flag = &raw mut self.fd.get_kvm_run().immediate_exit;
        // SAFETY: the flag is in this vCPU's shared page, mapped as long as `self.fd`, which outlives the seat.
        let _seat = unsafe { self.kicker.sit(flag) }.map_err(Failure::Thread)?;
        let mut check = false;
        loop {
            self.kicker.enter_guest();
            if sandbox.cpus().is_stopping() {
                return Ok(());
            }
            if check && is_pending(sandbox.cpus(), self.cpu) {
                self.interrupt_when_ready()?;
            }
            check = match self.run_once(sandbox)? {
                After::Resume => false,
                After::Check => true,
                After::Stop => return Ok(()),
            };
        }
    }

    fn run_once(&mut self, sandbox: &dyn Upcalls) -> Result<After, Failure> {
        let exit = self.fd.run();
        self.kicker.leave_guest();
        match exit {
            Ok(VcpuExit::IoOut(HOSTCALL_PORT, data)) if data.len() == 4 => {
                count(&self.exits.hostcall);
                let phys = data.try_into().map_or(0, u32::from_le_bytes);
                self.hostcall(sandbox, u64::from(phys))
            }
            Ok(VcpuExit::IrqWindowOpen) => {
                count(&self.exits.interrupt_window);
                self.fd.get_kvm_run().request_interrupt_window = 0;
                Ok(After::Check)
            }
            Ok(VcpuExit::Intr) => Ok(self.signalled(sandbox)),
            Err(error) if error.errno() == libc::EINTR || error.errno() == libc::EAGAIN => {
                Ok(self.signalled(sandbox))
            }
            Err(error) if error.errno() == libc::EFAULT => self.memory_fault(),
            Ok(VcpuExit::MemoryFault { .. }) => self.memory_fault(),
            Err(error) => Err(Failure::Run(error)),
            Ok(exit) => {
                let exit = describe(&exit);
                count(&self.exits.other);
                Err(self.failure(exit))
            }
        }
    }

    /// Copies the call at `phys` out of shared memory, carries it out and writes its result back.
    fn hostcall(&self, sandbox: &dyn Upcalls, phys: u64) -> Result<After, Failure> {
        const RESULT: u64 = offset_of!(HostCall, result) as u64;
        let call: HostCall = sandbox.memory().read(phys).ok_or(Failure::Call(phys))?;
        match sandbox.hostcall(self.cpu, &call) {
            Reply::Result(result) => {
                sandbox.memory().write(phys + RESULT, &result).ok_or(Failure::Call(phys))?;
                Ok(After::Resume)
            }
            Reply::Leave => Ok(After::Stop),
        }
    }

    /// A kick, a deadline or any other signal made `KVM_RUN` return.
    fn signalled(&mut self, sandbox: &dyn Upcalls) -> After {
        count(&self.exits.signal);
        // Reset before `pending` and the deadline are looked at: a signal that comes now sets it again.
        self.fd.set_kvm_immediate_exit(0);
        let deadline = sandbox.cpus().deadline(self.cpu).map_or(u64::MAX, |deadline| deadline.load(SeqCst));
        let now = kick::now_ns();
        if deadline <= now {
            sandbox.set_pending(self.cpu);
        }
        // Again until the kernel has taken it: the interrupt, or the window for it, was seen to get lost in the emulator.
        let again = is_pending(sandbox.cpus(), self.cpu).then_some(now + AGAIN_NS);
        tell_alarm(sandbox.cpus(), self.cpu, kick::follow(now, deadline, again));
        After::Check
    }

    /// Injects the kick interrupt, or asks KVM to tell when the guest takes interrupts.
    fn interrupt_when_ready(&mut self) -> Result<(), Failure> {
        let run = self.fd.get_kvm_run();
        if run.ready_for_interrupt_injection == 0 {
            run.request_interrupt_window = 1;
            return Ok(());
        }
        let interrupt = kvm_interrupt { irq: VECTOR_KICK };
        // SAFETY: the descriptor is a vCPU's, and the argument is what this request reads.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), KVM_INTERRUPT, &raw const interrupt) };
        if result != 0 {
            return Err(Failure::Interrupt(std::io::Error::last_os_error()));
        }
        Ok(())
    }

    /// The host has no page where the guest touched memory. In user code this is a mapped file that became shorter (or
    /// a host that fails): the guest's kernel gets an interrupt, and another one for each repeat of the access.
    fn memory_fault(&mut self) -> Result<After, Failure> {
        let registers = self.registers();
        let mut events = self.fd.get_vcpu_events().map_err(Failure::Run)?;
        let delivering_exception = events.exception.injected | events.exception.pending != 0;
        if registers.ring != 3 || delivering_exception {
            return Err(Failure::HostMemory(registers));
        }
        count(&self.exits.bus);
        // A kick that was on its way is not lost: `pending` is still set, and looked at before the next entry.
        events.interrupt.injected = 1;
        events.interrupt.nr = u8::try_from(VECTOR_BUS).unwrap_or(u8::MAX);
        events.interrupt.soft = 0;
        events.interrupt.shadow = 0;
        events.flags |= KVM_VCPUEVENT_VALID_SHADOW;
        self.fd.set_vcpu_events(&events).map_err(Failure::Run)?;
        Ok(After::Resume)
    }

    fn registers(&self) -> GuestRegisters {
        let (Ok(regs), Ok(sregs)) = (self.fd.get_regs(), self.fd.get_sregs()) else {
            return GuestRegisters::default();
        };
        GuestRegisters { rip: regs.rip, rsp: regs.rsp, cr2: sregs.cr2, cr3: sregs.cr3, ring: sregs.ss.dpl }
    }

    fn failure(&mut self, exit: Described) -> Failure {
        let registers = self.registers();
        match exit {
            Described::Shutdown => Failure::Shutdown(registers),
            Described::NoMemory(phys) => Failure::NoMemory { phys, registers },
            Described::Port(port) => Failure::Port { port, registers },
            Described::Entry(reason) => Failure::Entry { reason, registers },
            Described::Internal => {
                // SAFETY: the exit reason says that this member of the union was written.
                let suberror = unsafe { self.fd.get_kvm_run().__bindgen_anon_1.internal.suberror };
                Failure::Internal { suberror, registers }
            }
            Described::Other(exit) => Failure::Unexpected { exit, registers },
        }
    }
}

/// Lets the guest's kernel know when its timer fires.
pub(super) fn tell_alarm(cpus: &Cpus, cpu: u32, alarm_ns: u64) {
    if let Some(told) = cpus.alarm(cpu) {
        told.store(alarm_ns, SeqCst);
    }
}

/// `CpuHeader::pending`: the guest's kernel is wanted.
fn is_pending(cpus: &Cpus, cpu: u32) -> bool {
    cpus.pending(cpu).is_some_and(|pending| pending.load(SeqCst) != 0)
}

/// A fatal exit without its borrow of the vCPU.
enum Described {
    Shutdown,
    NoMemory(u64),
    Port(u16),
    Entry(u64),
    Internal,
    Other(String),
}

fn describe(exit: &VcpuExit<'_>) -> Described {
    match exit {
        VcpuExit::Shutdown => Described::Shutdown,
        VcpuExit::MmioRead(phys, _) | VcpuExit::MmioWrite(phys, _) => Described::NoMemory(*phys),
        VcpuExit::IoOut(port, _) | VcpuExit::IoIn(port, _) => Described::Port(*port),
        VcpuExit::FailEntry(reason, _) => Described::Entry(*reason),
        VcpuExit::InternalError => Described::Internal,
        other => Described::Other(format!("{other:?}")),
    }
}
