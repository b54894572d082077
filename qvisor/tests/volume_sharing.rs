//! Two sandboxes and the host use one directory: each sees the others' locks, and all that they do to files there.
//!
//! All three run the same program, `test/guest/party.c`, which does what it is told. So what is Linux's behaviour among processes of
//! the host is asked of every pair.

mod party;
mod sleeper;

use std::fs;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use party::{KINDS, Kind, Party, Shared, WAITS, each_pair};
use sleeper::{TestSandbox, next_line, platform};

#[test]
fn locks_of_each_kind_hold_for_every_pair() {
    let shared = Shared::new();
    let mut parties = shared.three();
    each_pair(&mut parties, |holder, other| {
        holder.does("open 0 file rw", "ok");
        other.does("open 0 file rw", "ok");
        for kind in KINDS {
            for wanted in KINDS {
                let refused = if kind.conflicts(wanted) { "EAGAIN" } else { "ok" };
                holder.does(&kind.take('w'), "ok");
                for what in ['r', 'w'] {
                    other.does(&wanted.take(what), refused);
                    other.does(&wanted.take('u'), "ok");
                }
                // It is changed to one that lets readers in.
                holder.does(&kind.take('r'), "ok");
                other.does(&wanted.take('r'), "ok");
                other.does(&wanted.take('w'), refused);
                other.does(&wanted.take('u'), "ok");
                holder.does(&kind.take('u'), "ok");
                other.does(&wanted.take('w'), "ok");
                other.does(&wanted.take('u'), "ok");
            }
            holder.does(&kind.take('w'), "ok");
            other.does(&kind.take('w'), "EAGAIN");
            holder.does("close 0", "ok");
            other.does(&kind.take('w'), "ok");
            other.does(&kind.take('u'), "ok");
            holder.does("open 0 file rw", "ok");
        }
        other.does("close 0", "ok");
        holder.does("close 0", "ok");
    });
}

#[test]
fn directories_and_files_without_a_name_are_locked() {
    let shared = Shared::new();
    fs::create_dir(shared.0.join("dir")).unwrap();
    let mut parties = shared.three();
    each_pair(&mut parties, |holder, other| {
        holder.does("open 0 dir dir", "ok");
        other.does("open 0 dir dir", "ok");
        holder.does("flock 0 ex try", "ok");
        other.does("flock 0 sh try", "EAGAIN");
        holder.does("flock 0 un try", "ok");
        other.does("flock 0 ex try", "ok");
        other.does("close 0", "ok");
        holder.does("close 0", "ok");
        // What was renamed over is another file than the one that has its name now.
        holder.does("open 0 name rw", "ok");
        other.does("open 0 name rw", "ok");
        other.does("open 1 next rw", "ok");
        other.does("rename next name", "ok");
        holder.does("same 0 name", "no");
        other.does("same 1 name", "yes");
        for kind in [Kind::Flock, Kind::Ofd] {
            holder.does(&kind.take('w'), "ok");
            other.does(&kind.take('r'), "EAGAIN");
        }
        other.does("flock 1 ex try", "ok");
        other.does("ofd 1 w 0 0 try", "ok");
        other.does("close 1", "ok");
        for party in [holder, other] {
            party.does("close 0", "ok");
        }
    });
}

