//! Bad input: one sentence, a non-zero exit code, and everything undone. Unit tests beside the code have the long list.

use serde_json::{Value, json};

use super::world::{both, dormouse};

#[test]
fn one_sentence_each() {
    let cases: &[(&str, Value, &[&str])] = &[
        ("/process/args", Value::Null, &["process.args is missing"]),
        ("/process/args", json!(7), &["cannot read", "invalid type"]),
        ("/process/cwd", json!("relative"), &["process.cwd"]),
        (
            "/process/user",
            json!({"uid": 0, "gid": 0, "username": "nobody-at-all"}),
            &["process.user.username"],
        ),
        ("/root/path", json!("nowhere"), &["cannot use root file system"]),
        (
            "/mounts",
            json!([{"destination": "/x", "type": "bind", "source": "/no/such/source"}]),
            &["cannot mount /no/such/source"],
        ),
        (
            "/mounts",
            json!([{"destination": "/x", "type": "ext4", "source": "/dev/sda"}]),
            &["mount /x of type"],
        ),
        (
            "/linux/namespaces",
            json!([{"type": "network", "path": "/etc/passwd"}]),
            &["network namespace /etc/passwd"],
        ),
        ("/linux/intelRdt", json!({"closID": "x"}), &["linux.intelRdt", "does not do"]),
    ];
    for (place, value, words) in cases {
        dormouse(|world| {
            world.set(place, value.clone()).write();
            for verb in ["create", "run"] {
                world.refused(&world.with_bundle(verb, &[]), words);
            }
            world.assert_gone();
        });
    }
}

#[test]
fn an_unknown_capability_is_left_out() {
    both(|world| {
        let known = json!(["CAP_KILL", "CAP_NONSENSE"]);
        world
            .set("/process/capabilities", json!({"bounding": known, "effective": known, "permitted": known}));
        world.script("grep -E '^Cap(Eff|Bnd)' /proc/self/status").write();
        assert_eq!(world.output(), "CapEff:\t0000000000000020\nCapBnd:\t0000000000000020\n");
    });
}

#[test]
fn no_bundle_and_no_configuration() {
    dormouse(|world| {
        world
            .refused(&["create", "--bundle", "/no/such/bundle", "x"], &["cannot use bundle /no/such/bundle"]);
        world.refused(&world.with_bundle("create", &[]), &["cannot use bundle", "config.json"]);
        for text in ["", "{", "{\"ociVersion\": 1}", "\u{0}", "not json"] {
            std::fs::write(world.dir.join("config.json"), text).unwrap();
            world.refused(&world.with_bundle("create", &[]), &["cannot read", "config.json"]);
        }
        std::fs::write(world.dir.join("config.json"), "{}").unwrap();
        world.refused(&world.with_bundle("create", &[]), &["ociVersion is missing"]);
        world.assert_gone();
    });
}

#[test]
fn a_pid_file_that_cannot_be_written() {
    both(|world| {
        world.script("true").write();
        let output = world.run(&world.with_bundle("create", &["--pid-file", "/no/such/dir/pid"]));
        assert!(!output.status.success(), "{:?}", world.runtime);
        if world.is_dormouse() {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(text.contains("cannot write pid file /no/such/dir/pid"), "{text}");
            world.assert_gone();
        }
    });
}

#[test]
fn what_makes_no_sense_inside_is_told_as_well() {
    dormouse(|world| {
        std::fs::write(world.rootfs().join("file"), "").unwrap();
        world.set("/process/cwd", json!("/file")).write();
        world.refused(&world.with_bundle("create", &[]), &["working directory /file"]);
        world.set("/process/cwd", json!("/"));
        world.mount(json!({"destination": "/file", "type": "tmpfs", "source": "tmpfs"})).write();
        world.refused(&world.with_bundle("create", &[]), &["mount /file"]);
        world.assert_gone();
    });
}

#[test]
fn an_id_is_as_long_as_a_file_name_can_be() {
    both(|world| {
        let id = format!("{}-{}", world.id, "x".repeat(255));
        world.id = id[..255].to_owned();
        world.script("sleep 1000").create().start();
        assert_eq!(world.ok(&["exec", &world.id, "echo", "inside"]), "inside\n");
        world.ok(&["kill", &world.id, "KILL"]);
        world.wait_status("stopped");
        world.delete();
        world.assert_gone();
        world.id = id[..256].to_owned();
        world.write();
        assert!(!world.run(&world.with_bundle("create", &[])).status.success(), "{:?}", world.runtime);
        world.assert_gone();
    });
}
