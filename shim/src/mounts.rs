//! The mounts that make a container's root file system.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use containerd_shim_protos::types::mount::Mount;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::thread::UnshareFlags;

/// The host takes a page of options, its end included.
const OPTIONS_MAX: usize = 4095;

/// Mounts one after the other at `root`; if one fails, those before it go.
pub fn mount_all(mounts: &[Mount], root: &Path) -> Result<(), String> {
    mounts.iter().try_for_each(|one| mount(one, root)).inspect_err(|_| {
        // What stays is said when the container is deleted.
        let _ = unmount_all(root);
    })
}

/// Unmounts everything at and below `root`, the last first.
pub fn unmount_all(root: &Path) -> io::Result<()> {
    let table = std::fs::read("/proc/self/mountinfo")?;
    let mut points: Vec<PathBuf> = mount_points(&table).filter(|point| point.starts_with(root)).collect();
    let mut result = Ok(());
    while let Some(point) = points.pop() {
        let plain = rustix::mount::unmount(&point, UnmountFlags::NOFOLLOW);
        let done = plain.or_else(|_| {
            // In use: it goes with its last user.
            rustix::mount::unmount(&point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)
        });
        if let Err(error) = done
            && error != rustix::io::Errno::INVAL
        {
            result = Err(error.into());
        }
    }
    result
}

/// The mount points of a `mountinfo`, in the order in which they were made.
fn mount_points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(std::ffi::OsString::from_vec(unescape(field))))
    })
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, others)) = rest.split_first() {
        let code = others.get(..3).filter(|_| *first == b'\\');
        let code = code.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(*first));
        rest = if code.is_some() { others.get(3..).unwrap_or_default() } else { others };
    }
    bytes
}

/// Options, taken apart.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parsed {
    flags: MountFlagsOf,
    is_bind: bool,
    is_recursive: bool,
    data: Vec<String>,
}

/// Flags, which have no default of their own.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
struct MountFlagsOf(MountFlags);

impl Default for MountFlagsOf {
    fn default() -> Self {
        Self(MountFlags::empty())
    }
}

fn parse(options: &[String]) -> Parsed {
    let mut parsed = Parsed::default();
    let flags = &mut parsed.flags.0;
    for option in options {
        match option.as_str() {
            "bind" => parsed.is_bind = true,
            "rbind" => (parsed.is_bind, parsed.is_recursive) = (true, true),
            "ro" => flags.insert(MountFlags::RDONLY),
            "rw" => flags.remove(MountFlags::RDONLY),
            "nosuid" => flags.insert(MountFlags::NOSUID),
            "suid" => flags.remove(MountFlags::NOSUID),
            "nodev" => flags.insert(MountFlags::NODEV),
            "dev" => flags.remove(MountFlags::NODEV),
            "noexec" => flags.insert(MountFlags::NOEXEC),
            "exec" => flags.remove(MountFlags::NOEXEC),
            "sync" => flags.insert(MountFlags::SYNCHRONOUS),
            "async" => flags.remove(MountFlags::SYNCHRONOUS),
            "dirsync" => flags.insert(MountFlags::DIRSYNC),
            "noatime" => flags.insert(MountFlags::NOATIME),
            "nodiratime" => flags.insert(MountFlags::NODIRATIME),
            "relatime" => flags.insert(MountFlags::RELATIME),
            "strictatime" => flags.insert(MountFlags::STRICTATIME),
            "atime" | "diratime" | "norelatime" | "nostrictatime" | "defaults" | "" => {}
            // Marks for programs, not for the kernel.
            other if other.starts_with("X-") || other.starts_with("x-") => {}
            other => parsed.data.push(other.to_owned()),
        }
    }
    parsed
}

