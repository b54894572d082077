//! The memory of a sandbox's programs, as the host's root finds it in the VMM's process: the file behind it on systrap, and a
//! private mapping on kvm. It is read while the sandbox runs, which does not notice.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use abi::layout::{PAGE_SIZE, USER_PHYS};
use rustix::fs::{SeekFrom, seek};

use super::source::Source;

/// The name of the file behind user memory (`vmm::memory`).
const FILE: &str = "/memfd:dormouse-user";

/// The pages of programs in the VMM's process that the host holds; `None`: this process is no VMM.
pub fn open(process: &Path) -> io::Result<Option<Source>> {
    if let Some(file) = user_file(process)? {
        return Ok(Some(Source { ranges: data_ranges(&file)?, file, first: 0 }));
    }
    let maps = fs::read_to_string(process.join("maps"))?;
    let Some(range) = private_memory(&maps) else { return Ok(None) };
    let first = range.start;
    let ranges = present_ranges(&File::open(process.join("pagemap"))?, range)?;
    Ok(Some(Source { file: File::open(process.join("mem"))?, ranges, first }))
}

fn user_file(process: &Path) -> io::Result<Option<File>> {
    for entry in fs::read_dir(process.join("fd"))?.flatten() {
        let is_it =
            |target: std::path::PathBuf| target.as_os_str().as_encoded_bytes().starts_with(FILE.as_bytes());
        if fs::read_link(entry.path()).is_ok_and(is_it) {
            return File::open(entry.path()).map(Some);
        }
    }
    Ok(None)
}

/// The parts of a file that have content.
fn data_ranges(file: &File) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    loop {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(ranges),
            Err(error) => return Err(error.into()),
        };
        // A hole may have been made there meanwhile.
        at = seek(file, SeekFrom::Hole(start))?.max(start + PAGE_SIZE);
        ranges.push(start..at);
    }
}

/// Where the memory of programs lies: private memory that begins [`USER_PHYS`] behind that of the kernel.
fn private_memory(maps: &str) -> Option<Range<u64>> {
    let mappings: Vec<Range<u64>> = maps.lines().filter_map(anonymous).collect();
    let is_kernel = |start: u64| mappings.iter().any(|mapping| mapping.start == start);
    let user =
        mappings.iter().position(|mapping| mapping.start.checked_sub(USER_PHYS).is_some_and(is_kernel))?;
    let mut found = mappings[user].clone();
    // The host may know it as several mappings.
    for next in &mappings[user + 1..] {
        if next.start == found.end {
            found.end = next.end;
        }
    }
    Some(found)
}

/// The addresses of a line of `/proc/PID/maps`, if it is private memory without a file.
fn anonymous(line: &str) -> Option<Range<u64>> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (access, inode) = (words.next()?, words.nth(2)?);
    if access != "rw-p" || inode != "0" || words.next().is_some_and(|name| !name.starts_with("[anon")) {
        return None;
    }
    Some(u64::from_str_radix(start, 16).ok()?..u64::from_str_radix(end, 16).ok()?)
}

/// The pages of a range that are in memory or swapped by the host.
fn present_ranges(pagemap: &File, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    const HELD: u64 = 3 << 62;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut entries = vec![0; 64 << 10];
    let mut page = range.start / PAGE_SIZE;
    while page < range.end / PAGE_SIZE {
        let got = pagemap.read_at(&mut entries, page * 8)?;
        if got < 8 {
            break;
        }
        for entry in entries[..got].as_chunks().0 {
            let at = page * PAGE_SIZE;
            if u64::from_ne_bytes(*entry) & HELD != 0 && at < range.end {
                match ranges.last_mut().filter(|last| last.end == at) {
                    Some(last) => last.end += PAGE_SIZE,
                    None => ranges.push(at..at + PAGE_SIZE),
                }
            }
            page += 1;
        }
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use abi::boot::Platform;
    use vmm::memory::SandboxMemory;

    use super::*;

    /// On both platforms, in this very process, since a process has a sandbox's memory of each kind at most once.
    #[test]
    fn what_programs_wrote_is_found_and_nothing_else() {
        let own = Path::new("/proc/self");
        assert!(open(own).unwrap().is_none());
        for platform in [Platform::Kvm, Platform::Systrap] {
            let memory = SandboxMemory::new(platform, 16 << 20, 8 << 20).unwrap();
            memory.write(0x5000, &3_u64).unwrap();
            for page in [1, 2, 700] {
                memory.write(USER_PHYS + page * PAGE_SIZE, &page).unwrap();
            }
            let source = open(own).unwrap().unwrap();
            // Where there are large pages, the host holds more.
            assert!(source.len() >= 3 * PAGE_SIZE && source.len() < 8 << 20, "{:?}", source.ranges);
            let all = source.read(usize::MAX).unwrap();
            let words: Vec<u64> = all.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            assert_eq!(words.into_iter().filter(|word| *word != 0).collect::<Vec<_>>(), [1, 2, 700]);
        }
    }

    #[test]
    fn a_process_that_does_not_exist_is_an_error() {
        assert!(open(Path::new("/proc/0")).is_err());
    }
}
