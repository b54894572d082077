//! The driver: it keeps what one VMM leaves until the next one takes it over, and talks to the program meanwhile.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use abi::layout::{LINEAR_BASE_SYSTRAP, WINDOW_PHYS_END};
use codec::{PIECE_BYTES, Packer, Style, TableSet};
use vmm::handover::Kept;

use crate::Options;
use crate::entrant::{self, Entrant, SecondContainer};
use crate::vmm_side::{ASLEEP, BOOT, CREATE, ENDED, EXEC, GO, LEAVE, READY, RESUME, SLEEP, WAKE, in_full};

/// How long any answer may take. It is no measure: what is lost never comes.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The program's wait status when nothing was wrong at its end.
const RIGHT_END: u32 = 7 << 8;

/// The end of the addresses of the sandbox's memory.
const LINEAR_END: u64 = LINEAR_BASE_SYSTRAP + WINDOW_PHYS_END;
/// The memory, from 0 on, in which the kernel keeps what it knows of a small sandbox, in bytes.
const KERNEL_END: u64 = 32 << 20;

pub type Outcome<T> = Result<T, String>;

pub fn why(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// A VMM, and the socket to it.
struct Vmm {
    child: Child,
    socket: UnixStream,
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Vmm {
    fn start(dir: &Path, options: &Options) -> Outcome<Self> {
        let (ours, theirs) = UnixStream::pair().map_err(why)?;
        ours.set_read_timeout(Some(PATIENCE)).map_err(why)?;
        let child = Command::new("/proc/self/exe")
            .args(["--platform", &options.platform])
            .args(options.server.then_some("--server"))
            .args(options.afresh.then_some("--afresh"))
            .arg("--vmm")
            .arg(dir)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .map_err(why)?;
        Ok(Self { child, socket: ours })
    }

    fn say(&self, word: u8) -> Outcome<()> {
        (&self.socket).write_all(&[word]).map_err(why)
    }

    fn hear(&self, word: u8) -> Outcome<()> {
        let mut heard = [0];
        (&self.socket).read_exact(&mut heard).map_err(|error| format!("the VMM does not answer: {error}"))?;
        match heard[0] {
            heard if heard == word => Ok(()),
            ENDED => Err(format!("the sandbox has ended: {:?}", self.status())),
            other => Err(format!("the VMM said {:?} instead of {:?}", char::from(other), char::from(word))),
        }
    }

    fn status(&self) -> Outcome<u32> {
        let mut status = [0; 4];
        (&self.socket).read_exact(&mut status).map_err(why)?;
        Ok(u32::from_le_bytes(status))
    }

    /// Ends it as nothing else can. It has run nothing yet.
    fn kill(mut self) -> Outcome<()> {
        self.child.kill().and_then(|()| self.child.wait()).map(drop).map_err(why)
    }

    /// Waits until it has ended by itself.
    fn end(mut self) -> Outcome<()> {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().map_err(why)? {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => return Err("the former VMM does not end".into()),
                None => std::thread::sleep(Duration::from_micros(50)),
            }
        };
        if status.success() { Ok(()) } else { Err(format!("the former VMM ended with {status}")) }
    }

    /// The host addresses at which it has anything mapped but the sandbox's memory.
    fn mappings(&self) -> Outcome<Vec<Range<u64>>> {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).map_err(why)?;
        let range = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
        };
        let is_own = |range: &Range<u64>| !(LINEAR_BASE_SYSTRAP..LINEAR_END).contains(&range.start);
        Ok(text.lines().filter_map(range).filter(is_own).collect())
    }
}

/// A small generator of choices.
struct Choices(u64);

