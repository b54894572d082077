//! The systrap platform: the kernel runs inside the VMM, applications run in stub processes under seccomp.
//!
//! A vCPU thread and a stub thread hand over through a shared area (`thread.rs`); the user registers lie in the
//! signal frame that the host kernel leaves there (`frame.rs`).

mod area;
mod cores;
mod entry;
mod filter;
mod frame;
mod handover;
mod mapper;
mod process;
mod run;
mod spawn;
mod thread;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;

use abi::HostCall;
use abi::hostcall::{AS_CREATE, AS_DESTROY, AS_RUN, AS_SAVE_FPU, AS_SYNC};
use abi::layout::LINEAR_BASE_SYSTRAP;

use self::cores::Computing;
use self::handover::{Affinity, HandoverPolicy};
use self::mapper::MapperLine;
use self::process::{Process, Stubs};
use super::machine::{LogSink, Machine, PlatformError, Upcalls};
use crate::cpu;
use crate::errno::HostError;
use crate::lock::{Mutex, Rank};
use crate::memory::SandboxMemory;
use crate::vcpu::Cpus;

/// The platform's state for one sandbox.
pub struct Systrap {
    stubs: Arc<Stubs>,
    keeper: Option<JoinHandle<()>>,
    memory: Arc<SandboxMemory>,
    /// One for each vCPU.
    cpus: Vec<CpuState>,
    cores: usize,
    /// The cores on which stub threads may run.
    affinity: Affinity,
    log: LogSink,
}

/// The state of one vCPU.
struct CpuState {
    /// To mapper threads.
    line: MapperLine,
    own: Mutex<Own>,
    /// Its stub thread computes.
    computes: Computing,
}

/// The part of it that the vCPU itself uses, and who fetches registers from its stub threads while it idles.
#[derive(Default)]
struct Own {
    policy: HandoverPolicy,
    /// The stub thread it ran last.
    last: Option<Last>,
}

struct Last {
    id: u64,
    process: Arc<Process>,
    index: usize,
}

/// The keeper's stack, in bytes.
const KEEPER_STACK_BYTES: usize = 128 << 10;

impl Systrap {
    /// Starts the zygote, as a child of the calling thread: when that ends, so do the stubs.
    /// `proc` is the host's `/proc`, or one that shows stubs.
    pub fn start(
        memory: &Arc<SandboxMemory>,
        cpus: u32,
        proc: Option<OwnedFd>,
        log: LogSink,
    ) -> Result<Self, PlatformError> {
        let (stubs, ends) = Stubs::start(memory, cpus, proc)?;
        let stubs = Arc::new(stubs);
        let kept = Arc::clone(&stubs);
        let keeper = std::thread::Builder::new()
            .name("keeper".into())
            .stack_size(KEEPER_STACK_BYTES)
            .spawn(move || kept.keep())
            .map_err(|source| HostError { what: "start the stubs' keeper", source })?;
        let state = |(cpu, ends)| CpuState {
            line: MapperLine::new(ends, cpu),
            own: Mutex::new(Rank::LastStub, Own::default()),
            computes: Computing::default(),
        };
        Ok(Self {
            stubs,
            keeper: Some(keeper),
            memory: Arc::clone(memory),
            cpus: (0..).zip(ends).map(state).collect(),
            cores: cpu::online_cores(),
            affinity: Affinity::of_this_thread(),
            log,
        })
    }
}

impl Machine for Systrap {
    fn linear_base(&self) -> u64 {
        LINEAR_BASE_SYSTRAP
    }

    fn hostcall_entry(&self) -> u64 {
        entry::hostcall_address()
    }

    fn run_cpu(&self, sandbox: &(dyn Upcalls + 'static), cpu: u32, entry: u64) -> Result<(), PlatformError> {
        if cpu == 0 && !self.stubs.is_ready() {
            return Err(PlatformError::Stub);
        }
        entry::run(sandbox, cpu, entry)
    }

    fn interrupt(&self, cpus: &Cpus, cpu: u32) {
        let id = cpus.in_user(cpu).map_or(0, |in_user| in_user.load(SeqCst));
        if id != 0
            && let Some(process) = self.stubs.find(id)
        {
            process.interrupt_cpu(cpu);
        }
    }

    fn address_space(&self, cpus: &Cpus, cpu: u32, call: &HostCall) -> i64 {
        let [id, address, len, other, ..] = call.args;
        let result = match call.number {
            AS_RUN => self.run(cpus, cpu, id, address),
            AS_CREATE => self.stubs.create().map(u64::cast_signed),
            AS_DESTROY => {
                self.forget(id);
                let state = self.cpus.get(cpu as usize).ok_or(libc::EINVAL);
                state.and_then(|state| self.stubs.destroy(id, &state.line)).map(|()| 0)
            }
            AS_SYNC => self.sync(cpu, id, address, len),
            AS_SAVE_FPU if other == 0 => self.save_fpu(cpu, id, address, len),
            AS_SAVE_FPU => u32::try_from(other - 1)
                .map_err(|_| libc::EINVAL)
                .and_then(|other| self.save_fpu(other, id, address, len)),
            _ => Err(libc::ENOSYS),
        };
        result.unwrap_or_else(|errno| -i64::from(errno))
    }

    fn trim(&self) {
        self.stubs.trim();
    }

    fn cpu_ns(&self) -> u64 {
        self.stubs.cpu_ns()
    }
}

impl Systrap {
    /// Drops the stub threads of an address space that vCPUs remember, unless a vCPU is at work.
    fn forget(&self, id: u64) {
        for state in &self.cpus {
            if let Some(mut own) = state.own.try_lock()
                && own.last.as_ref().is_some_and(|last| last.id == id)
            {
                own.last = None;
            }
        }
    }
}

impl Drop for Systrap {
    fn drop(&mut self) {
        self.stubs.stop();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        self.cpus.iter().for_each(|state| state.own.lock().last = None);
    }
}
