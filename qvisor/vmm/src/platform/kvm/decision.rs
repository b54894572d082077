//! The vCPU loop's next step when the guest has left: decided from the exit alone, without KVM.
#![deny(unsafe_code)]

use abi::hostcall::HOSTCALL_PORT;
use abi::kvm::VECTOR_BUS;
use abi::word::low8;
use kvm_bindings::{KVM_VCPUEVENT_VALID_SHADOW, kvm_vcpu_events};
use kvm_ioctls::VcpuExit;

use super::error::{Failure, GuestRegisters};

const _: () = assert!(VECTOR_BUS <= 0xff);

/// How much of an unexpected exit's name and numbers is told, in characters.
const NAME_MAX: usize = 120;

/// The next step of the vCPU loop. It owns its data: the vCPU's shared page is free for the next exit.
#[derive(Debug)]
pub enum Step {
    /// Carries out the hostcall at this guest-physical address.
    HostCall(u64),
    /// Looks at `pending`: the guest takes interrupts from now on.
    InterruptWindow,
    /// Looks what the signal was for.
    Signal,
    /// The host has no page where the guest touched memory; see [`with_bus_interrupt`].
    HostMemory,
    /// Ends the sandbox.
    End(Fatal),
}

/// An exit after which the guest cannot go on. Dormouse's kernel causes none of them; one that was taken over may.
#[derive(Debug)]
pub enum Fatal {
    Shutdown,
    NoMemory(u64),
    Port(u16),
    CallSize(usize),
    Entry(u64),
    Internal,
    Other(String),
    Refused(kvm_ioctls::Error),
}

/// Decides the loop's step after `KVM_RUN` returned `exit`.
#[inline]
pub fn decide(exit: Result<VcpuExit<'_>, kvm_ioctls::Error>) -> Step {
    match exit {
        Ok(VcpuExit::IoOut(HOSTCALL_PORT, data)) => match <[u8; 4]>::try_from(data) {
            Ok(phys) => Step::HostCall(u64::from(u32::from_le_bytes(phys))),
            Err(_) => Step::End(Fatal::CallSize(data.len())),
        },
        Ok(VcpuExit::IrqWindowOpen) => Step::InterruptWindow,
        Ok(VcpuExit::Intr) => Step::Signal,
        Ok(VcpuExit::MemoryFault { .. }) => Step::HostMemory,
        Ok(exit) => Step::End(fatal(&exit)),
        Err(error) => match error.errno() {
            libc::EINTR | libc::EAGAIN => Step::Signal,
            libc::EFAULT => Step::HostMemory,
            _ => Step::End(Fatal::Refused(error)),
        },
    }
}

#[cold]
fn fatal(exit: &VcpuExit<'_>) -> Fatal {
    match exit {
        VcpuExit::Shutdown => Fatal::Shutdown,
        VcpuExit::MmioRead(phys, _) | VcpuExit::MmioWrite(phys, _) => Fatal::NoMemory(*phys),
        VcpuExit::IoOut(port, _) | VcpuExit::IoIn(port, _) => Fatal::Port(*port),
        VcpuExit::FailEntry(reason, _) => Fatal::Entry(*reason),
        VcpuExit::InternalError => Fatal::Internal,
        other => Fatal::Other(format!("{other:?}").chars().take(NAME_MAX).collect()),
    }
}

impl Fatal {
    /// The error that reports this end. `suberror` is KVM's, of an internal error.
    pub fn failure(self, registers: GuestRegisters, suberror: u32) -> Failure {
        match self {
            Self::Shutdown => Failure::Shutdown(registers),
            Self::NoMemory(phys) => Failure::NoMemory { phys, registers },
            Self::Port(port) => Failure::Port { port, registers },
            Self::CallSize(bytes) => Failure::CallSize { bytes, registers },
            Self::Entry(reason) => Failure::Entry { reason, registers },
            Self::Internal => Failure::Internal { suberror, registers },
            Self::Other(exit) => Failure::Unexpected { exit, registers },
            Self::Refused(error) => Failure::Run(error),
        }
    }
}

/// The vCPU's events with the bus interrupt injected, after the guest touched memory that the host cannot provide. In user
/// code this is a mapped file that became shorter (or a host that fails). `None`: the guest's kernel did it, which no
/// interrupt helps.
pub fn with_bus_interrupt(mut events: kvm_vcpu_events, ring: u8) -> Option<kvm_vcpu_events> {
    let delivering_exception = events.exception.injected | events.exception.pending != 0;
    if ring != 3 || delivering_exception {
        return None;
    }
    // A kick that was on its way is not lost: `pending` is still set, and looked at before the next entry.
    events.interrupt.injected = 1;
    events.interrupt.nr = low8(u64::from(VECTOR_BUS));
    events.interrupt.soft = 0;
    events.interrupt.shadow = 0;
    events.flags |= KVM_VCPUEVENT_VALID_SHADOW;
    Some(events)
}

#[cfg(test)]
mod tests {
    use kvm_ioctls::Error;

    use super::*;

    const REGISTERS: GuestRegisters =
        GuestRegisters { rip: 0x1000, rsp: 0x2000, cr2: 0, cr3: 0x3000, ring: 0 };

    /// The sentence with which the sandbox ends.
    fn ends(exit: Result<VcpuExit<'_>, Error>) -> String {
        let Step::End(fatal) = decide(exit) else { panic!("the sandbox goes on") };
        let text = fatal.failure(REGISTERS, 7).to_string();
        assert!(!text.contains('\n') && text.len() < 400, "{text}");
        text
    }

