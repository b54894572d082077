//! The names of groups: how they are made and removed, and the attributes of their directories and files.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use crate::fs::inode::{AttrChange, Inode};
use crate::fs::notify::{self, Mask};
use crate::task::groups::{
    Controllers, Counts, DEPTH_MAX, GROUPS_MAX, Group, GroupId, Groups, Settings, Ticks, file_key,
};
use machine::errno::{Errno, Result};
use machine::mm::account::Charge;
use machine::time;

/// Kernel memory of a group, with the attributes of all its files and its names in caches.
const GROUP_BYTES: usize = 6144;
/// Kernel memory of an extended attribute beside its name and value.
const XATTR_BYTES: usize = 256;
/// Most bytes of all extended attributes of a group, names and values.
const XATTRS_MAX_BYTES: usize = 64 * 1024;
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
/// Stands for the group's directory where its files go by their names.
pub const DIR: &str = "";

/// Permission bits and owner of a file or directory of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Owner {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// The container's own group.
    pub(super) const ROOT_DIR: Self = Self { mode: 0o755, uid: 0, gid: 0 };
}

/// A group that is to be made.
pub struct NewGroup<'a> {
    pub name: &'a [u8],
    pub owner: Owner,
}

struct Xattr {
    value: Box<[u8]>,
    _charge: Charge,
}

/// The owners, attributes and times that a group's directory and files keep.
pub(super) struct Nodes {
    dir: Owner,
    /// Of files whose attributes were changed, by name.
    files: BTreeMap<&'static str, Owner>,
    xattrs: BTreeMap<Box<[u8]>, Xattr>,
    made_ns: i64,
    /// Its directory, as long as anybody has it.
    inode: Option<Weak<dyn Inode>>,
}

impl Group {
    pub(super) fn new(parent: Option<GroupId>, depth: usize, new: &NewGroup<'_>, charge: Charge) -> Self {
        Self {
            parent,
            name: new.name.into(),
            depth,
            by_name: BTreeMap::new(),
            in_order: BTreeMap::new(),
            descendants: 0,
            gives: Controllers::empty(),
            users: [0; Controllers::COUNT],
            settings: Settings::NEW,
            counts: Counts::default(),
            own_tasks: 0,
            tasks: 0,
            tasks_peak: 0,
            used: Ticks::default(),
            changes: [const { None }; 3],
            nodes: Nodes {
                dir: new.owner,
                files: BTreeMap::new(),
                xattrs: BTreeMap::new(),
                made_ns: time::realtime_ns().cast_signed(),
                inode: None,
            },
            _charge: charge,
        }
    }
}

impl Groups {
    /// Makes a group. `ENODEV`: the one around it was removed. `EAGAIN`: a limit of a group above, or of the kernel, is reached.
    pub fn make(&self, parent: GroupId, new: &NewGroup<'_>) -> Result<GroupId> {
        let charge = Charge::lasting(GROUP_BYTES + 2 * new.name.len())?;
        let id = GroupId::next();
        let mut state = self.state.lock();
        let above = state.get(parent)?;
        if above.by_name.contains_key(new.name) {
            return Err(Errno::EEXIST);
        }
        let depth = above.depth + 1;
        let refuses = |group: &Group| {
            group.descendants as u64 >= group.settings.max_descendants
                || (depth - group.depth) as u64 > group.settings.max_depth
        };
        if depth > DEPTH_MAX || state.groups.len() >= GROUPS_MAX || state.upwards(parent).any(refuses) {
            return Err(Errno::EAGAIN);
        }
        state.groups.insert(id, Group::new(Some(parent), depth, new, charge));
        state.for_chain(parent, |_, group, _| group.descendants += 1);
        let above = state.get_mut(parent)?;
        above.by_name.insert(new.name.into(), id);
        above.in_order.insert(id, new.name.into());
        Ok(id)
    }

    /// Removes a group. `EBUSY`: it has tasks, or groups below it. As long as what `no_forks` returns lives, no process begins in any
    /// group: one that has just been given its group counts soon after.
    pub fn remove<G>(
        &self,
        (parent, name): (GroupId, &[u8]),
        files: &[&str],
        no_forks: impl FnOnce() -> G,
    ) -> Result<()> {
        let id = self.find(parent, name)?;
        let gone = {
            let _no_forks = no_forks();
            let mut state = self.state.lock();
            let group = state.get(id)?;
            if group.tasks != 0 || !group.by_name.is_empty() {
                return Err(Errno::EBUSY);
            }
            state.set_gives(id, Controllers::empty())?;
            state.for_chain(parent, |_, group, _| group.descendants = group.descendants.saturating_sub(1));
            let above = state.get_mut(parent)?;
            above.by_name.remove(name);
            above.in_order.remove(&id);
            state.groups.remove(&id)
        };
        drop(gone);
        if notify::is_any() {
            files.iter().for_each(|file| notify::end(file_key(id, file), Mask::DELETE_SELF));
        }
        Ok(())
    }

