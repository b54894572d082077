//! Who may do what with a System V object (`sysvipc(7)`).

use crate::creds::{CAP_IPC_OWNER, CAP_SYS_ADMIN, Creds};
use machine::errno::{Errno, Result};

pub const IPC_CREAT: u32 = 0o1000;
pub const IPC_EXCL: u32 = 0o2000;
pub const IPC_NOWAIT: u32 = 0o4000;

/// Reading, for owner, group and others.
pub const READ: u32 = 0o444;
/// Writing.
pub const WRITE: u32 = 0o222;
/// Executing what is in it.
pub const EXECUTE: u32 = 0o111;

/// Owner, creator and permission bits of an object.
#[derive(Clone, Copy, Debug)]
pub struct Perm {
    pub key: i32,
    pub uid: u32,
    pub gid: u32,
    pub cuid: u32,
    pub cgid: u32,
    /// The nine permission bits.
    pub mode: u32,
}

impl Perm {
    /// Of an object that a task with these credentials makes.
    pub fn new(key: i32, flags: u32, creds: &Creds) -> Self {
        let (uid, gid) = (creds.euid, creds.egid);
        Self { key, uid, gid, cuid: uid, cgid: gid, mode: flags & 0o777 }
    }

    /// Whether a task with these credentials has the access that any of the three digits of `wanted` asks for. `EACCES`.
    pub fn check(&self, creds: &Creds, wanted: u32) -> Result<()> {
        let wanted = (wanted >> 6 | wanted >> 3 | wanted) & 0o7;
        let shift = if creds.euid == self.uid || creds.euid == self.cuid {
            6
        } else if creds.in_group(self.gid) || creds.in_group(self.cgid) {
            3
        } else {
            0
        };
        let is_granted = wanted & !(self.mode >> shift) == 0 || creds.has(CAP_IPC_OWNER);
        if is_granted { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Whether a task with these credentials may change or remove the object. `EPERM`.
    pub fn check_owner(&self, creds: &Creds) -> Result<()> {
        let is_owner = creds.euid == self.uid || creds.euid == self.cuid;
        if is_owner || creds.has(CAP_SYS_ADMIN) { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// `IPC_SET`. `EINVAL`: no user or group has such an id.
    pub fn change(&mut self, uid: u32, gid: u32, mode: u32) -> Result<()> {
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Errno::EINVAL);
        }
        (self.uid, self.gid, self.mode) = (uid, gid, mode & 0o777);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(id: u32, groups: &[u32]) -> Creds {
        Creds::new(id, id, groups.to_vec())
    }

    #[test]
    fn owner_group_and_others_have_their_own_bits() {
        let perm = Perm { gid: 30, ..Perm::new(1, 0o640, &user(10, &[])) };
        assert_eq!(perm.check(&user(10, &[]), READ | WRITE), Ok(()));
        assert_eq!(perm.check(&user(20, &[30]), READ), Ok(()));
        assert_eq!(perm.check(&user(20, &[30]), WRITE), Err(Errno::EACCES));
        assert_eq!(perm.check(&user(20, &[]), READ), Err(Errno::EACCES));
        assert_eq!(perm.check(&user(0, &[]), READ | WRITE | EXECUTE), Ok(()));
        // The owner's bits count for the owner, though the group's would give more.
        let odd = Perm { mode: 0o070, ..perm };
        assert_eq!(odd.check(&user(10, &[10]), READ), Err(Errno::EACCES));
        assert_eq!(perm.check(&user(20, &[]), 0), Ok(()));
    }

    #[test]
    fn only_owners_change_it() {
        let mut perm = Perm::new(1, 0o7600, &user(10, &[]));
        assert_eq!(perm.mode, 0o600);
        assert_eq!(perm.change(20, 20, 0o1666), Ok(()));
        assert_eq!((perm.uid, perm.cuid, perm.mode), (20, 10, 0o666));
        for creds in [user(10, &[]), user(20, &[]), user(0, &[])] {
            assert_eq!(perm.check_owner(&creds), Ok(()));
        }
        assert_eq!(perm.check_owner(&user(30, &[20])), Err(Errno::EPERM));
        assert_eq!(perm.change(u32::MAX, 0, 0), Err(Errno::EINVAL));
    }
}
