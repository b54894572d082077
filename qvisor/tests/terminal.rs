//! The terminal's settings: raw while the sandbox drives it, and always as before afterwards.

use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// A sandbox on a terminal of its own; its kernel is a stand-in that ends with the first signal.
struct OnTerminal {
    front: Child,
    keyboard: File,
    screen: OwnedFd,
    dir: PathBuf,
}

impl OnTerminal {
    fn start(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("dormouse-terminal-{}-{name}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (mut master, mut slave) = (-1, -1);
        let none = std::ptr::null_mut();
        // SAFETY: both numbers are live; the optional arguments are left out.
        let result =
            unsafe { libc::openpty(&raw mut master, &raw mut slave, none, none.cast(), none.cast()) };
        assert_eq!(result, 0);
        // SAFETY: the call just returned these.
        let (keyboard, screen) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let mut command = Command::new(env!("CARGO_BIN_EXE_dormouse"));
        command.args(["do", "--id", name, "sh"]).env("DORMOUSE_FAKE_KERNEL", "1");
        command.env("DORMOUSE_ROOT", dir.join("state")).env("DORMOUSE_LAYERS", dir.join("layers"));
        command.stdin(screen.try_clone().unwrap()).stdout(screen.try_clone().unwrap());
        command.stderr(screen.try_clone().unwrap());
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            })
        };
        let front = command.spawn().unwrap();
        let mut this = Self { front, keyboard, screen, dir };
        assert!(this.is_cooked_soon(false), "the terminal is raw while the sandbox runs");
        let mut text = [0; 64];
        let len = this.keyboard.read(&mut text).unwrap();
        assert!(String::from_utf8_lossy(&text[..len]).contains("mounts"));
        this
    }

    fn is_cooked(&self) -> bool {
        // SAFETY: `termios` is plain integers, and live for the call.
        unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            assert_eq!(libc::tcgetattr(self.screen.as_raw_fd(), &raw mut settings), 0);
            settings.c_lflag & libc::ICANON != 0
        }
    }

    fn is_cooked_soon(&self, cooked: bool) -> bool {
        let start = Instant::now();
        while self.is_cooked() != cooked {
            if start.elapsed() > Duration::from_secs(10) {
                return false;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        true
    }

    fn vmm(&self) -> i32 {
        let pid = self.front.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is_vmm = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "dormouse-vmm")
        };
        children.split_whitespace().filter_map(|word| word.parse().ok()).find(is_vmm).unwrap()
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        let _ = self.front.kill();
        let _ = self.front.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn signal(pid: i32, number: i32) {
    // SAFETY: integers only; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid, number) }, 0);
}

#[test]
fn it_is_restored_at_the_end() {
    let mut sandbox = OnTerminal::start("end");
    signal(sandbox.front.id().cast_signed(), libc::SIGTERM);
    assert_eq!(sandbox.front.wait().unwrap().code(), Some(143));
    assert!(sandbox.is_cooked());
}

#[test]
fn it_is_restored_when_the_vmm_is_killed() {
    let mut sandbox = OnTerminal::start("vmm");
    signal(sandbox.vmm(), libc::SIGKILL);
    assert_eq!(sandbox.front.wait().unwrap().code(), Some(125));
    assert!(sandbox.is_cooked());
}

#[test]
fn it_is_restored_when_the_front_end_is_killed() {
    let mut sandbox = OnTerminal::start("front");
    sandbox.front.kill().unwrap();
    sandbox.front.wait().unwrap();
    assert!(sandbox.is_cooked_soon(true));
}
