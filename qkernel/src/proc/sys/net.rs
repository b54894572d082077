//! `/proc/sys/net`: the settings of the host's network namespace as they were when the sandbox was made, or Linux's defaults. In a
//! network of the sandbox's own they can be changed, and are kept.

use core::marker::PhantomData;

use crate::net::settings;
use crate::pseudo::Entry;

/// A file that shows a setting of the host's, or this default, and changes it where the network is the sandbox's own.
macro_rules! setting {
    ($name:literal, $path:literal, $default:literal) => {
        Entry::setting(
            $name,
            |_, out| {
                out.push(&settings::shown($path, $default.as_bytes()));
                Ok(())
            },
            |_, bytes| settings::store($path, $default.as_bytes(), bytes),
        )
    };
}

/// One that belongs to no network alone: it is the host's to change.
macro_rules! fixed {
    ($name:literal, $path:literal, $default:literal) => {
        Entry::text($name, |_, out| {
            out.push(settings::value($path).as_deref().unwrap_or($default.as_bytes()));
            Ok(())
        })
        .mode(0o644)
    };
}

/// The tables, for whatever the entries around them are about.
pub(super) struct Settings<C>(PhantomData<C>);

impl<C: 'static> Settings<C> {
    /// The directory.
    pub(super) const TABLE: &'static [Entry<C>] = &[
        Entry::dir("core", Self::CORE),
        Entry::dir("ipv4", Self::IPV4),
        Entry::dir("ipv6", Self::IPV6),
        Entry::dir("unix", Self::UNIX),
    ];

    const CORE: &'static [Entry<C>] = &[
        fixed!("default_qdisc", "net/core/default_qdisc", "pfifo_fast\n"),
        fixed!("netdev_max_backlog", "net/core/netdev_max_backlog", "1000\n"),
        setting!("optmem_max", "net/core/optmem_max", "131072\n"),
        fixed!("rmem_default", "net/core/rmem_default", "212992\n"),
        fixed!("rmem_max", "net/core/rmem_max", "212992\n"),
        setting!("somaxconn", "net/core/somaxconn", "4096\n"),
        fixed!("wmem_default", "net/core/wmem_default", "212992\n"),
        fixed!("wmem_max", "net/core/wmem_max", "212992\n"),
    ];

    const IPV4: &'static [Entry<C>] = &[
        Entry::dir("conf", &[Entry::dir("all", Self::IPV4_ALL), Entry::dir("default", Self::IPV4_DEFAULT)]),
        setting!("ip_default_ttl", "net/ipv4/ip_default_ttl", "64\n"),
        setting!("ip_forward", "net/ipv4/ip_forward", "0\n"),
        setting!("ip_local_port_range", "net/ipv4/ip_local_port_range", "32768\t60999\n"),
        setting!("ip_local_reserved_ports", "net/ipv4/ip_local_reserved_ports", "\n"),
        setting!("ip_nonlocal_bind", "net/ipv4/ip_nonlocal_bind", "0\n"),
        setting!("ip_unprivileged_port_start", "net/ipv4/ip_unprivileged_port_start", "1024\n"),
        setting!("ping_group_range", "net/ipv4/ping_group_range", "1\t0\n"),
        fixed!("tcp_allowed_congestion_control", "net/ipv4/tcp_allowed_congestion_control", "reno cubic\n"),
        fixed!(
            "tcp_available_congestion_control",
            "net/ipv4/tcp_available_congestion_control",
            "reno cubic\n"
        )
        .mode(0o444),
        setting!("tcp_congestion_control", "net/ipv4/tcp_congestion_control", "cubic\n"),
        setting!("tcp_ecn", "net/ipv4/tcp_ecn", "2\n"),
        setting!("tcp_fastopen", "net/ipv4/tcp_fastopen", "1\n"),
        setting!("tcp_fin_timeout", "net/ipv4/tcp_fin_timeout", "60\n"),
        setting!("tcp_keepalive_intvl", "net/ipv4/tcp_keepalive_intvl", "75\n"),
        setting!("tcp_keepalive_probes", "net/ipv4/tcp_keepalive_probes", "9\n"),
        setting!("tcp_keepalive_time", "net/ipv4/tcp_keepalive_time", "7200\n"),
        setting!("tcp_max_syn_backlog", "net/ipv4/tcp_max_syn_backlog", "512\n"),
        setting!("tcp_mem", "net/ipv4/tcp_mem", "188319\t251092\t376638\n"),
        setting!("tcp_moderate_rcvbuf", "net/ipv4/tcp_moderate_rcvbuf", "1\n"),
        setting!("tcp_retries2", "net/ipv4/tcp_retries2", "15\n"),
        setting!("tcp_rmem", "net/ipv4/tcp_rmem", "4096\t131072\t6291456\n"),
        setting!("tcp_sack", "net/ipv4/tcp_sack", "1\n"),
        setting!("tcp_syn_retries", "net/ipv4/tcp_syn_retries", "6\n"),
        setting!("tcp_syncookies", "net/ipv4/tcp_syncookies", "1\n"),
        setting!("tcp_timestamps", "net/ipv4/tcp_timestamps", "1\n"),
        setting!("tcp_tw_reuse", "net/ipv4/tcp_tw_reuse", "2\n"),
        setting!("tcp_window_scaling", "net/ipv4/tcp_window_scaling", "1\n"),
        setting!("tcp_wmem", "net/ipv4/tcp_wmem", "4096\t16384\t4194304\n"),
        setting!("udp_mem", "net/ipv4/udp_mem", "376638\t502187\t753276\n"),
    ];

    const IPV4_ALL: &'static [Entry<C>] = &[
        setting!("accept_redirects", "net/ipv4/conf/all/accept_redirects", "1\n"),
        setting!("accept_source_route", "net/ipv4/conf/all/accept_source_route", "0\n"),
        setting!("arp_announce", "net/ipv4/conf/all/arp_announce", "0\n"),
        setting!("arp_ignore", "net/ipv4/conf/all/arp_ignore", "0\n"),
        setting!("forwarding", "net/ipv4/conf/all/forwarding", "0\n"),
        setting!("rp_filter", "net/ipv4/conf/all/rp_filter", "0\n"),
        setting!("send_redirects", "net/ipv4/conf/all/send_redirects", "1\n"),
    ];

    const IPV4_DEFAULT: &'static [Entry<C>] = &[
        setting!("accept_redirects", "net/ipv4/conf/default/accept_redirects", "1\n"),
        setting!("accept_source_route", "net/ipv4/conf/default/accept_source_route", "0\n"),
        setting!("arp_announce", "net/ipv4/conf/default/arp_announce", "0\n"),
        setting!("arp_ignore", "net/ipv4/conf/default/arp_ignore", "0\n"),
        setting!("forwarding", "net/ipv4/conf/default/forwarding", "0\n"),
        setting!("rp_filter", "net/ipv4/conf/default/rp_filter", "0\n"),
        setting!("send_redirects", "net/ipv4/conf/default/send_redirects", "1\n"),
    ];

    const IPV6: &'static [Entry<C>] = &[
        setting!("bindv6only", "net/ipv6/bindv6only", "0\n"),
        Entry::dir(
            "conf",
            &[
                Entry::dir("all", Self::IPV6_ALL),
                Entry::dir("default", Self::IPV6_DEFAULT),
                Entry::dir("lo", Self::IPV6_LO),
            ],
        ),
    ];

    const IPV6_ALL: &'static [Entry<C>] = &[
        setting!("disable_ipv6", "net/ipv6/conf/all/disable_ipv6", "0\n"),
        setting!("forwarding", "net/ipv6/conf/all/forwarding", "0\n"),
    ];

    const IPV6_DEFAULT: &'static [Entry<C>] = &[
        setting!("disable_ipv6", "net/ipv6/conf/default/disable_ipv6", "0\n"),
        setting!("forwarding", "net/ipv6/conf/default/forwarding", "0\n"),
    ];

    const IPV6_LO: &'static [Entry<C>] = &[
        setting!("disable_ipv6", "net/ipv6/conf/lo/disable_ipv6", "0\n"),
        setting!("forwarding", "net/ipv6/conf/lo/forwarding", "0\n"),
    ];

    const UNIX: &'static [Entry<C>] = &[setting!("max_dgram_qlen", "net/unix/max_dgram_qlen", "512\n")];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pseudo::{Kind, Out};
    use std::string::String;
    use std::vec::Vec;

    fn files(table: &[Entry<()>], path: &str, found: &mut Vec<(String, String)>) {
        for entry in table {
            let path = std::format!("{path}/{}", entry.name);
            match &entry.kind {
                Kind::Dir(table, _) => files(table, &path, found),
                Kind::Text(show) | Kind::Setting(show, _) => {
                    let mut out = Out::default();
                    show(&(), &mut out).unwrap();
                    found.push((path, String::from_utf8(out.bytes).unwrap()));
                }
                _ => panic!("{path}"),
            }
        }
    }

    #[test]
    fn each_setting_that_the_host_tells_of_has_its_file() {
        settings::take(
            abi::sysctl::NET.iter().map(|name| (name.as_bytes().to_vec(), name.as_bytes().to_vec())),
        );
        let mut found = Vec::new();
        files(Settings::TABLE, "net", &mut found);
        for (path, value) in &found {
            assert_eq!(path, value);
        }
        let mut paths: Vec<&str> = found.iter().map(|(path, _)| path.as_str()).collect();
        paths.sort_unstable();
        let mut names = abi::sysctl::NET.to_vec();
        names.sort_unstable();
        assert_eq!(paths, names);
    }
}
