//! `dormouse pool`: clones of a snapshot that are ready, asleep, for whoever wants one.
//!
//! The command keeps them: each has a front end of its own, and a channel to this process, with which it ends. `do --from` asks over a socket
//! for one, and gets its channel; from then on this process has no part in it. So nothing is left when this one ends, however it does, but what
//! others have taken.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use runtime::cgroup;
use runtime::orders;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::{DigestSocket, Store};
use runtime::state::{Id, Root};
use runtime::units::parse_size;
use serde::{Deserialize, Serialize};
use vmm::descriptor_passing;
use vmm::directory::Directory;
use vmm::hibernate::Wishes;
use vmm::jail::UserNamespace;
use vmm::process;

use crate::background::{Background, Ports, Source, check_ports};
use crate::choices::UserNamespaceChoice;
use crate::clones::keep_sealed;
use crate::failure::{Failure, say, warn};
use crate::hibernation_args::HibernationArgs;
use crate::snapshot_args::{ChangedFiles, named_place, parse_ports, parse_sharing};

/// The default, which is that of `do`.
const DISK_BYTES: u64 = 10 << 30;
/// The directory of pools in that of the sandboxes' state. No sandbox's name begins with a dot.
const PLACE: &str = ".pools";
/// How long whoever asks may take to say what it wants, and to hear the answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a clone may take to begin and fall asleep.
const COMING_MOST: Duration = Duration::from_secs(120);
/// One that ends sooner after it was ready has failed.
const SOON: Duration = Duration::from_secs(10);
/// How long a number is not tried again by which none began.
const ASIDE: Duration = Duration::from_secs(60);
/// So long nobody must have taken one before another is made while some are left.
const QUIET: Duration = Duration::from_millis(200);
/// How long to wait before the next try when one could not be made: the first time, and at most.
const AGAIN: Duration = Duration::from_millis(200);
const AGAIN_MOST: Duration = Duration::from_secs(30);
/// Most bytes of a wish, and of an answer.
const WISH_MAX: usize = 4096;
const ANSWER_MAX: usize = 256 << 10;

#[derive(Debug, Args)]
pub struct PoolArgs {
    /// Name of the snapshot, or its directory's absolute path
    pub name: String,
    /// Keep so many clones ready until this command is ended; without it, show the pool that there is
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub size: Option<u16>,
    /// Give sockets of the snapshot that had the first port the second one in the first clone, the next one in the next clone, and so on
    #[arg(long, value_name = "OLD=NEW", value_parser = parse_ports, requires = "size")]
    pub port: Vec<(u16, u16)>,
    /// Whether files that the snapshot has open may have changed since [default: refuse]
    #[arg(long, value_enum, requires = "size")]
    pub changed_files: Option<ChangedFiles>,
    /// With whom a clone shares pages of the snapshot that it does not write: none, snapshot or a domain's name [default: none]
    #[arg(long, value_name = "WHOM", value_parser = parse_sharing, requires = "size")]
    pub share: Option<Sharing>,
    /// Most bytes of the host's disk that the changes of a clone to its files may take up [default: 10G]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub disk: Option<u64>,
    /// Who root in a clone is on the host [default: auto]
    #[arg(long, value_enum, default_value_t)]
    pub userns: UserNamespaceChoice,
    #[command(flatten)]
    pub hibernation: HibernationArgs,
    /// Print a JSON object
    #[arg(long, conflicts_with = "size")]
    pub json: bool,
}

/// The wish of whoever connects to a pool.
#[derive(Debug, Serialize, Deserialize)]
enum Wish {
    /// A clone that is run so.
    Take(Terms),
    /// To know what there is.
    Look,
}

/// All by which clones that are made now would differ from a pool's.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    disk_bytes: u64,
    userns: String,
    /// The namespaces of whoever makes them: network, mounts and users.
    namespaces: [String; 3],
    /// A command is to run in it, which looks for its ports where they were.
    has_command: bool,
}

impl Terms {
    /// Those of this process.
    pub fn of(disk_bytes: u64, userns: UserNamespace, has_command: bool) -> Self {
        let name = |kind: &str| {
            let link = std::fs::read_link(format!("/proc/self/ns/{kind}"));
            link.map(|link| link.to_string_lossy().into_owned()).unwrap_or_default()
        };
        let namespaces = ["net", "mnt", "user"].map(name);
        Self { disk_bytes, userns: format!("{userns:?}"), namespaces, has_command }
    }
}

/// A clone that was taken from a pool.
#[derive(Debug, Serialize, Deserialize)]
struct Given {
    id: String,
    number: u16,
    ports: Ports,
}

