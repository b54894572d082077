//! Files as the container sees them.

use std::os::fd::{FromRawFd, OwnedFd};

use serde_json::json;
use serial_test::serial;

use super::world::{both, dormouse, wait_for};

/// Mount points in file systems that are mounted there are not made in the root below.
#[test]
#[serial(mounts)]
fn mount_points_are_made_where_they_are_seen() {
    both(|world| {
        let source = world.dir.join("source");
        std::fs::create_dir_all(&source).unwrap();
        std::fs::write(source.join("file"), "seen\n").unwrap();
        world.mount(json!({"destination": "/scratch", "type": "tmpfs", "source": "tmpfs"}));
        world.mount(json!({"destination": "/scratch/a/b", "source": source, "options": ["bind"]}));
        world.script("cat /scratch/a/b/file; test -d /dev/mqueue && test -d /sys/fs/cgroup && echo there");
        assert_eq!(world.output(), "seen\nthere\n", "{:?}", world.runtime);
        for path in ["dev/mqueue", "dev/pts", "sys/fs", "scratch/a"] {
            assert!(!world.rootfs().join(path).exists(), "{:?}: {path}", world.runtime);
        }
        assert!(world.rootfs().join("scratch").exists());
    });
}

#[test]
fn binds_are_the_hosts_files() {
    both(|world| {
        let data = world.dir.join("data");
        std::fs::create_dir_all(data.join("sub")).unwrap();
        std::fs::write(data.join("file"), "from the host\n").unwrap();
        world.mount(
            json!({"destination": "/new/deep/rw", "type": "bind", "source": data, "options": ["rbind"]}),
        );
        world.mount(json!({"destination": "/ro", "type": "bind", "source": data, "options": ["bind", "ro"]}));
        world.mount(json!({"destination": "/etc/one", "source": data.join("file"), "options": ["bind"]}));
        world.script(
            "cat /new/deep/rw/file /etc/one; echo back > /new/deep/rw/sub/answer; touch /ro/x || echo refused; \
             echo more >> /ro/file || echo refused; ls /new/deep/rw",
        );
        let said = world.output();
        assert_eq!(
            said, "from the host\nfrom the host\nrefused\nrefused\nfile\nsub\n",
            "{:?}",
            world.runtime
        );
        assert_eq!(std::fs::read_to_string(data.join("sub/answer")).unwrap(), "back\n");
    });
}

#[test]
fn the_root_is_the_bundles_own() {
    both(|world| {
        world.script("echo made > /file; cat /later");
        std::fs::write(world.rootfs().join("later"), "seen\n").unwrap();
        assert_eq!(world.output(), "seen\n");
        assert_eq!(std::fs::read_to_string(world.rootfs().join("file")).unwrap(), "made\n");
        world
            .set("/root/readonly", json!(true))
            .script("touch /x || echo refused; touch /dev/shm/x && echo free");
        assert_eq!(world.output(), "refused\nfree\n");
        assert!(!world.rootfs().join("x").exists());
    });
}

