//! Signals about files (`O_ASYNC`, `F_SETOWN`, `F_SETSIG`): `SIGIO` when I/O becomes possible or a lease is broken, `SIGURG` for
//! urgent data.
//!
//! A [`Notice`] hangs on an open file whose program has asked for any of this, and is registered with the file's wait queues. A
//! wake-up, which may not send signals (other locks are held), notes the events and puts the notice on a list;
//! [`delivery::deliver`] sends what is due: at the end of the system call that caused it, before a task sleeps, and when the host
//! has told of something. That takes a bounded time, whoever caused how much: the rest is left to the next one, or to an idle CPU
//! ([`delivery::help`]).

pub mod delivery;

use alloc::sync::{Arc, Weak};
use core::mem;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use crate::fs::caller::{self, Caller};
use crate::fs::file::File;
use crate::fs::poll::PollTable;
use crate::signals::{SIGBUS, SIGCHLD, SIGFPE, SIGILL, SIGIO, SIGSEGV, SIGSYS, SIGTRAP, SIGURG, Source};
use machine::errno::{Errno, Result};
use machine::mm::account;
use machine::sched;
use machine::sched::wait::{PollEvents, Waker};
use machine::sync::{Rank, SpinLock};

/// Bytes of kernel memory a notice takes, more or less.
const NOTICE_BYTES: usize = 1024;
/// Most signals that a task sends at once.
const SIGNALS_AT_ONCE: usize = 64;
/// `SI_SIGIO`, for signals whose codes have another meaning.
const SI_SIGIO: i32 = -5;

/// The files that send signals, by what their events mean.
#[derive(Clone)]
pub enum Kind {
    /// A socket of the host's, whose events are as the host tells.
    Network,
    /// A socket of the kernel's own, which has to be asked when its peer ends something.
    Local,
    Pipe,
    Terminal(Arc<dyn Look>),
}

/// A terminal, which has to be asked: a line of input is worth a signal, a key is not.
pub trait Look: Send + Sync {
    fn events(&self) -> PollEvents;
    /// The process group that gets the signals if the program has said nothing else, as those of this pid space know it; 0: none.
    fn group(&self, pid_space: u64) -> u32;
}

/// How a receiver of signals was named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OwnerKind {
    Thread,
    Process,
    Group,
}

/// The ids of whom the signals are from, as far as permission goes: those of the task that has set the owner.
#[derive(Clone, Copy, Debug, Default)]
pub struct Setter {
    pub uid: u32,
    pub euid: u32,
}

/// A receiver of signals: a thread, a process or a group.
pub trait Owner: Send + Sync {
    fn kind(&self) -> OwnerKind;
    /// Its id as the caller knows it; 0 when it is gone or the caller cannot know it.
    fn seen_by(&self, caller: &dyn Caller) -> u32;
    /// Sends a signal, or in its place `SIGIO` without facts where no more can be queued. Whom the setter may not signal gets
    /// none. Of a group, sends it to at most `room` members (at least one), those with ids from `from` on; returns the id to go on
    /// from if there may be more, and how many were sent.
    fn signal(
        &self,
        signal: u32,
        source: Source,
        setter: Setter,
        from: u32,
        room: usize,
    ) -> (Option<u32>, usize);
}

#[derive(Default)]
struct State {
    owner: Option<Arc<dyn Owner>>,
    setter: Setter,
    /// `F_SETSIG`; 0: `SIGIO` without facts.
    signal: u32,
}

/// The reasons for a signal (`POLL_*`), with the events that each stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    In = 1,
    Out = 2,
    /// A lease is to be given up.
    Message = 3,
    Error = 4,
    Urgent = 5,
    HangUp = 6,
}

impl Reason {
    fn band(self) -> PollEvents {
        match self {
            Self::In => PollEvents::READABLE,
            Self::Out => PollEvents::WRITABLE | PollEvents::WRBAND,
            Self::Message => PollEvents::READABLE | PollEvents::MSG,
            Self::Error => PollEvents::ERR,
            Self::Urgent => PollEvents::PRI | PollEvents::RDBAND,
            Self::HangUp => PollEvents::HUP | PollEvents::ERR,
        }
    }
}

