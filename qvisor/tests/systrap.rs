//! Runs the test kernel (`qvisor/testkernel`) on systrap, one case a test.

use std::fs;
use std::io::{BufRead, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use abi::boot::Platform;
use abi::hostcall::{EVENT_SIGNAL, Event};
use vmm::boot::BootSpec;
use vmm::hostcall::events::EventQueue;
use vmm::hostcall::host_io::HostIo;
use vmm::sandbox::{Sandbox, SandboxConfig, SandboxError};

/// A process has one sandbox at a time: the linear map is at a fixed address.
static ONE: Mutex<()> = Mutex::new(());

/// Builds the test kernel once.
fn kernel() -> &'static [u8] {
    static KERNEL: OnceLock<Vec<u8>> = OnceLock::new();
    KERNEL.get_or_init(|| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testkernel");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("testkernel");
        let status = Command::new(env!("CARGO"))
            .current_dir(&dir)
            .args(["build", "--quiet", "--release", "--target", "x86_64-unknown-none", "--target-dir"])
            .arg(&target)
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .env("RUSTFLAGS", "-C code-model=small -C relocation-model=pic")
            .status()
            .expect("cargo runs");
        assert!(status.success());
        fs::read(target.join("x86_64-unknown-none/release/testkernel")).expect("the kernel was built")
    })
}

/// Host I/O without files; its events go nowhere.
fn host_io() -> HostIo {
    HostIo::new(Arc::new(|_| {})).expect("host I/O")
}

struct Run {
    result: Result<u32, SandboxError>,
    lines: Vec<String>,
}

impl Run {
    fn passed(&self) {
        assert!(matches!(self.result, Ok(0)), "{:?}, log {:#?}", self.result, self.lines);
    }
}

/// Runs a case; `react` gets each log line.
fn run_with(case: &str, cpus: u32, react: impl Fn(&Sandbox, &str) + Send + Sync + 'static) -> Run {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let lines = Arc::new(Mutex::new(Vec::new()));
    let current: Arc<OnceLock<std::sync::Weak<Sandbox>>> = Arc::default();
    let (sink, slot) = (Arc::clone(&lines), Arc::clone(&current));
    let mut config = SandboxConfig::new(Platform::Systrap, cpus, 64 << 20);
    config.kernel = kernel();
    config.log = Arc::new(move |_, text: &str| {
        sink.lock().unwrap().push(text.to_owned());
        if let Some(sandbox) = slot.get().and_then(std::sync::Weak::upgrade) {
            react(&sandbox, text);
        }
    });
    let sandbox = Sandbox::new(config, host_io(), Arc::new(EventQueue::new())).expect("a sandbox");
    current.set(Arc::downgrade(&sandbox)).expect("set once");
    let spec = BootSpec { args: vec![case.into()], ..BootSpec::default() };
    let result = sandbox.run_without_jail(&spec);
    drop(sandbox);
    // A thread that posts an event may hold the sandbox a moment longer.
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        if children().is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(children(), Vec::<i32>::new(), "stubs are left behind");
    let lines = lines.lock().unwrap().clone();
    Run { result, lines }
}

fn run(case: &str, cpus: u32) -> Run {
    run_with(case, cpus, |_, _| {})
}

/// Children of all threads of this process.
fn children() -> Vec<i32> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().map(|pid| pid.parse::<i32>().unwrap()));
    }
    found
}

#[test]
fn boots_and_logs() {
    let run = run("boot", 2);
    run.passed();
    assert_eq!(run.lines, ["hello from the kernel"]);
}

#[test]
fn the_built_in_kernel_boots() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let config = SandboxConfig::new(Platform::Systrap, 1, 64 << 20);
    let sandbox = Sandbox::new(config, host_io(), Arc::new(EventQueue::new())).expect("a sandbox");
    drop(sandbox);
    assert_eq!(children(), Vec::<i32>::new());
}

macro_rules! cases {
    ($($name:ident: $case:literal on $cpus:literal;)*) => { $(
        #[test]
        fn $name() {
            run($case, $cpus).passed();
        }
    )* };
}

cases! {
    system_calls_trap: "syscalls" on 1;
    faults_and_exceptions_trap: "faults" on 1;
    fpu_state_is_kept: "fpu" on 1;
    segment_bases_are_kept: "bases" on 1;
    address_spaces_share_frames: "shared" on 1;
    user_code_cannot_break_its_stub: "wreck" on 1;
    the_filter_holds_inside_the_stub: "hijack" on 1;
    a_taken_over_stub_has_no_call_but_its_turn: "takeover" on 1;
    two_cpus_share_an_address_space: "threads" on 2;
    no_kick_is_lost: "kicks" on 2;
    operations_are_checked: "operations" on 1;
    address_spaces_begin_clean: "afresh" on 1;
}

/// Posts an event a while after the kernel asks for it.
fn post_later(sandbox: &Sandbox, line: &str) {
    if line == "post" {
        let events = Arc::clone(&sandbox.events);
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            events.post(Event { kind: EVENT_SIGNAL, value: 77, ..Event::default() });
        });
    }
}

#[test]
fn interrupts_reach_user_code() {
    run_with("interrupts", 1, post_later).passed();
}

#[test]
fn idle_ends_at_deadlines_and_events() {
    run_with("idle", 1, post_later).passed();
}

