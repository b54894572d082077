//! Mapping operations for platforms that mirror page tables.

use abi::run::{self, MapOp};
use alloc::vec::Vec;

/// A batch of mapping operations, merged where they touch.
#[derive(Default)]
pub struct OpBatch {
    pub ops: Vec<MapOp>,
}

impl OpBatch {
    /// Adds an operation, extending the last one when they are neighbours of the same kind.
    pub fn push(&mut self, op: MapOp) {
        if let Some(last) = self.ops.last_mut()
            && last.kind == op.kind
            && last.prot == op.prot
            && last.addr + last.len == op.addr
            && (op.kind != run::MAP_OP_MAP || mergeable(last, &op))
        {
            last.len += op.len;
            return;
        }
        // Beyond this the stub drops all it shows, and faults bring back what is used.
        if self.ops.len() >= OPS_MAX {
            self.ops.clear();
            self.ops.push(MapOp { kind: run::MAP_OP_UNMAP_ALL, ..Default::default() });
        }
        self.ops.push(op);
    }
}

/// Most operations of a batch: it stays small however many pages a call changes.
pub const OPS_MAX: usize = 16_384;

/// Physically adjacent, and not across a window chunk (each chunk is another file mapping).
fn mergeable(last: &MapOp, op: &MapOp) -> bool {
    last.phys + last.len == op.phys
        && (op.phys < abi::layout::WINDOW_PHYS || !op.phys.is_multiple_of(abi::layout::WINDOW_CHUNK))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(addr: u64, phys: u64) -> MapOp {
        MapOp { kind: run::MAP_OP_MAP, prot: 3, addr, len: 4096, phys }
    }

    #[test]
    fn neighbouring_maps_merge_only_when_frames_are_neighbours() {
        let mut batch = OpBatch::default();
        batch.push(map(0x10000, 0x20000));
        batch.push(map(0x11000, 0x21000));
        batch.push(map(0x12000, 0x29000));
        assert_eq!(batch.ops.len(), 2);
        assert_eq!(batch.ops[0].len, 8192);
    }

    #[test]
    fn maps_do_not_merge_across_window_chunks() {
        let edge = abi::layout::WINDOW_PHYS + abi::layout::WINDOW_CHUNK;
        let mut batch = OpBatch::default();
        batch.push(map(0x10000, edge - 4096));
        batch.push(map(0x11000, edge));
        assert_eq!(batch.ops.len(), 2);
    }
}
