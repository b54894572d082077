//! Control groups, limits, and the network namespace.

use std::path::{Path, PathBuf};

use runtime::cgroup::groups_of;
use serde_json::json;

use super::world::{HeldNetwork, World, both, dormouse, status_of, wait_for};

fn v1(controller: &str) -> Option<PathBuf> {
    let path = Path::new("/sys/fs/cgroup").join(controller);
    path.join("cgroup.procs").exists().then_some(path)
}

/// The process's group, if groups are of version 2.
fn v2(pid: i32) -> Option<PathBuf> {
    groups_of(pid).into_iter().find(|dir| dir.join("cgroup.controllers").exists())
}

#[test]
fn groups_are_made_joined_and_removed() {
    both(|world| {
        let path = format!("/parent-{0}/child-{0}", world.id);
        world.set("/linux/cgroupsPath", json!(path));
        world.set(
            "/linux/resources",
            json!({
                "memory": {"limit": 64 << 20},
                "cpu": {"shares": 512, "quota": 50_000, "period": 100_000},
                "pids": {"limit": 20},
            }),
        );
        world.script("sleep 1000").create().start();
        assert!(!world.groups().is_empty());
        let read = |controller: &str, file: &str| {
            let dir = v1(controller)?;
            let text = std::fs::read_to_string(dir.join(&path[1..]).join(file)).unwrap();
            Some(text.trim().to_owned())
        };
        let procs = read("memory", "cgroup.procs").unwrap_or_else(|| world.pid().to_string());
        assert!(procs.lines().any(|line| line == world.pid().to_string()), "{procs}");
        for (controller, file, value) in [
            ("cpu", "cpu.shares", "512"),
            ("cpu", "cpu.cfs_quota_us", "50000"),
            ("cpu", "cpu.cfs_period_us", "100000"),
        ] {
            assert!(read(controller, file).is_none_or(|found| found == value), "{controller} {file}");
        }
        if let Some(limit) = read("memory", "memory.limit_in_bytes").map(|text| text.parse::<u64>().unwrap())
        {
            let room = limit - (64 << 20);
            assert!(
                if world.is_dormouse() { (32 << 20..512 << 20).contains(&room) } else { room == 0 },
                "{limit}"
            );
        }
        if let Some(dir) = v2(world.pid()) {
            let read = |file: &str| std::fs::read_to_string(dir.join(file)).unwrap().trim().to_owned();
            // 64 MiB, 1/32 of them and 128 MiB; 20 tasks with three processes of the host each, and 128.
            let (memory, tasks) = if world.is_dormouse() { (194 << 20, 188) } else { (64 << 20, 20) };
            assert_eq!(read("cpu.weight"), "20");
            assert_eq!(read("cpu.max"), "50000 100000");
            assert_eq!((read("memory.max"), read("pids.max")), (memory.to_string(), tasks.to_string()));
            assert!(read("cgroup.procs").lines().any(|line| line == world.pid().to_string()));
        }
        world.ok(&["kill", &world.id, "KILL"]);
        status_of(world.pid());
        world.wait_status("stopped");
        world.ok(&["delete", &world.id]);
        let left = world.groups();
        // runc leaves the parents of its groups.
        assert!(left.is_empty() || !world.is_dormouse(), "{left:?}");
        for dir in left {
            let _ = std::fs::remove_dir(dir);
        }
    });
}

