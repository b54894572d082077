//! Streams, and the events that handles and operations end in.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use abi::hostcall::{self as nr, SetAttr};
use libc::{O_CREAT, O_RDWR};

use super::testing::Bench;
use super::tests::{neg, set};

fn pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = std::io::pipe().unwrap();
    (reader.into(), writer.into())
}

#[test]
fn pipes_never_wait() {
    let bench = Bench::new();
    let (reader, writer) = pipe();
    let (r, w) = (bench.io.adopt_stream(reader).unwrap(), bench.io.adopt_stream(writer).unwrap());
    assert_eq!(bench.read(r, 16, u64::MAX), Err(neg(libc::EAGAIN)));
    assert_eq!(bench.call(nr::POLL_NOW, &[r.into(), libc::POLLIN as u64]), 0);
    assert_eq!(bench.write(w, b"through", u64::MAX), 7);
    assert_eq!(bench.call(nr::POLL_NOW, &[r.into(), libc::POLLIN as u64]), i64::from(libc::POLLIN));
    assert_eq!(bench.read(r, 16, u64::MAX).unwrap(), b"through");
    assert_eq!(bench.read(r, 16, 0), Err(neg(libc::ESPIPE)));
    let big = vec![1_u8; 1 << 20];
    let mut total = 0;
    loop {
        match bench.write(w, &big, u64::MAX) {
            taken @ 1.. => total += taken,
            error => break assert_eq!(error, neg(libc::EAGAIN)),
        }
    }
    assert!(total > 0);
    bench.call(nr::CLOSE, &[r.into()]);
    assert_eq!(bench.write(w, b"x", u64::MAX), neg(libc::EPIPE));
}

#[test]
fn the_streams_flags_stay_as_they_were() {
    let bench = Bench::new();
    let (reader, writer) = pipe();
    let copy = reader.try_clone().unwrap();
    let r = bench.io.adopt_stream(reader).unwrap();
    assert_eq!(bench.read(r, 1, u64::MAX), Err(neg(libc::EAGAIN)));
    use std::os::fd::AsFd;
    assert_eq!(crate::sys::status_flags(copy.as_fd()).unwrap() & libc::O_NONBLOCK, 0);
    drop(writer);
    assert_eq!(bench.read(r, 1, u64::MAX).unwrap(), b"", "end of file");
}

#[test]
fn sockets_and_files_serve_as_streams() {
    let bench = Bench::new();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let socket = bench.io.adopt_stream(ours.into()).unwrap();
    assert_eq!(bench.read(socket, 4, u64::MAX), Err(neg(libc::EAGAIN)));
    drop(theirs);
    assert_eq!(bench.write(socket, b"x", u64::MAX), neg(libc::EPIPE));
    let path = bench.dir.path().join("in");
    fs::write(&path, "line one\nline two\n").unwrap();
    let file = bench.io.adopt_stream(fs::File::open(&path).unwrap().into()).unwrap();
    assert_eq!(bench.read(file, 9, u64::MAX).unwrap(), b"line one\n");
    assert_eq!(bench.read(file, 9, u64::MAX).unwrap(), b"line two\n");
    assert_eq!(bench.call(nr::OPEN, &[file.into(), 0, 0, O_RDWR as u64, 0]), neg(libc::EBADF));
    let mode = SetAttr { valid: nr::SET_MODE, mode: 0o777, ..SetAttr::default() };
    assert_eq!(set(&bench, file, "", mode), neg(libc::EPERM));
    let [n, len] = bench.name("stolen");
    assert_eq!(bench.call(nr::LINK, &[file.into(), bench.root.into(), n, len]), neg(libc::EXDEV));
    let null = bench.io.adopt_stream(fs::File::open("/dev/null").unwrap().into()).unwrap();
    assert_eq!(bench.read(null, 9, u64::MAX).unwrap(), b"");
    assert_eq!(bench.call(nr::TTY_WINSIZE, &[24, 80]), neg(libc::ENOTTY));
}

fn wait_for_events(bench: &Bench, count: usize) -> Vec<abi::hostcall::Event> {
    let start = Instant::now();
    while bench.events.lock().unwrap().len() < count && start.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(2));
    }
    std::mem::take(&mut *bench.events.lock().unwrap())
}

#[test]
fn an_armed_handle_reports_once() {
    let bench = Bench::new();
    let (reader, writer) = pipe();
    let (r, w) = (bench.io.adopt_stream(reader).unwrap(), bench.io.adopt_stream(writer).unwrap());
    let arm = |events: i16, token: u64| {
        bench.call(nr::POLL_ARM, &[r.into(), u64::from(events.cast_unsigned()), token])
    };
    assert_eq!(arm(libc::POLLIN, 77), 0);
    bench.write(w, b"a", u64::MAX);
    let events = wait_for_events(&bench, 1);
    assert_eq!((events.len(), events[0].kind, events[0].token), (1, nr::EVENT_READY, 77));
    assert_eq!(events[0].value, i64::from(libc::POLLIN));
    bench.write(w, b"b", u64::MAX);
    std::thread::sleep(Duration::from_millis(20));
    assert!(bench.events.lock().unwrap().is_empty(), "once only");
    assert_eq!(arm(libc::POLLIN, 78), 0);
    assert_eq!(wait_for_events(&bench, 1)[0].token, 78);
    bench.read(r, 16, u64::MAX).unwrap();
    assert_eq!(arm(libc::POLLIN, 79), 0);
    assert_eq!(arm(0, 0), 0, "disarmed");
    bench.write(w, b"c", u64::MAX);
    std::thread::sleep(Duration::from_millis(20));
    assert!(bench.events.lock().unwrap().is_empty(), "disarmed");
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    assert_eq!(bench.call(nr::POLL_ARM, &[file.into(), 1, 0]), neg(libc::EPERM));
}

