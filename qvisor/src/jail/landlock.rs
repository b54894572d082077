//! What Landlock keeps the VMM to, where the host has it: a second line behind owners, the empty root, and the lack of
//! paths. A domain is a thread's own and passes to what that thread starts, so both are entered while there is one thread.
//!
//! 1. A domain around *signals* and abstract Unix sockets ([`scope_signals`]), before any child is made. Whoever is to be
//!    signalled, the leash and the stubs, is a child made inside of it.
//! 2. A domain around *files* ([`keep_to_files`]), once nothing is mounted any more. What is open stays usable as it was
//!    opened; what is opened anew, by name or by a link of `/proc/self/fd`, lies below a directory that was given, and is
//!    opened with no more than what that was given for.
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
/// The version that lets names move between directories. Before it, whoever is restricted at all cannot.
const FILES_SINCE: i64 = 2;

/// What the VMM does with a directory or file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Reads all below it.
    Read,
    /// Reads and changes all below it.
    Change,
    /// Reads the files below it, without listing it.
    ReadFiles,
}

impl Use {
    fn access(self) -> BitFlags<AccessFs> {
        let read = AccessFs::ReadFile | AccessFs::ReadDir;
        match self {
            Self::Read => read,
            Self::ReadFiles => AccessFs::ReadFile.into(),
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

/// Keeps the signals and abstract Unix sockets of the calling thread, and of all it starts later, to what it starts
/// later. True: the host does. Needs the right to mount, or no new privileges.
pub fn scope_signals() -> bool {
    let restrict = || -> Result<bool, RulesetError> {
        let rules = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .scope(Scope::from_all(ABI::V6))?
            .create()?;
        let status = rules.no_new_privs(false).restrict_self()?;
        Ok(status.ruleset == RulesetStatus::FullyEnforced)
    };
    knows().0 && restrict().unwrap_or(false)
}

/// Keeps what the calling thread, and all it starts later, opens, makes and removes to what is `given`. True: the host
/// does, as far as its version knows the kinds of access. Nothing can be mounted afterwards. Needs no new privileges.
pub fn keep_to_files(given: impl IntoIterator<Item = (impl AsFd, Use)>) -> bool {
    let restrict = || -> Result<bool, RulesetError> {
        let mut rules = Ruleset::default().handle_access(AccessFs::from_all(ABI::V5))?.create()?;
        for (fd, what_for) in given {
            // Of a single file, what only directories know is left out.
            rules = rules.add_rule(PathBeneath::new(fd, what_for.access()))?;
        }
        let status = rules.no_new_privs(false).restrict_self()?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    };
    knows().1 && restrict().unwrap_or(false)
}