/// A program's request to be told of a file's events by signals.
pub struct Notice {
    me: Weak<Notice>,
    file: Weak<File>,
    kind: Option<Kind>,
    state: SpinLock<State>,
    /// `O_ASYNC`.
    is_on: AtomicBool,
    /// The descriptor that signals name.
    fd: AtomicI32,
    /// A write found no room: that there is some again is worth a signal.
    was_full: AtomicBool,
    /// Events that were noted since the last delivery.
    noted: AtomicU32,
    /// It is on the list, or somebody sends what it has to tell.
    listed: AtomicBool,
    /// The one behind it on the list.
    next: SpinLock<Option<Arc<Notice>>>,
    /// The signals that are left to be sent. Only whoever has taken the notice off the list looks.
    rest: SpinLock<Rest>,
    table: SpinLock<Option<PollTable>>,
}

/// The signals that a notice has yet to send.
#[derive(Clone, Copy, Default)]
struct Rest {
    reasons: [Option<Reason>; 4],
    /// `SIGURG` comes first.
    is_urgent: bool,
    /// The member of the group to go on from.
    from: u32,
}

impl Rest {
    fn is_empty(&self) -> bool {
        !self.is_urgent && self.reasons.iter().all(Option::is_none)
    }
}

/// Whether a socket that has to be asked first may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asking {
    Yes,
    /// A task will soon.
    Later,
    /// No task may come: that something ended is told as what the next call will not wait for.
    Never,
}

/// Events of a Unix socket that hold only if it says so when it is asked: its queue is woken for all of them at once.
const ASKED: PollEvents = PollEvents::HUP.union(PollEvents::PRI);

/// How far a notice came.
#[derive(PartialEq, Eq)]
enum Progress {
    Done,
    /// The room was used up.
    Part,
    MustAsk,
}

impl Notice {
    fn new(file: &Arc<File>) -> Result<Arc<Self>> {
        account::check(NOTICE_BYTES)?;
        Ok(Arc::new_cyclic(|me| Self {
            me: me.clone(),
            file: Arc::downgrade(file),
            kind: file.ops.signals(),
            state: SpinLock::new(Rank::Leaf, State::default()),
            is_on: AtomicBool::new(false),
            fd: AtomicI32::new(-1),
            was_full: AtomicBool::new(false),
            noted: AtomicU32::new(0),
            listed: AtomicBool::new(false),
            next: SpinLock::new(Rank::NoticeLink, None),
            rest: SpinLock::new(Rank::Leaf, Rest::default()),
            table: SpinLock::new(Rank::Leaf, None),
        }))
    }

    /// Registers with the file's queues anew.
    fn register(self: &Arc<Self>, file: &File) -> Result<()> {
        let mut table = PollTable::new(Waker::Object(self.clone()), PollEvents::all());
        file.ops.poll(file, Some(&mut table));
        if table.is_short() {
            return Err(Errno::ENOMEM);
        }
        let old = self.table.lock().replace(table);
        drop(old);
        Ok(())
    }

    fn unregister(&self) {
        let table = self.table.lock().take();
        drop(table);
    }

    /// The file is gone.
    pub fn close(&self) {
        self.is_on.store(false, Ordering::Release);
        self.unregister();
        let state = core::mem::take(&mut *self.state.lock());
        drop(state);
    }

    /// Whether the file must be asked first: the events that were noted hold only if it says so.
    fn has_to_be_asked(&self) -> bool {
        let noted = PollEvents::from_bits_truncate(self.noted.load(Ordering::Acquire));
        matches!(self.kind, Some(Kind::Local)) && noted.intersects(ASKED)
    }

