//! Every socket call on loopback addresses, driven as the guest drives it, with good and bad input.

use std::time::Duration;

use abi::hostcall::{self as hc, EVENT_READY, Event, NO_HANDLE};
use abi::socket::{self as nr, Message};

use super::super::testing::Bench;
use super::allow;
use crate::errno::Errno;
use crate::guest_memory::GuestBox;
use crate::host_paths::HostPaths;

const INET: u64 = libc::AF_INET as u64;
const STREAM: u64 = libc::SOCK_STREAM as u64;
const DGRAM: u64 = libc::SOCK_DGRAM as u64;

/// An `int` as the guest passes it in a register.
fn word(value: i32) -> u64 {
    i64::from(value).cast_unsigned()
}

fn neg(code: i32) -> i64 {
    -i64::from(code)
}

/// A `sockaddr_in` of the loopback address.
fn loopback(port: u16) -> Vec<u8> {
    let mut address = vec![0; 16];
    address[..2].copy_from_slice(&2_u16.to_ne_bytes());
    address[2..4].copy_from_slice(&port.to_be_bytes());
    address[4..8].copy_from_slice(&[127, 0, 0, 1]);
    address
}

impl Bench {
    fn socket(&self, kind: u64, token: u64) -> u64 {
        let handle = self.call(nr::SOCKET, &[INET, kind, 0, token]);
        u64::try_from(handle).expect("a socket")
    }

    fn with_address(&self, number: u32, handle: u64, address: &[u8]) -> i64 {
        self.call(number, &[handle, self.memory.put(address), address.len() as u64])
    }

    /// Binds to a free port; the address.
    fn bind(&self, handle: u64) -> Vec<u8> {
        assert_eq!(self.with_address(nr::SOCK_BIND, handle, &loopback(0)), 0);
        let room = self.memory.room(128);
        assert_eq!(self.call(nr::SOCK_NAME, &[handle, 0, room, 128]), 16);
        self.memory.get(room, 16)
    }

    fn message(&self, message: Message) -> u64 {
        let at = self.memory.room(size_of::<Message>());
        GuestBox::new(&self.memory, at).unwrap().write(&message);
        at
    }

    fn send(&self, handle: u64, bytes: &[u8], to: &[u8], control: &[u8], flags: i32) -> i64 {
        let data = self.memory.put(bytes);
        let message = Message {
            segments_phys: self.memory.put_segments(&[(data, bytes.len() as u64)]),
            segments: 1,
            flags: flags.cast_unsigned(),
            name_phys: self.memory.put(to),
            control_phys: self.memory.put(control),
            name_len: u32::try_from(to.len()).unwrap(),
            control_len: u32::try_from(control.len()).unwrap(),
        };
        self.call(nr::SOCK_SEND, &[handle, self.message(message)])
    }

    fn receive(&self, handle: u64, room: u32, flags: i32) -> (i64, Vec<u8>, Message) {
        let (data, name, control) = (self.memory.room(64), self.memory.room(128), self.memory.room(256));
        let message = Message {
            segments_phys: self.memory.put_segments(&[(data, u64::from(room))]),
            segments: 1,
            flags: flags.cast_unsigned(),
            name_phys: name,
            control_phys: control,
            name_len: 128,
            control_len: 256,
        };
        let at = self.message(message);
        let result = self.call(nr::SOCK_RECEIVE, &[handle, at]);
        let got = usize::try_from(result).unwrap_or(0).min(room as usize);
        (result, self.memory.get(data, got), GuestBox::new(&self.memory, at).unwrap().read())
    }

