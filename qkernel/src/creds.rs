//! Credentials.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use machine::errno::{Errno, Result};

/// All capabilities there are (`CAP_CHECKPOINT_RESTORE` is 40).
pub const CAP_ALL: u64 = (1 << 41) - 1;

pub const CAP_CHOWN: u32 = 0;
pub const CAP_DAC_OVERRIDE: u32 = 1;
pub const CAP_DAC_READ_SEARCH: u32 = 2;
pub const CAP_FOWNER: u32 = 3;
pub const CAP_FSETID: u32 = 4;
pub const CAP_KILL: u32 = 5;
pub const CAP_SETGID: u32 = 6;
pub const CAP_SETUID: u32 = 7;
pub const CAP_SETPCAP: u32 = 8;
pub const CAP_NET_BIND_SERVICE: u32 = 10;
pub const CAP_NET_ADMIN: u32 = 12;
pub const CAP_NET_RAW: u32 = 13;
pub const CAP_IPC_LOCK: u32 = 14;
pub const CAP_IPC_OWNER: u32 = 15;
pub const CAP_SYS_MODULE: u32 = 16;
pub const CAP_SYS_RAWIO: u32 = 17;
pub const CAP_SYS_CHROOT: u32 = 18;
pub const CAP_SYS_PTRACE: u32 = 19;
pub const CAP_SYS_PACCT: u32 = 20;
pub const CAP_SYS_ADMIN: u32 = 21;
pub const CAP_SYS_BOOT: u32 = 22;
pub const CAP_SYS_NICE: u32 = 23;
pub const CAP_SYS_RESOURCE: u32 = 24;
pub const CAP_SYS_TIME: u32 = 25;
pub const CAP_SYS_TTY_CONFIG: u32 = 26;
pub const CAP_MKNOD: u32 = 27;
pub const CAP_LEASE: u32 = 28;
pub const CAP_AUDIT_CONTROL: u32 = 30;
pub const CAP_PERFMON: u32 = 38;
pub const CAP_BPF: u32 = 39;
pub const CAP_CHECKPOINT_RESTORE: u32 = 40;

/// The largest capability.
pub const CAP_LAST: u32 = 40;
/// Capabilities that follow `fsuid`: CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, LINUX_IMMUTABLE, MKNOD,
/// MAC_OVERRIDE.
const CAP_FS: u64 = 0b1_1111 | 1 << 9 | 1 << CAP_MKNOD | 1 << 32;

/// `securebits`: root gets no capabilities by `execve(2)`.
pub const SECURE_NOROOT: u32 = 1;
/// `securebits`: changes of user ids leave capabilities alone.
pub const SECURE_NO_SETUID_FIXUP: u32 = 1 << 2;
/// `securebits`: `PR_SET_KEEPCAPS`, and that it cannot change.
pub const SECURE_KEEP_CAPS: u32 = 1 << 4;
pub const SECURE_KEEP_CAPS_LOCKED: u32 = 1 << 5;
/// `securebits`: the ambient set cannot be raised.
pub const SECURE_NO_CAP_AMBIENT_RAISE: u32 = 1 << 6;

/// A user or group id as an argument: `None` leaves the id alone.
pub fn id_arg(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

/// The three ids of a user or of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ids {
    pub real: u32,
    pub effective: u32,
    pub saved: u32,
}

impl Ids {
    fn any(&self, id: u32) -> bool {
        [self.real, self.effective, self.saved].contains(&id)
    }

    /// `setuid(2)`, `setgid(2)`: `privileged` sets all three.
    pub fn set(self, id: u32, privileged: bool) -> Result<Self> {
        match id_arg(id) {
            None => Err(Errno::EINVAL),
            Some(id) if privileged => Ok(Self { real: id, effective: id, saved: id }),
            Some(id) if id == self.real || id == self.saved => Ok(Self { effective: id, ..self }),
            Some(_) => Err(Errno::EPERM),
        }
    }

    /// `setreuid(2)`, `setregid(2)`.
    pub fn set_two(self, real: u32, effective: u32, privileged: bool) -> Result<Self> {
        let (real, effective) = (id_arg(real), id_arg(effective));
        let real_ok = real.is_none_or(|id| id == self.real || id == self.effective);
        let effective_ok = effective.is_none_or(|id| self.any(id));
        let allowed = privileged || (real_ok && effective_ok);
        if !allowed {
            return Err(Errno::EPERM);
        }
        let now = effective.unwrap_or(self.effective);
        let saves = real.is_some() || effective.is_some_and(|id| id != self.real);
        let saved = if saves { now } else { self.saved };
        Ok(Self { real: real.unwrap_or(self.real), effective: now, saved })
    }

    /// `setresuid(2)`, `setresgid(2)`.
    pub fn set_three(self, ids: [u32; 3], privileged: bool) -> Result<Self> {
        let [real, effective, saved] = ids.map(id_arg);
        let known = [real, effective, saved].iter().flatten().all(|id| self.any(*id));
        if !privileged && !known {
            return Err(Errno::EPERM);
        }
        Ok(Self {
            real: real.unwrap_or(self.real),
            effective: effective.unwrap_or(self.effective),
            saved: saved.unwrap_or(self.saved),
        })
    }
}

