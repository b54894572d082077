//! Attributes of host nodes: asked once where the sandbox alone changes them, and kept right as it does.

use abi::hostcall as hc;
use abi::hostcall::{HostStat, SetAttr};
use alloc::vec;
use alloc::vec::Vec;

use crate::fs::access::{SET_ID, mode_after_write};
use crate::fs::caller;
use crate::fs::hostfs::HostInode;
use crate::fs::inode::Stat;
use crate::fs::inode::{AttrChange, S_IFLNK, S_IFREG, SetTime, is_access_due};
use machine::errno::{Errno, Result};
use machine::host;
use machine::host::Handle;
use machine::time;

/// How long an attribute that a walk has just seen counts as current where the host may change files, in nanoseconds.
const RECENT_NS: u64 = 1_000_000;

/// The cached attributes of a node.
pub struct Attr {
    stat: HostStat,
    /// All of `stat` is as on the host.
    whole: bool,
    /// `stat.size` is.
    size: bool,
    /// Mode and owner are.
    protection: bool,
    /// Moves with every change: an answer asked for before it is stale.
    version: u64,
    asked_ns: u64,
    /// A shared writable mapping may have changed size and times behind our back since the last answer.
    mapped: bool,
    /// The host may have moved the time of access since, for what it was asked to read.
    read: bool,
    /// It did not the last time (`noatime`, or a lower directory), and is not asked again for that before a change.
    is_still: bool,
}

impl Attr {
    /// Fresh from the host.
    pub fn new(stat: &HostStat) -> Self {
        let asked_ns = time::monotonic_ns();
        Self {
            stat: *stat,
            whole: true,
            size: true,
            protection: true,
            version: 0,
            asked_ns,
            mapped: false,
            read: false,
            is_still: false,
        }
    }

    /// Takes the host's answer, unless something changed since `version`.
    pub fn store(&mut self, stat: &HostStat, version: Option<u64>) {
        if version.is_none_or(|version| version == self.version) {
            self.stat = *stat;
            (self.whole, self.size, self.protection) = (true, true, true);
            self.asked_ns = time::monotonic_ns();
        }
    }

    /// The host's last answer.
    pub fn noted(&self) -> HostStat {
        self.stat
    }

    fn invalidate(&mut self) {
        (self.whole, self.size, self.is_still) = (false, false, false);
        self.version += 1;
    }
}

/// The host's answer in the VFS's words.
pub fn to_stat(host: &HostStat) -> Stat {
    Stat {
        dev: host.dev,
        ino: host.ino,
        mode: host.mode,
        nlink: host.nlink,
        uid: host.uid,
        gid: host.gid,
        rdev: host.rdev,
        size: host.size,
        blksize: host.blksize,
        blocks: host.blocks,
        atime_ns: host.atime_ns,
        mtime_ns: host.mtime_ns,
        ctime_ns: host.ctime_ns,
        btime_ns: host.btime_ns,
    }
}

impl HostInode {
    /// The node's attributes in the VFS's words.
    pub(super) fn shown(&self, host: &HostStat) -> Stat {
        Stat { ino: self.identity.known(host.ino), ..to_stat(host) }
    }

    /// The attributes; `open` is a handle of the node, if the caller has one.
    pub fn host_stat(&self, open: Option<&Handle>) -> Result<HostStat> {
        let mapped = self.is_mapped_writable();
        let (version, read_since) = {
            let mut attr = self.attr.lock();
            let stale = attr.mapped || mapped;
            attr.mapped = mapped;
            let current = if self.fs.shared {
                time::monotonic_ns().wrapping_sub(attr.asked_ns) < RECENT_NS
            } else {
                !stale
            };
            let read_since = core::mem::take(&mut attr.read).then_some(attr.stat.atime_ns);
            if attr.whole && current && read_since.is_none() {
                return Ok(attr.stat);
            }
            (attr.version, read_since)
        };
        let stat = match open {
            Some(open) => host::stat_handle(open)?,
            None => self.reach(host::stat)?,
        };
        // By a handle it is this file, whatever number a copy-on-write view of the host's gives it once it was written to.
        if open.is_none() && self.fs.shared && (stat.dev, stat.ino) != self.id() {
            return Err(Errno::ESTALE);
        }
        let mut attr = self.attr.lock();
        attr.store(&stat, Some(version));
        attr.is_still |= read_since == Some(stat.atime_ns);
        drop(attr);
        Ok(stat)
    }

