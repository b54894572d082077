//! `/proc/PID/{mounts,mountinfo,mountstats}`.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::fs::changes::Changes;
use crate::fs::mount;
use crate::fs::mount::{Limits, Mount};
use crate::fs::path::Path;
use crate::proc::subject::Subject;
use crate::pseudo::Out;
use machine::errno::Result;

/// One mount as the tables show it.
#[derive(Clone, Debug, Default)]
struct MountLine {
    id: u64,
    parent: u64,
    /// `st_dev` of the file system.
    dev: u64,
    /// The part of the file system that is mounted; `/` for all of it.
    root: Vec<u8>,
    /// Where, as the process sees it.
    point: Vec<u8>,
    limits: Limits,
    /// Options of the file system, each behind a comma.
    options: Vec<u8>,
    /// Type of file system, and its source.
    kind: Vec<u8>,
    source: Vec<u8>,
}

impl MountLine {
    /// The line of a mount as seen from `root`; `None` when the mount lies elsewhere.
    fn of(mount: &Arc<Mount>, root: &Path) -> Option<Self> {
        let (parent, point) = match mount.mountpoint() {
            Some((parent, dentry)) => {
                let id = parent.id;
                let place = Path { mount: parent, dentry, inode: mount.root_inode.clone() };
                (id, place.below(root)?)
            }
            None => (mount.id, mount.path().below(root)?),
        };
        Some(Self {
            id: mount.id,
            parent,
            dev: mount.root_inode.stat().map_or(0, |stat| stat.dev),
            root: mount.path().inside(),
            point,
            limits: mount.limits(),
            options: mount.root_inode.fs_options(),
            kind: mount.kind.to_vec(),
            source: mount.source.to_vec(),
        })
    }
}

/// Most mounts that are asked for at once.
const AT_ONCE: usize = 64;

/// Adds what `push` makes of each mount that the process sees, parents first, from the one behind the id `after` on; behind which the
/// next piece begins.
fn push_mounts(
    subject: &Subject,
    after: u64,
    out: &mut Out,
    push: impl Fn(&mut Out, &MountLine),
) -> Result<Option<u64>> {
    let root = subject.task()?.fs.get().root();
    let mut after = after;
    loop {
        let mounts = mount::list_after(after, AT_ONCE);
        let Some(last) = mounts.last() else { return Ok(None) };
        let last = last.id;
        for mount in &mounts {
            out.entry()?;
            if let Some(line) = MountLine::of(mount, &root) {
                push(out, &line);
            }
            if out.is_enough() {
                return Ok(Some(mount.id));
            }
        }
        after = last;
    }
}

/// Returns the changes of the mounts that the process sees.
pub fn changes(subject: &Subject) -> Result<Arc<Changes>> {
    Ok(subject.task()?.fs.get().root().mount.changes())
}

/// The major part of a device number.
pub fn major(dev: u64) -> u64 {
    ((dev >> 8) & 0xfff) | ((dev >> 32) & 0xffff_f000)
}

/// The minor part of a device number.
pub fn minor(dev: u64) -> u64 {
    (dev & 0xff) | ((dev >> 12) & 0xffff_ff00)
}

const SPECIAL: &[u8] = b" \t\n#";

/// `/proc/PID/mounts`, the format of `fstab(5)`.
pub fn mounts(subject: &Subject, after: u64, out: &mut Out) -> Result<Option<u64>> {
    push_mounts(subject, after, out, push_mount)
}

fn push_mount(out: &mut Out, mount: &MountLine) {
    for word in [&mount.source, &mount.point, &mount.kind] {
        out.push_escaped(word, SPECIAL);
        out.push(b" ");
    }
    out.push(&mount.limits.names());
    out.push(&mount.options);
    out.push(b" 0 0\n");
}

/// `/proc/PID/mountinfo`; see `proc_pid_mountinfo(5)`.
pub fn mountinfo(subject: &Subject, after: u64, out: &mut Out) -> Result<Option<u64>> {
    push_mounts(subject, after, out, push_info)
}

fn push_info(out: &mut Out, mount: &MountLine) {
    write!(out, "{} {} {}:{} ", mount.id, mount.parent, major(mount.dev), minor(mount.dev));
    for word in [&mount.root, &mount.point] {
        out.push_escaped(word, SPECIAL);
        out.push(b" ");
    }
    out.push(&(mount.limits - Limits::OF_FILE_SYSTEM).names());
    out.push(b" - ");
    for word in [&mount.kind, &mount.source] {
        out.push_escaped(word, SPECIAL);
        out.push(b" ");
    }
    out.push(&(mount.limits & (Limits::OF_FILE_SYSTEM | Limits::READ_ONLY) | Limits::STRICT_ATIME).names());
    out.push(&mount.options);
    out.push(b"\n");
}

/// `/proc/PID/mountstats`: the mounts in words.
pub fn mountstats(subject: &Subject, after: u64, out: &mut Out) -> Result<Option<u64>> {
    push_mounts(subject, after, out, |out, mount| {
        out.push(b"device ");
        out.push_escaped(&mount.source, SPECIAL);
        out.push(b" mounted on ");
        out.push_escaped(&mount.point, SPECIAL);
        out.push(b" with fstype ");
        out.push_escaped(&mount.kind, SPECIAL);
        out.push(b"\n");
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_written_as_linux_does() {
        let mount = MountLine {
            id: 22,
            parent: 27,
            dev: 0x15,
            root: b"/".to_vec(),
            point: b"/a b".to_vec(),
            limits: Limits::READ_ONLY | Limits::NO_EXEC | Limits::SYNC,
            options: b",size=4k".to_vec(),
            kind: b"proc".to_vec(),
            source: b"proc".to_vec(),
        };
        let mut out = Out::default();
        push_info(&mut out, &mount);
        push_mount(&mut out, &mount);
        let expected = "22 27 0:21 / /a\\040b ro,noexec,relatime - proc proc ro,sync,size=4k\n\
                        proc /a\\040b proc ro,sync,noexec,relatime,size=4k 0 0\n";
        assert_eq!(core::str::from_utf8(&out.bytes), Ok(expected));
    }

    #[test]
    fn device_numbers_come_apart() {
        assert_eq!((major(0x501), minor(0x501)), (5, 1));
        assert_eq!((major(0xfe00), minor(0xfe00)), (254, 0));
        assert_eq!(minor(0x12_3000_0045), 0x0123_0045);
    }
}
