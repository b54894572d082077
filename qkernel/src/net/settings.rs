//! Settings of the host's network namespace that the sandbox's sockets are in, as they were when the sandbox was made.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use abi::sysctl::UNPRIVILEGED_PORT_START;
use machine::sync::Once;

/// The first port that anybody may bind, where the host did not say.
const FREE_PORTS: u16 = 1024;

static SETTINGS: Once<BTreeMap<Vec<u8>, Vec<u8>>> = Once::new();

/// Takes the host's settings, by their names below `/proc/sys`. The first call counts.
pub fn take(settings: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
    SETTINGS.call_once(|| settings.into_iter().collect());
}

/// A setting as the host shows it.
pub fn value(name: &str) -> Option<&'static [u8]> {
    SETTINGS.get()?.get(name.as_bytes()).map(Vec::as_slice)
}

/// The first port that anybody may bind.
pub fn free_ports() -> u16 {
    value(UNPRIVILEGED_PORT_START).and_then(port).unwrap_or(FREE_PORTS)
}

fn port(text: &[u8]) -> Option<u16> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_numbers() {
        assert_eq!(
            (port(b"0\n"), port(b"1024\n"), port(b"65536\n"), port(b"x")),
            (Some(0), Some(1024), None, None)
        );
    }
}
