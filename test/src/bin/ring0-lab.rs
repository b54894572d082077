//! Runs the ring-0 test kernel on kvm, inside the lab: first its tests, then each way in which a kernel can go wrong.
//!
//!     ring0-lab KERNEL

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use std::time::Instant;

use abi::boot::Platform;
use vmm::boot::BootSpec;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::platform::probe::{self, Verdict};
use vmm::sandbox::{Sandbox, SandboxConfig, SandboxError};

/// Ways to go wrong, and the words that the report must have.
const DEATHS: [(&str, &str); 10] = [
    ("u", "invalid opcode in the kernel: vector 6"),
    ("p", "page fault in the kernel: vector 14 error 0x2"),
    ("s", "double fault"),
    ("g", "double fault"),
    ("w", "page fault in the kernel: vector 14 error 0x3"),
    ("x", "page fault in the kernel: vector 14 error 0x11"),
    ("m", "page fault in the kernel: vector 14 error 0x2"),
    ("f", "the host cannot provide memory that the guest's kernel uses"),
    ("o", "the guest used the unknown I/O port 0x80"),
    ("t", "triple fault"),
];
/// Exits a measurement may cause by itself: two readings of the clock and the second mark; and some signals that the
/// host may send.
const EXITS_ALLOWED: u64 = 3 + 5;

fn main() -> ExitCode {
    let Some(kernel) = std::env::args().nth(1) else {
        eprintln!("usage: ring0-lab KERNEL");
        return ExitCode::from(2);
    };
    let kernel: &'static [u8] = match std::fs::read(&kernel) {
        Ok(bytes) => bytes.leak(),
        Err(error) => {
            eprintln!("ring0-lab: cannot read {kernel}: {error}");
            return ExitCode::from(2);
        }
    };
    let results = [check_probe(), run_tests(kernel), run_deaths(kernel)];
    native_syscall();
    if results.iter().all(|ok| *ok) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn judge(name: &str, ok: bool, detail: &str) -> bool {
    if ok {
        println!("ok      {name}");
    } else {
        println!("FAILED  {name}: {detail}");
    }
    ok
}

/// The lab's KVM is emulated as a whole, and so counts as native.
fn check_probe() -> bool {
    let first = probe::report();
    let second = probe::report();
    println!("probe   {first}, {:.0} ns an exit", first.ns_per_exit.unwrap_or(0.0));
    judge("the probe finds a native ring 0", first.verdict == Verdict::Native, &format!("{first:?}"))
        & judge("the second report is the first", first == second, &format!("{second:?}"))
}

/// Exits of all vCPUs so far.
fn exits(sandbox: &Sandbox) -> u64 {
    sandbox.exits().iter().filter(|(reason, _)| *reason != "all").map(|(_, count)| count).sum()
}

/// Boots the kernel with `mode` as its argument. Answers how it ended, and how many measurements had too many exits.
fn boot(kernel: &'static [u8], mode: &str) -> (Result<u32, SandboxError>, u64) {
    let place: Arc<OnceLock<Weak<Sandbox>>> = Arc::default();
    let (mark, failures) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let mut config = SandboxConfig::new(Platform::Kvm, 2, 64 << 20);
    // The test kernel waits in ring 0, for longer than any kernel should.
    config.patience = Duration::from_secs(3600);
    config.kernel = kernel;
    config.kernel_bytes = 64 << 20;
    let (found, counted) = (Arc::clone(&place), Arc::clone(&failures));
    config.log = Arc::new(move |_, text| {
        let sandbox = found.get().and_then(Weak::upgrade);
        let Some(sandbox) = sandbox else { return };
        match text.strip_prefix("exits") {
            Some("") => mark.store(exits(&sandbox), Ordering::SeqCst),
            Some(what) => {
                let count = exits(&sandbox) - mark.load(Ordering::SeqCst);
                if !judge(&format!("no exits:{what}"), count <= EXITS_ALLOWED, &format!("{count} exits")) {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
            None => println!("{text}"),
        }
    });
    let result = Sandbox::new(config, no_files(), Arc::new(EventQueue::new())).and_then(|sandbox| {
        let _ = place.set(Arc::downgrade(&sandbox));
        map_short_file(&sandbox);
        let args = if mode.is_empty() { Vec::new() } else { vec![mode.as_bytes().to_vec()] };
        let result = sandbox.run_without_jail(&BootSpec { args, ..BootSpec::default() });
        if mode.is_empty() {
            println!("exits   {:?}", sandbox.exits());
        }
        result
    });
    (result, failures.load(Ordering::SeqCst))
}

/// Host files; the test kernel opens none.
fn no_files() -> HostIo {
    HostIo::new(Arc::new(|_| ())).expect("/proc is mounted")
}

/// A file of one page at the start of the file window, for the test of a mapping behind a file's end.
fn map_short_file(sandbox: &Sandbox) {
    let path = std::env::temp_dir().join("ring0-lab-file");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let mapped = file.and_then(|mut file| {
        file.write_all(&[b'f'; 4096])?;
        sandbox.memory.window_map(0, file.as_fd(), 0, false).map_err(std::io::Error::from_raw_os_error)
    });
    if let Err(error) = mapped {
        println!("FAILED  a file in the window: {error}");
    }
}

fn run_tests(kernel: &'static [u8]) -> bool {
    let (result, too_many) = boot(kernel, "");
    let ok = matches!(result, Ok(0)) && too_many == 0;
    judge("all tests in the kernel", ok, &format!("{result:?}, {too_many} with exits"))
}

fn run_deaths(kernel: &'static [u8]) -> bool {
    let mut all = true;
    for (mode, wanted) in DEATHS {
        let (result, _) = boot(kernel, mode);
        let report = match result {
            Err(error) => error.to_string(),
            Ok(status) => format!("status {status}"),
        };
        all &= judge(&format!("a broken kernel ({mode}) says: {wanted}"), report.contains(wanted), &report);
    }
    all
}

/// Logs the time of a system call in the lab without a sandbox.
fn native_syscall() {
    let rounds = 20_000;
    let start = Instant::now();
    for _ in 0..rounds {
        // SAFETY: no preconditions.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
    println!("time    native getppid: {} ns", start.elapsed().as_nanos() / rounds);
}
