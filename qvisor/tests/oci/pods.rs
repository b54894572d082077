//! Pods: containers of one sandbox. `pods_volumes`, `pods_memory` and `pods_at_rest` have more.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Stdio};

use libc::{SIGKILL, SIGTERM};
use serde_json::json;

use super::exec::receive_console;
use super::world::{World, assert_ended, dormouse, lives, signal, status_of, wait_for};

/// A pod, whose first container runs.
pub fn pod(test: impl Fn(&mut World)) {
    dormouse(|first| {
        first.begin_pod().create().start();
        test(first);
    });
}

/// A further container that runs this script.
pub fn run(first: &World, script: &str) -> World {
    let further = first.further(script);
    further.create().start();
    further
}

pub fn exec(world: &World, script: &str) -> String {
    world.ok(&["exec", &world.id, "sh", "-c", script])
}

#[test]
fn containers_have_files_and_processes_of_their_own_and_a_network_and_a_name_in_common() {
    dormouse(|first| {
        first.begin_pod().set("/hostname", json!("the-pod")).create().start();
        let one = run(first, "echo one > /file; hostname; exec sleep 1000");
        let two = run(first, "exec sleep 1000");
        one.wait_output("the-pod");
        assert_eq!(one.vmm_of_pod(), two.vmm_of_pod());
        assert_eq!(exec(&one, "cat /file"), "one\n");
        assert_eq!(fs::read_to_string(one.rootfs().join("file")).unwrap(), "one\n");
        exec(&two, "! test -e /file");
        for world in [&one, &two] {
            let processes = exec(world, "ps -o pid,args | grep sleep | grep -v grep");
            assert_eq!(processes.trim(), "1 sleep 1000");
        }
        let listed: serde_json::Value =
            serde_json::from_str(&two.ok(&["ps", "--format=json", &two.id])).unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 1);
        exec(&two, "test ! -e /proc/2 && ! kill -0 2 2>/dev/null");
        // The loopback is the pod's.
        let server =
            one.command(&["exec", &one.id, "nc", "-l", "-p", "4711", "-e", "echo", "from one"]).spawn();
        let mut server = server.unwrap();
        wait_for(
            || two.run(&["exec", &two.id, "nc", "127.0.0.1", "4711"]).stdout == b"from one\n",
            || "nothing comes over the pod's loopback".into(),
        );
        server.wait().unwrap();
    });
}

#[test]
fn a_further_containers_files_are_its_root_and_its_mounts() {
    pod(|first| {
        let mut one = first.further("cat /volume/greeting; echo written > /volume/back; exec sleep 1000");
        let volume = one.dir.join("volume");
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("greeting"), "from the volume\n").unwrap();
        fs::write(one.dir.join("secret"), "secret\n").unwrap();
        std::os::unix::fs::symlink(one.dir.join("secret"), volume.join("out")).unwrap();
        let source = volume.to_str().unwrap();
        one.mount(
            json!({"destination": "/volume", "type": "bind", "source": source, "options": ["bind", "rw"]}),
        );
        let file = one.dir.join("name");
        fs::write(&file, "a file\n").unwrap();
        let options = ["bind", "ro"];
        one.mount(json!({"destination": "/etc/name", "type": "bind", "source": file, "options": options}));
        one.create().start();
        one.wait_output("from the volume");
        wait_for(|| volume.join("back").exists(), || "nothing came back".into());
        assert_eq!(exec(&one, "cat /etc/name"), "a file\n");
        exec(&one, "! echo x 2>/dev/null > /etc/name");
        // What leads out of a view leads nowhere, and into the container's own root.
        exec(&one, "! cat /volume/out 2>/dev/null && ! cat /volume/../../secret 2>/dev/null");
        exec(
            &one,
            "mv /volume/back /volume/moved && rm /volume/moved && mkdir /volume/dir && rmdir /volume/dir",
        );
    });
}

