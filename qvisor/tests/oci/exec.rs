//! `exec` in a container: a further process, as runc does it.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::{Output, Stdio};

use serde_json::{Value, json};

use super::world::{
    PATIENCE, Runtime, World, both, dormouse, is_stopped, lives, signal, status_of, wait_for, wait_pid,
};

/// A container that waits for `SIGTERM`.
fn waiting(world: &mut World) -> &mut World {
    world.script("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done").create().start();
    world.wait_output("ready");
    world
}

fn exec(world: &World, options: &[&str], command: &[&str]) -> Output {
    world.run(&[&["exec"], options, &[&*world.id], command].concat())
}

fn said(world: &World, options: &[&str], script: &str) -> String {
    let output = exec(world, options, &["sh", "-c", script]);
    assert!(output.status.success(), "{:?} {script}: {output:?}", world.runtime);
    String::from_utf8(output.stdout).unwrap()
}

/// Leaves it to its leash, or runc's to its first process; result: that process.
fn detached(world: &World, options: &[&str], command: &[&str]) -> i32 {
    let pid_file = world.dir.join("exec-pid");
    let fixed = ["exec", "--detach", "--pid-file", pid_file.to_str().unwrap()];
    let mut all = world.command(&[&fixed, options, &[&*world.id], command].concat());
    all.stdout(File::create(world.dir.join("exec-out")).unwrap()).stderr(Stdio::null());
    assert!(all.status().unwrap().success(), "{:?}", world.runtime);
    fs::read_to_string(pid_file).unwrap().parse().unwrap()
}

fn end(world: &World) {
    world.ok(&["kill", &world.id, "TERM"]);
    status_of(world.pid());
    world.wait_status("stopped");
    world.delete();
}

#[test]
fn it_runs_as_the_first_process_but_for_what_is_asked() {
    both(|world| {
        world.set("/process/env", json!(["PATH=/bin", "A=1", "B=2"])).set("/process/cwd", json!("/bin"));
        world.set("/process/user", json!({"uid": 3, "gid": 4, "additionalGids": [5]}));
        waiting(world);
        assert_eq!(said(world, &[], "echo $A $B; pwd; id -u; id -g; id -G"), "1 2\n/bin\n3\n4\n4 5\n");
        let options = ["-e", "B=3", "-e", "C=4", "--cwd", "/", "--user", "6:7", "--additional-gids", "8"];
        assert_eq!(
            said(world, &options, "echo $A $B $C; pwd; id -u; id -g; id -G"),
            "1 3 4\n/\n6\n7\n7 5 8\n"
        );
        assert_eq!(said(world, &["-u", "6"], "id -u; id -g"), "6\n4\n");
        assert_eq!(exec(world, &[], &["sh", "-c", "exit 9"]).status.code(), Some(9));
        assert_eq!(exec(world, &[], &["sh", "-c", "kill -TERM $$"]).status.code(), Some(143));
        assert_eq!(said(world, &[], "ps -o pid,args | grep -c '^ *1 sh -c trap'"), "1\n");
        end(world);
    });
}

#[test]
fn capabilities_are_the_first_processes_and_those_asked_for() {
    both(|world| {
        waiting(world);
        let sets = |options: &[&str]| -> Vec<u64> {
            let text = said(world, options, "grep ^Cap /proc/self/status");
            let hex = text.lines().filter_map(|line| line.split('\t').nth(1));
            hex.map(|hex| u64::from_str_radix(hex, 16).unwrap()).collect()
        };
        // Inheritable, permitted, effective, bounding, ambient: AUDIT_WRITE, KILL, NET_BIND_SERVICE.
        let first = 1 << 29 | 1 << 5 | 1 << 10;
        assert_eq!(sets(&[])[1..4], [first; 3]);
        assert_eq!(sets(&["-c", "CAP_NET_RAW", "-c", "CAP_CHOWN"])[1..4], [first | 1 << 13 | 1; 3]);
        assert_eq!(sets(&["--user", "9"])[1..3], [0, 0]);
        assert!(said(world, &[], "grep NoNewPrivs /proc/self/status").contains('1'));
        end(world);
    });
}

#[test]
fn its_leash_ends_as_it_does() {
    both(|world| {
        waiting(world);
        assert_eq!(
            libc::WEXITSTATUS(status_of(detached(world, &[], &["sh", "-c", "sleep 0.1; exit 33"]))),
            33
        );
        let leash = detached(world, &[], &["sleep", "1000"]);
        signal(leash, libc::SIGTERM);
        assert_eq!(libc::WTERMSIG(status_of(leash)), libc::SIGTERM);
        let leash =
            detached(world, &[], &["sh", "-c", "trap 'exit 4' USR1; echo up; while :; do sleep 0.02; done"]);
        wait_for(|| world.read("exec-out") == "up\n", || "it does not begin".into());
        signal(leash, libc::SIGUSR1);
        assert_eq!(libc::WEXITSTATUS(status_of(leash)), 4);
        // The container's end is its own.
        let leash = detached(world, &[], &["sleep", "1000"]);
        world.ok(&["kill", &world.id, "TERM"]);
        assert_eq!(libc::WTERMSIG(status_of(leash)), libc::SIGKILL);
        status_of(world.pid());
        world.wait_status("stopped");
        world.delete();
    });
}

