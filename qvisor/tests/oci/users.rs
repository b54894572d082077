//! Users of bundles: user namespaces with id mappings, names, and the owners of files.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use serde_json::json;

use super::world::{World, both, dormouse};

/// The id on the host that root in the container is.
const BASE: u32 = 100_000;

fn give(path: &Path, owner: u32) {
    chown(path, Some(owner), Some(owner)).unwrap();
    if path.is_dir() && !path.is_symlink() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path(), owner));
    }
}

/// A user namespace in which root is [`BASE`], and 1000 is the host's 7.
fn map(world: &mut World) {
    let maps = json!([
        {"containerID": 0, "hostID": BASE, "size": 1000},
        {"containerID": 1000, "hostID": 7, "size": 1},
    ]);
    world.config["linux"]["namespaces"].as_array_mut().unwrap().push(json!({"type": "user"}));
    world.set("/linux/uidMappings", maps.clone()).set("/linux/gidMappings", maps);
    for entry in fs::read_dir(world.rootfs()).unwrap() {
        // Links are not followed.
        let path = entry.unwrap().path();
        if path.is_dir() {
            chown(&path, Some(BASE), Some(BASE)).unwrap();
        }
    }
    chown(world.rootfs(), Some(BASE), Some(BASE)).unwrap();
}

#[test]
fn files_belong_to_the_mapped_ids() {
    both(|world| {
        map(world);
        fs::create_dir(world.rootfs().join("theirs")).unwrap();
        fs::write(world.rootfs().join("theirs/secret"), "x").unwrap();
        give(&world.rootfs().join("theirs"), 7);
        fs::write(world.rootfs().join("roots"), "x").unwrap();
        world.set("/process/capabilities", json!({}));
        world.script(
            "cat /proc/self/uid_map /proc/self/gid_map | tr -s ' '; id -u; stat -c '%u %g' /bin /theirs /theirs/secret /roots; echo new >/file; stat -c %u /file; \
             cat /roots >/dev/null && echo x >/roots || echo refused",
        );
        let out = world.output();
        let maps = " 0 100000 1000\n 1000 7 1\n".repeat(2);
        assert_eq!(
            out,
            maps + "0\n0 0\n1000 1000\n1000 1000\n65534 65534\n0\nrefused\n",
            "{:?}",
            world.runtime
        );
        let made = fs::metadata(world.rootfs().join("file")).unwrap();
        assert_eq!((made.uid(), made.gid()), (BASE, BASE), "{:?}", world.runtime);
    });
}

#[test]
fn orders_reach_a_container_with_a_user_namespace() {
    both(|world| {
        map(world);
        world.script("echo up; while true; do sleep 0.05; done").create().start();
        world.wait_output("up");
        assert_eq!(world.ok(&["exec", &world.id, "id", "-u"]), "0\n");
        if world.is_dormouse() {
            world.ok(&["hibernate", &world.id]);
            world.ok(&["wake", &world.id]);
        }
        world.ok(&["kill", &world.id, "KILL"]);
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn a_mounts_ids_are_mapped() {
    // runc does this from 1.2 on.
    dormouse(|world| {
        let source = world.dir.join("volume");
        fs::create_dir(&source).unwrap();
        fs::write(source.join("five"), "").unwrap();
        give(&source, 5);
        let maps = json!([{"containerID": 5, "hostID": BASE, "size": 1}]);
        world.mount(json!({
            "destination": "/volume", "type": "bind", "source": source, "options": ["rbind", "idmap"],
            "uidMappings": maps, "gidMappings": maps,
        }));
        map(world);
        world.script("stat -c %u /volume/five; echo >/volume/new");
        assert_eq!(world.output(), "0\n");
        assert_eq!(fs::metadata(source.join("new")).unwrap().uid(), 5);
    });
}

#[test]
fn a_name_is_a_user_of_the_root_file_system() {
    dormouse(|world| {
        let etc = world.rootfs().join("etc");
        fs::create_dir(&etc).unwrap();
        fs::write(etc.join("passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n").unwrap();
        fs::write(etc.join("group"), "web:x:34:\nlogs:x:40:web\n").unwrap();
        world.set("/process/user", json!({"uid": 0, "gid": 0, "username": "web"}));
        world.script("id -u; id -G; echo $HOME");
        assert_eq!(world.output(), "33\n34 40\n/srv\n");
        world.set("/process/user", json!({"uid": 0, "gid": 0, "username": "nobody-here"})).write();
        world.refused(&world.with_bundle("create", &[]), &["nobody-here", "/etc/passwd"]);
    });
}
