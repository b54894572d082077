//! `linux.seccomp`: profiles of bundles filter what runs in the container, as with runc.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};

use super::world::{World, both, dormouse, status_of};

/// A profile in the shape of Docker's: what ordinary programs use is allowed, some calls by their arguments only, and the
/// rest fails.
fn like_dockers() -> Value {
    let allowed = include_str!("seccomp_allowed.txt");
    let names: Vec<&str> =
        allowed.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace).collect();
    let personality = |value: u64| {
        json!({"names": ["personality"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}]})
    };
    let mut rules = vec![
        json!({"names": names, "action": "SCMP_ACT_ALLOW"}),
        json!({"names": ["socket"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": 40, "op": "SCMP_CMP_NE"}]}),
        json!({"names": ["clone"], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": 0, "value": 0x7e02_0000, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]}),
        json!({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}),
    ];
    rules.extend([0, 8, 0x2_0000, 0x2_0008, 0xffff_ffff].map(personality));
    json!({"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"], "syscalls": rules})
}

/// Everything is allowed but this.
fn but(rule: &Value) -> Value {
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [rule]})
}

fn refuse(name: &str, action: &str) -> Value {
    but(&json!({"names": [name], "action": action}))
}

/// Output and exit code under a profile.
fn under(world: &mut World, profile: &Value, script: &str) -> (Option<i32>, String) {
    world.set("/linux/seccomp", profile.clone()).script(script);
    let (code, out, _) = world.run_container();
    (code, out)
}

#[test]
fn calls_fail_as_the_profile_says() {
    both(|world| {
        let script = "mkdir /x && echo made || echo failed; grep -E '^Seccomp:' /proc/self/status";
        let (code, out) = under(world, &refuse("mkdir", "SCMP_ACT_ERRNO"), script);
        assert_eq!((code, &*out), (Some(0), "failed\nSeccomp:\t2\n"), "{:?}", world.runtime);
        let rule =
            but(&json!({"names": ["no_such_call", "mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 28}));
        world.set("/linux/seccomp", rule).script("mkdir /x");
        let (code, _, err) = world.run_container();
        assert_eq!(code, Some(1), "{:?}", world.runtime);
        assert!(err.contains("No space left"), "{:?}: {err}", world.runtime);
        // Without one there is no filter.
        world.set("/linux/seccomp", Value::Null).script("grep -E '^Seccomp:' /proc/self/status");
        if world.is_dormouse() {
            assert_eq!(world.output(), "Seccomp:\t0\n");
        }
    });
}

#[test]
fn calls_kill_as_the_profile_says() {
    both(|world| {
        for action in ["SCMP_ACT_KILL", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_TRAP"] {
            let (code, out) = under(world, &refuse("mkdir", action), "(mkdir /x); echo $?");
            assert_eq!((code, &*out), (Some(0), "159\n"), "{:?} {action}", world.runtime);
        }
        // The first process itself.
        let (code, _) = under(world, &refuse("mkdir", "SCMP_ACT_KILL"), "exec mkdir /x");
        assert_eq!(code, Some(159), "{:?}", world.runtime);
        let (code, out) = under(world, &refuse("mkdir", "SCMP_ACT_LOG"), "mkdir /logged && echo made");
        assert_eq!((code, &*out), (Some(0), "made\n"), "{:?}", world.runtime);
    });
}

/// Which of some limits can be set: busybox's `ulimit` calls `prlimit64`, whose second argument is the resource.
#[test]
fn arguments_are_compared_as_the_profile_says() {
    let limits = [("-c", 4), ("-n", 7), ("-v", 9), ("-l", 8), ("-s", 3)];
    let probe: String = limits
        .iter()
        .map(|(option, _)| format!("(ulimit -S {option} 64 2>/dev/null && echo -n y || echo -n n); "))
        .collect();
    both(|world| {
        let mut outcomes = |operator: &str, value: u64, two: u64| {
            let rule = json!({"names": ["prlimit64"], "action": "SCMP_ACT_ERRNO",
                "args": [{"index": 1, "value": value, "valueTwo": two, "op": operator}]});
            under(world, &but(&rule), &probe).1
        };
        for (operator, test) in [
            ("SCMP_CMP_EQ", (|arg, value| arg == value) as fn(u64, u64) -> bool),
            ("SCMP_CMP_NE", |arg, value| arg != value),
            ("SCMP_CMP_LT", |arg, value| arg < value),
            ("SCMP_CMP_LE", |arg, value| arg <= value),
            ("SCMP_CMP_GT", |arg, value| arg > value),
            ("SCMP_CMP_GE", |arg, value| arg >= value),
        ] {
            let expected: String =
                limits.iter().map(|(_, resource)| if test(*resource, 7) { 'n' } else { 'y' }).collect();
            assert_eq!(outcomes(operator, 7, 0), expected, "{operator}");
        }
        // Of the bits 1 and 8 only 8 is set in 8.
        assert_eq!(outcomes("SCMP_CMP_MASKED_EQ", 9, 8), "yyyny");
        assert_eq!(outcomes("SCMP_CMP_EQ", 1 << 32 | 7, 0), "yyyyy");
    });
}

#[test]
fn of_several_rules_one_is_enough() {
    both(|world| {
        let equal = |index: u64, value: u64| json!({"index": index, "value": value, "op": "SCMP_CMP_EQ"});
        let rule = |args: Value| json!({"names": ["prlimit64"], "action": "SCMP_ACT_ERRNO", "args": args});
        let profile = json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
            rule(json!([equal(1, 7), equal(0, 0)])), rule(json!([equal(1, 4), equal(1, 9)])), rule(json!([equal(1, 8), equal(0, 1)]))]});
        let script = "for o in c n v l; do ulimit -S -$o 64 2>/dev/null && echo -n y || echo -n n; done";
        assert_eq!(under(world, &profile, script).1, "nnny", "{:?}", world.runtime);
    });
}

#[test]
fn what_a_profile_does_not_name_falls_to_its_default() {
    both(|world| {
        let mut profile = like_dockers();
        assert_eq!(
            under(world, &profile, "mkdir /ok; echo ok; mount -t tmpfs x /mnt 2>&1 | grep -c 'ermi'").1,
            "ok\n1\n"
        );
        profile["defaultErrnoRet"] = json!(12);
        let out = under(world, &profile, "mount -t tmpfs x /mnt 2>&1").1;
        assert!(out.contains("emory"), "{:?}: {out}", world.runtime);
        profile["defaultAction"] = json!("SCMP_ACT_KILL_PROCESS");
        profile.as_object_mut().unwrap().remove("defaultErrnoRet");
        assert_eq!(
            under(world, &profile, "(mount -t tmpfs x /mnt); echo $?").1,
            "159\n",
            "{:?}",
            world.runtime
        );
    });
}

#[test]
fn processes_that_come_in_later_are_filtered_as_well() {
    both(|world| {
        world.set("/linux/seccomp", refuse("mkdir", "SCMP_ACT_ERRNO"));
        world.script("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done").create().start();
        world.wait_output("ready");
        let script = "mkdir /y 2>/dev/null && echo made || echo failed; grep Seccomp: /proc/self/status";
        assert_eq!(world.ok(&["exec", &world.id, "sh", "-c", script]), "failed\nSeccomp:\t2\n");
        // One that a file describes has the container's filter, too.
        let mut process = world.config["process"].clone();
        process["args"] = json!(["sh", "-c", script]);
        let file = world.dir.join("process.json");
        fs::write(&file, process.to_string()).unwrap();
        assert_eq!(
            world.ok(&["exec", "--process", file.to_str().unwrap(), &world.id]),
            "failed\nSeccomp:\t2\n"
        );
        world.ok(&["kill", &world.id, "TERM"]);
        status_of(world.pid());
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn profiles_that_cannot_be_taken_are_refused() {
    dormouse(|world| {
        world.script("true");
        let notify = refuse("mkdir", "SCMP_ACT_NOTIFY");
        let listener = json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/run/listener"});
        let index = but(&json!({"names": ["read"], "action": "SCMP_ACT_KILL",
            "args": [{"index": 6, "value": 0, "op": "SCMP_CMP_EQ"}]}));
        for (profile, word) in [(notify, "SCMP_ACT_NOTIFY"), (listener, "listenerPath"), (index, "index")] {
            world.set("/linux/seccomp", profile).write();
            let output = world.run(&world.with_bundle("create", &[]));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(
                !output.status.success() && text.contains(word) && text.trim().lines().count() == 1,
                "{text}"
            );
        }
    });
}

/// Real programs run under it: on the host's own files, read-only.
#[test]
fn ordinary_programs_run_under_a_profile_like_dockers() {
    let script = "set -e; python3 -c 'import subprocess, threading, socket, json; \
        t = threading.Thread(target=lambda: print(\"thread\")); t.start(); t.join(); \
        a, b = socket.socketpair(); a.send(b\"x\"); print(subprocess.check_output([\"echo\", \"child\"]), b.recv(1)); \
        import ctypes; libc = ctypes.CDLL(None, use_errno=True); \
        print([libc.syscall(n, 0, 0, 0) and ctypes.get_errno() for n in (175, 167, 470)])'; \
        bash -c 'f() { echo $((6 * 7)); }; f | cat; trap \"echo bye\" EXIT'; \
        cd /tmp; mkdir a; echo hello > a/b; tar czf a.tgz a; rm -r a; tar xzf a.tgz; cat a/b";
    let has =
        |name: &str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    if !["python3", "bash", "tar", "gzip"].into_iter().all(has) {
        eprintln!("skipped: needs python3, bash, tar and gzip");
        return;
    }
    both(|world| {
        let root = world.dir.join("hosts");
        fs::create_dir_all(&root).unwrap();
        for name in ["usr", "etc", "proc", "dev", "sys", "tmp"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in ["bin", "lib", "lib64", "sbin"] {
            symlink(format!("usr/{name}"), root.join(name)).unwrap();
        }
        world.set("/root/path", json!("hosts"));
        world.set("/process/env", json!(["PATH=/usr/bin:/bin"]));
        for name in ["usr", "etc"] {
            let (from, to) = (format!("/{name}"), format!("/{name}"));
            world.mount(
                json!({"destination": to, "source": from, "type": "bind", "options": ["rbind", "ro"]}),
            );
        }
        let (code, out) = under(world, &like_dockers(), script);
        assert_eq!(code, Some(0), "{:?}: {out}", world.runtime);
        assert_eq!(out, "thread\nb'child\\n' b'x'\n[1, 1, 38]\n42\nbye\nhello\n", "{:?}", world.runtime);
    });
}
