//! Overlays: directories of the host's seen through a fresh one that takes up a sandbox's changes, and through those that have another
//! sandbox's, from which this one begins.

use std::ffi::{CStr, CString, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{MountError, bytes_of, c_path, call, clone_tree, open_directory, system_call};
use crate::directory::Directory;
use crate::jail::{IdMap, cover};

/// `fsconfig(2)` and `fsmount(2)` numbers that `libc` does not name.
const FSCONFIG_SET_FLAG: u32 = 0;
pub(super) const FSCONFIG_SET_STRING: u32 = 1;
pub(super) const FSCONFIG_CMD_CREATE: u32 = 6;
const MOUNT_ATTR_NOSUID: u64 = 2;
const MOUNT_ATTR_NODEV: u64 = 4;

/// The file of a layer that lists its views.
const VIEWS: &str = "views.json";

/// The changes to what a sandbox sees in one place, with which another one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changes {
    /// In the sandbox.
    pub path: PathBuf,
    /// The last changes first.
    pub directories: Vec<LowerDirectory>,
}

/// A directory of the host's that is known again, whatever becomes of its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LowerDirectory {
    pub path: PathBuf,
    dev: u64,
    ino: u64,
}

impl LowerDirectory {
    /// The directory at a path.
    pub fn find(path: &Path) -> io::Result<Self> {
        let found = fs::metadata(path)?;
        Ok(Self { path: path.to_owned(), dev: found.dev(), ino: found.ino() })
    }

    /// Whether it is this one that is at its path.
    #[must_use]
    pub fn is_there(&self) -> bool {
        Self::find(&self.path).is_ok_and(|found| found == *self)
    }

    fn check(&self, opened: OwnedFd) -> io::Result<OwnedFd> {
        let found = File::from(opened.try_clone()?).metadata()?;
        if (found.dev(), found.ino()) == (self.dev, self.ino) {
            Ok(opened)
        } else {
            Err(io::Error::other("it was removed, and is another one now"))
        }
    }
}

/// Bytes as a text, a character for each: not all are one, as those of a path.
#[must_use]
pub fn text_of(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The bytes that a text stands for.
#[must_use]
pub fn bytes_of_text(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|char| u8::try_from(char).ok()).collect()
}

/// The path that a text stands for.
#[must_use]
pub fn path_of(text: &str) -> Option<PathBuf> {
    Some(OsString::from_vec(bytes_of_text(text)?).into())
}

/// A view of a sandbox's, and its directory in the layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerView {
    /// In the sandbox ([`path_of`]).
    pub path: String,
    /// The name in the layer.
    pub upper: String,
    /// The directory has the changes alone; else it is all that the sandbox sees.
    pub is_overlay: bool,
    /// Directories between the host's and this one, the last changes first.
    pub below: Vec<LowerDirectory>,
}

/// Copies a directory as a new entry of a layer.
pub type Fill<'f> = &'f dyn Fn(&Path, &Directory, &str) -> io::Result<()>;

/// Changes with which a sandbox begins.
#[derive(Clone, Copy)]
pub struct Beginning<'b> {
    pub changes: &'b [Changes],
    /// Copies those that overlayfs does not take as a lower directory: it refuses one that lies below another.
    pub fill: Fill<'b>,
}

/// The views that were made with a sandbox's layer.
pub fn views_of(layer: &Directory) -> io::Result<Vec<LayerView>> {
    Ok(serde_json::from_slice(&layer.read(VIEWS)?)?)
}

/// Fresh directories for the upper sides of overlays.
pub(super) struct Layers<'a> {
    pub(super) directory: &'a Directory,
    /// The path leads by the descriptor, so that files are opened in the directory that was checked.
    pub(super) dir: PathBuf,
    next: u32,
    /// The first of [`OPTIONS`] that this host may take.
    options: usize,
    pub(super) id_map: Option<IdMap<'a>>,
    /// Changes that are there from the beginning.
    beginning: Option<Beginning<'a>>,
    made: Vec<LayerView>,
}

/// The lower directories of a view.
struct Lower<'l> {
    /// The first counts most, and the last is the host's.
    open: &'l [OwnedFd],
    /// All but the last.
    changes: &'l [LowerDirectory],
    /// The upper directory begins as a copy of this.
    copied: Option<&'l Path>,
    is_covered: bool,
}

impl<'a> Layers<'a> {
    pub(super) fn new(
        directory: &'a Directory,
        beginning: Option<Beginning<'a>>,
        id_map: Option<IdMap<'a>>,
    ) -> Self {
        let dir = directory.path_by_descriptor();
        Self { directory, dir, next: 0, options: 0, id_map, beginning, made: Vec::new() }
    }

    pub(super) fn failed(&self, source: io::Error) -> MountError {
        MountError::Layer { path: self.directory.path().to_owned(), source }
    }

