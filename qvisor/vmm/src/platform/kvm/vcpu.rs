//! The vCPU loop: entering the guest, and handling its exits.

use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering::SeqCst;

use abi::HostCall;
use abi::kvm::VECTOR_KICK;
use kvm_bindings::kvm_interrupt;
use kvm_ioctls::VcpuFd;

use super::decision::{Fatal, Step, decide, with_bus_interrupt};
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

/// The task that is left after an exit was handled.
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
        match decide(exit) {
            Step::HostCall(phys) => {
                count(&self.exits.hostcall);
                hostcall(sandbox, self.cpu, phys)
            }
            Step::InterruptWindow => {
                count(&self.exits.interrupt_window);
                self.fd.get_kvm_run().request_interrupt_window = 0;
                Ok(After::Check)
            }
            Step::Signal => {
                count(&self.exits.signal);
                // Reset before `pending` and the deadline are looked at: a signal that comes now sets it again.
                self.fd.set_kvm_immediate_exit(0);
                if sandbox.cpus().wants_places()
                    && let Ok(registers) = self.fd.get_regs()
                {
                    sandbox.cpus().note_place(self.cpu, registers.rip, registers.rsp);
                }
                Ok(signalled(sandbox, self.cpu))
            }
            Step::HostMemory => match sandbox.memory().template_lost() {
                Some(page) => Err(Failure::Template(page)),
                None => self.memory_fault(),
            },
            Step::End(fatal) => {
                count(&self.exits.other);
                Err(self.failure(fatal))
            }
        }
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

    /// The host has no page where the guest touched memory: the guest's kernel gets an interrupt, and another one for each
    /// repeat of the access.
    fn memory_fault(&mut self) -> Result<After, Failure> {
        let registers = self.registers();
        let events = self.fd.get_vcpu_events().map_err(Failure::Run)?;
        let events = with_bus_interrupt(events, registers.ring).ok_or(Failure::HostMemory(registers))?;
        count(&self.exits.bus);
        self.fd.set_vcpu_events(&events).map_err(Failure::Run)?;
        Ok(After::Resume)
    }

    fn registers(&self) -> GuestRegisters {
        let (Ok(regs), Ok(sregs)) = (self.fd.get_regs(), self.fd.get_sregs()) else {
            return GuestRegisters::default();
        };
        GuestRegisters { rip: regs.rip, rsp: regs.rsp, cr2: sregs.cr2, cr3: sregs.cr3, ring: sregs.ss.dpl }
    }

    #[cold]
    fn failure(&mut self, fatal: Fatal) -> Failure {
        let suberror = match fatal {
            // SAFETY: the exit reason says that this member of the union was written.
            Fatal::Internal => unsafe { self.fd.get_kvm_run().__bindgen_anon_1.internal.suberror },
            _ => 0,
        };
        fatal.failure(self.registers(), suberror)
    }
}

/// Copies the call at `phys` out of shared memory, carries it out and writes its result back.
#[inline]
fn hostcall(sandbox: &dyn Upcalls, cpu: u32, phys: u64) -> Result<After, Failure> {
    const RESULT: u64 = offset_of!(HostCall, result) as u64;
    let call: HostCall = sandbox.memory().read(phys).ok_or(Failure::Call(phys))?;
    match sandbox.hostcall(cpu, &call) {
        Reply::Result(result) => {
            sandbox.memory().write(phys + RESULT, &result).ok_or(Failure::Call(phys))?;
            Ok(After::Resume)
        }
        Reply::Leave => Ok(After::Stop),
    }
}

