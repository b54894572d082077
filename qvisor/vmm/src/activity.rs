//! Activity of a thread, by the host's `/proc` (proc(5): `stat` and `schedstat`).

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;

use crate::sys;

/// Fields of `stat` between the state, the third, and the core, the 39th.
const CORE_AFTER_STATE: usize = 35;

/// The activity of a thread at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// It waits neither for a disk nor to be continued.
    pub could_run: bool,
    /// It neither runs nor waits for a core.
    pub sleeps: bool,
    /// How long it has run, in nanoseconds.
    pub ran_ns: u64,
    /// How long it had waited for a core when it got one last, in nanoseconds.
    pub waited_ns: u64,
    /// How often it got one.
    pub slices: u64,
    /// The core it runs on, or ran on last.
    pub core: Option<u32>,
}

impl Activity {
    /// Looks at the thread whose directory in `/proc` is `task`, below `directory`.
    pub fn of(directory: BorrowedFd<'_>, task: &str) -> Option<Self> {
        let read = |name: &str| {
            let path = CString::new(format!("{task}/{name}")).ok()?;
            let file = sys::openat(directory, &path, libc::O_RDONLY, 0).ok()?;
            let mut text = String::new();
            File::from(file).read_to_string(&mut text).ok()?;
            Some(text)
        };
        // The name before the state may hold anything, also `)`.
        let stat = read("stat")?;
        let mut fields = stat.rsplit_once(") ")?.1.split_whitespace();
        let state = fields.next()?.chars().next()?;
        let core = fields.nth(CORE_AFTER_STATE).and_then(|core| core.parse().ok());
        let schedstat = read("schedstat")?;
        let mut numbers = schedstat.split_whitespace().map(|number| number.parse().ok());
        let (ran_ns, waited_ns, slices) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let (could_run, sleeps) = (matches!(state, 'R' | 'S'), state == 'S');
        Some(Self { could_run, sleeps, ran_ns, waited_ns, slices, core })
    }
}