#[test]
fn the_host_may_change_the_root() {
    dormouse(|world| {
        world.script("echo ready; while ! test -e /sign; do sleep 0.02; done; cat /sign").create().start();
        world.wait_output("ready");
        std::fs::write(world.rootfs().join("sign.new"), "hello\n").unwrap();
        std::fs::rename(world.rootfs().join("sign.new"), world.rootfs().join("sign")).unwrap();
        world.wait_output("hello");
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn flags_of_mounts_count() {
    both(|world| {
        let tmpfs = |path: &str, options: &[&str]| json!({"destination": path, "type": "tmpfs", "source": "tmpfs", "options": options});
        world.mount(tmpfs("/small", &["size=64k", "mode=750", "uid=0", "gid=6"]));
        world.mount(tmpfs("/noexec", &["noexec"]));
        world.mount(tmpfs("/exec", &["noexec", "exec"]));
        world.script(
            "stat -c '%a %u %g' /small; dd if=/dev/zero of=/small/f bs=4k count=32 2>/dev/null || echo full; \
             stat -c %s /small/f; rm /small/f; dd if=/dev/zero of=/small/f bs=4k count=16 2>/dev/null && echo fits; \
             cp /bin/busybox /noexec/true; /noexec/true 2>/dev/null || echo $?; \
             cp /bin/busybox /exec/true; /exec/true && echo runs",
        );
        let said = world.output();
        assert_eq!(said, "750 0 6\nfull\n65536\nfits\n126\nruns\n", "{:?}", world.runtime);
    });
}

#[test]
fn set_user_id_counts_unless_it_is_forbidden() {
    both(|world| {
        let data = world.dir.join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::copy("/bin/busybox", data.join("id")).unwrap();
        std::fs::set_permissions(data.join("id"), std::os::unix::fs::PermissionsExt::from_mode(0o4755))
            .unwrap();
        for (path, options) in [("/with", vec!["bind"]), ("/without", vec!["bind", "nosuid"])] {
            world.mount(json!({"destination": path, "type": "bind", "source": data, "options": options}));
        }
        world.set("/process/user", json!({"uid": 1000, "gid": 1000}));
        world.set("/process/noNewPrivileges", json!(false));
        // Busybox gives up its privileges for applets that need none; the ids from the kernel are in the auxiliary
        // vector.
        world.script("/with/id >/dev/null; echo $?; /without/id -u");
        let said = world.output();
        assert!(said.ends_with("1000\n"), "{:?}: {said}", world.runtime);
    });
}

#[test]
fn paths_are_masked_and_read_only() {
    both(|world| {
        std::fs::create_dir_all(world.rootfs().join("hidden")).unwrap();
        std::fs::create_dir_all(world.rootfs().join("fixed")).unwrap();
        std::fs::write(world.rootfs().join("hidden/secret"), "x").unwrap();
        std::fs::write(world.rootfs().join("key"), "x").unwrap();
        world.set("/linux/maskedPaths", json!(["/hidden", "/key", "/not/there"]));
        world.set("/linux/readonlyPaths", json!(["/fixed", "/proc/sys", "/not/there"]));
        world.script(
            "ls /hidden | wc -l; wc -c < /key; touch /hidden/x 2>/dev/null || echo refused; \
             touch /fixed/x 2>/dev/null || echo refused; echo x 2>/dev/null > /proc/sys/kernel/hostname || echo refused",
        );
        let said = world.output();
        assert_eq!(said, "0\n0\nrefused\nrefused\nrefused\n", "{:?}", world.runtime);
    });
}

#[test]
fn later_mounts_cover_earlier_ones() {
    both(|world| {
        let data = world.dir.join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join("file"), "").unwrap();
        world.mount(json!({"destination": "/a/b", "type": "bind", "source": data, "options": ["bind"]}));
        world.mount(json!({"destination": "/a", "type": "tmpfs", "source": "tmpfs"}));
        world.mount(json!({"destination": "/a/c", "type": "bind", "source": data, "options": ["bind"]}));
        world.script("ls /a; ls /a/c");
        assert_eq!(world.output(), "c\nfile\n", "{:?}", world.runtime);
    });
}

#[test]
fn links_in_the_root_do_not_lead_out_of_it() {
    both(|world| {
        std::os::unix::fs::symlink("/elsewhere", world.rootfs().join("link")).unwrap();
        std::os::unix::fs::symlink("../../../../other", world.rootfs().join("up")).unwrap();
        for name in ["/link/x", "/up/y"] {
            world.mount(json!({"destination": name, "type": "tmpfs", "source": "tmpfs"}));
        }
        world.script("touch /link/x/1 /up/y/2; ls /link/x /up/y >/dev/null && echo fine");
        assert_eq!(world.output(), "fine\n", "{:?}", world.runtime);
        assert!(!std::path::Path::new("/elsewhere").exists() && !std::path::Path::new("/other").exists());
    });
}

#[test]
fn special_files_are_there() {
    both(|world| {
        world.script(
            "for f in null zero full random urandom tty; do test -c /dev/$f || echo no $f; done; \
             test -d /dev/pts && test -d /dev/shm && test -d /proc/1 && test -d /sys/class && echo all; \
             head -c 3 /dev/zero | wc -c; echo x > /dev/full || echo full; readlink /dev/fd; readlink /dev/stdin",
        );
        assert_eq!(world.output(), "all\n3\nfull\n/proc/self/fd\n/proc/self/fd/0\n", "{:?}", world.runtime);
    });
}

/// Takes the descriptor that comes over the socket.
fn receive(listener: &std::os::unix::net::UnixListener) -> OwnedFd {
    use std::os::fd::AsRawFd;
    let (peer, _) = listener.accept().unwrap();
    let mut bytes = [0_u8; 64];
    let mut control = [0_u64; 8];
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a valid header; every pointer is to a live buffer of the size given.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        assert!(libc::recvmsg(peer.as_raw_fd(), &raw mut message, 0) > 0);
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        assert!(!header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
}

#[test]
fn a_terminal_goes_to_the_console_socket() {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    both(|world| {
        let path = world.dir.join("console");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        world.set("/process/terminal", json!(true));
        world.set("/process/consoleSize", json!({"height": 30, "width": 100}));
        world.script("test -t 0 && echo terminal; stty size; trap 'stty size; exit 0' WINCH; read line; echo got $line; \
                      while :; do sleep 0.02; done");
        world.write();
        let pid_file = world.dir.join("pid");
        let more = ["--console-socket", path.to_str().unwrap(), "--pid-file", pid_file.to_str().unwrap()];
        let mut create = world.command(&world.with_bundle("create", &more)).spawn().unwrap();
        let mut screen = std::fs::File::from(receive(&listener));
        assert!(create.wait().unwrap().success());
        world.start();
        let mut reader = screen.try_clone().unwrap();
        let said = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let sink = std::sync::Arc::clone(&said);
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 256];
            while let Ok(len @ 1..) = reader.read(&mut bytes) {
                sink.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..len]));
            }
        });
        let says = |words: &str| {
            wait_for(
                || said.lock().unwrap().contains(words),
                || format!("{:?}: no {words:?} in {:?}", world.runtime, said.lock().unwrap()),
            );
        };
        says("terminal\r\n30 100\r\n");
        screen.write_all(b"hi\n").unwrap();
        // The terminal echoes, and turns line ends.
        says("hi\r\ngot hi\r\n");
        let size = libc::winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: a live structure.
        unsafe { libc::ioctl(screen.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) };
        says("40 120\r\n");
        assert_eq!(super::world::status_of(world.pid()), 0);
        world.wait_status("stopped");
        drop(screen);
        thread.join().unwrap();
        world.delete();
    });
}

