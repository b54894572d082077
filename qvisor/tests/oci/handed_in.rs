//! Descriptors beside the standard streams (`--preserve-fds`).

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::world::{World, both, dormouse, status_of};

/// Gives the command these descriptors, from 3 on.
fn hand_in(command: &mut Command, fds: Vec<OwnedFd>) {
    let dup = |from: RawFd, to: RawFd| {
        // SAFETY: integers only.
        if unsafe { libc::dup2(from, to) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    let give = move || {
        // Out of the way first.
        let base = 100;
        (base..).zip(&fds).try_for_each(|(to, fd)| dup(fd.as_raw_fd(), to))?;
        (3..).zip(base..).take(fds.len()).try_for_each(|(to, from)| dup(from, to))?;
        // SAFETY: integers only; the child has no other use of these.
        unsafe { libc::syscall(libc::SYS_close_range, 3 + fds.len(), u32::MAX, 0) };
        Ok(())
    };
    // SAFETY: the closure makes system calls alone.
    unsafe { command.pre_exec(give) };
}

fn end(world: &World) {
    world.ok(&["kill", &world.id, "KILL"]);
    status_of(world.pid());
    world.wait_status("stopped");
    world.delete();
}

/// A file, a pipe's writing end, and a socket; what stays with the test of the last two.
fn some(world: &World) -> (Vec<OwnedFd>, io::PipeReader, UnixStream) {
    let path = world.dir.join("input");
    fs::write(&path, "one\ntwo\n").unwrap();
    let (reader, writer) = io::pipe().unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    (vec![File::open(path).unwrap().into(), writer.into(), theirs.into()], reader, ours)
}

const SCRIPT: &str = "read first <&3; cat <&3; echo to the pipe >&4; echo asks >&5; read line <&5; echo \"$first $line\"; \
                      ls /proc/self/fd | grep -c '^[345]$'; (echo no >&3) 2>/dev/null || echo read only";

#[test]
fn an_execd_process_gets_the_callers_descriptors() {
    both(|world| {
        world.script("sleep 1000").create().start();
        let (fds, mut pipe, socket) = some(world);
        let mut command = world.command(&["exec", "--preserve-fds", "3", &world.id, "sh", "-c", SCRIPT]);
        hand_in(&mut command, fds);
        let answer = std::thread::spawn(move || {
            let mut line = String::new();
            BufReader::new(&socket).read_line(&mut line).unwrap();
            (&socket).write_all(b"answer\n").unwrap();
            line
        });
        let output = command.output().unwrap();
        drop(command);
        assert_eq!(answer.join().unwrap(), "asks\n", "{:?}: {output:?}", world.runtime);
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        assert_eq!(text, "to the pipe\n", "{:?}", world.runtime);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "two\none answer\n3\nread only\n", "{output:?}");
        end(world);
    });
}

#[test]
fn a_first_process_gets_the_callers_descriptors() {
    both(|world| {
        world.script("cat <&3; echo to the pipe >&4; exec 4>&-; cat <&5; echo end").write();
        let (fds, pipe, socket) = some(world);
        let mut command = world.command(&world.with_bundle("run", &["--preserve-fds", "3"]));
        hand_in(&mut command, fds);
        let child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        drop(command);
        let mut reader = BufReader::new(pipe);
        let mut text = String::new();
        reader.read_line(&mut text).unwrap();
        assert_eq!(text, "to the pipe\n", "{:?}", world.runtime);
        if world.is_dormouse() {
            // The command keeps no copy, so a closed descriptor is closed while the container runs.
            assert_eq!(reader.read_to_string(&mut text).unwrap(), 0);
        }
        (&socket).write_all(b"from the socket\n").unwrap();
        drop(socket);
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text, "one\ntwo\nfrom the socket\nend\n", "{:?}: {output:?}", world.runtime);
    });
}

#[test]
fn data_for_such_a_descriptor_wakes_a_container() {
    dormouse(|world| {
        world.script("sleep 1000").create().start();
        let (reader, mut writer) = io::pipe().unwrap();
        let out = world.dir.join("exec-out");
        let script = "read line <&3; echo \"got $line\"";
        let mut command =
            world.command(&["exec", "-d", "--preserve-fds", "1", &world.id, "sh", "-c", script]);
        command.stdout(File::create(&out).unwrap());
        hand_in(&mut command, vec![reader.into()]);
        assert!(command.status().unwrap().success());
        drop(command);
        world.ok(&["hibernate", &world.id]);
        world.wait_state("hibernated");
        writer.write_all(b"news\n").unwrap();
        super::world::wait_for(
            || fs::read_to_string(&out).unwrap() == "got news\n",
            || format!("it is {}", world.sandbox_state()),
        );
        end(world);
    });
}

/// runc hands in a descriptor of its own where the caller has none.
#[test]
fn what_cannot_be_handed_in_is_said() {
    dormouse(|world| {
        world.script("sleep 1000").create().start();
        let id = &*world.id;
        let refused = |args: &[&str], fds: Vec<OwnedFd>, words: &str| {
            let mut command = world.command(args);
            hand_in(&mut command, fds);
            let output = command.output().unwrap();
            let code = if args[0] == "exec" { 255 } else { 1 };
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
            assert!(text.starts_with("dormouse: cannot pass on ") && text.contains(words), "{text}");
            assert_eq!(text.trim().lines().count(), 1, "{text}");
        };
        let null = || vec![File::open("/dev/null").unwrap().into()];
        let listener = UnixListener::bind(world.dir.join("listener")).unwrap();
        let directory = File::open("/").unwrap();
        refused(&["exec", "--preserve-fds", "2", id, "true"], null(), "descriptor 4: ");
        let create = ["create", "--preserve-fds", "2", "--bundle", world.dir.to_str().unwrap(), "other"];
        refused(&create, null(), "descriptor 4: ");
        let one = ["exec", "--preserve-fds", "1", id, "true"];
        refused(&one, vec![listener.into()], "descriptor 3: it is a socket that listens");
        refused(&one, vec![directory.into()], "descriptor 3: it is a directory");
        refused(&["exec", "--preserve-fds", "65", id, "true"], Vec::new(), "at most 64");
        end(world);
    });
}
