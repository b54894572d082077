//! A VMM process that makes listed system calls only, and runs its guest's kernel.

use std::io::{self, Write};
use std::sync::Arc;

use abi::boot::Platform;
use abi::hostcall::EVENT_SIGNAL;
use vmm::hostcall::events::EventQueue;
use vmm::jail::Seal;
use vmm::sandbox::{Loaded, Sandbox, SandboxError};
use vmm::watchdog;

use crate::stderr_log::LOG_INFO;
use crate::supervisor::Supervisor;
use crate::vmm_process::error::{VmmError, chain};

/// A VMM process that makes listed system calls only.
pub(in crate::vmm_process) struct Sealed {
    pub(super) seal: Seal,
    pub(super) kernel: Kernel,
}

pub(super) enum Kernel {
    Loaded(Guest, Loaded),
    /// For tests of the command itself: stands in for the kernel. `mounts`: how many it would make.
    StandIn {
        supervisor: Arc<Supervisor>,
        events: Arc<EventQueue>,
        mounts: usize,
    },
}

impl Sealed {
    /// Runs the kernel, and ends this process with the sandbox.
    pub(in crate::vmm_process) fn run(self) -> ! {
        let Self { seal, kernel } = self;
        match kernel {
            Kernel::Loaded(guest, loaded) => {
                guest.supervisor.wait_for_containers();
                guest.end(loaded.run(&seal).map_err(VmmError::from))
            }
            Kernel::StandIn { supervisor, events, mounts } => {
                supervisor.finish(Ok(stand_in(mounts, &events)));
            }
        }
    }
}

/// A sandbox that takes orders.
pub(super) struct Guest {
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) supervisor: Arc<Supervisor>,
    pub(super) log_level: u32,
    pub(super) platform: Platform,
}

impl Guest {
    /// Ends this process, once everybody knows how the sandbox ended.
    pub(super) fn end(self, status: Result<u32, VmmError>) -> ! {
        let Self { sandbox, supervisor, log_level, platform } = self;
        if log_level >= LOG_INFO && platform == Platform::Kvm {
            let exits: Vec<String> =
                sandbox.exits().iter().map(|(reason, count)| format!("{reason} {count}")).collect();
            sandbox.log(LOG_INFO, &format!("exits: {}", exits.join(", ")));
        }
        if matches!(status, Err(VmmError::Sandbox(SandboxError::Stuck(_)))) {
            watchdog::end_by_force();
        }
        // The process ends now; freeing all this piece by piece would only cost time.
        std::mem::forget(sandbox);
        supervisor.finish(status.map(u32::cast_signed).map_err(|error| chain(&error)))
    }
}

/// Ends with the first signal it is sent.
fn stand_in(mounts: usize, events: &EventQueue) -> i32 {
    let _ = writeln!(io::stdout(), "{mounts} mounts");
    loop {
        let signal = events.take(16).into_iter().find(|event| event.kind == EVENT_SIGNAL);
        if let Some(event) = signal {
            return i32::try_from(event.value).unwrap_or(0);
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
