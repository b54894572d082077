//! `dormouse exec` in sandboxes of `dormouse do`; with bundles it is tested beside runc (`tests/oci/exec.rs`).

mod on_terminal;
mod sleeper;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use on_terminal::OnTerminal;
use sleeper::{PATIENCE, TestSandbox, next_line};

/// A sandbox whose first process waits for its standard input to end.
fn waiting(options: &[&str]) -> TestSandbox {
    let mut sandbox = TestSandbox::new();
    sandbox.start(options, &[], &["sh", "-c", "echo ready; cat; exit 3"]);
    sandbox
}

fn exec(sandbox: &TestSandbox, options: &[&str], command: &[&str]) -> Command {
    let mut all = sandbox.command(&[&["exec"], options, &["s"], command].concat());
    all.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    all
}

fn run(sandbox: &TestSandbox, options: &[&str], command: &[&str]) -> Output {
    exec(sandbox, options, command).stdin(Stdio::null()).output().unwrap()
}

/// Runs it, which must end well; result: its output.
fn said(sandbox: &TestSandbox, options: &[&str], command: &[&str]) -> String {
    let output = run(sandbox, options, command);
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

fn script(sandbox: &TestSandbox, text: &str) -> String {
    said(sandbox, &[], &["sh", "-c", text])
}

/// Starts it and waits for its first line, `up`.
fn start(sandbox: &TestSandbox, options: &[&str], text: &str) -> Child {
    let mut child = exec(sandbox, options, &["sh", "-c", text]).spawn().unwrap();
    assert_eq!(next_line(&mut child), "up\n");
    child
}

fn code_of(mut child: Child) -> Option<i32> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if start.elapsed() > PATIENCE {
            let _ = child.kill();
            panic!("it does not end");
        }
        sleep(Duration::from_millis(2));
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        sleep(Duration::from_millis(5));
    }
}

fn signal(pid: u32, number: i32) {
    // SAFETY: integers only; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid.cast_signed(), number) }, 0);
}

/// Whether the VMM holds a file whose name begins so.
fn holds(sandbox: &TestSandbox, start: &str) -> bool {
    let links = fs::read_dir(format!("/proc/{}/fd", sandbox.processes()[1])).unwrap().flatten();
    let names = links.filter_map(|link| fs::read_link(link.path()).ok());
    names.into_iter().any(|name| name.to_string_lossy().starts_with(start))
}

#[test]
fn it_runs_with_the_commands_streams_and_ends_with_its_code() {
    let sandbox = waiting(&[]);
    assert_eq!(script(&sandbox, "echo hello"), "hello\n");
    let output = run(&sandbox, &[], &["sh", "-c", "echo out; echo err >&2; exit 7"]);
    assert_eq!(
        (output.status.code(), &*output.stdout, &*output.stderr),
        (Some(7), &b"out\n"[..], &b"err\n"[..])
    );
    for (name, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        let output = run(&sandbox, &[], &["sh", "-c", &format!("kill -{name} $$")]);
        assert_eq!(output.status.code(), Some(code), "{name}");
    }
    // Through pipes, more than they hold, and to a file.
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| ((at * 7) >> 3).to_le_bytes()[0]).collect();
    let mut child = exec(&sandbox, &[], &["cat"]).spawn().unwrap();
    let (mut input, sent) = (child.stdin.take().unwrap(), bytes.clone());
    let writer = std::thread::spawn(move || input.write_all(&sent).unwrap());
    let mut back = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut back).unwrap();
    writer.join().unwrap();
    assert!(back == bytes);
    assert_eq!(code_of(child), Some(0));
    let path = sandbox.dir.join("out");
    let file = File::create(&path).unwrap();
    let mut command = exec(&sandbox, &[], &["sh", "-c", "cat; echo more"]);
    command.stdin(File::open("/proc/self/comm").unwrap()).stdout(file);
    assert!(command.status().unwrap().success());
    assert!(fs::read_to_string(path).unwrap().ends_with("\nmore\n"));
}

