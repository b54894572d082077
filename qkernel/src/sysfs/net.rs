//! The interfaces of the sandbox's network: `/sys/class/net`, and `/sys/devices/virtual/net`, where all of them are.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::inode::{Inode, LinkTarget, S_IFDIR, S_IFLNK};
use crate::net::route;
use crate::net::route::Link;
use crate::pseudo::{Context, Dynamic, Entry, FileSystem, InodeNumbers, Item, Node, Out};
use crate::sysfs::{SYSFS, Whole};
use machine::errno::{Errno, Result};

/// `/sys/class/net`.
pub(super) const CLASS: Entry<Whole> = Entry::dynamic("net", &[], &Links);
/// `/sys/devices/virtual`.
pub(super) static VIRTUAL: &[Entry<Whole>] = &[Entry::dynamic("net", &[], &Interfaces)];

/// One interface, as it was when it was looked up.
#[derive(Clone)]
struct Interface(Arc<Link>);

impl Context for Interface {
    fn file_system(&self) -> &'static FileSystem {
        &SYSFS
    }

    fn is_fleeting(&self) -> bool {
        true
    }
}

/// The interfaces; where the host tells of none, a loopback interface.
fn all() -> Vec<Link> {
    route::links().unwrap_or_else(|_| alloc::vec![Link::loopback()])
}

fn find(name: &[u8]) -> Result<Interface> {
    let found = all().into_iter().find(|link| link.name == name && !name.is_empty());
    found.map(|link| Interface(Arc::new(link))).ok_or(Errno::ENOENT)
}

fn list(kind: u32, from: u64, add: &mut dyn FnMut(Item) -> bool) {
    let mut links = all();
    links.sort_by_key(|link| link.index);
    for link in links {
        let key = u64::from(link.index);
        if key >= from && !add(Item { key, name: link.name, kind }) {
            return;
        }
    }
}

struct Links;

impl Dynamic<Whole> for Links {
    fn find(&self, _: &Whole, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        static LINK: Entry<Interface> = Entry::link("", |interface| {
            let target = [b"../../devices/virtual/net/", &interface.0.name[..]].concat();
            Ok(LinkTarget::Text(target))
        });
        Ok(Node::new(find(name)?, &LINK, dir.child(name)))
    }

    fn list(&self, _: &Whole, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        list(S_IFLNK, from, add);
    }
}

struct Interfaces;

impl Dynamic<Whole> for Interfaces {
    fn find(&self, _: &Whole, dir: InodeNumbers, name: &[u8]) -> Result<Arc<dyn Inode>> {
        static DIRECTORY: Entry<Interface> = Entry::dir("", INTERFACE);
        Ok(Node::new(find(name)?, &DIRECTORY, dir.child(name)))
    }

    fn list(&self, _: &Whole, from: u64, add: &mut dyn FnMut(Item) -> bool) {
        list(S_IFDIR, from, add);
    }

    fn directories(&self, _: &Whole) -> u32 {
        u32::try_from(all().len()).unwrap_or(0)
    }
}

/// A line with one number.
macro_rules! number {
    ($name:literal, $link:ident => $value:expr) => {
        Entry::text($name, |interface: &Interface, out| {
            let $link = &*interface.0;
            out.write_fmt(format_args!("{}\n", $value));
            Ok(())
        })
    };
}

static INTERFACE: &[Entry<Interface>] = &[
    Entry::fixed("addr_assign_type", "0\n"),
    number!("addr_len", link => link.address.len()),
    Entry::text("address", |interface, out| hardware(&interface.0.address, out)),
    Entry::text("broadcast", |interface, out| hardware(&interface.0.broadcast, out)),
    Entry::text("carrier", carrier),
    Entry::fixed("dev_id", "0x0\n"),
    Entry::fixed("dormant", "0\n"),
    // The host does not tell these.
    Entry::text("duplex", |_, _| Err(Errno::EINVAL)),
    Entry::text("flags", |interface, out| {
        out.write_fmt(format_args!("{:#x}\n", interface.0.device_flags()));
        Ok(())
    }),
    number!("ifindex", link => link.index),
    number!("iflink", link => link.below.unwrap_or(link.index)),
    Entry::fixed("link_mode", "0\n"),
    number!("mtu", link => link.mtu),
    number!("operstate", link => STATES.get(usize::from(link.state)).unwrap_or(&STATES[0])),
    Entry::text("speed", |_, _| Err(Errno::EINVAL)),
    Entry::dir("statistics", STATISTICS),
    Entry::link("subsystem", |_| Ok(LinkTarget::Text(b"../../../../class/net".to_vec()))),
    number!("tx_queue_len", link => link.queue),
    number!("type", link => link.hardware),
    Entry::text("uevent", |interface, out| {
        out.push(b"INTERFACE=");
        out.push(&interface.0.name);
        out.write_fmt(format_args!("\nIFINDEX={}\n", interface.0.index));
        Ok(())
    }),
];

const UP: u32 = 0x1;
const LOWER_UP: u32 = 0x1_0000;
/// `IF_OPER_*`.
const STATES: [&str; 7] = ["unknown", "notpresent", "down", "lowerlayerdown", "testing", "dormant", "up"];

fn hardware(address: &[u8], out: &mut Out) -> Result<()> {
    for (at, byte) in address.iter().enumerate() {
        let colon = if at == 0 { "" } else { ":" };
        out.write_fmt(format_args!("{colon}{byte:02x}"));
    }
    out.push(b"\n");
    Ok(())
}

fn carrier(interface: &Interface, out: &mut Out) -> Result<()> {
    if interface.0.flags & UP == 0 {
        return Err(Errno::EINVAL);
    }
    out.push(if interface.0.flags & LOWER_UP == 0 { b"0\n" } else { b"1\n" });
    Ok(())
}

/// One counter of `struct rtnl_link_stats64`.
const fn counter<const AT: usize>(name: &'static str) -> Entry<Interface> {
    Entry::text(name, |interface, out| {
        out.write_fmt(format_args!("{}\n", interface.0.stats[AT]));
        Ok(())
    })
}

static STATISTICS: &[Entry<Interface>] = &[
    counter::<9>("collisions"),
    counter::<8>("multicast"),
    counter::<2>("rx_bytes"),
    counter::<21>("rx_compressed"),
    counter::<12>("rx_crc_errors"),
    counter::<6>("rx_dropped"),
    counter::<4>("rx_errors"),
    counter::<14>("rx_fifo_errors"),
    counter::<13>("rx_frame_errors"),
    counter::<10>("rx_length_errors"),
    counter::<15>("rx_missed_errors"),
    counter::<23>("rx_nohandler"),
    counter::<11>("rx_over_errors"),
    counter::<0>("rx_packets"),
    counter::<16>("tx_aborted_errors"),
    counter::<3>("tx_bytes"),
    counter::<17>("tx_carrier_errors"),
    counter::<22>("tx_compressed"),
    counter::<7>("tx_dropped"),
    counter::<5>("tx_errors"),
    counter::<18>("tx_fifo_errors"),
    counter::<19>("tx_heartbeat_errors"),
    counter::<1>("tx_packets"),
    counter::<20>("tx_window_errors"),
];
