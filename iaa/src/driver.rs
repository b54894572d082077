//! Keeps many jobs in flight on one queue, and does by the processor what the device does not.

use std::{collections::VecDeque, mem, sync::Arc, time::Instant};

use codec::{Corrupt, PIECE_BYTES, Packer, Style, Table, Unpacker, Work};
use zerocopy::IntoBytes;

use crate::{
    job::{self, Outcome, Places},
    layout::{
        COMPRESS_STATE_BYTES, Completion, DECOMPRESS_STATE_BYTES, Descriptor, STATE_ALIGN, WINDOW_BYTES,
    },
    memory::Shared,
    portal::{Portal, Submitted},
    work::{Counters, Settings},
};

/// Memory of one job in flight.
struct Slot {
    memory: Shared,
    /// Which piece it does, and how often that was tried.
    job: Option<(usize, u32)>,
}

/// In a slot: the completion record, what is read, what is written.
const INPUT: usize = size_of::<Completion>();
const OUTPUT: usize = INPUT + PIECE_BYTES;
const SLOT_BYTES: usize = OUTPUT + PIECE_BYTES;

/// In the memory of the engine's states: for packing, for unpacking.
const FOR_PACKING: usize = 0;
const FOR_UNPACKING: usize = 0x640;
const STATES_BYTES: usize = FOR_UNPACKING + DECOMPRESS_STATE_BYTES as usize;
const _: () =
    assert!(FOR_UNPACKING >= COMPRESS_STATE_BYTES as usize && FOR_UNPACKING.is_multiple_of(STATE_ALIGN));

/// Packs and unpacks pieces by one table, on a device where that works.
pub struct Driver<P: Portal> {
    portal: P,
    settings: Settings,
    slots: Vec<Slot>,
    states: Shared,
    /// The device takes jobs.
    takes_jobs: bool,
    /// Its queue was full for so long that it is not waited for, until it takes a job again.
    is_crowded: bool,
    /// It has read the table.
    has_table: bool,
    table: Arc<Table>,
    packer: Packer,
    unpacker: Unpacker,
    /// The buffer into which packed output is unpacked, to be compared with the input.
    proof: Vec<u8>,
    counters: Counters,
}

impl<P: Portal> Driver<P> {
    /// Makes one for a table, which the device reads at once.
    #[must_use]
    pub fn new(portal: P, table: &Arc<Table>, settings: Settings) -> Self {
        let mut driver = Self::without_device(portal, table, settings);
        driver.slots = (0..settings.in_flight.max(1)).map(|_| driver.new_slot()).collect();
        driver.takes_jobs = true;
        driver.send_table();
        driver
    }

    /// Makes one that has the processor do everything.
    #[must_use]
    pub fn without_device(portal: P, table: &Arc<Table>, settings: Settings) -> Self {
        let states = new_states(&portal);
        let (packer, unpacker) = coders(table);
        Self {
            portal,
            settings,
            slots: Vec::new(),
            states,
            takes_jobs: false,
            is_crowded: false,
            has_table: false,
            table: Arc::clone(table),
            packer,
            unpacker,
            proof: Vec::new(),
            counters: Counters::default(),
        }
    }

    fn new_slot(&self) -> Slot {
        let memory = Shared::new(SLOT_BYTES);
        self.portal.share(&memory);
        Slot { memory, job: None }
    }

    /// Changes the table, which the device reads at once.
    pub fn set_table(&mut self, table: &Arc<Table>) {
        self.table = Arc::clone(table);
        (self.packer, self.unpacker) = coders(table);
        self.send_table();
    }

    /// Whether the device works by this table, or the processor does since the device is lost.
    #[must_use]
    pub fn is_ready_for(&self, table: &Arc<Table>) -> bool {
        Arc::ptr_eq(&self.table, table) && (self.has_table || !self.takes_jobs)
    }

