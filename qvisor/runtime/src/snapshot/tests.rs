use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use testdir::TempDir;
use vmm::checkpoint::ImageHead;
use vmm::process;

use super::key::KEY;
use super::manifest::MANIFEST;
use super::place::{KERNEL, ORPHANS, PAGES, TABLE};
use super::prefetch::WorkingSet;
use super::*;
use crate::oci::MountPlan;
use crate::settings::{Asked, NodeConfig, Settings};

/// A store of its own, and a host that its snapshots fit.
struct Bench {
    temp: TempDir,
    store: Store,
    host: Host,
}

impl Bench {
    fn new() -> Self {
        let temp = TempDir::new();
        let store = Store::new(temp.path().join("snapshots"), None);
        Self { temp, store, host: Host { memory_bytes: 8 << 30, ..Host::this() } }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.temp.path().join("snapshots").join(name)
    }

    fn begin(&self, place: &Place) -> Result<Making, SnapshotError> {
        let making = self.store.begin(place, None, None)?;
        let ImageFiles { kernel, pages, table, .. } = making.files();
        kernel.write_all_at(&[7; 9000], 1 << 20).unwrap();
        pages.write_all_at(&[1; 4096], 3 * 4096).unwrap();
        table.write_all_at(b"a table", 0).unwrap();
        Ok(making)
    }

    fn make(&self, place: &Place) -> Result<Manifest, SnapshotError> {
        let key = self.store.key()?;
        self.begin(place)?.commit(self.head(), described(), None, &key)
    }

    fn head(&self) -> ImageHead {
        let memory_bytes = 1 << 30;
        ImageHead {
            kernel: self.host.kernel.clone(),
            stub: self.host.stub.clone(),
            is_kvm: false,
            cpus: 2,
            memory_bytes,
            memory_most_bytes: memory_bytes,
            kernel_bytes: abi::layout::kernel_bytes(memory_bytes),
            vmms: 1,
            handles: 9,
            last_container: 0,
            last_exec: 0,
            pages: 1,
            taken_bytes: 9000,
        }
    }

    fn why(&self, place: &Place) -> String {
        self.store.open_on(place, &self.host, None).expect_err("it is refused").to_string()
    }

    /// The names beside the key.
    fn names(&self) -> Vec<String> {
        names(&self.temp.path().join("snapshots")).into_iter().filter(|name| name != KEY).collect()
    }
}

use vmm::checkpoint::ImageFiles;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|one| one.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn described() -> Described {
    let mounts = vec![MountPoint { path: "/data".into(), kind: "bind".into() }];
    Described { id: "web1".into(), bundle: "/bundle".into(), mounts, ..Described::default() }
}

fn named(name: &str) -> Place {
    Place::named(name).unwrap()
}

/// Changes one byte of a file.
fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_snapshot_is_made_found_and_removed() {
    let bench = Bench::new();
    let place = named("web1");
    let made = bench.make(&place).unwrap();
    assert_eq!(names(&bench.at("web1")), [KERNEL, MANIFEST, ORPHANS, PAGES, TABLE]);
    let opened = bench.store.open_on(&place, &bench.host, None).unwrap();
    assert_eq!((&opened.manifest, opened.bundle(None).unwrap()), (&made, Path::new("/bundle")));
    assert!(opened.files.pages.write_all_at(b"x", 0).is_err(), "to be read only");
    assert_eq!(bench.store.inspect(&place).unwrap(), made);
    assert!(bench.make(&place).unwrap_err().to_string().contains("there is one already"));
    let listed = bench.store.list().unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].manifest.as_ref()), ("web1", Some(&made)));
    let Place::Named(name) = &place else { unreachable!() };
    bench.store.remove(name).unwrap();
    assert_eq!(bench.names(), Vec::<String>::new());
    assert!(bench.why(&place).contains("there is none"));
    assert!(bench.store.remove(name).is_err());
    // Whoever runs it has its files.
    let mut page = [0; 4096];
    opened.files.pages.read_exact_at(&mut page, 3 * 4096).unwrap();
    assert_eq!(page, [1; 4096]);
}