#[test]
fn the_host_sees_the_strongest_of_what_owners_inside_have() {
    let shared = Shared::new();
    let mut one = Party::sandbox("one", &shared.0, "", &[]);
    let mut host = Party::host(&shared.0);
    let is_free = |host: &mut Party, what: char, at: u32, free: bool| {
        host.does(&format!("ofd 0 {what} {at} 1 try"), if free { "ok" } else { "EAGAIN" });
        host.does(&format!("ofd 0 u {at} 1 try"), "ok");
    };
    one.does("open 0 file rw", "ok");
    host.does("open 0 file rw", "ok");
    // Two readers that overlap, of which one goes.
    one.does("posix 0 r 0 100 try", "ok");
    one.does("child posix 0 r 50 100 try", "ok");
    one.does("posix 0 w 60 1 try", "EAGAIN");
    [10, 60, 149].iter().for_each(|at| is_free(&mut host, 'w', *at, false));
    is_free(&mut host, 'w', 150, true);
    one.does("posix 0 u 0 100 try", "ok");
    is_free(&mut host, 'w', 49, true);
    is_free(&mut host, 'w', 50, false);
    is_free(&mut host, 'r', 60, true);
    one.does("kill", "ok");
    is_free(&mut host, 'w', 60, true);
    // A part becomes weaker, and another goes.
    one.does("posix 0 w 0 100 try", "ok");
    one.does("posix 0 r 20 10 try", "ok");
    one.does("posix 0 u 40 10 try", "ok");
    is_free(&mut host, 'r', 10, false);
    is_free(&mut host, 'r', 25, true);
    is_free(&mut host, 'w', 25, false);
    is_free(&mut host, 'w', 45, true);
    is_free(&mut host, 'r', 50, false);
    // By whichever descriptor it closes the file, a process gives up all that it has.
    one.does("open 1 file r", "ok");
    one.does("close 1", "ok");
    is_free(&mut host, 'w', 10, true);
    // First a reader alone, and then one that writes; the lock of bytes of the first stays.
    one.does("close 0", "ok");
    one.does("open 0 file r", "ok");
    one.does("open 1 file rw", "ok");
    one.does("ofd 0 r 0 10 try", "ok");
    one.does("ofd 1 w 20 10 try", "ok");
    is_free(&mut host, 'w', 5, false);
    is_free(&mut host, 'r', 5, true);
    is_free(&mut host, 'r', 25, false);
    one.does("close 1", "ok");
    is_free(&mut host, 'w', 25, true);
    is_free(&mut host, 'w', 5, false);
    one.does("close 0", "ok");
    is_free(&mut host, 'w', 5, true);
}

#[test]
fn the_host_sees_the_strongest_of_what_descriptions_inside_have() {
    let shared = Shared::new();
    let mut one = Party::sandbox("one", &shared.0, "", &[]);
    let mut host = Party::host(&shared.0);
    host.does("open 0 file rw", "ok");
    // The owners of flock(2)'s locks are descriptions.
    one.does("open 0 file r", "ok");
    one.does("open 1 file r", "ok");
    one.does("flock 0 sh try", "ok");
    one.does("flock 1 sh try", "ok");
    one.does("flock 1 ex try", "EAGAIN");
    host.does("flock 0 ex try", "EAGAIN");
    one.does("flock 1 sh try", "ok");
    one.does("close 0", "ok");
    host.does("flock 0 ex try", "EAGAIN");
    one.does("flock 1 ex try", "ok");
    host.does("flock 0 sh try", "EAGAIN");
    one.does("close 1", "ok");
    host.does("flock 0 ex try", "ok");
}

#[test]
fn whoever_asks_is_told_of_locks_outside() {
    let shared = Shared::new();
    let mut parties = shared.three();
    each_pair(&mut parties, |holder, other| {
        holder.does("open 0 file rw", "ok");
        other.does("open 0 file rw", "ok");
        other.does("getlk posix 0 w 0 0", "free");
        holder.does("ofd 0 w 10 5 try", "ok");
        other.does("getlk posix 0 r 0 0", "w 10 5 file");
        other.does("getlk ofd 0 r 0 12", "w 10 5 file");
        other.does("getlk ofd 0 r 0 10", "free");
        holder.does("ofd 0 u 0 0 try", "ok");
        holder.does("posix 0 r 7 0 try", "ok");
        // A process has an id only where it is seen.
        let whose = if holder.sandbox.is_none() { "unknown" } else { "file" };
        other.does("getlk posix 0 w 0 0", &format!("r 7 0 {whose}"));
        other.does("getlk posix 0 r 0 0", "free");
        for party in [holder, other] {
            party.does("close 0", "ok");
        }
    });
}

#[test]
fn waiters_wait_and_are_woken_and_one_that_is_killed_takes_nothing() {
    let shared = Shared::new();
    let mut parties = shared.three();
    each_pair(&mut parties, |holder, other| {
        holder.does("open 0 file rw", "ok");
        other.does("open 0 file rw", "ok");
        for kind in KINDS {
            for (held, wanted) in [('w', 'w'), ('w', 'r'), ('r', 'w')] {
                holder.does(&kind.take(held), "ok");
                other.say(&kind.command(wanted, "wait"));
                other.is_silent(WAITS);
                holder.does(&kind.take('u'), "ok");
                other.answers_soon("ok");
                holder.does(&kind.take('w'), "EAGAIN");
                other.does(&kind.take('u'), "ok");
            }
            holder.does(&kind.take('w'), "ok");
            other.say(&format!("child {}", kind.command('w', "wait")));
            other.is_silent(WAITS);
            other.does("kill", "ok");
            holder.does(&kind.take('u'), "ok");
            sleep(WAITS);
            holder.does(&kind.take('w'), "ok");
            holder.does(&kind.take('u'), "ok");
        }
        for party in [holder, other] {
            party.does("close 0", "ok");
        }
    });
}