#[test]
fn groups_below_a_containers_take_what_exec_starts() {
    both(|world| {
        let path = format!("/parent-{0}/child-{0}", world.id);
        world.set("/linux/cgroupsPath", json!(path));
        world.script("sleep 1000").create().start();
        let (group, prefix) = match v2(world.pid()) {
            Some(group) => (group, ""),
            None => (v1("pids").unwrap().join(&path[1..]), "pids:"),
        };
        let pid_file = world.dir.join("exec-pid");
        let exec = |option: String| {
            let pid_file = pid_file.to_str().unwrap();
            world
                .command(&[
                    "exec",
                    "-d",
                    "--pid-file",
                    pid_file,
                    "--cgroup",
                    &option,
                    &world.id,
                    "sleep",
                    "1000",
                ])
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::null())
                .status()
                .unwrap()
        };
        assert!(!exec(format!("{prefix}below")).success(), "{:?}: there is none yet", world.runtime);
        assert!(!exec(format!("{prefix}../../elsewhere")).success(), "{:?}", world.runtime);
        std::fs::create_dir(group.join("below")).unwrap();
        assert!(exec(format!("{prefix}below")).success(), "{:?}", world.runtime);
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        let inside = std::fs::read_to_string(group.join("below/cgroup.procs")).unwrap();
        assert!(inside.lines().any(|line| line == pid.trim()), "{:?}: {pid} in {inside}", world.runtime);
        world.ok(&["kill", &world.id, "KILL"]);
        // In this order: the first process of a pid namespace ends after all others.
        status_of(pid.trim().parse().unwrap());
        status_of(world.pid());
        world.wait_status("stopped");
        world.ok(&["delete", &world.id]);
        assert!(!group.exists(), "{:?}", world.runtime);
        for dir in world.groups() {
            let _ = std::fs::remove_dir(dir);
        }
    });
}

#[test]
fn a_path_of_systemds_form_is_a_plain_path() {
    both(|world| {
        let name = format!("system.slice:docker:{}", world.id);
        world.set("/linux/cgroupsPath", json!(name)).script("sleep 1000").create();
        let groups = world.groups();
        assert!(!groups.is_empty());
        assert!(groups.iter().all(|group| group.ends_with(&name)), "{groups:?}");
        let pid = world.pid();
        world.ok(&["delete", "--force", &world.id]);
        status_of(pid);
        world.assert_gone();
    });
}

#[test]
fn a_path_does_not_lead_out_of_the_hierarchy() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("../../../../{}", world.id)));
        world.script("sleep 1000").create();
        assert!(!world.groups().is_empty());
        let pid = world.pid();
        world.ok(&["delete", "--force", &world.id]);
        status_of(pid);
        world.assert_gone();
    });
}

#[test]
fn groups_of_systemds_are_refused_where_it_cannot_make_them() {
    dormouse(|world| {
        let refused = |world: &World, words: &[&str]| {
            let mut args = vec!["--systemd-cgroup"];
            args.extend(world.with_bundle("create", &[]));
            world.refused(&args, words);
        };
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id))).write();
        refused(world, &["slice:prefix:name", "--systemd-cgroup"]);
        world.set("/linux/cgroupsPath", json!(format!("system.slice:test:{}", world.id))).write();
        if v1("memory").is_some() {
            refused(world, &["version 1", "--systemd-cgroup"]);
        } else if !Path::new("/run/systemd/system").exists() {
            refused(world, &["systemd does not run"]);
        }
        world.assert_gone();
    });
}

#[test]
fn the_container_sees_its_limits() {
    dormouse(|world| {
        world.set(
            "/linux/resources",
            json!({"memory": {"limit": 100 << 20}, "cpu": {"quota": 50_000, "period": 100_000}, "pids": {"limit": 9}}),
        );
        world.script(
            "cd /sys/fs/cgroup; cat memory.max pids.max; cat cpu.max; grep -c ^processor /proc/cpuinfo; \
                      head -1 /proc/meminfo",
        );
        let said = world.output();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines[..2], ["104857600", "9"], "{said}");
        assert_eq!(lines[3], "1", "{said}");
        assert!(lines[4].contains("102400 kB"), "{said}");
    });
}

#[test]
fn memory_beyond_the_limit_is_not_to_be_had() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.set("/linux/resources", json!({"memory": {"limit": 48 << 20, "swap": 48 << 20}}));
        world.mount(
            json!({"destination": "/big", "type": "tmpfs", "source": "tmpfs", "options": ["size=1g"]}),
        );
        world.script("dd if=/dev/zero of=/big/f bs=1M count=200 2>/dev/null && echo all; echo over");
        let (_, out, _) = world.run_container();
        assert!(!out.contains("all"), "{:?}: {out}", world.runtime);
    });
}

