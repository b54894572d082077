//! The collector of sockets that only messages hold, while sockets go from message to message between any two of its pieces.
//!
//! A model knows what each queue holds and which files have descriptors. After each pass what can be reached is there, in order,
//! and once nothing moves nothing else is.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::fs::caller::CallerCtx;
use crate::fs::file::{File, OpenFlags};
use crate::net::ancillary::PeerCreds;
use crate::net::inbox::ReceiveHow;
use crate::net::options::Options;
use crate::net::passing::{self, Passing, Rights};
use crate::net::{
    AF_UNIX, MsgFlags, Outgoing, SOCK_DGRAM, SOCK_SEQPACKET, Socket, SocketFile, new_pair, new_socket,
};
use crate::task::core::current;
use machine::errno::Result;
use machine::mm::IoBuf;
use machine::sync::{Rank, SpinLock};

pub const SCENARIOS: &[fn()] = &[what_moves_stays_and_what_nobody_reaches_goes];

const ROUNDS: u64 = 400;
/// The number of actions before each pass, and the highest between two pieces of it.
const BEFORE: u64 = 60;
const BETWEEN: u64 = 4;
/// Descriptors from which on more are closed than made.
const MANY: usize = 12;

/// The number of a queue.
type Queue = u64;

struct World {
    random: u64,
    passing: Arc<Passing>,
    descriptors: Vec<Arc<File>>,
    /// All files that ever were.
    files: BTreeMap<u64, Weak<File>>,
    /// Where a socket's messages lie, and where those lie that it sends.
    receives: BTreeMap<u64, Queue>,
    sends: BTreeMap<u64, Queue>,
    /// Connections that wait in a listener.
    waiting: BTreeMap<u64, VecDeque<Queue>>,
    /// The files of each message.
    queues: BTreeMap<Queue, VecDeque<Vec<u64>>>,
}

static WORLD: SpinLock<Option<World>> = SpinLock::new(Rank::Leaf, None);

/// Between two pieces of a pass.
fn something_moves() -> Result<()> {
    // Not with the lock held: what moves takes other locks.
    let world = WORLD.lock().take();
    if let Some(mut world) = world {
        let count = world.below(BETWEEN + 1);
        world.act(count);
        *WORLD.lock() = Some(world);
    }
    Ok(())
}

