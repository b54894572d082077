//! Settings of the network namespace that the kernel shows under `/proc/sys/net`. The VMM reads them when the sandbox is made.

/// Their names below `/proc/sys`. Namespaces lack some of them; then the kernel shows Linux's default.
pub const NET: &[&str] = &[
    "net/core/default_qdisc",
    "net/core/netdev_max_backlog",
    "net/core/optmem_max",
    "net/core/rmem_default",
    "net/core/rmem_max",
    "net/core/somaxconn",
    "net/core/wmem_default",
    "net/core/wmem_max",
    "net/ipv4/conf/all/accept_redirects",
    "net/ipv4/conf/all/accept_source_route",
    "net/ipv4/conf/all/arp_announce",
    "net/ipv4/conf/all/arp_ignore",
    "net/ipv4/conf/all/forwarding",
    "net/ipv4/conf/all/rp_filter",
    "net/ipv4/conf/all/send_redirects",
    "net/ipv4/conf/default/accept_redirects",
    "net/ipv4/conf/default/accept_source_route",
    "net/ipv4/conf/default/arp_announce",
    "net/ipv4/conf/default/arp_ignore",
    "net/ipv4/conf/default/forwarding",
    "net/ipv4/conf/default/rp_filter",
    "net/ipv4/conf/default/send_redirects",
    "net/ipv4/ip_default_ttl",
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_port_range",
    "net/ipv4/ip_local_reserved_ports",
    "net/ipv4/ip_nonlocal_bind",
    UNPRIVILEGED_PORT_START,
    PING_GROUP_RANGE,
    "net/ipv4/tcp_allowed_congestion_control",
    "net/ipv4/tcp_available_congestion_control",
    "net/ipv4/tcp_congestion_control",
    "net/ipv4/tcp_ecn",
    "net/ipv4/tcp_fastopen",
    "net/ipv4/tcp_fin_timeout",
    "net/ipv4/tcp_keepalive_intvl",
    "net/ipv4/tcp_keepalive_probes",
    "net/ipv4/tcp_keepalive_time",
    "net/ipv4/tcp_max_syn_backlog",
    "net/ipv4/tcp_mem",
    "net/ipv4/tcp_moderate_rcvbuf",
    "net/ipv4/tcp_retries2",
    "net/ipv4/tcp_rmem",
    "net/ipv4/tcp_sack",
    "net/ipv4/tcp_syn_retries",
    "net/ipv4/tcp_syncookies",
    "net/ipv4/tcp_timestamps",
    "net/ipv4/tcp_tw_reuse",
    "net/ipv4/tcp_window_scaling",
    "net/ipv4/tcp_wmem",
    "net/ipv4/udp_mem",
    "net/ipv6/bindv6only",
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/all/forwarding",
    "net/ipv6/conf/default/disable_ipv6",
    "net/ipv6/conf/default/forwarding",
    "net/ipv6/conf/lo/disable_ipv6",
    "net/ipv6/conf/lo/forwarding",
    "net/unix/max_dgram_qlen",
];

/// Stands among the settings, without a file, where the network is the sandbox's own: its kernel keeps what is written.
pub const OWN: &str = "net/own";
/// Stands among the settings, without a file, where containers alone are in the network: their sockets may choose the device
/// that messages take.
pub const DEVICES: &str = "net/devices";
/// The first port that anybody may bind.
pub const UNPRIVILEGED_PORT_START: &str = "net/ipv4/ip_unprivileged_port_start";
/// The groups whose members may ping.
pub const PING_GROUP_RANGE: &str = "net/ipv4/ping_group_range";

/// Settings of an IPC namespace that a bundle may ask for, by their names below `/proc/sys`. The kernel has them itself.
pub const IPC: &[&str] = &[
    "fs/mqueue/msg_default",
    "fs/mqueue/msg_max",
    "fs/mqueue/msgsize_default",
    "fs/mqueue/msgsize_max",
    "fs/mqueue/queues_max",
    "kernel/msgmax",
    "kernel/msgmnb",
    "kernel/msgmni",
    "kernel/sem",
    "kernel/shm_rmid_forced",
    "kernel/shmall",
    "kernel/shmmax",
    "kernel/shmmni",
];

/// Longest value that is shown.
pub const VALUE_MAX: usize = 4096;
