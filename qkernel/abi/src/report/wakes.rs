//! Reasons why a sandbox wakes or is kept awake, and those concerned.

use super::fields::Fields;
use crate::address::Address;

/// Gives an enum whose values are numbered from 1 a conversion from its numbers.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident: $repr:ident { $($(#[$of_value:meta])* $value:ident = $number:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[repr($repr)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$of_value])* $value = $number),+
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            pub(super) fn from_number(number: $repr) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| *value as $repr == number)
            }
        }
    };
}

numbered! {
    /// The kind of thing that woke a sandbox by itself.
    WakeEvent: u64 {
        /// A connection, or data for a socket.
        Socket = 1,
        /// Something on one of the streams.
        Stream = 2,
        /// A process or a container is to come in.
        Exec = 3,
        /// A container that was paused goes on.
        Container = 4,
        /// A program's deadline is due; [`super::Report::Timer`] has told whose.
        Timer = 5,
    }
}

numbered! {
    /// The kind of thing that keeps a sandbox awake which has been idle for long enough.
    KeptBy: u64 {
        /// A request that came over an accepted connection is open, and a task waits for a time.
        Request = 1,
        /// A request may be open: a loop hides what it waits for.
        PerhapsRequest = 2,
        /// An exec'd process is at work.
        Exec = 3,
        /// A task waits with a time-out for the answer to what the sandbox asked.
        Outbound = 4,
        /// It has an exclusive lock of a file that others may open, or a task waits for such a lock.
        Lock = 5,
        /// Work goes on for which a deadline woke it.
        Timer = 6,
        /// It uses processor time.
        Computes = 7,
    }
}

numbered! {
    /// The kind of a program's deadline.
    TimerKind: u32 {
        /// The end of a wait in a system call.
        Wait = 1,
        /// A `timerfd_create(2)`.
        TimerFd = 2,
        /// A `timer_create(2)`.
        PosixTimer = 3,
        /// A `setitimer(2)` or `alarm(2)`.
        Itimer = 4,
        /// None is known: tasks had something to do when the sandbox fell asleep.
        Unfinished = 5,
    }
}

/// Stands in [`Party::call`] for no system call.
pub const CALL_NONE: u32 = u32::MAX;
/// Stands in [`Party::call`] for a task that waits by a timer which it has set.
pub const CALL_TIMER: u32 = u32::MAX - 1;

/// Somebody outside and a task, as far as they are known.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Party {
    /// The address of the other side of a connection; all zeros: it is not known.
    pub peer: Address,
    /// The port of the other side; 0: it is not known.
    pub peer_port: u16,
    /// The local port of an accepted connection; 0: there is none.
    pub port: u16,
    /// The process of the task; 0: no task is known.
    pub pid: u32,
    /// The task.
    pub tid: u32,
    /// The system call in which the task waits for a time; [`CALL_NONE`], [`CALL_TIMER`].
    pub call: u32,
    /// How long it waits there at most, in milliseconds.
    pub wait_ms: u64,
    /// The name of the task, which ends at a 0.
    pub name: [u8; 16],
}
pin_layout!(
    Party, 56, peer: 0, peer_port: 16, port: 18, pid: 20, tid: 24, call: 28, wait_ms: 32, name: 40
);

impl Party {
    /// Bytes of a value.
    pub const BYTES: u64 = size_of::<Self>() as u64;

    /// Nobody.
    pub const UNKNOWN: Self = Self {
        peer: [0; 16],
        peer_port: 0,
        port: 0,
        pid: 0,
        tid: 0,
        call: CALL_NONE,
        wait_ms: 0,
        name: [0; 16],
    };

    /// The value that lies in these bytes; `None`: they are too few or too many.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of::<Self>(bytes)?;
        // Fields are read in the order in which they stand here, which is that of their offsets.
        Some(Self {
            peer: fields.bytes(),
            peer_port: fields.half(),
            port: fields.half(),
            pid: fields.word(),
            tid: fields.word(),
            call: fields.word(),
            wait_ms: fields.long(),
            name: fields.bytes(),
        })
    }
}

/// The thing that keeps a sandbox awake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The kind of thing.
    pub by: KeptBy,
    /// Whom it is for.
    pub who: Party,
    /// It has been kept awake for as long as may be, and falls asleep all the same.
    pub given_up: bool,
}

impl Kept {
    /// A thing of a kind of which nothing more is known.
    #[must_use]
    pub const fn by(by: KeptBy) -> Self {
        Self { by, who: Party::UNKNOWN, given_up: false }
    }
}

/// The deadline that woke a sandbox.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueTimer {
    /// How many microseconds before it was due it was set.
    pub ahead_us: u64,
    /// How many microseconds late the wake is.
    pub late_us: u64,
    /// The process that waits; 0: it is not known.
    pub pid: u32,
    /// The number of a [`TimerKind`].
    pub kind: u32,
    /// The name of the task that waits, which ends at a 0.
    pub name: [u8; 16],
}
pin_layout!(DueTimer, 40, ahead_us: 0, late_us: 8, pid: 16, kind: 20, name: 24);

impl DueTimer {
    /// Bytes of a value.
    pub const BYTES: u64 = size_of::<Self>() as u64;

    /// The kind of the deadline; `None`: none has its number.
    #[must_use]
    pub fn kind(&self) -> Option<TimerKind> {
        TimerKind::from_number(self.kind)
    }

    /// The value that lies in these bytes; `None`: they are too few or too many, or no deadline is of its kind.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields::of::<Self>(bytes)?;
        // Fields are read in the order in which they stand here, which is that of their offsets.
        let timer = Self {
            ahead_us: fields.long(),
            late_us: fields.long(),
            pid: fields.word(),
            kind: fields.word(),
            name: fields.bytes(),
        };
        timer.kind().map(|_| timer)
    }
}
