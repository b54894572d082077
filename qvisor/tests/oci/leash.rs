//! The leash, the process that stands for a container: how others reach the container by it, and how it exits at the
//! end.

use std::time::Duration;

use serde_json::json;

use super::world::{assert_ended, both, dormouse, lives, signal, status_of, wait_for, wait_pid};

#[test]
fn the_subreaper_learns_the_status() {
    // As in any pid namespace the first process is not killed from inside.
    let cases = [
        ("exit 0", 0, 0),
        ("exit 33", 33, 0),
        ("kill -KILL $$; exit 4", 4, 0),
        ("sleep 1000", 0, libc::SIGKILL),
    ];
    for (script, code, term) in cases {
        dormouse(|world| {
            world.script(script).create();
            let (vmm, leash, family) = (world.vmm(), world.pid(), world.family());
            world.start();
            if term != 0 {
                world.ok(&["kill", &world.id, &term.to_string()]);
            }
            let status = status_of(leash);
            if term == 0 {
                assert!(
                    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == code,
                    "{script}: {status:#x}"
                );
            } else {
                assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == term, "{script}: {status:#x}");
            }
            status_of(vmm);
            assert_ended(&family);
            assert_eq!(world.status(), "stopped");
            world.delete();
        });
    }
}

#[test]
fn signals_go_on_to_the_first_process() {
    both(|world| {
        let traps =
            "for s in HUP INT TERM USR1 USR2 WINCH; do trap \"echo got $s\" $s; done; trap 'exit 6' QUIT";
        world.script(&format!("{traps}; echo ready; while :; do sleep 0.02; done")).create().start();
        world.wait_output("ready");
        let signals = [
            ("HUP", libc::SIGHUP),
            ("INT", libc::SIGINT),
            ("TERM", libc::SIGTERM),
            ("USR1", libc::SIGUSR1),
            ("USR2", libc::SIGUSR2),
            ("WINCH", libc::SIGWINCH),
        ];
        for (name, number) in signals {
            signal(world.pid(), number);
            world.wait_output(&format!("got {name}"));
            world.ok(&["kill", &world.id, name]);
            wait_for(
                || world.read("out").matches(&format!("got {name}\n")).count() == 2,
                || format!("{:?} {name}: {}", world.runtime, world.read("out")),
            );
        }
        signal(world.pid(), libc::SIGQUIT);
        assert_eq!(libc::WEXITSTATUS(status_of(world.pid())), 6);
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn killing_any_of_them_ends_all() {
    for started in [false, true] {
        for victim in ["leash", "vmm", "kill", "stub"] {
            dormouse(|world| {
                world.script("echo ready; sleep 1000").create();
                if started {
                    world.start();
                    world.wait_output("ready");
                }
                let (vmm, leash, family) = (world.vmm(), world.pid(), world.family());
                match victim {
                    "leash" => signal(leash, libc::SIGKILL),
                    "vmm" => signal(vmm, libc::SIGKILL),
                    "stub" => {
                        let stubs = family.iter().filter(|pid| **pid != vmm && **pid != leash);
                        stubs.for_each(|pid| {
                            drop(std::process::Command::new("kill").args(["-9", &pid.to_string()]).status())
                        });
                        // A process that sleeps in the sandbox's kernel does not miss the signals; the others end as
                        // before. A program that was still on its way there has ended already.
                        drop(world.command(&["kill", &world.id, "KILL"]).output());
                    }
                    _ => drop(world.ok(&["kill", &world.id, "9"])),
                }
                let status = status_of(leash);
                assert!(libc::WIFSIGNALED(status), "{victim} {started}: {status:#x}");
                assert_eq!(libc::WTERMSIG(status), libc::SIGKILL, "{victim} {started}");
                status_of(vmm);
                assert_ended(&family);
                world.wait_status("stopped");
                world.delete();
            });
        }
    }
}

#[test]
fn the_creator_takes_an_unfinished_container_along() {
    dormouse(|world| {
        let hook = json!({"prestart": [{"path": "/bin/sleep", "args": ["sleep", "1000"], "timeout": 100}]});
        world.set("/hooks", hook).write();
        let mut creator = world.command(&world.with_bundle("create", &[])).spawn().unwrap();
        let record = world.state_root().join(&world.id).join("container.json");
        wait_for(|| record.exists() && world.vmm() > 0, || "no VMM".into());
        let family = world.family();
        // The hook is the creator's child, and outlives it.
        let hooks: Vec<i32> = super::world::children(creator.id().cast_signed());
        creator.kill().unwrap();
        creator.wait().unwrap();
        assert_ended(&family);
        hooks.iter().filter(|pid| !family.contains(pid)).for_each(|pid| signal(*pid, libc::SIGKILL));
        assert_eq!(world.status(), "stopped");
        world.delete();
    });
}

/// How far a counter in the container has got.
fn count(world: &super::world::World) -> usize {
    world.read("out").lines().count()
}

#[test]
fn stopping_the_leash_hibernates_the_container() {
    dormouse(|world| {
        world.script("while :; do echo x; sleep 0.005; done").create().start();
        let stop = |by_command: bool, number: i32, name: &str| {
            if by_command { drop(world.ok(&["kill", &world.id, name])) } else { signal(world.pid(), number) }
        };
        for by_command in [false, true, false] {
            wait_for(|| count(world) > 3, || "it does not run".into());
            stop(by_command, libc::SIGSTOP, "STOP");
            world.wait_state("hibernated");
            let before = count(world);
            std::thread::sleep(Duration::from_millis(150));
            assert_eq!(count(world), before, "it runs although it is hibernated");
            stop(by_command, libc::SIGCONT, "CONT");
            world.wait_awake();
            wait_for(|| count(world) > before, || "it does not go on".into());
        }
        // The last request wins.
        for _ in 0..50 {
            signal(world.pid(), libc::SIGSTOP);
            signal(world.pid(), libc::SIGCONT);
        }
        world.wait_awake();
        for _ in 0..50 {
            signal(world.pid(), libc::SIGCONT);
            signal(world.pid(), libc::SIGSTOP);
        }
        world.wait_state("hibernated");
        // It can be ended as it is, and its status arrives.
        let family = world.family();
        world.ok(&["kill", &world.id, "KILL"]);
        assert_eq!(libc::WTERMSIG(status_of(world.pid())), libc::SIGKILL);
        assert_ended(&family);
        world.delete();
    });
}

#[test]
fn a_busy_program_is_hibernated_where_it_is() {
    dormouse(|world| {
        world.script("while :; do :; done").create().start();
        let ticks = |pid: i32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
            let field =
                |at: usize| fields.split_whitespace().nth(at).and_then(|word| word.parse::<u64>().ok());
            field(11).unwrap_or(0) + field(12).unwrap_or(0)
        };
        let used = |world: &super::world::World| world.family().into_iter().map(ticks).sum::<u64>();
        wait_for(|| used(world) > 20, || "it does not run".into());
        signal(world.pid(), libc::SIGSTOP);
        world.wait_state("hibernated");
        let before = used(world);
        std::thread::sleep(Duration::from_millis(400));
        assert!(used(world) <= before + 3, "it used {} ticks while hibernated", used(world) - before);
        signal(world.pid(), libc::SIGCONT);
        wait_for(|| used(world) > before + 10, || "it does not go on".into());
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn it_is_small_and_where_the_container_is() {
    dormouse(|world| {
        world.script("sleep 1000").create().start();
        let leash = world.pid();
        let link = |pid: i32, name: &str| std::fs::read_link(format!("/proc/{pid}/ns/{name}")).unwrap();
        assert_eq!(link(leash, "net"), link(world.vmm(), "net"));
        assert_ne!(link(leash, "net"), std::fs::read_link("/proc/self/ns/net").unwrap());
        let status = std::fs::read_to_string(format!("/proc/{leash}/status")).unwrap();
        let field = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        assert_eq!(field("CapEff:"), "0000000000000000");
        assert_eq!(field("NoNewPrivs:"), "1");
        assert!(field("RssAnon:").parse::<u64>().unwrap() < 1024, "{status}");
        let fds = std::fs::read_dir(format!("/proc/{leash}/fd")).unwrap().count();
        // Three streams that lead nowhere, the socket, its signals, the FIFO of companions.
        assert!(fds <= 6, "{fds} descriptors");
        let groups = std::fs::read_to_string(format!("/proc/{leash}/cgroup")).unwrap();
        assert!(groups.contains(&world.id), "{groups}");
        // It is out of the host's tree.
        assert_eq!(std::fs::read_dir(format!("/proc/{leash}/root")).unwrap().count(), 0);
        assert!(lives(leash) && wait_pid(leash, libc::WNOHANG).is_none());
        world.ok(&["delete", "--force", &world.id]);
    });
}

#[test]
fn the_first_process_gets_only_signals_it_handles() {
    both(|world| {
        // Neither from inside nor from outside, until there is a handler.
        world.script(
            "kill -TERM $$; kill -HUP $$; kill -KILL $$; kill -STOP $$; echo alive; sleep 0.3; \
             trap 'echo handled; exit 8' TERM; echo ready; while :; do sleep 0.02; done",
        );
        world.create().start();
        world.wait_output("alive");
        signal(world.pid(), libc::SIGUSR1);
        world.ok(&["kill", &world.id, "HUP"]);
        world.wait_output("ready");
        signal(world.pid(), libc::SIGTERM);
        assert_eq!(libc::WEXITSTATUS(status_of(world.pid())), 8, "{:?}", world.runtime);
        world.wait_status("stopped");
        world.delete();
    });
}