#[test]
fn what_is_given_up_leaves_nothing() {
    let bench = Bench::new();
    drop(bench.begin(&named("a")).unwrap());
    assert_eq!(bench.names(), Vec::<String>::new());
    // One whose maker was killed stays, with its lock free, until the next one comes.
    let killed = bench.begin(&named("a")).unwrap();
    let beside = bench.names();
    let copy = bench.temp.path().join("copy");
    fs::create_dir(&copy).unwrap();
    for name in names(&bench.at(&beside[0])) {
        fs::copy(bench.at(&beside[0]).join(&name), copy.join(&name)).unwrap();
    }
    // A maker that lives is left alone.
    let other = bench.begin(&named("b")).unwrap();
    assert_eq!(bench.names().len(), 2);
    drop((killed, other));
    fs::rename(&copy, bench.at(&beside[0])).unwrap();
    assert_eq!(bench.names(), beside);
    bench.make(&named("c")).unwrap();
    assert_eq!(bench.names(), ["c"]);
}

#[test]
fn of_two_makers_of_one_name_one_wins() {
    let bench = Bench::new();
    let place = named("a");
    let key = bench.store.key().unwrap();
    let (first, second) = (bench.begin(&place).unwrap(), bench.begin(&place).unwrap());
    first.commit(bench.head(), described(), None, &key).unwrap();
    let error = second.commit(bench.head(), described(), None, &key).unwrap_err();
    assert!(matches!(error, SnapshotError::Exists { .. }), "{error}");
    assert_eq!(bench.names(), ["a"]);
    assert!(bench.store.open_on(&place, &bench.host, None).is_ok());
}

#[test]
fn a_directory_of_somebodys_choice_is_made_or_empty() {
    let bench = Bench::new();
    let of = |name: &str| Place::Directory(bench.temp.path().join(name));
    for name in ["new", "empty"] {
        if name == "empty" {
            fs::create_dir(bench.temp.path().join(name)).unwrap();
            // What a maker has left that was killed does not count.
            fs::write(bench.temp.path().join("empty/kernel.img"), "half").unwrap();
        }
        let given_up = bench.begin(&of(name)).unwrap();
        drop(given_up);
        bench.make(&of(name)).unwrap();
        assert!(bench.store.open_on(&of(name), &bench.host, None).is_ok(), "{name}");
        assert!(matches!(
            bench.make(&of(name)),
            Err(SnapshotError::Exists { .. } | SnapshotError::NotEmpty { .. })
        ));
    }
    fs::create_dir(bench.temp.path().join("full")).unwrap();
    fs::write(bench.temp.path().join("full/theirs"), "kept").unwrap();
    assert!(bench.make(&of("full")).unwrap_err().to_string().contains("not empty"));
    assert_eq!(names(bench.temp.path()), ["empty", "full", "new", "snapshots"]);
    assert_eq!(names(&bench.temp.path().join("full")), ["theirs"]);
}

#[test]
fn what_was_changed_is_refused() {
    let bench = Bench::new();
    let place = named("a");
    for (file, at, why) in [
        (KERNEL, 1 << 20, "kernel.img was changed"),
        (KERNEL, 5, "kernel.img was changed"),
        (TABLE, 0, "pages.table was changed"),
    ] {
        bench.make(&place).unwrap();
        flip(&bench.at("a").join(file), at);
        assert!(bench.why(&place).contains(why), "{}", bench.why(&place));
        fs::remove_dir_all(bench.at("a")).unwrap();
    }
    bench.make(&place).unwrap();
    let manifest = bench.at("a").join(MANIFEST);
    let text = fs::read_to_string(&manifest).unwrap();
    for at in 0..text.len() {
        flip(&manifest, at as u64);
        // White space may be anything.
        if bench.store.open_on(&place, &bench.host, None).is_ok() {
            assert!(text.as_bytes()[at].is_ascii_whitespace(), "byte {at}");
        }
        flip(&manifest, at as u64);
    }
    let change = |from: &str, to: &str| fs::write(&manifest, text.replace(from, to)).unwrap();
    change("\"cpus\": 2", "\"cpus\": 3");
    assert!(bench.why(&place).contains("made by another host, or changed"));
    change("\"version\": 1", "\"version\": 3");
    assert!(bench.why(&place).contains("version 3 of the format"));
    change("\"version\": 1", "\"version\": 2");
    assert!(bench.why(&place).contains("made by another host, or changed"));
    fs::write(&manifest, vec![b' '; (1 << 20) + 2]).unwrap();
    assert!(bench.why(&place).contains("longer than 1 MiB"));
    fs::write(&manifest, &text).unwrap();
    fs::File::options().write(true).open(bench.at("a").join(PAGES)).unwrap().set_len(5).unwrap();
    assert!(bench.why(&place).contains("pages.img was changed"));
}