/// Engines forget the others with the first process.
#[test]
fn the_container_ends_after_those_that_joined_it() {
    both(|world| {
        for how in ["an order", "its leash", "its VMM"] {
            if world.runtime == Runtime::Runc && how == "its VMM" {
                continue;
            }
            waiting(world);
            let joined = [0; 3].map(|_| detached(world, &[], &["sleep", "1000"]));
            let leash = world.pid();
            // One that does not see the end for now.
            signal(joined[1], libc::SIGSTOP);
            wait_for(|| is_stopped(joined[1]), || "it goes on".into());
            match how {
                "an order" => drop(world.ok(&["kill", &world.id, "KILL"])),
                "its leash" => signal(leash, libc::SIGKILL),
                _ => signal(world.vmm(), libc::SIGKILL),
            }
            std::thread::sleep(std::time::Duration::from_millis(200));
            assert_eq!(wait_pid(leash, libc::WNOHANG), None, "{how}: it ended before one that joined it");
            signal(joined[1], libc::SIGCONT);
            if world.runtime == Runtime::Dormouse {
                assert_eq!(libc::WTERMSIG(status_of(leash)), libc::SIGKILL, "{how}");
            }
            for pid in joined {
                // runc's first process waits even for those to be waited for.
                let how_it_ended = match world.runtime {
                    Runtime::Runc => status_of(pid),
                    Runtime::Dormouse => {
                        status_of_one_that_ends(pid).unwrap_or_else(|| panic!("{how}: {pid} lives"))
                    }
                };
                assert_eq!(libc::WTERMSIG(how_it_ended), libc::SIGKILL, "{how}");
            }
            if world.runtime == Runtime::Runc {
                assert_eq!(libc::WTERMSIG(status_of(leash)), libc::SIGKILL, "{how}");
            }
            world.wait_status("stopped");
            world.delete();
        }
    });
}

/// The status of a process of which the host has closed all files by now; `None`: it lives. Between that and its end it may take the host a
/// moment.
fn status_of_one_that_ends(pid: i32) -> Option<i32> {
    const PF_EXITING: u32 = 4;
    loop {
        // Read first: once it has been waited for there is no such process.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        if let Some(status) = wait_pid(pid, libc::WNOHANG) {
            return Some(status);
        }
        let flags = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(6).unwrap();
        if flags.parse::<u32>().unwrap() & PF_EXITING == 0 {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

#[test]
fn a_further_container_ends_after_those_that_joined_it() {
    dormouse(|first| {
        first.begin_pod().create().start();
        for how in ["an order", "its leash", "its keeper"] {
            let further = first.further("exec sleep 1000");
            further.create().start();
            let joined = detached(&further, &[], &["sleep", "1000"]);
            let leash = further.pid();
            match how {
                "an order" => drop(further.ok(&["kill", &further.id, "KILL"])),
                "its leash" => signal(leash, libc::SIGKILL),
                _ => signal(further.vmm(), libc::SIGKILL),
            }
            assert_eq!(libc::WTERMSIG(status_of(leash)), libc::SIGKILL, "{how}");
            let status = status_of_one_that_ends(joined).unwrap_or_else(|| panic!("{how}: {joined} lives"));
            assert_eq!(libc::WTERMSIG(status), libc::SIGKILL, "{how}");
            further.wait_status("stopped");
            further.delete();
        }
    });
}

#[test]
fn its_leash_lies_where_the_container_does() {
    dormouse(|world| {
        waiting(world);
        let leash = detached(world, &[], &["sleep", "1000"]);
        let place = |pid: i32, what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).unwrap();
        let network = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_eq!(place(leash, "cgroup"), place(world.pid(), "cgroup"));
        assert_eq!(network(leash), network(world.pid()));
        assert_ne!(network(leash), network(i32::try_from(std::process::id()).unwrap()));
        assert!(place(leash, "status").contains("CapEff:\t0000000000000000\n"));
        signal(leash, libc::SIGKILL);
        status_of(leash);
        wait_for(|| !said(world, &[], "ps").contains("sleep 1000"), || "it goes on".into());
        end(world);
    });
}

#[test]
fn a_process_comes_from_a_file_as_shims_have_it() {
    both(|world| {
        waiting(world);
        let file = world.dir.join("process.json");
        let mut process: Value = world.config["process"].clone();
        process["args"] = json!(["sh", "-c", "pwd; echo $X; id -u; exit 5"]);
        process["env"] = json!(["PATH=/bin", "X=y"]);
        process["cwd"] = json!("/bin");
        process["user"] = json!({"uid": 2, "gid": 2});
        fs::write(&file, process.to_string()).unwrap();
        let output = exec(world, &["--process", file.to_str().unwrap()], &[]);
        assert_eq!(output.status.code(), Some(5), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "/bin\ny\n2\n");
        let leash = detached(world, &["--process", file.to_str().unwrap()], &[]);
        assert_eq!(libc::WEXITSTATUS(status_of(leash)), 5);
        end(world);
    });
}

/// Takes the descriptor that comes over the console socket.
pub fn receive_console(listener: &UnixListener) -> File {
    let (socket, _) = listener.accept().unwrap();
    let mut ancillary = [0_u64; 4];
    let mut name = [0_u8; 64];
    let mut iov = libc::iovec { iov_base: name.as_mut_ptr().cast(), iov_len: name.len() };
    // SAFETY: all zeros is a valid header; every pointer is to a live value.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut iov, 1);
        (message.msg_control, message.msg_controllen) =
            (ancillary.as_mut_ptr().cast(), size_of_val(&ancillary));
        assert!(libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) > 0);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        assert!(!header.is_null());
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned()).into()
    }
}

