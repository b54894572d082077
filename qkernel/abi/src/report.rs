//! Reports: how far the sandbox has got, as its kernel tells the VMM by [`crate::hostcall::REPORT`].
//!
//! A [`Report`] becomes six words by [`Report::words`] and is read from them by [`Report::parse`]. Its texts and figures lie in kernel
//! memory: the words say where, and [`payload`] says which bytes the VMM has to fetch. The reader trusts none of it: words
//! that no report has are refused, those that a report leaves unused included.

mod fields;
#[cfg(test)]
mod tests;
mod usage;
mod wakes;

pub use usage::UsageFigures;
pub use wakes::{CALL_NONE, CALL_TIMER, DueTimer, Kept, KeptBy, Party, TimerKind, WakeEvent};

use crate::hostcall::Segment;

/// The number by which the kernel and the VMM know a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub u64);

impl ContainerId {
    /// The sandbox's first container: the sandbox ends with it.
    pub const FIRST: Self = Self(0);
}

/// Most bytes of a reason in words.
pub const WHY_NOT_MAX_BYTES: u64 = 4096;
/// Most bytes of the list of a container's processes.
pub const PROCESSES_MAX_BYTES: u64 = 64 << 10;
/// Most bytes of [`Report::Written`].
pub const WRITTEN_MAX_BYTES: u64 = 16 << 10;
/// In the number of a page of a working set that is recorded: it was written, and not only read.
pub const WRITTEN: u32 = 1 << 31;
/// Most pages of a working set that is recorded: 32 MiB.
pub const WORKING_SET_MAX_PAGES: usize = 8192;
const WORKING_SET_MAX_BYTES: u64 = 4 * WORKING_SET_MAX_PAGES as u64;

