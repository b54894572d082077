//! Unix sockets without a guest.

use crate::net::ancillary::SenderCreds;
use crate::net::unix::*;

fn two(kind: u32) -> [Arc<UnixSocket>; 2] {
    let creds = SenderCreds { uid: 2, gid: 3, ..SenderCreds::default() };
    pair(kind, 0, &PeerCreds { creds, ..PeerCreds::default() }).unwrap()
}

fn send(socket: &UnixSocket, bytes: &[u8]) -> Result<usize> {
    socket.send(&mut IoBuf::constant(bytes), &mut Outgoing::default(), &Options::new())
}

fn receive(socket: &UnixSocket, count: usize) -> Result<Vec<u8>> {
    let mut bytes = alloc::vec![0; count];
    let received = socket.receive(&mut IoBuf::kernel(&mut bytes), ReceiveHow::default())?;
    bytes.truncate(received.bytes);
    Ok(bytes)
}

fn events(socket: &UnixSocket) -> PollEvents {
    let mask = PollEvents::IN | PollEvents::OUT | PollEvents::HUP | PollEvents::RDHUP | PollEvents::ERR;
    socket.poll(None, &Options::new(), mask) & mask
}

#[test]
fn streams_flow_both_ways_and_end() {
    let [a, b] = two(SOCK_STREAM);
    assert_eq!((send(&a, b"hel"), send(&a, b"lo")), (Ok(3), Ok(2)));
    assert_eq!(receive(&b, 10).as_deref(), Ok(&b"hello"[..]));
    assert_eq!(receive(&b, 10), Err(Errno::EAGAIN));
    assert_eq!(events(&b), PollEvents::OUT);
    a.shutdown(1).unwrap();
    assert_eq!(send(&a, b"x"), Err(Errno::EPIPE));
    assert_eq!(events(&b), PollEvents::IN | PollEvents::OUT | PollEvents::RDHUP);
    assert_eq!(receive(&b, 1).as_deref(), Ok(&b""[..]));
    assert_eq!(send(&b, b"back"), Ok(4));
    a.closed();
    assert!(events(&b).contains(PollEvents::HUP | PollEvents::ERR));
    assert_eq!(receive(&b, 1), Err(Errno::ECONNRESET));
    assert_eq!(receive(&b, 1).as_deref(), Ok(&b""[..]));
}

#[test]
fn urgent_bytes_mark_their_place() {
    let [a, b] = two(SOCK_STREAM);
    let send_urgent = |bytes: &[u8]| {
        let mut message = Outgoing { flags: MsgFlags::OOB, ..Outgoing::default() };
        let mut buf = IoBuf::constant(bytes);
        while !buf.is_empty() {
            a.send(&mut buf, &mut message, &Options::new()).unwrap();
        }
    };
    let receive_urgent = || {
        let mut byte = [0; 1];
        let how = ReceiveHow { flags: MsgFlags::OOB, ..ReceiveHow::default() };
        b.receive(&mut IoBuf::kernel(&mut byte), how).map(|_| byte[0])
    };
    send_urgent(b"abc");
    send(&a, b"d").unwrap();
    assert!(b.poll(None, &Options::new(), PollEvents::all()).contains(PollEvents::PRI));
    assert_eq!(receive(&b, 10).as_deref(), Ok(&b"ab"[..]));
    assert_eq!((receive_urgent(), receive_urgent()), (Ok(b'c'), Err(Errno::EINVAL)));
    assert_eq!(receive(&b, 10).as_deref(), Ok(&b"d"[..]));
    // One that is not asked for is lost, and one that another follows is as others.
    send_urgent(b"ef");
    send_urgent(b"g");
    assert_eq!(receive(&b, 10).as_deref(), Ok(&b"ef"[..]));
    assert_eq!(receive(&b, 10), Err(Errno::EAGAIN));
    assert_eq!(receive_urgent(), Err(Errno::EINVAL));
    // Marks alone take no room, and are nothing that was left unread.
    for _ in 0..1000 {
        send_urgent(b"h");
        assert_eq!(receive_urgent(), Ok(b'h'));
    }
    assert_eq!(b.queued(), Ok((0, 0)));
    b.closed();
    assert_eq!(receive(&a, 1).as_deref(), Ok(&b""[..]));
}

#[test]
fn a_full_stream_waits_for_its_reader() {
    let [a, b] = two(SOCK_STREAM);
    let block = alloc::vec![7u8; 65536];
    let mut sent = 0;
    while let Ok(count) = send(&a, &block) {
        sent += count;
    }
    assert!(sent > 100_000 && sent < 300_000);
    assert_eq!(events(&a), PollEvents::empty());
    while sent > 0 {
        sent -= receive(&b, 65536).unwrap().len();
    }
    assert_eq!(events(&a), PollEvents::OUT);
}

#[test]
fn messages_keep_their_borders() {
    for kind in [SOCK_SEQPACKET, SOCK_DGRAM] {
        let [a, b] = two(kind);
        for message in [&b"first"[..], b"", b"second"] {
            assert_eq!(send(&a, message), Ok(message.len()));
        }
        assert_eq!(receive(&b, 3).as_deref(), Ok(&b"fir"[..]));
        assert_eq!(receive(&b, 10).as_deref(), Ok(&b""[..]));
        assert_eq!(receive(&b, 10).as_deref(), Ok(&b"second"[..]));
        assert_eq!(receive(&b, 10), Err(Errno::EAGAIN));
        b.closed();
        let error = if kind == SOCK_DGRAM { Errno::ECONNREFUSED } else { Errno::EPIPE };
        assert_eq!(send(&a, b"x"), Err(error));
    }
}
