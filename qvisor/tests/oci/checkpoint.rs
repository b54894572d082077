//! Checkpoints as the VMM takes them, in its jail: what is written, and that the container goes on or ends.

use std::fs::{File, OpenOptions};
use std::os::fd::FromRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use runtime::control::{self, ImagingError, OrderError};
use runtime::state::{Id, Root};
use vmm::checkpoint::{ImageFiles, ImageTaken, ImageTerms};

use super::world::{World, dormouse, is_stopped, status_of, wait_for};

/// A script with some memory that shows by its output that it runs.
const COUNTER: &str = "x=$(seq 20000); i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done";

fn file() -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(std::env::temp_dir()).unwrap()
}

fn files() -> ImageFiles {
    ImageFiles::alone(file(), file(), file(), file())
}

fn take(world: &World, files: &ImageFiles, leave_running: bool) -> Result<ImageTaken, OrderError> {
    let root = Root::new(world.state_root());
    let id = Id::new(&world.id).unwrap();
    let terms = ImageTerms { leave_running, ..ImageTerms::default() };
    let taken: Result<_, ImagingError<()>> =
        control::checkpoint(&root.sandbox(&id).unwrap(), (files, &[]), terms, None);
    match taken {
        Ok(imaged) => imaged.kept(),
        Err(ImagingError::Order(error)) => Err(error),
        Err(ImagingError::Copy(())) => panic!("nothing is copied"),
    }
}

/// The last number that the script has written.
fn count(world: &World) -> u64 {
    world.read("out").lines().filter_map(|line| line.parse().ok()).max().unwrap_or(0)
}

fn goes_on(world: &World) {
    let before = count(world);
    wait_for(|| count(world) > before + 2, || format!("it does not go on from {before}"));
    wait_for(|| !is_stopped(world.pid()), || "its leash is stopped".into());
}

fn check(taken: &ImageTaken, files: &ImageFiles) {
    let head = &taken.head;
    assert!(head.pages > 50 && head.taken_bytes > 100_000 && head.handles > 3, "{head:?}");
    files.verify_pages(head, &[false], None).unwrap();
    files.open_base(head, None).unwrap();
    let used = |file: &File| file.metadata().unwrap().blocks() * 512;
    assert!(used(&files.kernel) >= head.taken_bytes);
    assert!(used(&files.kernel) < 64 << 20, "it is sparse");
}

#[test]
fn a_container_is_written_and_goes_on_or_sleeps_on_or_ends() {
    dormouse(|world| {
        world.script(COUNTER).create();
        world.start();
        goes_on(world);
        let first = files();
        let taken = take(world, &first, true).unwrap();
        goes_on(world);
        check(&taken, &first);
        // Other content in the same files.
        let taken = take(world, &first, true).unwrap();
        goes_on(world);
        check(&taken, &first);
        world.ok(&["hibernate", &world.id]);
        let (second, third) = (files(), files());
        let one = take(world, &second, true).unwrap();
        assert_eq!(world.sandbox_state(), "hibernated");
        let other = take(world, &third, true).unwrap();
        check(&one, &second);
        check(&other, &third);
        assert_eq!(one.head.pages, other.head.pages);
        world.ok(&["wake", &world.id]);
        goes_on(world);
        // Whoever does not keep it keeps nobody from going on.
        let id = Id::new(&world.id).unwrap();
        let sandbox = Root::new(world.state_root()).sandbox(&id).unwrap();
        drop(control::checkpoint::<()>(&sandbox, (&files(), &[]), ImageTerms::default(), None).unwrap());
        goes_on(world);
        let (last, pid) = (files(), world.pid());
        let taken = take(world, &last, false).unwrap();
        check(&taken, &last);
        assert_eq!(status_of(pid), libc::SIGKILL, "it ends as if it were killed");
        world.wait_status("stopped");
        world.delete();
    });
}

#[test]
fn files_that_cannot_be_written_leave_it_as_it_was() {
    dormouse(|world| {
        world.script(COUNTER).create();
        // It is not there yet.
        let error = take(world, &files(), true).unwrap_err().to_string();
        assert!(error.contains("does not run yet"), "{error}");
        world.start();
        goes_on(world);
        let sealed = || {
            // SAFETY: makes a descriptor that is nobody else's, of a file that cannot grow.
            unsafe {
                let fd = libc::memfd_create(c"full".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
                libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_GROW);
                File::from_raw_fd(fd)
            }
        };
        let full = [
            ImageFiles { kernel: sealed(), ..files() },
            ImageFiles { pages: sealed(), ..files() },
            ImageFiles { table: sealed(), ..files() },
        ];
        for (full, what) in full.iter().zip(["memory", "pages", "table"]) {
            for leave_running in [true, false] {
                let error = take(world, full, leave_running).unwrap_err().to_string();
                assert!(error.contains(what) && error.contains("not permitted"), "{error}");
                goes_on(world);
            }
        }
        let null = OpenOptions::new().write(true).open("/dev/null").unwrap();
        let error = take(world, &ImageFiles { table: null, ..files() }, true).unwrap_err().to_string();
        assert!(error.contains("regular files"), "{error}");
        world.ok(&["pause", &world.id]);
        let error = take(world, &files(), true).unwrap_err().to_string();
        assert!(error.contains("paused"), "{error}");
        world.ok(&["resume", &world.id]);
        goes_on(world);
        let files = files();
        check(&take(world, &files, true).unwrap(), &files);
        world.ok(&["kill", &world.id, "KILL"]);
        world.wait_status("stopped");
        world.delete();
    });
}