/// By which of its credentials a task looks into another (`ptrace(2)`, "Ptrace access mode checking").
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inspection {
    /// Those of file accesses and the capabilities in effect, as by files of `/proc`.
    Files,
    /// The real ids and the permitted capabilities, as by calls about another process.
    Process,
}

/// Who logged in, which stays whatever user a task becomes (`/proc/PID/loginuid`). Children inherit it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Login {
    pub uid: u32,
    pub session: u32,
}

impl Login {
    /// Nobody logged in.
    pub const UNSET: Self = Self { uid: u32::MAX, session: u32::MAX };

    /// A login of a user, in a session of its own; `u32::MAX`: of nobody.
    pub fn new(uid: u32) -> Self {
        static SESSIONS: AtomicU32 = AtomicU32::new(1);
        if uid == u32::MAX {
            return Self::UNSET;
        }
        // The number of no session is passed over.
        loop {
            let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
            if session != u32::MAX {
                return Self { uid, session };
            }
        }
    }
}

/// The credentials of a task (`credentials(7)`). Immutable; changes replace the whole.
#[derive(Clone, Debug)]
pub struct Creds {
    pub uid: u32,
    pub euid: u32,
    pub suid: u32,
    pub fsuid: u32,
    pub gid: u32,
    pub egid: u32,
    pub sgid: u32,
    pub fsgid: u32,
    pub groups: Arc<[u32]>,
    pub permitted: u64,
    pub effective: u64,
    pub inheritable: u64,
    pub bounding: u64,
    pub ambient: u64,
    pub securebits: u32,
    pub keep_caps: bool,
    pub login: Login,
}

/// Supplementary groups as Linux shows them: in ascending order.
pub fn sorted(mut groups: Vec<u32>) -> Arc<[u32]> {
    groups.sort_unstable();
    groups.into()
}

impl Creds {
    /// A user with these ids; root has all capabilities.
    pub fn new(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        let caps = if uid == 0 { CAP_ALL } else { 0 };
        Self {
            uid,
            euid: uid,
            suid: uid,
            fsuid: uid,
            gid,
            egid: gid,
            sgid: gid,
            fsgid: gid,
            groups: sorted(groups),
            permitted: caps,
            effective: caps,
            inheritable: 0,
            bounding: CAP_ALL,
            ambient: 0,
            securebits: 0,
            keep_caps: false,
            login: Login::UNSET,
        }
    }

    /// Whether the capability is in effect.
    pub fn has(&self, cap: u32) -> bool {
        self.effective & (1 << cap) != 0
    }

    /// Whether they cover a task with `other`; `dumpable`: its memory is not to be hidden (`PR_SET_DUMPABLE`).
    pub fn covers(&self, other: &Self, dumpable: bool, by: Inspection) -> bool {
        let (uid, gid, rights) = match by {
            Inspection::Files => (self.fsuid, self.fsgid, self.effective),
            Inspection::Process => (self.uid, self.gid, self.permitted),
        };
        let same_user = [other.uid, other.euid, other.suid].iter().all(|id| *id == uid);
        let same_group = [other.gid, other.egid, other.sgid].iter().all(|id| *id == gid);
        let no_more_rights = other.permitted & !rights == 0;
        (same_user && same_group && no_more_rights && dumpable) || self.has(CAP_SYS_PTRACE)
    }

    /// Real, effective and saved user id.
    pub fn uids(&self) -> Ids {
        Ids { real: self.uid, effective: self.euid, saved: self.suid }
    }

    /// Real, effective and saved group id.
    pub fn gids(&self) -> Ids {
        Ids { real: self.gid, effective: self.egid, saved: self.sgid }
    }

    /// Changes the user ids, and the capabilities that hang on being root (capabilities(7)).
    pub fn set_uids(&mut self, ids: Ids) {
        let old = self.uids();
        (self.uid, self.euid, self.suid, self.fsuid) = (ids.real, ids.effective, ids.saved, ids.effective);
        if self.securebits & SECURE_NO_SETUID_FIXUP != 0 {
            return;
        }
        if old.any(0) && !ids.any(0) {
            if !self.keep_caps {
                self.permitted = 0;
                self.effective = 0;
            }
            self.ambient = 0;
        }
        if old.effective == 0 && ids.effective != 0 {
            self.effective = 0;
        } else if old.effective != 0 && ids.effective == 0 {
            self.effective = self.permitted;
        }
    }

    /// Changes the group ids.
    pub fn set_gids(&mut self, ids: Ids) {
        (self.gid, self.egid, self.sgid, self.fsgid) = (ids.real, ids.effective, ids.saved, ids.effective);
    }