    #[test]
    fn four_bytes_to_the_hostcall_port_are_a_call() {
        for phys in [0, 0x1_2340, u32::MAX] {
            let step = decide(Ok(VcpuExit::IoOut(HOSTCALL_PORT, &phys.to_le_bytes())));
            assert!(matches!(step, Step::HostCall(at) if at == u64::from(phys)), "{step:?}");
        }
    }

    #[test]
    fn a_hostcall_of_another_size_ends_the_sandbox() {
        for bytes in [0, 1, 2, 3, 5, 8, 4096] {
            let text = ends(Ok(VcpuExit::IoOut(HOSTCALL_PORT, &vec![0xff; bytes])));
            assert!(
                text.starts_with(&format!("the guest made a hostcall of {bytes} bytes, not 4")),
                "{text}"
            );
        }
    }

    #[test]
    fn another_port_ends_the_sandbox() {
        for port in [0, 0x64, HOSTCALL_PORT - 1, HOSTCALL_PORT + 1, 0x3f8, 0xcf9, u16::MAX] {
            let sentence = format!("the guest used the unknown I/O port {port:#x} (ring 0, rip 0x1000");
            assert!(ends(Ok(VcpuExit::IoOut(port, &[0; 4]))).starts_with(&sentence));
            assert!(ends(Ok(VcpuExit::IoIn(port, &mut [0; 4]))).starts_with(&sentence));
        }
        // Reading from the hostcall port is no call.
        let text = ends(Ok(VcpuExit::IoIn(HOSTCALL_PORT, &mut [0; 4])));
        assert!(text.contains("unknown I/O port 0xd0"), "{text}");
    }

    #[test]
    fn memory_that_does_not_exist_ends_the_sandbox() {
        for phys in [0, 0xfee0_0000, 1 << 39, u64::MAX] {
            let sentence = format!("the guest used physical address {phys:#x}, where it has no memory");
            assert!(ends(Ok(VcpuExit::MmioRead(phys, &mut [0; 8]))).starts_with(&sentence));
            assert!(ends(Ok(VcpuExit::MmioWrite(phys, &[0; 8]))).starts_with(&sentence));
            assert!(ends(Ok(VcpuExit::MmioWrite(phys, &[]))).starts_with(&sentence));
        }
    }

    #[test]
    fn a_processor_that_cannot_go_on_ends_the_sandbox() {
        assert!(ends(Ok(VcpuExit::Shutdown)).contains("shut down after a triple fault (ring 0, rip 0x1000"));
        let text = ends(Ok(VcpuExit::FailEntry(0x8000_0021, 3)));
        assert!(text.contains("could not enter the guest (hardware reason 0x80000021, "), "{text}");
        assert!(ends(Ok(VcpuExit::InternalError)).contains("(suberror 7, ring 0"));
    }

    #[test]
    fn an_exit_that_nobody_expects_ends_the_sandbox_by_its_name() {
        let exits = [
            (VcpuExit::Hlt, "Hlt"),
            (VcpuExit::Unknown, "Unknown"),
            (VcpuExit::Exception, "Exception"),
            (VcpuExit::Nmi, "Nmi"),
            (VcpuExit::Hyperv, "Hyperv"),
            (VcpuExit::IoapicEoi(0xff), "IoapicEoi(255)"),
            (VcpuExit::SystemEvent(u32::MAX, &[u64::MAX; 16]), "SystemEvent(4294967295"),
            (VcpuExit::Unsupported(4711), "Unsupported(4711)"),
        ];
        for (exit, name) in exits {
            let text = ends(Ok(exit));
            assert!(text.starts_with(&format!("the guest left for a reason that is not expected: {name}")));
        }
    }

    #[test]
    fn a_signal_interrupts_and_does_not_end() {
        let exits = [Ok(VcpuExit::Intr), Err(Error::new(libc::EINTR)), Err(Error::new(libc::EAGAIN))];
        for exit in exits {
            assert!(matches!(decide(exit), Step::Signal));
        }
        assert!(matches!(decide(Ok(VcpuExit::IrqWindowOpen)), Step::InterruptWindow));
    }

    #[test]
    fn an_entry_that_kvm_refuses_ends_the_sandbox() {
        for errno in [libc::EINVAL, libc::EBADF, libc::ENOMEM, libc::EIO, libc::EHWPOISON] {
            assert!(ends(Err(Error::new(errno))).starts_with("KVM cannot run the vCPU ("));
        }
    }

    #[test]
    fn memory_that_the_host_lacks_is_an_interrupt_for_user_code_only() {
        let fault = VcpuExit::MemoryFault { flags: 0, gpa: u64::MAX, size: 4096 };
        for exit in [Ok(fault), Err(Error::new(libc::EFAULT))] {
            assert!(matches!(decide(exit), Step::HostMemory));
        }
        let events = with_bus_interrupt(kvm_vcpu_events::default(), 3).unwrap();
        assert_eq!((events.interrupt.injected, u32::from(events.interrupt.nr)), (1, VECTOR_BUS));
        assert_eq!(events.flags & KVM_VCPUEVENT_VALID_SHADOW, KVM_VCPUEVENT_VALID_SHADOW);
        for ring in [0, 1, 2, 4, u8::MAX] {
            assert!(with_bus_interrupt(kvm_vcpu_events::default(), ring).is_none());
        }
        let mut delivering = [kvm_vcpu_events::default(); 2];
        delivering[0].exception.injected = 1;
        delivering[1].exception.pending = 1;
        assert!(delivering.into_iter().all(|events| with_bus_interrupt(events, 3).is_none()));
    }
}
