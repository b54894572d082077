//! Retrieving: the chunks of a snapshot come dblock by dblock, in the order in which they lie there, in few reads ("SnapStore", section 4.6).

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use crate::dblock::Dblock;
use crate::directory::Store;
use crate::error::StoreError;
use crate::footers::Footers;
use crate::recipe::{Recipe, Run};
use crate::region::Region;

/// Chunks that are so near each other are read together: less than a disk reads in the time of another request.
const GAP_BYTES: u32 = 256 << 10;
/// Bytes that are written at a time.
const WRITTEN_BYTES: usize = 256 << 10;

/// The outcome of a retrieval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retrieved {
    /// Bytes of chunks that were written.
    pub bytes: u64,
    /// Bytes that were read from dblocks, without their entries, and by how many requests.
    pub read_bytes: u64,
    /// See above.
    pub reads: u64,
    /// Dblocks that were opened.
    pub dblocks: u64,
}

/// Chunks that a dblock has of a recipe, by slot.
struct Part<'r> {
    id: u32,
    region: Region,
    chunk_bytes: u32,
    runs: Vec<&'r Run>,
}

/// Writes the chunks of a snapshot's files, by `threads`. The files are empty, and as long as the recipe says; `to` has each by its number.
///
/// # Errors
/// [`StoreError::Gone`]: the recipe may be one of before a collection; read it anew, and try once more. Anything is damaged, or cannot be read or
/// written.
pub fn retrieve(
    store: &Store,
    recipe: &Recipe,
    to: &[(u8, &File)],
    threads: usize,
) -> Result<Retrieved, StoreError> {
    let bytes = work(store, &parts(recipe, recipe.runs()), to, threads)?;
    // What the differences are from is there now.
    let patches = work(store, &parts(recipe, recipe.patches()), to, threads)?;
    Ok(Retrieved {
        bytes: bytes.bytes,
        read_bytes: bytes.read_bytes + patches.read_bytes,
        reads: bytes.reads + patches.reads,
        dblocks: bytes.dblocks + patches.dblocks,
    })
}

/// Does as [`retrieve`], in the order of the recipe, with so many dblocks at a time of which it is known where their chunks are; to measure what
/// sorting brings.
///
/// # Errors
/// As there.
pub fn retrieve_in_order(
    store: &Store,
    recipe: &Recipe,
    to: &[(u8, &File)],
    kept: usize,
) -> Result<Retrieved, StoreError> {
    let (mut footers, mut room) = (Footers::keeping(kept), Room::default());
    let mut all = Retrieved::default();
    for run in recipe.all_runs() {
        let part = Part {
            id: run.first.id,
            region: run.region,
            chunk_bytes: recipe.chunk_bytes(run.region),
            runs: vec![run],
        };
        let dblock = footers.get(store, part.id)?;
        let done = bring_from(&dblock, &part, to, &mut room)?;
        all.read_bytes += done.read_bytes;
        all.reads += done.reads;
        all.bytes += if run.region == Region::Difference { 0 } else { done.bytes };
    }
    all.dblocks = footers.opened();
    Ok(all)
}

/// Brings all parts, by `threads`.
fn work(
    store: &Store,
    parts: &[Part<'_>],
    to: &[(u8, &File)],
    threads: usize,
) -> Result<Retrieved, StoreError> {
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let (error, read) = (Mutex::new(None), [const { AtomicU64::new(0) }; 4]);
    let bring_parts = || {
        let mut room = Room::default();
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            if failed.load(Ordering::Relaxed) {
                return;
            }
            match bring(store, part, to, &mut room) {
                Ok(done) => {
                    let numbers = [done.bytes, done.read_bytes, done.reads, done.dblocks];
                    read.iter().zip(numbers).for_each(|(sum, number)| {
                        sum.fetch_add(number, Ordering::Relaxed);
                    });
                }
                Err(why) => {
                    failed.store(true, Ordering::Relaxed);
                    error.lock().unwrap_or_else(std::sync::PoisonError::into_inner).get_or_insert(why);
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads.min(parts.len()) {
            // Without a thread the others do its work.
            let _ = thread::Builder::new().name("dormouse-store".into()).spawn_scoped(scope, bring_parts);
        }
        bring_parts();
    });
    if let Some(why) = error.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        return Err(why);
    }
    let [bytes, read_bytes, reads, dblocks] = read.map(AtomicU64::into_inner);
    Ok(Retrieved { bytes, read_bytes, reads, dblocks })
}

/// The parts of these runs of a recipe, by dblock: those that were written together lie together on the disk.
fn parts<'r>(recipe: &Recipe, runs: &'r [Run]) -> Vec<Part<'r>> {
    let mut by_dblock: BTreeMap<(u32, Region), Vec<&Run>> = BTreeMap::new();
    for run in runs {
        by_dblock.entry((run.first.id, run.region)).or_default().push(run);
    }
    let mut parts = Vec::with_capacity(by_dblock.len());
    for ((id, region), mut runs) in by_dblock {
        runs.sort_by_key(|run| run.first.slot);
        parts.push(Part { id, region, chunk_bytes: recipe.chunk_bytes(region), runs });
    }
    parts
}

#[derive(Default)]
struct Room {
    packed: Vec<u8>,
    content: Vec<u8>,
}

/// Brings the chunks that one dblock has.
fn bring(
    store: &Store,
    part: &Part<'_>,
    to: &[(u8, &File)],
    room: &mut Room,
) -> Result<Retrieved, StoreError> {
    bring_from(&store.dblock(part.id)?, part, to, room)
}