#[test]
fn nothing_is_lost_of_what_twelve_processes_do_under_locks() {
    const TIMES: u32 = 10;
    let shared = Shared::new();
    let mut parties = shared.three();
    for word in ["flock", "posix", "ofd"] {
        fs::write(shared.0.join("number"), "0\n").unwrap();
        parties.iter_mut().for_each(|party| party.say(&format!("add number {TIMES} {word}")));
        parties.iter_mut().for_each(|party| assert_eq!(party.answer(), "ok", "{}: {word}", party.name));
        let number = fs::read_to_string(shared.0.join("number")).unwrap();
        assert_eq!(number.trim(), (3 * 4 * TIMES).to_string(), "{word}");
    }
}

#[test]
fn a_circle_inside_is_found_while_others_hold_locks_outside() {
    let shared = Shared::new();
    let mut one = Party::sandbox("one", &shared.0, "", &[]);
    let mut host = Party::host(&shared.0);
    for party in [&mut one, &mut host] {
        party.does("open 0 file rw", "ok");
    }
    host.does("ofd 0 w 1000 10 try", "ok");
    one.does("posix 0 w 0 10 try", "ok");
    // The child has the second piece, and waits for the first.
    one.say("child posix 0 w 20 10 try");
    one.answers_soon("ok");
    one.does("posix 0 w 20 1 try", "EAGAIN");
    one.does("kill", "ok");
    one.say("child posix 0 w 1000 1 wait");
    one.is_silent(WAITS);
    // It waits for somebody outside, which closes no circle.
    one.does("posix 0 w 20 10 wait", "ok");
    host.does("ofd 0 u 0 0 try", "ok");
    one.answers_soon("ok");
    one.does("posix 0 w 1000 1 try", "EAGAIN");
    one.does("kill", "ok");
}

#[test]
fn a_read_only_mount_keeps_nobody_from_reading() {
    let shared = Shared::new();
    fs::write(shared.0.join("file"), "data").unwrap();
    let mut guest = Party::sandbox("guest", &shared.0, ":ro", &[]);
    let mut host = Party::host(&shared.0);
    guest.does("open 0 file r", "ok");
    host.does("open 0 file rw", "ok");
    for what in ["ex", "sh"] {
        guest.does(&format!("flock 0 {what} try"), "ok");
        host.does("flock 0 sh try", "ok");
        host.does("flock 0 un try", "ok");
        // It reads, so that nobody changes what it reads.
        host.does("flock 0 ex try", "EAGAIN");
        host.does("flock 0 un try", "ok");
    }
    // Inside they are what they are.
    guest.does("flock 0 ex try", "ok");
    guest.does("open 1 file r", "ok");
    guest.does("flock 1 sh try", "EAGAIN");
    guest.does("flock 0 un try", "ok");
    host.does("flock 0 ex try", "ok");
    guest.does("flock 0 sh try", "EAGAIN");
    guest.does("flock 0 ex try", "EAGAIN");
    host.does("flock 0 un try", "ok");
    guest.does("ofd 0 w 0 0 try", "EBADF");
    guest.does("posix 0 r 0 0 try", "ok");
    host.does("posix 0 r 0 0 try", "ok");
    host.does("posix 0 w 0 0 try", "EAGAIN");
    guest.does("close 0", "ok");
    host.does("posix 0 w 0 0 try", "ok");
}

#[test]
fn no_guest_locks_more_of_the_hosts_files_than_it_may() {
    let shared = Shared::new();
    let mut guest = Party::sandbox("guest", &shared.0, "", &[]);
    let (mut total, mut files) = (0, 0);
    loop {
        guest.does(&format!("open {} file{files} rw", files % 10), "ok");
        let answer = guest.ask(&format!("many {} 100000", files % 10));
        let (done, why) = answer.split_once(' ').unwrap();
        assert_eq!(why, "ENOLCK");
        total += done.parse::<u64>().unwrap();
        files += 1;
        if done.parse::<u64>().unwrap() < 400 || files == 10 {
            break;
        }
    }
    assert!((4_000..=abi::hostcall::LOCKS_MAX).contains(&total), "{total} in {files} files");
    // They are given back, and the host's programs have not noticed.
    let mut host = Party::host(&shared.0);
    host.does("open 0 file0 rw", "ok");
    host.does("ofd 0 w 1 1 try", "ok");
    host.does("ofd 0 w 0 1 try", "EAGAIN");
    (0..files).for_each(|file| guest.does(&format!("close {file}"), "ok"));
    host.does("ofd 0 w 0 0 try", "ok");
    host.does("close 0", "ok");
    guest.does("open 0 file0 rw", "ok");
    assert!(guest.ask("many 0 100000").ends_with("ENOLCK"));
}

