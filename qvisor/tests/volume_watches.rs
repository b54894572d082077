//! Programs that watch files in a volume (`inotify(7)`) are told what the host, and other sandboxes, do to them.

mod sleeper;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use sleeper::{TestSandbox, guest, next_line, platform};

/// A sandbox in which the program watches a volume.
fn watching(mode: &str, options: &[&str]) -> (TestSandbox, PathBuf) {
    let mut sandbox = TestSandbox::new();
    let volume = sandbox.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let shown = format!("{}:/volume", volume.display());
    let program = guest("watcher");
    let command = [program.to_str().unwrap(), "/volume", mode];
    sandbox.start(&[&["--volume", &shown], options].concat(), &[], &command);
    (sandbox, volume)
}

/// A change of each kind, and what who watches the directory is told of it.
fn changes(dir: &Path) -> Vec<&'static str> {
    let at = |name: &str| dir.join(name);
    let mut file = File::create(at("a")).unwrap();
    file.write_all(b"x").unwrap();
    drop(file);
    fs::create_dir(at("d")).unwrap();
    fs::rename(at("a"), at("b")).unwrap();
    fs::set_permissions(at("b"), Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(at("b"), at("c")).unwrap();
    fs::remove_file(at("b")).unwrap();
    fs::rename(at("d"), at("e")).unwrap();
    fs::remove_dir(at("e")).unwrap();
    std::os::unix::fs::symlink("x", at("l")).unwrap();
    File::options().write(true).open(at("c")).unwrap().set_len(0).unwrap();
    fs::remove_file(at("c")).unwrap();
    fs::remove_file(at("l")).unwrap();
    let told = [
        "CREATE a",
        "MODIFY a",
        "CLOSE_WRITE a",
        "CREATE ISDIR d",
        "MOVED_FROM a",
        "MOVED_TO same b",
        "ATTRIB b",
        "CREATE c",
        "DELETE b",
        "MOVED_FROM ISDIR d",
        "MOVED_TO ISDIR same e",
        "DELETE ISDIR e",
        "CREATE l",
        "MODIFY c",
        "CLOSE_WRITE c",
        "DELETE c",
        "DELETE l",
    ];
    told.to_vec()
}

fn next(sandbox: &mut TestSandbox) -> String {
    next_line(sandbox.front.as_mut().unwrap()).trim_end().to_owned()
}

#[track_caller]
fn tells(sandbox: &mut TestSandbox, wanted: &[&str]) {
    for wanted in wanted {
        assert_eq!(next(sandbox), *wanted);
    }
}

#[test]
fn changes_by_the_host_are_told_to_who_waits() {
    for mode in ["waits", "polls", "early"] {
        let (mut sandbox, volume) = watching(mode, &[]);
        for _ in 0..3 {
            let wanted = changes(&volume);
            tells(&mut sandbox, &wanted);
        }
    }
}

#[test]
fn changes_by_the_sandbox_itself_are_told_once() {
    let (mut sandbox, _volume) = watching("later", &[]);
    let script = "cd /volume; echo x > a; mv a b; chmod 600 b; mkdir d; rmdir d; mkfifo p; rm p b";
    assert!(sandbox.run(&["exec", "s", "sh", "-c", script]).status.success());
    sandbox.says_line();
    tells(
        &mut sandbox,
        &["CREATE a", "MODIFY a", "CLOSE_WRITE a", "MOVED_FROM a", "MOVED_TO same b", "ATTRIB b"],
    );
    tells(&mut sandbox, &["CREATE ISDIR d", "DELETE ISDIR d", "CREATE p", "DELETE p", "DELETE b", "end"]);
}

#[test]
fn changes_by_another_sandbox_are_told() {
    let (mut sandbox, volume) = watching("waits", &[]);
    let other = TestSandbox::new();
    let shown = format!("{}:/shown", volume.display());
    let args = ["do", "--platform", &platform(), "--volume", &shown, "--", "sh", "-c", "echo x > /shown/f"];
    assert!(other.run(&args).status.success());
    tells(&mut sandbox, &["CREATE f", "MODIFY f", "CLOSE_WRITE f"]);
}

#[test]
fn a_change_wakes_a_sleeper_that_waits_for_it() {
    for mode in ["waits", "polls", "early"] {
        let (mut sandbox, volume) = watching(mode, &[]);
        for _ in 0..3 {
            sandbox.sleeps();
            let wanted = changes(&volume);
            tells(&mut sandbox, &wanted);
            sandbox.wakes();
        }
    }
}

#[test]
fn a_change_does_not_wake_a_sleeper_that_does_not_wait_and_is_there_later() {
    let (mut sandbox, volume) = watching("later", &[]);
    for round in 0..3 {
        sandbox.sleeps();
        let mut wanted = changes(&volume);
        sleep(Duration::from_millis(300));
        assert_eq!(sandbox.status(), "hibernated", "round {round}");
        sandbox.says_line();
        wanted.extend(["end", "ready"]);
        tells(&mut sandbox, &wanted);
    }
}

#[test]
fn more_than_the_host_keeps_is_told_as_lost() {
    let most: usize =
        fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap().trim().parse().unwrap();
    if most > 100_000 {
        return println!("this host keeps {most} events");
    }
    let (mut sandbox, volume) = watching("later", &[]);
    for number in 0..most / 2 + 500 {
        drop(File::create(volume.join(number.to_string())).unwrap());
    }
    sandbox.says_line();
    let mut lost = 0;
    loop {
        match &*next(&mut sandbox) {
            "end" => break,
            "Q_OVERFLOW -" => lost += 1,
            line => assert!(line.starts_with("CREATE ") || line.starts_with("CLOSE_WRITE "), "{line}"),
        }
    }
    assert_eq!(lost, 1);
    // It goes on.
    tells(&mut sandbox, &["ready"]);
    drop(File::create(volume.join("more")).unwrap());
    sandbox.says_line();
    tells(&mut sandbox, &["CREATE more", "CLOSE_WRITE more", "end"]);
}

#[test]
fn the_end_of_what_is_watched_is_told() {
    let mut sandbox = TestSandbox::new();
    let volume = sandbox.dir.join("volume");
    fs::create_dir_all(volume.join("dir")).unwrap();
    let shown = format!("{}:/volume", volume.display());
    let program = guest("watcher");
    sandbox.start(&["--volume", &shown], &[], &[program.to_str().unwrap(), "/volume/dir", "waits"]);
    fs::rename(volume.join("dir"), volume.join("moved")).unwrap();
    drop(File::create(volume.join("moved/file")).unwrap());
    fs::remove_dir_all(volume.join("moved")).unwrap();
    tells(
        &mut sandbox,
        &["MOVE_SELF -", "CREATE file", "CLOSE_WRITE file", "DELETE file", "DELETE_SELF -", "IGNORED -"],
    );
}

/// But for two that look closer than the host tells: it knows of a read that meets the end of a file, and of a directory's
/// end only when the sandbox's kernel has let it go.
#[test]
fn what_is_told_elsewhere_is_told_of_a_volume() {
    let sandbox = TestSandbox::new();
    let volume = sandbox.dir.join("volume");
    fs::create_dir(&volume).unwrap();
    let shown = format!("{}:/volume", volume.display());
    let (program, platform) = (guest("inotify"), platform());
    let tests = ["moved_data", "renames", "open_and_deleted", "queue", "waiting", "everywhere", "storm"];
    for test in tests {
        let command = [program.to_str().unwrap(), "/volume", test];
        let options = ["do", "--platform", &platform, "--volume", &shown, "--"];
        let output = sandbox.run(&[&options[..], &command].concat());
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "ok inotify\n", "{test}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
