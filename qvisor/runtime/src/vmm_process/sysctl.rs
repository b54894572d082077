//! Settings of the network namespace: a bundle's are written, and what the sandbox's kernel is to show is read.
//!
//! Both happen while the VMM still sees the host's `/proc`. So the sandbox shows the values of its creation, and the jail
//! stays as it is.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use abi::sysctl::{NET, PING_GROUP_RANGE, UNPRIVILEGED_PORT_START, VALUE_MAX};
use vmm::net::{self, Network};

use super::error::VmmError;

const ROOT: &str = "/proc/sys";

/// Applies settings by their names below `/proc/sys`.
pub(crate) fn write(settings: &[(String, String)]) -> Result<(), VmmError> {
    for (name, value) in settings {
        fs::write(Path::new(ROOT).join(name), value)
            .map_err(|source| VmmError::Sysctl { name: name.replace('/', "."), source })?;
    }
    Ok(())
}

/// The settings of the network that the sandbox is in, with their values. `asked`: those that were written.
pub(super) fn read(network: &Network, asked: &[(String, String)]) -> Vec<(String, Vec<u8>)> {
    let is_asked = |name: &str| asked.iter().any(|(asked, _)| asked == name);
    // In a network of the sandbox's own the VMM has opened these to itself; the sandbox's kernel decides who may.
    let is_ours =
        |name: &str| *network == Network::None && [UNPRIVILEGED_PORT_START, PING_GROUP_RANGE].contains(&name);
    let shown = NET.iter().filter(|name| !is_ours(name) || is_asked(name));
    let values = shown.filter_map(|name| Some(((*name).to_owned(), value(name)?))).collect();
    if NET.iter().any(|name| is_ours(name) && is_asked(name)) {
        net::leave_low_ports_to_the_guest();
    }
    values
}

/// `None`: this namespace does not have it.
fn value(name: &str) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let file = File::open(Path::new(ROOT).join(name)).ok()?;
    file.take(VALUE_MAX as u64).read_to_end(&mut value).ok()?;
    Some(value)
}