/// One message of the kernel's. Texts are bytes: they hold names that programs choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report<'a> {
    /// The first process of a container could be found, and waits for [`crate::hostcall::EVENT_START`].
    ContainerReady {
        /// The container that is ready.
        container: ContainerId,
    },
    /// The first process of a container runs its program.
    ContainerRunning {
        /// The container that runs.
        container: ContainerId,
    },
    /// A further container cannot be made, or its program does not run.
    ContainerFailed {
        /// The container that failed.
        container: ContainerId,
        /// The wait status that a shell would give.
        status: i32,
        /// The reason in words.
        why: &'a [u8],
    },
    /// None of a further container's tasks is left. The first container's end is [`crate::hostcall::EXIT`] instead.
    ContainerEnded {
        /// The container that has ended.
        container: ContainerId,
        /// The wait status of its first process.
        status: i32,
    },
    /// All tasks of a container rest, and none runs user code before it goes on.
    ContainerPaused {
        /// The container that rests.
        container: ContainerId,
        /// The number of the [`crate::hostcall::EVENT_PAUSE_CONTAINER`].
        request: u64,
    },
    /// The program of an exec'd process runs.
    ExecStarted {
        /// The process by the id of its [`crate::hostcall::EVENT_EXEC`].
        exec: u64,
        /// The process by its id in the container.
        pid: u32,
    },
    /// The program of an exec'd process does not run.
    ExecFailed {
        /// The process by the id of its [`crate::hostcall::EVENT_EXEC`].
        exec: u64,
        /// The exit code that a shell would give.
        code: u8,
        /// The reason in words.
        why: &'a [u8],
    },
    /// An exec'd process has ended.
    ExecEnded {
        /// The process by the id of its [`crate::hostcall::EVENT_EXEC`].
        exec: u64,
        /// Its wait status.
        status: i32,
    },
    /// [`crate::hostcall::EVENT_PAUSE`] was taken: no user code runs any more.
    Paused {
        /// The number of the event.
        request: u64,
    },
    /// [`crate::hostcall::EVENT_RESUME`] or [`crate::hostcall::EVENT_WAKE`] was taken.
    Resumed {
        /// The number of the event.
        request: u64,
    },
    /// After [`Report::WakeEvent`], or an [`crate::hostcall::EVENT_WAKE`] that asks for it: for the first time no task has anything
    /// to do.
    Idle,
    /// Nothing has come for the sandbox for as long as [`crate::records::Record::IdleTimeout`] says.
    IdleTimeout,
    /// Something wakes the sandbox that no order announced.
    WakeEvent {
        /// The kind of thing.
        by: WakeEvent,
    },
    /// The answer to an [`crate::hostcall::EVENT_LIMIT`] of memory.
    LimitAnswered {
        /// The number of the request.
        request: u32,
        /// The limit holds; false: the container holds more memory, and the old limit stays.
        holds: bool,
    },
    /// The answer to [`crate::hostcall::EVENT_PROCESSES`].
    Processes {
        /// The container that was asked for.
        container: ContainerId,
        /// A line for each process: its id, its parent's, its user's, the letter of its state, its threads, KiB of memory,
        /// milliseconds of processor time, its name, with a space between each. What does not fit in [`PROCESSES_MAX_BYTES`] is
        /// left out.
        lines: &'a [u8],
    },
    /// The answer to [`crate::hostcall::EVENT_USAGE`].
    Usage {
        /// The number of the request.
        request: u64,
        /// The figures; `None`: there is no such container.
        usage: Option<UsageFigures>,
    },
    /// A process of the container is killed, since there is no memory.
    OomKill {
        /// The container of the process.
        container: ContainerId,
    },
    /// The deadline that wakes the sandbox, before [`Report::WakeEvent`].
    Timer {
        /// The deadline.
        timer: DueTimer,
    },
    /// The thing that keeps a sandbox awake which has been idle for as long as [`crate::records::Record::IdleTimeout`] says.
    KeptAwake {
        /// The thing; `None`: nothing does.
        kept: Option<Kept>,
    },
    /// The one for whom the socket event was that woke the sandbox last.
    WokenFor {
        /// Somebody outside, and a task.
        who: Party,
    },
    /// The memory was not taken: the sandbox is not asleep, or the VMM could not.
    NotTaken {
        /// The number of the [`crate::hostcall::EVENT_SNAPSHOT`].
        request: u64,
        /// The reason in words.
        why: &'a [u8],
    },
    /// The working set that [`crate::records::Record::RecordWorkingSet`] asks for.
    WorkingSet {
        /// The numbers (`u32`) of the frames that were touched, in the order of touch.
        frames: &'a [u8],
    },
    /// The files of the host that programs may be writing to, before the memory is taken as an image.
    Written {
        /// A line for each: the number of the container, a space, and the path there in printable letters. What does not fit in
        /// [`WRITTEN_MAX_BYTES`] is left out.
        lines: &'a [u8],
    },
}

/// The first words of reports.
mod kind {
    pub const CONTAINER_READY: u64 = 1;
    pub const CONTAINER_RUNNING: u64 = 2;
    pub const CONTAINER_FAILED: u64 = 3;
    pub const CONTAINER_ENDED: u64 = 4;
    pub const CONTAINER_PAUSED: u64 = 5;
    pub const EXEC_STARTED: u64 = 6;
    pub const EXEC_FAILED: u64 = 7;
    pub const EXEC_ENDED: u64 = 8;
    pub const PAUSED: u64 = 9;
    pub const RESUMED: u64 = 10;
    pub const IDLE: u64 = 11;
    pub const IDLE_TIMEOUT: u64 = 12;
    pub const WAKE_EVENT: u64 = 13;
    pub const LIMIT_ANSWERED: u64 = 14;
    pub const PROCESSES: u64 = 15;
    pub const USAGE: u64 = 16;
    pub const OOM_KILL: u64 = 17;
    pub const TIMER: u64 = 18;
    pub const KEPT_AWAKE: u64 = 19;
    pub const WOKEN_FOR: u64 = 20;
    pub const NOT_TAKEN: u64 = 21;
    pub const WORKING_SET: u64 = 22;
    pub const WRITTEN: u64 = 23;
}

