//! Orders to hibernate and who may give them, hibernation by the idle timeout, and the reports of both.

mod sleeper;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use runtime::state::{Id, Root};
use serde_json::Value;
use sleeper::{Events, PATIENCE, TestSandbox, next_line, quiet_window};

/// Starts a Python program in sandbox `s`; it says when it is ready.
fn start(sandbox: &mut TestSandbox, options: &[&str], program: &str) {
    sandbox.start(options, &[], &["python3", "-u", "-c", program]);
}

fn end(sandbox: &mut TestSandbox) {
    sandbox.kill("KILL");
    assert_eq!(sandbox.end().0, Some(137));
}

/// Processor time of the sandbox's processes, the front end apart, in nanoseconds; threads that have ended included.
struct Used(BTreeMap<u32, u64>);

impl Used {
    fn new(sandbox: &TestSandbox) -> Self {
        Self(sandbox.processes().into_iter().skip(1).map(|pid| (pid, cpu_ns(pid))).collect())
    }

    /// How much came to it since, in all.
    fn since(&self, sandbox: &TestSandbox) -> u64 {
        let before = |pid: &u32| self.0.get(pid).copied().unwrap_or(0);
        Self::new(sandbox).0.iter().map(|(pid, ns)| ns.saturating_sub(before(pid))).sum()
    }
}

/// 0 for a process that has ended.
fn cpu_ns(pid: u32) -> u64 {
    let mut clock = 0;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both places are live for the calls.
    let known = unsafe {
        libc::clock_getcpuclockid(pid.cast_signed(), &raw mut clock) == 0
            && libc::clock_gettime(clock, &raw mut time) == 0
    };
    if known { time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned() } else { 0 }
}

#[test]
fn interval_timers_rest_with_the_sandbox_and_go_on_afterwards() {
    let mut sandbox = TestSandbox::new();
    let program = "
import signal, time, select, os
count = 0
def tick(*_):
    global count
    count += 1
signal.signal(signal.SIGALRM, tick)
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
start = time.monotonic()
print('ready')
time.sleep(2.5)
print('slept', time.monotonic() - start)
before, woken = count, time.monotonic()
while count < before + 10: time.sleep(0.01)
print('ticks', count - before, time.monotonic() - woken)
input()";
    let started = Instant::now();
    start(&mut sandbox, &[], program);
    sleep(Duration::from_millis(100));
    sandbox.order(&["hibernate"]);
    // Spare processes end.
    sleep(Duration::from_millis(300));
    let first = Used::new(&sandbox);
    let used = quiet_window(Duration::from_secs(3), 100_000, || first.since(&sandbox));
    assert!(used <= 100_000, "{used} ns of a hibernated sandbox");
    assert_eq!(sandbox.sandbox_state(), "hibernated", "time does not wake it");
    sandbox.order(&["wake"]);
    let front = sandbox.front.as_mut().unwrap();
    let slept = next_line(front);
    let slept: f64 = slept.trim().strip_prefix("slept ").unwrap().parse().unwrap();
    // Its time had come while it was asleep.
    assert!((3.0..started.elapsed().as_secs_f64()).contains(&slept), "{slept}");
    let ticks = next_line(front);
    let (ticks, seconds) = ticks.trim().strip_prefix("ticks ").unwrap().split_once(' ').unwrap();
    let (ticks, seconds): (f64, f64) = (ticks.parse().unwrap(), seconds.parse().unwrap());
    // None is made up for.
    assert!(ticks <= 100.0 * seconds + 10.0, "{ticks} in {seconds} s");
    end(&mut sandbox);
}

/// Nanoseconds of one of the host's clocks.
fn host_ns(clock: libc::clockid_t) -> i128 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the place is live for the call.
    assert_eq!(unsafe { libc::clock_gettime(clock, &raw mut time) }, 0);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

