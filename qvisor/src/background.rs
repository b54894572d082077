//! Clones that go on in the background. Each has a front end of its own, which is this program, forked, and a channel to whoever began it:
//! until that is told to let go, the clone ends with the other side of it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use runtime::container::Surroundings;
use runtime::front::Attended;
use runtime::orders;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::{Opened, Store};
use runtime::state::{Id, Root};
use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;
use vmm::process;

use crate::clones::{CloneOptions, run_clone_of};
use crate::failure::Failure;

/// The first letter of what a clone's front end says: that it has begun, or why it has not.
const BEGUN: u8 = b'+';
const FAILED: u8 = b'-';

/// How long a clone may take to end.
const END_PATIENCE_MS: i32 = 10_000;

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
    pub ports: Vec<(u16, u16)>,
    /// A clone hibernates before it has begun.
    pub is_asleep: bool,
}

/// A clone that was begun.
pub struct Background {
    pub id: Id,
    /// By which its ports are counted.
    pub number: u16,
    channel: BufReader<UnixStream>,
}

impl Source<'_> {
    /// Refuses a snapshot whose clones cannot do without a terminal, and ports of which not every clone would get one.
    pub fn check(&self, count: u16) -> Result<(), Failure> {
        let described = &self.opened.manifest.container;
        if described.terminal && described.command.is_none() {
            let id = &described.id;
            return Err(format!(
                "cannot make clones of {id}: its first process has a terminal, and theirs would have none"
            )
            .into());
        }
        match self.ports.iter().find(|(_, new)| new.checked_add(count.saturating_sub(1)).is_none()) {
            Some((old, new)) => Err(format!(
                "cannot give {count} clones ports from {new} on for port {old}: there are not so many; choose a lower one"
            )
            .into()),
            None => Ok(()),
        }
    }

    /// Ports of the clone with this number.
    pub fn ports_of(&self, number: u16) -> Vec<(u16, u16)> {
        self.ports.iter().map(|(old, new)| (*old, new.saturating_add(number))).collect()
    }

    /// Forks the front end of a clone, where `forget` drops the channels of all others: whoever holds one keeps that clone. This process has
    /// one thread.
    pub fn begin(&self, id: Id, number: u16, forget: impl FnOnce()) -> io::Result<Background> {
        let (ours, theirs) = UnixStream::pair()?;
        let parent = process::id();
        if process::fork()?.is_none() {
            drop(ours);
            forget();
            if !process::die_with_parent(parent) {
                process::exit_now(1);
            }
            process::leave_session();
            process::close_streams();
            let _ = std::env::set_current_dir("/");
            process::exit_now(self.attend(&id, number, &theirs).into());
        }
        Ok(Background { id, number, channel: BufReader::new(ours) })
    }

    /// The front end of a clone, to the end of that.
    fn attend(&self, id: &Id, number: u16, channel: &UnixStream) -> u8 {
        let started = || {
            let Ok(channel) = channel.try_clone() else { process::exit_now(1) };
            let (root, id, is_asleep) = (self.root.clone(), id.clone(), self.is_asleep);
            // From now on it ends with the channel.
            process::survive_parent();
            thread::spawn(move || hold(&root, &id, is_asleep, channel));
        };
        let clone = CloneOptions {
            id: id.clone(),
            disk_bytes: self.disk_bytes,
            userns: self.userns,
            share: self.share.clone(),
            hibernation: self.hibernation.clone(),
            surroundings: Surroundings {
                accepts_changed: self.accepts_changed,
                ports: self.ports_of(number),
            },
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

/// Says that a clone has begun, and waits until it is let go.
fn hold(root: &Root, id: &Id, is_asleep: bool, mut channel: UnixStream) {
    if is_asleep && let Err(error) = orders::hibernate(root, id) {
        tell_failure(&channel, &error.to_string());
        process::exit_now(1);
    }
    let _ = channel.write_all(&[BEGUN, b'\n']);
    if !matches!(channel.read(&mut [0]), Ok(1)) {
        // The VMM ends with this process, and its watcher removes what is left.
        process::exit_now(1);
    }
    let _ = channel.shutdown(Shutdown::Both);
}

fn tell_failure(mut channel: &UnixStream, words: &str) {
    let _ = channel.write_all(&[&[FAILED], words.replace('\n', " ").as_bytes(), b"\n"].concat());
}

impl Background {
    /// One that somebody else has begun.
    pub fn handed_over(id: Id, number: u16, channel: UnixStream) -> Self {
        Self { id, number, channel: BufReader::new(channel) }
    }

    /// Hears whether it has begun, or why not.
    pub fn news(&mut self) -> Result<(), Failure> {
        let mut line = Vec::new();
        let heard = self.channel.read_until(b'\n', &mut line);
        match (heard, line.split_first()) {
            (Ok(_), Some((&BEGUN, _))) => Ok(()),
            (Ok(_), Some((&FAILED, words))) => Err(String::from_utf8_lossy(words).trim_end().into()),
            _ => Err(format!("cannot begin clone {}: it ended before it began", self.id.as_str()).into()),
        }
    }

    /// Readable once there is news: before it has begun, that; afterwards, that it has ended.
    pub fn as_raw_fd(&self) -> RawFd {
        self.channel.get_ref().as_raw_fd()
    }

    /// Its channel, for whoever is to have it.
    pub fn channel(&self) -> &UnixStream {
        self.channel.get_ref()
    }

    /// Ends it.
    pub fn end(self) {
        let _ = self.channel.get_ref().shutdown(Shutdown::Write);
        let _ = process::wait_readable([self.as_raw_fd()], END_PATIENCE_MS);
    }

    /// Lets go of it: it lives on by itself.
    pub fn release(self) {
        let _ = self.channel.get_ref().write_all(&[BEGUN]);
    }
}
