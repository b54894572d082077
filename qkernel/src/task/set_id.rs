//! The credentials of a task after `execve(2)`: set-user-id and set-group-id programs, the capabilities of files, and what a
//! program gives root (`execve(2)`, `capabilities(7)`).

pub mod file_caps;

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::creds::{CAP_SETUID, Creds, SECURE_NOROOT};
use crate::fs::access;
use crate::fs::file::File;
use crate::fs::inode::{S_ISGID, S_ISUID};
use crate::fs::mount::Limits;
use crate::task::core::Task;
use crate::task::set_id::file_caps::FileCaps;
use machine::errno::{Errno, Result};

/// Credentials behind an `execve(2)`.
pub struct AfterExec {
    pub creds: Creds,
    /// `AT_SECURE`: the program must not trust what its caller chose.
    pub secure: bool,
    /// Ids or capabilities were given that only a task may have whose root and working directory are its own.
    pub is_elevated: bool,
}

/// Credentials after `program`, run by `task`.
pub fn after_exec(task: &Arc<Task>, program: &File) -> Result<AfterExec> {
    let old = task.creds.get();
    let stat = program.ops.stat(program)?;
    let ignored = program.path.as_ref().is_some_and(|path| access::forbids(path, Limits::NO_SUID));
    let mut given = Given::default();
    let is_confined = task.confinement.no_new_privs();
    if !ignored && !is_confined {
        given.uid = (stat.mode & S_ISUID != 0).then_some(stat.uid);
        given.gid = (stat.mode & (S_ISGID | 0o010) == S_ISGID | 0o010).then_some(stat.gid);
    }
    if !ignored {
        given.caps = FileCaps::of(program)?;
    }
    decide(&old, given, is_confined, || shares_place(task))
}

/// The owners that the set-id bits of a program name, and its capabilities.
#[derive(Clone, Copy, Default)]
struct Given {
    uid: Option<u32>,
    gid: Option<u32>,
    caps: Option<FileCaps>,
}

/// `is_confined`: by `PR_SET_NO_NEW_PRIVS`. `is_shared`: whether another process can change the task's root and working directory. Such a task gains nothing,
/// since the other would choose what the program finds under each name. `EPERM`: the program relies on capabilities of its file that
/// the task cannot get.
fn decide(
    old: &Creds,
    given: Given,
    is_confined: bool,
    is_shared: impl FnOnce() -> bool,
) -> Result<AfterExec> {
    let mut creds = old.clone();
    creds.euid = given.uid.unwrap_or(old.euid);
    creds.egid = given.gid.unwrap_or(old.egid);
    creds.permitted = 0;
    let mut all_effective = false;
    if let Some(caps) = given.caps {
        creds.permitted = caps.permitted & old.bounding | caps.inheritable & old.inheritable;
        all_effective = caps.is_effective;
        if all_effective && caps.permitted & !creds.permitted != 0 {
            return Err(Errno::EPERM);
        }
    }
    // A set-user-id-root program that has capabilities gives others these alone.
    let has_own_alone = given.caps.is_some() && creds.uid != 0 && creds.euid == 0;
    if creds.securebits & SECURE_NOROOT == 0 && (creds.uid == 0 || creds.euid == 0) && !has_own_alone {
        creds.permitted = creds.bounding | creds.inheritable;
        all_effective |= creds.euid == 0;
    }
    let changes_ids = creds.euid != old.euid || !old.in_group(creds.egid);
    let gains = changes_ids || creds.permitted & !old.permitted != 0;
    let is_refused = gains && (is_confined || is_shared());
    if is_refused {
        if is_confined || !old.has(CAP_SETUID) {
            (creds.euid, creds.egid) = (old.euid, old.egid);
        }
        creds.permitted &= old.permitted;
    }
    (creds.suid, creds.fsuid) = (creds.euid, creds.euid);
    (creds.sgid, creds.fsgid) = (creds.egid, creds.egid);
    if changes_ids || given.caps.is_some() {
        creds.ambient = 0;
    }
    creds.permitted |= creds.ambient;
    creds.effective = if all_effective { creds.permitted } else { creds.ambient };
    creds.keep_caps = false;
    let secure = changes_ids
        || creds.euid != creds.uid
        || creds.egid != creds.gid
        || (creds.uid != 0 && (all_effective || creds.permitted & !creds.ambient != 0));
    Ok(AfterExec { creds, secure, is_elevated: gains && !is_refused })
}

/// Whether a task of another process shares the task's root and working directory (`CLONE_FS`).
pub fn shares_place(task: &Arc<Task>) -> bool {
    let place = task.fs.get();
    let tasks: Vec<Arc<Task>> = task.process.container.tasks();
    let is_other = |other: &&Arc<Task>| !Arc::ptr_eq(&other.process, &task.process);
    tasks.iter().filter(is_other).any(|other| Arc::ptr_eq(&other.fs.get(), &place))
}