#[test]
fn its_clocks_are_the_hosts_however_long_it_slept() {
    const CLOCKS: [libc::clockid_t; 3] = [libc::CLOCK_MONOTONIC, libc::CLOCK_REALTIME, libc::CLOCK_BOOTTIME];
    const ERROR_NS: i128 = 1_000_000;
    let mut sandbox = TestSandbox::new();
    let program = "
import sys, time
print('ready')
for _ in sys.stdin:
    print(*[time.clock_gettime_ns(clock) for clock in (time.CLOCK_MONOTONIC, time.CLOCK_REALTIME, time.CLOCK_BOOTTIME)])";
    start(&mut sandbox, &[], program);
    let compare = |sandbox: &mut TestSandbox, when: &str| {
        let before = CLOCKS.map(host_ns);
        sandbox.says_line();
        let line = next_line(sandbox.front.as_mut().unwrap());
        let after = CLOCKS.map(host_ns);
        let theirs = line.split_whitespace().map(|word| word.parse::<i128>().unwrap());
        for ((their, before), after) in theirs.zip(before).zip(after) {
            let allowed = before - ERROR_NS..after + ERROR_NS;
            assert!(allowed.contains(&their), "{when}: {:?} past the question", their - before);
        }
    };
    compare(&mut sandbox, "at first");
    sleep(Duration::from_millis(1500));
    compare(&mut sandbox, "running");
    for _ in 0..2 {
        sandbox.order(&["hibernate"]);
        sleep(Duration::from_secs(2));
        compare(&mut sandbox, "woken up");
        compare(&mut sandbox, "right after it");
    }
    end(&mut sandbox);
}

#[test]
fn it_hibernates_by_itself_when_nothing_comes() {
    const IDLE_TIMEOUT: Duration = Duration::from_millis(700);
    let mut sandbox = TestSandbox::new();
    let port = testdir::free_port().to_string();
    let program = format!(
        "
import socket, threading, time
def upkeep():
    while True: time.sleep(0.1)
threading.Thread(target=upkeep, daemon=True).start()
server = socket.create_server(('127.0.0.1', {port}))
print('ready')
while True:
    client, _ = server.accept()
    while data := client.recv(100): client.sendall(data)"
    );
    start(&mut sandbox, &["--idle-timeout", "700ms"], &program);
    let mut events = Events::of(&sandbox);
    let mut client = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut request = || {
        client.write_all(b"x").unwrap();
        client.read_exact(&mut [0]).unwrap();
    };
    // The first event may say that it is hibernated already, but not why: the request has woken it then.
    request();
    let events = events.until(|event| event["to"] == "hibernated" && !event["cause"].is_null());
    assert_eq!(events.last().unwrap()["cause"], "idle-timeout", "{events:?}");
    // A request within each idle timeout keeps the sandbox awake.
    let mut last = Instant::now();
    let mut judged = 0;
    for _ in 0..100 {
        last = Instant::now();
        request();
        // The front end hears of an event's wake beside the program's going on.
        sandbox.wakes();
        sleep(Duration::from_millis(200));
        let state = sandbox.sandbox_state();
        // Unless this took longer than it should.
        if last.elapsed() < IDLE_TIMEOUT {
            assert_ne!(state, "hibernated");
            judged += 1;
        }
        if judged == 8 {
            break;
        }
    }
    assert!(judged > 0, "no request was followed by another in time");
    sandbox.becomes("hibernated");
    // However long the commands took.
    assert!(last.elapsed() >= IDLE_TIMEOUT, "{:?}", last.elapsed());
    end(&mut sandbox);
}

#[test]
fn it_does_not_hibernate_while_it_computes() {
    let mut sandbox = TestSandbox::new();
    let program = "
import signal, time
computes = True
def stop(*_):
    global computes
    computes = False
signal.signal(signal.SIGUSR1, stop)
print('ready')
while computes: pass
time.sleep(100)";
    start(&mut sandbox, &["--idle-timeout", "300ms"], program);
    for _ in 0..25 {
        assert_eq!(sandbox.sandbox_state(), "running");
        sleep(Duration::from_millis(50));
    }
    sandbox.kill("USR1");
    sandbox.becomes("hibernated");
    end(&mut sandbox);
}

#[test]
fn its_end_is_not_held_up_by_a_hibernation() {
    const ROUNDS: u32 = 10;
    let program = "x = [bytes([i % 251 + 1]) * 1048576 for i in range(400)]
print('ready')
while True: pass";
    for _ in 0..ROUNDS {
        let mut sandbox = TestSandbox::new();
        start(&mut sandbox, &[], program);
        let down = sandbox.command(&["hibernate", "s"]).stderr(Stdio::piped()).spawn().unwrap();
        sleep(Duration::from_millis(250));
        let start = Instant::now();
        sandbox.kill("KILL");
        assert_eq!(sandbox.end().0, Some(137));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let output = down.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        // The order came after the end.
        if error.contains("container does not exist") {
            continue;
        }
        // The client that waited for the hibernation is told of the end, unless the disk was that fast.
        assert!(output.status.success() || error.contains("it ended"), "{error}");
        return;
    }
    panic!("none of {ROUNDS} orders came before the end");
}

