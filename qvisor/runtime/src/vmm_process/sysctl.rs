//! Settings of the network namespace: a bundle's are written, and what the sandbox's kernel is to show is read.
//!
//! Both happen while the VMM still sees the host's `/proc`. So the sandbox shows the values of its creation, and the jail
//! stays as it is.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use abi::sysctl::{DEVICES, NET, OWN, PING_GROUP_RANGE, UNPRIVILEGED_PORT_START, VALUE_MAX};
use vmm::host_paths::HostPaths;
use vmm::net::{self, Network, Owner};

use super::error::VmmError;

const ROOT: &str = "/proc/sys";
/// Anybody may ping and bind any port. The first one is no value that others set, so the next sandbox in this network
/// knows whose they are.
const OPENED: [(&str, &str); 2] = [(PING_GROUP_RANGE, "0 2147483646"), (UNPRIVILEGED_PORT_START, "0")];
/// Those of a new network namespace.
const DEFAULTS: [(&str, &str); 2] = [(PING_GROUP_RANGE, "1 0"), (UNPRIVILEGED_PORT_START, "1024")];

/// Applies settings by their names below `/proc/sys`.
pub(crate) fn write(_: &HostPaths, settings: &[(String, String)]) -> Result<(), VmmError> {
    for (name, value) in settings {
        fs::write(Path::new(ROOT).join(name), value)
            .map_err(|source| VmmError::Sysctl { name: name.replace('/', "."), source })?;
    }
    Ok(())
}

/// The settings of the network that the sandbox is in, with their values. `asked`: those that were written.
///
/// In a network of containers the VMM opens low ports and pings to itself, as it has no privilege there: the sandbox's
/// kernel decides who may. It shows what was asked, or Linux's defaults. A network by path that has others' settings
/// of these keeps them, and they are shown.
pub(super) fn read(
    _: &HostPaths,
    network: &Network,
    owner: Owner,
    asked: &[(String, String)],
) -> Vec<(String, Vec<u8>)> {
    let is_asked = |name: &str| asked.iter().any(|(asked, _)| asked == name);
    let opens = owner == Owner::Container
        && (*network == Network::None || DEFAULTS.iter().all(has) || has(&OPENED[0]));
    let is_opened = |name: &str| opens && OPENED.iter().any(|(opened, _)| *opened == name);
    let shown = NET.iter().filter(|name| !is_opened(name) || is_asked(name));
    let own = (*network == Network::None).then(|| (OWN.to_owned(), Vec::new()));
    let devices = net::devices_may_be_chosen().then(|| (DEVICES.to_owned(), Vec::new()));
    let values = shown.filter_map(|name| Some(((*name).to_owned(), value(name)?)));
    let values = values.chain(own).chain(devices).collect();
    if opens {
        for (name, value) in OPENED {
            // Best effort: where the settings do not exist only those calls fail.
            let _ = fs::write(Path::new(ROOT).join(name), value);
        }
    }
    values
}

fn has((name, wanted): &(&str, &str)) -> bool {
    let value = value(name).unwrap_or_default();
    String::from_utf8_lossy(&value).split_ascii_whitespace().eq(wanted.split(' '))
}

/// `None`: this namespace does not have it.
fn value(name: &str) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let file = File::open(Path::new(ROOT).join(name)).ok()?;
    file.take(VALUE_MAX as u64).read_to_end(&mut value).ok()?;
    Some(value)
}
