//! `linux.sysctl`: settings of the network namespace, and what of them programs read.

use std::cell::RefCell;

use serde_json::json;

use super::world::{HeldNetwork, World, both, dormouse, namespaces_with_network};

/// The files and their content.
const SHOW: &str = "for name in core/somaxconn ipv4/ip_local_port_range ipv4/ip_forward ipv4/conf/all/forwarding \
    ipv4/ip_unprivileged_port_start ipv4/ping_group_range ipv4/tcp_fin_timeout ipv4/tcp_keepalive_time \
    ipv6/conf/lo/disable_ipv6 unix/max_dgram_qlen; do echo $name $(cat /proc/sys/net/$name); done";

#[test]
fn settings_of_the_network_are_those_of_its_namespace() {
    let (plain, set) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
    both(|world| {
        world.script(SHOW);
        plain.borrow_mut().push(world.output());
        let asked = json!({"net.core.somaxconn": "1000", "net.ipv4.ip_local_port_range": "20000 20100",
            "net.ipv4.ip_forward": "1", "net.ipv4.ip_unprivileged_port_start": "80",
            "net/ipv4/tcp_fin_timeout": "33", "net.unix.max_dgram_qlen": "7"});
        world.set("/linux/sysctl", asked);
        let shown = world.output();
        for line in
            ["core/somaxconn 1000\n", "ipv4/ip_local_port_range 20000 20100\n", "unix/max_dgram_qlen 7\n"]
        {
            assert!(shown.contains(line), "{:?}: {shown}", world.runtime);
        }
        assert!(shown.contains("ipv4/ip_unprivileged_port_start 80\n"), "{:?}: {shown}", world.runtime);
        assert!(shown.contains("ipv4/tcp_fin_timeout 33\n"), "{:?}: {shown}", world.runtime);
        set.borrow_mut().push(shown);
    });
    for shown in [plain, set] {
        let shown = shown.into_inner();
        assert!(shown.windows(2).all(|pair| pair[0] == pair[1]), "{shown:?}");
    }
}

#[test]
fn the_first_free_port_is_the_settings() {
    both(|world| {
        world.set("/process/user", json!({"uid": 1000, "gid": 1000}));
        world.script("busybox timeout 1 busybox nc -l -p 77 2>&1 | grep -c 'ermission denied'");
        assert_eq!(world.run_container().1, "1\n", "{:?}", world.runtime);
        world.set("/linux/sysctl", json!({"net.ipv4.ip_unprivileged_port_start": "70"}));
        assert_eq!(world.run_container().1, "0\n", "{:?}", world.runtime);
    });
}

/// A pod's network: its containers join it one by one.
#[test]
fn low_ports_in_a_network_by_its_path_are_for_the_privileged() {
    both(|world| {
        let network = HeldNetwork::new();
        world.set("/linux/namespaces", network.namespaces());
        let script = "cat /proc/sys/net/ipv4/ip_unprivileged_port_start; \
            busybox timeout 1 busybox nc -l -p 77 2>&1 | grep -c 'ermission denied'";
        world.script(script);
        let sets = json!(["CAP_NET_BIND_SERVICE"]);
        world.set("/process/capabilities", json!({"bounding": sets, "effective": sets, "permitted": sets}));
        // Twice: what the first one changes for itself, the second one does not see.
        for _ in 0..2 {
            world.set("/process/user", json!({"uid": 0, "gid": 0}));
            assert_eq!(world.run_container().1, "1024\n0\n", "{:?}", world.runtime);
            world.set("/process/user", json!({"uid": 1000, "gid": 1000}));
            assert_eq!(world.run_container().1, "1024\n1\n", "{:?}", world.runtime);
        }
    });
}

#[test]
fn settings_of_the_hosts_network_stay() {
    dormouse(|world| {
        let settings = ["ip_unprivileged_port_start", "ping_group_range"]
            .map(|name| format!("/proc/sys/net/ipv4/{name}"))
            .map(|path| (std::fs::read_to_string(&path).unwrap(), path));
        world.set("/linux/namespaces", namespaces_with_network("/proc/self/ns/net")).script("true");
        assert_eq!(world.run_container().0, Some(0));
        for (value, path) in settings {
            assert_eq!(std::fs::read_to_string(&path).unwrap(), value, "{path}");
        }
    });
}

#[test]
fn the_domain_name_may_be_a_setting() {
    both(|world| {
        world.set("/linux/sysctl", json!({"kernel.domainname": "example.org"}));
        world.script("cat /proc/sys/kernel/domainname");
        assert_eq!(world.output(), "example.org\n", "{:?}", world.runtime);
    });
}

#[test]
fn limits_of_ipc_are_the_containers() {
    both(|world| {
        let limits = json!({
            "kernel.shmmax": "1000000", "kernel.sem": "100 1000 32 64", "kernel.msgmnb": "4096",
            "kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "20"
        });
        world.set("/linux/sysctl", limits);
        world.script("cd /proc/sys; cat kernel/shmmax kernel/sem kernel/msgmnb kernel/shm_rmid_forced fs/mqueue/msg_max");
        assert_eq!(world.output(), "1000000\n100\t1000\t32\t64\n4096\n1\n20\n", "{:?}", world.runtime);
    });
}

#[test]
fn other_settings_are_refused_by_name() {
    dormouse(|world: &mut World| {
        world.script("true");
        for (name, word) in [
            ("kernel.shm_next_id", "the limits of IPC"),
            ("fs.mqueue.x", "the limits of IPC"),
            ("kernel.hostname", "hostname"),
            ("vm.swappiness", "the sandbox's kernel's own"),
            ("net.ipv4..x", "net.ipv4..x"),
        ] {
            world.set("/linux/sysctl", json!({name: "1"})).write();
            let output = world.run(&world.with_bundle("create", &[]));
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && text.contains(name) && text.contains(word), "{text}");
        }
        // A name that the namespace lacks.
        world.set("/linux/sysctl", json!({"net.core.nothing": "1"})).write();
        let output = world.run(&world.with_bundle("create", &[]));
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains("net.core.nothing"), "{text}");
    });
}