    fn edges(&self) -> Vec<Event> {
        let mut edges = Vec::new();
        for _ in 0..200 {
            self.io.io().take_edges(16, |event| edges.push(event));
            if !edges.is_empty() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        edges
    }

    fn set(&self, handle: u64, level: i32, name: i32, value: &[u8]) -> i64 {
        let (level, name) = (u64::from(level.cast_unsigned()), u64::from(name.cast_unsigned()));
        let at = self.memory.put(value);
        self.call(nr::SOCK_SET_OPTION, &[handle, level, name, at, value.len() as u64])
    }
}

#[test]
fn a_connection_is_made_and_told_of() {
    let bench = Bench::new();
    let server = bench.socket(STREAM, 1);
    let address = bench.bind(server);
    assert_eq!(bench.call(nr::SOCK_LISTEN, &[server, 5]), 0);
    bench.edges();
    let room = bench.memory.room(128);
    assert_eq!(bench.call(nr::SOCK_ACCEPT, &[server, room, 128, 9]), neg(libc::EAGAIN));
    let client = bench.socket(STREAM, 2);
    let connected = bench.with_address(nr::SOCK_CONNECT, client, &address);
    assert!(connected == 0 || connected == neg(libc::EINPROGRESS));
    let edges = bench.edges();
    let told = |token| edges.iter().any(|edge| edge.kind == EVENT_READY && edge.token == token);
    assert!(told(1) && told(2), "{edges:?}");
    let accepted = bench.call(nr::SOCK_ACCEPT, &[server, room, 128, 3]);
    assert_eq!(accepted >> 32, 16, "the length of the peer's address");
    let other = u64::try_from(accepted).unwrap() & 0xffff_ffff;
    bench.edges();
    assert_eq!(bench.send(client, b"hello", b"", b"", 0), 5);
    let edges = bench.edges();
    assert_eq!((edges[0].token, edges[0].value & 1), (3, 1));
    assert_eq!(bench.call(nr::SOCK_QUERY, &[other, super::allow::SIOCINQ]), 5);
    assert_eq!(bench.receive(other, 64, libc::MSG_PEEK).0, 5);
    assert_eq!(bench.receive(other, 64, 0).1, b"hello");
    assert_eq!(bench.receive(other, 64, 0).0, neg(libc::EAGAIN));
    assert_eq!(bench.call(nr::SOCK_SHUTDOWN, &[client, 1]), 0);
    assert_eq!(bench.receive(other, 64, 0).0, 0);
    assert_eq!(bench.call(hc::CLOSE, &[client]), 0);
    assert_eq!(bench.call(hc::CLOSE, &[client]), neg(libc::EBADF));
}

#[test]
fn datagrams_carry_addresses_and_control_data() {
    let bench = Bench::new();
    let (one, two) = (bench.socket(DGRAM, 1), bench.socket(DGRAM, 2));
    let (from, to) = (bench.bind(one), bench.bind(two));
    assert_eq!(bench.set(two, libc::IPPROTO_IP, libc::IP_RECVTTL, &1_i32.to_ne_bytes()), 0);
    let mut ttl = [20_u64.to_ne_bytes(), [0; 8], [0; 8]].concat();
    ttl[12..16].copy_from_slice(&libc::IP_TTL.to_ne_bytes());
    ttl[16..20].copy_from_slice(&33_i32.to_ne_bytes());
    assert_eq!(bench.send(one, b"datagram", &to, &ttl, 0), 8);
    let (result, bytes, message) = bench.receive(two, 4, libc::MSG_TRUNC);
    assert_eq!((result, &bytes[..]), (8, &b"data"[..]));
    assert_eq!(bench.memory.get(message.name_phys, message.name_len as usize), from);
    assert_eq!(message.flags & libc::MSG_TRUNC.cast_unsigned(), libc::MSG_TRUNC.cast_unsigned());
    let control = bench.memory.get(message.control_phys, message.control_len as usize);
    assert_eq!(control[16], 33);
}

#[test]
fn files_are_sent() {
    let bench = Bench::new();
    let (one, two) = (bench.socket(DGRAM, 1), bench.socket(DGRAM, 2));
    let to = bench.bind(two);
    assert_eq!(bench.with_address(nr::SOCK_CONNECT, one, &to), 0);
    let file = u64::from(bench.handle(bench.root, "f", libc::O_RDWR | libc::O_CREAT));
    assert_eq!(bench.write(u32::try_from(file).unwrap(), b"contents", 0), 8);
    let send = |file: u64, offset: u64, len: u64| bench.call(nr::SOCK_SEND_FILE, &[one, file, offset, len]);
    assert_eq!(send(file, 3, 100), 5);
    assert_eq!(bench.receive(two, 64, 0).1, b"tents");
    assert_eq!(send(file, 8, 100), 0);
    assert_eq!(send(file, u64::MAX, 1), neg(libc::EINVAL));
    for other in [u64::from(bench.root), two] {
        assert_eq!(send(other, 0, 1), neg(libc::EINVAL), "only regular files");
    }
    let names = u64::from(bench.handle(bench.root, "f", libc::O_PATH));
    assert_eq!(send(names, 0, 1), neg(libc::EINVAL), "only open ones");
}

#[test]
fn only_what_is_listed_is_made() {
    let bench = Bench::new();
    let make = |family: i32, kind: i32, protocol: i32| {
        bench.call(nr::SOCKET, &[word(family), word(kind), word(protocol), 1])
    };
    for (family, kind, protocol) in [
        (libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
        (libc::AF_INET, libc::SOCK_STREAM, 262),
        (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMPV6),
        (libc::AF_PACKET, libc::SOCK_DGRAM, 0),
        (libc::AF_UNIX, libc::SOCK_STREAM, 0),
        (libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_AUDIT),
        (libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        (libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0),
    ] {
        assert_eq!(make(family, kind, protocol), neg(libc::EPERM), "{family} {kind} {protocol}");
    }
    assert_eq!(bench.call(nr::SOCKET, &[u64::MAX, 1, 0, 1]), neg(libc::EINVAL));
    assert_eq!(
        bench.call(nr::SOCKET, &[INET, STREAM, 0, 1 << 63]),
        neg(libc::EINVAL),
        "a token out of range"
    );
    assert_eq!(bench.io.files().len(), 1, "nothing is left behind");
}

#[test]
fn options_and_control_data_are_listed() {
    let bench = Bench::new();
    let socket = bench.socket(STREAM, 1);
    let one = 1_i32.to_ne_bytes();
    assert_eq!(bench.set(socket, libc::IPPROTO_TCP, libc::TCP_NODELAY, &one), 0);
    for (level, name) in [
        (libc::SOL_SOCKET, libc::SO_MARK),
        (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER),
        (libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
        (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
        (libc::IPPROTO_IP, libc::IP_OPTIONS),
        (libc::IPPROTO_TCP, libc::TCP_REPAIR),
        (libc::IPPROTO_TCP, libc::TCP_ULP),
        (libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP),
        (999, 1),
    ] {
        assert_eq!(bench.set(socket, level, name, &one), neg(libc::ENOPROTOOPT), "{level} {name}");
    }
    assert_eq!(
        bench.set(socket, libc::SOL_SOCKET, libc::SO_PRIORITY, &7_i32.to_ne_bytes()),
        neg(libc::EPERM)
    );
    // No socket goes around the host's routes.
    for name in [libc::SO_BINDTODEVICE, 62] {
        assert_eq!(bench.set(socket, libc::SOL_SOCKET, name, b"lo\0\0"), neg(libc::ENOPROTOOPT), "{name}");
    }
    assert_eq!(bench.set(socket, libc::IPPROTO_IP, libc::IP_UNICAST_IF, &one), neg(libc::ENOPROTOOPT));
    // Those of containers alone may be gone around.
    assert_eq!(allow::check_set(libc::SOL_SOCKET, libc::SO_BINDTODEVICE, b"lo\0\0", true), Ok(()));
    assert_eq!(allow::check_set(libc::SOL_SOCKET, libc::SO_MARK, &one, true), Err(Errno(libc::ENOPROTOOPT)));
    let info = [&[0; 16][..], &one].concat();
    assert_eq!(bench.set(socket, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info), neg(libc::EPERM));
    let linger = [one, 5_i32.to_ne_bytes()].concat();
    assert_eq!(bench.set(socket, libc::SOL_SOCKET, libc::SO_LINGER, &linger), neg(libc::EINVAL));
    assert_eq!(bench.set(socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &[0; 5000]), neg(libc::EINVAL));
    let get = |level: i32, name: i32, room: u64| {
        let at = bench.memory.room(256);
        bench.call(nr::SOCK_GET_OPTION, &[socket, word(level), word(name), at, room])
    };
    assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NODELAY, 4), 4);
    assert_eq!(get(libc::IPPROTO_TCP, libc::TCP_NODELAY, 2), 2, "cut to the room there is");
    assert!(get(libc::IPPROTO_TCP, libc::TCP_INFO, 256) > 100);
    assert_eq!(get(libc::SOL_SOCKET, libc::SO_PEERCRED, 12), neg(libc::ENOPROTOOPT));
    let mut rights = [20_u64.to_ne_bytes(), [0; 8], [0; 8]].concat();
    rights[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
    rights[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
    let einval = neg(libc::EINVAL);
    assert_eq!(bench.send(socket, b"x", b"", &rights, 0), einval, "descriptors are never passed");
    assert_eq!(bench.send(socket, b"x", b"", &[0xff; 16], 0), einval);
    assert_eq!(bench.send(socket, b"x", b"", b"", libc::MSG_ZEROCOPY), einval);
    assert_eq!(bench.receive(socket, 4, libc::MSG_WAITALL).0, einval);
}

#[test]
fn hostile_arguments_are_refused() {
    let bench = Bench::new();
    let at = bench.memory.base();
    for handle in [99, u64::from(NO_HANDLE), 1 << 32, u64::MAX, u64::from(bench.root)] {
        for number in nr::SOCK_BIND..=nr::SOCK_SEND_FILE {
            let result = bench.call(number, &[handle, at, 1, at, 1, 0]);
            assert!(result < 0, "call {number} with handle {handle}: {result}");
        }
    }
    let socket = bench.socket(STREAM, 1);
    for (phys, len) in [(0, 16), (u64::MAX - 4, 16), (bench.memory.end() - 8, 16), (at, u64::MAX), (at, 129)]
    {
        for number in [nr::SOCK_BIND, nr::SOCK_CONNECT] {
            let result = bench.call(number, &[socket, phys, len]);
            assert!(result == neg(libc::EFAULT) || result == neg(libc::EINVAL), "{result}");
        }
    }
    assert_eq!(bench.call(nr::SOCK_SEND, &[socket, bench.memory.end() - 8]), neg(libc::EFAULT));
    let wild = Message { segments: u32::MAX, ..Message::default() };
    assert_eq!(bench.call(nr::SOCK_SEND, &[socket, bench.message(wild)]), neg(libc::EINVAL));
    let wild = Message { control_len: u32::MAX, ..Message::default() };
    assert_eq!(bench.call(nr::SOCK_RECEIVE, &[socket, bench.message(wild)]), neg(libc::EINVAL));
    let wild = Message { control_len: 64, control_phys: u64::MAX - 8, ..Message::default() };
    assert_eq!(bench.call(nr::SOCK_RECEIVE, &[socket, bench.message(wild)]), neg(libc::EFAULT));
    assert_eq!(bench.call(nr::SOCK_SHUTDOWN, &[socket, 3]), neg(libc::EINVAL));
    assert_eq!(bench.call(nr::SOCK_QUERY, &[socket, 0x5401]), neg(libc::ENOTTY));
    assert_eq!(bench.call(nr::SOCK_QUERY, &[socket, 0x8914]), neg(libc::ENOTTY), "SIOCSIFFLAGS");
    // Not a file: nothing else can be done with it.
    assert!(bench.open(u32::try_from(socket).unwrap(), "x", libc::O_RDONLY, 0) < 0);
    let [name, len] = bench.name("link");
    assert_eq!(bench.call(hc::LINK, &[socket, u64::from(bench.root), name, len]), neg(libc::EXDEV));
}

#[test]
fn closed_sockets_leave_nothing() {
    let bench = Bench::new();
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    for token in 0..2000 {
        let socket = bench.socket(STREAM, token);
        assert_eq!(bench.call(hc::CLOSE, &[socket]), 0);
    }
    assert!(open() < before + 200, "other tests open some");
    assert_eq!(bench.io.files().len(), 1);
    let mut late = Vec::new();
    bench.io.io().take_edges(16, |event| late.push(event));
    assert!(late.is_empty(), "{late:?}");
}

#[test]
fn connections_of_the_host_name_no_other_place() {
    let bench = Bench::new();
    let listener = std::os::unix::net::UnixListener::bind(bench.dir.path().join("s")).unwrap();
    let name = bench.memory.put(b"s");
    let node = bench.call(hc::OPEN, &[u64::from(bench.root), name, 1, libc::O_PATH as u64, 0]);
    let node = u64::try_from(node).expect("a node");
    let own: Vec<u8> = own_ids().iter().flat_map(|id| id.to_ne_bytes()).collect();
    let connect = |node: u64, kind: u64, count: u64| {
        bench.call(nr::SOCK_CONNECT_NODE, &[node, kind, 7, bench.memory.put(&own), count])
    };
    assert_eq!(connect(node, STREAM, 2), neg(libc::ECONNREFUSED), "there is no broker");
    let file = bench.io.files().get(u32::try_from(node).unwrap()).unwrap();
    let mount = crate::sys::statx_mount(std::os::fd::AsFd::as_fd(&*file)).unwrap().stx_mnt_id;
    bench
        .io
        .set_broker(crate::broker::Broker::start(&HostPaths::of_new_process(), vec![mount], None).unwrap());
    for (kind, count) in
        [(libc::SOCK_RAW as u64, 2), (DGRAM, 2), (STREAM, 1), (STREAM, 0), (STREAM, 35), (STREAM, u64::MAX)]
    {
        assert_eq!(connect(node, kind, count), neg(libc::EINVAL), "{kind} {count}");
    }
    assert_eq!(connect(u64::from(bench.root), STREAM, 2), neg(libc::ECONNREFUSED));
    assert_eq!(connect(9999, STREAM, 2), neg(libc::EBADF));
    let socket = u64::try_from(connect(node, STREAM, 2)).expect("a connection");
    let (mut theirs, _) = listener.accept().unwrap();
    assert_eq!(bench.send(socket, b"data", &[], &[], 0), 4);
    let mut got = [0; 4];
    std::io::Read::read_exact(&mut theirs, &mut got).unwrap();
    let refused = neg(libc::EOPNOTSUPP);
    let address = b"\x01\0/dev/log\0";
    assert_eq!(bench.with_address(nr::SOCK_BIND, socket, address), refused);
    assert_eq!(bench.with_address(nr::SOCK_CONNECT, socket, address), refused);
    assert_eq!(bench.call(nr::SOCK_LISTEN, &[socket, 1]), refused);
    assert_eq!(bench.call(nr::SOCK_ACCEPT, &[socket, bench.memory.room(128), 128, 8]), refused);
    assert_eq!(bench.send(socket, b"data", address, &[], 0), refused);
    assert_eq!(bench.send(socket, b"data", &[], &[0; 24], 0), neg(libc::EINVAL));
    assert_eq!(bench.set(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &[0; 4]), refused);
    // Its room for control data would take in descriptors.
    assert_eq!(bench.receive(socket, 4, 0).0, refused);
}

/// The ids of this process.
fn own_ids() -> [u32; 2] {
    [crate::process::effective_user(), crate::process::effective_group()]
}

#[test]
fn no_message_chooses_a_device_behind_the_routes() {
    let message = |level: i32, kind: i32, data: &[u8]| {
        let len = 16 + data.len();
        let mut bytes = [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), data].concat();
        bytes.resize(len.next_multiple_of(8), 0);
        bytes
    };
    let v4 = |index: u32| {
        message(libc::IPPROTO_IP, libc::IP_PKTINFO, &[&index.to_ne_bytes()[..], &[0; 8]].concat())
    };
    let v6 = |kind: i32, index: u32| {
        message(libc::IPPROTO_IPV6, kind, &[&[0; 16][..], &index.to_ne_bytes()].concat())
    };
    let plain = [&2_u16.to_ne_bytes()[..], &[0, 9, 127, 0, 0, 1]].concat();
    let group = [&2_u16.to_ne_bytes()[..], &[0, 9, 224, 0, 0, 251]].concat();
    let group6 = [&10_u16.to_ne_bytes()[..], &[0; 6], &[0xff, 2]].concat();
    let check = super::allow::check_control;
    let ttl = message(libc::IPPROTO_IP, libc::IP_TTL, &[9, 0, 0, 0]);
    for address in [&plain[..], &[], &group, &group6] {
        check(&[v4(0), ttl.clone(), v6(libc::IPV6_PKTINFO, 0)].concat(), address, false).unwrap();
    }
    for bad in
        [v4(1), [ttl.clone(), v4(1 << 24)].concat(), v6(libc::IPV6_PKTINFO, 7), v6(libc::IPV6_2292PKTINFO, 7)]
    {
        assert!(
            check(&bad, &plain, false).is_err()
                && check(&bad, &[], false).is_err()
                && check(&bad, &[2], false).is_err()
        );
        check(&bad, &group, false).unwrap();
        check(&bad, &group6, false).unwrap();
    }
}