    /// Whether the device is used: it takes jobs, and has read the table.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.takes_jobs && self.has_table
    }

    /// Whether the device is no more used, by whatever table: its queue refused a job, or none of its jobs ends.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        !self.takes_jobs
    }

    /// Does without the device from now on.
    pub fn leave_device(&mut self) {
        self.takes_jobs = false;
    }

    /// The driver's work since it was made, or since [`Self::take_counters`].
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns what was counted since the last call, and counts from 0 again.
    pub fn take_counters(&mut self) -> Counters {
        mem::take(&mut self.counters)
    }

    /// The way to the queue that it was made with.
    pub fn portal(&self) -> &P {
        &self.portal
    }

    /// Puts the table's codes into the state for packing, and has the device make the one for unpacking.
    fn send_table(&mut self) {
        self.states.write(FOR_PACKING, &job::compress_state(&self.table));
        self.has_table = self.takes_jobs && self.read_table();
    }

    /// Has the device read the table's header into the state for unpacking.
    fn read_table(&mut self) -> bool {
        let table = Arc::clone(&self.table);
        for attempt in 1..=self.settings.attempts {
            let Some(slot) = self.free_slot() else { return false };
            let places = self.places(slot, table.to_bytes(), 0, FOR_UNPACKING);
            let descriptor = job::read_header(places, table.header_bits());
            let deadline = Instant::now() + self.settings.patience;
            while !self.submit(slot, &descriptor, (0, attempt)) {
                if !self.takes_jobs || self.is_full_for_long(deadline) {
                    return false;
                }
                self.portal.wait();
            }
            let Some((_, outcome)) = self.wait_for_one() else {
                self.give_up();
                // The device may yet write to the state, which another table's must not be.
                self.states = new_states(&self.portal);
                return false;
            };
            self.slots[slot].job = None;
            match outcome {
                Outcome::Done { read, written: 0, .. } => return read == table.to_bytes().len(),
                Outcome::PageFault { address, written, .. } => self.resolve(address, written),
                _ => {
                    self.counters.failed += 1;
                    return false;
                }
            }
        }
        false
    }

    /// Packs and unpacks, in any order. All pieces are done when it returns.
    ///
    /// # Errors
    /// One of the pieces to be unpacked is damaged: the first such, by its index. The others are done.
    ///
    /// # Panics
    /// If a piece or its packed bytes are longer than [`PIECE_BYTES`].
    pub fn run(&mut self, work: &mut [Work]) -> Result<(), (usize, Corrupt)> {
        let fits = |len: usize| assert!(len <= PIECE_BYTES, "a piece is at most {PIECE_BYTES} bytes");
        let mut waiting: VecDeque<(usize, u32)> = (0..work.len()).map(|index| (index, 0)).collect();
        let mut damaged: Option<(usize, Corrupt)> = None;
        let mut note = |index: usize, result: Result<(), Corrupt>| {
            if let Err(error) = result
                && damaged.is_none_or(|(first, _)| index < first)
            {
                damaged = Some((index, error));
            }
        };
        work.iter().for_each(|work| fits(work.input().len().max(work.room())));
        let mut deadline = Instant::now() + self.settings.patience;
        loop {
            self.fill(&mut waiting, work);
            if !self.is_up() {
                // What is in flight still ends, or hangs.
                for (index, _) in waiting.drain(..) {
                    note(index, self.by_software(&mut work[index]));
                }
            }
            if self.in_flight() == 0 {
                if waiting.is_empty() {
                    break;
                }
                // Others have the queue full.
                if self.is_full_for_long(deadline)
                    && let Some((index, _)) = waiting.pop_front()
                {
                    note(index, self.by_software(&mut work[index]));
                }
                self.portal.wait();
                continue;
            }
            deadline = Instant::now() + self.settings.patience;
            let Some((slot, outcome)) = self.wait_for_one() else {
                for index in self.give_up() {
                    note(index, self.by_software(&mut work[index]));
                }
                continue;
            };
            let (index, attempt) = self.slots[slot].job.take().expect("it was in flight");
            match outcome {
                Outcome::PageFault { address, written, .. } => {
                    self.resolve(address, written);
                    if attempt < self.settings.attempts {
                        waiting.push_front((index, attempt));
                        continue;
                    }
                }
                outcome if self.take(slot, &mut work[index], outcome) => {
                    self.counters.by_device += 1;
                    continue;
                }
                _ => {}
            }
            note(index, self.by_software(&mut work[index]));
        }
        damaged.map_or(Ok(()), Err)
    }

    /// Submits what waits, as far as there is room.
    fn fill(&mut self, waiting: &mut VecDeque<(usize, u32)>, work: &[Work]) {
        while self.is_up()
            && let Some(slot) = self.free_slot()
            && let Some((index, attempts)) = waiting.pop_front()
        {
            let one = &work[index];
            let descriptor = match one {
                Work::Unpack { .. } => job::unpack(
                    self.places(slot, one.input(), one.room(), FOR_UNPACKING),
                    self.settings.blocks_on_fault,
                ),
                Work::Pack { .. } => job::pack(
                    self.places(slot, one.input(), one.room(), FOR_PACKING),
                    self.settings.blocks_on_fault,
                ),
            };
            if !self.submit(slot, &descriptor, (index, attempts + 1)) {
                waiting.push_front((index, attempts));
                return;
            }
        }
    }

    /// Puts a job's input into a slot, whose completion record is emptied.
    fn places(&self, slot: usize, input: &[u8], room: usize, state: usize) -> Places {
        let memory = &self.slots[slot].memory;
        memory.write(0, Completion::default().as_bytes());
        memory.write(INPUT, input);
        let bytes = |len: usize| u32::try_from(len).expect("a piece is short");
        Places {
            completion: memory.address(0),
            source: memory.address(INPUT),
            source_bytes: bytes(input.len()),
            destination: memory.address(OUTPUT),
            destination_bytes: bytes(room),
            state: self.states.address(state),
        }
    }

    /// Submits a slot's job. False if the queue is full, or takes none any more.
    fn submit(&mut self, slot: usize, descriptor: &Descriptor, job: (usize, u32)) -> bool {
        match self.portal.submit(descriptor) {
            Submitted::Accepted => {
                self.slots[slot].job = Some(job);
                self.is_crowded = false;
                self.counters.submitted += 1;
                self.counters.most_in_flight = self.counters.most_in_flight.max(self.in_flight());
                true
            }
            Submitted::Retry => {
                self.counters.full += 1;
                false
            }
            Submitted::Refused => {
                self.takes_jobs = false;
                false
            }
        }
    }

    /// Whether others had the queue full until the deadline, or longer.
    fn is_full_for_long(&mut self, deadline: Instant) -> bool {
        self.is_crowded |= Instant::now() > deadline;
        self.is_crowded
    }

    fn free_slot(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.job.is_none())
    }

    fn in_flight(&self) -> usize {
        self.slots.iter().filter(|slot| slot.job.is_some()).count()
    }

    /// Waits until one of the jobs in flight ends, and says which slot's; nothing if none does for too long.
    fn wait_for_one(&mut self) -> Option<(usize, Outcome)> {
        let deadline = Instant::now() + self.settings.patience;
        let mut is_late = false;
        loop {
            for (slot, Slot { memory, job }) in self.slots.iter().enumerate() {
                if job.is_some() && memory.load(0) != 0 {
                    let mut record = Completion::default();
                    memory.read(0, record.as_mut_bytes());
                    return Some((slot, job::outcome(&record)));
                }
            }
            if is_late {
                return None;
            }
            // Records are looked at once more after the time is over: who was kept from running sees what has ended.
            is_late = Instant::now() > deadline;
            self.portal.wait();
        }
    }

    /// Takes leave of the jobs in flight. The device may yet write to their memory, so that it is kept for ever.
    fn give_up(&mut self) -> Vec<usize> {
        let mut pieces = Vec::new();
        for slot in mem::take(&mut self.slots) {
            match slot.job {
                None => self.slots.push(slot),
                Some((index, _)) => {
                    self.counters.hung += 1;
                    slot.memory.leak();
                    self.states.clone().leak();
                    pieces.push(index);
                }
            }
        }
        if self.slots.is_empty() {
            self.takes_jobs = false;
        }
        pieces
    }

    /// Has a page that the device missed brought in, if it is one of ours, and counts what the job had done.
    fn resolve(&mut self, address: u64, written: usize) {
        self.counters.page_faults += 1;
        self.counters.partial_bytes += written as u64;
        let all = self.slots.iter().map(|slot| &slot.memory).chain([&self.states]);
        for memory in all {
            let range = memory.addresses();
            // The record names the page, which may begin before the memory does.
            let within = address.max(range.start);
            if range.contains(&within) && within - address < 4096 {
                let at = usize::try_from(within - range.start).expect("an offset in memory");
                memory.touch(at);
            }
        }
    }

    /// Takes over what the device did. False if it did not, or not rightly: what it packed is unpacked again, as Linux's driver
    /// does by default.
    fn take(&mut self, slot: usize, work: &mut Work, outcome: Outcome) -> bool {
        let memory = &self.slots[slot].memory;
        let (read, written, crc) = match outcome {
            Outcome::Done { read, written, crc } => (read, written, crc),
            Outcome::Overflow => {
                self.counters.overflows += 1;
                if let Work::Pack { packed_bytes, .. } = work {
                    *packed_bytes = None;
                    return true;
                }
                return false;
            }
            Outcome::BadData => {
                self.counters.bad_data += 1;
                return false;
            }
            Outcome::Failed(_) | Outcome::PageFault { .. } => {
                self.counters.failed += 1;
                return false;
            }
        };
        let is_right = match work {
            Work::Unpack { packed, out } => {
                let is_whole = read == packed.len() && written == out.len();
                if is_whole {
                    memory.read(OUTPUT, out);
                }
                is_whole && crc32fast::hash(out) == crc
            }
            Work::Pack { piece, out, packed_bytes } => {
                let is_whole = read == piece.len() && written <= out.len();
                if is_whole {
                    memory.read(OUTPUT, &mut out[..written]);
                    *packed_bytes = Some(written);
                }
                self.proof.resize(piece.len(), 0);
                is_whole
                    && crc32fast::hash(piece) == crc
                    && self.unpacker.unpack(&out[..written], &mut self.proof).is_ok()
                    && self.proof == *piece
            }
        };
        if !is_right {
            self.counters.bad_checksums += 1;
            return false;
        }
        let (packed, unpacked) =
            if matches!(work, Work::Unpack { .. }) { (read, written) } else { (written, read) };
        self.counters.packed_bytes += packed as u64;
        self.counters.unpacked_bytes += unpacked as u64;
        true
    }

    fn by_software(&mut self, work: &mut Work) -> Result<(), Corrupt> {
        self.counters.by_software += 1;
        match work {
            Work::Unpack { packed, out } => self.unpacker.unpack(packed, out),
            Work::Pack { piece, out, packed_bytes } => {
                *packed_bytes = self.packer.pack(piece, out);
                Ok(())
            }
        }
    }
}

fn new_states<P: Portal>(portal: &P) -> Shared {
    let states = Shared::new(STATES_BYTES);
    portal.share(&states);
    states
}

/// Makes the packer and the unpacker by which the processor does the work.
fn coders(table: &Arc<Table>) -> (Packer, Unpacker) {
    let packer = Packer::new(Style::DeflateCanned, Some(Arc::clone(table))).with_window(WINDOW_BYTES);
    (packer, Unpacker::new(Style::DeflateCanned, Some(Arc::clone(table))))
}

impl<P: Portal> Drop for Driver<P> {
    fn drop(&mut self) {
        // Whoever unwound out of `run` may have left jobs behind.
        self.give_up();
    }
}

const _: () = assert!(WINDOW_BYTES == codec::ENGINE_WINDOW_BYTES, "what is packed for a device is packed so");
