use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use testdir::TempDir;
use vmm::jail::UserNamespace;

use super::*;

fn asked(settings: &[(&str, &str)]) -> Asked {
    let mut asked = Asked::default();
    settings.iter().for_each(|(name, value)| asked.set(name, value).unwrap());
    asked
}

fn settle(bundle: &[(&str, &str)], node: &str) -> Result<Settings, Widening> {
    Settings::settle(Asked::default(), &asked(bundle), &NodeConfig::parse(node).unwrap())
}

#[test]
fn strangers_may_ask_for_less() {
    for (name, value) in [
        ("userns", "mapped"),
        ("userns", "auto"),
        ("share-files", "off"),
        ("share", "none"),
        ("mitigations", "auto"),
        ("platform", "auto"),
        ("pause", "hibernate"),
        ("reap", "stream"),
        ("idle-timeout", "1s"),
        ("idle-ignores", "10.0.0.1,fd00::/8"),
        ("awake-at-most", "1h"),
        ("outbound", "sleep"),
        ("exec-probe", "asleep-is-alive"),
        ("exec-probe", "wake"),
        ("timers", "wake:1s"),
        ("timers", "sleep"),
        ("swap-limit", "1M"),
    ] {
        assert!(settle(&[(name, value)], "").is_ok(), "{name}={value}");
    }
}

#[test]
fn strangers_ask_for_more_only_where_the_node_allows_it() {
    for (name, value, node) in [
        ("userns", "identity", ""),
        ("userns", "host", "userns = 'identity'"),
        ("userns", "identity", "userns = 'mapped'"),
        ("platform", "systrap", ""),
        ("platform", "kvm", "platform = 'systrap'"),
        ("mitigations", "off", ""),
        ("share-files", "on", ""),
        ("host-uds", "connect", "host-uds = 'none'"),
        ("swap-dir", "/elsewhere", "swap-dir = '/here'"),
        ("swap-limit", "2G", "swap-limit = '1G'"),
        ("idle-timeout", "2m", "idle-timeout = '1m'"),
        ("idle-ignores", "", "idle-ignores = '10.0.0.1'"),
        ("idle-ignores", "10.0.0.2", "idle-ignores = '10.0.0.0/30'"),
        ("awake-at-most", "2m", "awake-at-most = '1m'"),
        ("outbound", "awake", "outbound = 'sleep'"),
        ("exec-probe", "wake", "exec-probe = 'asleep-is-alive'"),
        ("timers", "wake", "timers = 'sleep'"),
        ("timers", "wake:1m", "timers = 'coalesce:5m'"),
        ("timers", "coalesce:59s", "timers = 'wake:1m'"),
    ] {
        let refused = settle(&[(name, value)], node);
        assert_eq!(refused, Err(Widening { name }), "{name}={value} with {node}");
        let others = format!("{node}\nallow = ['{}']", if name == "userns" { "platform" } else { "userns" });
        assert!(settle(&[(name, value)], &others).is_err(), "{others} allows no {name}");
        let named = format!("{node}\nallow = ['{name}']");
        assert!(settle(&[(name, value)], &named).is_ok(), "{named}");
    }
}

#[test]
fn the_nodes_default_is_not_a_widening() {
    assert!(settle(&[("pods", "shared")], "pods = 'separate'").is_err());
    assert!(settle(&[("pods", "separate")], "").is_ok());
    let settings =
        settle(&[("userns", "host"), ("platform", "kvm")], "userns='host'\nplatform='kvm'").unwrap();
    assert_eq!((settings.userns, settings.platform), (UserNamespace::Host, PlatformChoice::Kvm));
    let settings = settle(&[], "idle-timeout = '1m'\nshare-files = 'on'").unwrap();
    assert_eq!(settings.hibernation.idle_timeout, Some(Duration::from_mins(1)));
    assert!(settings.share_files);
}