/// A process of the container that goes on meanwhile.
pub fn spawn(world: &World, script: &str) -> Child {
    world.command(&["exec", &world.id, "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap()
}

pub fn output_of(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{:?}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

/// A further container with the guest program `share`; `own_ipc`: in a new IPC namespace.
fn with_share(first: &World, own_ipc: bool) -> World {
    let mut further = first.further("exec sleep 1000");
    further.add_guest("share");
    for namespace in further.config["linux"]["namespaces"].as_array_mut().unwrap() {
        if own_ipc && namespace["type"] == "ipc" {
            namespace.as_object_mut().unwrap().remove("path");
        }
    }
    further.create().start();
    further
}

#[test]
fn containers_have_ipc_in_common_if_they_name_the_pods() {
    pod(|first| {
        let (one, two, apart) = (with_share(first, false), with_share(first, false), with_share(first, true));
        exec(&one, "share put 0x55 'a text'");
        exec(&apart, "! share get 0x55 2>/dev/null && test \"$(wc -l < /proc/sysvipc/shm)\" = 1");
        assert_eq!(exec(&two, "share get 0x55").trim(), "a text");
        let receiver = spawn(&two, "share receive 0x66");
        exec(&one, "share send 0x66 'a message'");
        assert_eq!(output_of(receiver).trim(), "a message");
        // Objects stay when their maker's container has gone.
        exec(&one, "share put 0x77 kept; echo 1000 > /proc/sys/kernel/msgmnb");
        one.ok(&["kill", &one.id, "KILL"]);
        one.wait_status("stopped");
        one.delete();
        assert_eq!(exec(&two, "share get 0x77; cat /proc/sys/kernel/msgmnb"), "kept\n1000\n");
        assert_eq!(exec(&apart, "cat /proc/sys/kernel/msgmnb"), "16384\n");
    });
}

#[test]
fn an_ipc_namespace_of_others_is_refused() {
    dormouse(|world| {
        world.script("true");
        for namespace in world.config["linux"]["namespaces"].as_array_mut().unwrap() {
            if namespace["type"] == "ipc" {
                namespace["path"] = json!("/proc/self/ns/ipc");
            }
        }
        world.write();
        let output = world.run(&world.with_bundle("create", &[]));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("IPC namespace /proc/self/ns/ipc"), "{text}");
    });
}

#[test]
fn a_container_that_ends_takes_no_other_along_and_comes_back() {
    pod(|first| {
        let two = run(first, "exec sleep 1000");
        let one = run(first, "trap 'exit 7' TERM; echo ready; sleep 1000 & wait; exit 7");
        one.wait_output("ready");
        let (pid, keeper) = (one.pid(), one.vmm());
        one.ok(&["kill", &one.id, "TERM"]);
        assert_eq!(status_of(pid), 7 << 8);
        one.wait_status("stopped");
        assert_ended(&[keeper]);
        one.delete();
        one.create().start();
        one.wait_output("ready");
        let pid = one.pid();
        one.ok(&["kill", &one.id, "KILL"]);
        assert_eq!(status_of(pid), SIGKILL);
        one.delete();
        assert_eq!(exec(&two, "echo lives"), "lives\n");
        assert_eq!(exec(first, "echo lives"), "lives\n");
        // Nothing of it is left with the VMM.
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", first.vmm())).unwrap();
        assert!(mounts.contains(&two.id) && !mounts.contains(&one.id), "{mounts}");
        let held = || fs::read_dir(format!("/proc/{}/fd", first.vmm())).unwrap().flatten();
        let holds = || held().any(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.starts_with(&one.dir)));
        wait_for(|| !holds(), || "the VMM holds files of a container that is no more".into());
    });
}

#[test]
fn the_end_of_the_first_is_the_end_of_all() {
    pod(|first| {
        let one = run(first, "exec sleep 1000");
        let (leash, keeper, all) = (one.pid(), one.vmm(), first.family());
        first.ok(&["kill", &first.id, "KILL"]);
        assert_eq!(status_of(leash), SIGKILL);
        assert_ended(&[keeper]);
        assert_ended(&all);
        one.wait_status("stopped");
        one.delete();
        first.wait_status("stopped");
    });
}

#[test]
fn a_keeper_or_a_leash_that_is_killed_ends_its_container_alone() {
    pod(|first| {
        let two = run(first, "exec sleep 1000");
        for kill_leash in [true, false] {
            let one = run(first, "echo ready; exec sleep 1000");
            one.wait_output("ready");
            let (leash, keeper) = (one.pid(), one.vmm());
            signal(if kill_leash { leash } else { keeper }, SIGKILL);
            assert_eq!(status_of(leash), SIGKILL);
            assert_ended(&[keeper]);
            one.wait_status("stopped");
            one.delete();
        }
        let count = exec(first, "ls /proc | grep -c '^[0-9]'");
        assert!(!count.is_empty());
        assert_eq!(exec(&two, "echo lives"), "lives\n");
    });
}

#[test]
fn a_pod_whose_vmm_is_killed_leaves_nothing() {
    pod(|first| {
        let one = run(first, "exec sleep 1000");
        let pids = [one.pid(), one.vmm(), first.pid()];
        signal(first.vmm(), SIGKILL);
        wait_for(|| !pids.iter().any(|pid| lives(*pid)), || "something lives on".into());
        one.ok(&["delete", "--force", &one.id]);
        one.assert_gone();
        status_of(one.pid());
    });
}

#[test]
fn a_program_that_does_not_run_is_the_containers_failure_alone() {
    pod(|first| {
        let mut one = first.further("true");
        one.set("/process/args", json!(["no-such-program"])).write();
        let out = one.run(&one.with_bundle("create", &[]));
        let words = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && words.contains("no-such-program"), "{words}");
        one.assert_gone();
        assert_eq!(exec(first, "echo lives"), "lives\n");
    });
}