/// The place of the bytes that belong to a report of these words, cut off at the most that its kind may have.
#[must_use]
pub fn payload(words: &[u64; 6]) -> Segment {
    let [what, _, _, phys, len, _] = *words;
    let most = match what {
        kind::CONTAINER_FAILED | kind::EXEC_FAILED | kind::NOT_TAKEN => WHY_NOT_MAX_BYTES,
        kind::PROCESSES => PROCESSES_MAX_BYTES,
        kind::WORKING_SET => WORKING_SET_MAX_BYTES,
        kind::WRITTEN => WRITTEN_MAX_BYTES,
        kind::USAGE => UsageFigures::BYTES,
        kind::TIMER => DueTimer::BYTES,
        kind::KEPT_AWAKE | kind::WOKEN_FOR => Party::BYTES,
        _ => 0,
    };
    Segment { phys, len: len.min(most) }
}

fn start_of<T>(value: &T) -> *const u8 {
    core::ptr::from_ref(value).cast()
}

impl<'a> Report<'a> {
    /// The report as the arguments of a hostcall, which point into this value and its texts; `phys_of` says where these are in guest-physical
    /// memory.
    #[must_use]
    pub fn words(&self, phys_of: impl Fn(*const u8) -> u64) -> [u64; 6] {
        let of_text = |what: u64, a: u64, b: u64, text: &[u8]| {
            [what, a, b, phys_of(text.as_ptr()), text.len() as u64, 0]
        };
        let plain = |what: u64, a: u64, b: u64| [what, a, b, 0, 0, 0];
        let bits = |status: i32| u64::from(status.cast_unsigned());
        match self {
            Self::ContainerReady { container } => plain(kind::CONTAINER_READY, container.0, 0),
            Self::ContainerRunning { container } => plain(kind::CONTAINER_RUNNING, container.0, 0),
            Self::ContainerFailed { container, status, why } => {
                of_text(kind::CONTAINER_FAILED, container.0, bits(*status), why)
            }
            Self::ContainerEnded { container, status } => {
                plain(kind::CONTAINER_ENDED, container.0, bits(*status))
            }
            Self::ContainerPaused { container, request } => {
                plain(kind::CONTAINER_PAUSED, container.0, *request)
            }
            Self::ExecStarted { exec, pid } => plain(kind::EXEC_STARTED, *exec, (*pid).into()),
            Self::ExecFailed { exec, code, why } => of_text(kind::EXEC_FAILED, *exec, (*code).into(), why),
            Self::ExecEnded { exec, status } => plain(kind::EXEC_ENDED, *exec, bits(*status)),
            Self::Paused { request } => plain(kind::PAUSED, *request, 0),
            Self::Resumed { request } => plain(kind::RESUMED, *request, 0),
            Self::Idle => plain(kind::IDLE, 0, 0),
            Self::IdleTimeout => plain(kind::IDLE_TIMEOUT, 0, 0),
            Self::WakeEvent { by } => plain(kind::WAKE_EVENT, *by as u64, 0),
            Self::LimitAnswered { request, holds } => {
                plain(kind::LIMIT_ANSWERED, (*request).into(), (*holds).into())
            }
            Self::Processes { container, lines } => of_text(kind::PROCESSES, container.0, 0, lines),
            Self::Usage { request, usage: None } => plain(kind::USAGE, *request, 0),
            Self::Usage { request, usage: Some(usage) } => {
                [kind::USAGE, *request, 0, phys_of(start_of(usage)), UsageFigures::BYTES, 0]
            }
            Self::OomKill { container } => plain(kind::OOM_KILL, container.0, 0),
            Self::Timer { timer } => [kind::TIMER, 0, 0, phys_of(start_of(timer)), DueTimer::BYTES, 0],
            Self::KeptAwake { kept: None } => plain(kind::KEPT_AWAKE, 0, 0),
            Self::KeptAwake { kept: Some(Kept { by, who, given_up }) } => {
                let (by, given_up) = (*by as u64, u64::from(*given_up));
                [kind::KEPT_AWAKE, by, given_up, phys_of(start_of(who)), Party::BYTES, 0]
            }
            Self::WokenFor { who } => [kind::WOKEN_FOR, 0, 0, phys_of(start_of(who)), Party::BYTES, 0],
            Self::NotTaken { request, why } => of_text(kind::NOT_TAKEN, *request, 0, why),
            Self::WorkingSet { frames } => of_text(kind::WORKING_SET, 0, 0, frames),
            Self::Written { lines } => of_text(kind::WRITTEN, 0, 0, lines),
        }
    }

