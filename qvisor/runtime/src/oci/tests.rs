use abi::boot::{MOUNT_NO_EXEC, MOUNT_NO_SUID, MOUNT_READ_ONLY, MOUNT_SHARED, MOUNT_VOLUME};
use abi::mount::{FileSystem, HostKind, Kind, Settings};
use serde_json::{Value, json};
use testdir::TempDir;

use super::*;

/// A bundle whose configuration is the default one, changed.
fn bundle(change: impl FnOnce(&mut Value)) -> TempDir {
    let dir = TempDir::new();
    std::fs::create_dir(dir.path().join("rootfs")).unwrap();
    let mut config: Value = serde_json::from_str(spec::DEFAULT).unwrap();
    change(&mut config);
    std::fs::write(dir.path().join(CONFIG), config.to_string()).unwrap();
    dir
}

fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let error = load(bundle(change).path()).unwrap_err().to_string();
    assert!(error.starts_with("cannot "), "{error}");
    assert!(error.contains("; "), "{error}");
    error
}

#[test]
fn the_default_configuration_is_accepted() {
    let dir = bundle(|_| {});
    let container = load(dir.path()).unwrap();
    assert!(container.terminal && container.root_read_only && container.boot.no_new_privs);
    assert_eq!(container.boot.args, [b"sh".to_vec()]);
    assert_eq!(container.boot.hostname, b"dormouse");
    assert_eq!(container.mounts.len(), 7);
    let caps = container.boot.capabilities.unwrap();
    assert_eq!((caps.bounding, caps.ambient), (1 << 29 | 1 << 5 | 1 << 10, 0));
    assert!(container.remarks.is_empty(), "{:?}", container.remarks);
}

#[test]
fn what_is_not_done_is_refused_by_name() {
    let cases: &[(&str, Value, &str)] = &[
        ("/process/scheduler", json!({"policy": "SCHED_FIFO"}), "process.scheduler"),
        (
            "/linux/devices",
            json!([{"path": "/dev/kvm", "type": "c", "major": 10, "minor": 232}]),
            "device /dev/kvm",
        ),
        ("/linux/sysctl", json!({"kernel.panic": "1"}), "linux.sysctl kernel.panic"),
        ("/linux/timeOffsets", json!({"boottime": {"secs": 1, "nanosecs": 0}}), "linux.timeOffsets"),
        ("/linux/personality", json!({"domain": "LINUX32"}), "linux.personality"),
        ("/linux/intelRdt", json!({"closID": "x"}), "linux.intelRdt"),
        ("/linux/resources", json!({"blockIO": {"leafWeight": 10}}), "linux.resources.blockIO.leafWeight"),
        ("/linux/resources", json!({"unified": {"memory.max": "1"}}), "linux.resources.unified memory.max"),
        ("/linux/namespaces", json!([{"type": "pid"}, {"type": "ipc"}]), "the host's mount namespace"),
        (
            "/linux/namespaces",
            json!([{"type": "pid", "path": "/proc/self/ns/pid"}]),
            "pid namespace /proc/self/ns/pid",
        ),
        ("/annotations", json!({"dev.dormouse.fly": "1"}), "annotation dev.dormouse.fly"),
        ("/mounts", json!([{"destination": "/x", "type": "nfs"}]), "mount /x of type \"nfs\""),
        ("/mounts", json!([{"destination": "/x", "type": "proc", "options": ["hidepid"]}]), "\"hidepid\""),
        ("/windows", json!({"layerFolders": []}), "windows"),
    ];
    for (place, value, words) in cases {
        let error = refusal(|config| put(config, place, value.clone()));
        assert!(error.contains(words) && error.contains("does not do"), "{place}: {error}");
    }
}

/// Sets a member, whether or not it is there.
fn put(config: &mut Value, place: &str, value: Value) {
    let (parent, name) = place.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap()[name] = value;
}

fn refuses_all(cases: &[(&str, Value, &str)]) {
    for (place, value, words) in cases {
        let error = refusal(|config| put(config, place, value.clone()));
        assert!(error.contains(words), "{place}: {words:?} is missing in: {error}");
    }
}