#[test]
fn a_killed_stub_is_noticed() {
    run_with("lost", 1, |_, line| {
        if line == "kill" {
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                // The zygote is the oldest.
                for pid in children().into_iter().skip(1) {
                    Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
                }
            });
        }
    })
    .passed();
}

#[test]
fn files_are_mapped_and_truncation_is_a_bus_error() {
    let path = std::env::temp_dir().join(format!("dormouse-window-{}", std::process::id()));
    let named = path.clone();
    let run = run_with("window", 1, move |sandbox, line| match line {
        "map window" => {
            let mut file = fs::File::create_new(&named).unwrap();
            file.write_all(b"abcd0123efgh4567").unwrap();
            file.set_len(8192).unwrap();
            let file = fs::File::open(&named).unwrap();
            sandbox.memory.window_map(5, file.as_fd(), 0, false).unwrap();
        }
        "truncate window" => fs::OpenOptions::new().write(true).open(&named).unwrap().set_len(100).unwrap(),
        _ => {}
    });
    let _ = fs::remove_file(path);
    run.passed();
}

#[test]
fn a_kernel_fault_is_one_message() {
    for (case, address) in [("kernel-fault", "address 0x12345678000"), ("overflow", "access violation")] {
        let run = run(case, 1);
        let Err(SandboxError::Panicked(text)) = run.result else { panic!("{:?}", run.result) };
        assert!(text.starts_with("kernel fault at image+0x"), "{text}");
        assert!(text.contains(address), "{text}");
    }
}

/// Runs a sandbox that sleeps, until it is killed.
#[test]
#[ignore = "started by the next test"]
fn sleeper() {
    run_with("sleep", 2, |_, line| println!("{line}")).passed();
}

/// Runs a kernel that never comes back, and ends this process: its thread cannot be ended otherwise.
#[test]
#[ignore = "started by the next test"]
fn stuck() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut config = SandboxConfig::new(Platform::Systrap, 2, 64 << 20);
    // One that computes has fifteen times as long.
    (config.kernel, config.patience) = (kernel(), Duration::from_secs(1));
    config.log = Arc::new(|_, text| println!("log: {text}"));
    let sandbox = Sandbox::new(config, host_io(), Arc::new(EventQueue::new())).expect("a sandbox");
    let spec = BootSpec { args: vec!["stuck".into()], ..BootSpec::default() };
    println!("result: {}", sandbox.run_without_jail(&spec).unwrap_err());
    std::process::exit(0);
}

#[test]
fn a_stuck_vcpu_is_noticed() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let start = |case: &str| {
        let args = ["--exact", case, "--ignored", "--nocapture"];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(args).stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let output = start("stuck").wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("result: the sandbox is stuck"), "{text}");
    assert!(text.contains("log: vCPU 0 made no progress for 1 s"), "{text}");
    assert!(text.contains("please report this: vCPU 0 made no progress for 15 s"), "{text}");
    // The report says where it is, and what the other vCPU does.
    assert!(text.contains("vCPU 0 is in code of its own, at kernel+0x"), "{text}");
    assert!(text.contains("vCPU 1 "), "{text}");
}

/// Long work goes on, and says so; to wait for a lock is no work.
#[test]
fn long_work_is_not_stuck() {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (case, ends_well) in [("long", true), ("contended", false)] {
        let mut config = SandboxConfig::new(Platform::Systrap, 1, 64 << 20);
        (config.kernel, config.patience) = (kernel(), Duration::from_secs(2));
        let sandbox = Sandbox::new(config, host_io(), Arc::new(EventQueue::new())).expect("a sandbox");
        let spec = BootSpec { args: vec![case.into()], ..BootSpec::default() };
        let result = sandbox.run_without_jail(&spec).map_err(|error| error.to_string());
        assert_eq!(result.is_ok(), ends_well, "{case}: {result:?}");
    }
}

/// Processor time of a process so far, in clock ticks.
fn ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn children_of(pid: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap());
    lists.flat_map(|list| list.split_whitespace().map(|p| p.parse().unwrap()).collect::<Vec<i32>>()).collect()
}

#[test]
fn an_idle_sandbox_uses_no_cpu_and_its_stubs_die_with_it() {
    // Other tests look at this process's children.
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let exe = std::env::current_exe().unwrap();
    let args = ["--exact", "sleeper", "--ignored", "--nocapture"];
    let mut child = Command::new(exe).args(args).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.ends_with("asleep")));
    let all = || {
        let stubs = children_of(child.id());
        stubs.iter().map(|pid| ticks(*pid)).sum::<u64>() + ticks(child.id().cast_signed())
    };
    // It may take a moment until ready stubs are forked and nothing spins any more.
    let is_quiet = || {
        let before = all();
        std::thread::sleep(Duration::from_millis(300));
        all() <= before
    };
    let quiet = (0..10).any(|_| is_quiet());
    let stubs = children_of(child.id());
    assert!(stubs.len() >= 2, "{stubs:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let lives = |pid: &i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    };
    let start = Instant::now();
    while stubs.iter().any(lives) && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let gone = !stubs.iter().any(lives);
    assert!(gone, "stubs outlive their VMM");
    assert!(quiet, "an idle sandbox is busy");
}

/// `cargo test --release -p qvisor --test systrap -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn bench() {
    for (case, cpus) in [("bench", 1), ("bench-two", 2)] {
        let run = run(case, cpus);
        run.passed();
        run.lines.iter().for_each(|line| println!("{line}"));
    }
}
