//! Which accelerators and work queues the host has, by sysfs (`Documentation/ABI/stable/sysfs-driver-dma-idxd`), and what is
//! missing to use them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use codec::PIECE_BYTES;
use rustix::fs::{Access, access};

/// A work queue of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queue {
    /// The accelerator's name, such as `iax1`.
    pub device: String,
    /// The queue's name, such as `wq1.0`.
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
    /// The reason why programs cannot use the queue; `None`: they can.
    pub missing: Option<Missing>,
}

/// A reason why a queue cannot be used, with the command that mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says when it is given, and of what")]
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
    #[error(
        "queue {device}/{queue} takes less than {} KiB a job; run: accel-config disable-wq {device}/{queue}; accel-config config-wq {device}/{queue} --max-transfer-size=2097152; accel-config enable-wq {device}/{queue}",
        PIECE_BYTES >> 10
    )]
    Transfer { device: String, queue: String },
    #[error("queue {queue} has no node {}; run: udevadm trigger --subsystem-match=dsa", node.display())]
    Node { queue: String, node: PathBuf },
    #[error("queue {queue} may not be used by this user; run: chgrp GROUP {0}; chmod g+rw {0}", node.display())]
    Permission { queue: String, node: PathBuf },
}

/// The accelerators and queues that were found on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Accelerators, as `iax1`.
    pub devices: Vec<String>,
    /// Queues that have a size, those of the first device first.
    pub queues: Vec<Queue>,
    /// PCI addresses of accelerators that no driver has taken.
    pub without_driver: Vec<String>,
}

impl Queue {
    /// Says what would make a queue that can be used a better one, with the command that does it.
    #[must_use]
    pub fn advice(&self) -> Option<String> {
        let path = format!("{}/{}", self.device, self.name);
        (self.missing.is_none() && !self.blocks_on_fault).then(|| {
            format!(
                "a job that meets a page fault begins anew; run: accel-config disable-wq {path}; accel-config config-wq {path} --block-on-fault=1; accel-config enable-wq {path}"
            )
        })
    }
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
            (None, None) => match self.without_driver.first() {
                Some(address) => format!("the accelerator at {address} has no driver; run: modprobe idxd"),
                None => "there is no accelerator; use a processor that has one, such as a Xeon since Sapphire Rapids".to_owned(),
            },
        };
        Some(why)
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
    found.without_driver = without_driver(&sysfs.join("bus/pci/devices"));
    found
}

/// PCI device ids of Intel's accelerators (Linux, `drivers/dma/idxd`).
const PCI_DEVICES: [&str; 4] = ["0x0cfe", "0x1216", "0xb02d", "0xfd2d"];

fn without_driver(pci: &Path) -> Vec<String> {
    let is_one = |address: &String| {
        let directory = pci.join(address);
        text(&directory, "vendor") == "0x8086"
            && PCI_DEVICES.contains(&text(&directory, "device").as_str())
            && !directory.join("driver").exists()
    };
    let mut found: Vec<String> = names(pci).into_iter().filter(is_one).collect();
    found.sort_unstable();
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
    let max_transfer_bytes = text(&directory, "max_transfer_size").parse().unwrap_or(2 << 20);
    let missing = if text(device_directory, "state") != "enabled" {
        Some(Missing::Device(device.clone()))
    } else if text(device_directory, "pasid_enabled") != "1" {
        Some(Missing::Pasid(device.clone()))
    } else if text(&directory, "type") != "user" || !matches!(driver.as_str(), "" | "user") {
        // Before Linux 6.7 queues have no driver's name.
        Some(Missing::NotForPrograms { device: device.clone(), queue })
    } else if text(&directory, "state") != "enabled" {
        Some(Missing::Queue { device: device.clone(), queue })
    } else if max_transfer_bytes < PIECE_BYTES as u64 {
        Some(Missing::Transfer { device: device.clone(), queue })
    } else if !node.exists() {
        Some(Missing::Node { queue, node: node.clone() })
    } else if access(&node, Access::READ_OK | Access::WRITE_OK).is_err() {
        // To open a node takes it up, so that is not tried.
        Some(Missing::Permission { queue, node: node.clone() })
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
        max_transfer_bytes,
        missing,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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
            ("wq1.0/max_transfer_size", "4096", "--max-transfer-size=2097152"),
        ];
        for (attribute, value, mends) in cases {
            let root = tree(&[(&format!("iax1/{attribute}"), value), ("iax3/wq3.0/size", "0")]);
            let problem = look(&root).problem().unwrap();
            assert!(problem.contains("; ") && problem.contains(mends), "{problem}");
        }
        let root = tree(&[("iax3/wq3.0/size", "0")]);
        fs::remove_file(root.path().join("dev/iax/wq1.0")).unwrap();
        assert!(look(&root).problem().unwrap().contains("has no node"));
    }

    #[test]
    fn a_host_without_any_is_told() {
        let root = TempDir::new();
        assert!(look(&root).problem().unwrap().contains("no accelerator; use a processor"));
        let root = tree(&[("iax1/wq1.0/size", "0"), ("iax3/wq3.0/size", "x")]);
        assert!(look(&root).problem().unwrap().contains("has no work queue"));
    }

    #[test]
    fn an_accelerator_without_a_driver_is_told_apart() {
        let root = TempDir::new();
        for (address, vendor, device) in [
            ("0000:00:1f.0", "0x8086", "0x0001"),
            ("0000:75:02.0", "0x8086", "0x0cfe"),
            ("0000:76:00.0", "0x1234", "0x0cfe"),
        ] {
            let path = root.path().join("sys/bus/pci/devices").join(address);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("vendor"), format!("{vendor}\n")).unwrap();
            fs::write(path.join("device"), format!("{device}\n")).unwrap();
        }
        let found = look(&root);
        assert_eq!(found.without_driver, ["0000:75:02.0"]);
        assert_eq!(
            found.problem().unwrap(),
            "the accelerator at 0000:75:02.0 has no driver; run: modprobe idxd"
        );
        fs::create_dir(root.path().join("sys/bus/pci/devices/0000:75:02.0/driver")).unwrap();
        assert!(look(&root).without_driver.is_empty());
    }

    #[test]
    fn a_queue_that_does_not_wait_for_page_faults_gets_advice() {
        let root = tree(&[("iax1/wq1.0/block_on_fault", "0")]);
        let found = look(&root);
        assert_eq!(found.problem(), None);
        assert!(found.queues[0].advice().unwrap().contains("config-wq iax1/wq1.0 --block-on-fault=1"));
        assert_eq!(found.queues[1].advice(), None);
    }

    #[test]
    fn a_node_of_somebody_else_is_told() {
        let root = tree(&[("iax3/wq3.0/size", "0")]);
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let node = root.path().join("dev/iax/wq1.0");
        fs::set_permissions(&node, fs::Permissions::from_mode(0o600)).unwrap();
        // A thread of its own, since it gives its user up.
        let problem = std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                if rustix::process::getuid().is_root() {
                    rustix::thread::set_thread_uid(rustix::thread::Uid::from_raw(65534)).unwrap();
                } else {
                    fs::set_permissions(&node, fs::Permissions::from_mode(0o400)).unwrap();
                }
                look(&root).problem()
            });
            looker.join().unwrap()
        });
        let problem = problem.unwrap();
        assert!(problem.contains("queue wq1.0 may not be used by this user; run: chgrp"), "{problem}");
    }
}
