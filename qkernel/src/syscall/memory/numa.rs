//! Memory policies, for a machine with one node: `mbind(2)`, `set_mempolicy(2)` and their relatives. Policies are kept and
//! told; since there is one node, they all mean the same.

use core::sync::atomic::Ordering;

use crate::creds::{CAP_SYS_NICE, Inspection};
use crate::syscall::context::SyscallResult;
use crate::syscall::memory::process_vm::memory_of;
use crate::task::context::Ctx;
use crate::task::core::Task;
use alloc::sync::Arc;
use machine::errno::{Errno, Result};
use machine::mm::{Access, AddressSpace, PAGE, UserAddr, page_up};
use machine::sched;

/// Modes.
const DEFAULT: u32 = 0;
const PREFERRED: u32 = 1;
const BIND: u32 = 2;
const LOCAL: u32 = 4;
const PREFERRED_MANY: u32 = 5;
const MODES: u32 = 7;
/// Flags of modes.
const STATIC_NODES: u32 = 1 << 15;
const RELATIVE_NODES: u32 = 1 << 14;
const BALANCING: u32 = 1 << 13;
/// Most bits of a set of nodes that a caller may hand over.
const BITS_MAX: u64 = 8 * PAGE;
/// Nodes that a set may name, of which there is one.
const NODES: u64 = 64;
/// `MPOL_MF_*`.
const MF_STRICT: u32 = 1;
const MF_MOVE: u32 = 2;
const MF_MOVE_ALL: u32 = 4;

/// Reads a set of nodes, as the first word of it: no other has a bit that may be set. `EINVAL`.
fn read_nodes(cx: &Ctx<'_>, nodes: UserAddr, max_node: u64) -> Result<u64> {
    let bits = max_node.wrapping_sub(1);
    if bits == 0 || nodes.is_null() {
        return Ok(0);
    }
    if max_node == 0 || bits > BITS_MAX {
        return Err(Errno::EINVAL);
    }
    let words = usize::try_from(bits.div_ceil(64)).map_err(|_| Errno::EINVAL)?;
    let mut set: alloc::vec::Vec<u64> = cx.user().read_array(nodes, words)?;
    if let Some(last) = set.last_mut().filter(|_| !bits.is_multiple_of(64)) {
        *last &= (1 << (bits % 64)) - 1;
    }
    if set.iter().skip(1).any(|word| *word != 0) {
        return Err(Errno::EINVAL);
    }
    Ok(set.first().copied().unwrap_or(0))
}

/// A mode with its flags, checked against the nodes that come with it: what is kept of them. `EINVAL`.
fn policy(mode: u32, nodes: u64) -> Result<u32> {
    let flags = mode & (STATIC_NODES | RELATIVE_NODES | BALANCING);
    let mode = mode & !flags;
    let has_both = flags & (STATIC_NODES | RELATIVE_NODES) == STATIC_NODES | RELATIVE_NODES;
    if mode >= MODES || has_both || (flags & BALANCING != 0 && !matches!(mode, BIND | PREFERRED_MANY)) {
        return Err(Errno::EINVAL);
    }
    let is_set = nodes & 1 != 0;
    match mode {
        DEFAULT if nodes == 0 => Ok(DEFAULT),
        LOCAL if nodes == 0 && flags == 0 => Ok(LOCAL),
        PREFERRED if nodes == 0 && flags == 0 => Ok(LOCAL),
        DEFAULT | LOCAL => Err(Errno::EINVAL),
        // Relative to what there is, every node is the one.
        _ if is_set || (flags & RELATIVE_NODES != 0 && nodes != 0) => Ok(mode | flags),
        _ => Err(Errno::EINVAL),
    }
}

/// The range of a call, in whole pages; `EINVAL`.
fn range(addr: UserAddr, len: u64) -> Result<(u64, u64)> {
    let len = page_up(len).ok_or(Errno::EINVAL)?;
    addr.checked_add(len).ok_or(Errno::EINVAL)?;
    if addr.is_aligned(PAGE) { Ok((addr.get(), len)) } else { Err(Errno::EINVAL) }
}