/// The state of a pool.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Shown {
    size: u16,
    /// IDs of the clones that are ready.
    ready: Vec<String>,
    coming: usize,
    taken: u64,
    /// How often somebody asked and none was ready.
    missed: u64,
    failed: u64,
    /// Why the last one failed.
    why: Option<String>,
}

/// Where pools are.
fn place_of(root: &Root) -> PathBuf {
    root.path().join(PLACE)
}

pub fn run(root: &Root, config: Option<&Path>, systemd_cgroup: bool, args: &PoolArgs) -> Result<u8, Failure> {
    let node = NodeConfig::load(config)?;
    let store = Store::of_user(&node)?;
    let place = named_place(&args.name)?;
    let failed = |error| format!("cannot use the pool of snapshot {}: {error}", args.name);
    let Some(size) = args.size else {
        return show(root, &store.digest(&place)?, args);
    };
    check_ports(&args.port, size)?;
    let mut opened = store.open(&place, None)?;
    opened.take_held(root, warn);
    let socket = DigestSocket::of(Directory::make(&place_of(root)).map_err(failed)?, &opened.digest()?);
    // Which pages it needs is seen when it is used, and that is not here.
    opened.leave_unrecorded();
    let mut hibernation = args.hibernation.wishes()?;
    keep_sealed(&opened, &mut hibernation)?;
    let source = Source {
        root,
        node,
        systemd_cgroup,
        store: &store,
        opened: Arc::new(opened),
        share: args.share.clone(),
        disk_bytes: args.disk.unwrap_or(DISK_BYTES),
        userns: args.userns.into(),
        hibernation,
        accepts_changed: args.changed_files == Some(ChangedFiles::Accept),
        ports: args.port.clone(),
        is_asleep: true,
        all_go: None,
    };
    source.check()?;
    let Some(lock) = socket.lock().map_err(failed)? else {
        return Err(
            format!("cannot make a pool of snapshot {}: there is one; end it first", args.name).into()
        );
    };
    let listener = socket.listen().map_err(failed)?;
    Pool::new(source, size, (listener, lock)).keep()
}

/// Clones that are ready, and those on their way.
struct Pool<'s> {
    source: Source<'s>,
    size: u16,
    /// The socket, and the lock that nobody else listens there.
    listening: Option<(UnixListener, File)>,
    /// Since when each is.
    ready: Vec<(Background, Instant)>,
    coming: Option<(Background, Instant)>,
    /// The clones that were taken, by number.
    given: BTreeMap<u16, Id>,
    /// Numbers by which none began, until they are tried again.
    aside: BTreeMap<u16, Instant>,
    shown: Shown,
    /// The next one is not made before.
    not_before: Instant,
    patience: Duration,
}

impl<'s> Pool<'s> {
    fn new(source: Source<'s>, size: u16, listening: (UnixListener, File)) -> Self {
        let shown = Shown { size, ..Shown::default() };
        Self {
            source,
            size,
            listening: Some(listening),
            ready: Vec::new(),
            coming: None,
            given: BTreeMap::new(),
            aside: BTreeMap::new(),
            shown,
            not_before: Instant::now(),
            patience: AGAIN,
        }
    }

    /// Keeps clones ready for ever.
    fn keep(mut self) -> Result<u8, Failure> {
        loop {
            process::reap_ended(|_, _| {});
            self.refill();
            let listener = self.listening.as_ref().map_or(-1, |(listener, _)| listener.as_raw_fd());
            let clones = self.ready.iter().chain(&self.coming).map(|(clone, _)| clone.as_raw_fd());
            let fds: Vec<_> = [listener].into_iter().chain(clones).collect();
            let news = process::wait_any(&fds, self.patience_ms());
            let is_news = |fd: i32| news.iter().any(|at| fds.get(*at) == Some(&fd));
            // Whoever is ready and says something has ended.
            let (ended, ready) = self.ready.drain(..).partition(|(clone, _)| is_news(clone.as_raw_fd()));
            self.ready = ready;
            self.take_ended(ended);
            let has_spoken = |(clone, _): &(Background, Instant)| is_news(clone.as_raw_fd());
            match self.coming.take() {
                Some(coming) if has_spoken(&coming) => self.hear(coming.0),
                Some((clone, since)) if since.elapsed() > COMING_MOST => {
                    let words =
                        format!("clone {} did not begin in {} s", clone.id.as_str(), COMING_MOST.as_secs());
                    self.take_failure(clone.number, &words);
                    clone.kill();
                }
                coming => self.coming = coming,
            }
            if is_news(listener) {
                self.answer();
            }
        }
    }