#[test]
fn what_is_wrong_with_namespaces_and_resources_is_said() {
    refuses_all(&[
        (
            "/linux/uidMappings",
            json!([{"containerID": 0, "hostID": 1, "size": 1}]),
            "users and groups must be mapped both",
        ),
        (
            "/linux/namespaces",
            json!([{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}, {"type": "user"}]),
            "linux.uidMappings, for the user namespace",
        ),
        ("/linux/rootfsPropagation", json!("wild"), "no propagation"),
        ("/linux/maskedPaths", json!(["x"]), "maskedPaths"),
        ("/linux/namespaces", json!([{"type": "network", "path": "/dev/null"}]), "it is no namespace"),
        ("/linux/namespaces", json!([{"type": "network", "path": "/proc/self/ns/uts"}]), "another kind"),
        (
            "/linux/namespaces",
            json!([{"type": "network", "path": "/nowhere"}]),
            "cannot join network namespace",
        ),
        ("/linux/namespaces", json!([{"type": "fun"}]), "fun"),
        ("/linux/namespaces", json!([{"type": "pid"}, {"type": "pid"}]), "twice"),
        ("/linux/resources", json!({"memory": {"limit": 1 << 30, "swap": 1 << 20}}), "less than memory"),
        ("/linux/resources", json!({"blockIO": {"weight": 9}}), "from 10 to 1000"),
        (
            "/linux/resources",
            json!({"blockIO": {"throttleReadBpsDevice": [{"major": -1, "minor": 0, "rate": 1}]}}),
            "no number of a device",
        ),
        ("/linux/resources", json!({"cpu": {"cpus": "x"}}), "list like 0-3,5"),
    ]);
}

#[test]
fn what_is_wrong_is_said() {
    let cases: &[(&str, Value, &str)] = &[
        ("/ociVersion", json!("9.0"), "ociVersion"),
        ("/ociVersion", json!(""), "ociVersion is missing"),
        ("/root", Value::Null, "root is missing"),
        ("/process", Value::Null, "process is missing"),
        ("/process/args", json!([]), "process.args is missing"),
        ("/process/args", json!("sh"), "expected a sequence"),
        ("/process/cwd", json!("x"), "process.cwd"),
        ("/process/env", json!(["x"]), "NAME=value"),
        ("/process/user", json!({"uid": -1, "gid": 0}), "invalid value"),
        ("/process/user", json!({"uid": 4_294_967_295_u32, "gid": 0}), "no user or group"),
        ("/process/user", json!({"uid": 0, "gid": 0, "umask": 512}), "umask"),
        ("/process/user", json!({"uid": 0, "gid": 0, "username": "x"}), "etc/passwd does not have"),
        ("/process/rlimits", json!([{"type": "RLIMIT_NOFILE", "soft": 2, "hard": 1}]), "soft limit"),
        ("/process/rlimits", json!([{"type": "RLIMIT_FUN", "soft": 1, "hard": 1}]), "RLIMIT_FUN"),
        ("/process/oomScoreAdj", json!(2000), "oomScoreAdj"),
        ("/root/path", json!("nowhere"), "root file system"),
        ("/root/path", json!("config.json"), "Not a directory"),
        (
            "/mounts",
            json!([{"destination": "/x", "type": "bind", "source": "/nowhere"}]),
            "cannot mount /nowhere",
        ),
        ("/mounts", json!([{"destination": "/", "type": "tmpfs"}]), "the root itself"),
        ("/mounts", json!([{"destination": "/a/../b", "type": "tmpfs"}]), "leads upwards"),
        ("/mounts", json!([{"destination": "/x", "type": "tmpfs", "options": ["size=much"]}]), "size=much"),
        ("/hooks", json!({"prestart": [{"path": "x"}]}), "path of a hook"),
        ("/hooks", json!({"prestart": [{"path": "/x", "timeout": 0}]}), "timeout of a hook"),
        ("/hostname", json!("x".repeat(65)), "hostname"),
        ("/annotations", json!({"dev.dormouse.platform": "xen"}), "neither auto, kvm nor systrap"),
        ("/annotations", json!({"dev.dormouse.userns": "x"}), "neither auto, mapped, identity nor host"),
    ];
    refuses_all(cases);
    let empty = TempDir::new();
    assert!(load(empty.path()).unwrap_err().to_string().contains("config.json"));
    std::fs::write(empty.path().join(CONFIG), "{").unwrap();
    assert!(load(empty.path()).unwrap_err().to_string().contains("EOF"));
    assert!(load(Path::new("/nowhere")).unwrap_err().to_string().contains("cannot use bundle /nowhere"));
}

#[test]
fn what_needs_no_doing_is_remarked() {
    let dir = bundle(|config| {
        config["linux"]["mountLabel"] = json!("label");
        config["process"]["apparmorProfile"] = json!("docker-default");
        config["linux"]["devices"] = json!([{"path": "/dev/null", "type": "c", "major": 1, "minor": 3}]);
        config["linux"]["resources"] = json!({"devices": [{"allow": true}], "blockIO": {"weight": 0}, "memory": {"disableOOMKiller": true}});
    });
    let remarks = load(dir.path()).unwrap().remarks;
    assert_eq!(remarks.len(), 4, "{remarks:?}");
    assert!(remarks.iter().any(|remark| remark.contains("linux.mountLabel")));
}