/// Whether a process whose credentials change so can still be looked into by others like it.
pub fn stays_dumpable(old: &Creds, new: &Creds) -> bool {
    let ids = |creds: &Creds| (creds.euid, creds.egid, creds.fsuid, creds.fsgid);
    ids(old) == ids(new) && new.permitted & !old.permitted == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::creds::{CAP_ALL, CAP_CHOWN};

    const ROOTS: Given = Given { uid: Some(0), gid: None, caps: None };

    fn decide(old: &Creds, given: Given, is_confined: bool, is_shared: impl FnOnce() -> bool) -> AfterExec {
        super::decide(old, given, is_confined, is_shared).unwrap()
    }

    fn with_caps(permitted: u64, inheritable: u64, is_effective: bool) -> Given {
        Given { caps: Some(FileCaps { permitted, inheritable, is_effective }), ..Given::default() }
    }

    fn user(id: u32) -> Creds {
        Creds::new(id, id, Vec::new())
    }

    fn never() -> bool {
        panic!("asked without need")
    }

    #[test]
    fn set_id_programs_give_their_ids_for_good() {
        let after = decide(&user(1000), ROOTS, false, || false);
        let creds = after.creds;
        assert_eq!((creds.uid, creds.euid, creds.suid, creds.fsuid), (1000, 0, 0, 0));
        assert_eq!((creds.permitted, creds.effective), (CAP_ALL, CAP_ALL));
        assert!(after.secure && after.is_elevated);
        let after = decide(&user(1000), Given { gid: Some(5), ..Given::default() }, false, || false);
        assert_eq!((after.creds.gid, after.creds.egid, after.creds.sgid, after.creds.fsgid), (1000, 5, 5, 5));
        assert!(after.secure && after.is_elevated);
    }

    #[test]
    fn who_shares_its_place_or_may_gain_nothing_does_not() {
        let after = decide(&user(1000), ROOTS, false, || true);
        assert_eq!(
            (after.creds.euid, after.creds.suid, after.creds.permitted, after.creds.effective),
            (1000, 1000, 0, 0)
        );
        assert!(!after.is_elevated);
        let mut few = user(0);
        few.permitted = 1 << CAP_CHOWN;
        few.effective = few.permitted;
        assert_eq!(decide(&few, Given::default(), false, || true).creds.permitted, 1 << CAP_CHOWN);
        assert_eq!(decide(&few, Given::default(), false, || false).creds.permitted, CAP_ALL);
        assert_eq!(decide(&few, Given::default(), true, never).creds.effective, 1 << CAP_CHOWN);
    }

    #[test]
    fn plain_programs_ask_nothing_and_change_nothing() {
        for id in [0, 1000] {
            let old = user(id);
            let after = decide(&old, Given::default(), false, never);
            assert_eq!((after.creds.euid, after.creds.permitted), (id, old.permitted));
            assert!(!after.secure && !after.is_elevated && stays_dumpable(&old, &after.creds));
        }
    }

    #[test]
    fn ambient_capabilities_end_with_a_change_of_ids() {
        let mut old = user(1000);
        (old.permitted, old.inheritable, old.ambient) = (1, 1, 1);
        assert_eq!(decide(&old, Given::default(), false, never).creds.effective, 1);
        let after = decide(&old, Given { uid: Some(1001), ..Given::default() }, false, || false);
        assert_eq!((after.creds.permitted, after.creds.effective, after.creds.ambient), (0, 0, 0));
    }

    #[test]
    fn files_give_their_capabilities_within_the_bounds() {
        let after = decide(&user(1000), with_caps(6, 0, true), false, || false);
        assert_eq!((after.creds.permitted, after.creds.effective), (6, 6));
        assert!(after.secure && after.is_elevated && !stays_dumpable(&user(1000), &after.creds));
        let after = decide(&user(1000), with_caps(6, 0, false), false, || false);
        assert_eq!((after.creds.permitted, after.creds.effective), (6, 0));
        // Not to who may gain nothing.
        for (is_confined, is_shared) in [(true, false), (false, true)] {
            let after = decide(&user(1000), with_caps(6, 0, true), is_confined, || is_shared);
            assert_eq!((after.creds.permitted, after.is_elevated), (0, false));
        }
        let mut bound = user(1000);
        bound.bounding = 2;
        assert_eq!(decide(&bound, with_caps(6, 0, false), false, || false).creds.permitted, 2);
        let refused = super::decide(&bound, with_caps(6, 0, true), false, never);
        assert_eq!(refused.err(), Some(Errno::EPERM));
        // What is inherited on both sides, and no ambient ones.
        (bound.permitted, bound.inheritable, bound.ambient) = (12, 12, 4);
        let after = decide(&bound, with_caps(0, 8, true), false, never);
        assert_eq!((after.creds.permitted, after.creds.ambient), (8, 0));
    }

    #[test]
    fn a_set_user_id_program_with_capabilities_gives_these_alone() {
        let given = Given { uid: Some(0), ..with_caps(2, 0, true) };
        let after = decide(&user(1000), given, false, || false);
        assert_eq!((after.creds.euid, after.creds.permitted, after.creds.effective), (0, 2, 2));
        assert_eq!(decide(&user(0), given, false, never).creds.permitted, CAP_ALL);
    }

    #[test]
    fn securebits_keep_root_an_ordinary_user() {
        let mut old = user(0);
        old.securebits = SECURE_NOROOT;
        let after = decide(&old, Given::default(), false, never);
        assert_eq!((after.creds.permitted, after.creds.effective), (0, 0));
    }
}