    /// How long nothing is to be done by itself.
    fn patience_ms(&self) -> i32 {
        let now = Instant::now();
        let left = match &self.coming {
            Some((_, since)) => (*since + COMING_MOST).saturating_duration_since(now),
            None if self.ready.len() >= self.size.into() => return -1,
            None => self.not_before.saturating_duration_since(now),
        };
        i32::try_from(left.as_millis()).unwrap_or(i32::MAX).saturating_add(1)
    }

    /// Begins the next one if some are wanted: one after the other, and not while others are taken as long as some are left.
    fn refill(&mut self) {
        let now = Instant::now();
        if self.coming.is_some() || self.ready.len() >= self.size.into() || now < self.not_before {
            return;
        }
        let root = self.source.root;
        self.given.retain(|_, id| root.sandbox(id).is_ok());
        self.aside.retain(|_, until| *until > now);
        let is_used = |number: u16| self.ready.iter().any(|(clone, _)| clone.number == number);
        let is_free = |number: u16| {
            !is_used(number) && !self.given.contains_key(&number) && !self.aside.contains_key(&number)
        };
        let number = (0..=u16::MAX).find(|number| is_free(*number));
        let Some(number) = number.filter(|number| self.source.ports_of(*number).is_some()) else {
            return self
                .take_failure(u16::MAX, "no port is left for another clone; choose lower ones by --port");
        };
        let forget = || {
            self.listening = None;
            self.ready.clear();
        };
        match self.source.begin(Id::random(), number, forget) {
            Ok(clone) => self.coming = Some((clone, now)),
            Err(error) => self.take_failure(number, &error.to_string()),
        }
    }

    /// Hears what came of the one on its way.
    fn hear(&mut self, mut clone: Background) {
        match clone.news() {
            Ok(()) => self.ready.push((clone, Instant::now())),
            Err(why) => {
                // Other words each time would be said each time.
                let why = why.to_string().replace(clone.id.as_str(), "of the pool");
                self.take_failure(clone.number, &why);
            }
        }
    }

    /// Takes note of those that were ready and have ended by themselves.
    fn take_ended(&mut self, ended: Vec<(Background, Instant)>) {
        for (clone, since) in ended {
            if since.elapsed() < SOON {
                self.take_failure(clone.number, "a clone of the pool ended soon after it was ready");
            } else {
                self.patience = AGAIN;
            }
        }
    }

    fn take_failure(&mut self, number: u16, why: &str) {
        if self.shown.why.as_deref() != Some(why) {
            warn(why);
        }
        self.shown.failed += 1;
        self.shown.why = Some(why.to_owned());
        self.aside.insert(number, Instant::now() + ASIDE);
        self.not_before = Instant::now() + self.patience;
        self.patience = (self.patience * 2).min(AGAIN_MOST);
    }

    /// Answers one that has connected. It has little time: others wait.
    fn answer(&mut self) {
        let Some(Ok((socket, _))) = self.listening.as_ref().map(|(listener, _)| listener.accept()) else {
            return;
        };
        let is_own = process::peer_user(&socket).is_ok_and(|user| user == process::effective_user());
        if !is_own || socket.set_write_timeout(Some(PATIENCE)).is_err() {
            return;
        }
        let wish =
            line_of(&socket, WISH_MAX, &mut Vec::new()).and_then(|line| serde_json::from_slice(&line).ok());
        match wish {
            Some(Wish::Look) => {
                self.shown.ready = self.ready.iter().map(|(clone, _)| clone.id.as_str().to_owned()).collect();
                self.shown.coming = self.coming.iter().count();
                tell(&socket, &self.shown, None);
            }
            Some(Wish::Take(terms)) => {
                let own = Terms::of(self.source.disk_bytes, self.source.userns, terms.has_command);
                if terms == own && (!terms.has_command || self.source.ports.is_empty()) {
                    self.give(&socket);
                }
            }
            None => {}
        }
    }

    /// Hands over the clone that has been ready for longest.
    fn give(&mut self, socket: &UnixStream) {
        if self.ready.is_empty() {
            self.shown.missed += 1;
        } else {
            let (clone, _) = self.ready.remove(0);
            // A request, or a command, wakes it, too; nothing else may come.
            clone.wake();
            let (id, number) = (clone.id.as_str().to_owned(), clone.number);
            let ports = self.source.ports_of(number).unwrap_or_default();
            if tell(socket, &Given { id, number, ports }, Some(clone.channel())) {
                self.shown.taken += 1;
                self.given.insert(number, clone.id.clone());
                self.patience = AGAIN;
            }
            // Where nobody has got it, it ends with its channel.
        }
        // After failures it is waited for as long as that is to be.
        if self.patience == AGAIN {
            let quiet = if self.ready.is_empty() { Duration::ZERO } else { QUIET };
            self.not_before = Instant::now() + quiet;
        }
    }
}

