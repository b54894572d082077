//! Opens a work queue for this process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write},
    path::PathBuf,
    sync::Arc,
};

use codec::Engine;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::{
    discovery::{Found, Queue},
    engine::QueueEngine,
    portal::{MappedPortal, WritePortal},
    work::Settings,
};

/// Why no queue is there to be used, and what to do.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
pub enum Unusable {
    #[error("{0}")]
    Missing(String),
    #[error(
        "{} cannot be opened: {source}; let this control group use it, and share it if another process has it",
        node.display()
    )]
    Open { node: PathBuf, source: io::Error },
    #[error(
        "{} can neither be mapped nor written to: {source}; use Linux 6.9.1 or later",
        node.display()
    )]
    NoPortal { node: PathBuf, source: io::Error },
}

/// Opens the best queue that there is. It is this process's then, and no child's: the address space goes with it.
///
/// # Errors
/// No queue can be used.
pub fn open(found: &Found) -> Result<Arc<dyn Engine>, Unusable> {
    let turn = std::process::id() as usize;
    let mut unusable = Unusable::Missing(found.problem().unwrap_or_default());
    for queue in by_preference(&found.queues, turn) {
        match open_queue(queue) {
            Ok(engine) => return Ok(engine),
            Err(error) => unusable = error,
        }
    }
    Err(unusable)
}

/// Those that can be used: shared ones first, then those whose engine waits for pages, then large ones. Processes spread over
/// those that are alike.
fn by_preference(queues: &[Queue], turn: usize) -> Vec<&Queue> {
    let mut usable: Vec<&Queue> = queues.iter().filter(|queue| queue.missing.is_none()).collect();
    let first = turn.checked_rem(usable.len()).unwrap_or(0);
    usable.rotate_left(first);
    usable.sort_by_key(|queue| (!queue.is_shared, !queue.blocks_on_fault, std::cmp::Reverse(queue.size)));
    usable
}

fn open_queue(queue: &Queue) -> Result<Arc<dyn Engine>, Unusable> {
    let open = || OpenOptions::new().read(true).write(true).open(&queue.node);
    let failed = |source| Unusable::Open { node: queue.node.clone(), source };
    let settings = Settings {
        in_flight: queue.size,
        is_dedicated: !queue.is_shared,
        blocks_on_fault: queue.blocks_on_fault,
        ..Settings::default()
    };
    let node = open().map_err(failed)?;
    let for_mapping = node.try_clone().map_err(failed)?;
    if let Ok(portal) = without_raw_io(|| MappedPortal::new(for_mapping, queue.is_shared)) {
        return Ok(Arc::new(QueueEngine::new(portal, settings)));
    }
    takes_writes(&node).map_err(|source| Unusable::NoPortal { node: queue.node.clone(), source })?;
    Ok(Arc::new(QueueEngine::new(WritePortal::new(node), settings)))
}

/// Whether the kernel submits what is written. It answers for no descriptor at all as well.
fn takes_writes(mut node: &File) -> io::Result<()> {
    node.write(&[]).map(drop)
}

/// Does something without the right to map any queue: on Sapphire and Emerald Rapids the kernel lets only those who have it map
/// one, since whoever submits past the kernel can make the host hang (INTEL-SA-01084).
fn without_raw_io<T>(act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let own = capabilities(None)?;
    let effective = own.effective - CapabilitySet::SYS_RAWIO;
    set_capabilities(None, CapabilitySets { effective, ..own })?;
    let result = act();
    set_capabilities(None, own)?;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str, is_shared: bool, blocks_on_fault: bool, size: usize) -> Queue {
        Queue {
            device: "iax1".into(),
            name: name.into(),
            node: format!("/dev/iax/{name}").into(),
            size,
            is_shared,
            blocks_on_fault,
            max_transfer_bytes: 2 << 20,
            missing: None,
        }
    }

    #[test]
    fn shared_queues_come_first_and_processes_spread_over_equal_ones() {
        let off = Queue {
            missing: Some(crate::discovery::Missing::Device("iax1".into())),
            ..queue("off", true, true, 64)
        };
        let queues = [
            queue("own", false, true, 128),
            queue("a", true, true, 16),
            queue("no-wait", true, false, 64),
            queue("b", true, true, 16),
            off,
        ];
        let names = |turn| -> Vec<String> {
            by_preference(&queues, turn).into_iter().map(|queue| queue.name.clone()).collect()
        };
        assert_eq!(names(0), ["a", "b", "no-wait", "own"]);
        assert_eq!(names(2), ["b", "a", "no-wait", "own"]);
        assert!(by_preference(&queues[4..], 3).is_empty());
    }

    #[test]
    fn nothing_is_mapped_by_the_right_to_map_anything() {
        let own = capabilities(None).unwrap();
        let inside = without_raw_io(|| Ok(capabilities(None)?)).unwrap();
        assert!(!inside.effective.contains(CapabilitySet::SYS_RAWIO) && inside.permitted == own.permitted);
        assert_eq!(capabilities(None).unwrap(), own);
    }

    #[test]
    fn what_is_no_queue_is_told_in_a_sentence() {
        let at = |node: &str| {
            let queues = vec![Queue { node: node.into(), ..queue("wq1.0", true, true, 16) }];
            open(&Found { queues, ..Found::default() }).map(drop).unwrap_err().to_string()
        };
        let nowhere = at("/nowhere/wq1.0");
        assert!(nowhere.starts_with("/nowhere/wq1.0 cannot be opened: No such file"), "{nowhere}");
        let found = Found::default();
        assert_eq!(Some(open(&found).map(drop).unwrap_err().to_string()), found.problem());
        // A file that takes no writes: `write` is refused as a queue of an old kernel refuses it.
        assert!(takes_writes(&File::open("/dev/null").unwrap()).is_err());
    }
}
