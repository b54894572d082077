//! The charge of a sandbox's control group falls when its programs free memory, while the sandbox is awake.

mod sleeper;

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use sleeper::{TestSandbox, guest, next_line, platform};

const MIB: u64 = 1 << 20;
/// The bytes that the program takes, and how many bytes may stay charged (`STAYS`): single pages, and those that the
/// program and the host keep for it.
const TAKEN: u64 = 200 * MIB;
const STAYS: u64 = 48 * MIB;
/// Some times the seconds that it takes when nothing else runs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A control group for memory below this process's own; it goes with the value.
struct Group {
    path: PathBuf,
    usage: &'static str,
}

impl Group {
    /// Why there is none.
    fn new() -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|why| why.to_string())?;
        let own = fs::read_to_string("/proc/self/cgroup").map_err(|why| why.to_string())?;
        let directory = |kind: &str, controller: &str| {
            let mount = mounts.lines().find(|line| {
                let (of_mount, of_kind) = line.split_once(" - ").unwrap_or_default();
                let mut words = of_kind.split(' ');
                let options = of_kind.rsplit(' ').next().unwrap_or_default();
                words.next() == Some(kind)
                    && (controller.is_empty() || options.split(',').any(|word| word == controller))
                    && of_mount.split(' ').nth(3) == Some("/")
            })?;
            let path = own.lines().find_map(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                (parts.next()?.split(',').any(|word| word == controller)).then(|| parts.next())?
            })?;
            let mounted = mount.split(' ').nth(4)?;
            Some(Path::new(mounted).join(path.trim_start_matches('/')))
        };
        let (parent, usage) = directory("cgroup", "memory")
            .map(|path| (path, "memory.usage_in_bytes"))
            .or_else(|| directory("cgroup2", "").map(|path| (path, "memory.current")))
            .ok_or("no hierarchy of control groups is mounted whole")?;
        let path = parent.join(format!("dormouse-test-{}", std::process::id()));
        fs::create_dir(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        let group = Self { path, usage };
        // In version 2 a group has no such file where the one above does not hand the controller on.
        fs::read(group.path.join(usage)).map_err(|why| format!("no memory controller here: {why}"))?;
        Ok(group)
    }

    fn charged(&self) -> u64 {
        fs::read_to_string(self.path.join(self.usage)).unwrap().trim().parse().unwrap()
    }

    /// Has the command's process join it.
    fn take(&self, command: &mut Command) {
        let members = self.path.join("cgroup.procs");
        // SAFETY: between fork and exec in a process of one thread; it writes one file.
        unsafe { command.pre_exec(move || fs::write(&members, "0")) };
    }

    fn falls_to(&self, most: u64, after: &str) -> u64 {
        let begun = Instant::now();
        loop {
            let charged = self.charged();
            if charged <= most {
                return charged;
            }
            assert!(begun.elapsed() < PATIENCE, "{after}: {} of {} MiB", charged / MIB, most / MIB);
            sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its last members end right now.
        for _ in 0..100 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            sleep(Duration::from_millis(50));
        }
    }
}

/// Goes through the program's steps; `command` runs it. Returns what was charged at the end, and at the start.
fn steps(group: &Group, mut command: Command, between: impl Fn()) {
    group.take(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    assert_eq!(next_line(&mut child), "ready\n");
    let start = group.charged();
    for (takes, frees) in [("taken\n", "freed\n"), ("written\n", "removed\n")] {
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(next_line(&mut child), takes);
        assert!(group.charged() >= start + TAKEN - STAYS, "{takes}: {} bytes", group.charged());
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        assert_eq!(next_line(&mut child), frees);
        group.falls_to(start + STAYS, frees);
    }
    between();
    child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn memory_that_programs_free_is_not_charged_any_more() {
    let group = match Group::new() {
        Ok(group) => group,
        Err(why) => {
            eprintln!("skipped: no control group for memory can be made here: {why}");
            return;
        }
    };
    let (program, mib) = (guest("takes"), (TAKEN / MIB).to_string());
    let file = format!("/dev/shm/takes-{}", std::process::id());
    let mut native = Command::new(&program);
    native.args([&mib, &file]);
    steps(&group, native, || {});
    let sandbox = TestSandbox::new();
    let fixed = ["do", "--id", "s", "--platform", &platform(), "--swap-dir", sandbox.swap.to_str().unwrap()];
    let program = ["--memory", "1G", "--", program.to_str().unwrap(), &mib, &file];
    steps(&group, sandbox.command(&[&fixed[..], &program].concat()), || {
        let stats = sandbox.run(&["stats", "s", "--json"]);
        let stats: Value = serde_json::from_slice(&stats.stdout).unwrap();
        let returned = stats["returned_bytes"].as_u64().unwrap();
        assert!(returned >= 2 * (TAKEN - STAYS), "{returned} bytes went back by the sandbox's own count");
    });
}
