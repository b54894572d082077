//! Tables of System V objects: ids, keys, and how both are given out (`ipc/util.c` of Linux).

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::ipc::perm::{IPC_CREAT, IPC_EXCL};
use machine::errno::{Errno, Result};
use machine::sched;
use machine::sync::SpinLock;

/// The key that names no object (`ipc(5)`).
pub const IPC_PRIVATE: i32 = 0;
/// Most objects of one kind: an index has 15 bits of an id.
pub const OBJECTS_MAX: u32 = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 15;
/// The bits of an id above the index.
const SEQUENCE_MAX: u32 = i32::MAX.unsigned_abs() >> INDEX_BITS;
/// Indices are used again once so many have been.
const CYCLE_MIN: u32 = 64;
/// Objects that are looked at until others are let run.
const SOME: usize = 128;

struct Slot<T> {
    id: i32,
    key: i32,
    object: Arc<T>,
}

/// The object that a `get` call has found or made.
pub enum Got<T> {
    New(i32),
    Old(i32, Arc<T>),
}

/// Objects of one kind, by index, id and key.
pub struct Table<T> {
    slots: BTreeMap<u32, Slot<T>>,
    keys: BTreeMap<i32, u32>,
    sequence: u32,
    last_index: Option<u32>,
    /// The id that the next object is to have (`kernel.*_next_id`).
    pub next_id: Option<i32>,
}

/// The index in an id; `None`: it is no id.
fn index_of(id: i32) -> Option<u32> {
    u32::try_from(id).ok().map(|id| id % OBJECTS_MAX)
}

impl<T> Table<T> {
    /// An empty table.
    pub const fn new() -> Self {
        Self { slots: BTreeMap::new(), keys: BTreeMap::new(), sequence: 0, last_index: None, next_id: None }
    }

    /// How many objects there are.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// The object with this id. `EINVAL`.
    pub fn get(&self, id: i32) -> Result<Arc<T>> {
        let slot = index_of(id).and_then(|index| self.slots.get(&index));
        slot.filter(|slot| slot.id == id).map(|slot| slot.object.clone()).ok_or(Errno::EINVAL)
    }

    /// Id and object at an index, as `SHM_STAT` and its like ask. `EINVAL`.
    pub fn at(&self, index: i32) -> Result<(i32, Arc<T>)> {
        let slot = index_of(index).and_then(|index| self.slots.get(&index));
        slot.map(|slot| (slot.id, slot.object.clone())).ok_or(Errno::EINVAL)
    }

    /// Id and object of a key.
    pub fn find(&self, key: i32) -> Option<(i32, Arc<T>)> {
        let slot = self.slots.get(self.keys.get(&key)?)?;
        Some((slot.id, slot.object.clone()))
    }

    /// All objects with their ids, by index.
    pub fn iter(&self) -> impl Iterator<Item = (i32, &Arc<T>)> {
        self.slots.values().map(|slot| (slot.id, &slot.object))
    }

    /// Some of the objects with their ids, by index, from one on. None: there are no more.
    fn some_from(&self, index: u32) -> Vec<(i32, Arc<T>)> {
        let some = self.slots.range(index..).take(SOME);
        some.map(|(_, slot)| (slot.id, slot.object.clone())).collect()
    }

    /// The largest index in use; 0 if there is none.
    pub fn last_index(&self) -> u32 {
        self.slots.last_key_value().map_or(0, |(index, _)| *index)
    }

    /// `shmget(2)` and its like: the object of a key, or the id of one that `make` adds. `ENOENT`, `EEXIST`: as the flags ask.
    pub fn get_or(
        &mut self,
        key: i32,
        flags: u32,
        make: impl FnOnce(&mut Self) -> Result<i32>,
    ) -> Result<Got<T>> {
        let found = if key == IPC_PRIVATE { None } else { self.find(key) };
        match found {
            None if key != IPC_PRIVATE && flags & IPC_CREAT == 0 => Err(Errno::ENOENT),
            None => make(self).map(Got::New),
            Some(_) if flags & (IPC_CREAT | IPC_EXCL) == IPC_CREAT | IPC_EXCL => Err(Errno::EEXIST),
            Some((id, object)) => Ok(Got::Old(id, object)),
        }
    }

    /// Adds the object that `make` makes, under a key that no other has; returns its id. `ENOSPC`: there are `most` already.
    pub fn insert(&mut self, key: i32, most: u32, make: impl FnOnce(i32) -> Result<Arc<T>>) -> Result<i32> {
        if self.slots.len() >= most.min(OBJECTS_MAX) as usize {
            return Err(Errno::ENOSPC);
        }
        let (index, sequence) = match self.next_id {
            Some(next) => {
                let wanted = index_of(next).ok_or(Errno::EINVAL)?;
                let index = self.free_index(wanted, OBJECTS_MAX).ok_or(Errno::ENOSPC)?;
                (index, next.unsigned_abs() >> INDEX_BITS)
            }
            None => self.next_place(most)?,
        };
        let id = (sequence << INDEX_BITS | index).cast_signed();
        let object = make(id)?;
        if self.next_id.take().is_none() {
            (self.sequence, self.last_index) = (sequence, Some(index));
        }
        self.slots.insert(index, Slot { id, key, object });
        if key != IPC_PRIVATE {
            self.keys.insert(key, index);
        }
        Ok(id)
    }

