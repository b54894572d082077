//! Clones that go on in the background. Each has a front end of its own, which is this program, forked, and a channel to whoever began it:
//! until it is told to let go, the clone ends with the other side of it.

use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use runtime::container::Surroundings;
use runtime::front::Attended;
use runtime::orders;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::{Described, Opened, Store};
use runtime::state::{Id, Root};
use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;
use vmm::process;

use crate::clones::{CloneOptions, run_clone_of};
use crate::failure::Failure;

/// The first letter of what a clone's front end says: that it is there, or why it is not.
const THERE: u8 = b'+';
const FAILED: u8 = b'-';
/// Orders to it: to wake, to say whether it is there, and to let go.
const WAKE: u8 = b'w';
const ASK: u8 = b'?';
const LET_GO: u8 = b'!';
/// How long it may take to say that.
const ANSWER_MS: i32 = 1000;
/// How often a clone that falls asleep looks whether it is still wanted.
const STEP: Duration = Duration::from_millis(5);

/// How long a clone may take to end.
const END_PATIENCE_MS: i32 = 10_000;

/// Ports that sockets had, each with the one that they get.
pub type Ports = Vec<(u16, u16)>;

/// A snapshot, and how clones of it are run.
pub struct Source<'s> {
    pub root: &'s Root,
    pub node: NodeConfig,
    pub systemd_cgroup: bool,
    pub store: &'s Store,
    pub opened: Arc<Opened>,
    pub share: Option<Sharing>,
    pub disk_bytes: u64,
    pub userns: UserNamespace,
    pub hibernation: Wishes,
    /// Files that the snapshot has open may have changed.
    pub accepts_changed: bool,
    /// Ports that sockets had, and get in the first clone.
    pub ports: Ports,
    /// A clone hibernates before it has begun.
    pub is_asleep: bool,
    /// All clones are let go at once, when this can be read.
    pub all_go: Option<PipeReader>,
}

/// A clone that was begun.
pub struct Background {
    pub id: Id,
    /// By which its ports are counted.
    pub number: u16,
    /// Of its front end, if this process has forked it.
    process: Option<OwnedFd>,
    channel: BufReader<UnixStream>,
}

/// Refuses ports of which not every clone would get one.
pub fn check_ports(ports: &[(u16, u16)], count: u16) -> Result<(), Failure> {
    match ports.iter().find(|(_, new)| new.checked_add(count.saturating_sub(1)).is_none()) {
        Some((old, new)) => Err(format!(
            "cannot give {count} clones ports from {new} on for port {old}: there are not so many; choose a lower one"
        )
        .into()),
        None => Ok(()),
    }
}

impl Source<'_> {
    /// Refuses a snapshot whose clones cannot do without a terminal.
    pub fn check(&self) -> Result<(), Failure> {
        check_terminal(&self.opened.manifest.container)
    }

    /// Ports of the clone with this number, if there are such.
    pub fn ports_of(&self, number: u16) -> Option<Ports> {
        self.ports.iter().map(|(old, new)| Some((*old, new.checked_add(number)?))).collect()
    }

    /// Forks the front end of a clone, where `forget` drops the channels of all others: whoever holds one keeps that clone. This process has
    /// one thread.
    pub fn begin(&self, id: Id, number: u16, forget: impl FnOnce()) -> io::Result<Background> {
        let (ours, theirs) = UnixStream::pair()?;
        let parent = process::id();
        let ports = self.ports_of(number).ok_or(io::ErrorKind::InvalidInput)?;
        let Some(pid) = process::fork()? else {
            drop(ours);
            forget();
            if !process::die_with_parent(parent) {
                process::exit_now(1);
            }
            process::leave_session();
            process::close_streams();
            process::exit_now(self.attend(&id, ports, &theirs).into());
        };
        Ok(Background { id, number, process: process::pidfd(pid).ok(), channel: BufReader::new(ours) })
    }

    /// The front end of a clone, to the end of that.
    fn attend(&self, id: &Id, ports: Ports, channel: &UnixStream) -> u8 {
        let started = || {
            let Ok(channel) = channel.try_clone() else { process::exit_now(1) };
            let all_go = self.all_go.as_ref().map(PipeReader::try_clone).transpose();
            let Ok(all_go) = all_go else { process::exit_now(1) };
            let held = Held { root: self.root.clone(), id: id.clone(), channel, all_go };
            let is_asleep = self.is_asleep;
            // From now on it ends with the channel.
            process::survive_parent();
            thread::spawn(move || held.hold(is_asleep));
        };
        let clone = CloneOptions {
            id: id.clone(),
            disk_bytes: self.disk_bytes,
            userns: self.userns,
            share: self.share.clone(),
            hibernation: self.hibernation.clone(),
            surroundings: Surroundings { accepts_changed: self.accepts_changed, ports },
        };
        let (node, opened) = ((self.node.clone(), self.systemd_cgroup), Arc::clone(&self.opened));
        match run_clone_of(self.root, node, self.store, opened, clone, &Attended::Apart(&started)) {
            Ok(code) => code,
            Err(error) => {
                tell_failure(channel, &error.to_string());
                1
            }
        }
    }
}

