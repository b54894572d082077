//! The program `xdelta3`, where it is installed: differences between two memories as VCDIFF has them.

use std::fs::File;
use std::io::{ErrorKind, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use swap::{PagesInMemory, Spread};

use super::peers::Peer;

/// Of its buffer for the base: it takes so many bytes at least if it is told nothing, and so many at most.
const BUFFER_BYTES: [usize; 2] = [64 << 20, 2 << 30];

/// If it takes longer, one round has to do.
const SLOW: Duration = Duration::from_secs(5);

/// Measures it on files in memory, so that no page of a sandbox lies on a disk; its times are those that pass until the program has ended.
/// Error: why not, in words.
pub fn measure(base: &PagesInMemory, data: &PagesInMemory, rounds: usize) -> Result<Peer, String> {
    let (source, from) = (file(base.bytes())?, file(data.bytes())?);
    let [to, back] = [file(&[])?, file(&[])?];
    let buffer = base.bytes().len().next_power_of_two().clamp(BUFFER_BYTES[0], BUFFER_BYTES[1]).to_string();
    let [mut pack, mut unpack] = [Vec::new(), Vec::new()];
    let mut found = vec![0; data.bytes().len()];
    for _ in 0..rounds {
        pack.push(run("-e", &buffer, [&source, &from, &to])?);
        unpack.push(run("-d", &buffer, [&source, &to, &back])?);
        if back.read_exact_at(&mut found, 0).is_err() || found != data.bytes() {
            return Err("it brings other pages back".into());
        }
        if pack.last().is_some_and(|time| *time > SLOW) {
            break;
        }
    }
    let bytes = to.metadata().map_err(|error| error.to_string())?.len();
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    Ok(Peer { name: "xdelta3", bytes, pack: Spread::of(pack), unpack: Spread::of(unpack) })
}

/// A file in memory.
fn file(content: &[u8]) -> Result<File, String> {
    let made = memfd_create("diff-bench", MemfdFlags::CLOEXEC).map(File::from);
    let mut file = made.map_err(|error| error.to_string())?;
    file.write_all(content).and_then(|()| file.rewind()).map_err(|error| error.to_string())?;
    Ok(file)
}

fn run(how: &str, buffer: &str, files: [&File; 3]) -> Result<Duration, String> {
    let path = |file: &File| format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let [source, from, to] = files.map(path);
    let mut command = Command::new("xdelta3");
    command.args([how, "-f", "-B", buffer, "-s", &source, &from, &to]);
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let passed = start.elapsed();
    match output {
        Err(error) if error.kind() == ErrorKind::NotFound => Err("it is not installed".into()),
        Err(error) => Err(error.to_string()),
        Ok(output) if output.status.success() => Ok(passed),
        Ok(output) => {
            let words = String::from_utf8_lossy(&output.stderr);
            Err(words.lines().next_back().unwrap_or("it failed without a word").trim().to_owned())
        }
    }
}
