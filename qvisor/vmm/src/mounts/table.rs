//! The host's table of mounts.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fs;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::c_path;
use crate::host_paths::HostPaths;

/// File systems that hold no files of their own, or that an overlay cannot hold: not shown to a sandbox.
const LEFT_OUT: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "overlay",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];
/// A mount of the host's below a directory.
#[derive(Debug, PartialEq, Eq)]
pub struct MountBelow {
    pub(super) id: u64,
    /// From the directory on.
    pub path: PathBuf,
    /// It is read-only on the host.
    pub read_only: bool,
}

/// The mounts of files below a directory, parents before children. Those of which the host's kernel makes up the files are not
/// among them.
pub fn mounts_below(_: &HostPaths, directory: &Path) -> Vec<MountBelow> {
    let Ok(directory) = fs::canonicalize(directory) else { return Vec::new() };
    let below = |(path, mount): (PathBuf, Mounted)| {
        let path = path.strip_prefix(&directory).ok()?.to_owned();
        Some(MountBelow { id: mount.id, path, read_only: mount.read_only })
    };
    worth_showing(mounted(), &directory).into_iter().filter_map(below).collect()
}

/// The facts of a line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    pub(super) id: u64,
    pub(super) read_only: bool,
    pub(super) kind: String,
}

/// Everything that is mounted, by path; parents come before children.
pub(super) fn mounted() -> BTreeMap<PathBuf, Mounted> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// The mounts below `root` that are worth showing.
pub(super) fn worth_showing(
    mut found: BTreeMap<PathBuf, Mounted>,
    root: &Path,
) -> BTreeMap<PathBuf, Mounted> {
    found.retain(|path, mount| {
        path != root
            && path.starts_with(root)
            && !LEFT_OUT.contains(&mount.kind.as_str())
            // Hidden below another mount?
            && c_path(path)
                .ok()
                .and_then(|path| mount_id(libc::AT_FDCWD, &path))
                .is_none_or(|id| id == mount.id)
    });
    found
}

/// Later lines replace earlier ones of the same path, as later mounts hide earlier ones.
fn parse_line(line: &[u8]) -> Option<(PathBuf, Mounted)> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let path = unescape(fields.nth(3)?);
    let options = fields.next()?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = String::from_utf8_lossy(rest.next()?).into_owned();
    let super_options = rest.nth(1).unwrap_or_default();
    let is_ro = |options: &[u8]| options.split(|b| *b == b',').any(|option| option == b"ro");
    Some((path, Mounted { id, read_only: is_ro(options) || is_ro(super_options), kind }))
}

/// Octal escapes of blanks and backslashes.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while let Some(byte) = field.get(at) {
        let digits = field.get(at + 1..at + 4).filter(|_| *byte == b'\\');
        let octal = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        out.push(octal.unwrap_or(*byte));
        at += if octal.is_some() { 4 } else { 1 };
    }
    PathBuf::from(std::ffi::OsString::from_vec(out))
}

pub(super) fn mount_id(dir: RawFd, path: &CStr) -> Option<u64> {
    const STATX_MNT_ID: u32 = 0x1000;
    // SAFETY: `statx` is plain integers.
    let mut out: libc::statx = unsafe { std::mem::zeroed() };
    // A server of files that is gone is not asked.
    let flags =
        libc::AT_NO_AUTOMOUNT | libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is zero-terminated, and `out` is live.
    let result = unsafe { libc::statx(dir, path.as_ptr(), flags, STATX_MNT_ID, &raw mut out) };
    (result == 0 && out.stx_mask & STATX_MNT_ID != 0).then_some(out.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_is_read() {
        let line = b"36 35 98:0 /mnt1 /my\\040dir rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let (path, mount) = parse_line(line).unwrap();
        assert_eq!(path, Path::new("/my dir"));
        assert_eq!(mount, Mounted { id: 36, read_only: false, kind: "ext3".into() });
        let (_, mount) = parse_line(b"1 0 7:0 / /snap/x ro,nodev - squashfs /dev/loop0 ro").unwrap();
        assert!(mount.read_only);
        assert!(parse_line(b"").is_none());
        assert!(parse_line(b"x y").is_none());
    }

    #[test]
    fn made_up_file_systems_are_left_out() {
        let found = worth_showing(mounted(), Path::new("/"));
        assert!(!found.contains_key(Path::new("/")));
        assert!(found.values().all(|mount| mount.kind != "proc" && mount.kind != "sysfs"));
    }
}
