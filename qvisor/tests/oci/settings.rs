//! Who may say how a container is run: strangers, by annotations, and the node's configuration.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::json;

use super::world::{World, dormouse};

/// Writes a configuration; result: its path.
pub(super) fn configure(world: &World, text: &str) -> String {
    let path = world.dir.join("node.toml");
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Creates the container on a node with this configuration.
pub(super) fn create(world: &World, config: &str) {
    let out = fs::File::create(world.dir.join("out")).unwrap();
    let err = fs::File::create(world.dir.join("err")).unwrap();
    let pid = world.dir.join("pid");
    let options = ["--config", config, "--pid-file", pid.to_str().unwrap()];
    let created = world.command(&world.with_bundle("create", &options)).stdout(out).stderr(err).status();
    assert!(created.unwrap().success(), "{}", world.read("err"));
}

/// Whether the container's VMM is in the user namespace of the host.
fn has_hosts_users(world: &World) -> bool {
    let namespace = |pid: &str| fs::read_link(Path::new("/proc").join(pid).join("ns/user")).unwrap();
    namespace(&world.vmm().to_string()) == namespace("self")
}

#[test]
fn strangers_get_no_more_than_the_node_gives() {
    dormouse(|world| {
        world.script("sleep 100").set("/annotations", json!({"dev.dormouse.userns": "host"})).write();
        let refused = ["dev.dormouse.userns", "asks for more than this node gives", "allow"];
        world.refused(&world.with_bundle("create", &[]), &refused);
        let config = configure(world, "allow = ['platform']");
        world.refused(&world.with_bundle("create", &["--config", &config]), &refused);
        let config = configure(world, "allow = ['userns']");
        create(world, &config);
        assert!(has_hosts_users(world));
        world.ok(&["delete", "--force", &world.id]);
        world.set("/annotations", json!({})).write();
        create(world, &config);
        assert!(!has_hosts_users(world), "nobody asked for it");
    });
}

#[test]
fn the_nodes_configuration_counts() {
    dormouse(|world| {
        world.script("echo up; sleep 100").set("/annotations", json!({})).write();
        let config = configure(world, "userns = 'host'\nidle-timeout = '100ms'\n");
        create(world, &config);
        assert!(has_hosts_users(world));
        world.start().wait_output("up");
        world.wait_state("hibernated");
        let bad = configure(world, "userns = 'nobody'");
        world.refused(
            &["create", "--config", &bad, "other"],
            &[&bad, "neither auto, mapped, identity nor host"],
        );
    });
}