    /// The place behind the one given last, in a circle that grows with the number of objects.
    fn next_place(&self, most: u32) -> Result<(u32, u32)> {
        let used = u32::try_from(self.slots.len()).unwrap_or(OBJECTS_MAX);
        let circle = (used + used / 2).max(CYCLE_MIN).min(most.min(OBJECTS_MAX));
        let from = self.last_index.map_or(0, |last| last + 1);
        let index = self.free_index(from, circle).or_else(|| self.free_index(0, circle));
        let index = index.ok_or(Errno::ENOSPC)?;
        let has_wrapped = self.last_index.is_some_and(|last| index <= last);
        let sequence = if has_wrapped { (self.sequence + 1) % SEQUENCE_MAX } else { self.sequence };
        Ok((index, sequence))
    }

    fn free_index(&self, from: u32, to: u32) -> Option<u32> {
        let mut used = self.slots.range(from.min(to)..to).map(|(index, _)| *index);
        (from..to).find(|index| used.next() != Some(*index))
    }

    /// The object's key names it no more.
    pub fn forget_key(&mut self, id: i32) {
        let slot = index_of(id).and_then(|index| self.slots.get_mut(&index)).filter(|slot| slot.id == id);
        if let Some(slot) = slot {
            self.keys.remove(&slot.key);
            slot.key = IPC_PRIVATE;
        }
    }

    /// Takes an object out. `None`: somebody else has.
    pub fn remove(&mut self, id: i32) -> Option<Arc<T>> {
        self.forget_key(id);
        let index = index_of(id).filter(|index| self.slots.get(index).is_some_and(|slot| slot.id == id))?;
        self.slots.remove(&index).map(|slot| slot.object)
    }
}

/// Calls `f` for each object of a table and its id, by index, without the lock. Others run meanwhile, and objects come and go.
pub fn for_each<T>(table: &SpinLock<Table<T>>, mut f: impl FnMut(i32, &Arc<T>) -> Result<()>) -> Result<()> {
    let mut from = 0;
    loop {
        let some = table.lock().some_from(from);
        let Some(last) = some.last().and_then(|(id, _)| index_of(*id)) else { return Ok(()) };
        some.iter().try_for_each(|(id, object)| f(*id, object))?;
        from = last + 1;
        sched::let_others_go_on();
    }
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(table: &mut Table<i32>, key: i32, most: u32) -> Result<i32> {
        table.insert(key, most, |id| Ok(Arc::new(id)))
    }

    #[test]
    fn ids_come_in_a_circle_and_never_again_soon() {
        let mut table = Table::new();
        assert_eq!(add(&mut table, 7, 100), Ok(0));
        assert_eq!(add(&mut table, IPC_PRIVATE, 100), Ok(1));
        assert_eq!(table.find(7).map(|found| found.0), Some(0));
        assert!(table.remove(0).is_some() && table.remove(0).is_none());
        assert_eq!(table.find(7), None);
        for index in 2..64 {
            assert_eq!(add(&mut table, IPC_PRIVATE, 100), Ok(index));
            assert!(table.remove(index).is_some());
        }
        // Index 0 with the next sequence.
        assert_eq!(add(&mut table, IPC_PRIVATE, 100), Ok(0x8000));
        assert_eq!(table.get(0), Err(Errno::EINVAL));
        assert_eq!(table.at(0).map(|found| found.0), Ok(0x8000));
        assert_eq!(table.get(-1), Err(Errno::EINVAL));
    }

    #[test]
    fn there_are_as_many_as_may_be() {
        let mut table = Table::new();
        for index in 0..3 {
            assert_eq!(add(&mut table, IPC_PRIVATE, 3), Ok(index));
        }
        assert_eq!(add(&mut table, IPC_PRIVATE, 3), Err(Errno::ENOSPC));
        table.remove(1);
        assert_eq!(add(&mut table, IPC_PRIVATE, 3), Ok(0x8001));
        let mut full = Table::new();
        for _ in 0..OBJECTS_MAX {
            assert!(add(&mut full, IPC_PRIVATE, u32::MAX).is_ok());
        }
        assert_eq!(add(&mut full, IPC_PRIVATE, u32::MAX), Err(Errno::ENOSPC));
    }

    #[test]
    fn a_wanted_id_counts_once() {
        let mut table = Table::new();
        table.next_id = Some(0x8005);
        assert_eq!(add(&mut table, 1, 100), Ok(0x8005));
        table.next_id = Some(0x8005);
        assert_eq!(add(&mut table, 2, 100), Ok(0x8006));
        assert_eq!(add(&mut table, 3, 100), Ok(0));
    }

    #[test]
    fn what_cannot_be_made_leaves_no_trace() {
        let mut table: Table<i32> = Table::new();
        assert_eq!(table.insert(5, 10, |_| Err(Errno::ENOMEM)), Err(Errno::ENOMEM));
        assert_eq!((table.count(), table.find(5)), (0, None));
        assert_eq!(add(&mut table, 5, 10), Ok(0));
        table.forget_key(0);
        assert_eq!((table.count(), table.find(5)), (1, None));
    }
}
