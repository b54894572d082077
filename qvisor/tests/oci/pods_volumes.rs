//! Volumes that containers of a pod have in common: mounts, locks, watches, sockets and pipes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde_json::json;
use serial_test::serial;

use super::mounts::{SharedMount, mount};
use super::pods::{exec, output_of, pod, spawn};
use super::world::{World, wait_for};

/// Reads the standard output of a process line by line: each call of the result waits for the next line, at most 60
/// seconds.
fn lines_of(child: &mut Child) -> impl FnMut() -> String + use<> {
    let output = BufReader::new(child.stdout.take().unwrap());
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    move || lines.recv_timeout(Duration::from_secs(60)).expect("a line comes")
}

/// A further container that sleeps and sees the host's directory `volume` at `/vol`.
fn with_volume(first: &World, volume: &Path, option: &str) -> World {
    let mut further = first.further("exec sleep 1000");
    further.add_guest("share");
    further.add_guest("watcher");
    further
        .mount(json!({"destination": "/vol", "type": "bind", "source": volume, "options": ["bind", option]}));
    further.create().start();
    further
}

#[test]
#[serial(mounts)]
fn mounts_that_the_host_makes_later_are_seen_by_further_containers_that_ask() {
    pod(|first| {
        let data = SharedMount::new(first.dir.join("data"));
        let later = data.0.join("later");
        fs::create_dir(&later).unwrap();
        let mut one = first.further("exec sleep 1000");
        for (path, options) in [
            ("/slave", ["rbind", "rslave"]),
            ("/shared", ["rbind", "rshared"]),
            ("/own", ["rbind", "rprivate"]),
        ] {
            one.mount(json!({"destination": path, "type": "bind", "source": data.0, "options": options}));
        }
        one.create().start();
        // What is known of the place before does not hide it.
        assert_eq!(exec(&one, "ls /slave/later /shared/later /own/later | grep file; true"), "");
        mount(&["-t", "tmpfs", "tmpfs", later.to_str().unwrap()]);
        fs::write(later.join("file"), "seen\n").unwrap();
        let seen = exec(
            &one,
            "cat /slave/later/file /shared/later/file; ls /own/later; echo back > /slave/later/back",
        );
        assert_eq!(seen, "seen\nseen\n");
        assert_eq!(fs::read_to_string(later.join("back")).unwrap(), "back\n");
        one.ok(&["delete", "--force", &one.id]);
    });
}

#[test]
fn a_file_of_a_volume_is_one_file_to_all_containers() {
    pod(|first| {
        let volume = first.dir.join("volume");
        fs::create_dir(&volume).unwrap();
        let [one, two] = [(); 2].map(|()| with_volume(first, &volume, "rw"));
        let reader = with_volume(first, &volume, "ro");

        let holder = spawn(&one, "share hold /vol/lock");
        wait_for(|| volume.join("lock.held").exists(), || "nobody holds the lock".into());
        for other in [&one, &two, &reader] {
            assert_eq!(exec(other, "share try /vol/lock"), "fcntl held, flock held\n");
        }
        // To the host, and for the host, all of them are one.
        let on_host = fs::File::open(volume.join("lock")).unwrap();
        assert!(on_host.try_lock().is_err(), "the host sees no lock");
        exec(&reader, "! echo x 2>/dev/null > /vol/lock");
        exec(&two, "rm /vol/lock.held");
        output_of(holder);
        on_host.try_lock().expect("the lock has gone with its owner");
        for other in [&one, &two, &reader] {
            assert_eq!(exec(other, "share try /vol/lock"), "fcntl free, flock held\n");
        }
        on_host.unlock().unwrap();
        assert_eq!(exec(&reader, "share try /vol/lock"), "fcntl free, flock free\n");

        // A view that goes with its container takes nothing of the file along.
        let holder = spawn(&one, "share hold /vol/lock");
        wait_for(|| volume.join("lock.held").exists(), || "nobody holds the lock".into());
        reader.ok(&["kill", &reader.id, "KILL"]);
        reader.wait_status("stopped");
        reader.delete();
        assert_eq!(exec(&two, "share try /vol/lock"), "fcntl held, flock held\n");
        fs::remove_file(volume.join("lock.held")).unwrap();
        output_of(holder);

        let waiter = spawn(&one, "share wait /vol/futex");
        exec(&two, "share wake /vol/futex");
        assert_eq!(output_of(waiter), "woken\n");
    });
}

#[test]
fn who_watches_more_than_the_host_does_leaves_others_their_share() {
    pod(|first| {
        let volume = first.dir.join("volume");
        fs::create_dir_all(volume.join("few")).unwrap();
        // More than the host watches for a sandbox.
        (0..4200).for_each(|number| fs::create_dir_all(volume.join(format!("many/{number}"))).unwrap());
        let [one, two] = [(); 2].map(|()| with_volume(first, &volume, "rw"));
        let mut hoarder = spawn(&one, "exec watcher /vol/many hoards");
        assert_eq!(lines_of(&mut hoarder)(), "ready");
        let mut watcher = spawn(&two, "exec watcher /vol/few waits");
        let mut line = lines_of(&mut watcher);
        assert_eq!(line(), "ready");
        fs::create_dir(volume.join("few/new")).unwrap();
        assert_eq!(line(), "CREATE ISDIR new");
        for (world, mut child) in [(one, hoarder), (two, watcher)] {
            world.ok(&["kill", &world.id, "KILL"]);
            child.wait().unwrap();
        }
    });
}

#[test]
fn sockets_and_fifos_of_a_volume_lead_from_one_container_to_another() {
    pod(|first| {
        let volume = first.dir.join("volume");
        fs::create_dir(&volume).unwrap();
        let [one, two] = [(); 2].map(|()| with_volume(first, &volume, "rw"));
        // Each time the socket's file is made anew, maybe with the number it had.
        for (server, client) in [(&one, &two), (&two, &one), (&two, &one), (&one, &two)] {
            let listener = spawn(server, "share listen /vol/socket");
            exec(client, "share call /vol/socket hello");
            assert_eq!(output_of(listener), "hello\n");
        }
        // One that the other removes, and makes anew.
        let forgotten = spawn(&one, "share listen /vol/socket");
        wait_for(|| volume.join("socket").exists(), || "no socket".into());
        exec(&two, "test -S /vol/socket && rm /vol/socket");
        let listener = spawn(&two, "share listen /vol/socket");
        exec(&one, "share call /vol/socket again");
        assert_eq!(output_of(listener), "again\n");
        for (reader, writer) in [(&one, &two), (&two, &one)] {
            exec(writer, "busybox mkfifo /vol/fifo");
            let end = spawn(reader, "cat /vol/fifo");
            exec(writer, "echo through > /vol/fifo");
            assert_eq!(output_of(end), "through\n");
            exec(reader, "rm /vol/fifo");
        }
        one.ok(&["kill", &one.id, "KILL"]);
        one.wait_status("stopped");
        drop(forgotten.wait_with_output());
    });
}
