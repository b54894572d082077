//! Bytes read as steps of programs: the table's calls with arguments of their types.

use abi::word::to_usize;
use alloc::vec::Vec;

use crate::creds::Creds;
use crate::fs::access::Actor;
use crate::fs::file::OpenFlags;
use crate::fs::inode::NodeKind;
use crate::fs::path::{FsContext, Path};
use crate::fs::{names, walk};
use crate::syscall::table::{ARGUMENTS, IMPLEMENTED};
use alloc::sync::Arc;
use machine::mm::{AddressSpace, UserAddr};

/// Memory of the programs, for whatever calls read and write.
pub const SCRATCH: u64 = 0x10_0000;
pub const SCRATCH_BYTES: u64 = 0x2_0000;
/// The address of the paths in it.
const PATHS_AT: u64 = SCRATCH + SCRATCH_BYTES - 0x1000;
const PATH_BYTES: u64 = 64;

/// Paths that programs name.
const PATHS: [&[u8]; 48] = [
    b"/",
    b".",
    b"..",
    b"",
    b"a",
    b"b",
    b"c",
    b"/a",
    b"/d",
    b"/d/a",
    b"/d/b",
    b"d/d",
    b"/tmp/x",
    b"/tmp/y",
    b"/tmp",
    b"/link",
    b"/loop",
    b"/fifo",
    b"/file",
    b"/program",
    b"/dev/null",
    b"/dev/zero",
    b"/dev/full",
    b"/dev/ptmx",
    b"/dev/pts/0",
    b"/dev/tty",
    b"/proc/self/fd/0",
    b"/proc/self/fd/3",
    b"/proc/self/maps",
    b"/proc/self/mem",
    b"/proc/self/stat",
    b"/proc/self/status",
    b"/proc/self/comm",
    b"/proc/self/fdinfo/3",
    b"/proc/self/cwd/a",
    b"/proc/self/exe",
    b"/proc/self/oom_score_adj",
    b"/proc/self/mountinfo",
    b"/proc/sys/kernel/hostname",
    b"/proc/net/unix",
    b"/proc/meminfo",
    b"/sys/class/net/lo/flags",
    b"/proc/self/task",
    b"tmpfs",
    b"proc",
    b"user.name",
    b"security.capability",
    b"/d/../d/./a/",
];
const _: () = assert!(PATHS.len() as u64 * PATH_BYTES <= 0x1000);

/// Lengths and sizes at which things change.
const LENGTHS: [u64; 28] = [
    0,
    1,
    2,
    3,
    4,
    7,
    8,
    12,
    16,
    24,
    32,
    48,
    64,
    88,
    128,
    255,
    256,
    512,
    4095,
    4096,
    4097,
    65536,
    1 << 20,
    1 << 31,
    1 << 32,
    1 << 47,
    i64::MAX as u64,
    u64::MAX,
];
/// Flags that calls take together.
const FLAGS: [u64; 16] = [
    0o102,
    0o1102,
    0o2002,
    0o100_000,
    0o200_000,
    0o20_200_002,
    0o10_000_000,
    0x22,
    0x21,
    0x32,
    0x1_0f00,
    0x4111,
    0x7,
    0o6755,
    0o10_0644,
    0o2_004_000,
];
const AT_FDCWD: u64 = (-100_i64).cast_unsigned();

/// One step of the task that runs.
pub enum Step {
    Call {
        number: u64,
        args: [u64; 6],
    },
    Write {
        addr: u64,
        bytes: Vec<u8>,
    },
    Fault {
        addr: u64,
        error: u64,
    },
    /// The host does something meanwhile.
    Host(fn()),
    /// The sequence is over.
    End,
}

/// A sequence of steps.
pub struct Steps {
    bytes: Vec<u8>,
    at: usize,
}