/// A kick, a deadline or any other signal made `KVM_RUN` return.
fn signalled(sandbox: &dyn Upcalls, cpu: u32) -> After {
    let deadline = sandbox.cpus().deadline(cpu).map_or(u64::MAX, |deadline| deadline.load(SeqCst));
    let now = kick::now_ns();
    if deadline <= now {
        sandbox.set_pending(cpu);
    }
    // Again until the kernel has taken it: the interrupt, or the window for it, was seen to get lost in the emulator.
    let again = is_pending(sandbox.cpus(), cpu).then_some(now + AGAIN_NS);
    tell_alarm(sandbox.cpus(), cpu, kick::follow(now, deadline, again));
    After::Check
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use abi::boot::Platform;

    use super::*;
    use crate::memory::SandboxMemory;

    const KERNEL: u64 = 16 << 20;
    const PLACE: u64 = 2 << 20;

    /// A sandbox that notes its calls and answers each of them alike.
    struct Told {
        memory: Arc<SandboxMemory>,
        cpus: Cpus,
        reply: Reply,
        calls: Mutex<Vec<(u32, u32)>>,
    }

    impl Told {
        fn new(reply: Reply) -> Self {
            let memory = Arc::new(SandboxMemory::new(Platform::Kvm, KERNEL, 4 << 20).unwrap());
            let cpus = Cpus::new(Arc::clone(&memory), 1, 0).unwrap();
            Self { memory, cpus, reply, calls: Mutex::default() }
        }
    }

    impl Upcalls for Told {
        fn cpus(&self) -> &Cpus {
            &self.cpus
        }

        fn memory(&self) -> &SandboxMemory {
            &self.memory
        }

        fn hostcall(&self, cpu: u32, call: &HostCall) -> Reply {
            self.calls.lock().unwrap().push((cpu, call.number));
            self.reply
        }

        fn set_pending(&self, cpu: u32) {
            self.cpus.pending(cpu).unwrap().store(1, SeqCst);
        }

        fn kernel_failed(&self, _why: String) {}
    }

    #[test]
    fn a_call_is_carried_out_and_its_result_written_back() {
        const RESULT: u64 = offset_of!(HostCall, result) as u64;
        let sandbox = Told::new(Reply::Result(-42));
        let number = 77_u32;
        sandbox.memory.write(PLACE, &number).unwrap();
        assert!(matches!(hostcall(&sandbox, 0, PLACE), Ok(After::Resume)));
        assert_eq!(*sandbox.calls.lock().unwrap(), [(0, number)]);
        assert_eq!(sandbox.memory.read::<i64>(PLACE + RESULT), Some(-42));
        let sandbox = Told::new(Reply::Leave);
        assert!(matches!(hostcall(&sandbox, 0, PLACE), Ok(After::Stop)));
    }

    #[test]
    fn a_call_outside_of_memory_ends_the_sandbox() {
        let sandbox = Told::new(Reply::Result(0));
        for phys in [KERNEL - 8, KERNEL, u64::from(u32::MAX)] {
            let Err(failure) = hostcall(&sandbox, 0, phys) else { panic!("a call at {phys:#x}") };
            let sentence = format!("the guest made a hostcall at {phys:#x}, which is not its memory");
            assert_eq!(failure.to_string(), sentence);
        }
        assert!(sandbox.calls.lock().unwrap().is_empty());
    }

    #[test]
    fn a_signal_at_the_deadline_wants_the_kernel_and_is_repeated() {
        let sandbox = Told::new(Reply::Leave);
        let (deadline, alarm) = (sandbox.cpus.deadline(0).unwrap(), sandbox.cpus.alarm(0).unwrap());
        deadline.store(u64::MAX, SeqCst);
        assert!(matches!(signalled(&sandbox, 0), After::Check));
        assert!(!is_pending(&sandbox.cpus, 0));
        assert_eq!(alarm.load(SeqCst), u64::MAX);
        let now = kick::now_ns();
        deadline.store(now, SeqCst);
        assert!(matches!(signalled(&sandbox, 0), After::Check));
        assert!(is_pending(&sandbox.cpus, 0));
        let again = alarm.load(SeqCst);
        assert!(now < again && again < u64::MAX);
        // A vCPU that does not exist is nobody's.
        assert!(matches!(signalled(&Told::new(Reply::Leave), 9), After::Check));
    }
}