#[test]
fn a_sandbox_that_sleeps_keeps_its_locks_and_asks_anew_when_it_wakes() {
    let shared = Shared::new();
    let mut one = Party::sandbox("one", &shared.0, "", &[]);
    let mut host = Party::host(&shared.0);
    for party in [&mut one, &mut host] {
        party.does("open 0 file rw", "ok");
    }
    for kind in KINDS {
        one.does(&kind.take('w'), "ok");
        one.its_sandbox().sleeps();
        host.does(&kind.take('r'), "EAGAIN");
        // Its standard input wakes it.
        one.does(&kind.take('u'), "ok");
        host.does(&kind.take('w'), "ok");
        // Who waits keeps no order to hibernate away, and does not ask while it sleeps.
        one.say(&kind.command('w', "wait"));
        one.is_silent(WAITS);
        one.its_sandbox().sleeps();
        host.does(&kind.take('u'), "ok");
        one.is_silent(WAITS);
        host.does(&kind.take('w'), "ok");
        host.does(&kind.take('u'), "ok");
        assert!(one.its_sandbox().run(&["wake", "s"]).status.success());
        one.answers_soon("ok");
        host.does(&kind.take('w'), "EAGAIN");
        one.does(&kind.take('u'), "ok");
    }
}

#[test]
fn who_keeps_others_from_a_file_does_not_fall_asleep_by_itself() {
    let shared = Shared::new();
    let mut one = Party::sandbox("one", &shared.0, "", &["--idle-timeout", "1s"]);
    let mut host = Party::host(&shared.0);
    for party in [&mut one, &mut host] {
        party.does("open 0 file rw", "ok");
    }
    for kind in KINDS {
        // A lock that lets readers in is none that somebody waits for for long: it keeps nobody awake.
        one.does(&kind.take('r'), "ok");
        one.its_sandbox().becomes("hibernated");
        one.does(&kind.take('w'), "ok");
        sleep(Duration::from_secs(4));
        assert_eq!(one.its_sandbox().status(), "running", "{kind:?}");
        one.does(&kind.take('u'), "ok");
        one.its_sandbox().becomes("hibernated");
        // Nor who waits for one: its end wakes nobody.
        host.does(&kind.take('w'), "ok");
        one.say(&kind.command('w', "wait"));
        one.is_silent(Duration::from_secs(4));
        host.does(&kind.take('u'), "ok");
        one.answers_soon("ok");
        one.does(&kind.take('u'), "ok");
    }
}

#[test]
fn locks_go_with_the_sandbox() {
    let shared = Shared::new();
    let mut host = Party::host(&shared.0);
    host.does("open 0 file rw", "ok");
    for signal in ["TERM", "KILL"] {
        let mut one = Party::sandbox("one", &shared.0, "", &[]);
        one.does("open 0 file rw", "ok");
        [Kind::Flock, Kind::Posix].iter().for_each(|kind| one.does(&kind.take('w'), "ok"));
        host.does("flock 0 ex try", "EAGAIN");
        host.say("flock 0 ex wait");
        one.its_sandbox().kill(signal);
        host.answers_soon("ok");
        host.does("posix 0 w 0 0 wait", "ok");
        host.does("posix 0 u 0 0 try", "ok");
        host.does("flock 0 un try", "ok");
    }
}

#[test]
fn names_contents_sizes_and_times_are_seen_by_every_pair() {
    let shared = Shared::new();
    let mut parties = shared.three();
    each_pair(&mut parties, |one, other| {
        // Of two who create a file one does.
        one.does("open 0 new new", "ok");
        other.does("open 0 new new", "EEXIST");
        other.does("open 0 new rw", "ok");
        one.does("put 0 0 hello", "ok");
        other.does("get 0 0 5", "hello");
        other.does("size 0", "5");
        let age: i64 = other.ask("age 0").parse().unwrap();
        assert!((-1000..60_000).contains(&age), "{age} ms");
        other.does("cut 0 4096", "ok");
        one.does("size 0", "4096");
        one.does("get 0 0 5", "hello");
        // Mappings, both ways, and beside calls.
        one.does("map 0", "ok");
        other.does("map 0", "ok");
        one.does("poke 100 mapped", "ok");
        other.does("peek 100 6", "mapped");
        other.does("get 0 100 6", "mapped");
        other.does("put 0 100 called", "ok");
        one.does("peek 100 6", "called");
        // An open file stays the same when another takes its name.
        other.does("open 1 other rw", "ok");
        other.does("put 1 0 other", "ok");
        other.does("rename other new", "ok");
        one.does("get 0 0 5", "hello");
        one.does("same 0 new", "no");
        one.does("open 1 new rw", "ok");
        one.does("get 1 0 5", "other");
        one.does("open 2 other r", "ENOENT");
        fs::remove_file(shared.0.join("new")).unwrap();
    });
}