fn what_moves_stays_and_what_nobody_reaches_goes() {
    for seed in 1..=ROUNDS {
        let mut world = World::new(seed);
        world.act(BEFORE);
        *WORLD.lock() = Some(world);
        passing::collect_with(something_moves);
        let world = WORLD.lock().take();
        let mut world = world.expect("the world");
        world.check_queues(seed);
        passing::collect_all();
        world.check_files(seed);
        world.descriptors.clear();
        passing::collect_all();
        world.check_files(seed);
        assert_eq!(passing::census(), (0, 0), "seed {seed}: sockets in messages in the end");
    }
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            passing: Passing::new(),
            descriptors: Vec::new(),
            files: BTreeMap::new(),
            receives: BTreeMap::new(),
            sends: BTreeMap::new(),
            waiting: BTreeMap::new(),
            queues: BTreeMap::new(),
        }
    }

    /// A cheap seeded generator (xorshift64*).
    fn below(&mut self, bound: u64) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn any(&mut self) -> Option<Arc<File>> {
        let count = self.descriptors.len() as u64;
        let at = (count > 0).then(|| self.below(count))?;
        self.descriptors.get(usize::try_from(at).ok()?).cloned()
    }

    fn act(&mut self, count: u64) {
        for _ in 0..count {
            let closes = if self.descriptors.len() > MANY { 5 } else { 1 };
            match self.below(12 + closes) {
                0 => self.pair(),
                1 => self.listener(),
                2 => self.connect(),
                3 => self.accept(),
                4..8 => self.send(),
                8..10 => self.receive(false),
                10 => self.receive(true),
                11 if self.descriptors.is_empty() => self.pair(),
                _ => self.close(),
            }
        }
    }

    fn queue(&mut self) -> Queue {
        let number = self.queues.len() as u64;
        self.queues.insert(number, VecDeque::new());
        number
    }

    fn open(&mut self, socket: Arc<dyn Socket>) -> u64 {
        let task = current();
        let file = SocketFile::open(&CallerCtx::new(&*task), socket, OpenFlags::empty());
        let id = file.id;
        self.files.insert(id, Arc::downgrade(&file));
        self.descriptors.push(file);
        id
    }

    fn pair(&mut self) {
        let kind = if self.below(2) == 0 { SOCK_DGRAM } else { SOCK_SEQPACKET };
        let ends = new_pair(AF_UNIX.into(), kind, 0, &PeerCreds::default()).expect("a pair");
        let queues = [self.queue(), self.queue()];
        for (end, (receives, sends)) in ends.into_iter().zip([(0, 1), (1, 0)]) {
            let id = self.open(end);
            self.receives.insert(id, queues[receives]);
            self.sends.insert(id, queues[sends]);
        }
    }

    fn listener(&mut self) {
        let task = current();
        let socket = new_socket(AF_UNIX.into(), SOCK_SEQPACKET, 0).expect("a socket");
        socket.autobind().expect("a name");
        socket.listen(&CallerCtx::new(&*task), 4).expect("a listener");
        let id = self.open(socket);
        self.waiting.insert(id, VecDeque::new());
    }

    fn any_listener(&mut self) -> Option<(u64, Arc<dyn Socket>)> {
        let file = self.any().filter(|file| self.waiting.contains_key(&file.id))?;
        Some((file.id, SocketFile::of(&file).ok()?.socket.clone()))
    }

    fn connect(&mut self) {
        let Some((id, listener)) = self.any_listener() else { return };
        let task = current();
        let cx = CallerCtx::new(&*task);
        let client = new_socket(AF_UNIX.into(), SOCK_SEQPACKET, 0).expect("a socket");
        let name = listener.local_name().expect("a name");
        let to = client.resolve(&cx, &name).expect("the listener");
        if client.connect(Some(&to), PeerCreds::default(), false).is_err() {
            return;
        }
        let (to_listener, to_client) = (self.queue(), self.queue());
        let client = self.open(client);
        self.receives.insert(client, to_client);
        self.sends.insert(client, to_listener);
        self.waiting.entry(id).or_default().push_back(to_listener);
    }

    fn accept(&mut self) {
        let Some((id, listener)) = self.any_listener() else { return };
        let queue = self.waiting.get_mut(&id).and_then(VecDeque::pop_front);
        let accepted = listener.accept(false);
        assert_eq!(accepted.is_ok(), queue.is_some(), "a connection is lost");
        if let (Ok(accepted), Some(queue)) = (accepted, queue) {
            let id = self.open(accepted);
            self.receives.insert(id, queue);
        }
    }

    fn send(&mut self) {
        let Some(by) = self.any() else { return };
        let Some(queue) = self.sends.get(&by.id).copied() else { return };
        let count = 1 + self.below(3);
        let files: Vec<Arc<File>> = (0..count).filter_map(|_| self.any()).collect();
        let ids: Vec<u64> = files.iter().map(|file| file.id).collect();
        let rights = Rights::new(files, &self.passing, 0, u64::MAX).expect("room for files");
        let mut message = Outgoing { rights: Some(rights), flags: MsgFlags::empty(), ..Outgoing::default() };
        let socket = &SocketFile::of(&by).expect("a socket").socket;
        if socket.send(&mut IoBuf::constant(b"x"), &mut message, &Options::new()).is_ok() {
            self.queues.entry(queue).or_default().push_back(ids);
        }
    }

    fn receive(&mut self, peek: bool) {
        let Some(by) = self.any() else { return };
        let Some(queue) = self.receives.get(&by.id).copied() else { return };
        let socket = SocketFile::of(&by).expect("a socket");
        let mut bytes = [0; 4];
        let how = ReceiveHow { peek, ..ReceiveHow::default() };
        let Ok(received) = socket.receive(&mut IoBuf::kernel(&mut bytes), how) else { return };
        let messages = self.queues.entry(queue).or_default();
        let expected = if peek { messages.front().cloned() } else { messages.pop_front() };
        let ids: Vec<u64> = received.files.iter().map(|file| file.id).collect();
        assert_eq!(ids, expected.unwrap_or_default(), "the files of a message");
        self.descriptors.extend(received.files);
    }

    fn close(&mut self) {
        let count = self.descriptors.len() as u64;
        if count > 0 {
            let at = self.below(count);
            drop(self.descriptors.swap_remove(usize::try_from(at).expect("a place")));
        }
    }

    /// The files that descriptors lead to.
    fn reached(&self) -> BTreeSet<u64> {
        let mut left: Vec<u64> = self.descriptors.iter().map(|file| file.id).collect();
        let mut reached = BTreeSet::new();
        while let Some(id) = left.pop() {
            if reached.insert(id) {
                let queues =
                    self.receives.get(&id).into_iter().chain(self.waiting.get(&id).into_iter().flatten());
                let messages = queues.flat_map(|queue| self.queues.get(queue)).flatten();
                left.extend(messages.flatten());
            }
        }
        reached
    }

    /// Checks that all files that can be reached are there, and that their queues hold as many files as they should.
    fn check_queues(&self, seed: u64) {
        for id in self.reached() {
            let Some(file) = self.files.get(&id).and_then(Weak::upgrade) else {
                panic!("seed {seed}: a file that can be reached is gone");
            };
            let Some(queue) = self.receives.get(&id) else { continue };
            let waiting = SocketFile::of(&file).expect("a socket").socket.waiting_files().unwrap_or(0);
            let expected: usize = self.queues.get(queue).into_iter().flatten().map(Vec::len).sum();
            assert_eq!(waiting, expected, "seed {seed}: files in the queue of a socket that can be reached");
        }
    }

    /// So it is, and nothing else.
    fn check_files(&self, seed: u64) {
        self.check_queues(seed);
        let reached = self.reached();
        let lives = |file: &Weak<File>| file.strong_count() != 0;
        let living: BTreeSet<u64> =
            self.files.iter().filter(|(_, file)| lives(file)).map(|(id, _)| *id).collect();
        assert_eq!(living, reached, "seed {seed}: files that are there");
    }
}
