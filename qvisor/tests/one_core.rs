//! A sandbox of two processors that gets a part of one core: its threads get on.

mod sleeper;

use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use sleeper::{TestSandbox, guest, platform};

/// Far more than it takes: what is looked for is threads that keep each other from user code, for minutes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Binds the calling thread to the first core that it may use.
fn take_one_core() {
    // SAFETY: the calls read and write the set alone.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &set)).unwrap_or(0);
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
    }
}

fn gets_on(threads: &str) {
    let sandbox = TestSandbox::new();
    let (program, file) = (guest("crowd"), std::env::current_exe().unwrap());
    let of_place = ["do", "--platform", &platform(), "--cpus", "2", "--"];
    let crowd = [program.to_str().unwrap(), file.to_str().unwrap(), threads, "200"];
    let mut command = sandbox.command(&[&of_place[..], &crowd].concat());
    command.stdout(Stdio::piped());
    // SAFETY: two system calls.
    unsafe {
        command.pre_exec(|| {
            take_one_core();
            Ok(())
        })
    };
    let mut front = command.spawn().unwrap();
    let start = Instant::now();
    while front.try_wait().unwrap().is_none() {
        if start.elapsed() > PATIENCE {
            front.kill().unwrap();
        }
        sleep(Duration::from_millis(5));
    }
    let output = front.wait_with_output().unwrap();
    assert!(output.status.success(), "{threads} threads: {} after {:?}", output.status, start.elapsed());
    assert_eq!(output.stdout, b"ok\n");
}

#[test]
fn threads_that_touch_new_pages_get_on_beside_another_program() {
    let done = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            take_one_core();
            while !done.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let tried = scope.spawn(|| ["2", "3"].map(gets_on)).join();
        done.store(true, Ordering::Relaxed);
        tried.expect("they get on");
    });
}
