//! `/proc/PID/{mounts,mountinfo,mountstats}`. The VFS says what is mounted.

use alloc::vec::Vec;

use super::subject::Subject;
use crate::errno::Result;
use crate::fs::pseudo::Out;
use crate::sync::Once;

/// One mount as the tables show it.
#[derive(Clone, Debug, Default)]
pub struct MountLine {
    pub id: u64,
    pub parent: u64,
    /// `st_dev` of the file system.
    pub dev: u64,
    /// The part of the file system that is mounted; `/` for all of it.
    pub root: Vec<u8>,
    /// Where, as an absolute path.
    pub point: Vec<u8>,
    pub read_only: bool,
    /// Further options of the mount, each with a comma before it (`,nosuid,nodev`).
    pub options: &'static str,
    /// Type of file system, and what is mounted.
    pub kind: Vec<u8>,
    pub source: Vec<u8>,
}

static SOURCE: Once<fn() -> Vec<MountLine>> = Once::new();

/// Names the function that lists the mounts. Called once, by the VFS.
pub fn set_source(list: fn() -> Vec<MountLine>) {
    SOURCE.call_once(|| list);
}

fn list() -> Vec<MountLine> {
    SOURCE.get().map(|list| list()).unwrap_or_default()
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
pub fn mounts(_: &Subject, out: &mut Out) -> Result<()> {
    list().iter().for_each(|mount| push_mount(out, mount));
    Ok(())
}

fn push_mount(out: &mut Out, mount: &MountLine) {
    for word in [&mount.source, &mount.point, &mount.kind] {
        out.push_escaped(word, SPECIAL);
        out.push(b" ");
    }
    writeln!(out, "{}{},relatime 0 0", access(mount), mount.options);
}

/// `/proc/PID/mountinfo`; see `proc_pid_mountinfo(5)`.
pub fn mountinfo(_: &Subject, out: &mut Out) -> Result<()> {
    list().iter().for_each(|mount| push_info(out, mount));
    Ok(())
}

fn push_info(out: &mut Out, mount: &MountLine) {
    write!(out, "{} {} {}:{} ", mount.id, mount.parent, major(mount.dev), minor(mount.dev));
    for word in [&mount.root, &mount.point] {
        out.push_escaped(word, SPECIAL);
        out.push(b" ");
    }
    write!(out, "{}{},relatime - ", access(mount), mount.options);
    for word in [&mount.kind, &mount.source] {
        out.push_escaped(word, SPECIAL);
        out.push(b" ");
    }
    writeln!(out, "{}", access(mount));
}

/// `/proc/PID/mountstats`: the mounts in words.
pub fn mountstats(_: &Subject, out: &mut Out) -> Result<()> {
    for mount in list() {
        out.push(b"device ");
        out.push_escaped(&mount.source, SPECIAL);
        out.push(b" mounted on ");
        out.push_escaped(&mount.point, SPECIAL);
        out.push(b" with fstype ");
        out.push_escaped(&mount.kind, SPECIAL);
        out.push(b"\n");
    }
    Ok(())
}

fn access(mount: &MountLine) -> &'static str {
    if mount.read_only { "ro" } else { "rw" }
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
            read_only: true,
            options: ",nosuid",
            kind: b"proc".to_vec(),
            source: b"proc".to_vec(),
        };
        let mut out = Out::default();
        push_info(&mut out, &mount);
        push_mount(&mut out, &mount);
        let expected = "22 27 0:21 / /a\\040b ro,nosuid,relatime - proc proc ro\n\
                        proc /a\\040b proc ro,nosuid,relatime 0 0\n";
        assert_eq!(core::str::from_utf8(&out.bytes), Ok(expected));
    }

    #[test]
    fn device_numbers_come_apart() {
        assert_eq!((major(0x501), minor(0x501)), (5, 1));
        assert_eq!((major(0xfe00), minor(0xfe00)), (254, 0));
        assert_eq!(minor(0x12_3000_0045), 0x0123_0045);
    }
}
