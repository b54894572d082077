use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};

use rustix::fs::{CWD, FileType, Mode, XattrFlags, lgetxattr, lsetxattr, mknodat};
use testdir::TempDir;

use super::*;

/// A layer with one view, whose upper directory is filled by `fill`.
fn layer(top: &TempDir, below: Vec<LowerDirectory>, fill: impl FnOnce(&Path)) -> PathBuf {
    let path = top.path().join("from");
    fs::create_dir_all(path.join("upper3")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
    let view = LayerView { path: "/".into(), upper: "upper3".into(), is_overlay: true, below };
    fs::write(path.join("views.json"), serde_json::to_vec(&[view]).unwrap()).unwrap();
    fill(&path.join("upper3"));
    path
}

fn copy(from: &Path, top: &TempDir) -> (Directory, LayerFiles) {
    let to = Directory::make(&top.path().join("to")).unwrap();
    let layer = Layer::open(from, 0, None).unwrap();
    let mut copied = layer.copy_own(&to).unwrap();
    layer.copy_below(&to, &mut copied).unwrap();
    let files = copied.finish(&to).unwrap();
    (to, files)
}

#[test]
fn a_copy_is_what_it_is_a_copy_of() {
    let top = TempDir::new();
    let from = layer(&top, Vec::new(), |upper| {
        fs::create_dir(upper.join("d")).unwrap();
        fs::write(upper.join("d/one"), "text").unwrap();
        fs::hard_link(upper.join("d/one"), upper.join("two")).unwrap();
        symlink("nowhere", upper.join("link")).unwrap();
        let sparse = File::create(upper.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 50 << 20).unwrap();
        sparse.write_all_at(b"start", 0).unwrap();
        fs::set_permissions(upper.join("sparse"), fs::Permissions::from_mode(0o4751)).unwrap();
        mknodat(CWD, upper.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        fs::set_permissions(upper.join("pipe"), fs::Permissions::from_mode(0o620)).unwrap();
        lsetxattr(upper.join("two"), c"user.kept", b"value", XattrFlags::empty()).unwrap();
        lsetxattr(upper.join("two"), c"user.overlay.origin", b"lost", XattrFlags::empty()).unwrap();
        File::open(upper.join("d")).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    });
    let (to, files) = copy(&from, &top);
    let copy = to.path().join("0");
    assert_eq!(files.views, [ViewFiles { path: "/".into(), directories: vec!["0".into()] }]);
    assert!(files.files == 5 && (1..1 << 20).contains(&files.bytes), "{files:?}");
    let of = |name: &str| fs::symlink_metadata(copy.join(name)).unwrap();
    assert_eq!(of("d/one").ino(), of("two").ino());
    assert_eq!(fs::read(copy.join("two")).unwrap(), b"text");
    assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("nowhere"));
    assert_eq!((of("sparse").mode() & 0o7777, of("pipe").mode() & 0o7777), (0o4751, 0o620));
    assert!(of("sparse").blocks() * 512 < 1 << 20, "holes stay holes");
    let mut tail = [0; 3];
    File::open(copy.join("sparse")).unwrap().read_exact_at(&mut tail, 50 << 20).unwrap();
    assert_eq!(&tail, b"end");
    assert_eq!(of("d").modified().unwrap(), std::time::UNIX_EPOCH);
    let source = fs::symlink_metadata(from.join("upper3/link")).unwrap();
    assert_eq!(of("link").modified().unwrap(), source.modified().unwrap());
    let mut value = [0; 9];
    assert_eq!(lgetxattr(copy.join("two"), c"user.kept", &mut value[..]).unwrap(), 5);
    assert!(lgetxattr(copy.join("two"), c"user.overlay.origin", &mut value[..]).is_err());
}

#[test]
fn any_change_changes_the_sum() {
    let top = TempDir::new();
    let from = layer(&top, Vec::new(), |upper| fs::write(upper.join("a"), "text").unwrap());
    let (to, files) = copy(&from, &top);
    let file = to.path().join("0/a");
    let is_another = || sum(&to).unwrap() != files.digest;
    assert!(!is_another());
    let before = fs::metadata(&file).unwrap().modified().unwrap();
    fs::write(&file, "tent").unwrap();
    File::options().write(true).open(&file).unwrap().set_modified(before).unwrap();
    assert!(is_another());
    fs::write(&file, "text").unwrap();
    assert!(is_another(), "its time of change is another");
    File::options().write(true).open(&file).unwrap().set_modified(before).unwrap();
    assert!(!is_another());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(is_another());
}

#[test]
fn those_it_is_built_on_go_along() {
    let top = TempDir::new();
    let snapshots = ["older", "oldest"].map(|name| {
        let (snapshot, directory) = (top.path().join(name), top.path().join(name).join("layer/0"));
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(&snapshot, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(directory.join("name"), name).unwrap();
        fs::write(snapshot.join("manifest.json"), "{}").unwrap();
        snapshot
    });
    let below = || snapshots.iter().map(|snapshot| LowerDirectory::find(&snapshot.join("layer/0")).unwrap());
    let from = layer(&top, below().collect(), |upper| fs::write(upper.join("name"), "newest").unwrap());
    let (to, files) = copy(&from, &top);
    let [changes] = &files.changes(to.path()).unwrap()[..] else { panic!("one view") };
    let names = changes.directories.iter().map(|dir| fs::read_to_string(dir.path.join("name")).unwrap());
    assert_eq!(names.collect::<Vec<_>>(), ["newest", "older", "oldest"]);
    // Another one of its name.
    let directory = snapshots[0].join("layer/0");
    fs::rename(&directory, snapshots[0].join("layer/1")).unwrap();
    fs::create_dir(&directory).unwrap();
    assert!(Layer::open(&from, 0, None).unwrap_err().to_string().contains("removed"));
    fs::remove_dir_all(&snapshots[0]).unwrap();
    assert!(Layer::open(&from, 0, None).unwrap_err().to_string().contains("removed"));
}

#[test]
fn a_sandbox_begins_with_a_copy_that_shows_its_ids() {
    let top = TempDir::new();
    let from = layer(&top, Vec::new(), |upper| fs::write(upper.join("a"), "text").unwrap());
    let to = Directory::make(&top.path().join("to")).unwrap();
    fill(&from, &to, "upper0", 0).unwrap();
    assert_eq!(fs::read(to.path().join("upper0/upper3/a")).unwrap(), b"text");
    assert_eq!(fill(&from, &to, "upper0", 0).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert!(fill(&from.join("nothing"), &to, "upper1", 0).unwrap_err().to_string().contains("nothing"));
}

#[test]
fn a_layer_that_cannot_be_copied_is_refused_in_words() {
    let top = TempDir::new();
    let from = layer(&top, Vec::new(), |_| {});
    let view = LayerView { path: "/".into(), upper: "upper3".into(), is_overlay: false, below: Vec::new() };
    fs::write(from.join("views.json"), serde_json::to_vec(&[view]).unwrap()).unwrap();
    assert!(Layer::open(&from, 0, None).unwrap_err().to_string().contains("--rootfs"));
    let from = layer(&top, Vec::new(), |upper| {
        let deep: PathBuf = std::iter::repeat_n("d", copy::DEPTH_MAX + 2).collect();
        fs::create_dir_all(upper.join(deep)).unwrap();
    });
    let to = Directory::make(&top.path().join("to")).unwrap();
    let error = Layer::open(&from, 0, None).unwrap().copy_own(&to).unwrap_err();
    assert!(error.to_string().ends_with("deep in each other"), "{error}");
}
