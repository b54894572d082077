//! Checks of `dormouse doctor` for Intel's In-Memory Analytics Accelerator: which work queues there are, what they can
//! do, and what is missing to use them.

use std::path::Path;

use iaa::discovery::{self, Queue};
use serde::Serialize;

/// All that was found.
#[derive(Debug, Serialize)]
pub struct Accelerator {
    /// Whether a queue can be used.
    pub ok: bool,
    pub detail: String,
    pub devices: Vec<String>,
    pub queues: Vec<WorkQueue>,
}

/// One work queue.
#[derive(Debug, Serialize)]
pub struct WorkQueue {
    pub ok: bool,
    /// The queue's name, such as `iax1/wq1.0`.
    pub name: String,
    /// A description of its abilities, or of what is missing, with the command that mends it.
    pub detail: String,
    pub jobs: usize,
    pub is_shared: bool,
    pub blocks_on_fault: bool,
    pub max_transfer_bytes: u64,
}

/// `sysfs`: `/sys`; `dev`: `/dev`.
pub fn examine(sysfs: &Path, dev: &Path) -> Accelerator {
    let found = discovery::find(sysfs, dev);
    let problem = found.problem();
    let detail = match &problem {
        Some(problem) => problem.clone(),
        None => {
            let usable = found.queues.iter().filter(|queue| queue.missing.is_none()).count();
            format!("{usable} of {} work queues can be used", found.queues.len())
        }
    };
    let queues = found.queues.iter().map(work_queue).collect();
    Accelerator { ok: problem.is_none(), detail, devices: found.devices, queues }
}

fn work_queue(queue: &Queue) -> WorkQueue {
    let can = || {
        let mode = if queue.is_shared { "shared" } else { "for one process" };
        let size = queue.max_transfer_bytes >> 10;
        let mut can = format!("{} jobs, {mode}, up to {size} KiB each", queue.size);
        can += &match queue.advice() {
            Some(advice) => format!("; {advice}"),
            None => ", waits for page faults".to_owned(),
        };
        can
    };
    WorkQueue {
        ok: queue.missing.is_none(),
        name: format!("{}/{}", queue.device, queue.name),
        detail: queue.missing.as_ref().map_or_else(can, ToString::to_string),
        jobs: queue.size,
        is_shared: queue.is_shared,
        blocks_on_fault: queue.blocks_on_fault,
        max_transfer_bytes: queue.max_transfer_bytes,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use testdir::TempDir;

    use super::*;

    fn look(root: &TempDir) -> Accelerator {
        examine(&root.path().join("sys"), &root.path().join("dev"))
    }

    /// One accelerator with two queues: the first is ready, the second is not for programs.
    fn tree() -> TempDir {
        let root = TempDir::new();
        let device = "sys/bus/dsa/devices/iax1";
        let mut files =
            vec![(format!("{device}/state"), "enabled"), (format!("{device}/pasid_enabled"), "1")];
        for (queue, kind) in [("wq1.0", "user"), ("wq1.1", "kernel")] {
            let values = [
                ("size", "16"),
                ("mode", "shared"),
                ("type", kind),
                ("state", "enabled"),
                ("block_on_fault", "1"),
            ];
            files.extend(values.map(|(name, value)| (format!("{device}/{queue}/{name}"), value)));
            files.push((format!("dev/iax/{queue}"), ""));
        }
        for (path, value) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    #[test]
    fn queues_are_listed_with_what_they_can_do_or_what_mends_them() {
        let found = look(&tree());
        assert!(found.ok);
        assert_eq!(
            (found.detail.as_str(), found.devices),
            ("1 of 2 work queues can be used", vec!["iax1".to_owned()])
        );
        let [good, bad] = &found.queues[..] else { panic!("{:?}", found.queues) };
        assert_eq!((good.ok, good.name.as_str()), (true, "iax1/wq1.0"));
        assert_eq!(good.detail, "16 jobs, shared, up to 2048 KiB each, waits for page faults");
        assert!(!bad.ok && bad.detail.contains("run: accel-config disable-wq iax1/wq1.1"), "{}", bad.detail);
    }

    #[test]
    fn advice_comes_with_a_queue_that_works() {
        let root = tree();
        fs::write(root.path().join("sys/bus/dsa/devices/iax1/wq1.0/block_on_fault"), "0\n").unwrap();
        let found = look(&root);
        assert!(found.ok && found.queues[0].detail.contains("--block-on-fault=1"), "{:?}", found.queues);
    }

    #[test]
    fn a_host_without_any_is_told_in_one_line() {
        let found = look(&TempDir::new());
        assert!(!found.ok && found.queues.is_empty() && found.devices.is_empty());
        assert!(
            found.detail.starts_with("there is no accelerator; ") && !found.detail.contains('\n'),
            "{}",
            found.detail
        );
    }
}