#[test]
fn a_terminal_needs_somebody_to_hold_it() {
    dormouse(|world| {
        world.set("/process/terminal", json!(true)).write();
        world.refused(&world.with_bundle("create", &[]), &["a terminal", "--console-socket"]);
        world.refused(&world.with_bundle("run", &[]), &["a terminal", "standard input is none"]);
        world.refused(
            &world.with_bundle("create", &["--console-socket", "/no/such/socket"]),
            &["console socket /no/such/socket"],
        );
        world.set("/process/terminal", json!(false)).write();
        world.refused(
            &world.with_bundle("create", &["--console-socket", "/x"]),
            &["process.terminal is false"],
        );
        world.assert_gone();
    });
}

/// A directory that is a shared mount, until the test ends.
pub struct SharedMount(pub std::path::PathBuf);

impl SharedMount {
    pub fn new(path: std::path::PathBuf) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        let at = path.to_str().unwrap();
        mount(&["--bind", at, at]);
        mount(&["--make-shared", at]);
        Self(path)
    }
}

pub fn mount(words: &[&str]) {
    assert!(std::process::Command::new("mount").args(words).status().unwrap().success(), "{words:?}");
}

impl Drop for SharedMount {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--recursive").arg(&self.0).status();
    }
}

#[test]
#[serial(mounts)]
fn mounts_that_the_host_makes_later_are_seen_if_asked_for() {
    both(|world| {
        let data = SharedMount::new(world.dir.join("data"));
        std::fs::create_dir(data.0.join("later")).unwrap();
        world.mount(
            json!({"destination": "/slave", "type": "bind", "source": data.0, "options": ["rbind", "rslave"]}),
        );
        world.mount(
            json!({"destination": "/own", "type": "bind", "source": data.0, "options": ["rbind", "rprivate"]}),
        );
        world.set("/linux/rootfsPropagation", json!("rslave"));
        world.script(
            "echo up; until [ -e /slave/later/file ]; do sleep 0.02; done; cat /slave/later/file; ls /own/later; \
             echo done",
        );
        world.create().start().wait_output("up");
        let later = data.0.join("later");
        mount(&["-t", "tmpfs", "tmpfs", later.to_str().unwrap()]);
        std::fs::write(later.join("file"), "seen\n").unwrap();
        world.wait_output("done");
        assert_eq!(world.read("out"), "up\nseen\ndone\n", "{:?}", world.runtime);
        world.wait_status("stopped");
        world.ok(&["delete", &world.id]);
    });
}