#[test]
fn the_command_counts_before_the_bundle_and_that_before_the_node() {
    let node = NodeConfig::parse("reap = 'off'\nidle-timeout = '3s'\nswap-limit = '3G'").unwrap();
    let bundle = asked(&[("reap", "on"), ("idle-timeout", "2s")]);
    let command = asked(&[("reap", "stream"), ("userns", "host")]);
    let settings = Settings::settle(command, &bundle, &node).unwrap();
    assert_eq!(settings.userns, UserNamespace::Host);
    let expected = asked(&[("reap", "stream"), ("idle-timeout", "2s"), ("swap-limit", "3G")]);
    assert_eq!(settings.hibernation, expected.hibernation);
}

#[test]
fn a_configuration_that_is_wrong_is_refused_in_words() {
    for (text, words) in [
        ("userns = 'none'", "userns is \"none\", which is neither auto, mapped, identity nor host"),
        ("idle-timeout = '5'", "idle-timeout is \"5\", which is no such amount"),
        ("idle-timeout = 5", "idle-timeout is no text"),
        ("swap-dir = 'here'", "no absolute path"),
        ("timers = 'wake:100ms'", "at least 1s and at most 24h"),
        ("fly = 'high'", "no setting \"fly\""),
        ("allow = 'userns'", "allow is no list"),
        ("allow = ['reap']", "\"reap\", which is none of platform"),
        ("reap = 'on'\nuserns = ", "line 2: "),
    ] {
        let why = NodeConfig::parse(text).unwrap_err();
        assert!(why.contains(words), "{text}: {why}");
    }
}

#[test]
fn a_configuration_that_others_can_write_is_refused() {
    let dir = TempDir::new();
    let path = dir.path().join("config.toml");
    let load = || NodeConfig::load(Some(&path)).map_err(|error| error.to_string());
    assert!(load().unwrap_err().contains("No such file"));
    fs::write(&path, "reap = 'off'").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(load().unwrap().default, asked(&[("reap", "off")]));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
    assert!(load().unwrap_err().contains("others than its owner may write it"));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(load().unwrap_err().contains("no regular file"));
}

#[test]
fn strangers_share_pages_as_the_node_does_or_allows() {
    let share = |whom| [("share", whom)];
    for (whom, node) in
        [("snapshot", ""), ("them", ""), ("them", "share = 'us'"), ("snapshot", "share = 'us'")]
    {
        assert_eq!(settle(&share(whom), node), Err(Widening { name: "share" }), "{whom}, {node}");
        assert!(settle(&share(whom), &format!("{node}\nallow = ['share']")).is_ok());
    }
    let us = Sharing::Domain(crate::state::Id::new("us").unwrap());
    let settled = settle(&share("us"), "share = 'us'").unwrap();
    assert!(settled.share == us && settled.asks_to_share);
    let settled = settle(&[], "share = 'us'").unwrap();
    assert!(settled.share == us && !settled.asks_to_share);
    assert_eq!(settle(&share("none"), "share = 'us'").unwrap().share, Sharing::None);
    assert_eq!("x".repeat(200).parse::<Sharing>().map(|_| ()), Ok(()));
    for bad in ["", "a/b", "../x", &"x".repeat(201)] {
        assert!(bad.parse::<Sharing>().is_err(), "{bad}");
    }
}

#[test]
fn a_snapshot_is_named_by_strangers_if_the_node_allows_it() {
    let name = [("snapshot", "web1")];
    let settled = settle(&name, "allow = ['snapshot']").unwrap();
    assert_eq!(settled.snapshot, FromSnapshot::Named(crate::state::Id::new("web1").unwrap()));
    assert_eq!(settle(&name, ""), Err(Widening { name: "snapshot" }));
    assert_eq!(settle(&name, "snapshot = 'none'"), Err(Widening { name: "snapshot" }));
    assert_eq!(settle(&[("snapshot", "none")], "").unwrap().snapshot, FromSnapshot::None);
    for bad in ["../x", "/var/lib/other", ""] {
        assert!(Asked::default().set("snapshot", bad).is_err(), "{bad}");
    }
    let node = NodeConfig::parse("snapshot-key-file = '/etc/dormouse/key'").unwrap();
    assert_eq!(node.snapshot_key_file.as_deref(), Some(std::path::Path::new("/etc/dormouse/key")));
    for bad in ["snapshot-key-file = 'key'", "snapshot-key-file = 1", "snapshot = 'web1'"] {
        assert!(NodeConfig::parse(bad).is_err(), "{bad}");
    }
}