#[test]
fn a_closed_handle_reports_no_more() {
    let bench = Bench::new();
    let (reader, writer) = pipe();
    let (r, w) = (bench.io.adopt_stream(reader).unwrap(), bench.io.adopt_stream(writer).unwrap());
    assert_eq!(bench.call(nr::POLL_ARM, &[r.into(), 1, 1]), 0);
    assert_eq!(bench.call(nr::CLOSE, &[r.into()]), 0);
    let (reader, _writer) = pipe();
    assert_eq!(bench.io.adopt_stream(reader).unwrap(), r);
    bench.write(w, b"x", u64::MAX);
    assert_eq!(bench.call(nr::POLL_ARM, &[r.into(), 1, 2]), 0);
    std::thread::sleep(Duration::from_millis(20));
    assert!(bench.events.lock().unwrap().is_empty());
}

#[test]
fn what_is_cached_is_read_at_once_and_the_rest_is_brought_by_a_thread() {
    let bench = Bench::new();
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    bench.write(file, &[7; 10_000], 0);
    let room = bench.memory.room(4096);
    let segment = bench.memory.put(&[room.to_ne_bytes(), 4096_u64.to_ne_bytes()].concat());
    // It was written just now. A file system that does not tell may wait for it.
    assert_eq!(bench.call(nr::READ, &[file.into(), segment, 1, 8192, 1]), 1808);
    assert_eq!(bench.memory.get(room, 1808), [7; 1808]);
    assert_eq!(bench.call(nr::READ, &[file.into(), segment, 1, 10_000, 1]), 0);
    for (token, handle) in [(1, file), (2, bench.root)] {
        let warm = [nr::ASYNC_WARM, handle.into(), 0, u64::MAX, token];
        assert_eq!(bench.call(nr::SUBMIT, &warm), 0);
    }
    let mut events = wait_for_events(&bench, 2);
    events.sort_by_key(|event| event.token);
    assert_eq!(events.iter().map(|event| event.value).collect::<Vec<_>>()[0], 0);
    assert!(events[1].value < 0, "a directory was read");
    assert_eq!(bench.call(nr::SUBMIT, &[nr::ASYNC_WARM, file.into(), u64::MAX, 1, 3]), neg(libc::EINVAL));
}

#[test]
fn long_operations_end_with_an_event() {
    let bench = Bench::new();
    let file = bench.handle(bench.root, "f", O_RDWR | O_CREAT);
    for token in 0..20 {
        assert_eq!(bench.call(nr::SUBMIT, &[nr::ASYNC_FSYNC, file.into(), 0, 0, token]), 0);
    }
    let mut events = wait_for_events(&bench, 20);
    events.sort_by_key(|e| e.token);
    assert_eq!(events.iter().map(|e| e.token).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    assert!(events.iter().all(|e| e.kind == nr::EVENT_DONE && e.value == 0));
    assert_eq!(bench.call(nr::SUBMIT, &[99, file.into(), 0, 0, 0]), neg(libc::EINVAL));
}

#[test]
fn waiting_costs_no_processor_time() {
    let bench = Bench::new();
    let (reader, writer) = pipe();
    let (r, w) = (bench.io.adopt_stream(reader).unwrap(), bench.io.adopt_stream(writer).unwrap());
    let arm = |token| assert_eq!(bench.call(nr::POLL_ARM, &[r.into(), 1, token]), 0);
    arm(1);
    bench.write(w, b"x", u64::MAX);
    assert_eq!(wait_for_events(&bench, 1).len(), 1, "the thread runs");
    bench.read(r, 16, u64::MAX).unwrap();
    arm(2);
    let ticks = || {
        let mut of_threads = BTreeMap::new();
        for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
            let text = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            if text.contains("(dormouse-io)") {
                let fields: Vec<_> = text.rsplit(')').next().unwrap().split_whitespace().collect();
                let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
                of_threads.insert(task.file_name(), ticks);
            }
        }
        of_threads
    };
    // Those of other tests come and go, and may be busy for a while.
    let used = || {
        let before = ticks();
        std::thread::sleep(Duration::from_secs(1));
        let of_thread = |(thread, now): (_, u64)| now.saturating_sub(*before.get(&thread).unwrap_or(&now));
        ticks().into_iter().map(of_thread).sum::<u64>()
    };
    assert!((0..20).any(|_| used() <= 2), "other tests' threads may have had a tick");
}
