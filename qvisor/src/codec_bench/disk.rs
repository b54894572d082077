//! How fast the disk of swap files reads, in the way that a wake reads a working set: three reads of 512 KiB at a time, past the
//! page cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl};
use serde::Serialize;

use crate::failure::Failure;

/// Bytes of the file, of a write, and of a read.
const FILE_BYTES: u64 = 128 << 20;
const WRITE_BYTES: usize = 4 << 20;
const READ_BYTES: usize = 512 << 10;
const THREADS: usize = 3;
const ROUNDS: usize = 3;
/// A slow disk gets a shorter file, and is read for no longer than this each round.
const WRITE_TIME: Duration = Duration::from_secs(10);
const READ_TIME: Duration = Duration::from_secs(4);
/// The alignment in bytes that a disk wants of memory and of places in a file.
const ALIGN: usize = 4096;

#[derive(Clone, Debug, Serialize)]
pub struct Disk {
    pub dir: PathBuf,
    /// Bytes a second: the median of some rounds, and the slowest and fastest.
    pub read_bytes_s: f64,
    pub slowest_bytes_s: f64,
    pub fastest_bytes_s: f64,
    pub file_bytes: u64,
    /// Whether reads went past the page cache; of a file system in memory they do not.
    pub is_direct: bool,
}

/// Writes a file without a name to the directory and reads it. The file goes with its descriptor.
pub fn measure(dir: &Path) -> Result<Disk, Failure> {
    let file = swap::open_unnamed(dir)?;
    let failed = |source: io::Error| {
        format!(
            "cannot measure the disk of {}: {source}; pass another directory with --swap-dir",
            dir.display()
        )
    };
    let file_bytes = fill(&file).map_err(failed)?;
    let is_direct = fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
    let mut speeds = Vec::new();
    for _ in 0..ROUNDS {
        speeds.push(read(&file, file_bytes).map_err(failed)?);
    }
    speeds.sort_unstable_by(f64::total_cmp);
    Ok(Disk {
        dir: dir.to_owned(),
        read_bytes_s: speeds[ROUNDS / 2],
        slowest_bytes_s: speeds[0],
        fastest_bytes_s: speeds[ROUNDS - 1],
        file_bytes,
        is_direct,
    })
}

/// Memory that begins at a multiple of [`ALIGN`].
struct Aligned {
    bytes: Vec<u8>,
    from: usize,
}

impl Aligned {
    fn new(len: usize) -> Self {
        let bytes = vec![0_u8; len + ALIGN];
        let from = bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { bytes, from }
    }

    fn get(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.from..self.from + len]
    }
}

/// Fills the file with bytes that nothing packs; result: how long it is.
fn fill(file: &File) -> io::Result<u64> {
    let (mut memory, mut seed, start) =
        (Aligned::new(WRITE_BYTES), 0x9e37_79b9_7f4a_7c15_u64, Instant::now());
    let mut at = 0;
    while at < FILE_BYTES && start.elapsed() < WRITE_TIME {
        let bytes = memory.get(WRITE_BYTES);
        for word in bytes.as_chunks_mut().0 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *word = seed.to_ne_bytes();
        }
        file.write_all_at(bytes, at)?;
        at += WRITE_BYTES as u64;
    }
    file.sync_data()?;
    // Where there is no way past the page cache.
    let _ = fadvise(file, 0, None, Advice::DontNeed);
    Ok(at)
}

/// Bytes a second of one round.
#[expect(clippy::cast_precision_loss, reason = "a speed")]
fn read(file: &File, len: u64) -> io::Result<f64> {
    let (next, done, start) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
    let reader = || -> io::Result<()> {
        let mut memory = Aligned::new(READ_BYTES);
        while start.elapsed() < READ_TIME {
            let at = next.fetch_add(READ_BYTES as u64, Ordering::Relaxed);
            if at >= len {
                break;
            }
            file.read_exact_at(memory.get(READ_BYTES), at)?;
            done.fetch_add(READ_BYTES as u64, Ordering::Relaxed);
        }
        Ok(())
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..THREADS).map(|_| scope.spawn(reader)).collect();
        readers.into_iter().try_for_each(|one| one.join().unwrap_or(Err(io::ErrorKind::Other.into())))
    })?;
    Ok(done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_a_speed_and_nothing_is_left_on_it() {
        let dir = testdir::TempDir::new();
        let disk = measure(dir.path()).unwrap();
        assert!(disk.slowest_bytes_s > 0.0 && disk.slowest_bytes_s <= disk.read_bytes_s, "{disk:?}");
        assert!(
            disk.read_bytes_s <= disk.fastest_bytes_s && disk.file_bytes >= WRITE_BYTES as u64,
            "{disk:?}"
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let dir = testdir::TempDir::new();
        let error = measure(&dir.path().join("none")).unwrap_err().to_string();
        assert!(error.starts_with("cannot make a swap file in ") && error.contains("; pass "), "{error}");
    }
}