#[test]
fn mounts_keep_their_order_and_their_meaning() {
    let dir = bundle(|config| {
        config["mounts"] = json!([
            {"destination": "/a/b", "type": "bind", "source": "/etc", "options": ["rbind", "ro", "nosuid"]},
            {"destination": "a", "type": "tmpfs", "source": "shm", "options": ["size=64k", "mode=700", "noexec"]},
            {"destination": "/f", "source": "rootfs", "options": ["bind", "ro", "rw"]},
        ]);
    });
    let mounts = load(dir.path()).unwrap().mounts;
    assert_eq!(
        mounts.iter().map(|mount| mount.path.to_str().unwrap()).collect::<Vec<_>>(),
        ["/dev", "/a/b", "/a", "/f"]
    );
    let of_host = MOUNT_SHARED | MOUNT_VOLUME;
    let etc = HostSource { path: "/etc".into(), recursive: true, ..HostSource::default() };
    assert_eq!(mounts[1].kind, Kind::Host(HostKind::Bind, etc));
    assert_eq!(mounts[1].flags, MOUNT_READ_ONLY | MOUNT_NO_SUID | of_host);
    let settings = Settings { size_bytes: Some(65536), mode: Some(0o700), ..Settings::default() };
    assert_eq!(mounts[2].kind, Kind::Own(FileSystem::Tmpfs, settings));
    assert_eq!(mounts[2].source, Path::new("shm"));
    assert_eq!((mounts[2].flags, mounts[3].flags), (MOUNT_NO_EXEC, of_host));
}

#[test]
fn a_bundles_dev_has_the_devices_and_is_a_tmpfs() {
    let dev = |mount: Value| {
        let mounts = load(bundle(|config| config["mounts"] = mount).path()).unwrap().mounts;
        let dev = mounts.into_iter().find(|mount| mount.path == Path::new("/dev")).unwrap();
        (dev.kind.name(), dev.kind)
    };
    let with = |size_bytes, mode| Settings { size_bytes, mode, ..Settings::default() };
    let devices = |settings| ("tmpfs", Kind::Own(FileSystem::DevicesInTmpfs, settings));
    assert_eq!(dev(json!([])), devices(with(Some(65536), Some(0o755))));
    // Whatever its source is called. Of each setting the last one counts.
    let options = json!(["mode=700", "size=1k", "mode=711"]);
    let mount = json!([{"destination": "/dev", "type": "tmpfs", "source": "none", "options": options}]);
    assert_eq!(dev(mount), devices(with(Some(1024), Some(0o711))));
    let elsewhere = json!([{"destination": "/dev/shm", "type": "tmpfs", "source": "shm"}]);
    assert_eq!(dev(elsewhere), devices(with(Some(65536), Some(0o755))));
}

#[test]
fn a_fifo_holds_nobody_up() {
    let fifo = |dir: &TempDir, name: &str| {
        let path = dir.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        path
    };
    let dir = TempDir::new();
    fifo(&dir, CONFIG);
    assert!(load(dir.path()).unwrap_err().to_string().contains("it is no file"));
    let dir = TempDir::new();
    let path = fifo(&dir, "net");
    let namespaces = json!([{"type": "network", "path": path}]);
    let error = refusal(|config| put(config, "/linux/namespaces", namespaces));
    assert!(error.contains("it is no namespace"), "{error}");
}

#[test]
fn devices_of_the_host_are_left_out_of_privileged_containers_alone() {
    let kvm = json!({"path": "/dev/kvm", "type": "c", "major": 10, "minor": 232});
    let set = |config: &mut Value, rules: Value| {
        config["linux"]["devices"] = json!([kvm.clone()]);
        config["linux"]["resources"] = json!({"devices": rules});
    };
    let all = json!({"allow": true, "access": "rwm"});
    let dir = bundle(|config| set(config, json!([{"allow": false}, all])));
    let remarks = load(dir.path()).unwrap().remarks;
    assert!(remarks.iter().any(|remark| remark.contains("/dev/kvm")), "{remarks:?}");
    for rules in [
        json!([]),
        json!([{"allow": false, "access": "rwm"}]),
        json!([{"allow": true, "type": "c", "access": "rwm"}]),
        json!([{"allow": true, "type": "a", "major": 10, "access": "rwm"}]),
    ] {
        assert!(refusal(|config| set(config, rules.clone())).contains("/dev/kvm"), "{rules}");
    }
}

#[test]
fn the_last_word_on_propagation_counts() {
    let follows = |options: Value| {
        let mount = json!([{"destination": "/x", "type": "bind", "source": "/etc", "options": options}]);
        load(bundle(|config| config["mounts"] = mount).path()).unwrap().mounts[1]
            .files()
            .unwrap()
            .follows_host
    };
    assert!(follows(json!(["rbind", "rslave"])) && follows(json!(["private", "shared"])));
    assert!(!follows(json!(["rbind"])) && !follows(json!(["rslave", "rprivate"])));
}
