//! A bundle and a runtime for one test.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The runtime that runs the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    Dormouse,
    Runc,
}

/// A bundle of its own, away from all others.
pub struct World {
    pub dir: PathBuf,
    pub runtime: Runtime,
    pub config: Value,
    /// The container's ID, unlike any other test's.
    pub id: String,
    /// Set for the runtime.
    pub env: Vec<(&'static str, &'static str)>,
    /// Most open files of the runtime, and so of what it starts on the host.
    pub open_files: Option<u64>,
    state_root: PathBuf,
}

/// Whether the test can run here.
pub fn can_run() -> bool {
    static ADOPT: Once = Once::new();
    // SAFETY: integers only. Orphans of the runtimes become this process's children, as they would a shim's; and users of
    // containers look into bundles, whatever the caller's mask.
    ADOPT.call_once(|| unsafe {
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
        libc::umask(0o022);
    });
    // SAFETY: takes nothing and cannot fail.
    let root = unsafe { libc::geteuid() == 0 };
    if !root || !Path::new("/bin/busybox").exists() {
        eprintln!("skipped: needs root and a static /bin/busybox");
    }
    root && Path::new("/bin/busybox").exists()
}

/// Runs a test of Dormouse alone.
pub fn dormouse(test: impl Fn(&mut World)) {
    if can_run() {
        test(&mut World::new(Runtime::Dormouse));
    }
}

/// Runs a test with Dormouse, and with runc as the oracle.
pub fn both(test: impl Fn(&mut World)) {
    if can_run() {
        if has_runc() {
            test(&mut World::new(Runtime::Runc));
        }
        test(&mut World::new(Runtime::Dormouse));
    }
}

fn has_runc() -> bool {
    Command::new("runc").arg("--version").output().is_ok_and(|output| output.status.success())
}