    /// Makes directories for a view, whose root is to have the attributes of `like`.
    pub(super) fn make(&mut self, like: BorrowedFd<'_>) -> io::Result<(PathBuf, PathBuf)> {
        let mut builder = DirBuilder::new();
        let (upper, work) = self.make_with(|_, upper| builder.mode(0o700).create(upper))?;
        // The root of the view has the upper directory's attributes, so they must be the host's; `like` shows them as the
        // sandbox is to see them, mapped or not.
        let found = File::from(like.try_clone_to_owned()?).metadata()?;
        let _ = chown(&upper, Some(found.uid()), Some(found.gid()));
        fs::set_permissions(&upper, found.permissions())?;
        Ok((upper, work))
    }

    /// Makes directories for a view, whose own is a copy.
    fn make_copy(&mut self, of: &Path) -> io::Result<(PathBuf, PathBuf)> {
        let (fill, directory) = (self.beginning.map(|beginning| beginning.fill), self.directory);
        self.make_with(|name, _| fill.ok_or(io::ErrorKind::InvalidInput)?(of, directory, name))
    }

    fn make_with(
        &mut self,
        mut make: impl FnMut(&str, &Path) -> io::Result<()>,
    ) -> io::Result<(PathBuf, PathBuf)> {
        let (upper, work) = loop {
            let (name, work) = (format!("upper{}", self.next), format!("work{}", self.next));
            self.next += 1;
            let upper = self.dir.join(&name);
            match make(&name, &upper) {
                // From a first attempt, with ids mapped.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                result => break result.map(|()| (upper, self.dir.join(work)))?,
            }
        };
        DirBuilder::new().mode(0o700).create(&work)?;
        Ok((upper, work))
    }

    /// Takes down which directory belongs to the view at `path` in the sandbox.
    pub(super) fn note(&mut self, path: &Path, upper: &Path, is_overlay: bool, below: &[LowerDirectory]) {
        let upper = upper.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.made.push(LayerView {
            path: text_of(&bytes_of(path)),
            upper,
            is_overlay,
            below: below.to_vec(),
        });
    }

    /// Finds changes that no view begins with.
    pub(super) fn check_all_begun(&self) -> Result<(), MountError> {
        let is_begun = |changes: &Changes| {
            let mut made = self.made.iter().filter(|view| view.is_overlay);
            made.any(|view| view.path == text_of(&bytes_of(&changes.path)))
        };
        let all = self.beginning.map_or(&[][..], |beginning| beginning.changes);
        match all.iter().find(|changes| !is_begun(changes)) {
            Some(lost) => Err(MountError::Changes { path: lost.path.clone() }),
            None => Ok(()),
        }
    }

    /// Writes what was taken down, for [`views_of`].
    pub(super) fn write_views(&self) -> Result<(), MountError> {
        let written = serde_json::to_vec(&self.made).map_err(io::Error::from);
        written.and_then(|text| self.directory.write(VIEWS, &text)).map_err(|source| self.failed(source))
    }

