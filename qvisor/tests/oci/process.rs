//! Attributes of the container's process, compared word for word with runc.

use serde_json::json;

use super::world::{World, both, dormouse};

const SCRIPT: &str = "id -u; id -g; id -G; umask; pwd; env | sort; hostname; ulimit -n; ulimit -Hn; ulimit -c; \
                      grep -E '^(Cap|NoNewPrivs)' /proc/self/status; cat /proc/sys/kernel/domainname; \
                      tty; readlink /proc/self/ns/none";

/// Runs the same bundle with both runtimes; their output must be the same.
fn same(change: impl Fn(&mut World)) -> String {
    let said = std::cell::RefCell::new(Vec::new());
    both(|world| {
        change(world);
        let (code, out, _) = world.run_container();
        said.borrow_mut().push((code, out));
    });
    let said = said.into_inner();
    if let [oracle, own] = said.as_slice() {
        assert_eq!(own, oracle);
    }
    said.into_iter().next_back().map(|(_, out)| out).unwrap_or_default()
}

#[test]
fn root_with_few_capabilities() {
    let said = same(|world| {
        world.script(SCRIPT).set("/process/env", json!(["PATH=/bin", "A=b c", "EMPTY="]));
    });
    assert!(said.is_empty() || said.contains("CapEff:\t0000000020000420"), "{said}");
}

#[test]
fn a_user_with_groups_and_a_mask() {
    let said = same(|world| {
        let user = json!({"uid": 1000, "gid": 100, "additionalGids": [27, 5], "umask": 0o77});
        world.script(SCRIPT).set("/process/user", user).set("/process/cwd", json!("/made/for/it"));
        world.set("/process/noNewPrivileges", json!(false));
    });
    assert!(said.is_empty() || said.contains("100 5 27") && said.contains("/made/for/it"), "{said}");
}

#[test]
fn a_user_with_ambient_capabilities() {
    let said = same(|world| {
        let set = json!(["CAP_NET_BIND_SERVICE", "CAP_CHOWN"]);
        let capabilities = json!({
            "bounding": set, "permitted": set, "effective": set, "inheritable": set,
            "ambient": ["CAP_NET_BIND_SERVICE"],
        });
        world.script(SCRIPT).set("/process/capabilities", capabilities);
        world.set("/process/user", json!({"uid": 7, "gid": 7}));
    });
    assert!(said.is_empty() || said.contains("CapAmb:\t0000000000000400"), "{said}");
}

#[test]
fn without_capabilities_root_owns_nothing() {
    same(|world| {
        world.script("grep ^Cap /proc/self/status; chmod 700 /f; cat /g; hostname x; kill -0 1; echo done");
        world.set("/process/capabilities", json!({}));
        let (own, others) = (world.rootfs().join("f"), world.rootfs().join("g"));
        std::fs::write(&own, "own").unwrap();
        std::fs::write(&others, "others").unwrap();
        std::os::unix::fs::chown(&others, Some(5), Some(5)).unwrap();
        std::fs::set_permissions(&others, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    });
}

#[test]
fn limits_of_resources() {
    let said = same(|world| {
        let limits = json!([
            {"type": "RLIMIT_NOFILE", "soft": 100, "hard": 200},
            {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
            {"type": "RLIMIT_STACK", "soft": 1_048_576, "hard": 4_194_304},
            {"type": "RLIMIT_FSIZE", "soft": 4096, "hard": 4096},
        ]);
        world.script(
            "ulimit -n; ulimit -Hn; ulimit -s; ulimit -f; grep -E 'stack|open|size' /proc/self/limits",
        );
        world.set("/process/rlimits", limits);
    });
    assert!(said.is_empty() || said.starts_with("100\n200\n1024\n"), "{said}");
}

#[test]
fn exit_codes_are_the_programs() {
    for (script, code) in [("exit 42", 42), ("kill -9 $$", 137), ("kill -SEGV $$", 139)] {
        both(|world| {
            // The signal goes to a process below the first one, which may ignore signals that it does not handle.
            world.script(&format!("sh -c '{}'", script.replace("$$", "$PPID; kill $PPID")));
            world.script(&format!("sh -c '{script}'; exit $?"));
            let (found, ..) = world.run_container();
            assert_eq!(found, Some(code), "{:?} {script}", world.runtime);
        });
    }
}

#[test]
fn domain_name_and_host_name() {
    dormouse(|world| {
        world.script("hostname; cat /proc/sys/kernel/domainname").set("/domainname", json!("example.org"));
        assert_eq!(world.output(), "dormouse\nexample.org\n");
    });
}

#[test]
fn programs_that_are_not_there() {
    for (program, words, code) in [
        ("nosuch", "no such file", 127),
        ("/nosuch", "no such file", 127),
        ("/config", "not executable", 126),
        ("/bin", "not executable", 126),
    ] {
        dormouse(|world| {
            std::fs::write(world.rootfs().join("config"), "text").unwrap();
            world.set("/process/args", json!([program])).write();
            let found = world.run(&world.with_bundle("run", &[]));
            let text = String::from_utf8_lossy(&found.stderr).into_owned();
            assert_eq!(found.status.code(), Some(code), "{text}");
            assert!(text.contains(words) && text.lines().count() == 1, "{text}");
            world.assert_gone();
            world.refused(&world.with_bundle("create", &[]), &[program, words]);
            world.assert_gone();
        });
    }
}

#[test]
fn a_program_that_is_none_is_known_at_its_start() {
    dormouse(|world| {
        let broken = world.rootfs().join("broken");
        std::fs::write(&broken, "\x7fELF nothing").unwrap();
        std::fs::set_permissions(&broken, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        world.set("/process/args", json!(["/broken"])).create();
        world.refused(&["start", &world.id], &["cannot start container", "not a program for x86-64 Linux"]);
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn the_oom_score_is_inherited() {
    both(|world| {
        world.set("/process/oomScoreAdj", json!(321));
        world.script("cat /proc/self/oom_score_adj; sh -c 'cat /proc/$$/oom_score_adj'");
        assert_eq!(world.output(), "321\n321\n", "{:?}", world.runtime);
    });
}

#[test]
fn the_file_system_of_devices_is_a_tmpfs() {
    both(|world| {
        world.script("grep -c ' /dev .* - tmpfs tmpfs ' /proc/self/mountinfo");
        assert_eq!(world.output(), "1\n", "{:?}", world.runtime);
    });
}