#[test]
fn a_further_container_runs_in_the_foreground() {
    pod(|first| {
        let one = first.further("echo out; echo err >&2; exit 3");
        let (code, out, err) = one.run_container();
        assert_eq!((code, out.as_str(), err.as_str()), (Some(3), "out\n", "err\n"));
        one.assert_gone();
    });
}

#[test]
fn signals_reach_the_container_that_is_meant() {
    pod(|first| {
        let script = "trap 'echo got it' TERM; echo ready; while :; do sleep 0.05; done";
        let (one, two) = (run(first, script), run(first, script));
        one.wait_output("ready");
        two.wait_output("ready");
        signal(one.pid(), SIGTERM);
        one.wait_output("got it");
        assert!(!two.read("out").contains("got it"));
    });
}

#[test]
fn a_pod_hibernates_and_wakes_as_one() {
    pod(|first| {
        let one = run(first, "echo kept > /dev/shm/file; exec sleep 1000");
        wait_for(|| exec(&one, "ls /dev/shm") == "file\n", || "no file".into());
        one.ok(&["hibernate", &one.id]);
        for world in [first as &World, &one] {
            assert_eq!(world.sandbox_state(), "hibernated");
            assert_eq!(world.status(), "running");
        }
        assert_eq!(exec(&one, "cat /dev/shm/file"), "kept\n");
        assert_ne!(first.sandbox_state(), "hibernated");
        signal(first.pid(), libc::SIGSTOP);
        first.wait_state("hibernated");
        // One that comes to a pod that sleeps wakes it.
        let two = run(first, "echo here; exec sleep 1000");
        two.wait_output("here");
        first.wait_awake();
    });
}

#[test]
fn process_ids_are_in_common_when_asked() {
    pod(|first| {
        let with_pids_of = |of: &World| {
            let mut further = first.further("exec sleep 1000");
            for namespace in further.config["linux"]["namespaces"].as_array_mut().unwrap() {
                if namespace["type"] == "pid" {
                    namespace["path"] = json!(format!("/proc/{}/ns/pid", of.pid()));
                }
            }
            further
        };
        let one = with_pids_of(first);
        one.create().start();
        let seen = exec(&one, "ps -o pid,args");
        assert!(seen.contains("while :") && seen.contains("sleep 1000"), "{seen}");
        assert_eq!(
            exec(first, "ps -o args | grep -c '^sleep 1000'"),
            exec(&one, "ps -o args | grep -c '^sleep 1000'")
        );
        // That of a container beside the first.
        let two = run(first, "exec sleep 500");
        let three = with_pids_of(&two);
        three.create().start();
        let seen = exec(&three, "ps -o pid,args");
        assert!(seen.contains("sleep 500") && !seen.contains("while :"), "{seen}");
        // Its files can be reached, its mounts not be changed.
        let mount = |place: &str| {
            let options = ["exec", "--cap", "CAP_SYS_ADMIN", "--cap", "CAP_SYS_PTRACE", &*three.id];
            three.run(&[&options[..], &["busybox", "mount", "-t", "tmpfs", "none", place]].concat())
        };
        let refused = mount("/proc/1/root/bin");
        assert!(String::from_utf8_lossy(&refused.stderr).contains("Invalid argument"), "{refused:?}");
        let changed = mount("/bin");
        assert!(changed.status.success(), "its own can: {changed:?}");
        for world in [&one, &three] {
            world.ok(&["kill", &world.id, "KILL"]);
            world.wait_status("stopped");
            world.delete();
        }
        assert_eq!(exec(&two, "echo lives"), "lives\n");
        let stranger = with_pids_of(&two);
        let of = json!(format!("/proc/{}/ns/pid", std::process::id()));
        let mut stranger = stranger;
        for namespace in stranger.config["linux"]["namespaces"].as_array_mut().unwrap() {
            if namespace["type"] == "pid" {
                namespace["path"] = of.clone();
            }
        }
        stranger.write();
        stranger.refused(&stranger.with_bundle("create", &[]), &["no container of its pod"]);
    });
}