    /// Sends what is due, also what is noted meanwhile, and lets the notice be listed again. `false`: something is left, and it still
    /// counts as listed.
    fn send_all_due(&self, asking: Asking, room: &mut usize) -> bool {
        loop {
            if self.send_due(asking, room) != Progress::Done {
                return false;
            }
            self.listed.store(false, Ordering::SeqCst);
            // Whoever noted an event meanwhile found it listed.
            if self.noted.load(Ordering::SeqCst) == 0 || self.listed.swap(true, Ordering::SeqCst) {
                return true;
            }
            if *room == 0 {
                return false;
            }
            *room -= 1;
        }
    }

    /// Sends the signals for events, as many as there is room for. The caller has taken it off the list.
    fn send_due(&self, asking: Asking, room: &mut usize) -> Progress {
        let mut rest = mem::take(&mut *self.rest.lock());
        if rest.is_empty() {
            let mut events = PollEvents::from_bits_truncate(self.noted.load(Ordering::Acquire));
            let asks = matches!(self.kind, Some(Kind::Local)) && events.intersects(ASKED);
            if asks && asking == Asking::Later {
                return Progress::MustAsk;
            }
            self.noted.fetch_and(!events.bits(), Ordering::AcqRel);
            if asks && asking == Asking::Never {
                let ended = events.contains(PollEvents::HUP);
                events.set(PollEvents::IN, ended || events.contains(PollEvents::IN));
                events -= ASKED;
            } else if asks && let Some(file) = self.file.upgrade() {
                events &= file.ops.poll(&file, None);
            }
            rest.is_urgent =
                events.contains(PollEvents::PRI) && matches!(self.kind, Some(Kind::Network | Kind::Local));
            if self.is_on.load(Ordering::Acquire) {
                rest.reasons = self.reasons(events);
            }
        }
        while !rest.is_empty() {
            if *room == 0 {
                *self.rest.lock() = rest;
                return Progress::Part;
            }
            let at = rest.reasons.iter().position(Option::is_some);
            let reason = if rest.is_urgent { None } else { at.and_then(|at| rest.reasons[at]) };
            let (next, sent) = self.send_some(reason, rest.from, *room);
            // One that nobody gets costs, too.
            *room = room.saturating_sub(sent.max(1));
            rest.from = next.unwrap_or(0);
            if next.is_none() {
                match at {
                    _ if rest.is_urgent => rest.is_urgent = false,
                    Some(at) => rest.reasons[at] = None,
                    None => {}
                }
            }
        }
        Progress::Done
    }

    fn reasons(&self, events: PollEvents) -> [Option<Reason>; 4] {
        let has = |wanted: PollEvents| events.intersects(wanted);
        let input = has(PollEvents::IN | PollEvents::RDHUP);
        match &self.kind {
            None => [None; 4],
            // The other side's end is told as what the next call will not wait for.
            Some(Kind::Pipe) => [
                (input || has(PollEvents::HUP)).then_some(Reason::In),
                has(PollEvents::OUT | PollEvents::ERR).then_some(Reason::Out),
                None,
                None,
            ],
            Some(Kind::Terminal(terminal)) => {
                let now = terminal.events();
                let input = input && now.intersects(PollEvents::IN);
                let output = !has(PollEvents::IN) && has(PollEvents::OUT) && now.intersects(PollEvents::OUT);
                [input.then_some(Reason::In), output.then_some(Reason::Out), None, None]
            }
            Some(Kind::Network | Kind::Local) => {
                // TCP's sockets that nobody has connected yet hang up to whoever asks (tcp_poll), which is no event; what ended has no
                // more input either. The host may tell so late, when the socket listens and its signals are on.
                let never_was = matches!(self.kind, Some(Kind::Network)) && !has(PollEvents::RDHUP);
                let hangs_up = has(PollEvents::HUP) && !never_was;
                let main = match (hangs_up, input) {
                    (true, _) => Some(Reason::HangUp),
                    (_, input) => input.then_some(Reason::In),
                };
                let room = has(PollEvents::OUT) && self.was_full.swap(false, Ordering::AcqRel);
                let error = has(PollEvents::ERR) && !hangs_up;
                let urgent = has(PollEvents::PRI);
                let rest = [(error, Reason::Error), (room, Reason::Out), (urgent, Reason::Urgent)];
                let [error, room, urgent] = rest.map(|(is_so, reason)| is_so.then_some(reason));
                [main, error, room, urgent]
            }
        }
    }