#[test]
fn peers_that_say_nothing_hold_up_nobody() {
    let mut sandbox = TestSandbox::new();
    start(&mut sandbox, &[], "print('ready'); input()");
    let socket = sandbox.dir.join("state/s/control.sock");
    let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let half: Vec<_> = (0..100)
        .map(|_| {
            let mut peer = UnixStream::connect(&socket).unwrap();
            let _ = peer.write_all(b"{\"op\":");
            peer
        })
        .collect();
    let started = Instant::now();
    for _ in 0..10 {
        assert_eq!(sandbox.state()["status"], "running");
    }
    sandbox.order(&["hibernate"]);
    sandbox.order(&["wake"]);
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    for garbage in ["\n", "{}\n", "x", "{\"op\":\"kill\",\"signal\":1e99}\n", "{\"op\":\"fly\"}\n"] {
        // The connection is made with the credentials of a user who may give orders, or it would be refused.
        let sandbox = Root::new(sandbox.dir.join("state")).sandbox(&Id::new("s").unwrap()).unwrap();
        let mut peer = runtime::control::connect(&sandbox).unwrap();
        peer.write_all(garbage.as_bytes()).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        peer.read_to_string(&mut answer).unwrap();
        assert!(
            serde_json::from_str::<Value>(&answer).unwrap()["error"].is_string(),
            "{garbage:?}: {answer}"
        );
    }
    drop((silent, half));
    end(&mut sandbox);
}