#[test]
fn what_cannot_join_a_pod_is_told_why() {
    pod(|first| {
        let mut one = first.further("true");
        one.config["annotations"]["io.kubernetes.cri.sandbox-id"] = json!("nobody");
        one.write();
        one.refused(&one.with_bundle("create", &[]), &["begins with container nobody", "does not exist"]);
        // A pod whose containers have sandboxes of their own shares no process ids.
        let mut two = first.further("true");
        two.config["annotations"]["dev.dormouse.pods"] = json!("separate");
        for namespace in two.config["linux"]["namespaces"].as_array_mut().unwrap() {
            if namespace["type"] == "pid" {
                namespace["path"] = json!(format!("/proc/{}/ns/pid", first.pid()));
            }
        }
        two.write();
        two.refused(&two.with_bundle("create", &[]), &["pods set to shared", "dev.dormouse.pods"]);
        assert!(Path::new(&format!("/proc/{}", first.vmm())).exists());
    });
    dormouse(|alone| {
        alone.begin_pod();
        alone.config["annotations"]["dev.dormouse.pods"] = json!("separate");
        alone.create().start();
        let one = alone.further("true");
        one.write();
        one.refused(&one.with_bundle("create", &[]), &["set pods to shared"]);
        let mut two = alone.further("hostname");
        two.config["annotations"]["dev.dormouse.pods"] = json!("separate");
        let (code, ..) = two.run_container();
        assert_eq!(code, Some(0));
    });
}

#[test]
fn annotations_alone_lead_into_no_pod() {
    pod(|first| {
        let other = format!("/proc/{}/ns/net", std::process::id());
        for namespace in [json!({"type": "network"}), json!({"type": "network", "path": other})] {
            let mut stranger = first.further("true");
            let all = stranger.config["linux"]["namespaces"].as_array_mut().unwrap();
            all.retain(|namespace| namespace["type"] != "network");
            all.push(namespace);
            stranger.write();
            stranger.refused(&stranger.with_bundle("create", &[]), &["network namespace is not that pod's"]);
        }
        assert_eq!(exec(first, "echo lives"), "lives\n");
    });
}

#[test]
fn a_hook_that_takes_its_time_holds_nobody_up() {
    pod(|first| {
        let mut one = first.further("echo here; exec sleep 1000");
        let hook = json!([{"path": "/bin/sleep", "args": ["sleep", "6"]}]);
        one.set("/hooks", json!({"prestart": hook}));
        one.create().start();
        one.wait_output("here");
    });
}

#[test]
fn a_container_that_cannot_be_made_leaves_nothing_with_the_vmm() {
    pod(|first| {
        let held = || fs::read_dir(format!("/proc/{}/fd", first.vmm())).unwrap().count();
        let fail = || {
            let mut one = first.further("true");
            std::os::unix::fs::symlink("loop", one.rootfs().join("loop")).unwrap();
            let source = one.rootfs();
            for place in ["/loop/x", "/a", "/b", "/c"] {
                one.mount(
                    json!({"destination": place, "type": "bind", "source": source, "options": ["bind"]}),
                );
            }
            one.write();
            assert!(!one.run(&one.with_bundle("create", &[])).status.success());
            one.assert_gone();
        };
        fail();
        let before = held();
        fail();
        fail();
        wait_for(|| held() <= before, || format!("{} descriptors, and before {before}", held()));
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", first.vmm())).unwrap();
        assert_eq!(mounts.lines().filter(|line| line.contains("/pod/")).count(), 0, "{mounts}");
    });
}

