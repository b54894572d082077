//! Which accelerators and work queues the host has, by sysfs (`Documentation/ABI/stable/sysfs-driver-dma-idxd`), and what is
//! missing to use them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A work queue of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// As `iax1`.
    pub device: String,
    /// As `wq1.0`.
    pub name: String,
    /// Its node below the directory of devices.
    pub node: PathBuf,
    /// How many jobs it holds.
    pub size: usize,
    /// Several processes may submit; it says when it is full.
    pub is_shared: bool,
    /// The engine waits while a page fault is resolved.
    pub blocks_on_fault: bool,
    /// The most bytes of one job.
    pub max_transfer_bytes: u64,
    /// What keeps programs from using it.
    pub missing: Option<Missing>,
}

/// What is missing to use a queue, each with the command that mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    #[error("the accelerator {0} is off; run: accel-config enable-device {0}")]
    Device(String),
    #[error("the accelerator {0} has no address spaces of processes; boot with intel_iommu=on,sm_on")]
    Pasid(String),
    #[error(
        "queue {device}/{queue} is not for programs; run: accel-config disable-wq {device}/{queue}; accel-config config-wq {device}/{queue} --type=user --driver-name=user --name=dormouse"
    )]
    NotForPrograms { device: String, queue: String },
    #[error("queue {device}/{queue} is off; run: accel-config enable-wq {device}/{queue}")]
    Queue { device: String, queue: String },
    #[error("queue {queue} has no node {}; run: udevadm trigger --subsystem-match=dsa", node.display())]
    Node { queue: String, node: PathBuf },
}

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Accelerators, as `iax1`.
    pub devices: Vec<String>,
    /// Queues that have a size, those of the first device first.
    pub queues: Vec<Queue>,
}

impl Found {
    /// Why no queue can be used, in a sentence; nothing if one can.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.queues.iter().any(|queue| queue.missing.is_none()) {
            return None;
        }
        let why = match (self.devices.first(), self.queues.iter().find_map(|queue| queue.missing.as_ref())) {
            (_, Some(missing)) => missing.to_string(),
            (Some(device), None) => format!(
                "the accelerator {device} has no work queue; run: accel-config config-wq {device}/wq0.0 --group-id=0 --mode=shared --type=user --driver-name=user --name=dormouse --wq-size=16"
            ),
            (None, None) => {
                "there is no accelerator; run: modprobe idxd, on a processor that has one".to_owned()
            }
        };
        Some(format!("cannot use IAA: {why}"))
    }
}

