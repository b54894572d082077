//! Default places of state and layers: never a directory that another user could have made first.

use std::fs::File;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use vmm::directory::Directory;
use vmm::process;

use super::error::StateError;

/// The default place of state.
pub(super) fn state() -> Result<PathBuf, StateError> {
    let usual = format!("/run/user/{}", process::effective_user());
    choose_state(process::effective_user(), Path::new(&usual), directory_of)
}

/// The default place of layers.
pub(super) fn layers() -> Result<PathBuf, StateError> {
    if let Some(dir) = std::env::var_os("DORMOUSE_LAYERS").filter(|dir| !dir.is_empty()) {
        // Absolute, since the working directory may change.
        return Ok(std::path::absolute(&dir).unwrap_or(dir.into()));
    }
    choose_layers(process::effective_user(), directory_of)
}

/// The default place of swap files of a user who is not root; `None`: there is none where such files can be.
pub(super) fn swap_of_user() -> Option<PathBuf> {
    let dir = choose_swap(process::effective_user(), directory_of)?;
    let _ = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir);
    // A file system that has no unnamed files holds no swap files.
    let unnamed = File::options().write(true).custom_flags(libc::O_TMPFILE).open(&dir);
    unnamed.is_ok().then_some(dir)
}

/// The directory of a user's swap files; root's is `vmm::hibernate`'s own.
fn choose_swap(user: u32, named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if user == 0 { None } else { home(named).map(|home| home.join(".swap")) }
}

/// The default place of snapshots.
pub(super) fn snapshots() -> Result<PathBuf, StateError> {
    if let Some(dir) = std::env::var_os("DORMOUSE_SNAPSHOTS").filter(|dir| !dir.is_empty()) {
        // Absolute, since the working directory may change.
        return Ok(std::path::absolute(&dir).unwrap_or(dir.into()));
    }
    choose_snapshots(process::effective_user(), directory_of)
}

/// The directory of a user's snapshots.
fn choose_snapshots(user: u32, named: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, StateError> {
    if user == 0 {
        return Ok("/var/lib/dormouse/snapshots".into());
    }
    home(named).map(|home| home.join("snapshots")).ok_or(StateError::NoPlace {
        what: "snapshots",
        missing: "HOME is not set",
        remedy: "HOME or DORMOUSE_SNAPSHOTS",
    })
}

/// An absolute path that the environment names.
fn directory_of(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// The place of a user's state: in the runtime directory, which is removed when they log out, or else in their home.
/// `usual`: the runtime directory when no variable names it.
fn choose_state(
    user: u32,
    usual: &Path,
    named: impl Fn(&str) -> Option<PathBuf>,
) -> Result<PathBuf, StateError> {
    if user == 0 {
        return Ok("/run/dormouse".into());
    }
    if let Some(runtime) = named("XDG_RUNTIME_DIR") {
        // By the rules for this directory, it is its user's alone.
        return match Directory::open(&runtime) {
            Ok(_) => Ok(runtime.join("dormouse")),
            Err(source) => Err(StateError::Root { path: runtime, source }),
        };
    }
    if Directory::open(usual).is_ok() {
        return Ok(usual.join("dormouse"));
    }
    // No sandbox's name begins with a dot.
    home(named).map(|home| home.join(".run")).ok_or(StateError::NoPlace {
        what: "the state of sandboxes",
        missing: "neither XDG_RUNTIME_DIR nor HOME is set",
        remedy: "XDG_RUNTIME_DIR, or pass --root",
    })
}

/// The directory of a user's layers.
fn choose_layers(user: u32, named: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf, StateError> {
    if user == 0 {
        return Ok("/var/lib/dormouse".into());
    }
    home(named).ok_or(StateError::NoPlace {
        what: "the layers of sandboxes",
        missing: "HOME is not set",
        remedy: "HOME or DORMOUSE_LAYERS",
    })
}

/// Dormouse's directory in the place where programs keep state in a user's home.
fn home(named: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let usual = || Some(named("HOME")?.join(".local/state"));
    Some(named("XDG_STATE_HOME").or_else(usual)?.join("dormouse"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::super::tests::private;
    use super::*;
    use testdir::TempDir;

    #[test]
    fn defaults_are_nowhere_that_others_could_have_been_first() {
        let dir = TempDir::new();
        let (runtime, usual, home) = (dir.path().join("run"), dir.path().join("7"), dir.path().join("home"));
        let choose = |names: &[(&str, &Path)]| {
            let named =
                |name: &str| names.iter().find(|(key, _)| *key == name).map(|(_, path)| path.to_path_buf());
            let state = choose_state(7, &usual, named).map_err(|error| error.to_string());
            (state, choose_layers(7, named).map_err(|error| error.to_string()))
        };
        let (state, layers) = choose(&[]);
        assert!(state.unwrap_err().contains("XDG_RUNTIME_DIR") && layers.unwrap_err().contains("HOME"));
        let in_home = home.join(".local/state/dormouse");
        assert_eq!(choose(&[("HOME", &home)]), (Ok(in_home.join(".run")), Ok(in_home.clone())));
        let user_of_home = |name: &str| (name == "HOME").then(|| home.clone());
        assert_eq!(choose_swap(7, user_of_home), Some(in_home.join(".swap")));
        assert_eq!((choose_swap(7, |_| None), choose_swap(0, user_of_home)), (None, None));
        assert_eq!(choose_snapshots(7, user_of_home).unwrap(), in_home.join("snapshots"));
        assert_eq!(choose_snapshots(0, |_| None).unwrap(), Path::new("/var/lib/dormouse/snapshots"));
        assert!(choose_snapshots(7, |_| None).unwrap_err().to_string().contains("DORMOUSE_SNAPSHOTS"));
        private(&usual);
        assert_eq!(choose(&[("HOME", &home)]), (Ok(usual.join("dormouse")), Ok(in_home)));
        let both: &[(&str, &Path)] = &[("XDG_RUNTIME_DIR", &runtime), ("XDG_STATE_HOME", &home)];
        assert!(choose(both).0.unwrap_err().contains("cannot use directory"), "it is not there");
        private(&runtime);
        assert_eq!(choose(both), (Ok(runtime.join("dormouse")), Ok(home.join("dormouse"))));
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(choose(both).0.unwrap_err().contains("others than its owner may write it"));
        fs::set_permissions(&usual, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(choose(&[]).0.is_err());
    }
}