#[test]
fn what_cannot_be_run_is_said_in_one_sentence() {
    let sandbox = waiting(&[]);
    let script = sandbox.dir.join("none");
    fs::write(&script, "no program").unwrap();
    let cases: &[(&[&str], &[&str], i32, &str)] = &[
        (&[], &["/nowhere"], 127, "no such file"),
        (&[], &["no-such-program"], 127, "no such file"),
        (&[], &["/etc/passwd"], 126, "not executable"),
        (&[], &["/"], 126, "cannot run / in sandbox s"),
        (&["--cwd", "/nowhere"], &["ls"], 255, "working directory /nowhere"),
        (&["--cwd", "here"], &["ls"], 255, "not an absolute path"),
        (&["--preserve-fds", "65"], &["ls"], 255, "at most 64"),
        (&["--cgroup", "../a"], &["ls"], 255, "names no group below"),
        (&["--cgroup", "not-there"], &["ls"], 255, "there is no control group"),
        (&["-t"], &["ls"], 255, "standard input is none"),
        (&["-d", "-t"], &["ls"], 255, "pass --console-socket"),
        (&["--process", "/nowhere"], &[], 255, "cannot use process file /nowhere"),
        (&[], &[], 255, "no command"),
    ];
    for (options, command, code, words) in cases {
        let output = run(&sandbox, options, command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(*code), "{options:?} {command:?}: {error}");
        assert!(error.starts_with("dormouse: cannot ") && error.contains(words), "{error}");
        assert_eq!(error.trim_end().lines().count(), 1, "{error}");
    }
    let long = "x".repeat(100_000);
    let output = run(&sandbox, &[], &[&["echo"], &[&*long; 11][..]].concat());
    assert!(String::from_utf8_lossy(&output.stderr).contains("1048576 are possible"), "{output:?}");
    assert_eq!(said(&sandbox, &[], &[&["echo"], &[&*long; 9][..]].concat()).len(), 900_009);
    let output = sandbox.run(&["exec", "nobody", "ls"]);
    assert_eq!(output.status.code(), Some(255));
    assert!(String::from_utf8_lossy(&output.stderr).contains("container does not exist"));
}

#[test]
fn it_begins_as_the_first_process_did_but_for_what_is_asked() {
    let mut sandbox = TestSandbox::new();
    let first = "cd /; umask 077; export LATER=1; echo ready; cat";
    let options = ["--env", "FIRST=one two", "--env", "SECOND=2", "--cwd", "/usr"];
    sandbox.start(&options, &[], &["sh", "-c", first]);
    let text = script(&sandbox, "pwd; echo \"$FIRST $SECOND $LATER.\"; umask; id -u");
    let own_umask = format!("{:04o}", {
        // SAFETY: integers only.
        unsafe {
            let mask = libc::umask(0o22);
            libc::umask(mask);
            mask
        }
    });
    assert_eq!(text, format!("/usr\none two 2 .\n{own_umask}\n0\n"));
    let text = said(
        &sandbox,
        &[
            "--cwd",
            "/tmp",
            "-e",
            "SECOND=3",
            "-e",
            "NEW=n",
            "-u",
            "1234:77",
            "-g",
            "8",
            "--additional-gids",
            "9",
        ],
        &["sh", "-c", "pwd; echo $FIRST $SECOND $NEW $HOME; id -u; id -g; id -G"],
    );
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..4], ["/tmp", "one two 3 n /", "1234", "77"]);
    assert!(lines[4].starts_with("77 ") && lines[4].ends_with("8 9"), "{text}");
    let status = said(&sandbox, &["--no-new-privs"], &["cat", "/proc/self/status"]);
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let status = said(&sandbox, &["-u", "5"], &["cat", "/proc/self/status"]);
    assert!(status.contains("NoNewPrivs:\t0") && status.contains("CapEff:\t0000000000000000"), "{status}");
}

