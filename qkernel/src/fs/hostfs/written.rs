//! Files of the host that programs may be writing to, for whoever takes a snapshot: those are not in it.

use alloc::format;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;

use abi::report::WRITTEN_MAX_BYTES;
use abi::word::to_usize;

use crate::fs::hostfs::{HostFs, HostInode, TREES};
use crate::fs::inode::S_IFREG;
use machine::objects::{self, Given, Node, Tied};

/// Longest path that is listed, and the line that stands for those left out.
const PATH_MAX: usize = 4096;
const OTHERS: &[u8] = b"0 (and others)\n";

/// A line for each file that is open for writing, or in a shared mapping that may change it: the number of the container that has it and its
/// path there. What does not fit is left out. Files that go along with the memory are not among them.
pub fn list(ties: &[(u32, Tied)]) -> Vec<u8> {
    let trees: Vec<Arc<HostFs>> = TREES.lock().iter().filter_map(Weak::upgrade).collect();
    let (mut lines, mut is_whole) = (Vec::new(), true);
    for tree in trees.iter().filter(|tree| tree.shared && !tree.is_read_only) {
        let nodes: Vec<Arc<HostInode>> = tree.nodes.lock().values().filter_map(Weak::upgrade).collect();
        for node in nodes.iter().filter(|node| node.is_written()) {
            match line_of(node, ties) {
                Some(line) if lines.len() + line.len() + OTHERS.len() > to_usize(WRITTEN_MAX_BYTES) => {
                    is_whole = false;
                }
                Some(line) => lines.extend_from_slice(&line),
                None => {}
            }
        }
    }
    if !is_whole {
        lines.extend_from_slice(OTHERS);
    }
    lines
}

fn line_of(node: &Arc<HostInode>, ties: &[(u32, Tied)]) -> Option<Vec<u8>> {
    // One without a name is its own root, which no mount has.
    let (number, names) = path_of(node.clone())?;
    let at = ties.binary_search_by_key(&number, |(number, _)| *number).ok()?;
    let Tied::Given(Given::Mount { container, path, .. }) = &ties[at].1 else { return None };
    let mount = path.strip_suffix(b"/").unwrap_or(path);
    Some(format!("{container} {}{}\n", mount.escape_ascii(), names.escape_ascii()).into_bytes())
}

/// The handle of the root above a node, which may be itself, and the path from there.
fn path_of(node: Arc<dyn Node>) -> Option<(u32, Vec<u8>)> {
    let (mut names, mut len) = (Vec::new(), 0);
    let root = objects::climb(node, |_, name| {
        len += 1 + name.len();
        if len <= PATH_MAX {
            names.push(name);
        }
    })?;
    let path = names.iter().rev().flat_map(|name| [b"/", &**name].concat()).collect();
    Some((root.own_handle().filter(|_| len <= PATH_MAX)?, path))
}

impl HostInode {
    fn is_written(&self) -> bool {
        let is_open = || self.common.get().is_some_and(|common| common.opens.is_written());
        self.kind == S_IFREG && (is_open() || self.is_mapped_writable())
    }
}
