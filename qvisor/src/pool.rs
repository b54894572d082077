//! `dormouse pool`: clones of a snapshot that are ready, asleep, for whoever wants one.
//!
//! The command keeps them: each has a front end of its own, and a channel to this process, with which it ends. `do --from` asks over a socket
//! for one, and gets its channel; from then on this process has no part in it. So nothing is left when this one ends, however it does, but what
//! others have taken.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use runtime::cgroup;
use runtime::orders;
use runtime::settings::{NodeConfig, Sharing};
use runtime::snapshot::Store;
use runtime::state::{Id, Root};
use runtime::units::parse_size;
use serde::{Deserialize, Serialize};
use vmm::descriptor_passing;
use vmm::directory::Directory;
use vmm::jail::UserNamespace;
use vmm::process;

use crate::background::{Background, Source};
use crate::choices::UserNamespaceChoice;
use crate::clones::keep_sealed;
use crate::failure::{Failure, say, warn};
use crate::hibernation_args::HibernationArgs;
use crate::snapshot_args::{ChangedFiles, named_place, parse_ports, parse_sharing};

/// The directory of pools in that of the sandboxes' state. No sandbox's name begins with a dot.
const PLACE: &str = ".pools";
/// So many letters of the digest of a snapshot's manifest name its pool.
const DIGEST_LETTERS: usize = 32;
/// How long whoever asks may take to say what it wants, and to hear the answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// So long nobody must have taken one before another is made while some are left.
const QUIET: Duration = Duration::from_millis(200);
/// How long to wait before the next try when one could not be made: the first time, and at most.
const AGAIN: Duration = Duration::from_millis(200);
const AGAIN_MOST: Duration = Duration::from_secs(30);
/// Most bytes of what is said over the socket.
const LINE_MAX: u64 = 4096;

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
    /// Most bytes of the host's disk that the changes of a clone to its files may take up
    #[arg(long, value_name = "SIZE", default_value = "10G", value_parser = parse_size)]
    pub disk: u64,
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
    Take { disk_bytes: u64, userns: String },
    /// To know what there is.
    Look,
}

/// A clone that was taken from a pool.
#[derive(Debug, Serialize, Deserialize)]
struct Given {
    id: String,
    number: u16,
    ports: Vec<(u16, u16)>,
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

/// The socket of a snapshot's pool.
struct Socket {
    place: Directory,
    name: String,
}

impl Socket {
    fn of(root: &Root, digest: &str) -> std::io::Result<Self> {
        let place = Directory::make(&root.path().join(PLACE))?;
        Ok(Self { place, name: digest.get(..DIGEST_LETTERS).unwrap_or(digest).to_owned() })
    }

    fn connect(&self) -> std::io::Result<UnixStream> {
        let socket = descriptor_passing::connect_to_own(&self.place.path_by_descriptor().join(&self.name))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(socket)
    }

    /// Listens there; `None`: somebody else does. The lock is held as long as the result lives.
    fn listen(&self) -> std::io::Result<Option<(UnixListener, std::fs::File)>> {
        let lock = self.place.make_file(&format!("{}.lock", self.name))?;
        if lock.try_lock().is_err() {
            return Ok(None);
        }
        // One that was killed has left its own.
        let _ = self.place.remove_file(&self.name);
        let listener = UnixListener::bind(self.place.path_by_descriptor().join(&self.name))?;
        listener.set_nonblocking(true)?;
        Ok(Some((listener, lock)))
    }
}

pub fn run(root: &Root, config: Option<&Path>, systemd_cgroup: bool, args: &PoolArgs) -> Result<u8, Failure> {
    let node = NodeConfig::load(config)?;
    let store = Store::of_user(&node)?;
    let place = named_place(&args.name)?;
    let digest = store.digest(&place)?;
    let failed = |error| format!("cannot use the pool of snapshot {}: {error}", args.name);
    let socket = Socket::of(root, &digest).map_err(failed)?;
    let Some(size) = args.size else { return show(root, &socket, args) };
    let mut opened = store.open(&place, None)?;
    // What it needs is seen when it is used, and that is not here.
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
        disk_bytes: args.disk,
        userns: args.userns.into(),
        hibernation,
        accepts_changed: args.changed_files == Some(ChangedFiles::Accept),
        ports: args.port.clone(),
        is_asleep: true,
    };
    source.check(size)?;
    let Some((listener, _lock)) = socket.listen().map_err(failed)? else {
        return Err(
            format!("cannot make a pool of snapshot {}: there is one; end it first", args.name).into()
        );
    };
    Pool::new(source, size, listener).keep()
}

