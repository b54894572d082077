//! Attempts of other users of the host on a sandbox's directories and sockets, remains that a guest could leave behind,
//! and hosts whose mounts are not as usual. Most of it needs root, which can be other users and make mounts.

mod test_dir;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use test_dir::TestDir;

/// Another user.
const STRANGER: u32 = 1234;

fn directory(test_dir: &TestDir, name: &str, mode: u32) -> PathBuf {
    let path = test_dir.directory(name);
    set_mode(&path, mode);
    path
}

/// Starts `dormouse do`, and waits for the first line of the program in it.
fn start(command: &mut Command) -> Running {
    let mut front = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(front.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "it does not run");
    Running(front)
}

/// A sandbox called `s` whose kernel is a stand-in that ends with the first signal.
fn stand_in(test_dir: &TestDir) -> Running {
    start(test_dir.sandbox(&["--id", "s", "--", "true"]).env("DORMOUSE_FAKE_KERNEL", "1"))
}

/// The files that are left of sandboxes.
fn left(test_dir: &TestDir) -> Vec<PathBuf> {
    let entries = ["state", "layers"].map(|root| fs::read_dir(test_dir.join(root)).unwrap());
    let paths = entries.into_iter().flatten().map(|entry| entry.unwrap().path());
    paths.filter(|path| !path.ends_with(".lock")).collect()
}

/// The front end of a sandbox; killed at the end.
struct Running(Child);

impl Running {
    fn child(&self, name: &str) -> i32 {
        let front = self.0.id();
        let start = Instant::now();
        loop {
            let children = fs::read_to_string(format!("/proc/{front}/task/{front}/children")).unwrap();
            let is_it = |pid: &&str| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
            };
            if let Some(pid) = children.split_whitespace().find(is_it) {
                return pid.parse().unwrap();
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{name} does not run");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills it so that no process cleans up.
    fn kill_without_a_trace(mut self) {
        let (watcher, vmm) = (self.child("dormouse-watch"), self.child("dormouse-vmm"));
        signal(watcher, libc::SIGSTOP);
        self.0.kill().unwrap();
        self.0.wait().unwrap();
        signal(watcher, libc::SIGKILL);
        for pid in [watcher, vmm] {
            let start = Instant::now();
            while fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|comm| comm.starts_with("dormouse"))
            {
                assert!(start.elapsed() < Duration::from_secs(20), "{pid} lives on");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn signal(pid: i32, number: i32) {
    // SAFETY: integers only; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

fn is_root() -> bool {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Does something as another user, in a thread that keeps no other id.
fn as_user<T: Send>(user: u32, run: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: integers only; the system call itself is for this thread alone.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) }, 0);
            run()
        });
        thread.join().unwrap()
    })
}

/// One sentence on standard error, and the exit code of a failure: 125 of `do`, 255 of `exec`, 1 of the others.
fn assert_refused(output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(1 | 125 | 255)), "{text}");
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not all in: {text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
}

/// The bytes that a listener has received, without waiting.
fn heard(listener: &UnixListener) -> Vec<u8> {
    listener.set_nonblocking(true).unwrap();
    let mut all = Vec::new();
    while let Ok((mut stream, _)) = listener.accept() {
        stream.set_nonblocking(false).unwrap();
        stream.read_to_end(&mut all).unwrap();
    }
    all
}