#[test]
fn what_stands_for_a_container_on_the_host_sees_nothing_of_it() {
    pod(|first| {
        let one = run(first, "exec sleep 1000");
        let namespace = |pid: i32, kind: &str| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        let ids = fs::read_to_string(format!("/proc/{}/status", one.vmm())).unwrap();
        let own = (0x6000_0000 + one.vmm()).to_string();
        let users: Vec<_> =
            ids.lines().find(|line| line.starts_with("Uid:")).unwrap().split_whitespace().collect();
        assert!(users[1..].iter().all(|user| *user == own), "{users:?}");
        for pid in [one.pid(), one.vmm()] {
            let root = || fs::read_dir(format!("/proc/{pid}/root/")).unwrap().count();
            wait_for(|| root() == 0, || format!("{} names in its root", root()));
            for kind in ["net", "uts", "ipc"] {
                assert_eq!(namespace(pid, kind), namespace(first.pid(), kind), "{kind}");
            }
            let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
            let capabilities =
                |set: &str| status.lines().find(|line| line.starts_with(set)).unwrap().to_owned();
            assert!(capabilities("CapEff").ends_with("0000000000000000"), "{status}");
            assert!(capabilities("CapPrm").ends_with("0000000000000000"), "{status}");
        }
    });
}

#[test]
fn ids_and_scores_are_the_pods() {
    pod(|first| {
        let mut one = first.further("true");
        one.config["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
        let map = json!([{"containerID": 0, "hostID": 100_000, "size": 65_536}]);
        one.set("/linux/uidMappings", map.clone()).set("/linux/gidMappings", map).write();
        one.refused(&one.with_bundle("create", &[]), &["user namespace is not that pod's"]);
        let score = || fs::read_to_string(format!("/proc/{}/oom_score_adj", first.vmm())).unwrap();
        let mut two = first.further("exec sleep 1000");
        two.set("/process/oomScoreAdj", json!(700)).create().start();
        assert_eq!(score().trim(), "700");
    });
}

#[test]
fn terminals_are_a_containers_own_and_go_with_it() {
    pod(|first| {
        let one = run(first, "exec sleep 1000");
        let mut two = first.further("tty; exec sleep 1000");
        two.set("/process/terminal", json!(true)).write();
        let socket = two.dir.join("console.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let taker = std::thread::spawn(move || receive_console(&listener));
        let pid_file = two.dir.join("pid");
        let options =
            ["--console-socket", socket.to_str().unwrap(), "--pid-file", pid_file.to_str().unwrap()];
        assert!(two.command(&two.with_bundle("create", &options)).status().unwrap().success());
        let mut console = taker.join().unwrap();
        two.start();
        let mut shown = String::new();
        while !shown.contains("/dev/pts/0") {
            let mut bytes = [0; 64];
            let got = console.read(&mut bytes).unwrap();
            shown += &String::from_utf8_lossy(&bytes[..got]);
        }
        assert_eq!(exec(&one, "ls /dev/pts"), "ptmx\n");
        exec(&one, "! echo fake 2>/dev/null > /dev/pts/0");
        assert_eq!(exec(&two, "ls /dev/pts"), "0\nptmx\n");
        two.ok(&["kill", &two.id, "KILL"]);
        status_of(two.pid());
        // Nobody holds the other side any more.
        let hangs_up = || {
            let mut poll = libc::pollfd { fd: console.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live structure.
            unsafe { libc::poll(&raw mut poll, 1, 10) };
            poll.revents & libc::POLLHUP != 0
        };
        wait_for(hangs_up, || "somebody holds its terminal".into());
        two.delete();
    });
}

#[test]
fn a_pod_on_the_hosts_network_takes_in_its_own_alone() {
    dormouse(|first| {
        let on_host = |world: &mut World| {
            let all = world.config["linux"]["namespaces"].as_array_mut().unwrap();
            all.retain(|namespace| namespace["type"] != "network");
        };
        first.begin_pod();
        on_host(first);
        first.create().start();
        let mut one = first.further("echo here; exec sleep 1000");
        on_host(&mut one);
        one.create().start();
        one.wait_output("here");
        let mut stranger = first.further("true");
        on_host(&mut stranger);
        for namespace in stranger.config["linux"]["namespaces"].as_array_mut().unwrap() {
            if namespace["type"] == "ipc" {
                namespace.as_object_mut().unwrap().remove("path");
            }
        }
        stranger.write();
        stranger.refused(&stranger.with_bundle("create", &[]), &["network namespace is not that pod's"]);
    });
}