/// Clones that are ready, and those on their way.
struct Pool<'s> {
    source: Source<'s>,
    size: u16,
    listener: Option<UnixListener>,
    ready: Vec<Background>,
    coming: Option<Background>,
    /// The clones that were taken, by number.
    given: BTreeMap<u16, Id>,
    shown: Shown,
    /// The next one is not made before.
    not_before: Instant,
    patience: Duration,
}

impl<'s> Pool<'s> {
    fn new(source: Source<'s>, size: u16, listener: UnixListener) -> Self {
        let shown = Shown { size, ..Shown::default() };
        Self {
            source,
            size,
            listener: Some(listener),
            ready: Vec::new(),
            coming: None,
            given: BTreeMap::new(),
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
            let listener = self.listener.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let clones = self.ready.iter().chain(&self.coming).map(Background::as_raw_fd);
            let fds: Vec<_> = [listener].into_iter().chain(clones).collect();
            let news = process::wait_any(&fds, self.patience_ms());
            let is_news = |fd: i32| news.iter().any(|at| fds.get(*at) == Some(&fd));
            // Whoever is ready and says something has ended.
            self.ready.retain(|clone| !is_news(clone.as_raw_fd()));
            if self.coming.as_ref().is_some_and(|clone| is_news(clone.as_raw_fd())) {
                self.hear();
            }
            if is_news(listener) {
                self.answer();
            }
        }
    }

    /// How long nothing is to be done by itself.
    fn patience_ms(&self) -> i32 {
        if self.coming.is_some() || self.ready.len() >= self.size.into() {
            return -1;
        }
        let left = self.not_before.saturating_duration_since(Instant::now()).as_millis();
        i32::try_from(left).unwrap_or(i32::MAX).saturating_add(1)
    }

    /// Begins the next one if some are wanted: one after the other, and not while others are taken as long as some are left.
    fn refill(&mut self) {
        if self.coming.is_some() || self.ready.len() >= self.size.into() || Instant::now() < self.not_before {
            return;
        }
        let root = self.source.root;
        self.given.retain(|_, id| root.sandbox(id).is_ok());
        let used = |number: &u16| {
            self.given.contains_key(number) || self.ready.iter().any(|clone| clone.number == *number)
        };
        // As many as are ready and taken are used at most.
        let Some(number) = (0..=u16::MAX).find(|number| !used(number)) else { return };
        let id = Id::random();
        let forget = || {
            self.listener = None;
            self.ready.clear();
        };
        match self.source.begin(id, number, forget) {
            Ok(clone) => self.coming = Some(clone),
            Err(error) => self.take_failure(&error.to_string()),
        }
    }

    /// Hears what came of the one on its way.
    fn hear(&mut self) {
        let Some(mut clone) = self.coming.take() else { return };
        match clone.news() {
            Ok(()) => {
                self.ready.push(clone);
                self.patience = AGAIN;
            }
            Err(why) => self.take_failure(&why.to_string()),
        }
    }

    fn take_failure(&mut self, why: &str) {
        if self.shown.why.as_deref() != Some(why) {
            warn(why);
        }
        self.shown.failed += 1;
        self.shown.why = Some(why.to_owned());
        self.not_before = Instant::now() + self.patience;
        self.patience = (self.patience * 2).min(AGAIN_MOST);
    }