impl Choices {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// A program's next line.
pub fn line_of(from_it: &mut BufReader<File>) -> Outcome<String> {
    if from_it.buffer().is_empty() {
        // Each answer comes in one piece.
        let mut fd = libc::pollfd { fd: from_it.get_ref().as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let patience = i32::try_from(PATIENCE.as_millis()).map_err(why)?;
        // SAFETY: one structure, which is live.
        if unsafe { libc::poll(&raw mut fd, 1, patience) } != 1 {
            return Err("the program does not answer".into());
        }
    }
    let mut line = String::new();
    from_it.read_line(&mut line).map_err(why)?;
    Ok(line.trim_end().to_owned())
}

/// The talk to the program.
struct Program {
    to_it: File,
    from_it: BufReader<File>,
    client: Option<BufReader<TcpStream>>,
}

impl Program {
    /// Connects to its server, which may not be there yet.
    fn connect(&mut self, port: u16) -> Outcome<()> {
        let start = Instant::now();
        let client = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(client) => break client,
                Err(error) if start.elapsed() > PATIENCE => return Err(why(error)),
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        };
        client.set_read_timeout(Some(PATIENCE)).map_err(why)?;
        self.client = Some(BufReader::new(client));
        Ok(())
    }

    fn line(&mut self) -> Outcome<String> {
        line_of(&mut self.from_it)
    }

    fn ask(&mut self, word: &str) -> Outcome<()> {
        self.to_it.write_all(format!("{word}\n").as_bytes()).map_err(why)
    }

    fn hear(&mut self, word: &str) -> Outcome<()> {
        let line = self.line()?;
        if line == format!("right {word}") { Ok(()) } else { Err(format!("{word}: {line:?}")) }
    }

    fn request(&mut self, word: &str) -> Outcome<()> {
        // In one piece, as the program takes it for one.
        let client = self.client.as_mut().ok_or("no client")?;
        client.get_mut().write_all(format!("{word}\n").as_bytes()).map_err(why)
    }

    fn reply(&mut self, word: &str) -> Outcome<()> {
        let mut line = String::new();
        self.client.as_mut().ok_or("no client")?.read_line(&mut line).map_err(why)?;
        if line == format!("again {word}\n") { Ok(()) } else { Err(format!("request {word}: {line:?}")) }
    }
}

/// Times of one replacement, in microseconds.
#[derive(Clone, Copy, Default)]
struct Times {
    was_asleep: bool,
    /// From the order to what is kept, to the former VMM's end, to the next one's readiness, to an answer.
    kept: u128,
    ended: u128,
    ready: u128,
    answered: u128,
}

struct World {
    dir: PathBuf,
    options: Options,
    choices: Choices,
    killed: u32,
    kept_bytes: u64,
    packed_bytes: u64,
    /// Places in the kernel's memory that had an address of the VMM's in each round.
    addresses: Option<BTreeSet<u64>>,
    times: Vec<Times>,
    entrant: Option<Entrant>,
    second: Option<SecondContainer>,
    round: u32,
    /// How this round goes, for the report.
    step: &'static str,
}

pub fn run(options: &Options) -> ExitCode {
    let dir = std::env::temp_dir().join(format!("dormouse-revive-{}", std::process::id()));
    let mut world = World {
        dir,
        options: options.clone(),
        choices: Choices(options.seed),
        killed: 0,
        kept_bytes: 0,
        packed_bytes: 0,
        addresses: None,
        times: Vec::new(),
        entrant: None,
        second: None,
        round: 0,
        step: "",
    };
    let outcome = world.run();
    if let Err(why) = &outcome {
        eprintln!("revive: round {} ({}): {why}", world.round, world.step);
        eprint!("{}", std::fs::read_to_string(world.dir.join("errors")).unwrap_or_default());
    }
    let _ = std::fs::remove_dir_all(&world.dir);
    let done = world.times.len();
    println!(
        "{done} rounds, {} of the VMMs killed before they ran, faults: {}",
        world.killed,
        u32::from(outcome.is_err())
    );
    println!("memory taken: {} kB at most", world.kept_bytes >> 10);
    if options.figures {
        world.print_figures();
    }
    println!("{} passed, {} failed", u32::from(outcome.is_ok()), u32::from(outcome.is_err()));
    if outcome.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

impl World {
    fn run(&mut self) -> Outcome<()> {
        std::fs::create_dir(&self.dir)
            .and_then(|()| std::fs::create_dir(self.dir.join("data")))
            .map_err(why)?;
        for name in ["in", "out"] {
            entrant::make_fifo(&self.dir.join(name))?;
        }
        let askers = entrant::prepare(&self.dir)?;
        let mut vmm = Vmm::start(&self.dir, &self.options)?;
        vmm.say(BOOT)?;
        // Both ends of each, so that no open waits.
        let open = |name| File::options().read(true).write(true).open(self.dir.join(name)).map_err(why);
        let (to_it, from_it) = (open("in")?, open("out")?);
        vmm.hear(READY)?;
        vmm.say(GO)?;
        let mut program = Program { to_it, from_it: BufReader::new(from_it), client: None };
        let port = program.line()?;
        let port: u16 = port.parse().map_err(|_| format!("no port: {port:?}"))?;
        program.connect(port)?;
        for round in 1..=self.options.rounds {
            let word = format!("round{round}");
            program.ask(&word)?;
            program.hear(&word)?;
            (self.round, self.step) = (round, "");
            if !(self.options.server || self.options.afresh) {
                self.turn_of_entrant(&vmm, &askers, &word)?;
                self.turn_of_second(&vmm, &word)?;
            }
            vmm = match self.options.afresh {
                true => self.replace_afresh(vmm, &mut program, port)?,
                false => self.replace(vmm, &mut program, round)?,
            };
        }
        if let Some(mut second) = self.second.take() {
            second.close();
            second.end()?;
        }
        if let Some(mut entrant) = self.entrant.take() {
            entrant.close();
            entrant.end()?;
        }
        drop(program);
        // The one by which the kernel calls its VMM, which each VMM sets.
        let places = self.addresses.take().unwrap_or_default();
        if places.len() > 1 {
            return Err(format!("words of the kernel's memory are addresses of the VMM's: {places:#x?}"));
        }
        let mut end = [0];
        (&vmm.socket).read_exact(&mut end).map_err(why)?;
        match (end[0], vmm.status()?) {
            (ENDED, RIGHT_END) => Ok(()),
            (_, status) => Err(format!("the program ended with {status:#x}")),
        }
    }

    /// A process comes in, does something, or has ended since.
    fn turn_of_entrant(&mut self, vmm: &Vmm, askers: &UnixListener, word: &str) -> Outcome<()> {
        if let Some(ended) = self.entrant.take_if(|entrant| entrant.is_to_end()) {
            ended.end()?;
        }
        if self.entrant.is_none() {
            vmm.say(EXEC)?;
            self.entrant = Some(Entrant::accept(&self.dir, askers)?);
        }
        self.entrant.as_mut().map_or(Ok(()), |entrant| entrant.turn(word))
    }

    /// The second container, likewise.
    fn turn_of_second(&mut self, vmm: &Vmm, word: &str) -> Outcome<()> {
        if let Some(ended) = self.second.take_if(|second| second.is_to_end()) {
            ended.end()?;
        }
        if self.second.is_none() {
            vmm.say(CREATE)?;
            self.second = Some(SecondContainer::meet(&self.dir)?);
        }
        self.second.as_mut().map_or(Ok(()), |second| second.turn(word))
    }

    /// The peer of the process that has come in does something, while there may be no VMM; or the second container is to end.
    fn disturb(&mut self) -> Outcome<()> {
        if self.choices.next(6) == 0 {
            self.second.iter_mut().for_each(SecondContainer::close);
        }
        let choice = self.choices.next(6);
        match (&mut self.entrant, choice) {
            (Some(entrant), 0) => entrant.close(),
            (Some(entrant), 1..=3) => entrant.signal()?,
            _ => {}
        }
        Ok(())
    }

    /// One VMM takes the place of another.
    fn replace(&mut self, vmm: Vmm, program: &mut Program, round: u32) -> Outcome<Vmm> {
        let was_asleep = self.choices.next(2) == 0;
        if was_asleep {
            vmm.say(SLEEP)?;
            vmm.hear(ASLEEP)?;
        }
        let mappings = vmm.mappings()?;
        // A request that comes at some moment: before, meanwhile or afterwards.
        let moment = self.choices.next(4);
        let word = format!("request{round}");
        self.step = step(was_asleep, moment);
        let start = Instant::now();
        let us = || start.elapsed().as_micros();
        if moment == 0 && !was_asleep {
            program.request(&word)?;
        }
        vmm.say(LEAVE)?;
        if moment == 2 {
            self.disturb()?;
        }
        // It begins meanwhile, and waits for what is kept.
        let next = Vmm::start(&self.dir, &self.options)?;
        let kept = Kept::receive(&vmm.socket).map_err(|error| in_full(&error))?;
        let mut times = Times { was_asleep, kept: us(), ..Times::default() };
        let memory = File::from(kept.memory().ok_or("no memory")?.try_clone_to_owned().map_err(why)?);
        if moment == 1 {
            self.disturb()?;
            program.request(&word)?;
        }
        let pause = us();
        while self.choices.next(4) == 0 {
            self.kill_one(&kept)?;
        }
        let skipped = us() - pause;
        // It takes everything over while the former one ends, and runs nothing before that.
        next.say(RESUME)?;
        kept.pass_on(&next.socket).map_err(|error| in_full(&error))?;
        vmm.end()?;
        times.ended = us() - skipped;
        next.hear(READY)?;
        times.ready = us() - skipped;
        if moment == 2 {
            program.request(&word)?;
        }
        // One that was awake goes on by itself; the other sleeps on.
        next.say(if was_asleep { GO } else { WAKE })?;
        drop(kept);
        if moment == 3 || moment == 0 && was_asleep {
            program.request(&word)?;
        }
        program.reply(&word)?;
        times.answered = us() - skipped;
        self.look_for_addresses(&memory, &mappings)?;
        self.times.push(times);
        Ok(next)
    }

    /// One VMM takes the place of another, and has none of its files. Whoever was connected is gone.
    fn replace_afresh(&mut self, vmm: Vmm, program: &mut Program, port: u16) -> Outcome<Vmm> {
        let was_asleep = self.choices.next(2) == 0;
        self.step = if was_asleep { "asleep" } else { "awake" };
        let word = format!("request{}", self.round);
        program.request(&word)?;
        program.reply(&word)?;
        if was_asleep {
            vmm.say(SLEEP)?;
            vmm.hear(ASLEEP)?;
        }
        let start = Instant::now();
        vmm.say(LEAVE)?;
        let next = Vmm::start(&self.dir, &self.options)?;
        let kept = Kept::receive(&vmm.socket).map_err(|error| in_full(&error))?;
        let mut times = Times { was_asleep, kept: start.elapsed().as_micros(), ..Times::default() };
        vmm.end()?;
        times.ended = start.elapsed().as_micros();
        next.say(RESUME)?;
        kept.pass_on(&next.socket).map_err(|error| in_full(&error))?;
        drop(kept);
        next.hear(READY)?;
        times.ready = start.elapsed().as_micros();
        next.say(WAKE)?;
        program.connect(port)?;
        program.request(&word)?;
        program.reply(&word)?;
        times.answered = start.elapsed().as_micros();
        self.times.push(times);
        Ok(next)
    }

    /// Starts a VMM that is killed at some moment before it may run anything.
    fn kill_one(&mut self, kept: &Kept) -> Outcome<()> {
        let vmm = Vmm::start(&self.dir, &self.options)?;
        vmm.say(RESUME)?;
        self.killed += 1;
        match self.choices.next(3) {
            0 => {}
            1 => {
                kept.pass_on(&vmm.socket).map_err(|error| in_full(&error))?;
                std::thread::sleep(Duration::from_micros(self.choices.next(20_000)));
            }
            _ => {
                kept.pass_on(&vmm.socket).map_err(|error| in_full(&error))?;
                vmm.hear(READY)?;
            }
        }
        vmm.kill()
    }

    /// Looks for words of the kernel's memory that are addresses of the former VMM's. A program's own number may look so, but not under
    /// each VMM.
    fn look_for_addresses(&mut self, memory: &File, mappings: &[Range<u64>]) -> Outcome<()> {
        self.kept_bytes = self.kept_bytes.max(memory.metadata().map_err(why)?.blocks() * 512);
        if self.options.figures {
            self.packed_bytes = self.packed_bytes.max(packed_bytes(memory)?);
        }
        let (mut piece, mut found) = (vec![0; 1 << 20], BTreeSet::new());
        for at in (0..KERNEL_END).step_by(piece.len()) {
            memory.read_exact_at(&mut piece, at).map_err(why)?;
            for (word, place) in piece.as_chunks::<8>().0.iter().zip((at..).step_by(8)) {
                let word = u64::from_le_bytes(*word);
                if word != 0 && mappings.iter().any(|range| range.contains(&word)) {
                    found.insert(place);
                }
            }
        }
        self.addresses = Some(self.addresses.take().map_or(found.clone(), |before| &before & &found));
        Ok(())
    }

    fn print_figures(&self) {
        println!("packed by lz4: {} kB at most", self.packed_bytes >> 10);
        for was_asleep in [false, true] {
            let of = |part: fn(&Times) -> u128| {
                let mut all: Vec<u128> =
                    self.times.iter().filter(|times| times.was_asleep == was_asleep).map(part).collect();
                all.sort_unstable();
                let at =
                    |share: usize| all.get(all.len().saturating_sub(1) * share / 100).copied().unwrap_or(0);
                format!("{:.1} ms (10 to 90 %: {:.1} to {:.1})", ms(at(50)), ms(at(10)), ms(at(90)))
            };
            println!("{}:", if was_asleep { "asleep" } else { "awake" });
            println!("  order to all that is kept       {}", of(|times| times.kept));
            println!("  order to the former VMM's end   {}", of(|times| times.ended));
            println!("  order to the next one's start   {}", of(|times| times.ready));
            println!("  order to an answer              {}", of(|times| times.answered));
        }
    }
}

/// How a round goes.
fn step(was_asleep: bool, moment: u64) -> &'static str {
    match (was_asleep, moment) {
        (false, 0) => "awake, and asked before",
        (false, 1) => "awake, and asked between",
        (false, 2) => "awake, and asked before it ran",
        (false, _) => "awake, and asked afterwards",
        (true, 1) => "asleep, and asked between",
        (true, 2) => "asleep, and asked before it ran",
        (true, _) => "asleep, and asked afterwards",
    }
}

/// Bytes of what a sparse file holds, packed.
fn packed_bytes(file: &File) -> Outcome<u64> {
    let seek = |from: u64, whence| {
        let from = i64::try_from(from).ok()?;
        // SAFETY: moves the position of a descriptor, which nobody uses.
        u64::try_from(unsafe { libc::lseek(file.as_raw_fd(), from, whence) }).ok()
    };
    let mut packer = Packer::new(Style::Lz4, None::<TableSet>);
    let (mut piece, mut room) = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES * 2]);
    let (mut at, mut bytes) = (0, 0);
    while let Some(start) = seek(at, libc::SEEK_DATA) {
        at = seek(start, libc::SEEK_HOLE).ok_or("a file without an end")?;
        let mut from = start;
        while from < at {
            let len = PIECE_BYTES.min(usize::try_from(at - from).map_err(why)?);
            let part = &mut piece[..len];
            file.read_exact_at(part, from).map_err(why)?;
            bytes += packer.pack(part, &mut room).unwrap_or(len) as u64;
            from += len as u64;
        }
    }
    Ok(bytes)
}

#[expect(clippy::cast_precision_loss, reason = "times of some milliseconds")]
fn ms(us: u128) -> f64 {
    us as f64 / 1000.0
}
