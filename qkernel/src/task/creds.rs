//! Credentials.

use alloc::sync::Arc;
use alloc::vec::Vec;

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
pub const CAP_SYS_CHROOT: u32 = 18;
pub const CAP_SYS_PTRACE: u32 = 19;
pub const CAP_SYS_ADMIN: u32 = 21;
pub const CAP_SYS_NICE: u32 = 23;
pub const CAP_SYS_RESOURCE: u32 = 24;
pub const CAP_SYS_TTY_CONFIG: u32 = 26;
pub const CAP_MKNOD: u32 = 27;

/// Who a task is. Immutable; changes replace the whole.
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
    pub no_new_privs: bool,
    pub keep_caps: bool,
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
            groups: groups.into(),
            permitted: caps,
            effective: caps,
            inheritable: 0,
            bounding: CAP_ALL,
            ambient: 0,
            securebits: 0,
            no_new_privs: false,
            keep_caps: false,
        }
    }

    /// Whether the capability is in effect.
    pub fn has(&self, cap: u32) -> bool {
        self.effective & (1 << cap) != 0
    }

    /// Whether the file-system group id or a supplementary group is `gid`.
    pub fn in_group(&self, gid: u32) -> bool {
        self.fsgid == gid || self.groups.contains(&gid)
    }
}