impl World {
    fn new(runtime: Runtime) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("oci-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(format!("dormouse-{id}"));
        let bin = dir.join("rootfs/bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy("/bin/busybox", bin.join("busybox")).unwrap();
        let names = "sh true false sleep cat echo ls id mount env umask kill dd touch mkdir stat hostname ip grep sort \
                     head nc wc pwd readlink tty stty ps df chmod cp rm sync sysctl test seq";
        for name in names.split_whitespace() {
            symlink("busybox", bin.join(name)).unwrap();
        }
        let config = include_str!("../../runtime/src/oci/default.json");
        let mut config: Value = serde_json::from_str(config).unwrap();
        config["process"]["terminal"] = json!(false);
        // A version that the host's runc knows; control groups of the test's own where the host mounts them.
        config["ociVersion"] = json!("1.0.2");
        config["root"]["readonly"] = json!(false);
        let state_root = dir.join("state");
        Self { dir, runtime, config, id, env: Vec::new(), open_files: None, state_root }
    }

    /// It is the first container of a pod.
    pub fn begin_pod(&mut self) -> &mut Self {
        let id = json!(self.id);
        self.set("/annotations", json!({"io.kubernetes.cri.container-type": "sandbox"}));
        self.config["annotations"]["io.kubernetes.cri.sandbox-id"] = id;
        self.script("trap : TERM; while :; do sleep 1000 & wait; done")
    }

    /// Adds an annotation.
    pub fn annotate(&mut self, name: &str, value: &str) -> &mut Self {
        self.config["annotations"][name] = json!(value);
        self
    }

    /// A further container of the pod that this one has begun; its namespaces are those that CRI names.
    pub fn further(&self, script: &str) -> Self {
        let mut further = Self::new(self.runtime);
        further.state_root.clone_from(&self.state_root);
        let first = self.pid();
        let path = |kind: &str| json!(format!("/proc/{first}/ns/{kind}"));
        for namespace in further.config["linux"]["namespaces"].as_array_mut().unwrap() {
            match namespace["type"].as_str().unwrap() {
                "network" => namespace["path"] = path("net"),
                "uts" => namespace["path"] = path("uts"),
                "ipc" => namespace["path"] = path("ipc"),
                _ => {}
            }
        }
        further.config.as_object_mut().unwrap().remove("hostname");
        further.set("/annotations", json!({"io.kubernetes.cri.container-type": "container"}));
        further.config["annotations"]["io.kubernetes.cri.sandbox-id"] = json!(self.id);
        further.script(script);
        further
    }

    /// Adds a guest program of `test/guest`, which needs no libraries, to `/bin`.
    pub fn add_guest(&self, name: &str) -> &Self {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../test/guest/{name}.c"));
        let program = self.rootfs().join("bin").join(name);
        let status =
            Command::new("cc").args(["-O2", "-pthread", "-static", "-o"]).arg(program).arg(source).status();
        assert!(status.expect("a C compiler runs").success());
        self
    }

    /// The program is a shell script.
    pub fn script(&mut self, text: &str) -> &mut Self {
        self.config["process"]["args"] = json!(["sh", "-c", text]);
        self
    }

    /// Sets a member of the configuration.
    pub fn set(&mut self, place: &str, value: Value) -> &mut Self {
        let (parent, name) = place.rsplit_once('/').unwrap();
        self.config.pointer_mut(parent).unwrap()[name] = value;
        self
    }

    /// Adds a mount.
    pub fn mount(&mut self, mount: Value) -> &mut Self {
        self.config["mounts"].as_array_mut().unwrap().push(mount);
        self
    }

    pub fn rootfs(&self) -> PathBuf {
        self.dir.join("rootfs")
    }

    pub fn state_root(&self) -> PathBuf {
        self.state_root.clone()
    }

    pub fn is_dormouse(&self) -> bool {
        self.runtime == Runtime::Dormouse
    }

    /// A command of the runtime.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = match self.runtime {
            // In the lab the command lies elsewhere.
            Runtime::Dormouse => Command::new(
                std::env::var_os("DORMOUSE_TEST_BIN").unwrap_or(env!("CARGO_BIN_EXE_dormouse").into()),
            ),
            Runtime::Runc => Command::new("runc"),
        };
        command.arg("--root").arg(self.state_root()).args(args).stdin(Stdio::null());
        command.envs(self.env.iter().copied());
        if let Some(count) = self.open_files {
            let limit = libc::rlimit { rlim_cur: count, rlim_max: count };
            // SAFETY: `limit` is live for the call.
            let bound = move || match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            };
            // SAFETY: between fork and exec there is one system call, of the closure's own memory.
            unsafe { command.pre_exec(bound) };
        }
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs it, and it must succeed; result: its output.
    pub fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{:?} {args:?}: {:?} {out} {err}", self.runtime, output.status);
        out.into_owned()
    }

    /// One sentence on standard error, the exit code that runc has, with these words.
    pub fn refused(&self, args: &[&str], words: &[&str]) {
        // Not by a pipe: a container that is made although it should not be would keep it open for ever.
        let path = self.dir.join("refused");
        let file = || File::options().create(true).append(true).open(&path).unwrap();
        fs::write(&path, "").unwrap();
        let status = self.command(args).stdin(Stdio::null()).stdout(file()).stderr(file()).status().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let code = if args[0] == "exec" { 255 } else { 1 };
        assert_eq!(status.code(), Some(code), "{args:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{word:?} is missing in: {text}");
        }
        assert!(text.starts_with("dormouse: cannot ") && text.trim().lines().count() == 1, "{text}");
    }

    pub fn write(&self) -> &Self {
        fs::write(self.dir.join("config.json"), self.config.to_string()).unwrap();
        self
    }

    /// The options that name the bundle, and those that make tests independent of the host.
    pub fn with_bundle<'a>(&'a self, verb: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut args = vec![verb, "--bundle", self.dir.to_str().unwrap()];
        if self.is_dormouse() {
            args.extend(["--platform", "systrap"]);
        }
        args.extend(more);
        args.push(&self.id);
        args
    }

    /// `create`; standard output of the container goes to the file `out`.
    pub fn create(&self) -> &Self {
        self.create_with(&[])
    }

    /// Does `create` with these environment variables for the command; the container's standard output goes to the file
    /// `out`.
    pub fn create_with(&self, variables: &[(&str, &str)]) -> &Self {
        self.write();
        let out = fs::File::create(self.dir.join("out")).unwrap();
        let err = fs::File::create(self.dir.join("err")).unwrap();
        let pid_file = self.dir.join("pid");
        let args = self.with_bundle("create", &["--pid-file", pid_file.to_str().unwrap()]);
        let status =
            self.command(&args).envs(variables.iter().copied()).stdout(out).stderr(err).status().unwrap();
        assert!(status.success(), "{:?} create: {}", self.runtime, self.read("err"));
        self
    }

    pub fn start(&self) -> &Self {
        self.ok(&["start", &self.id]);
        self
    }

    /// Runs the container in the foreground; result: exit code, output and errors.
    pub fn run_container(&self) -> (Option<i32>, String, String) {
        self.write();
        let output = self.run(&self.with_bundle("run", &[]));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    /// Runs the container, which must end well; result: its output.
    pub fn output(&self) -> String {
        let (code, out, err) = self.run_container();
        assert_eq!(code, Some(0), "{:?}: {out} {err}", self.runtime);
        out
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }

    pub fn state(&self) -> Value {
        serde_json::from_str(&self.ok(&["state", &self.id])).unwrap()
    }

    pub fn status(&self) -> String {
        self.state()["status"].as_str().unwrap().to_owned()
    }

    /// The pid that stands for the container.
    pub fn pid(&self) -> i32 {
        self.read("pid").trim().parse().unwrap()
    }

    /// The VMM's process number.
    pub fn vmm(&self) -> i32 {
        let record = fs::read(self.state_root().join(&self.id).join("container.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        i32::try_from(record["vmm"].as_i64().unwrap()).unwrap()
    }

    /// The VMM of the pod that it is a further container of.
    pub fn vmm_of_pod(&self) -> i64 {
        let record = fs::read(self.state_root().join(&self.id).join("container.json")).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        record["pod"]["vmm"].as_i64().unwrap()
    }

    /// All processes of the container.
    pub fn family(&self) -> Vec<i32> {
        let mut all = vec![self.vmm()];
        let mut at = 0;
        while let Some(pid) = all.get(at).copied() {
            all.extend(children(pid));
            at += 1;
        }
        all
    }

    pub fn wait_status(&self, wanted: &str) {
        wait_for(
            || self.status() == wanted,
            || format!("{:?} is {}, not {wanted}", self.runtime, self.status()),
        );
    }

    /// The sandbox's state, in the words of the paper.
    pub fn sandbox_state(&self) -> String {
        self.state()["sandboxState"].as_str().unwrap_or("none").to_owned()
    }

    /// Waits until it is this, and the leash shows it.
    pub fn wait_state(&self, wanted: &str) {
        let shows = || is_stopped(self.pid()) == (wanted == "hibernated");
        wait_for(
            || self.sandbox_state() == wanted && shows(),
            || format!("it is {}, not {wanted}; leash shows it: {}", self.sandbox_state(), shows()),
        );
    }

    /// Waits until it is not hibernated any more, and the leash shows it.
    pub fn wait_awake(&self) {
        wait_for(
            || self.sandbox_state() != "hibernated" && !is_stopped(self.pid()) && self.status() == "running",
            || format!("it is {} and {}", self.sandbox_state(), self.status()),
        );
    }

    pub fn wait_output(&self, wanted: &str) {
        wait_for(
            || self.read("out").contains(wanted),
            || format!("{:?}: no {wanted:?} in {:?} {:?}", self.runtime, self.read("out"), self.read("err")),
        );
    }

    pub fn delete(&self) {
        self.ok(&["delete", &self.id]);
        self.assert_gone();
    }

    /// Nothing is left of the container but the bundle.
    pub fn assert_gone(&self) {
        assert!(!self.state_root().join(&self.id).exists(), "its state is left");
        assert_eq!(self.groups(), Vec::<PathBuf>::new(), "control groups are left");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(self.dir.to_str().unwrap()), "mounts are left: {mounts}");
    }

    /// Control groups that carry the container's ID.
    pub fn groups(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        find_groups(Path::new("/sys/fs/cgroup"), &self.id, 4, &mut found);
        found
    }
}

fn find_groups(dir: &Path, id: &str, depth: u32, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if entry.file_name().to_string_lossy().contains(id) {
                found.push(entry.path());
            } else if depth > 0 {
                find_groups(&entry.path(), id, depth - 1, found);
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} wrote: {}", self.id, self.read("err"));
        }
        // A test that failed must not leave its container running.
        let _ = self.run(&["delete", "--force", &self.id]);
        // The orphans are this process's children by now; those of other tests are left to them.
        if let Ok(pid) = self.read("pid").trim().parse::<i32>() {
            wait_pid(pid, libc::WNOHANG);
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

pub fn children(pid: i32) -> Vec<i32> {
    let mut all = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().filter_map(|word| word.parse::<i32>().ok()));
    }
    all
}