#[test]
fn what_others_can_change_is_refused() {
    let bench = Bench::new();
    let place = named("a");
    bench.make(&place).unwrap();
    let kernel = bench.at("a").join(KERNEL);
    fs::set_permissions(&kernel, Permissions::from_mode(0o620)).unwrap();
    assert!(bench.why(&place).contains("others than its owner may write"));
    fs::set_permissions(&kernel, Permissions::from_mode(0o600)).unwrap();
    fs::rename(&kernel, bench.temp.path().join("elsewhere")).unwrap();
    symlink(bench.temp.path().join("elsewhere"), &kernel).unwrap();
    assert!(bench.why(&place).contains("symbolic link"));
    fs::rename(bench.temp.path().join("elsewhere"), &kernel).unwrap();
    symlink("a", bench.at("link")).unwrap();
    assert!(bench.why(&named("link")).contains("symbolic link"));
    fs::set_permissions(bench.at("a"), Permissions::from_mode(0o777)).unwrap();
    assert!(bench.why(&place).contains("others than its owner may write"));
    fs::set_permissions(bench.at("a"), Permissions::from_mode(0o700)).unwrap();
    if process::effective_user() == 0 {
        chown(&kernel, Some(1234), None).unwrap();
        assert!(bench.why(&place).contains("belongs to user 1234"));
        chown(&kernel, Some(0), None).unwrap();
        chown(bench.at("a"), Some(1234), None).unwrap();
        assert!(bench.why(&place).contains("belongs to user 1234"));
        chown(bench.at("a"), Some(0), None).unwrap();
    }
    assert!(bench.store.open_on(&place, &bench.host, None).is_ok());
    fs::set_permissions(bench.at(KEY), Permissions::from_mode(0o640)).unwrap();
    assert!(bench.why(&place).contains("may read or write it"));
}

#[test]
fn a_key_decides_whose_a_snapshot_is() {
    let bench = Bench::new();
    let place = named("a");
    bench.make(&place).unwrap();
    let key = fs::read(bench.at(KEY)).unwrap();
    assert_eq!((key.len(), fs::metadata(bench.at(KEY)).unwrap().permissions().mode() & 0o777), (32, 0o600));
    let of_fleet = bench.temp.path().join("fleet");
    let fleet = Store::new(bench.temp.path().join("snapshots"), Some(of_fleet.clone()));
    let why = |store: &Store| store.inspect(&place).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(why(&fleet).contains("cannot use the key"));
    fs::write(&of_fleet, [b'k'; 32]).unwrap();
    assert!(why(&fleet).contains("may read or write it"));
    fs::set_permissions(&of_fleet, Permissions::from_mode(0o600)).unwrap();
    assert!(why(&fleet).contains("made by another host"));
    assert_eq!(fleet.list().unwrap()[0].manifest, None);
    fs::write(&of_fleet, &key).unwrap();
    assert_eq!(why(&fleet), "");
    fs::write(&of_fleet, [b'k'; 33]).unwrap();
    assert!(why(&fleet).contains("no key of 32 bytes"));
}

#[test]
fn a_host_that_a_snapshot_does_not_fit_says_why() {
    let bench = Bench::new();
    let good = bench.make(&named("a")).unwrap();
    let why = |change: &dyn Fn(&mut Manifest)| {
        let mut manifest = good.clone();
        change(&mut manifest);
        bench.host.check(&manifest).err().map(|why| why.to_string()).unwrap_or_default()
    };
    assert_eq!(why(&|_| {}), "");
    assert!(why(&|it| it.head.kernel.push('x')).contains("another build"));
    assert!(why(&|it| it.head.stub.push('x')).contains("another build"));
    assert!(why(&|it| it.processor.flags.push("warp".into())).contains("a processor with warp"));
    assert_eq!(why(&|it| it.processor.flags.clear()), "");
    assert!(why(&|it| it.processor.xsave_mask ^= 4).contains("XSAVE"));
    assert!(why(&|it| it.head.cpus = 0).contains("0 vCPUs"));
    assert!(why(&|it| it.head.memory_most_bytes = 1 << 60).contains("no sandbox has that"));
    assert!(why(&|it| it.head.kernel_bytes += 1).contains("its kernel"));
    assert!(why(&|it| it.head.pages = 3 << 20).contains("this host has"));
}