#[test]
fn directories_that_others_made_are_refused() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let (theirs, open) = (directory(&test_dir, "theirs", 0o700), directory(&test_dir, "open", 0o1777));
    let link = test_dir.join("link");
    symlink(directory(&test_dir, "own", 0o700), &link).unwrap();
    let sandbox = directory(&test_dir, "theirs/s", 0o755);
    let listener = UnixListener::bind(sandbox.join("control.sock")).unwrap();
    chown(&theirs, Some(STRANGER), None).unwrap();
    let commands: &[&[&str]] =
        &[&["list"], &["state", "s"], &["kill", "s"], &["exec", "s", "true"], &["do", "--", "true"]];
    for (dir, why) in [
        (&theirs, "it belongs to user 1234"),
        (&open, "others than its owner may write it"),
        (&link, "symbolic link"),
    ] {
        for args in commands {
            let output = test_dir.command(args).env("DORMOUSE_ROOT", dir).output().unwrap();
            assert_refused(&output, &["cannot use directory", why, "--root"]);
        }
        let output = test_dir.command(&["do", "--", "true"]).env("DORMOUSE_LAYERS", dir).output().unwrap();
        assert_refused(&output, &["cannot use directory", why, "DORMOUSE_LAYERS"]);
    }
    assert_eq!(heard(&listener), b"");
    // Nor is one below a root that is fine.
    chown(&theirs, Some(0), None).unwrap();
    chown(&sandbox, Some(STRANGER), None).unwrap();
    let output = test_dir.command(&["exec", "s", "true"]).env("DORMOUSE_ROOT", &theirs).output().unwrap();
    assert_refused(&output, &["theirs/s", "it belongs to user 1234"]);
    assert_eq!(heard(&listener), b"");
}

#[test]
fn a_lock_that_somebody_made_is_not_opened() {
    let test_dir = TestDir::new();
    for root in ["state", "layers"] {
        let dir = directory(&test_dir, root, 0o700);
        symlink(test_dir.join("made"), dir.join(".lock")).unwrap();
        assert_refused(&test_dir.run(&["do", "--", "true"]), &["cannot use directory", "symbolic link"]);
        assert!(!test_dir.join("made").exists());
        fs::remove_file(dir.join(".lock")).unwrap();
        assert!(Command::new("mkfifo").arg(dir.join(".lock")).status().unwrap().success());
        assert_refused(&test_dir.run(&["do", "--", "true"]), &["cannot use directory", "no regular file"]);
        fs::remove_file(dir.join(".lock")).unwrap();
    }
    assert_eq!(left(&test_dir), Vec::<PathBuf>::new());
}

#[test]
fn a_control_socket_of_another_user_hears_nothing() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let running = stand_in(&test_dir);
    let sandbox = test_dir.join("state/s");
    fs::remove_file(sandbox.join("control.sock")).unwrap();
    let dirs = [test_dir.join("state"), sandbox.clone()];
    dirs.iter().for_each(|dir| set_mode(dir, 0o777));
    let listener = as_user(STRANGER, || UnixListener::bind(sandbox.join("control.sock"))).unwrap();
    dirs.iter().for_each(|dir| set_mode(dir, 0o700));
    for args in [&["exec", "s", "cat"][..], &["kill", "s"], &["stats", "s"], &["hibernate", "s"]] {
        assert_refused(&test_dir.run(args), &["its control socket is user 1234's"]);
    }
    assert_eq!(heard(&listener), b"");
    drop(running);
}

#[test]
fn a_sandbox_takes_orders_from_its_owner_alone() {
    if !is_root() {
        return;
    }
    for userns in ["auto", "identity", "host"] {
        let test_dir = TestDir::new();
        let mut command = test_dir.command(&["do", "--id", "s", "--userns", userns, "--", "true"]);
        let _running = start(command.env("DORMOUSE_FAKE_KERNEL", "1"));
        // A user has opened the directory, which is closed by default.
        let socket = test_dir.join("state/s/control.sock");
        [test_dir.join("state"), test_dir.join("state/s")].iter().for_each(|dir| set_mode(dir, 0o755));
        set_mode(&socket, 0o777);
        for user in [65534, STRANGER, 1 << 30] {
            let answer = as_user(user, || {
                let mut stream = UnixStream::connect(&socket).unwrap();
                // It may have been refused already.
                let _ = stream.write_all(b"{\"op\":\"kill\",\"signal\":9}\n");
                let mut answer = String::new();
                let _ = stream.read_to_string(&mut answer);
                answer
            });
            assert!(answer.is_empty() || answer.contains("permission denied"), "{userns}, {user}: {answer}");
        }
        let state = test_dir.run(&["state", "s"]);
        assert_eq!(state.status.code(), Some(0), "{userns}: {}", String::from_utf8_lossy(&state.stderr));
        assert_eq!(test_dir.run(&["kill", "s", "TERM"]).status.code(), Some(0), "{userns}");
    }
}