/// A network namespace that no container has made, as long as it is not dropped.
pub struct HeldNetwork(Child);

impl HeldNetwork {
    pub fn new() -> Self {
        let held = Self(Command::new("unshare").args(["-n", "sleep", "1000"]).spawn().unwrap());
        let own = fs::read_link("/proc/self/ns/net").unwrap();
        wait_for(|| fs::read_link(held.path()).is_ok_and(|link| link != own), || "no namespace".into());
        held
    }

    pub fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// Namespaces of a container that joins it.
    pub fn namespaces(&self) -> Value {
        namespaces_with_network(&self.path())
    }
}

impl Drop for HeldNetwork {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Namespaces of a container in the network namespace of this path.
pub fn namespaces_with_network(path: &str) -> Value {
    json!([
        {"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network", "path": path},
    ])
}

pub fn wait_for(done: impl Fn() -> bool, what: impl Fn() -> String) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{}", what());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `waitpid`; `None` when there is nothing to tell.
pub fn wait_pid(pid: i32, options: i32) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is live for the call.
    (unsafe { libc::waitpid(pid, &raw mut status, options) } == pid).then_some(status)
}

/// How an orphan that became this process's child ended.
pub fn status_of(pid: i32) -> i32 {
    let start = Instant::now();
    loop {
        if let Some(status) = wait_pid(pid, libc::WNOHANG) {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "process {pid} does not become ours, or does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub fn signal(pid: i32, number: i32) {
    // SAFETY: integers only; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

/// Whether a process is there and not just waiting to be reaped.
pub fn lives(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Whether a process is stopped.
pub fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// None of them lives on.
pub fn assert_ended(pids: &[i32]) {
    wait_for(|| !pids.iter().any(|pid| lives(*pid)), || format!("of {pids:?} some live on"));
}