    /// The group of this name; `ENOENT`.
    pub fn find(&self, parent: GroupId, name: &[u8]) -> Result<GroupId> {
        let state = self.state.lock();
        let above = state.get(parent).map_err(|_| Errno::ENOENT)?;
        above.by_name.get(name).copied().ok_or(Errno::ENOENT)
    }

    /// The next group directly below `parent` whose number is at least `from`, and its name.
    pub fn next_below(&self, parent: GroupId, from: GroupId) -> Option<(GroupId, Box<[u8]>)> {
        let state = self.state.lock();
        let (id, name) = state.groups.get(&parent)?.in_order.range(from..).next()?;
        Some((*id, name.clone()))
    }

    /// How many groups are directly below.
    pub fn count_below(&self, id: GroupId) -> usize {
        self.state.lock().groups.get(&id).map_or(0, |group| group.by_name.len())
    }

    /// The number of the group around it; of the container's own group itself.
    pub fn parent(&self, id: GroupId) -> GroupId {
        self.state.lock().groups.get(&id).and_then(|group| group.parent).unwrap_or(id)
    }

    /// The directory of a group: the one that somebody has, or what `make` makes.
    pub fn dir(&self, id: GroupId, make: impl FnOnce() -> Arc<dyn Inode>) -> Result<Arc<dyn Inode>> {
        let made = make();
        let mut state = self.state.lock();
        let slot = &mut state.get_mut(id)?.nodes.inode;
        if let Some(known) = slot.as_ref().and_then(Weak::upgrade) {
            return Ok(known);
        }
        *slot = Some(Arc::downgrade(&made));
        Ok(made)
    }

    /// Attributes of the group's directory ([`DIR`]) or of one of its files, whose permission bits are `mode` until somebody
    /// changes them; and when the group was made. Files belong to whoever made the group.
    pub fn owner(&self, id: GroupId, file: &'static str, mode: u32) -> Result<(Owner, i64)> {
        let state = self.state.lock();
        let nodes = &state.get(id)?.nodes;
        Ok((nodes.files.get(file).copied().unwrap_or(nodes.first(file, mode)), nodes.made_ns))
    }

    /// `chmod(2)` and `chown(2)` of one of them.
    pub fn set_owner(&self, id: GroupId, file: &'static str, mode: u32, change: &AttrChange) -> Result<()> {
        // Under one lock: who was asked before somebody else had it would have his way after.
        let mut state = self.state.lock();
        let nodes = &mut state.get_mut(id)?.nodes;
        let first = nodes.first(file, mode);
        let owner = nodes.files.entry(file).or_insert(first);
        if let Some(mode) = change.mode_for(owner.mode, owner.gid) {
            owner.mode = mode & 0o7777;
        }
        owner.uid = change.uid.unwrap_or(owner.uid);
        owner.gid = change.gid.unwrap_or(owner.gid);
        Ok(())
    }

    /// An extended attribute of the group's directory.
    pub fn xattr(&self, id: GroupId, name: &[u8]) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let found = state.get(id)?.nodes.xattrs.get(name);
        found.map(|xattr| xattr.value.to_vec()).ok_or(Errno::ENODATA)
    }

    /// Sets one; `flags` are `XATTR_*`.
    pub fn set_xattr(&self, id: GroupId, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let charge = Charge::lasting(XATTR_BYTES + name.len() + value.len())?;
        let new = Xattr { value: value.into(), _charge: charge };
        let mut state = self.state.lock();
        let xattrs = &mut state.get_mut(id)?.nodes.xattrs;
        match (xattrs.contains_key(name), flags) {
            (true, XATTR_CREATE) => return Err(Errno::EEXIST),
            (false, XATTR_REPLACE) => return Err(Errno::ENODATA),
            _ => {}
        }
        let others = xattrs.iter().filter(|(other, _)| ***other != *name);
        let used: usize = others.map(|(other, xattr)| other.len() + xattr.value.len() + 1).sum();
        if used + name.len() + value.len() + 1 > XATTRS_MAX_BYTES {
            return Err(Errno::ENOSPC);
        }
        let old = xattrs.insert(name.into(), new);
        drop(state);
        drop(old);
        Ok(())
    }

    /// The names of all of them, each ended by NUL.
    pub fn list_xattrs(&self, id: GroupId) -> Result<Vec<u8>> {
        let state = self.state.lock();
        let names = state.get(id)?.nodes.xattrs.keys();
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    /// Removes one.
    pub fn remove_xattr(&self, id: GroupId, name: &[u8]) -> Result<()> {
        let mut state = self.state.lock();
        let gone = state.get_mut(id)?.nodes.xattrs.remove(name).ok_or(Errno::ENODATA)?;
        drop(state);
        drop(gone);
        Ok(())
    }
}

impl Nodes {
    /// Attributes that nobody has changed: files belong to whoever made the group, as its directory does at first.
    fn first(&self, file: &str, mode: u32) -> Owner {
        if file == DIR { self.dir } else { Owner { mode, ..self.dir } }
    }
}
