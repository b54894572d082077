//! Settings of the host's network namespace that the sandbox's sockets are in, as they were when the sandbox was made, and what
//! programs have made of them where the network is the sandbox's own. Of what they write only the first port that anybody may bind, the ports
//! that sockets get which name none, and the datagrams that may wait for a Unix socket have an effect.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use abi::sysctl::{DEVICES, OWN, UNPRIVILEGED_PORT_START, VALUE_MAX};
use abi::word::low16;
use machine::errno::{Errno, Result};
use machine::host_fact::HostFact;
use machine::sync::{Rank, SpinLock};

/// Congestion controls that programs may choose.
const CONGESTION: [&str; 2] = ["reno", "cubic"];

/// The ports that sockets get which name none.
const LOCAL_PORT_RANGE: &str = "net/ipv4/ip_local_port_range";

/// The first port that anybody may bind, where the host did not say.
const FREE_PORTS: u16 = 1024;

/// [`DEVICES`] is among the settings. Every message looks here.
static MAY_CHOOSE_DEVICES: AtomicBool = AtomicBool::new(false);

/// The range that programs have written to `ip_local_port_range`: the first port in the lower 16 bits, the last above.
/// 0: none.
static LOCAL_PORTS: AtomicU64 = AtomicU64::new(0);

static SETTINGS: HostFact<BTreeMap<Vec<u8>, Vec<u8>>> = HostFact::unknown();

/// Takes the host's settings, by their names below `/proc/sys`.
pub fn take(settings: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
    let settings = SETTINGS.set(settings.into_iter().collect());
    MAY_CHOOSE_DEVICES.store(settings.contains_key(DEVICES.as_bytes()), Ordering::Relaxed);
}

/// A setting as the host shows it.
pub fn value(name: &str) -> Option<Vec<u8>> {
    SETTINGS.get()?.get(name.as_bytes()).cloned()
}

/// The settings that programs have written, in a network of the sandbox's own.
static WRITTEN: SpinLock<BTreeMap<&'static str, Vec<u8>>> = SpinLock::new(Rank::Leaf, BTreeMap::new());

/// A setting as programs see it.
pub fn shown(name: &'static str, default: &[u8]) -> Vec<u8> {
    let written = WRITTEN.lock().get(name).cloned();
    written.or_else(|| value(name)).unwrap_or_else(|| default.to_vec())
}

/// A program has written a setting. Where the network is the host's, or other containers are in it, nothing comes of it.
pub fn store(name: &'static str, default: &[u8], bytes: &[u8]) -> Result<()> {
    if value(OWN).is_none() {
        return Ok(());
    }
    let text = core::str::from_utf8(bytes).map_err(|_| Errno::EINVAL)?;
    let new = changed(name, &shown(name, default), text.trim_matches(['\0', ' ', '\t', '\n']))?;
    let ports = numbers(core::str::from_utf8(&new).unwrap_or_default()).unwrap_or_default();
    let mut written = WRITTEN.lock();
    if name == LOCAL_PORT_RANGE
        && let [low, high] = ports[..]
    {
        let port = |number| u16::try_from(number).map_or(0, u64::from);
        LOCAL_PORTS.store(port(low) | port(high) << 16, Ordering::Relaxed);
    }
    written.insert(name, new);
    Ok(())
}

/// The first and the last of the ports that sockets get which name none, if programs have said so; else the host knows.
pub fn local_ports() -> Option<(u16, u16)> {
    let [low, high] = [0, 16].map(|shift| low16(LOCAL_PORTS.load(Ordering::Relaxed) >> shift));
    (low != 0).then_some((low, high))
}

/// Returns the text of a setting once `text` is written to it. `EINVAL`: the setting does not take it.
/// `ENOENT`: it names something that there is not.
fn changed(name: &str, now: &[u8], text: &str) -> Result<Vec<u8>> {
    let line = |text: &str| [text.as_bytes(), b"\n"].concat();
    match name {
        "net/ipv4/tcp_congestion_control" => {
            let is_known = CONGESTION.contains(&text);
            return if is_known { Ok(line(text)) } else { Err(Errno::ENOENT) };
        }
        "net/ipv4/ip_local_reserved_ports" => {
            let is_list = text.len() < VALUE_MAX
                && text.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b',' | b'-'));
            return if is_list { Ok(line(text)) } else { Err(Errno::EINVAL) };
        }
        _ => {}
    }
    let mut numbers = numbers(core::str::from_utf8(now).unwrap_or_default())?;
    let given = self::numbers(text)?;
    if given.is_empty() {
        return Err(Errno::EINVAL);
    }
    // Those behind the ones that were given stay, and more than there are mean nothing.
    numbers.iter_mut().zip(&given).for_each(|(number, given)| *number = *given);
    check(name, &numbers)?;
    let text: Vec<String> = numbers.iter().map(|number| format!("{number}")).collect();
    Ok(line(&text.join("\t")))
}