/// Looks below `sysfs` (`/sys`) for accelerators, and below `dev` (`/dev`) for the nodes of their queues.
#[must_use]
pub fn find(sysfs: &Path, dev: &Path) -> Found {
    let mut found = Found::default();
    let mut devices: Vec<(u32, String)> = names(&sysfs.join("bus/dsa/devices"))
        .into_iter()
        .filter_map(|name| Some((name.strip_prefix("iax")?.parse().ok()?, name)))
        .collect();
    devices.sort_unstable();
    for (number, device) in devices {
        let directory = sysfs.join("bus/dsa/devices").join(&device);
        let prefix = format!("wq{number}.");
        let mut queues: Vec<(u32, String)> = names(&directory)
            .into_iter()
            .filter_map(|name| Some((name.strip_prefix(&prefix)?.parse().ok()?, name)))
            .collect();
        queues.sort_unstable();
        found
            .queues
            .extend(queues.into_iter().filter_map(|(_, name)| queue(&directory, &device, &name, dev)));
        found.devices.push(device);
    }
    found
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// An attribute's text; nothing if there is none.
fn text(directory: &Path, attribute: &str) -> String {
    fs::read_to_string(directory.join(attribute)).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn queue(device_directory: &Path, device: &str, name: &str, dev: &Path) -> Option<Queue> {
    let directory = device_directory.join(name);
    let size = text(&directory, "size").parse().ok().filter(|size| *size > 0)?;
    let node = dev.join("iax").join(name);
    let (device, queue) = (device.to_owned(), name.to_owned());
    let driver = text(&directory, "driver_name");
    let missing = if text(device_directory, "state") != "enabled" {
        Some(Missing::Device(device.clone()))
    } else if text(device_directory, "pasid_enabled") != "1" {
        Some(Missing::Pasid(device.clone()))
    } else if text(&directory, "type") != "user" || !matches!(driver.as_str(), "" | "user") {
        // Before Linux 6.7 queues have no driver's name.
        Some(Missing::NotForPrograms { device: device.clone(), queue })
    } else if text(&directory, "state") != "enabled" {
        Some(Missing::Queue { device: device.clone(), queue })
    } else if !node.exists() {
        Some(Missing::Node { queue, node: node.clone() })
    } else {
        None
    };
    Some(Queue {
        device,
        name: name.to_owned(),
        node,
        size,
        is_shared: text(&directory, "mode") == "shared",
        blocks_on_fault: text(&directory, "block_on_fault") == "1",
        max_transfer_bytes: text(&directory, "max_transfer_size").parse().unwrap_or(2 << 20),
        missing,
    })
}

#[cfg(test)]
mod tests {
    use testdir::TempDir;

    use super::*;

    /// A tree as a host with two accelerators and a DSA has it, with these attributes changed.
    fn tree(changes: &[(&str, &str)]) -> TempDir {
        let root = TempDir::new();
        let queue = [
            ("size", "16"),
            ("mode", "shared"),
            ("type", "user"),
            ("driver_name", "user"),
            ("state", "enabled"),
        ];
        let mut files = vec![("sys/bus/dsa/devices/dsa0/state".to_owned(), "enabled")];
        for device in ["iax1", "iax3"] {
            let base = format!("sys/bus/dsa/devices/{device}");
            files.push((format!("{base}/state"), "enabled"));
            files.push((format!("{base}/pasid_enabled"), "1"));
            files.push((format!("{base}/wq{}.1/size", &device[3..]), "0"));
            for (attribute, value) in
                queue.into_iter().chain([("block_on_fault", "1"), ("max_transfer_size", "2097152")])
            {
                files.push((format!("{base}/wq{}.0/{attribute}", &device[3..]), value));
            }
            files.push((format!("dev/iax/wq{}.0", &device[3..]), ""));
        }
        for (path, value) in changes {
            files.push((format!("sys/bus/dsa/devices/{path}"), value));
        }
        for (path, value) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        root
    }

    fn look(root: &TempDir) -> Found {
        find(&root.path().join("sys"), &root.path().join("dev"))
    }

    #[test]
    fn queues_of_every_accelerator_are_found() {
        let root = tree(&[]);
        let found = look(&root);
        assert_eq!(found.devices, ["iax1", "iax3"]);
        assert_eq!(found.problem(), None);
        let expected = Queue {
            device: "iax1".into(),
            name: "wq1.0".into(),
            node: root.path().join("dev/iax/wq1.0"),
            size: 16,
            is_shared: true,
            blocks_on_fault: true,
            max_transfer_bytes: 2 << 20,
            missing: None,
        };
        assert_eq!((&found.queues[0], found.queues.len()), (&expected, 2));
    }

    #[test]
    fn what_is_missing_is_said_with_what_mends_it() {
        let cases = [
            ("state", "disabled", "enable-device iax1"),
            ("pasid_enabled", "0", "intel_iommu"),
            ("wq1.0/type", "kernel", "config-wq iax1/wq1.0 --type=user"),
            ("wq1.0/driver_name", "crypto", "driver-name=user"),
            ("wq1.0/state", "disabled", "enable-wq iax1/wq1.0"),
        ];
        for (attribute, value, mends) in cases {
            let root = tree(&[(&format!("iax1/{attribute}"), value), ("iax3/wq3.0/size", "0")]);
            let problem = look(&root).problem().unwrap();
            assert!(
                problem.starts_with("cannot use IAA: ") && problem.contains("; ") && problem.contains(mends),
                "{problem}"
            );
        }
        let root = tree(&[("iax3/wq3.0/size", "0")]);
        fs::remove_file(root.path().join("dev/iax/wq1.0")).unwrap();
        assert!(look(&root).problem().unwrap().contains("has no node"));
    }

    #[test]
    fn a_host_without_any_is_told() {
        let root = TempDir::new();
        assert!(look(&root).problem().unwrap().contains("modprobe idxd"));
        let root = tree(&[("iax1/wq1.0/size", "0"), ("iax3/wq3.0/size", "x")]);
        assert!(look(&root).problem().unwrap().contains("has no work queue"));
    }
}