#[test]
fn signals_go_on_to_it() {
    let sandbox = waiting(&[]);
    let traps = "for s in INT USR1 USR2 HUP; do trap \"echo got $s\" $s; done; trap 'exit 6' TERM";
    let mut child = start(&sandbox, &[], &format!("{traps}; echo up; while :; do sleep 0.02; done"));
    for (name, number) in
        [("INT", libc::SIGINT), ("USR1", libc::SIGUSR1), ("USR2", libc::SIGUSR2), ("HUP", libc::SIGHUP)]
    {
        signal(child.id(), number);
        assert_eq!(next_line(&mut child), format!("got {name}\n"));
    }
    signal(child.id(), libc::SIGTERM);
    assert_eq!(code_of(child), Some(6));
    let child = start(&sandbox, &[], "echo up; exec sleep 1000");
    signal(child.id(), libc::SIGTERM);
    assert_eq!(code_of(child), Some(143));
}

#[test]
fn who_kills_the_command_kills_the_program_and_not_its_children() {
    let sandbox = waiting(&[]);
    let mut child = start(&sandbox, &[], "sleep 4321 & echo up; exec sleep 1234");
    child.kill().unwrap();
    child.wait().unwrap();
    let runs = |what: &str| {
        script(&sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains(&format!("sleep {what} "))
    };
    wait_for("the program goes on", || !runs("1234"));
    assert!(runs("4321"));
    let parents = script(&sandbox, "cat /proc/[0-9]*/stat");
    let orphan = parents.lines().find(|line| line.contains("(sleep)")).unwrap();
    assert_eq!(orphan.split(' ').nth(3), Some("1"), "{parents}");
}

#[test]
fn the_sandboxes_end_is_its_own() {
    for by_itself in [true, false] {
        let mut sandbox = waiting(&[]);
        let child = start(&sandbox, &[], "echo up; exec sleep 1000");
        // Its streams are `/dev/null`, so that no reader waits for their end.
        let mut detached = exec(&sandbox, &["-d"], &["sleep", "1000"]);
        detached.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        assert!(detached.status().unwrap().success());
        if by_itself {
            drop(sandbox.front.as_mut().unwrap().stdin.take());
            assert_eq!(sandbox.end().0, Some(3));
        } else {
            sandbox.kill("KILL");
            assert_eq!(sandbox.end().0, Some(137));
        }
        assert_eq!(code_of(child), Some(137), "{by_itself}");
        let output = run(&sandbox, &[], &["true"]);
        assert!(String::from_utf8_lossy(&output.stderr).contains("container does not exist"), "{output:?}");
    }
}

#[test]
fn nobody_inside_waits_for_it_and_nothing_is_left() {
    let mut sandbox = TestSandbox::new();
    // It waits for all that are its own when it is told to.
    let first = "echo ready; while read line; do wait; done";
    sandbox.start(&[], &[], &["sh", "-c", first]);
    let stat = script(&sandbox, "cat /proc/self/stat; cat /proc/$$/stat");
    let fields: Vec<Vec<&str>> = stat.lines().map(|line| line.split(' ').collect()).collect();
    let shell = &fields[1];
    assert_eq!((shell[3], shell[4], shell[5]), ("0", shell[0], shell[0]), "{stat}");
    assert_eq!(fields[0][3], shell[0], "{stat}");
    let path = sandbox.dir.join("stream");
    for round in 0..40 {
        let file = || File::options().create(true).append(true).open(&path).unwrap();
        let mut command = exec(&sandbox, &[], &["sh", "-c", "sleep 0.001 & exit 1"]);
        command.stdin(Stdio::null()).stdout(file()).stderr(file());
        assert_eq!(command.status().unwrap().code(), Some(1), "{round}");
    }
    wait_for("descriptors are left", || !holds(&sandbox, path.to_str().unwrap()));
    // The first process waits for the children that it inherited from the exec'd processes.
    sandbox.says_line();
    // Besides the first process there are the shell, `ls` and `wc`.
    let count = || script(&sandbox, "ls -d /proc/[0-9]* | wc -l").trim().parse::<usize>().unwrap();
    wait_for("zombies are left", || count() <= 4);
}

#[test]
fn twenty_run_at_once() {
    let sandbox = waiting(&[]);
    let children: Vec<Child> = (0..20)
        .map(|number| exec(&sandbox, &[], &["sh", "-c", &format!("read x; echo $x {number}; exit {number}")]))
        .map(|mut command| command.spawn().unwrap())
        .collect();
    for (number, mut child) in children.into_iter().enumerate() {
        child.stdin.take().unwrap().write_all(b"line\n").unwrap();
        assert_eq!(next_line(&mut child), format!("line {number}\n"));
        assert_eq!(code_of(child), i32::try_from(number).ok());
    }
}

#[test]
fn a_hibernated_sandbox_wakes_for_it() {
    let sandbox = waiting(&[]);
    let mut events = sandbox.command(&["events", "s"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(events.stdout.take().unwrap()).lines();
    let mut event = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(event()["to"], "warm");
    for by_signal in [false, true, false] {
        if by_signal {
            sandbox.kill("STOP");
            sandbox.becomes("hibernated");
        } else {
            sandbox.sleeps();
        }
        assert_eq!(event()["to"], "hibernated");
        assert_eq!(script(&sandbox, "echo awake"), "awake\n");
        let woken = event();
        assert_eq!(
            (&woken["to"], &woken["cause"]),
            (&"hibernate-running".into(), &"request".into()),
            "{woken}"
        );
        assert_eq!(woken["request"], "exec", "{woken}");
        assert_eq!(event()["to"], "woken-up");
        assert_eq!(sandbox.status(), "running");
    }
    events.kill().unwrap();
    events.wait().unwrap();
}

#[test]
fn what_it_waits_for_wakes_the_sandbox() {
    let sandbox = waiting(&[]);
    let mut child = start(&sandbox, &[], "echo up; cat; echo end");
    let mut echoes = |line: &str| {
        child.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
        assert_eq!(next_line(&mut child), line);
    };
    // Data wakes the sandbox only if a task waits for it already: now `cat` runs.
    echoes("first\n");
    for round in 0..5 {
        sandbox.sleeps();
        echoes(&format!("line {round}\n"));
        // The front end hears of an event's wake beside the program's going on.
        sandbox.wakes();
    }
    sandbox.sleeps();
    drop(child.stdin.take());
    assert_eq!(next_line(&mut child), "end\n");
    assert_eq!(code_of(child), Some(0));
    // A signal for it, and the end of its command.
    let child = start(&sandbox, &[], "trap 'exit 9' TERM; echo up; while :; do sleep 1000 & wait; done");
    sandbox.sleeps();
    signal(child.id(), libc::SIGTERM);
    assert_eq!(code_of(child), Some(9));
    let mut child = start(&sandbox, &[], "echo up; exec sleep 1234");
    sandbox.sleeps();
    child.kill().unwrap();
    child.wait().unwrap();
    sandbox.wakes();
    wait_for("it goes on", || {
        !script(&sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 1234 ")
    });
}

#[test]
fn none_is_lost_while_the_sandbox_falls_asleep_and_wakes() {
    let sandbox = waiting(&[]);
    let mut late = 0;
    for round in 0..40 {
        let child = exec(&sandbox, &[], &["sh", "-c", &format!("exit {round}")]).spawn().unwrap();
        // At any moment of the start.
        sleep(Duration::from_micros(500 * (round % 20)));
        let output = sandbox.run(&["hibernate", "s"]);
        let error = String::from_utf8_lossy(&output.stderr);
        // The command may not have come as far as the sandbox yet.
        let known = ["woken meanwhile", "hibernated already"].iter().any(|why| error.contains(why));
        assert!(output.status.success() || known, "{error}");
        let start = Instant::now();
        let mut child = Some(child);
        while child.as_mut().unwrap().try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(2) {
                // An order that came after it has stopped it on its way.
                late += 1;
                sandbox.run(&["wake", "s"]);
                break;
            }
            sleep(Duration::from_millis(1));
        }
        assert_eq!(code_of(child.take().unwrap()), i32::try_from(round).ok());
    }
    // A process that runs already may be stopped on its way, where the machine is slow or busy; one that has not begun
    // never is.
    assert!(late < 20, "{late} had to wait for another wake");
}

#[test]
fn it_keeps_an_idle_sandbox_awake() {
    let sandbox = waiting(&["--idle-timeout", "1s"]);
    sandbox.becomes("hibernated");
    let mut judged = 0;
    for _ in 0..100 {
        let start = Instant::now();
        assert_eq!(script(&sandbox, "echo x"), "x\n");
        sandbox.wakes();
        sleep(Duration::from_millis(200));
        let status = sandbox.status();
        // Unless this took longer than it should.
        if start.elapsed() < Duration::from_secs(1) {
            assert_eq!(status, "running");
            judged += 1;
        }
        if judged == 10 {
            break;
        }
    }
    assert!(judged > 0, "no process was followed by another in time");
    sandbox.becomes("hibernated");
}

#[test]
fn it_has_a_terminal_of_its_own() {
    let sandbox = waiting(&[]);
    for round in 0..3 {
        let script = "trap 'echo size $(stty size)' WINCH; tty; stty size; echo up; \
                      while :; do read line && echo \"<$line>\"; test \"$line\" = end && exit 4; done";
        let mut terminal = OnTerminal::start(exec(&sandbox, &["-t"], &["sh", "-c", script]));
        let text = terminal.shows("up\r\n");
        assert!(text.contains("/dev/pts/0\r\n33 99\r\n"), "{round}: {text:?}");
        assert!(!terminal.is_cooked());
        terminal.types("hallo\r");
        // Echoed by the line discipline inside, and read.
        assert_eq!(terminal.shows("<hallo>\r\n"), "hallo\r\n<hallo>\r\n");
        terminal.resize(40, 120);
        terminal.shows("size 40 120\r\n");
        // It reads again.
        terminal.types("more\r");
        terminal.shows("<more>\r\n");
        sandbox.sleeps();
        terminal.types("end\r");
        terminal.shows("<end>");
        assert_eq!(terminal.front.wait().unwrap().code(), Some(4));
        assert!(terminal.is_cooked());
    }
    // Two at a time, and keys that are signals.
    let mut one = OnTerminal::start(exec(&sandbox, &["-t"], &["sh", "-c", "tty; echo up; exec sleep 1000"]));
    let mut other = OnTerminal::start(exec(&sandbox, &["-t"], &["sh", "-c", "tty; echo up; cat; exit 5"]));
    let (first, second) = (one.shows("up\r\n"), other.shows("up\r\n"));
    assert_ne!(first, second);
    other.types("\x04");
    assert_eq!(other.front.wait().unwrap().code(), Some(5));
    one.types("\x03");
    assert_eq!(one.front.wait().unwrap().code(), Some(130));
    wait_for("terminals are left", || {
        script(&sandbox, "ls /dev/pts").trim() == "ptmx" && !holds(&sandbox, "/dev/pts/")
    });
}

#[test]
fn its_terminal_is_as_it_was_when_the_command_is_killed() {
    let sandbox = waiting(&[]);
    let mut terminal = OnTerminal::start(exec(&sandbox, &["-t"], &["sh", "-c", "echo up; exec sleep 1234"]));
    terminal.shows("up\r\n");
    assert!(!terminal.is_cooked());
    terminal.front.kill().unwrap();
    terminal.front.wait().unwrap();
    wait_for("the terminal stays raw", || terminal.is_cooked());
    wait_for("it goes on", || {
        !script(&sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 1234 ")
    });
    // And when there is nothing to run.
    let mut terminal = OnTerminal::start(exec(&sandbox, &["-t"], &["/nowhere"]));
    terminal.shows("cannot run /nowhere");
    assert_eq!(terminal.front.wait().unwrap().code(), Some(127));
    assert!(terminal.is_cooked());
}

#[test]
fn job_control_works_on_its_terminal() {
    let sandbox = waiting(&[]);
    let mut terminal = OnTerminal::start(exec(&sandbox, &["-t"], &["bash", "--norc", "--noprofile", "-i"]));
    terminal.types("PS1=; stty -echo; echo re''ady\r");
    terminal.shows("ready\r\n");
    // The job says that it runs.
    terminal.types("sh -c 'echo jo\"\"b; exec sleep 1000'\r");
    terminal.shows("job\r\n");
    terminal.types("\x1a");
    terminal.shows("Stopped");
    terminal.types("kill %1; wait; jobs; echo do''ne; exit 8\r");
    terminal.shows("done\r\n");
    assert_eq!(terminal.front.wait().unwrap().code(), Some(8));
}

#[test]
fn the_leash_of_a_detached_one_stands_for_it() {
    // SAFETY: integers only. Orphans of the commands become this process's children, as they would a shim's.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
    let sandbox = waiting(&[]);
    let pid_file = sandbox.dir.join("pid");
    let detached = |text: &str| -> i32 {
        let out = File::create(sandbox.dir.join("out")).unwrap();
        let mut command =
            exec(&sandbox, &["-d", "--pid-file", pid_file.to_str().unwrap()], &["sh", "-c", text]);
        assert!(command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null()).status().unwrap().success());
        fs::read_to_string(&pid_file).unwrap().parse().unwrap()
    };
    let status_of = |pid: i32| {
        let mut status = 0;
        let start = Instant::now();
        // SAFETY: `status` is live for the call.
        while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
            assert!(start.elapsed() < PATIENCE, "the leash does not end");
            sleep(Duration::from_millis(2));
        }
        std::process::ExitStatus::from_raw(status)
    };
    assert_eq!(status_of(detached("sleep 0.1; exit 33")).code(), Some(33));
    assert_eq!(status_of(detached("exit 0")).code(), Some(0));
    let leash = detached("exec sleep 1000");
    let is_kept = |file: &PathBuf| !matches!(file.to_str(), Some("/dev/null" | "anon_inode:[signalfd]"));
    let others = || {
        let links = fs::read_dir(format!("/proc/{leash}/fd")).unwrap().flatten();
        links.filter_map(|link| fs::read_link(link.path()).ok()).filter(is_kept).count()
    };
    // The command may be gone before the leash has closed its line to it.
    wait_for("it keeps more than its connection", || others() == 1);
    signal(leash.cast_unsigned(), libc::SIGTERM);
    assert_eq!(status_of(leash).signal(), Some(libc::SIGTERM));
    let leash = detached("trap 'exit 5' USR1; echo up; while :; do sleep 0.02; done");
    wait_for("it does not begin", || fs::read_to_string(sandbox.dir.join("out")).unwrap() == "up\n");
    signal(leash.cast_unsigned(), libc::SIGUSR1);
    assert_eq!(status_of(leash).code(), Some(5));
    let leash = detached("exec sleep 1234");
    signal(leash.cast_unsigned(), libc::SIGKILL);
    assert_eq!(status_of(leash).signal(), Some(libc::SIGKILL));
    wait_for("it goes on", || {
        !script(&sandbox, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").contains("sleep 1234 ")
    });
    // A program that cannot be run leaves neither a leash nor a file.
    fs::remove_file(&pid_file).unwrap();
    let output = run(&sandbox, &["-d", "--pid-file", pid_file.to_str().unwrap()], &["/nowhere"]);
    assert_eq!((output.status.code(), pid_file.exists()), (Some(127), false));
    let leash = detached("exec sleep 1000");
    sandbox.kill("KILL");
    assert_eq!(status_of(leash).signal(), Some(libc::SIGKILL));
}

#[test]
fn a_process_may_come_from_a_file() {
    let sandbox = waiting(&[]);
    let path = sandbox.dir.join("process.json");
    let mut process = serde_json::json!({
        "args": ["sh", "-c", "pwd; id -u; echo $A $HOME; umask; ulimit -n; exit 3"],
        "env": ["A=b", "PATH=/usr/bin:/bin"],
        "cwd": "/tmp",
        "user": {"uid": 1, "gid": 2, "umask": 18},
        "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 77, "hard": 88}],
    });
    fs::write(&path, process.to_string()).unwrap();
    let output = run(&sandbox, &["--process", path.to_str().unwrap()], &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!((lines[0], lines[1], lines[3], lines[4]), ("/tmp", "1", "0022", "77"), "{text}");
    assert!(lines[2].starts_with("b /") && lines[2].len() > 3, "{text}");
    process["scheduler"] = serde_json::json!({"policy": "SCHED_OTHER"});
    fs::write(&path, process.to_string()).unwrap();
    let output = run(&sandbox, &["--process", path.to_str().unwrap()], &[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("cannot use process file") && error.contains("process.scheduler"), "{error}");
}
