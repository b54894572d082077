//! Directories of a tmpfs.

use abi::word::low8;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ptr;

use crate::fs::file::{DirEntry, File};
use crate::fs::inode::S_IFDIR;
use crate::fs::names::RENAME_EXCHANGE;
use crate::fs::tmpfs::{Content, TmpInode};
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::sync::SpinLock;

/// The first position behind `.` and `..`.
const FIRST: u64 = 2;

/// A name's position, the inode it refers to, and the charge for its memory.
struct Named {
    position: u64,
    node: Arc<TmpInode>,
    _charge: Charge,
}

/// Charges for a name and its places in a directory.
fn charge_name(name: &[u8]) -> Result<Charge> {
    Charge::lasting(256 + 2 * name.len())
}

/// Names by text and by position. A name keeps its position, so that listing goes on where it was.
pub struct Entries {
    parent: Option<Weak<TmpInode>>,
    names: BTreeMap<Box<[u8]>, Named>,
    order: BTreeMap<u64, Box<[u8]>>,
    next: u64,
    /// The directory was removed: nothing can be made in it.
    dead: bool,
}

impl Entries {
    /// An empty directory.
    pub fn new(parent: Option<Weak<TmpInode>>) -> Self {
        Self { parent, names: BTreeMap::new(), order: BTreeMap::new(), next: FIRST, dead: false }
    }

    /// Its size in bytes, as tmpfs counts it.
    pub fn size(&self) -> u64 {
        (self.names.len() as u64 + 2) * 20
    }

    /// Removes everything.
    pub fn take_all(&mut self) -> Vec<Arc<TmpInode>> {
        self.order.clear();
        core::mem::take(&mut self.names).into_values().map(|named| named.node).collect()
    }

    fn insert(&mut self, name: &[u8], node: Arc<TmpInode>, charge: Charge) {
        let position = self.next;
        self.next += 1;
        self.order.insert(position, name.into());
        self.names.insert(name.into(), Named { position, node, _charge: charge });
    }

    fn take(&mut self, name: &[u8]) -> Option<Arc<TmpInode>> {
        let named = self.names.remove(name)?;
        self.order.remove(&named.position);
        Some(named.node)
    }

    fn get(&self, name: &[u8]) -> Option<&Arc<TmpInode>> {
        self.names.get(name).map(|named| &named.node)
    }
}

impl TmpInode {
    fn entries(&self) -> Result<&SpinLock<Entries>> {
        match &self.content {
            Content::Dir(entries) => Ok(entries),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn find(&self, name: &[u8]) -> Result<Arc<TmpInode>> {
        self.entries()?.lock().get(name).cloned().ok_or(Errno::ENOENT)
    }

    pub(super) fn add(&self, name: &[u8], node: Arc<TmpInode>) -> Result<Arc<TmpInode>> {
        let charge = charge_name(name)?;
        {
            let mut entries = self.entries()?.lock();
            if entries.dead {
                return Err(Errno::ENOENT);
            }
            if entries.get(name).is_some() {
                return Err(Errno::EEXIST);
            }
            entries.insert(name, node.clone(), charge);
        }
        self.modified();
        Ok(node)
    }

    pub(super) fn remove(&self, name: &[u8], dir: bool) -> Result<()> {
        let victim = self.find(name)?;
        match (victim.kind == S_IFDIR, dir) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            _ => {}
        }
        if dir {
            victim.die()?;
        }
        let taken = self.entries()?.lock().take(name);
        drop(taken);
        self.modified();
        self.dropped(&victim);
        Ok(())
    }

    /// Makes an empty directory unusable; `ENOTEMPTY`.
    fn die(&self) -> Result<()> {
        let mut entries = self.entries()?.lock();
        if !entries.names.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        entries.dead = true;
        Ok(())
    }

    /// A name of `victim` in this directory is gone.
    fn dropped(&self, victim: &TmpInode) {
        if victim.kind == S_IFDIR {
            victim.add_links(-2);
            self.add_links(-1);
        } else {
            victim.lose_name();
        }
    }

    /// The VFS holds the locks of both directories' names, and has made all checks that it can.
    pub(super) fn move_entry(&self, old: &[u8], new_dir: &TmpInode, new: &[u8], flags: u32) -> Result<()> {
        let source = self.find(old)?;
        let charge = charge_name(new)?;
        let victim = new_dir.find(new).ok();
        if flags & RENAME_EXCHANGE != 0 {
            let victim = victim.ok_or(Errno::ENOENT)?;
            self.replace(old, victim.clone())?;
            new_dir.replace(new, source.clone())?;
            self.changed_parent(&source, new_dir)?;
            new_dir.changed_parent(&victim, self)?;
            return Ok(());
        }
        if let Some(victim) = &victim {
            if victim.kind == S_IFDIR {
                victim.die()?;
            }
            let taken = new_dir.entries()?.lock().take(new);
            drop(taken);
            new_dir.dropped(victim);
        }
        let taken = self.entries()?.lock().take(old);
        drop(taken);
        self.modified();
        new_dir.entries()?.lock().insert(new, source.clone(), charge);
        new_dir.modified();
        self.changed_parent(&source, new_dir)?;
        source.add_links(0);
        Ok(())
    }

    fn replace(&self, name: &[u8], node: Arc<TmpInode>) -> Result<()> {
        let old =
            self.entries()?.lock().names.get_mut(name).map(|slot| core::mem::replace(&mut slot.node, node));
        drop(old);
        self.modified();
        Ok(())
    }

    /// `node` was moved from here to `to`.
    fn changed_parent(&self, node: &TmpInode, to: &TmpInode) -> Result<()> {
        if node.kind == S_IFDIR && !ptr::eq(self, to) {
            node.entries()?.lock().parent = Some(to.me.clone());
            self.add_links(-1);
            to.add_links(1);
        }
        Ok(())
    }

    pub(super) fn list(&self, file: &File, sink: &mut dyn FnMut(&DirEntry<'_>) -> bool) -> Result<()> {
        let mut position = file.pos.lock();
        let entries = self.entries()?;
        let parent = entries.lock().parent.as_ref().and_then(Weak::upgrade).map_or(self.ino, |dir| dir.ino);
        const DT_DIR: u8 = 4;
        for (at, name, ino) in [(0, &b"."[..], self.ino), (1, b"..", parent)] {
            if *position == at {
                if !sink(&DirEntry { name, ino, next: at + 1, kind: DT_DIR }) {
                    return Ok(());
                }
                *position = at + 1;
            }
        }
        loop {
            // The sink copies to user memory, so no spin lock is held meanwhile.
            let batch: Vec<(u64, Box<[u8]>, u64, u32)> = {
                let entries = entries.lock();
                let names = entries.order.range(*position..).take(64);
                names
                    .filter_map(|(at, name)| {
                        entries.get(name).map(|node| (*at, name.clone(), node.ino, node.kind))
                    })
                    .collect()
            };
            if batch.is_empty() {
                return Ok(());
            }
            for (at, name, ino, kind) in batch {
                let kind = low8(u64::from(kind >> 12));
                if !sink(&DirEntry { name: &name, ino, next: at + 1, kind }) {
                    return Ok(());
                }
                *position = at + 1;
            }
        }
    }
}