impl Steps {
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, at: 0 }
    }

    fn byte(&mut self) -> u8 {
        let byte = self.bytes.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    fn word(&mut self, bytes: u32) -> u64 {
        (0..bytes).fold(0, |word, at| word | u64::from(self.byte()) << (8 * at))
    }

    /// The next step, for a task of `pid`; `first_pid` began the sequence.
    pub fn next(&mut self, pid: u32, first_pid: u32) -> Step {
        if self.at >= self.bytes.len() {
            return Step::End;
        }
        let choice = to_usize(self.word(2)) % (IMPLEMENTED.len() + 24);
        let Some((number, arguments)) = ARGUMENTS.get(choice) else {
            return if choice.is_multiple_of(3) { self.fault() } else { self.write() };
        };
        let mut args = [0; 6];
        for (to, (name, kind)) in args.iter_mut().zip(*arguments) {
            *to = self.argument(name, kind, pid, first_pid);
        }
        Step::Call { number: *number, args }
    }

    fn fault(&mut self) -> Step {
        let addr = self.address();
        Step::Fault { addr, error: u64::from(self.byte()) & 0x13 }
    }

    fn write(&mut self) -> Step {
        let addr = SCRATCH + u64::from(self.byte()) * 64;
        let len = usize::from(self.byte() % 64) + 1;
        // Words that are small, addresses, or anything.
        let bytes = match self.byte() % 4 {
            0 => (0..len).flat_map(|_| self.address().to_le_bytes()).take(len * 8).collect(),
            1 => (0..len).flat_map(|_| u64::from(self.byte()).to_le_bytes()).collect(),
            2 => (0..len).flat_map(|_| u32::from(self.byte()).to_le_bytes()).collect(),
            _ => (0..len).map(|_| self.byte()).collect(),
        };
        Step::Write { addr, bytes }
    }

    fn argument(&mut self, name: &str, kind: &str, pid: u32, first_pid: u32) -> u64 {
        match (name, kind) {
            (
                "fd" | "dirfd" | "old_dirfd" | "new_dirfd" | "set" | "input" | "output" | "out" | "pidfd",
                "i32",
            )
            | ("old" | "new", "i32") => self.descriptor(),
            ("first" | "last", _) => self.descriptor(),
            ("path" | "source" | "target" | "name" | "kind", "UserAddr") => self.path(),
            ("old" | "new", "UserAddr") if self.byte() & 1 == 0 => self.path(),
            ("len" | "size" | "count" | "old_len" | "new_len" | "max" | "room", _) => self.length(),
            ("offset" | "at" | "backlog" | "timeout_ms" | "seconds", _) => self.length(),
            ("pid" | "tid" | "tgid" | "who" | "group" | "id", _) if kind != "UserAddr" => {
                self.id(pid, first_pid)
            }
            ("signal" | "number", _) => u64::from(self.byte() % 66),
            (_, "u32" | "i32" | "usize") => self.flags(),
            ("flags", _) => self.flags(),
            _ => self.address(),
        }
    }

    fn descriptor(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=223 => u64::from(byte % 16),
            224..=239 => AT_FDCWD,
            240..=243 => u64::MAX,
            244..=247 => 1023,
            _ => self.word(4),
        }
    }

    fn address(&mut self) -> u64 {
        match self.byte() {
            0..=15 => 0,
            byte @ 16..=199 => SCRATCH + u64::from(byte - 16) * 64,
            byte @ 200..=207 => SCRATCH + SCRATCH_BYTES - u64::from(byte - 200) * 4,
            byte @ 208..=215 => SCRATCH + 0x1000 * u64::from(byte - 207) - 4,
            byte @ 216..=223 => 0x20_0000 + 0x1000 * u64::from(byte - 216),
            224..=231 => self.path(),
            232 => 0xffff_8000_0000_0000,
            233 => 0x7fff_0000_0000 - 8,
            234 => u64::MAX,
            235 => 1,
            236..=245 => self.word(4),
            _ => self.word(8),
        }
    }

    fn path(&mut self) -> u64 {
        match usize::from(self.byte()) {
            byte @ 0..=239 => PATHS_AT + (byte % PATHS.len()) as u64 * PATH_BYTES,
            _ => self.address(),
        }
    }

    fn length(&mut self) -> u64 {
        match usize::from(self.byte()) {
            byte @ 0..=199 => LENGTHS[byte % LENGTHS.len()],
            200..=239 => self.word(2),
            240..=247 => self.word(4),
            _ => self.word(8),
        }
    }

    fn flags(&mut self) -> u64 {
        match self.byte() {
            byte @ 0..=95 => u64::from(byte % 32),
            byte @ 96..=159 => 1 << (byte - 96),
            byte @ 160..=191 => FLAGS[usize::from(byte) % FLAGS.len()],
            192..=223 => 1 << (self.byte() % 32) | 1 << (self.byte() % 32),
            _ => self.word(4),
        }
    }

    fn id(&mut self, pid: u32, first_pid: u32) -> u64 {
        match self.byte() {
            0..=31 => 0,
            32..=63 => u64::from(pid),
            byte @ 64..=191 => u64::from(first_pid) + u64::from(byte % 8),
            192..=199 => u64::MAX,
            200..=207 => 1,
            208..=223 => u64::from(pid).wrapping_neg(),
            _ => self.word(4),
        }
    }
}

/// A program of one page that does nothing: it never runs, the next step of the sequence does.
fn program() -> Vec<u8> {
    const ENTRY: u64 = 0x40_0000;
    let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [ENTRY + 0x78, 64, 0] {
        bytes.extend_from_slice(&u64::to_le_bytes(word));
    }
    bytes.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]);
    for word in [0, ENTRY, ENTRY, 0x1000, SCRATCH_BYTES, 0x1000] {
        bytes.extend_from_slice(&u64::to_le_bytes(word));
    }
    bytes.resize(0x1000, 0xf4);
    bytes
}

/// Makes the files that the sequences find.
pub fn fill(root: &Path) {
    let actor = Actor {
        creds: Arc::new(Creds::new(0, 0, Vec::new())),
        fs: FsContext::new(root.clone(), root.clone(), 0),
    };
    let make =
        |path: &[u8], kind, mode| names::mknod(&actor, root.clone(), path, kind, mode).expect("a file");
    names::mkdir(&actor, root.clone(), b"/d", 0o777).expect("a directory");
    names::symlink(&actor, root.clone(), b"/link", b"d/a").expect("a link");
    names::symlink(&actor, root.clone(), b"/loop", b"loop").expect("a link");
    make(b"/fifo", NodeKind::Fifo, 0o666);
    make(b"/file", NodeKind::Regular, 0o666);
    make(b"/program", NodeKind::Regular, 0o6755);
    let place = walk::Walker::new(&actor, root.clone(), b"/program", walk::Resolve::empty())
        .and_then(|walk| walk.finish(true));
    let place = place.expect("the program");
    let ops = place.inode.clone().open(OpenFlags::RDWR).expect("the program");
    let file = crate::fs::file::File::new(ops, OpenFlags::RDWR, Some(place));
    let bytes = program();
    file.write(&mut machine::mm::IoBuf::constant(&bytes), crate::fs::file::At::Offset(0)).expect("room");
}

/// Writes the paths to where arguments point.
pub fn write_paths(aspace: &AddressSpace) {
    for (at, path) in (0..).zip(PATHS) {
        aspace.copy_out(UserAddr::new(PATHS_AT + at * PATH_BYTES), path).expect("scratch memory");
    }
}