    /// Changes the user id of file accesses, and the capabilities for them.
    pub fn set_fsuid(&mut self, id: u32) {
        let old = core::mem::replace(&mut self.fsuid, id);
        if self.securebits & SECURE_NO_SETUID_FIXUP == 0 {
            if old == 0 && id != 0 {
                self.effective &= !CAP_FS;
            } else if old != 0 && id == 0 {
                self.effective |= self.permitted & CAP_FS;
            }
        }
    }

    /// Changes the capability sets as `capset(2)` permits.
    pub fn set_capabilities(&mut self, effective: u64, permitted: u64, inheritable: u64) -> Result<()> {
        let inherits = self.inheritable | self.permitted;
        if (!self.has(CAP_SETPCAP) && inheritable & !inherits != 0)
            || inheritable & !(self.inheritable | self.bounding) != 0
            || permitted & !self.permitted != 0
            || effective & !permitted != 0
        {
            return Err(Errno::EPERM);
        }
        self.effective = effective;
        self.permitted = permitted;
        self.inheritable = inheritable;
        self.ambient &= permitted & inheritable;
        Ok(())
    }

    /// Whether the file-system group id or a supplementary group is `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups.contains(&gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: u32) -> Creds {
        Creds::new(id, id, Vec::new())
    }

    #[test]
    fn root_loses_its_capabilities_for_good_unless_it_keeps_them() {
        let mut creds = user(0);
        creds.set_uids(creds.uids().set(1000, true).unwrap());
        assert_eq!((creds.uid, creds.suid, creds.fsuid, creds.permitted), (1000, 1000, 1000, 0));
        let mut creds = user(0);
        creds.keep_caps = true;
        creds.set_uids(creds.uids().set(1000, true).unwrap());
        assert_eq!((creds.permitted, creds.effective), (CAP_ALL, 0));
        // For a while only.
        let mut creds = user(0);
        creds.set_uids(creds.uids().set_three([u32::MAX, 1000, u32::MAX], true).unwrap());
        assert_eq!((creds.permitted, creds.effective), (CAP_ALL, 0));
        creds.set_uids(creds.uids().set_three([u32::MAX, 0, u32::MAX], false).unwrap());
        assert_eq!(creds.effective, CAP_ALL);
    }

    #[test]
    fn without_privilege_ids_only_move_among_themselves() {
        let ids = Ids { real: 1, effective: 2, saved: 3 };
        assert_eq!(ids.set(3, false), Ok(Ids { effective: 3, ..ids }));
        assert_eq!(ids.set(4, false), Err(Errno::EPERM));
        assert_eq!(ids.set(u32::MAX, true), Err(Errno::EINVAL));
        assert_eq!(ids.set_two(u32::MAX, 3, false), Ok(Ids { real: 1, effective: 3, saved: 3 }));
        assert_eq!(ids.set_two(3, u32::MAX, false), Err(Errno::EPERM));
        assert_eq!(ids.set_two(2, 1, false), Ok(Ids { real: 2, effective: 1, saved: 1 }));
        assert_eq!(ids.set_three([3, 1, 2], false), Ok(Ids { real: 3, effective: 1, saved: 2 }));
        assert_eq!(ids.set_three([9, u32::MAX, u32::MAX], false), Err(Errno::EPERM));
    }

    #[test]
    fn others_may_look_only_with_the_same_ids_and_no_fewer_rights() {
        let (root, own) = (user(0), user(1000));
        let mut stranger = own.clone();
        stranger.set_uids(Ids { real: 1001, effective: 1001, saved: 1001 });
        let covers = |mine: &Creds, other: &Creds, dumpable| mine.covers(other, dumpable, Inspection::Files);
        assert!(covers(&root, &own, false));
        assert!(covers(&own, &own, true));
        assert!(!covers(&own, &own, false));
        assert!(!covers(&stranger, &own, true));
        assert!(!covers(&own, &root, true));
        let mut setuid = own.clone();
        setuid.euid = 0;
        assert!(!covers(&own, &setuid, true));
        let mut capable = own.clone();
        capable.permitted = 1;
        assert!(!covers(&own, &capable, true));
    }

    #[test]
    fn calls_go_by_real_ids_and_permitted_rights() {
        let target = user(1000);
        let mut mine = user(1000);
        mine.set_fsuid(7);
        assert!(mine.covers(&target, true, Inspection::Process));
        assert!(!mine.covers(&target, true, Inspection::Files));
        let mut other = user(7);
        other.set_fsuid(1000);
        assert!(!other.covers(&target, true, Inspection::Process));
    }

    #[test]
    fn capabilities_never_grow() {
        let mut creds = user(0);
        assert_eq!(creds.set_capabilities(1, 3, 0), Ok(()));
        assert_eq!(creds.set_capabilities(4, 4, 0), Err(Errno::EPERM));
        assert_eq!(creds.set_capabilities(3, 1, 0), Err(Errno::EPERM));
        assert_eq!(creds.set_capabilities(2, 2, 0), Ok(()));
    }
}
