//! Guest memory and calls for tests.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use abi::hostcall::{Event, HostCall, Segment};
use testdir::TempDir;

use super::host_io::HostIo;
use crate::guest_memory::GuestMemory;

const SIZE: usize = 4 << 20;
const BASE: u64 = 0x10_0000;

/// A few MiB that play the guest's memory.
pub struct TestMemory {
    bytes: Box<[std::cell::UnsafeCell<u8>]>,
    next: AtomicU64,
}

// SAFETY: tests treat the bytes as guest memory: raw copies only.
unsafe impl Sync for TestMemory {}

// SAFETY: the box lives as long as `self`, and nobody makes references to its bytes.
unsafe impl GuestMemory for TestMemory {
    fn slice(&self, phys: u64, len: u64) -> Option<*mut u8> {
        let start = usize::try_from(phys.checked_sub(BASE)?).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        (end <= SIZE).then(|| self.bytes[start].get())
    }
}

impl TestMemory {
    pub fn new() -> Self {
        let bytes = (0..SIZE).map(|_| std::cell::UnsafeCell::new(0)).collect();
        Self { bytes, next: AtomicU64::new(0) }
    }

    pub fn base(&self) -> u64 {
        BASE
    }

    pub fn end(&self) -> u64 {
        BASE + SIZE as u64
    }

    /// Room that no earlier call has used (the upper half of the memory, round and round).
    pub fn room(&self, len: usize) -> u64 {
        let len = (len as u64 + 15) & !15;
        let half = SIZE as u64 / 2;
        let at = self.next.fetch_add(len, Ordering::Relaxed) % (half - len);
        BASE + half + (at & !15)
    }

    pub fn put(&self, bytes: &[u8]) -> u64 {
        let phys = self.room(bytes.len());
        crate::guest_memory::GuestSlice::new(self, phys, bytes.len() as u64).unwrap().write(bytes);
        phys
    }

    pub fn get(&self, phys: u64, len: usize) -> Vec<u8> {
        crate::guest_memory::GuestSlice::new(self, phys, len as u64).unwrap().copy_in()
    }

    pub fn put_segments(&self, segments: &[(u64, u64)]) -> u64 {
        let bytes: Vec<u8> = segments
            .iter()
            .flat_map(|(phys, len)| [phys.to_le_bytes(), len.to_le_bytes()].concat())
            .collect();
        assert_eq!(bytes.len(), size_of_val(segments) / size_of::<(u64, u64)>() * size_of::<Segment>());
        self.put(&bytes)
    }
}

/// Host I/O over a temporary directory, driven by raw hostcalls.
pub struct Bench {
    pub dir: TempDir,
    pub memory: TestMemory,
    pub io: HostIo,
    pub events: Arc<Mutex<Vec<Event>>>,
    pub root: u32,
}

impl Bench {
    pub fn new() -> Self {
        let dir = TempDir::new();
        let events = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&events);
        let io = HostIo::new(Arc::new(move |event| sink.lock().unwrap().push(event))).unwrap();
        let root = io.files().adopt_mount(std::fs::File::open(dir.path()).unwrap().into()).unwrap();
        Self { dir, memory: TestMemory::new(), io, events, root }
    }

    /// Makes a bench as [`Self::new`] does, with a quota of so many bytes.
    pub fn with_quota(bytes: u64) -> (Self, Arc<super::quota::Quota>) {
        let mut bench = Self::new();
        let quota = super::quota::Quota::new(bytes);
        let dir = std::fs::File::open(bench.dir.path()).unwrap();
        bench.root = bench.io.files().adopt_counted_mount(dir.into(), &quota).unwrap();
        (bench, quota)
    }

    pub fn call(&self, number: u32, args: &[u64]) -> i64 {
        let mut call = HostCall { number, ..HostCall::default() };
        call.args[..args.len()].copy_from_slice(args);
        self.io.serve(&call, &self.memory)
    }

    /// A name as its two arguments.
    pub fn name(&self, name: &str) -> [u64; 2] {
        [self.memory.put(name.as_bytes()), name.len() as u64]
    }

    pub fn open(&self, dir: u32, name: &str, flags: i32, mode: u64) -> i64 {
        let [phys, len] = self.name(name);
        self.call(abi::hostcall::OPEN, &[u64::from(dir), phys, len, u64::from(flags.cast_unsigned()), mode])
    }

    pub fn handle(&self, dir: u32, name: &str, flags: i32) -> u32 {
        let result = self.open(dir, name, flags, 0o644);
        u32::try_from(result).unwrap_or_else(|_| panic!("open {name}: {result}"))
    }

    pub fn handle_or(&self, dir: u32, name: &str, flags: i32) -> Result<u32, i64> {
        let result = self.open(dir, name, flags, 0o644);
        u32::try_from(result).map_err(|_| result)
    }

    pub fn write(&self, handle: u32, bytes: &[u8], offset: u64) -> i64 {
        let data = self.memory.put(bytes);
        let segments = self.memory.put_segments(&[(data, bytes.len() as u64)]);
        self.call(abi::hostcall::WRITE, &[u64::from(handle), segments, 1, offset])
    }

    pub fn read(&self, handle: u32, len: usize, offset: u64) -> Result<Vec<u8>, i64> {
        let data = self.memory.room(len);
        let segments = self.memory.put_segments(&[(data, len as u64)]);
        let result = self.call(abi::hostcall::READ, &[u64::from(handle), segments, 1, offset]);
        usize::try_from(result).map(|n| self.memory.get(data, n)).map_err(|_| result)
    }
}