#[test]
fn tasks_beyond_the_limit_are_not_to_be_had() {
    both(|world| {
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.set("/linux/resources", json!({"pids": {"limit": 10}}));
        world.script(
            "i=0; while test $i -lt 30; do sleep 100 & i=$((i+1)); done 2>/tmp/err; echo $(ps | grep -c 'sleep 100')",
        );
        std::fs::create_dir(world.rootfs().join("tmp")).unwrap();
        let (_, out, err) = world.run_container();
        let count: u32 = out.trim().parse().unwrap_or(0);
        // A shell that cannot fork gives up.
        assert!(count < 12, "{:?}: {out} {err}", world.runtime);
        let said = std::fs::read_to_string(world.rootfs().join("tmp/err")).unwrap();
        assert!(
            said.contains("can't fork") || err.contains("can't fork"),
            "{:?}: {said} {err}",
            world.runtime
        );
    });
}

#[test]
fn groups_that_cannot_be_made() {
    dormouse(|world| {
        world.set("/linux/cgroupsPath", json!("/cgroup.procs/x")).write();
        world.refused(&world.with_bundle("create", &[]), &["cannot make control group", "cgroupsPath"]);
        world.set("/linux/cgroupsPath", json!(format!("/{}", world.id)));
        world.set("/linux/resources", json!({"cpu": {"cpus": "1000"}})).write();
        world.refused(&world.with_bundle("create", &[]), &["cannot write \"1000\"", "cpuset.cpus"]);
        world.assert_gone();
    });
}

#[test]
fn a_new_network_namespace_has_a_loopback_interface() {
    both(|world| {
        world.script("ls /sys/class/net").set("/process/user", json!({"uid": 0, "gid": 0}));
        world.create();
        let pid = world.pid();
        let inside = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        assert_ne!(inside, std::fs::read_link("/proc/self/ns/net").unwrap());
        world.start();
        status_of(pid);
        world.delete();
    });
}

#[test]
fn a_network_namespace_by_its_path() {
    both(|world| {
        let network = HeldNetwork::new();
        let path = network.path();
        world.set("/linux/namespaces", network.namespaces());
        world.set("/linux/sysctl", json!({"net.ipv4.ip_unprivileged_port_start": "77"}));
        world.script("sleep 1000").create();
        let joined = std::fs::read_link(format!("/proc/{}/ns/net", world.pid())).unwrap();
        assert_eq!(joined, std::fs::read_link(&path).unwrap(), "{:?}", world.runtime);
        let mut sysctl = std::process::Command::new("nsenter");
        sysctl.args([&format!("--net={path}"), "cat", "/proc/sys/net/ipv4/ip_unprivileged_port_start"]);
        assert_eq!(String::from_utf8_lossy(&sysctl.output().unwrap().stdout).trim(), "77");
        world.ok(&["delete", "--force", &world.id]);
        status_of(world.pid());
    });
}

#[test]
fn a_host_name_by_the_path_of_its_namespace() {
    dormouse(|world| {
        let script = "hostname elsewhere && exec sleep 1000";
        let mut holder =
            std::process::Command::new("unshare").args(["-u", "sh", "-c", script]).spawn().unwrap();
        let path = format!("/proc/{}/ns/uts", holder.id());
        let name = format!("/proc/{}/comm", holder.id());
        wait_for(
            || std::fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n"),
            || "no namespace".into(),
        );
        let namespaces =
            json!([{"type": "pid"}, {"type": "ipc"}, {"type": "uts", "path": path}, {"type": "mount"}]);
        world.set("/linux/namespaces", namespaces).script("hostname").write();
        world.refused(&world.with_bundle("run", &[]), &["hostname", "uts namespace"]);
        world.config.as_object_mut().unwrap().remove("hostname");
        assert_eq!(world.output(), "elsewhere\n");
        holder.kill().unwrap();
        holder.wait().unwrap();
    });
}

#[test]
fn the_oom_score_is_the_vmms() {
    dormouse(|world| {
        world.set("/process/oomScoreAdj", json!(321)).script("true").create();
        let score = std::fs::read_to_string(format!("/proc/{}/oom_score_adj", world.vmm())).unwrap();
        assert_eq!(score.trim(), "321");
        world.ok(&["delete", "--force", &world.id]);
    });
}