/// Gives an order, and does not wait for what comes of it.
fn order(sandbox: &TestSandbox, what: &str) -> Child {
    let mut command = sandbox.command(&[what, "s", "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn of_two_orders_the_later_counts() {
    let mut sandbox = TestSandbox::new();
    // Never at rest, and so not hibernated before the second step.
    start(&mut sandbox, &[], "print('ready')\nwhile True: pass");
    let mut overtaken = 0;
    for _ in 0..50 {
        let down = order(&sandbox, "hibernate");
        sleep(Duration::from_millis(100));
        let (up, down) = (order(&sandbox, "wake"), down.wait_with_output().unwrap());
        let up = up.wait_with_output().unwrap();
        let [said_up, said_down] = [&up, &down].map(|output| String::from_utf8_lossy(&output.stderr));
        match (up.status.code(), down.status.code()) {
            (Some(0), Some(1)) => {
                assert!(said_down.contains("it was woken meanwhile"), "{said_down}");
                overtaken += 1;
            }
            // The wake came when it was hibernated already,
            (Some(0), Some(0)) => {}
            // or overtook the other on the way here.
            (Some(1), Some(0)) => {
                assert!(said_up.contains("it is not hibernated"), "{said_up}");
                sandbox.order(&["wake"]);
            }
            codes => panic!("{codes:?}: {said_up} {said_down}"),
        }
        if up.status.success() {
            let up: Value = serde_json::from_slice(&up.stdout).unwrap();
            assert!(up["pages"].is_u64(), "{up}");
        }
        sleep(Duration::from_millis(300));
        // On a slow machine its memory may have been on the way out when the second order came.
        assert!(["running", "hibernate-running"].contains(&&*sandbox.sandbox_state()));
        if overtaken == 5 {
            break;
        }
    }
    assert_eq!(overtaken, 5, "hibernations that were overtaken");
    // Orders for the same are one, unless the second comes when it is done.
    let both = [0, 1].map(|_| order(&sandbox, "hibernate")).map(|one| one.wait_with_output().unwrap());
    assert!(both.iter().any(|one| one.status.success()), "{both:?}");
    for one in both.iter().filter(|one| !one.status.success()) {
        let error = String::from_utf8_lossy(&one.stderr);
        assert!(one.status.code() == Some(1) && error.contains("it is hibernated already"), "{one:?}");
    }
    sandbox.kill("CONT");
    sandbox.wakes();
    sandbox.kill("STOP");
    sandbox.becomes("hibernated");
    end(&mut sandbox);
}

fn number(stats: &Value, name: &str) -> u64 {
    stats.pointer(name).and_then(Value::as_u64).unwrap()
}

/// Checks the statistics of the program below before anything has slept.
fn shows_a_warm_sandbox(warm: &Value) {
    let resident = number(warm, "/memory/user_resident_bytes");
    assert!(resident > 20 << 20, "{warm}");
    assert!(number(warm, "/memory/kernel_heap_bytes") > 100_000, "{warm}");
    let (rss, pss) = (number(warm, "/memory/vmm_rss_bytes"), number(warm, "/memory/vmm_pss_bytes"));
    assert!(pss > 0 && rss >= pss, "{warm}");
    assert!(number(warm, "/memory/file_mapped_bytes") > 0, "{warm}");
    for name in ["/memory/swapped_bytes", "/hibernations", "/wakes", "/swap_in_faults", "/written_bytes"] {
        assert_eq!(number(warm, name), 0, "{name}: {warm}");
    }
    assert_eq!(number(warm, "/unknown_calls"), 3, "{warm}");
    // On systrap the page of the C library's `getppid`, and few more.
    let patched = number(warm, "/patched_bytes");
    assert!(
        if sleeper::platform() == "systrap" { (4096..1 << 20).contains(&patched) } else { patched == 0 },
        "{warm}"
    );
}

/// Checks the statistics of a sleep against those before it, and the answer to its order.
fn shows_a_sandbox_that_sleeps(warm: &Value, down: &Value, asleep: &Value) {
    let resident = number(warm, "/memory/user_resident_bytes");
    let swapped = number(asleep, "/memory/swapped_bytes");
    assert_eq!(swapped, number(down, "/pages") * 4096, "{asleep} after {down}");
    assert!(number(asleep, "/memory/user_resident_bytes") + swapped <= resident + (4 << 20), "{asleep}");
    assert!(number(asleep, "/memory/user_resident_bytes") < 1 << 20, "{asleep}");
    assert_eq!(number(asleep, "/memory/swap_file_bytes"), number(down, "/swap_bytes"));
    assert_eq!(number(asleep, "/written_bytes"), number(down, "/swap_bytes"));
    let of_class = |class: &str| number(asleep, &format!("/home/{class}_pages"));
    let classes = ["file", "anonymous", "store", "kernel"].map(of_class);
    assert_eq!(classes.iter().sum::<u64>(), number(down, "/pages"), "{asleep}");
    assert!(classes[0] > 100 && classes[1] > 5000 && classes[3] == 0, "{asleep}");
    assert_eq!(number(asleep, "/memory/file_mapped_bytes"), 0, "{asleep}");
    assert_eq!((number(asleep, "/hibernations"), number(asleep, "/wakes")), (1, 0));
}

#[test]
fn statistics_show_where_memory_is_and_wake_nobody() {
    let mut sandbox = TestSandbox::new();
    let program = "import ctypes, os
for i in range(3): ctypes.CDLL(None).syscall(1000 + i)
for i in range(5000): os.getppid()
x = [bytes([i % 251 + 1]) * 4096 for i in range(5000)]
print('ready')
while True:
    input()
    print(sum(page[0] for page in x[:1000]))";
    start(&mut sandbox, &[], program);
    sleep(Duration::from_millis(100));
    let warm = sandbox.order(&["stats"]);
    shows_a_warm_sandbox(&warm);
    let down = sandbox.order(&["hibernate"]);
    let before = Used::new(&sandbox);
    let asleep = sandbox.order(&["stats"]);
    assert_eq!(sandbox.sandbox_state(), "hibernated");
    let used = before.since(&sandbox);
    assert!(used < 50_000_000, "{used} ns to answer");
    shows_a_sandbox_that_sleeps(&warm, &down, &asleep);
    sandbox.order(&["wake"]);
    let sandbox = &mut sandbox;
    sandbox.says_line();
    let sum = next_line(sandbox.front.as_mut().unwrap());
    assert!(sum.trim().parse::<u32>().is_ok(), "{sum:?}");
    sleep(Duration::from_millis(100));
    let woken = sandbox.order(&["stats"]);
    assert!(number(&woken, "/swap_in_faults") > 10, "{woken}");
    assert!(number(&woken, "/swap_in_pages") >= number(&woken, "/swap_in_faults"), "{woken}");
    assert!(number(&woken, "/read_bytes") > 1000 * 4096, "{woken}");
    let left = number(&woken, "/memory/swapped_bytes");
    assert!(left > 0 && left < number(&asleep, "/memory/swapped_bytes"), "{woken}");
    assert_eq!(number(&woken, "/wakes"), 1);
    let classes = woken["wake_times"].as_array().unwrap();
    assert_eq!((classes.len(), number(&classes[0], "/wakes")), (1, 1), "{woken}");
    let down = sandbox.order(&["hibernate"]);
    let again = sandbox.order(&["stats"]);
    assert!(number(&again, "/memory/working_set_bytes") > 1000 * 4096, "{again} after {down}");
    assert!(number(&again, "/memory/reap_file_bytes") > 0, "{again}");
    let text = String::from_utf8(sandbox.run(&["stats", "s"]).stdout).unwrap();
    assert!(text.contains("applications, swapped") && text.contains("µs"), "{text}");
    end(sandbox);
    sandbox.refuses(&["stats"], "container does not exist");
}