    /// The report that a hostcall's arguments are, with the bytes that [`payload`] named; `None`: they are none.
    #[must_use]
    pub fn parse(words: &[u64; 6], payload: &'a [u8]) -> Option<Self> {
        let status = |word: u64| u32::try_from(word).ok().map(u32::cast_signed);
        Some(match *words {
            [kind::CONTAINER_READY, id, 0, 0, 0, 0] => Self::ContainerReady { container: ContainerId(id) },
            [kind::CONTAINER_RUNNING, id, 0, 0, 0, 0] => {
                Self::ContainerRunning { container: ContainerId(id) }
            }
            [kind::CONTAINER_FAILED, id, word, _, _, 0] => {
                Self::ContainerFailed { container: ContainerId(id), status: status(word)?, why: payload }
            }
            [kind::CONTAINER_ENDED, id, word, 0, 0, 0] => {
                Self::ContainerEnded { container: ContainerId(id), status: status(word)? }
            }
            [kind::CONTAINER_PAUSED, id, request, 0, 0, 0] => {
                Self::ContainerPaused { container: ContainerId(id), request }
            }
            [kind::EXEC_STARTED, exec, pid, 0, 0, 0] => {
                Self::ExecStarted { exec, pid: u32::try_from(pid).ok()? }
            }
            [kind::EXEC_FAILED, exec, code, _, _, 0] => {
                Self::ExecFailed { exec, code: u8::try_from(code).ok()?, why: payload }
            }
            [kind::EXEC_ENDED, exec, word, 0, 0, 0] => Self::ExecEnded { exec, status: status(word)? },
            [kind::PAUSED, request, 0, 0, 0, 0] => Self::Paused { request },
            [kind::RESUMED, request, 0, 0, 0, 0] => Self::Resumed { request },
            [kind::IDLE, 0, 0, 0, 0, 0] => Self::Idle,
            [kind::IDLE_TIMEOUT, 0, 0, 0, 0, 0] => Self::IdleTimeout,
            [kind::WAKE_EVENT, by, 0, 0, 0, 0] => Self::WakeEvent { by: WakeEvent::from_number(by)? },
            [kind::LIMIT_ANSWERED, request, holds @ (0 | 1), 0, 0, 0] => {
                Self::LimitAnswered { request: u32::try_from(request).ok()?, holds: holds == 1 }
            }
            [kind::PROCESSES, id, 0, _, _, 0] => {
                Self::Processes { container: ContainerId(id), lines: payload }
            }
            [kind::USAGE, request, 0, 0, 0, 0] => Self::Usage { request, usage: None },
            [kind::USAGE, request, 0, _, UsageFigures::BYTES, 0] => {
                Self::Usage { request, usage: Some(UsageFigures::from_bytes(payload)?) }
            }
            [kind::OOM_KILL, id, 0, 0, 0, 0] => Self::OomKill { container: ContainerId(id) },
            [kind::TIMER, 0, 0, _, DueTimer::BYTES, 0] => {
                Self::Timer { timer: DueTimer::from_bytes(payload)? }
            }
            [kind::KEPT_AWAKE, 0, 0, 0, 0, 0] => Self::KeptAwake { kept: None },
            [kind::KEPT_AWAKE, by, given_up @ (0 | 1), _, Party::BYTES, 0] => {
                let (by, who) = (KeptBy::from_number(by)?, Party::from_bytes(payload)?);
                Self::KeptAwake { kept: Some(Kept { by, who, given_up: given_up == 1 }) }
            }
            [kind::WOKEN_FOR, 0, 0, _, Party::BYTES, 0] => {
                Self::WokenFor { who: Party::from_bytes(payload)? }
            }
            [kind::NOT_TAKEN, request, 0, _, _, 0] => Self::NotTaken { request, why: payload },
            [kind::WORKING_SET, 0, 0, _, _, 0] => Self::WorkingSet { frames: payload },
            [kind::WRITTEN, 0, 0, _, _, 0] => Self::Written { lines: payload },
            _ => return None,
        })
    }
}