/// `set_mempolicy(2)`.
pub(in crate::syscall) fn set_mempolicy(
    cx: &Ctx<'_>,
    mode: u32,
    nodes: UserAddr,
    max_node: u64,
) -> SyscallResult {
    let policy = policy(mode, read_nodes(cx, nodes, max_node)?)?;
    cx.task.mempolicy.store(policy, Ordering::Relaxed);
    Ok(0)
}

/// `mbind(2)`.
pub(in crate::syscall) fn mbind(
    cx: &Ctx<'_>,
    addr: UserAddr,
    len: u64,
    mode: u32,
    nodes: UserAddr,
    max_node: u64,
    flags: u32,
) -> SyscallResult {
    let nodes = read_nodes(cx, nodes, max_node)?;
    if flags & !(MF_STRICT | MF_MOVE | MF_MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & MF_MOVE_ALL != 0 && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let (start, len) = range(addr, len)?;
    let policy = policy(mode, nodes)?;
    let kept = policy & !(STATIC_NODES | RELATIVE_NODES | BALANCING);
    let bound = cx.aspace().set_flags(start, len, |flags| flags.with_policy(kept));
    bound.map(|()| 0).map_err(|error| if error == Errno::ENOMEM { Errno::EFAULT } else { error })
}

/// `get_mempolicy(2)`.
pub(in crate::syscall) fn get_mempolicy(
    cx: &Ctx<'_>,
    mode: UserAddr,
    nodes: UserAddr,
    max_node: u64,
    addr: UserAddr,
    flags: u64,
) -> SyscallResult {
    const NODE: u64 = 1;
    const ADDR: u64 = 2;
    const MEMS_ALLOWED: u64 = 4;
    let is_known = flags & !(NODE | ADDR | MEMS_ALLOWED) == 0;
    if !is_known || (!nodes.is_null() && max_node < 1) {
        return Err(Errno::EINVAL);
    }
    let (value, set) = if flags & MEMS_ALLOWED != 0 {
        if flags & (NODE | ADDR) != 0 {
            return Err(Errno::EINVAL);
        }
        (0, 1)
    } else if flags & ADDR != 0 {
        let mode = cx.aspace().policy_at(addr.get()).ok_or(Errno::EFAULT)?;
        if flags & NODE != 0 {
            // The page comes, so that it is somewhere.
            let page = machine::mm::page_down(addr.get());
            cx.aspace().touch_all(page, page + PAGE, Access::Read).map_err(|_| Errno::EFAULT)?;
            (0, nodes_of(mode))
        } else {
            (mode, nodes_of(mode))
        }
    } else {
        let mode = cx.task.mempolicy.load(Ordering::Relaxed);
        let plain = mode & !(STATIC_NODES | RELATIVE_NODES | BALANCING);
        if !addr.is_null() || (flags & NODE != 0 && !matches!(plain, 3 | 6)) {
            return Err(Errno::EINVAL);
        }
        (if flags & NODE != 0 { 0 } else { mode }, nodes_of(plain))
    };
    cx.user().write_opt(mode, &value)?;
    if !nodes.is_null() {
        write_nodes(cx, nodes, max_node, set)?;
    }
    Ok(0)
}

/// The nodes of a policy with this mode.
fn nodes_of(mode: u32) -> u64 {
    u64::from(!matches!(mode, DEFAULT | LOCAL))
}

fn write_nodes(cx: &Ctx<'_>, to: UserAddr, max_node: u64, set: u64) -> Result<()> {
    let bytes = (max_node - 1).div_ceil(64) * 8;
    if bytes > PAGE {
        return Err(Errno::EINVAL);
    }
    if bytes > 0 {
        cx.user().write(to, &set)?;
        cx.aspace().zero_out(to.offset(8), usize::try_from(bytes - 8).unwrap_or(0))?;
    }
    Ok(())
}

/// The task of a call about another process; 0 is the caller.
fn task_of(cx: &Ctx<'_>, pid: i32) -> Result<Arc<Task>> {
    match u32::try_from(pid) {
        Ok(0) => Ok(cx.task.clone()),
        Ok(pid) => cx.pids().find_task(pid).ok_or(Errno::ESRCH),
        Err(_) => Err(Errno::ESRCH),
    }
}

/// `migrate_pages(2)`: all pages are where they can be.
pub(in crate::syscall) fn migrate_pages(
    cx: &Ctx<'_>,
    pid: i32,
    max_node: u64,
    old: UserAddr,
    new: UserAddr,
) -> SyscallResult {
    read_nodes(cx, old, max_node)?;
    let new = read_nodes(cx, new, max_node)?;
    let task = task_of(cx, pid)?;
    memory_of(cx, &task, Inspection::Process)?;
    if new & 1 == 0 {
        return Err(Errno::EINVAL);
    }
    if new & !1 != 0 && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    Ok(0)
}

/// `move_pages(2)`: tells where pages are.
pub(in crate::syscall) fn move_pages(
    cx: &Ctx<'_>,
    pid: i32,
    count: u64,
    pages: UserAddr,
    nodes: UserAddr,
    status: UserAddr,
    flags: u32,
) -> SyscallResult {
    if flags & !(MF_MOVE | MF_MOVE_ALL) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & MF_MOVE_ALL != 0 && !cx.task.creds.get().has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let task = task_of(cx, pid)?;
    let aspace = memory_of(cx, &task, Inspection::Process)?;
    for index in 0..count {
        let at = |base: UserAddr, size: u64| {
            index.checked_mul(size).and_then(|bytes| base.checked_add(bytes)).ok_or(Errno::EFAULT)
        };
        let page: u64 = cx.user().read(at(pages, 8)?)?;
        if !nodes.is_null() {
            let node: i32 = cx.user().read(at(nodes, 4)?)?;
            if node != 0 {
                return Err(Errno::ENODEV);
            }
        }
        let place = at(status, 4)?;
        if nodes.is_null() || !status.is_null() {
            cx.user().write(place, &place_of(&aspace, page))?;
        }
        sched::go_on()?;
    }
    Ok(0)
}

/// The node of a page, or why it is nowhere.
fn place_of(aspace: &AddressSpace, page: u64) -> i32 {
    let page = machine::mm::page_down(page);
    match aspace.policy_at(page) {
        None => -Errno::EFAULT.0,
        Some(_) => match aspace.resident(page, page + PAGE).as_deref() {
            Ok([1]) => 0,
            _ => -Errno::ENOENT.0,
        },
    }
}

/// `set_mempolicy_home_node(2)`.
pub(in crate::syscall) fn set_mempolicy_home_node(
    cx: &Ctx<'_>,
    addr: UserAddr,
    len: u64,
    node: u64,
    flags: u64,
) -> SyscallResult {
    let (start, len) = range(addr, len)?;
    if flags != 0 || node >= NODES || node != 0 {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let mut result = Err(Errno::ENOENT);
    cx.aspace().for_each_in(start, start + len, |vma, _, _| match vma.flags.policy() {
        DEFAULT => {}
        BIND | PREFERRED_MANY if result != Err(Errno::EOPNOTSUPP) => result = Ok(0),
        _ => result = Err(Errno::EOPNOTSUPP),
    });
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_those_that_one_node_can_have() {
        assert_eq!(policy(DEFAULT, 0), Ok(DEFAULT));
        assert_eq!(policy(DEFAULT, 1), Err(Errno::EINVAL));
        assert_eq!(policy(PREFERRED, 0), Ok(LOCAL));
        assert_eq!(policy(BIND, 1), Ok(BIND));
        assert_eq!(policy(BIND, 2), Err(Errno::EINVAL));
        assert_eq!(policy(BIND | STATIC_NODES, 1), Ok(BIND | STATIC_NODES));
        assert_eq!(policy(BIND | STATIC_NODES | RELATIVE_NODES, 1), Err(Errno::EINVAL));
        assert_eq!(policy(BIND | RELATIVE_NODES, 4), Ok(BIND | RELATIVE_NODES));
        assert_eq!(policy(MODES, 1), Err(Errno::EINVAL));
        assert_eq!(policy(LOCAL | STATIC_NODES, 0), Err(Errno::EINVAL));
    }
}