/// The host's mounts at and below a directory, as `/proc/self/mountinfo` has them.
fn mounts_below(directory: &std::path::Path) -> Vec<String> {
    let all = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let is_below = |line: &&str| {
        line.split(' ').nth(4).is_some_and(|at| std::path::Path::new(at).starts_with(directory))
    };
    all.lines().filter(is_below).map(str::to_owned).collect()
}

/// Even where the bundle asks for `rshared`, and whatever a container with the capability does to its own mounts.
#[test]
#[serial(mounts)]
fn mounts_made_inside_never_reach_the_host() {
    dormouse(|world| {
        let data = SharedMount::new(world.dir.join("data"));
        std::fs::create_dir(data.0.join("sub")).unwrap();
        std::fs::write(data.0.join("sub/file"), "the host's\n").unwrap();
        world.mount(
            json!({"destination": "/shared", "type": "bind", "source": data.0, "options": ["rbind", "rshared"]}),
        );
        world.set("/linux/rootfsPropagation", json!("rshared"));
        let admin = json!(["CAP_SYS_ADMIN"]);
        world
            .set("/process/capabilities", json!({"bounding": admin, "effective": admin, "permitted": admin}));
        world.script(
            "mount --make-rshared /shared; mount -t tmpfs tmpfs /shared/sub && echo hidden > /shared/sub/file; \
             mount -o bind /shared/sub /shared/sub; cat /shared/sub/file; echo up; \
             until test -e /shared/sign; do sleep 0.02; done; umount -l /shared; echo over",
        );
        let before = mounts_below(&data.0);
        world.create().start().wait_output("up");
        assert_eq!(world.read("out"), "hidden\nup\n");
        assert_eq!(mounts_below(&data.0), before);
        assert_eq!(std::fs::read_to_string(data.0.join("sub/file")).unwrap(), "the host's\n");
        std::fs::write(data.0.join("sign"), "").unwrap();
        world.wait_output("over");
        world.wait_status("stopped");
        assert_eq!(mounts_below(&data.0), before);
        world.ok(&["delete", &world.id]);
    });
}

#[test]
#[serial(mounts)]
fn read_only_counts_for_a_mount_alone_or_for_those_below_as_well() {
    both(|world| {
        let data = SharedMount::new(world.dir.join("data"));
        for (path, option) in [("below", "rw"), ("below/deep", "rw"), ("fixed", "ro")] {
            let at = data.0.join(path);
            std::fs::create_dir(&at).unwrap();
            mount(&["-t", "tmpfs", "-o", option, "tmpfs", at.to_str().unwrap()]);
        }
        let options = [("/ro", ["rbind", "ro"]), ("/rro", ["rbind", "rro"]), ("/plain", ["bind", "ro"])];
        for (path, options) in options {
            world.mount(json!({"destination": path, "type": "bind", "source": data.0, "options": options}));
        }
        world.script(
            "for place in ro rro plain; do for at in . below below/deep fixed; do \
             touch /$place/$at/$place 2>/dev/null && echo $place/$at; done; done; true",
        );
        assert_eq!(world.output(), "ro/below\nro/below/deep\n", "{:?}", world.runtime);
        assert!(data.0.join("below/deep/ro").exists());
    });
}
