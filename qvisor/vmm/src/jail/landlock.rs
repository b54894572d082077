//! Landlock's restrictions of the VMM, where the host has it: a second line behind owners, the empty root, and the lack
//! of paths. A domain is a thread's own and passes to threads and processes that it starts, so it is entered while
//! there is one thread.
//!
//! One domain, entered once nothing is mounted any more and before the stubs' zygote is made:
//! - *Files*: open descriptors stay usable as they were opened. A file that is opened anew, by name or by a link of
//!   `/proc/self/fd`, must lie below a directory that was given, and is opened with no more access than was given
//!   there.
//! - *Signals* and abstract Unix sockets stay inside. Not for a bundle: its leash is made long before, and has to be
//!   signalled. Two domains, one for each, would not do: the host's kernel forbids moving names between directories
//!   (`LANDLOCK_ACCESS_FS_REFER`) as soon as one of several domains does not allow it.
//!
//! Ports are not restricted. With `--net none` the network namespace has nobody else in it, and the guest may use its
//! loopback; with `--net host` the guest may connect anywhere.

use std::os::fd::AsFd;

use landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The version of Landlock that knows signals.
const SIGNALS_SINCE: i64 = 6;
/// The version that lets names move between directories. Before it, a restricted process cannot move them at all.
const FILES_SINCE: i64 = 2;

/// The access that the VMM needs to a directory or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads all below it.
    Read,
    /// Reads and changes all below it.
    Change,
    /// Reads the files below it, without listing it.
    ReadFiles,
    /// Lists the directories below it, without reading any file.
    List,
}

impl Use {
    fn access(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Self::Read => read,
            Self::ReadFiles => AccessFs::ReadFile.into(),
            Self::List => AccessFs::ReadDir.into(),
            // No program is run and no device is made or asked anything.
            Self::Change => {
                read | AccessFs::WriteFile
                    | AccessFs::Truncate
                    | AccessFs::RemoveDir
                    | AccessFs::RemoveFile
                    | AccessFs::MakeDir
                    | AccessFs::MakeReg
                    | AccessFs::MakeSock
                    | AccessFs::MakeFifo
                    | AccessFs::MakeSym
                    | AccessFs::Refer
            }
        }
    }
}

/// The version of the host's Landlock; 0 when it has none, or leaves it off.
#[must_use]
pub fn version() -> i64 {
    const ASK_VERSION: i64 = 1;
    // SAFETY: with this flag and no attributes the call only answers a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_i64, ASK_VERSION)
    };
    version.max(0)
}

/// Whether the host's Landlock can keep signals in the sandbox, and whether files.
#[must_use]
pub fn knows() -> (bool, bool) {
    let version = version();
    (version >= SIGNALS_SINCE, version >= FILES_SINCE)
}

/// Restricts the calling thread, and all that it starts later. It opens, makes and removes nothing but `given` files,
/// and with `signals` it reaches by signals and abstract Unix sockets only processes that it starts later. Returns
/// whether the host restricts files, and whether signals; kinds of access that its version does not know are left out.
/// Nothing can be mounted afterwards. Needs no new privileges.
pub fn restrict(given: impl IntoIterator<Item = (impl AsFd, Use)>, signals: bool) -> (bool, bool) {
    let (knows_signals, knows_files) = knows();
    let signals = signals && knows_signals;
    let restrict = || -> Result<bool, RulesetError> {
        let mut rules = Ruleset::default().handle_access(AccessFs::from_all(ABI::V5))?;
        if signals {
            rules = rules
                .set_compatibility(CompatLevel::HardRequirement)
                .scope(Scope::from_all(ABI::V6))?
                .set_compatibility(CompatLevel::BestEffort);
        }
        let mut rules = rules.create()?;
        for (fd, what_for) in given {
            // Of a single file, the kinds of access that only directories have are left out.
            rules = rules.add_rule(PathBeneath::new(fd, what_for.access()))?;
        }
        let status = rules.no_new_privs(false).restrict_self()?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    };
    let done = knows_files && restrict().unwrap_or(false);
    (done, done && signals)
}
