//! `/proc/PID/net`: tables of sockets and interfaces. Empty ones keep their headings, as programs skip those.

use crate::proc::net_counters;
use crate::proc::net_tables;
use crate::proc::net_tables::Table;
use crate::proc::subject::Subject;
use crate::pseudo::{Entry, Out};
use machine::errno::Result;

fn push_table(out: &mut Out, heading: &str, table: Table) -> Result<()> {
    out.push(heading.as_bytes());
    net_tables::write(table, out)
}

macro_rules! sockets {
    ($name:literal, $table:ident, $heading:expr) => {
        Entry::text($name, |_, out| push_table(out, $heading, Table::$table))
    };
}

const TCP: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode                                                     \n";
const TCP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
const UDP: &str = "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops             \n";
const UDP6: &str = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n";
const RAW: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n";
const UNIX: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n";
const ROUTE: &str = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT                                                       \n";
const DEV: &str = "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n";
const ARP: &str = "IP address       HW type     Flags       HW address            Mask     Device\n";

/// The directory.
pub static TABLE: &[Entry<Subject>] = &[
    sockets!("arp", Neighbours, ARP),
    sockets!("dev", Interfaces, DEV),
    Entry::fixed("fib_trie", ""),
    Entry::fixed("icmp", RAW),
    sockets!("if_inet6", Addresses6, ""),
    sockets!("igmp", Groups, "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n"),
    sockets!("igmp6", Groups6, ""),
    sockets!("ipv6_route", Routes6, ""),
    Entry::fixed(
        "netlink",
        "sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n",
    ),
    Entry::text("netstat", net_counters::netstat),
    Entry::fixed("packet", "sk               RefCnt Type Proto  Iface R Rmem   User   Inode\n"),
    Entry::fixed(
        "protocols",
        "protocol  size sockets  memory press maxhdr  slab module     cl co di ac io in de sh ss gs se re sp bi br ha uh gp em\n",
    ),
    Entry::fixed("psched", "000003e8 00000040 000f4240 3b9aca00\n"),
    Entry::fixed("ptype", "Type Device      Function\n"),
    Entry::fixed("raw", RAW),
    Entry::fixed("raw6", UDP6),
    sockets!("route", Routes, ROUTE),
    Entry::text("snmp", net_counters::snmp),
    Entry::text("snmp6", net_counters::snmp6),
    sockets!("sockstat", Summary, ""),
    Entry::fixed(
        "sockstat6",
        "TCP6: inuse 0\nUDP6: inuse 0\nUDPLITE6: inuse 0\nRAW6: inuse 0\nFRAG6: inuse 0 memory 0\n",
    ),
    Entry::dir("stat", &[]),
    sockets!("tcp", Tcp, TCP),
    sockets!("tcp6", Tcp6, TCP6),
    sockets!("udp", Udp, UDP),
    sockets!("udp6", Udp6, UDP6),
    Entry::fixed("udplite", UDP),
    Entry::fixed("udplite6", UDP6),
    sockets!("unix", Unix, UNIX),
    Entry::text("wireless", wireless),
];

fn wireless(_: &Subject, out: &mut Out) -> Result<()> {
    out.push(b"Inter-| sta-|   Quality        |   Discarded packets               | Missed | WE\n");
    out.push(b" face | tus | link level noise |  nwid  crypt   frag  retry   misc | beacon | 22\n");
    Ok(())
}