    fn target(&self) -> Option<(Arc<dyn Owner>, Setter, u32)> {
        let state = self.state.lock();
        state.owner.clone().map(|owner| (owner, state.setter, state.signal))
    }

    /// Sends the signal that the program has chosen.
    pub fn send(&self, reason: Reason) {
        let mut from = 0;
        while let (Some(next), _) = self.send_some(Some(reason), from, SIGNALS_AT_ONCE) {
            from = next;
            sched::let_others_go_on();
        }
    }

    /// Sends the signal for a reason (`None`: `SIGURG`) as [`Owner::signal`] does.
    fn send_some(&self, reason: Option<Reason>, from: u32, room: usize) -> (Option<u32>, usize) {
        let Some((owner, setter, signal)) = self.target() else { return (None, 0) };
        let (signal, source) = match reason {
            None => (SIGURG, Source::Kernel),
            Some(_) if signal == 0 => (SIGIO, Source::Kernel),
            Some(reason) => {
                let own_codes = [SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGCHLD, SIGSYS];
                let code = if own_codes.contains(&signal) { SI_SIGIO } else { reason as i32 };
                let band = i64::from(reason.band().bits());
                (signal, Source::Poll { code, band, fd: self.fd.load(Ordering::Relaxed) })
            }
        };
        owner.signal(signal, source, setter, from, room)
    }
}

/// The notice of a file, made if there is none yet.
fn notice_of(file: &Arc<File>) -> Result<Arc<Notice>> {
    if let Some(notice) = file.notice() {
        return Ok(notice);
    }
    let new = Notice::new(file)?;
    // For urgent data nothing has to be switched on.
    if matches!(new.kind, Some(Kind::Network | Kind::Local)) {
        new.register(file)?;
    }
    let (notice, spare) = file.keep_notice(new);
    if let Some(spare) = spare {
        spare.close();
    }
    Ok(notice)
}

/// Switches the signals of a file on or off (`O_ASYNC`); they will name the descriptor `fd`. Files that send none are left alone:
/// the answer is false.
pub fn switch(file: &Arc<File>, fd: i32, on: bool) -> Result<bool> {
    if file.ops.signals().is_none() {
        return Ok(false);
    }
    if !on && file.notice().is_none() {
        return Ok(true);
    }
    let notice = notice_of(file)?;
    notice.fd.store(fd, Ordering::Relaxed);
    if on {
        notice.is_on.store(true, Ordering::Release);
        if let Err(error) = notice.register(file) {
            notice.is_on.store(false, Ordering::Release);
            return Err(error);
        }
    } else {
        notice.is_on.store(false, Ordering::Release);
        if !matches!(notice.kind, Some(Kind::Network | Kind::Local)) {
            notice.unregister();
        }
    }
    Ok(true)
}

/// A write to the file found no room.
pub fn found_full(file: &File) {
    let Some(notice) = file.notice().filter(|notice| notice.is_on.load(Ordering::Relaxed)) else { return };
    if !notice.was_full.swap(true, Ordering::AcqRel) && matches!(notice.kind, Some(Kind::Local)) {
        // It may have another peer by now, whose room counts. Without memory the old queues have to do.
        let _ = notice.register(file);
    }
}

/// Sets the receiver (`F_SETOWN`); `None`: nobody.
pub fn set_owner(file: &Arc<File>, owner: Option<Arc<dyn Owner>>) -> Result<()> {
    if owner.is_none() && file.notice().is_none() {
        return Ok(());
    }
    let notice = notice_of(file)?;
    let creds = caller::current().creds();
    let setter = Setter { uid: creds.uid, euid: creds.euid };
    let old = {
        let mut state = notice.state.lock();
        state.setter = setter;
        core::mem::replace(&mut state.owner, owner)
    };
    drop(old);
    Ok(())
}