    /// Answers one that has connected. It has little time: others wait.
    fn answer(&mut self) {
        let Some(Ok((socket, _))) = self.listener.as_ref().map(UnixListener::accept) else { return };
        let is_set = socket.set_read_timeout(Some(PATIENCE)).and(socket.set_write_timeout(Some(PATIENCE)));
        let is_own = process::peer_user(&socket).is_ok_and(|user| user == process::effective_user());
        if is_set.is_err() || !is_own {
            return;
        }
        let wish = line_of(&socket).and_then(|line| serde_json::from_slice(&line).ok());
        match wish {
            Some(Wish::Look) => {
                self.shown.ready = self.ready.iter().map(|clone| clone.id.as_str().to_owned()).collect();
                self.shown.coming = self.coming.iter().count();
                tell(&socket, &self.shown, None);
            }
            Some(Wish::Take { disk_bytes, userns }) => {
                let is_so = disk_bytes == self.source.disk_bytes && userns == words_of(self.source.userns);
                if is_so {
                    self.give(&socket);
                }
            }
            None => {}
        }
    }

    /// Hands over the clone that has been ready for longest.
    fn give(&mut self, socket: &UnixStream) {
        self.not_before = self.not_before.max(Instant::now() + QUIET);
        if self.ready.is_empty() {
            self.shown.missed += 1;
            self.not_before = Instant::now();
            return;
        }
        let clone = self.ready.remove(0);
        let (id, number) = (clone.id.as_str().to_owned(), clone.number);
        let given = Given { id, number, ports: self.source.ports_of(number) };
        if tell(socket, &given, Some(clone.channel())) {
            self.shown.taken += 1;
            self.given.insert(number, clone.id.clone());
        } else {
            // It has gone.
            self.ready.insert(0, clone);
        }
        if self.ready.is_empty() {
            self.not_before = Instant::now();
        }
    }
}

/// A line that the other side says, if it does so in time.
fn line_of(socket: &UnixStream) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    BufReader::new(socket.take(LINE_MAX)).read_until(b'\n', &mut line).ok()?;
    Some(line)
}

/// Says something in a line, with a descriptor; whether it was sent.
fn tell(socket: &UnixStream, what: &impl Serialize, channel: Option<&UnixStream>) -> bool {
    let Ok(mut line) = serde_json::to_vec(what) else { return false };
    line.push(b'\n');
    let channel: Vec<_> = channel.into_iter().map(AsFd::as_fd).collect();
    descriptor_passing::send(socket.as_fd(), &channel, &line, 0).is_ok_and(|sent| sent == line.len())
}

/// A mode of user namespaces in words.
fn words_of(userns: UserNamespace) -> String {
    format!("{userns:?}")
}

/// Takes a clone of a snapshot from its pool, if there is one whose clones are run so; and its ports.
pub fn take(
    root: &Root,
    store: &Store,
    name: &str,
    disk_bytes: u64,
    userns: UserNamespace,
) -> Option<(Background, Vec<(u16, u16)>)> {
    let digest = store.digest(&named_place(name).ok()?).ok()?;
    let mut socket = Socket::of(root, &digest).ok()?.connect().ok()?;
    let wish = Wish::Take { disk_bytes, userns: words_of(userns) };
    socket.write_all(&[&*serde_json::to_vec(&wish).ok()?, b"\n"].concat()).ok()?;
    let (mut line, mut fds) = (Vec::new(), Vec::<OwnedFd>::new());
    while !line.ends_with(b"\n") && line.len() < LINE_MAX as usize {
        if !process::wait_readable([socket.as_raw_fd()], i32::try_from(PATIENCE.as_millis()).ok()?)[0] {
            return None;
        }
        let mut bytes = [0; 512];
        let received = descriptor_passing::receive_now(&socket, &mut bytes, &mut fds)?;
        line.extend_from_slice(bytes.get(..received.len).filter(|bytes| !bytes.is_empty())?);
    }
    let given: Given = serde_json::from_slice(&line).ok()?;
    let channel = UnixStream::from(fds.pop()?);
    Some((Background::handed_over(Id::new(&given.id).ok()?, given.number, channel), given.ports))
}

/// Shows what a pool has, and what it costs.
fn show(root: &Root, socket: &Socket, args: &PoolArgs) -> Result<u8, Failure> {
    let none =
        |_| format!("cannot find a pool of snapshot {}: there is none; begin one with --size", args.name);
    let mut asked = socket.connect().map_err(none)?;
    asked.write_all(&[&*serde_json::to_vec(&Wish::Look)?, b"\n"].concat())?;
    let shown: Shown = serde_json::from_slice(&line_of(&asked).unwrap_or_default())
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
