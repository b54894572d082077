//! The fields of records about a process.

use super::fields;
use super::wire::{Field, List, Put, Reader};
use crate::boot::STREAM_FLAGS;
use crate::seccomp::Instruction;

fields! {
    /// User and groups.
    pub struct Creds<'a> {
        /// User id.
        pub uid: u32,
        /// Group id.
        pub gid: u32,
        /// Supplementary groups.
        pub groups: List<'a, u32>,
    }
}

fields! {
    /// A descriptor that a process begins with.
    pub struct Stream {
        /// The number of the descriptor inside.
        pub fd: u32,
        /// The handle of the host's file.
        pub handle: u32,
        /// [`crate::boot::STREAM_TTY`] ….
        pub flags: u32,
    } if |stream| stream.flags & !STREAM_FLAGS == 0
}

fields! {
    /// A filter of system calls.
    pub struct Seccomp<'a> {
        /// Calls that it does not allow are logged.
        pub logs: bool,
        /// Its program.
        pub program: List<'a, Instruction>,
    }
}

fields! {
    /// The capability sets of `capabilities(7)`, a bit each.
    #[derive(Default)]
    pub struct Capabilities {
        /// The bounding set.
        pub bounding: u64,
        /// The effective set.
        pub effective: u64,
        /// The permitted set.
        pub permitted: u64,
        /// The inheritable set.
        pub inheritable: u64,
        /// The ambient set.
        pub ambient: u64,
    }
}

fields! {
    /// The size of a terminal.
    pub struct Winsize {
        /// Rows.
        pub rows: u16,
        /// Columns.
        pub columns: u16,
    }
}

/// A limit of a process's resources. On the wire the resource has 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rlimit {
    /// `RLIMIT_*`.
    pub resource: u32,
    /// The soft limit.
    pub soft: u64,
    /// The hard limit.
    pub hard: u64,
}

impl Field<'_> for Rlimit {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self { resource: from.padded()?, soft: Field::read(from)?, hard: Field::read(from)? })
    }

    fn write(&self, put: &mut Put<'_>) {
        u64::from(self.resource).write(put);
        self.soft.write(put);
        self.hard.write(put);
    }
}

/// How a process begins. On the wire each is a bit of a u32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProcessFlags {
    /// The first process is prepared, reported ([`crate::report::Report::ContainerReady`]), and begins when
    /// [`crate::hostcall::EVENT_START`] comes. Signals that it does not handle do nothing to it.
    pub hold: bool,
    /// The working directory is made if it does not exist; one that cannot be entered ends the sandbox.
    pub make_cwd: bool,
    /// It begins with `PR_SET_NO_NEW_PRIVS`.
    pub no_new_privs: bool,
}

impl Field<'_> for ProcessFlags {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let bits = u32::read(from)?;
        let has = |bit: u32| bits & (1 << bit) != 0;
        let flags = Self { hold: has(0), make_cwd: has(1), no_new_privs: has(2) };
        (bits < 1 << 3).then_some(flags)
    }

    fn write(&self, put: &mut Put<'_>) {
        let Self { hold, make_cwd, no_new_privs } = *self;
        (u32::from(hold) | u32::from(make_cwd) << 1 | u32::from(no_new_privs) << 2).write(put);
    }
}