#[test]
fn a_bundle_that_a_snapshot_does_not_fit_is_refused() {
    let bench = Bench::new();
    let manifest = bench.make(&named("a")).unwrap();
    let mount = |path: &str, kind: &str| MountPoint { path: path.into(), kind: kind.into() };
    let why = |mounts: &[MountPoint], terminal, memory_bytes| {
        let checked = manifest
            .container
            .check_bundle(mounts, terminal)
            .and_then(|()| manifest.check_limit(memory_bytes));
        checked.err().map(|why| why.to_string()).unwrap_or_default()
    };
    let data = [mount("/data", "bind"), mount("/more", "tmpfs")];
    assert_eq!(why(&data, false, 1 << 30), "");
    assert_eq!(
        why(&[], false, 1 << 30),
        "the snapshot was made with a mount at /data, which the bundle lacks"
    );
    assert!(why(&[mount("/data", "tmpfs")], false, 1 << 30).contains("has one of kind tmpfs"));
    assert!(why(&data, true, 1 << 30).contains("set process.terminal to false"));
    assert!(why(&data, false, 4095).contains("the bundle's limit is 4095"));
    let plans = [MountPlan::of_kernel(abi::mount::FileSystem::Proc, "/proc".into(), 0)];
    assert_eq!(MountPoint::of(&plans), [mount("/proc", "proc")]);
    let settings = |platform: &str| {
        let mut asked = Asked::default();
        asked.set("platform", platform).unwrap();
        Settings::settle(asked, &Asked::default(), &NodeConfig::default()).unwrap()
    };
    assert!(manifest.platform_for(&settings("auto")).is_ok());
    assert!(manifest.platform_for(&settings("kvm")).unwrap_err().to_string().contains("is to run on kvm"));
}

#[test]
fn names_are_those_of_sandboxes() {
    for bad in ["", ".key", "a/b", "..", "ä"] {
        assert!(matches!(Place::named(bad), Err(SnapshotError::BadName { .. })), "{bad:?}");
    }
    let long = "x".repeat(255);
    let bench = Bench::new();
    bench.make(&named(&long)).unwrap();
    assert_eq!(bench.names(), [long]);
    let missing: io::Error = io::ErrorKind::NotFound.into();
    assert!(Unfit::from(missing).to_string().contains("cannot be read"));
}

#[test]
fn a_working_set_is_recorded_once_and_goes_with_its_snapshot() {
    let bench = Bench::new();
    let place = named("a");
    let manifest = bench.make(&place).unwrap();
    let open = || {
        let opened = bench.store.open_on(&place, &bench.host, None).unwrap();
        let is_wanted = opened.wanted_recording().is_some();
        (opened.working_set, is_wanted)
    };
    assert!(matches!(open(), (WorkingSet::Missing(None), true)));
    assert_eq!(bench.store.working_set_pages(&place).unwrap(), None);
    let of = working_set::Of::new(&manifest, &bench.store.key().unwrap()).unwrap();
    let write = |pages: &[u32]| {
        of.add(&vmm::directory::Directory::open(&bench.at("a")).unwrap(), working_set::WORKING_SET, pages)
            .unwrap();
    };
    write(&[3, 5]);
    assert!(matches!(open(), (WorkingSet::Recorded(pages), false) if pages == [3, 5]));
    // Once more every so often.
    assert_eq!((0..32).filter(|_| open().1).count(), 2);
    assert_eq!(bench.store.working_set_pages(&place).unwrap(), Some(2));
    // Another snapshot's counts as little as a damaged one.
    bench.make(&named("b")).unwrap();
    fs::copy(bench.at("a").join("ws"), bench.at("b").join("ws")).unwrap();
    let other = bench.store.open_on(&named("b"), &bench.host, None).unwrap().working_set;
    assert!(matches!(other, WorkingSet::Missing(Some(BadWorkingSet::Sealed))));
    fs::write(bench.at("a").join("ws"), [0; 9]).unwrap();
    assert!(matches!(open(), (WorkingSet::Missing(Some(BadWorkingSet::Sealed)), true)));
    assert_eq!(bench.store.working_set_pages(&place).unwrap(), None);
    write(&[3]);
    assert!(matches!(open(), (WorkingSet::Recorded(_), _)));
    let Place::Named(name) = &place else { unreachable!() };
    fs::write(bench.at("a").join(".ws"), []).unwrap();
    bench.store.remove(name).unwrap();
    assert!(!bench.at("a").exists());
}