fn mount(one: &Mount, root: &Path) -> Result<(), String> {
    let below = Path::new(&one.target).components().filter(|part| matches!(part, Component::Normal(_)));
    let target = below.fold(root.to_owned(), |path, part| path.join(part));
    let failed =
        |why: String| format!("cannot mount {} ({}) at {}: {why}", one.source, one.type_, target.display());
    let mut parsed = parse(&one.options);
    if one.type_.starts_with("fuse") || parsed.data.iter().any(|option| option == "loop") {
        return Err(failed("helpers and loop devices are not supported; use another snapshotter".into()));
    }
    if one.type_ == "bind" || parsed.is_bind {
        return bind(Path::new(&one.source), &target, &parsed).map_err(|error| failed(error.to_string()));
    }
    let length = |data: &[String]| data.iter().map(|option| option.len() + 1).sum::<usize>();
    let base =
        (one.type_ == "overlay" && length(&parsed.data) > OPTIONS_MAX).then(|| shorten(&mut parsed.data));
    let data = parsed.data.join(",");
    if data.len() > OPTIONS_MAX {
        return Err(failed("its options are longer than a page; the image has too many layers".into()));
    }
    let data = CString::new(data).map_err(|_| failed("its options contain a zero byte".into()))?;
    let (source, kind, flags) = (one.source.clone(), one.type_.clone(), parsed.flags.0);
    let at = target.clone();
    let mount = move || -> io::Result<()> {
        Ok(rustix::mount::mount(&source, &at, &kind, flags, (!data.is_empty()).then_some(data.as_c_str()))?)
    };
    match base.flatten() {
        Some(base) => elsewhere(base, mount),
        None => mount(),
    }
    .map_err(|error| failed(error.to_string()))
}

fn bind(source: &Path, target: &Path, parsed: &Parsed) -> io::Result<()> {
    if parsed.is_recursive {
        rustix::mount::mount_bind_recursive(source, target)?;
    } else {
        rustix::mount::mount_bind(source, target)?;
    }
    if parsed.flags.0.is_empty() {
        return Ok(());
    }
    // Flags of a bind mount count only once it is there.
    let flags = MountFlags::BIND | parsed.flags.0;
    Ok(rustix::mount::mount_remount(target, flags, "")?)
}

/// Writes an overlay's directories relative to one that most of them lie in; result: that directory.
fn shorten(data: &mut [String]) -> Option<PathBuf> {
    let names = ["lowerdir=", "upperdir=", "workdir="];
    let lists = data.iter().filter_map(|option| names.iter().find_map(|name| option.strip_prefix(name)));
    let directories: BTreeSet<PathBuf> = lists.flat_map(|list| list.split(':')).map(PathBuf::from).collect();
    let base = common(&directories)?;
    for option in data {
        let Some((name, list)) =
            option.split_once('=').filter(|(name, _)| names.contains(&&*format!("{name}=")))
        else {
            continue;
        };
        let relative = |path: &str| {
            Path::new(path).strip_prefix(&base).map_or(path.to_owned(), |rest| rest.display().to_string())
        };
        *option = format!("{name}={}", list.split(':').map(relative).collect::<Vec<_>>().join(":"));
    }
    Some(base)
}

/// The innermost directory above all of them.
fn common(directories: &BTreeSet<PathBuf>) -> Option<PathBuf> {
    // All lie in it if the first and the last do.
    let (first, last) = (directories.first()?.parent()?, directories.last()?);
    first
        .ancestors()
        .find(|above| last.starts_with(above) && *above != last && above.parent().is_some())
        .map(Path::to_owned)
}

/// Runs something in another working directory, which is its thread's alone.
fn elsewhere(base: PathBuf, run: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let thread = std::thread::spawn(move || {
        own_directory()?;
        rustix::process::chdir(&base)?;
        run()
    });
    thread.join().map_err(|_| io::Error::other("the thread ended"))?
}

#[allow(deprecated)] // Descriptors stay shared, which alone would be unsafe to change.
fn own_directory() -> io::Result<()> {
    Ok(rustix::thread::unshare(UnshareFlags::FS)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn options_are_flags_or_go_to_the_file_system() {
        let parsed = parse(&words("rbind ro nosuid rw index=off X-mark defaults userxattr"));
        assert!(parsed.is_bind && parsed.is_recursive);
        assert_eq!(parsed.flags.0, MountFlags::NOSUID);
        assert_eq!(parsed.data, ["index=off", "userxattr"]);
    }

    #[test]
    fn long_overlays_are_mounted_from_their_common_directory() {
        let mut data = words("index=off workdir=/v/s/3/work upperdir=/v/s/3/fs lowerdir=/v/s/2/fs:/v/s/1/fs");
        assert_eq!(shorten(&mut data), Some("/v/s".into()));
        assert_eq!(data, words("index=off workdir=3/work upperdir=3/fs lowerdir=2/fs:1/fs"));
        let mut apart = words("lowerdir=/a/1:/b/2");
        assert_eq!(shorten(&mut apart), None);
    }

    #[test]
    fn mount_points_with_blanks_are_read() {
        let table = b"1 0 0:1 / / rw - x x rw\n2 1 0:2 / /a\\040b rw - x x rw\n";
        assert_eq!(mount_points(table).collect::<Vec<_>>(), [PathBuf::from("/"), PathBuf::from("/a b")]);
    }
}