/// There is no receiver any more, unless somebody has set another one than this.
pub fn forget_owner(file: &File, owner: &Arc<dyn Owner>) {
    let Some(notice) = file.notice() else { return };
    let is_that = |now: &mut Arc<dyn Owner>| Arc::ptr_eq(now, owner);
    let old = notice.state.lock().owner.take_if(is_that);
    drop(old);
}

/// The receiver.
pub fn owner(file: &File) -> Option<Arc<dyn Owner>> {
    file.notice().and_then(|notice| notice.state.lock().owner.clone())
}

/// Sets the signal (`F_SETSIG`).
pub fn set_signal(file: &Arc<File>, signal: u32) -> Result<()> {
    if signal == 0 && file.notice().is_none() {
        return Ok(());
    }
    notice_of(file)?.state.lock().signal = signal;
    Ok(())
}

/// The signal; 0: `SIGIO`.
pub fn signal(file: &File) -> u32 {
    file.notice().map_or(0, |notice| notice.state.lock().signal)
}

/// Prepares a file whose lease is told of by signals, which name the descriptor `fd`.
pub fn for_lease(file: &Arc<File>, fd: i32) -> Result<Arc<Notice>> {
    let notice = notice_of(file)?;
    notice.fd.store(fd, Ordering::Relaxed);
    Ok(notice)
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicUsize;

    use super::*;
    use crate::fs::eventfd;
    use crate::fs::file::OpenFlags;

    /// A group of 20 members, with a count of the signals that they got.
    struct Group(AtomicUsize);

    impl Owner for Group {
        fn kind(&self) -> OwnerKind {
            OwnerKind::Group
        }

        fn seen_by(&self, _caller: &dyn Caller) -> u32 {
            0
        }

        fn signal(&self, _: u32, _: Source, _: Setter, from: u32, room: usize) -> (Option<u32>, usize) {
            let sent = room.min(20 - from as usize);
            self.0.fetch_add(sent, Ordering::Relaxed);
            let next = from + u32::try_from(sent).unwrap();
            ((next < 20).then_some(next), sent)
        }
    }

    #[test]
    fn a_large_group_gets_its_signals_piece_by_piece_and_each_once() {
        let file = eventfd::EventFile::open(0, false, OpenFlags::empty()).unwrap();
        let group = Arc::new(Group(AtomicUsize::new(0)));
        let notice = Notice::new(&file).unwrap();
        notice.state.lock().owner = Some(group.clone());
        notice.listed.store(true, Ordering::Relaxed);
        notice.rest.lock().reasons = [Some(Reason::In), None, Some(Reason::Out), None];
        let mut pieces = 0;
        loop {
            let mut room = 8;
            pieces += 1;
            if notice.send_all_due(Asking::Never, &mut room) {
                break;
            }
            assert!(room == 0 && notice.listed.load(Ordering::Relaxed), "it goes on later");
        }
        assert_eq!((group.0.load(Ordering::Relaxed), pieces), (40, 5));
        assert!(!notice.listed.load(Ordering::Relaxed));
    }

    #[test]
    fn a_network_socket_that_was_never_connected_does_not_hang_up() {
        let file = eventfd::EventFile::open(0, false, OpenFlags::empty()).unwrap();
        let mut notice = Arc::into_inner(Notice::new(&file).unwrap()).unwrap();
        notice.kind = Some(Kind::Network);
        let told = |events: PollEvents| {
            notice.reasons(events)[0].is_some_and(|reason| matches!(reason, Reason::HangUp))
        };
        assert!(!told(PollEvents::HUP | PollEvents::OUT));
        assert!(told(PollEvents::HUP | PollEvents::OUT | PollEvents::IN | PollEvents::RDHUP));
    }
}