/// Makes files that are hard to remove, says so, and sleeps if `$1` says so.
const HARD: &str = "
import os, sys, time
os.chdir('/tmp')
for wide in range(3):
    for name in range(100):
        os.makedirs('wide%d/%d' % (wide, name))
        open('wide%d/%d/file' % (wide, name), 'w').close()
os.mkfifo('fifo')
os.symlink('/etc', 'link')
os.makedirs('odd/inner')
open('odd/inner/file', 'w').close()
for path, mode in (('odd/inner/file', 0), ('odd/inner', 0), ('odd', 0o111)):
    os.chmod(path, mode)
for depth in range(3000):
    os.mkdir('x' * 200)
    os.chdir('x' * 200)
open('end', 'w').close()
print('made', flush=True)
time.sleep(int(sys.argv[1]))
";

#[test]
fn nothing_is_left_of_what_a_guest_made() {
    let test_dir = TestDir::new();
    // With as few descriptors as a user usually has.
    let guest = |sleep| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -Sn 1024; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_dormouse")]);
        command
            .args(["do", "--platform", "systrap", "--", "python3", "-c", HARD, sleep])
            .stdin(Stdio::null());
        test_dir.set_roots(&mut command);
        command
    };
    let output = guest("0").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""));
    assert_eq!(left(&test_dir), Vec::<PathBuf>::new());
    // The next start removes what no process could.
    start(&mut guest("1000")).kill_without_a_trace();
    assert_eq!(left(&test_dir).len(), 2);
    let output = test_dir.run(&["do", "--platform", "systrap", "--", "true"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""));
    assert_eq!(left(&test_dir), Vec::<PathBuf>::new());
}

/// Runs a script in a mount namespace of its own; `$1` is the test's directory, `$2` the program.
fn in_mounts(test_dir: &TestDir, script: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "sh", "-e", "-c", script, "sh"]);
    command.arg(test_dir.path()).arg(env!("CARGO_BIN_EXE_dormouse")).stdin(Stdio::null());
    test_dir.set_roots(&mut command);
    command.output().unwrap()
}

#[test]
fn a_host_whose_root_is_shared_keeps_no_mount() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let script = "mount --make-rshared /
        before=$(wc -l < /proc/self/mountinfo)
        $2 do --platform systrap -- true
        $2 do --platform systrap --userns identity -- true
        test $before = $(wc -l < /proc/self/mountinfo)";
    let output = in_mounts(&test_dir, script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), &*errors), (Some(0), ""));
    assert_eq!(left(&test_dir), Vec::<PathBuf>::new());
}

#[test]
fn a_chroot_that_is_no_mount_point_is_left() {
    if !is_root() {
        return;
    }
    let test_dir = TestDir::new();
    let script = "mkdir $1/root && cd $1/root && mkdir proc dev tmp state layers
        for dir in bin etc lib lib64 sbin usr; do
            if test -L /$dir; then cp -P /$dir $dir
            elif test -d /$dir; then mkdir $dir && mount --bind /$dir $dir; fi
        done
        mount --rbind /dev dev && mount -t proc none proc
        cp $2 dormouse && chmod 755 dormouse && chmod 700 state layers
        export DORMOUSE_ROOT=/state DORMOUSE_LAYERS=/layers
        for userns in auto mapped identity; do
            chroot . /dormouse do --platform systrap --userns $userns -- sh -c 'echo x > /tmp/x && echo inside'
        done
        test ! -e tmp/x && test -z \"$(ls layers)$(ls state)\"";
    let output = in_mounts(&test_dir, script);
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!((output.status.code(), &*out, &*errors), (Some(0), "inside\ninside\ninside\n", ""));
}