    /// The size in bytes. The caller holds `io`.
    pub fn size(&self, open: &Handle) -> Result<u64> {
        if self.fs.shared {
            // Another view may have changed it since this one saw it.
            return host::stat_handle(open).map(|stat| stat.size);
        }
        {
            let attr = self.attr.lock();
            if attr.size {
                return Ok(attr.stat.size);
            }
        }
        self.host_stat(Some(open)).map(|stat| stat.size)
    }

    /// Mode and group of a file with set-id bits, before its content is changed through the handle.
    pub fn set_id(&self, open: &Handle) -> Option<(u32, u32)> {
        let known = {
            let attr = self.attr.lock();
            attr.protection.then_some(attr.stat)
        };
        let stat = known.or_else(|| self.host_stat(Some(open)).ok())?;
        (stat.mode & SET_ID != 0).then_some((stat.mode & 0o7777, stat.gid))
    }

    /// The current task has changed the content of a file for which [`Self::set_id`] returned `before`. The mode is set
    /// even where it stays the same: the host clears set-id bits by the VMM's privileges, not by the task's.
    pub fn content_changed(&self, before: Option<(u32, u32)>, open: &Handle) {
        if let Some((mode, gid)) = before {
            let mode = mode_after_write(&caller::current().creds(), mode, gid);
            let _ = self.change(&AttrChange { mode: Some(mode), ..AttrChange::default() }, Some(open));
        }
    }

    /// Attributes with current mode and owner, if they are known.
    pub fn known_protection(&self) -> Option<HostStat> {
        let attr = self.attr.lock();
        (attr.protection && !self.fs.shared).then_some(attr.stat)
    }

    /// The host has read it for a program, and moved the time of access if that was due: the next answer is the host's.
    pub fn was_read(&self) {
        if self.kind == S_IFLNK {
            // It is read once.
            return;
        }
        let mut attr = self.attr.lock();
        if attr.whole && !attr.is_still && !attr.read {
            let now = time::realtime_ns().cast_signed();
            let HostStat { atime_ns, mtime_ns, ctime_ns, .. } = attr.stat;
            attr.read = is_access_due(atime_ns, mtime_ns, ctime_ns, now);
        }
    }

    /// Forgets the attributes that names and content change.
    pub fn invalidate(&self) {
        self.attr.lock().invalidate();
    }

    /// Bytes were written at `offset`.
    pub fn wrote(&self, offset: u64, bytes: u64) {
        let mut attr = self.attr.lock();
        let (size, known) = (attr.stat.size.max(offset + bytes), attr.size);
        attr.invalidate();
        attr.stat.size = size;
        attr.size = known;
    }

    /// Changes attributes; `open` is a handle of the node, if the caller has one.
    pub fn change(&self, change: &AttrChange, open: Option<&Handle>) -> Result<()> {
        let set = to_set_attr(change);
        if set.valid == 0 {
            return Ok(());
        }
        if self.kind == S_IFLNK && set.valid == hc::SET_MODE {
            return Err(Errno::EOPNOTSUPP);
        }
        self.leave_lower_above();
        let result = match open {
            Some(open) => host::set_attr(open, b"", &set),
            None => self.reach(|at, name| host::set_attr(at, name, &set)),
        };
        let mut attr = self.attr.lock();
        attr.invalidate();
        attr.protection = false;
        drop(attr);
        if let (Some(size), Ok(())) = (change.size, &result) {
            self.maps_truncated(size);
        }
        result
    }

    /// Names by which programs ask every file whether it has access lists or labels: it has none.
    fn absent_xattr(name: &[u8]) -> Option<Errno> {
        if name.starts_with(b"system.") {
            return Some(Errno::EOPNOTSUPP);
        }
        (name == b"security.selinux" || name == b"security.SMACK64").then_some(Errno::ENODATA)
    }