#[test]
fn its_terminal_goes_to_the_console_socket() {
    both(|world| {
        waiting(world);
        let socket = world.dir.join("console.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let script = "trap 'echo now $(stty size)' WINCH; tty; echo up; while :; do sleep 0.05; done";
        let taker = std::thread::spawn(move || receive_console(&listener));
        let options = ["-t", "--console-socket", socket.to_str().unwrap()];
        let leash = detached(world, &options, &["sh", "-c", script]);
        let mut console = taker.join().unwrap();
        let mut shown = String::new();
        let mut shows = |console: &mut File, text: &str| {
            let start = std::time::Instant::now();
            while !shown.contains(text) {
                assert!(start.elapsed() < PATIENCE, "{text:?} is missing in {shown:?}");
                let mut poll = libc::pollfd { fd: console.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one live structure.
                if unsafe { libc::poll(&raw mut poll, 1, 100) } == 1 {
                    let mut bytes = [0; 512];
                    let got = console.read(&mut bytes).unwrap();
                    shown += &String::from_utf8_lossy(&bytes[..got]);
                }
            }
        };
        shows(&mut console, "/dev/pts/0\r\nup\r\n");
        let size = libc::winsize { ws_row: 20, ws_col: 50, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the size is live.
        assert_eq!(unsafe { libc::ioctl(console.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) }, 0);
        shows(&mut console, "now 20 50\r\n");
        console.write_all(b"\x03").unwrap();
        assert_eq!(libc::WTERMSIG(status_of(leash)), libc::SIGINT);
        end(world);
    });
}

#[test]
fn all_that_it_wrote_to_its_terminal_arrives() {
    both(|world| {
        waiting(world);
        let socket = world.dir.join("console.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let taker = std::thread::spawn(move || {
            let mut console = receive_console(&listener);
            // Until long after the program could have ended.
            std::thread::sleep(std::time::Duration::from_millis(500));
            let (mut shown, mut bytes) = (Vec::new(), [0; 512]);
            // The end of a terminal is an error.
            while let Ok(got @ 1..) = console.read(&mut bytes) {
                shown.extend(bytes.iter().take(got));
            }
            String::from_utf8(shown).unwrap()
        });
        let options = ["-t", "--console-socket", socket.to_str().unwrap()];
        let leash = detached(world, &options, &["seq", "1", "20000"]);
        let shown = taker.join().unwrap();
        assert_eq!(libc::WEXITSTATUS(status_of(leash)), 0);
        let expected: String = (1..=20_000).map(|number| format!("{number}\r\n")).collect();
        assert_eq!(shown.len(), expected.len(), "{:?}", world.runtime);
        assert!(shown == expected);
        end(world);
    });
}

#[test]
fn one_that_is_hibernated_wakes_and_one_that_is_not_there_is_refused() {
    dormouse(|world| {
        world.script("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done").create();
        world.refused(&["exec", &world.id, "true"], &["does not run yet", "start it first"]);
        world.start();
        world.wait_output("ready");
        world.ok(&["kill", &world.id, "STOP"]);
        world.wait_state("hibernated");
        assert_eq!(said(world, &[], "echo awake"), "awake\n");
        assert!(!is_stopped(world.pid()));
        let leash = detached(
            world,
            &[],
            &["sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 1000 & wait; done"],
        );
        wait_for(|| world.read("exec-out") == "up\n", || "it does not begin".into());
        signal(world.pid(), libc::SIGSTOP);
        world.wait_state("hibernated");
        signal(leash, libc::SIGTERM);
        assert_eq!(libc::WEXITSTATUS(status_of(leash)), 7);
        world.wait_awake();
        let pid = world.pid();
        world.ok(&["kill", &world.id, "KILL"]);
        status_of(pid);
        wait_for(|| !lives(pid), || "it lives".into());
        world.refused(&["exec", &world.id, "true"], &["cannot exec in a stopped container"]);
        world.delete();
    });
}