/// Refuses what cannot do without a terminal.
pub fn check_terminal(described: &Described) -> Result<(), Failure> {
    if !described.terminal || described.command.is_some() {
        return Ok(());
    }
    let id = &described.id;
    Err(format!("cannot make clones of {id}: its first process has a terminal, and theirs would have none")
        .into())
}

/// A clone that goes on, seen from its front end.
struct Held {
    root: Root,
    id: Id,
    channel: UnixStream,
    all_go: Option<PipeReader>,
}

impl Held {
    /// Says that it is there, and waits until it is let go. It ends with the other side: the VMM ends with this process, and its watcher
    /// removes what is left.
    fn hold(mut self, is_asleep: bool) {
        if is_asleep {
            self.hibernate();
        }
        self.say_there();
        loop {
            let all_go = self.all_go.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let [everybody, told] = process::wait_readable([all_go, self.channel.as_raw_fd()], -1);
            let mut order = [0];
            if everybody {
                break;
            }
            match (told, told.then(|| self.channel.read(&mut order))) {
                (false, _) => {}
                (true, Some(Ok(1))) if order == [WAKE] => self.wake(),
                (true, Some(Ok(1))) if order == [ASK] => self.say_there(),
                (true, Some(Ok(1))) if order == [LET_GO] => break,
                _ => process::exit_now(1),
            }
        }
        let _ = self.channel.shutdown(Shutdown::Both);
    }

    /// Wakes it, while it is handed over.
    fn wake(&self) {
        let (root, id) = (self.root.clone(), self.id.clone());
        // Something else may have woken it.
        thread::spawn(move || drop(orders::wake(&root, &id, None)));
    }

    fn say_there(&mut self) {
        let _ = self.channel.write_all(&[THERE, b'\n']);
    }

    /// Has it hibernate, which may take its time.
    fn hibernate(&self) {
        let (root, id) = (self.root.clone(), self.id.clone());
        let asleep = thread::spawn(move || orders::hibernate(&root, &id).map_err(|error| error.to_string()));
        while !asleep.is_finished() {
            if process::has_hung_up(&self.channel) {
                process::exit_now(1);
            }
            thread::sleep(STEP);
        }
        match asleep.join() {
            Ok(Ok(_)) => {}
            failed => {
                let words = failed.map(|words| words.err().unwrap_or_default()).unwrap_or_default();
                tell_failure(&self.channel, &words);
                process::exit_now(1);
            }
        }
    }
}

fn tell_failure(mut channel: &UnixStream, words: &str) {
    let _ = channel.write_all(&[&[FAILED], words.replace('\n', " ").as_bytes(), b"\n"].concat());
}

impl Background {
    /// One that somebody else has begun.
    pub fn handed_over(id: Id, number: u16, channel: UnixStream) -> Self {
        Self { id, number, process: None, channel: BufReader::new(channel) }
    }

    /// Hears whether it has begun, or why not.
    pub fn news(&mut self) -> Result<(), Failure> {
        let mut line = Vec::new();
        let heard = self.channel.read_until(b'\n', &mut line);
        match (heard, line.split_first()) {
            (Ok(_), Some((&THERE, _))) => Ok(()),
            (Ok(_), Some((&FAILED, words))) => Err(String::from_utf8_lossy(words).trim_end().into()),
            _ => Err(format!("cannot begin clone {}: it ended before it began", self.id.as_str()).into()),
        }
    }

    /// Whether it is there, and will be until this is dropped or lets go.
    pub fn is_there(&mut self) -> bool {
        let is_asked = self.channel.get_ref().write_all(&[ASK]).is_ok();
        is_asked && process::wait_readable([self.as_raw_fd()], ANSWER_MS)[0] && self.news().is_ok()
    }

    /// Readable once there is news: before it has begun, that; afterwards, that it has ended.
    pub fn as_raw_fd(&self) -> RawFd {
        self.channel.get_ref().as_raw_fd()
    }

    /// Its channel, for whoever is to have it.
    pub fn channel(&self) -> &UnixStream {
        self.channel.get_ref()
    }

    /// Wakes it, while somebody gets it.
    pub fn wake(&self) {
        let _ = self.channel.get_ref().write_all(&[WAKE]);
    }

    /// Tells it to end.
    pub fn dismiss(&self) {
        let _ = self.channel.get_ref().shutdown(Shutdown::Write);
    }

    /// Ends it.
    pub fn end(self) {
        self.dismiss();
        let _ = process::wait_readable([self.as_raw_fd()], END_PATIENCE_MS);
    }

    /// Ends one that does not begin.
    pub fn kill(self) {
        self.process.iter().for_each(|process| process::kill(process.as_fd()));
    }

    /// Lets go of it: it lives on by itself.
    pub fn release(self) {
        let _ = self.channel.get_ref().write_all(&[LET_GO]);
    }
}