    pub(super) fn read_xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        if let Some(error) = Self::absent_xattr(name) {
            return Err(error);
        }
        if self.kind == S_IFLNK || name.starts_with(KEPT_XATTRS) {
            return Err(Errno::ENODATA);
        }
        let read = |name: &[u8]| {
            self.with_own_handle(|handle| read_sized(|buffer| host::getxattr(handle, name, buffer)))
        };
        match kept_xattr(name) {
            // What came with the file itself is shown where the guest has set nothing.
            Some(kept) => match read(&kept) {
                Err(Errno::ENODATA | Errno::EOPNOTSUPP) => read(name),
                result => result,
            },
            None => read(name),
        }
    }

    pub(super) fn xattr_names(&self) -> Result<Vec<u8>> {
        if self.kind == S_IFLNK {
            return Ok(Vec::new());
        }
        let names = self.with_own_handle(|handle| read_sized(|buffer| host::listxattr(handle, buffer)))?;
        let shown = |name: &&[u8]| {
            !name.is_empty() && Self::absent_xattr(name).is_none() && !name.starts_with(b"trusted.overlay.")
        };
        let mut list = Vec::with_capacity(names.len());
        for name in names.split(|byte| *byte == 0).filter(shown) {
            let shown = name.strip_prefix(KEPT_XATTRS).unwrap_or(name);
            let both = shown.len() == name.len()
                && kept_xattr(name)
                    .is_some_and(|kept| names.split(|byte| *byte == 0).any(|other| other == kept));
            if !both {
                list.extend_from_slice(shown);
                list.push(0);
            }
        }
        Ok(list)
    }

    pub(super) fn write_xattr(&self, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        self.check_xattr_kind(name)?;
        self.leave_lower_above();
        let name = kept_xattr(name).unwrap_or_else(|| name.to_vec());
        let result = self.with_own_handle(|handle| host::setxattr(handle, &name, value, flags));
        self.invalidate();
        result
    }

    pub(super) fn delete_xattr(&self, name: &[u8]) -> Result<()> {
        self.check_xattr_kind(name)?;
        self.leave_lower_above();
        let name = kept_xattr(name).unwrap_or_else(|| name.to_vec());
        let result = self.with_own_handle(|handle| host::removexattr(handle, &name));
        self.invalidate();
        result
    }

    fn check_xattr_kind(&self, name: &[u8]) -> Result<()> {
        if name.starts_with(b"system.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let user = (name.starts_with(b"user.") || kept_xattr(name).is_some())
            && !matches!(self.kind, S_IFREG | crate::fs::inode::S_IFDIR);
        if user || self.kind == S_IFLNK || name.starts_with(KEPT_XATTRS) { Err(Errno::EPERM) } else { Ok(()) }
    }
}

/// The host keeps the guest's `trusted.*` and `security.*` attributes, which steer the host itself by their own names,
/// behind this prefix. The guest reaches none by it.
const KEPT_XATTRS: &[u8] = b"user.dormouse.";

/// The name by which the host keeps an attribute whose own name would mean something to it.
fn kept_xattr(name: &[u8]) -> Option<Vec<u8>> {
    let security = name.starts_with(b"security.") && name != b"security.capability";
    (security || name.starts_with(b"trusted.")).then(|| [KEPT_XATTRS, name].concat())
}

/// Reads a value whose size must be asked for first when it is large.
pub(super) fn read_sized(mut call: impl FnMut(&mut [u8]) -> Result<usize>) -> Result<Vec<u8>> {
    let mut buffer = vec![0u8; 256];
    loop {
        match call(&mut buffer) {
            Ok(len) => {
                buffer.truncate(len);
                return Ok(buffer);
            }
            Err(Errno::ERANGE) if buffer.len() < 65_536 => buffer.resize(65_536, 0),
            Err(error) => return Err(error),
        }
    }
}

fn to_set_attr(change: &AttrChange) -> SetAttr {
    let mut set = SetAttr::default();
    if let Some(mode) = change.mode {
        set.valid |= hc::SET_MODE;
        set.mode = mode & 0o7777;
    }
    if let Some(uid) = change.uid {
        set.valid |= hc::SET_UID;
        set.uid = uid;
    }
    if let Some(gid) = change.gid {
        set.valid |= hc::SET_GID;
        set.gid = gid;
    }
    if let Some(size) = change.size {
        set.valid |= hc::SET_SIZE;
        set.size = size;
    }
    match change.atime {
        Some(SetTime::Now) => set.valid |= hc::SET_ATIME_NOW,
        Some(SetTime::At(ns)) => {
            set.valid |= hc::SET_ATIME;
            set.atime_ns = ns;
        }
        None => {}
    }
    match change.mtime {
        Some(SetTime::Now) => set.valid |= hc::SET_MTIME_NOW,
        Some(SetTime::At(ns)) => {
            set.valid |= hc::SET_MTIME;
            set.mtime_ns = ns;
        }
        None => {}
    }
    set
}
