//! Names and attributes on the copy-on-write view: what programs see of them, beside the same on the host itself.

mod test_dir;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use test_dir::TestDir;

/// Runs `dormouse do`.
fn run(test_dir: &TestDir, args: &[&str]) -> Output {
    test_dir.sandbox(args).output().unwrap()
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// More directories, and more files, than the kernel keeps names of.
fn fill_crowd(dir: &Path) {
    fs::create_dir(dir).unwrap();
    for number in 0..4_600 {
        let below = dir.join(format!("d{number}"));
        fs::create_dir(&below).unwrap();
        (0..6).for_each(|file| fs::write(below.join(format!("f{file}")), "").unwrap());
    }
}

/// A tree of some directories deep, with files and links.
fn fill_tree(dir: &Path, depth: u32) {
    fs::create_dir(dir).unwrap();
    for number in 0..4_u32 {
        fs::write(dir.join(format!("f{number}")), vec![b'x'; 10 * number as usize]).unwrap();
        std::os::unix::fs::symlink(format!("f{number}"), dir.join(format!("l{number}"))).unwrap();
        if depth > 0 {
            fill_tree(&dir.join(format!("d{number}")), depth - 1);
        }
    }
}

/// Changes a tree at random, but the same way each time, and tells of each change and in the end of everything. Between, so many
/// other names are looked at that the kernel forgets those of the tree.
const CHANGES: &str = r"
import errno, os, random, stat, sys
tree, crowd, seed, moves = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == 'moves'
chance = random.Random(seed)
os.umask(0o022)

def look(path):
    s = os.lstat(path)
    size = s.st_size if not stat.S_ISDIR(s.st_mode) else 0
    links = s.st_nlink if not stat.S_ISDIR(s.st_mode) else 0
    when = int(s.st_mtime) if s.st_mtime < 1e9 else 'now'
    return oct(s.st_mode), size, links, when, os.readlink(path) if stat.S_ISLNK(s.st_mode) else ''

def everything():
    found = []
    for at, dirs, files in os.walk(tree):
        dirs.sort()
        found += [os.path.join(at, name) for name in dirs + sorted(files)]
    return found

def in_order():
    seen = []
    for at, _, _ in os.walk(tree):
        found = [(name, *look(os.path.join(at, name))) for name in os.listdir(at)]
        seen.append((os.path.relpath(at, tree), sorted(found)))
    print(sorted(seen))

def crowd_out():
    for at, dirs, files in os.walk(crowd):
        for name in dirs + files: os.lstat(os.path.join(at, name))

def change(path, other):
    is_dir = stat.S_ISDIR(os.lstat(path).st_mode)
    new = os.path.join(path if is_dir else os.path.dirname(path), 'n%d' % chance.randrange(1000))
    what = chance.randrange(13)
    if what == 0 and not is_dir: os.unlink(path)
    elif what == 1 and not is_dir: os.rename(path, new)
    elif what == 2 and not is_dir: os.link(path, new, follow_symlinks=False)
    elif what == 3: os.mkdir(new)
    elif what == 4: os.symlink('f1', new)
    elif what == 5 and not os.path.islink(path): os.chmod(path, chance.choice([0o700, 0o755, 0o750]) if is_dir else 0o604)
    elif what == 6 and not is_dir:
        with open(path, 'ab') as file: file.write(b'more')
    elif what == 7 and not is_dir: os.truncate(path, 3)
    elif what == 8: os.utime(path, (1000, 1000 + chance.randrange(9)), follow_symlinks=False)
    elif what == 9 and not is_dir: os.rename(path, other)
    elif what == 10 and is_dir and moves: os.rename(path, new if other.startswith(path) else other)
    elif what == 11 and is_dir: os.rmdir(path)
    elif what == 12 and not is_dir: kept.append(open(path, 'r+b', buffering=0))
    else: open(new, 'xb').close()

kept = []
for step in range(400):
    if step % 100 == 0: crowd_out()
    if step % 20 == 0:
        in_order()
        all = everything()
    # Files change that are open, and are closed some day.
    if kept: os.pwrite(chance.choice(kept).fileno(), b'w', chance.randrange(99))
    if len(kept) > 5: kept.pop(0).close()
    path, other = chance.choice(all), chance.choice(all)
    try: change(path, other); result = 'done'
    except OSError as error: result = errno.errorcode[error.errno]
    print(step, os.path.relpath(path, tree), os.path.relpath(other, tree), result)
    # What is gone is known to be.
    for seen in path, other, os.path.join(os.path.dirname(path), 'never'):
        try: print(*look(seen))
        except OSError as error: print(errno.errorcode[error.errno])
crowd_out()
for path in everything(): print(os.path.relpath(path, tree), *look(path))
";

#[test]
fn a_tree_that_changes_looks_as_on_the_host() {
    let test_dir = TestDir::new();
    fill_crowd(&test_dir.join("crowd"));
    let path_of = |tree: &str| test_dir.join(tree).to_str().unwrap().to_owned();
    // Not every host's overlays move directories of the host's.
    fs::create_dir_all(test_dir.join("moved/from")).unwrap();
    let moves = run(&test_dir, &["--", "mv", "moved/from", "moved/to"]).status.success();
    let moves = if moves { "moves" } else { "stays" };
    for seed in ["1", "2", "3"] {
        let trees = [format!("inside{seed}"), format!("outside{seed}")];
        trees.iter().for_each(|tree| fill_tree(&test_dir.join(tree), 2));
        let args = |tree: &str| [path_of(tree), path_of("crowd"), seed.to_owned(), moves.to_owned()];
        let inside = args(&trees[0]);
        let inside: Vec<_> =
            ["--", "python3", "-c", CHANGES].into_iter().chain(inside.iter().map(String::as_str)).collect();
        let seen = text(&run(&test_dir, &inside));
        let outside = Command::new("python3").arg("-c").arg(CHANGES).args(args(&trees[1])).output().unwrap();
        let expected = text(&outside);
        assert!(expected.matches("done").count() > 100, "{expected}");
        for (line, (seen, expected)) in seen.lines().zip(expected.lines()).enumerate() {
            assert_eq!(seen, expected, "line {line} with seed {seed}");
        }
        assert_eq!(seen.lines().count(), expected.lines().count());
    }
}

#[test]
fn a_large_directory_of_long_names_is_listed_with_little_memory() {
    let test_dir = TestDir::new();
    let large = test_dir.join("large");
    fs::create_dir(&large).unwrap();
    for number in 0..20_000_u32 {
        fs::write(large.join(format!("{number:0>255}")), if number % 2 == 0 { "" } else { "odd" }).unwrap();
    }
    let count = "find large -type f -printf '%s\n' | sort | uniq -c";
    let script = format!("{count}; find large -name '*7' -delete; {count}");
    let found = text(&run(&test_dir, &["--memory", "64M", "--", "sh", "-c", &script]));
    let words: Vec<&str> = found.split_whitespace().collect();
    assert_eq!(words, ["10000", "0", "10000", "3", "10000", "0", "8000", "3"]);
}

#[test]
fn a_place_that_was_made_for_a_volume_is_the_sandboxes_own() {
    let test_dir = TestDir::new();
    let volume = format!("{}:/made/for/it", test_dir.path().display());
    let script =
        "cd /made && touch for/x y && ls . for && find /made/for -maxdepth 1 -type f -printf '%f %s\n'";
    let seen = text(&run(&test_dir, &["--volume", &volume, "--", "sh", "-c", script]));
    assert_eq!(seen, ".:\nfor\ny\n\nfor:\nit\nx\nx 0\n");
}
