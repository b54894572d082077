//! The end of groups: with the sandbox, or after a sandbox that could not remove its own.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use super::error::CgroupError;
use super::systemd::Scope;

/// File of a state directory that names the groups.
const LIST: &str = "cgroups.json";
/// How long the last processes may take to leave a group that is to go.
const PATIENCE: Duration = Duration::from_secs(5);

/// Writes down the directories, in `dir`, for the process that cleans up after a sandbox that cannot do so itself.
pub fn write_list(dir: &Path, directories: &[PathBuf]) -> io::Result<()> {
    if directories.is_empty() {
        return Ok(());
    }
    fs::write(dir.join(LIST), serde_json::to_vec(directories)?)
}

/// Removes the groups that a dead sandbox wrote down in `dir`, if it did; false: some still hold processes, which may be
/// about to end. Those above the sandbox's own stay if others are in them.
#[must_use]
pub fn remove_listed(dir: &Path) -> bool {
    let list =
        fs::read(dir.join(LIST)).ok().and_then(|list| serde_json::from_slice::<Vec<PathBuf>>(&list).ok());
    let list = list.unwrap_or_default();
    let mut is_all_gone = true;
    for path in list.iter().rev() {
        match Scope::listed(path) {
            Some(scope) if scope.stop() => {}
            // Nothing is the dead sandbox's any more.
            Some(_) => break,
            None => {
                let is_leaf = is_leaf(&list, path);
                if is_leaf {
                    remove_below(path);
                }
                is_all_gone &= fs::remove_dir(path).is_ok() || !path.exists() || !is_leaf;
            }
        }
    }
    is_all_gone
}

/// Whether none of the others is below this one.
fn is_leaf(directories: &[PathBuf], path: &Path) -> bool {
    !directories.iter().any(|other| other != path && other.starts_with(path))
}

/// Removes groups that [`Cgroups::directories`] named. Those above the container's own stay if others are in them.
pub fn remove(directories: &[PathBuf]) -> Result<(), CgroupError> {
    for path in directories.iter().rev() {
        match Scope::listed(path) {
            Some(scope) if scope.stop() => continue,
            // The group is somebody else's by now.
            Some(_) => break,
            None => {}
        }
        let start = Instant::now();
        loop {
            if is_leaf(directories, path) {
                remove_below(path);
            }
            match fs::remove_dir(path) {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => break,
                Err(_) if !is_leaf(directories, path) => break,
                Err(source) if start.elapsed() > PATIENCE => {
                    return Err(CgroupError::Remove { path: path.clone(), source });
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }
    Ok(())
}

/// Removes the groups below a sandbox's own, which somebody made there; those that hold processes stay.
fn remove_below(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_below(&entry.path());
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_sandbox_listed_is_removed() {
        let dir = testdir::TempDir::new();
        let made = [dir.path().join("a"), dir.path().join("a/b")];
        made.iter().for_each(|path| fs::create_dir(path).unwrap());
        write_list(dir.path(), &made).unwrap();
        // As a group that still holds a process.
        fs::create_dir_all(made[1].join("below/idle")).unwrap();
        fs::write(made[1].join("below/busy"), "").unwrap();
        assert!(!remove_listed(dir.path()) && !made[1].join("below/idle").exists());
        fs::remove_file(made[1].join("below/busy")).unwrap();
        assert!(remove_listed(dir.path()) && !made[0].exists());
        assert!(remove_listed(&dir.path().join("nothing")));
    }
}