fn bring_from(
    dblock: &Dblock,
    part: &Part<'_>,
    to: &[(u8, &File)],
    room: &mut Room,
) -> Result<Retrieved, StoreError> {
    let footer = &dblock.footer;
    if footer.region != part.region || footer.chunk_bytes != part.chunk_bytes {
        return Err(StoreError::Recipe { what: "its chunks are not where it says" });
    }
    let mut done = Retrieved { dblocks: 1, ..Retrieved::default() };
    let mut rest = &part.runs[..];
    while !rest.is_empty() {
        let (start, end, count) = extent(dblock, rest)?;
        room.packed.resize((end - start) as usize, 0);
        dblock.file.read_exact_at(&mut room.packed, start.into()).map_err(StoreError::io("read chunks"))?;
        done.reads += 1;
        done.read_bytes += u64::from(end - start);
        let (now, later) = rest.split_at(count);
        for run in now {
            let file = to.iter().find(|(number, _)| *number == run.file).map(|(_, file)| *file);
            let file = file.ok_or(StoreError::Recipe { what: "it has a file that nobody wants" })?;
            write(dblock, run, (start, &room.packed), file, &mut room.content)?;
            done.bytes += u64::from(run.count) * u64::from(footer.chunk_bytes);
        }
        rest = later;
    }
    Ok(done)
}

/// The bytes of the runs that are read together, and how many runs they are of.
fn extent(dblock: &Dblock, runs: &[&Run]) -> Result<(u32, u32, usize), StoreError> {
    let entry = |slot: u32| {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        dblock.footer.entries.get(slot).ok_or(StoreError::Recipe { what: "its chunks are not where it says" })
    };
    let range = |run: &Run| {
        let first = u32::from(run.first.slot);
        let last = entry(first + u32::from(run.count) - 1)?;
        Ok::<_, StoreError>((entry(first)?.at, last.at + u32::from(last.len)))
    };
    let Some((first, others)) = runs.split_first() else { return Ok((0, 0, 0)) };
    let ((start, mut end), mut count) = (range(first)?, 1);
    for run in others {
        let (at, behind) = range(run)?;
        if at > end.saturating_add(GAP_BYTES) {
            break;
        }
        (end, count) = (end.max(behind), count + 1);
    }
    Ok((start, end, count))
}

/// The bytes of a run's chunks, if none is packed, or a difference.
fn as_they_lie<'b>(
    dblock: &Dblock,
    run: &Run,
    (start, packed): (u32, &'b [u8]),
) -> Result<Option<&'b [u8]>, StoreError> {
    let size = dblock.footer.chunk_bytes as usize;
    let first = usize::from(run.first.slot);
    let entries = dblock.footer.entries.get(first..first + usize::from(run.count)).unwrap_or_default();
    let is_whole =
        run.region != Region::Difference && entries.iter().all(|entry| usize::from(entry.len) == size);
    let Some(front) = entries.first().filter(|_| is_whole) else { return Ok(None) };
    let from = front.at.checked_sub(start).map(|from| from as usize);
    let bytes = from.and_then(|from| packed.get(from..from + entries.len() * size));
    let Some(bytes) = bytes else { return Ok(None) };
    let mut slots = (run.first.slot..).zip(entries).zip(bytes.chunks_exact(size));
    match slots.find(|((_, entry), chunk)| crc32c::crc32c(chunk) != entry.sum) {
        Some(((slot, _), _)) => Err(StoreError::Chunk { id: dblock.id, slot }),
        None => Ok(Some(bytes)),
    }
}

/// Unpacks a run's chunks and writes them; differences are applied to what is there.
fn write(
    dblock: &Dblock,
    run: &Run,
    (start, packed): (u32, &[u8]),
    to: &File,
    content: &mut Vec<u8>,
) -> Result<(), StoreError> {
    if let Some(bytes) = as_they_lie(dblock, run, (start, packed))? {
        return to.write_all_at(bytes, run.at).map_err(StoreError::io("write chunks"));
    }
    let size = dblock.footer.chunk_bytes as usize;
    let slots: Vec<u16> = (0..run.count).map(|number| run.first.slot.saturating_add(number)).collect();
    let mut at = run.at;
    for slots in slots.chunks((WRITTEN_BYTES / size).max(1)) {
        content.resize(slots.len() * size, 0);
        if run.region == Region::Difference {
            to.read_exact_at(content, at).map_err(StoreError::io("read chunks"))?;
        }
        for (slot, to) in slots.iter().zip(content.chunks_exact_mut(size)) {
            let damaged = StoreError::Chunk { id: dblock.id, slot: *slot };
            let Some(entry) = dblock.footer.entries.get(usize::from(*slot)) else { return Err(damaged) };
            let from = entry.at.checked_sub(start).map(|from| from as usize);
            let bytes = from.and_then(|from| packed.get(from..from + usize::from(entry.len)));
            let Some(bytes) = bytes else { return Err(damaged) };
            match run.region {
                Region::Difference if dblock.footer.record(dblock.id, *slot, bytes)?.apply(to) => {}
                Region::Difference => return Err(damaged),
                _ => dblock.footer.unpack(dblock.id, *slot, bytes, to)?,
            }
        }
        to.write_all_at(content, at).map_err(StoreError::io("write chunks"))?;
        at += content.len() as u64;
    }
    Ok(())
}
