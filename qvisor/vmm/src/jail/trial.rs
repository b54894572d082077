//! A VMM that has been taken over, for `tests/security.rs`: debug builds run the attempt that the environment names
//! once the jail is closed, with everything the VMM has, and print its result.

use std::ffi::CString;
use std::io;

/// Runs the attempt in `DORMOUSE_TEST_VMM_HOOK`, if there is one: its name and an argument, with `:` between.
pub fn run() {
    let Ok(asked) = std::env::var("DORMOUSE_TEST_VMM_HOOK") else { return };
    let (name, argument) = asked.split_once(':').unwrap_or((&asked, ""));
    let text = CString::new(argument).unwrap_or_default();
    let number = argument.parse::<i64>().unwrap_or(0);
    let at = text.as_ptr() as i64;
    let here = i64::from(libc::AT_FDCWD);
    let read = i64::from(libc::O_RDONLY);
    let result = match name {
        "open" => call(libc::SYS_openat, [here, at, read, 0, 0]),
        // From every descriptor, as an attacker who looks for a way out would.
        "open-below" => (0..64).map(|fd| call(libc::SYS_openat, [fd, at, read, 0, 0])).max().unwrap_or(-1),
        "chmod-program" => {
            (0..64).map(|fd| call(libc::SYS_fchmodat, [fd, at, 0o755, 0, 0])).max().unwrap_or(-1)
        }
        "signal" => call(libc::SYS_tgkill, [number, number, i64::from(libc::SIGUSR1), 0, 0]),
        "signal-pidfd" => match call(libc::SYS_pidfd_open, [number, 0, 0, 0, 0]) {
            fd @ 0.. => call(libc::SYS_pidfd_send_signal, [fd, i64::from(libc::SIGKILL), 0, 0, 0]),
            error => error,
        },
        "kill" => call(libc::SYS_kill, [number, i64::from(libc::SIGKILL), 0, 0, 0]),
        "ptrace" => call(libc::SYS_ptrace, [16, number, 0, 0, 0]),
        "mount" => call(libc::SYS_mount, [at, at, at, 0, 0]),
        "unshare" => call(libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER), 0, 0, 0, 0]),
        "module" => call(libc::SYS_init_module, [at, 0, at, 0, 0]),
        "execute" => call(libc::SYS_execve, [at, 0, 0, 0, 0]),
        "fork" => call(libc::SYS_clone, [i64::from(libc::SIGCHLD), 0, 0, 0, 0]),
        "unix-socket" => call(libc::SYS_socket, [i64::from(libc::AF_UNIX), 1, 0, 0, 0]),
        "raw-socket" => call(libc::SYS_socket, [i64::from(libc::AF_INET), 3, 1, 0, 0]),
        "executable" => call(libc::SYS_mmap, [0, 4096, 7, 0x22, -1]),
        "i386" => i386(20),
        // Any call: its number and arguments.
        "call" => {
            let mut numbers = argument.split(',').map(|word| word.parse::<i64>().unwrap_or(0));
            let number = numbers.next().unwrap_or(-1);
            call(number, std::array::from_fn(|_| numbers.next().unwrap_or(0)))
        }
        "continue" => match call(libc::SYS_pidfd_open, [number, 0, 0, 0, 0]) {
            fd @ 0.. => call(libc::SYS_pidfd_send_signal, [fd, i64::from(libc::SIGCONT), 0, 0, 0]),
            error => error,
        },
        // A descriptor's name in the working directory, which is /proc/self/fd.
        "reopen" => call(libc::SYS_openat, [here, at, i64::from(libc::O_WRONLY), 0, 0]),
        "x32" => call(0x4000_0000 + libc::SYS_getpid, [0; 5]),
        _ => -i64::from(libc::ENOSYS),
    };
    let word = match i32::try_from(-result) {
        Ok(errno @ 1..) => format!("refused: {}", io::Error::from_raw_os_error(errno)),
        _ => format!("succeeded: {result:#x}"),
    };
    let _ = io::Write::write_all(&mut io::stderr(), format!("attempt {name}: {word}\n").as_bytes());
}

fn call(number: i64, [a, b, c, d, e]: [i64; 5]) -> i64 {
    // SAFETY: an attempt of a test, whose strings and numbers are live; the jail prevents it from doing more than it
    // may.
    let result = unsafe { libc::syscall(number, a, b, c, d, e) };
    if result < 0 {
        -i64::from(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    } else {
        result
    }
}

/// A system call by the 32-bit entry.
fn i386(number: i64) -> i64 {
    let result: i64;
    // SAFETY: the entry keeps every register but the result and r8 to r11.
    unsafe {
        std::arch::asm!(
            "int 0x80",
            inlateout("rax") number => result,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    result
}