/// A line that the other side says, if it does so in time, and descriptors that come with it.
fn line_of(socket: &UnixStream, most: usize, fds: &mut Vec<OwnedFd>) -> Option<Vec<u8>> {
    let deadline = Instant::now() + PATIENCE;
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = i32::try_from(deadline.saturating_duration_since(Instant::now()).as_millis()).ok()?;
        if line.len() > most || left == 0 || !process::wait_readable([socket.as_raw_fd()], left)[0] {
            return None;
        }
        let mut bytes = [0; 4096];
        let received = descriptor_passing::receive_now(socket, &mut bytes, fds)?;
        line.extend_from_slice(bytes.get(..received.len).filter(|bytes| !bytes.is_empty())?);
    }
    Some(line)
}

/// Says something in a line, with a descriptor; whether it was sent.
fn tell(mut socket: &UnixStream, what: &impl Serialize, channel: Option<&UnixStream>) -> bool {
    let Ok(mut line) = serde_json::to_vec(what) else { return false };
    line.push(b'\n');
    match channel {
        Some(channel) => descriptor_passing::send(socket.as_fd(), &[channel.as_fd()], &line, 0)
            .is_ok_and(|sent| sent == line.len()),
        None => socket.write_all(&line).is_ok(),
    }
}

/// Takes a clone of a snapshot from its pool, if there is one whose clones are run so; and its ports.
pub fn take(root: &Root, store: &Store, name: &str, terms: Terms) -> Option<(Background, Ports)> {
    // Mostly there is none, and the manifest is not read for that.
    let place = Directory::open(&place_of(root)).ok()?;
    let digest = store.digest(&named_place(name).ok()?).ok()?;
    let socket = DigestSocket::of(place, &digest).connect(PATIENCE).ok()?;
    if !tell(&socket, &Wish::Take(terms), None) {
        return None;
    }
    let mut fds = Vec::new();
    let given: Given = serde_json::from_slice(&line_of(&socket, ANSWER_MAX, &mut fds)?).ok()?;
    let channel = UnixStream::from(fds.pop()?);
    Some((Background::handed_over(Id::new(&given.id).ok()?, given.number, channel), given.ports))
}

/// Shows what a pool has, and what it costs.
fn show(root: &Root, digest: &str, args: &PoolArgs) -> Result<u8, Failure> {
    let none =
        |_| format!("cannot find a pool of snapshot {}: there is none; begin one with --size", args.name);
    let wishes = args.hibernation.wishes()?;
    if wishes != Wishes::default() || args.userns != UserNamespaceChoice::default() || args.disk.is_some() {
        return Err("cannot use options of clones to show a pool: add --size to make one".into());
    }
    let place = Directory::open(&place_of(root));
    let asked = place.and_then(|place| DigestSocket::of(place, digest).connect(PATIENCE)).map_err(none)?;
    tell(&asked, &Wish::Look, None);
    let answer = line_of(&asked, ANSWER_MAX, &mut Vec::new()).unwrap_or_default();
    let shown: Shown = serde_json::from_slice(&answer)
        .map_err(|_| format!("cannot look at the pool of snapshot {}: it does not answer", args.name))?;
    let (mut memory_bytes, mut disk_bytes) = (0, 0);
    for id in shown.ready.iter().filter_map(|id| Id::new(id).ok()) {
        let pid = root.state(&id).map_or(0, |state| state.pid);
        memory_bytes += cgroup::usage(&cgroup::groups_of(pid)).memory.usage.bytes;
        disk_bytes += orders::stats(root, &id).map_or(0, |stats| stats.memory.swapped_bytes);
    }
    if args.json {
        let mut object = serde_json::to_value(&shown)?;
        object["memory_bytes"] = memory_bytes.into();
        object["stored_bytes"] = disk_bytes.into();
        return say(&(serde_json::to_string_pretty(&object)? + "\n"));
    }
    let Shown { size, ready, coming, taken, missed, failed, why } = shown;
    let mut text = format!("ready    {} of {size}, {coming} on its way\n", ready.len());
    text += &format!("taken    {taken}, and {missed} times none was ready\n");
    text += &format!("memory   {memory_bytes} bytes charged, {disk_bytes} stored\n");
    if let Some(why) = why {
        text += &format!("failed   {failed}, last: {why}\n");
    }
    ready.iter().for_each(|id| text += &format!("clone    {id}\n"));
    say(&text)
}