#[test]
fn changes_are_told_to_every_pair() {
    let shared = Shared::new();
    let mut parties = shared.three();
    parties.iter_mut().for_each(|party| party.does("watch", "ok"));
    for at in 0..3 {
        let name = format!("by{at}");
        parties[at].does(&format!("open 0 {name} rw"), "ok");
        parties[at].does("put 0 0 x", "ok");
        parties[at].does(&format!("rename {name} {name}.new"), "ok");
        let expected = format!("{name}:create {name}:modify {name}:from {name}.new:to .");
        parties.iter_mut().for_each(|party| party.does("told", &expected));
    }
}

/// Adds rows to a database until it has added `ROWS`, and says how many were acknowledged.
const WRITER: &str = r#"
import sqlite3, sys
path, mode, who, rows = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
base = sqlite3.connect(path, timeout=60, isolation_level=None)
base.execute("pragma synchronous = off")
assert base.execute("pragma journal_mode").fetchone()[0] == mode
print("ready", flush=True)
sys.stdin.readline()
done = 0
for row in range(rows):
    base.execute("begin immediate")
    last = base.execute("select n from counter").fetchone()[0]
    base.execute("insert into rows values (?, ?)", (last, f"{who} {row}"))
    base.execute("update counter set n = ?", (last + 1,))
    base.execute("commit")
    done += 1
print(done, flush=True)
"#;

#[test]
fn no_acknowledged_row_of_a_database_is_lost() {
    const ROWS: u64 = 30;
    let python = "/usr/bin/python3";
    let has_sqlite = Command::new(python).args(["-c", "import sqlite3"]).status();
    if !has_sqlite.is_ok_and(|status| status.success()) {
        return println!("this host has no sqlite3 for python3");
    }
    let shared = Shared::new();
    let base = shared.0.join("base");
    let ask = |question: &str| {
        let script =
            "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()[0])";
        let output = Command::new(python).args(["-c", script]).arg(&base).arg(question).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for mode in ["delete", "wal"] {
        let _ = fs::remove_file(&base);
        assert_eq!(ask(&format!("pragma journal_mode = {mode}")), mode);
        let make = "import sqlite3, sys; base = sqlite3.connect(sys.argv[1]); \
                    base.executescript('create table rows (n unique, who); create table counter (n); \
                    insert into counter values (0)')";
        assert!(Command::new(python).args(["-c", make]).arg(&base).status().unwrap().success());
        let volume = format!("{}:/volume", shared.0.display());
        let (sandboxes, rows) = ([TestSandbox::new(), TestSandbox::new()], ROWS.to_string());
        let mut writers: Vec<Child> = ["one", "two", "host"]
            .into_iter()
            .enumerate()
            .map(|(at, who)| {
                let platform = platform();
                let of_sandbox =
                    ["do", "--platform", &platform, "--volume", &volume, "--", python, "-c", WRITER];
                let mut command = match sandboxes.get(at) {
                    Some(sandbox) => sandbox.command(&of_sandbox),
                    None => Command::new(python),
                };
                match sandboxes.get(at) {
                    Some(_) => command.arg("/volume/base"),
                    None => command.args(["-c", WRITER]).arg(&base),
                };
                command.args([mode, who, &rows]).stdin(Stdio::piped()).stdout(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        writers.iter_mut().for_each(|writer| assert_eq!(next_line(writer), "ready\n"));
        writers.iter_mut().for_each(|writer| writer.stdin.as_mut().unwrap().write_all(b"\n").unwrap());
        for writer in &mut writers {
            let line = next_line(writer);
            assert_eq!(
                line.trim_end(),
                rows,
                "{mode}: a writer had its database locked for too long, or failed"
            );
            assert!(writer.wait().unwrap().success());
        }
        let all = (3 * ROWS).to_string();
        assert_eq!(ask("select count(*) from rows"), all, "{mode}: rows were acknowledged and lost");
        assert_eq!(ask("select n from counter"), all, "{mode}");
        assert_eq!(ask("pragma integrity_check"), "ok", "{mode}");
    }
}