fn numbers(text: &str) -> Result<Vec<i32>> {
    text.split_ascii_whitespace().map(|word| word.parse().map_err(|_| Errno::EINVAL)).collect()
}

/// The bounds of the settings that have some.
fn check(name: &str, numbers: &[i32]) -> Result<()> {
    const PORTS: core::ops::RangeInclusive<i32> = 1..=65_535;
    let first = numbers.first().copied().unwrap_or(0);
    let fits = match (name, numbers) {
        ("net/ipv4/ip_default_ttl", _) => (1..=255).contains(&first),
        (LOCAL_PORT_RANGE, &[low, high]) => {
            PORTS.contains(&low) && PORTS.contains(&high) && low <= high && low >= i32::from(free_ports())
        }
        (UNPRIVILEGED_PORT_START, _) => {
            let range = self::numbers(&String::from_utf8_lossy(&shown(LOCAL_PORT_RANGE, b"32768")))?;
            first >= 0 && range.first().is_some_and(|low| first <= *low)
        }
        ("net/core/somaxconn" | "net/core/optmem_max" | "net/unix/max_dgram_qlen", _) => first >= 0,
        _ => true,
    };
    if fits { Ok(()) } else { Err(Errno::EINVAL) }
}

/// How many datagrams may wait for a Unix socket that is made now.
pub fn datagrams_max() -> usize {
    let text = shown("net/unix/max_dgram_qlen", b"512\n");
    core::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(usize::MAX)
}

/// Whether a socket may choose the device that its messages take. Where the network is the host's, the routes alone say that.
pub fn devices_may_be_chosen() -> bool {
    MAY_CHOOSE_DEVICES.load(Ordering::Relaxed)
}

/// The first port that anybody may bind.
pub fn free_ports() -> u16 {
    let written = WRITTEN.lock().get(UNPRIVILEGED_PORT_START).cloned();
    let value = written.or_else(|| value(UNPRIVILEGED_PORT_START));
    value.as_deref().and_then(port).unwrap_or(FREE_PORTS)
}

fn port(text: &[u8]) -> Option<u16> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_replace_numbers() {
        let text =
            |name, now: &[u8], text| changed(name, now, text).map(|new| String::from_utf8(new).unwrap());
        assert_eq!(text("net/ipv4/ip_forward", b"0\n", "1"), Ok("1\n".into()));
        assert_eq!(text("net/ipv4/tcp_rmem", b"1\t2\t3\n", "4 5"), Ok("4\t5\t3\n".into()));
        assert_eq!(text("net/ipv4/tcp_rmem", b"1\t2\t3\n", "4 5 6 7"), Ok("4\t5\t6\n".into()));
        for bad in ["", "x", "1 x", "99999999999"] {
            assert_eq!(text("net/ipv4/ip_forward", b"0\n", bad), Err(Errno::EINVAL));
        }
        assert_eq!(text("net/ipv4/ip_default_ttl", b"64\n", "300"), Err(Errno::EINVAL));
        assert_eq!(text("net/ipv4/ip_local_port_range", b"1\t2\n", "2000\t1999"), Err(Errno::EINVAL));
        assert_eq!(text("net/ipv4/ip_local_port_range", b"1\t2\n", "2000\t3000"), Ok("2000\t3000\n".into()));
        assert_eq!(text("net/ipv4/tcp_congestion_control", b"cubic\n", "foo"), Err(Errno::ENOENT));
        assert_eq!(text("net/ipv4/tcp_congestion_control", b"cubic\n", "reno"), Ok("reno\n".into()));
    }

    #[test]
    fn ports_are_numbers() {
        assert_eq!(
            (port(b"0\n"), port(b"1024\n"), port(b"65536\n"), port(b"x")),
            (Some(0), Some(1024), None, None)
        );
    }
}