    /// The changes with which the view at a path in the sandbox begins.
    fn changes(&self, path: &Path) -> Option<&'a Changes> {
        self.beginning?.changes.iter().find(|changes| changes.path == path)
    }

    /// Whether the view at a path in the sandbox shows the host's directory from the beginning.
    pub(super) fn is_fresh(&self, path: &Path) -> bool {
        self.changes(path).is_none()
    }

    /// The directories of those changes, with ids mapped if the sandbox's are.
    fn open_changes(&self, directories: &[LowerDirectory]) -> Result<Vec<OwnedFd>, MountError> {
        let open = |directory: &LowerDirectory| {
            let path = || directory.path.clone();
            let lost = |source| MountError::Layer { path: path(), source };
            let found = match self.id_map {
                Some(id_map) => clone_tree(&directory.path, true, Some(id_map))
                    .map_err(|source| MountError::Unmapped { path: path(), source }),
                None => open_directory(&directory.path).map_err(lost),
            };
            found.and_then(|opened| directory.check(opened).map_err(lost))
        };
        directories.iter().map(open).collect()
    }

    /// The copy-on-write view of a directory, as a whole: what is mounted below it is not in it. `inside`: where it is in the sandbox.
    pub(super) fn overlay_of(&mut self, path: &Path, inside: &Path) -> Result<OwnedFd, MountError> {
        let unmapped = |source| MountError::Unmapped { path: path.to_owned(), source };
        let lower = match self.id_map {
            Some(id_map) => clone_tree(path, false, Some(id_map)).map_err(unmapped)?,
            None => {
                open_directory(path).map_err(|source| MountError::Root { path: path.to_owned(), source })?
            }
        };
        let changes = self.changes(inside).map_or(&[][..], |changes| &changes.directories);
        let mut lowers = self.open_changes(changes)?;
        lowers.push(lower);
        let lower = Lower { open: &lowers, changes, copied: None, is_covered: false };
        let copied = match (changes, &lowers[..]) {
            ([changes], [_, hosts]) => {
                let open = std::slice::from_ref(hosts);
                Some(Lower { open, changes: &[], copied: Some(&changes.path), is_covered: true })
            }
            _ => None,
        };
        // Of a sandbox whose own layer is below the host's directory snapshots will be, too, and only one directory can be copied then.
        let is_below = self.directory.path().starts_with(path);
        let made = match copied {
            Some(copied) if is_below => self.overlay(&copied, path, inside),
            Some(copied) => match self.overlay(&lower, path, inside) {
                Err(MountError::Overlay { source, .. }) if source.raw_os_error() == Some(libc::ELOOP) => {
                    self.overlay(&copied, path, inside)
                }
                made => made,
            },
            None => self.overlay(&lower, path, inside),
        };
        match made {
            Err(error) if self.id_map.is_some() => Err(unmapped(io::Error::other(error))),
            made => made,
        }
    }

    fn overlay(&mut self, lower: &Lower<'_>, path: &Path, inside: &Path) -> Result<OwnedFd, MountError> {
        let mut last = io::Error::from_raw_os_error(libc::EINVAL);
        let (first, lowers) = (self.options, lower.open);
        let Some(like) = lowers.first() else { return Err(self.failed(last)) };
        for (at, options) in OPTIONS.iter().enumerate().skip(first) {
            // Fresh directories each time: a work directory remembers the options it was used with.
            let made = match lower.copied {
                Some(changes) => self.make_copy(changes),
                None => self.make(like.as_fd()),
            };
            let (upper, work) = made.map_err(|source| self.failed(source))?;
            if self.id_map.is_some() && at == first && !lower.is_covered {
                // Older kernels refuse overlays over detached mounts. What lies under this one is reached by the descriptor still.
                let place = c_path(&self.dir.join(".")).map_err(|source| self.failed(source))?;
                let covered = lowers.iter().try_for_each(|lower| cover(lower.as_fd(), &place));
                covered.map_err(|source| self.failed(source))?;
            }
            let made = try_overlay(lowers, &upper, &work, options);
            let _ = std::env::set_current_dir("/");
            match made {
                Ok(fd) => {
                    self.options = at;
                    self.note(inside, &upper, true, lower.changes);
                    return Ok(fd);
                }
                // No other options help.
                Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                    last = error;
                    break;
                }
                Err(error) => last = error,
            }
        }
        Err(MountError::Overlay { path: path.to_owned(), source: last })
    }
}

/// Options to try, best first. `volatile`: a layer that is removed at the end need not be synced. `redirect_dir`:
/// renaming a directory of the host's works. `userxattr`: needed in a user namespace.
const OPTIONS: &[&[(&CStr, Option<&CStr>)]] = &[
    &[
        (c"volatile", None),
        (c"redirect_dir", Some(c"on")),
        (c"index", Some(c"off")),
        (c"metacopy", Some(c"off")),
    ],
    &[(c"volatile", None), (c"userxattr", None)],
    &[(c"userxattr", None)],
];

fn try_overlay(
    lowers: &[OwnedFd],
    upper: &Path,
    work: &Path,
    options: &[(&CStr, Option<&CStr>)],
) -> io::Result<OwnedFd> {
    let context = system_call([libc::SYS_fsopen, c"overlay".as_ptr() as i64, 1, 0, 0, 0])?;
    // By their descriptors, so that no character of a path has a meaning to overlayfs, and many fit into the 255 bytes of an option.
    std::env::set_current_dir("/proc/self/fd")?;
    let set = |key: &CStr, value: Option<&CStr>| {
        let kind = if value.is_some() { FSCONFIG_SET_STRING } else { FSCONFIG_SET_FLAG };
        let value = value.map_or(0, |value| value.as_ptr() as i64);
        let fd = i64::from(context.as_raw_fd());
        call([libc::SYS_fsconfig, fd, i64::from(kind), key.as_ptr() as i64, value, 0])
    };
    let numbers: Vec<String> = lowers.iter().map(|lower| lower.as_raw_fd().to_string()).collect();
    set(c"lowerdir", Some(&CString::new(numbers.join(":"))?))?;
    set(c"upperdir", Some(&c_path(upper)?))?;
    set(c"workdir", Some(&c_path(work)?))?;
    for (key, value) in options {
        set(key, *value)?;
    }
    let fd = i64::from(context.as_raw_fd());
    call([libc::SYS_fsconfig, fd, i64::from(FSCONFIG_CMD_CREATE), 0, 0, 0])?;
    let attributes = (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV).cast_signed();
    system_call([libc::SYS_fsmount, fd, 1, attributes, 0, 0])
}
