//! The `mounts` of a configuration: host files to bind, and file systems of the sandbox's kernel.

use std::path::{Component, Path, PathBuf};

use abi::boot::{MOUNT_NO_DEV, MOUNT_NO_EXEC, MOUNT_NO_SUID, MOUNT_READ_ONLY};
use oci_spec::runtime::{Mount, Spec};

use vmm::ids::IdMaps;

use super::error::{BundleError, Result};
use super::id_maps;

/// File systems that the sandbox's kernel makes.
const VIRTUAL: &[&str] = &["proc", "sysfs", "tmpfs", "devpts", "mqueue", "cgroup", "cgroup2"];
/// Options of tmpfs and devpts that the kernel gets.
const SETTINGS: &[&str] = &["size", "mode", "uid", "gid"];
/// Options that ask for the default, or have no effect that a program could see.
const WITHOUT_EFFECT: &[&str] = &[
    "defaults",
    "async",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "nomand",
    "private",
    "rprivate",
    "unbindable",
    "runbindable",
    "newinstance",
    "nsdelegate",
    "tmpcopyup",
];

/// A mount to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPlan {
    /// In the sandbox: absolute, without `.` and `..`.
    pub path: PathBuf,
    pub source: Source,
    /// `MOUNT_READ_ONLY` ….
    pub flags: u32,
    /// `MOUNT_READ_ONLY` counts for what is mounted below the source as well.
    pub read_only_below: bool,
    /// Mounts that the host makes below the source later are seen.
    pub follows_host: bool,
    /// How ids on disk are shown.
    pub id_maps: Option<IdMaps>,
}

/// The source of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file or directory of the host, with the mounts below it if `recursive`.
    Host { path: PathBuf, recursive: bool },
    /// A file system of the sandbox's kernel.
    Virtual { kind: String, name: String, options: String },
}

/// All mounts in their order, with a `/dev` if there is none.
pub(super) fn plan(spec: &Spec, bundle: &Path) -> Result<Vec<MountPlan>> {
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    let mut plans = mounts.iter().map(|mount| plan_one(mount, bundle)).collect::<Result<Vec<_>>>()?;
    if !plans.iter().any(|plan| plan.path == Path::new("/dev")) {
        let source = Source::Virtual {
            kind: "devtmpfs".into(),
            name: "tmpfs".into(),
            options: "mode=755,size=65536".into(),
        };
        plans.insert(
            0,
            MountPlan {
                path: "/dev".into(),
                source,
                flags: MOUNT_NO_SUID,
                read_only_below: false,
                follows_host: false,
                id_maps: None,
            },
        );
    }
    Ok(plans)
}

fn plan_one(mount: &Mount, bundle: &Path) -> Result<MountPlan> {
    let path = destination(mount.destination())?;
    let id_maps = id_maps::of_mount(mount)?;
    let options = mount.options().as_deref().unwrap_or_default();
    let kind = mount.typ().as_deref().unwrap_or_default();
    let bind = options.iter().rev().find(|option| ["bind", "rbind"].contains(&option.as_str()));
    let is_bind = bind.is_some() || kind == "bind";
    let mut flags = 0;
    let mut settings = Vec::new();
    for option in options {
        take_option(option, &path, is_bind, &mut flags, &mut settings)?;
    }
    let source = if is_bind {
        let source = mount.source().as_ref().ok_or(BundleError::Missing { what: "the source of a mount" })?;
        let path = bundle.join(source);
        std::fs::metadata(&path)
            .map_err(|error| BundleError::Source { path: path.clone(), source: error })?;
        Source::Host { path, recursive: bind.is_some_and(|option| option == "rbind") }
    } else if VIRTUAL.contains(&kind) {
        let is_dev = kind == "tmpfs" && path == Path::new("/dev");
        let name = mount.source().as_ref().map_or(kind.into(), |source| source.display().to_string());
        let kind = match kind {
            _ if is_dev => "devtmpfs",
            // Whatever the host has: the sandbox shows the container's own group, in version 2. Groups can be made below it unless the
            // mount is read only.
            "cgroup" => "cgroup2",
            kind => kind,
        };
        Source::Virtual { kind: kind.into(), name, options: settings.join(",") }
    } else {
        let why = "bind, proc, sysfs, tmpfs, devpts, mqueue and cgroup are";
        let what = format!("mount {} of type {kind:?}", path.display());
        return Err(BundleError::refused_because(what, why));
    };
    if id_maps.is_some() && !is_bind {
        return Err(BundleError::refused(format!(
            "id mappings of mount {}, which is no bind mount",
            path.display()
        )));
    }
    let follows_host = is_bind && options.iter().rev().find_map(|option| follows(option)).unwrap_or(false);
    let read_only_below = flags & MOUNT_READ_ONLY != 0 && options.iter().any(|option| option == "rro");
    Ok(MountPlan { path, source, flags, read_only_below, follows_host, id_maps })
}

/// The options of mounts that bundles may have.
#[must_use]
pub fn mount_options() -> Vec<&'static str> {
    const WITH_EFFECT: &[&str] = &[
        "bind", "dev", "exec", "nodev", "noexec", "nosuid", "rbind", "ridmap", "idmap", "rnodev", "rnoexec",
        "rnosuid", "ro", "rro", "rshared", "rslave", "rw", "shared", "slave", "suid",
    ];
    let mut all = [WITH_EFFECT, WITHOUT_EFFECT].concat();
    all.sort_unstable();
    all
}

/// Whether mounts that the host makes later are seen, by an option of propagation; `None`: it is no such option. None
/// that the sandbox makes is seen outside.
fn follows(option: &str) -> Option<bool> {
    match option {
        "slave" | "rslave" | "shared" | "rshared" => Some(true),
        "private" | "rprivate" | "unbindable" | "runbindable" => Some(false),
        _ => None,
    }
}

fn destination(path: &Path) -> Result<PathBuf> {
    let bad = |why: &str| Err(BundleError::invalid("a mount's destination", path.display(), why));
    if path.components().any(|part| part == Component::ParentDir)
        || path.as_os_str().as_encoded_bytes().contains(&0)
    {
        return bad("which leads upwards or has a NUL");
    }
    // Relative ones are taken as if they began at the root, as the specification has it for old configurations.
    let path = Path::new("/").join(path).components().collect::<PathBuf>();
    if path == Path::new("/") {
        return bad("which is the root itself");
    }
    Ok(path)
}

fn take_option(
    option: &str,
    path: &Path,
    is_bind: bool,
    flags: &mut u32,
    settings: &mut Vec<String>,
) -> Result<()> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    match name {
        "ro" | "rro" => *flags |= MOUNT_READ_ONLY,
        "nosuid" | "rnosuid" => *flags |= MOUNT_NO_SUID,
        "nodev" | "rnodev" => *flags |= MOUNT_NO_DEV,
        "noexec" | "rnoexec" => *flags |= MOUNT_NO_EXEC,
        // Later options win, as with mount(8).
        "rw" => *flags &= !MOUNT_READ_ONLY,
        "suid" => *flags &= !MOUNT_NO_SUID,
        "dev" => *flags &= !MOUNT_NO_DEV,
        "exec" => *flags &= !MOUNT_NO_EXEC,
        // See `follows`.
        "slave" | "rslave" | "shared" | "rshared" => {}
        // The mappings say so already.
        "idmap" | "ridmap" if is_bind => {}
        "bind" | "rbind" => {}
        _ if WITHOUT_EFFECT.contains(&name) => {}
        "size" if !is_bind => settings.push(format!("size={}", size(value, path)?)),
        "ptmxmode" | "nr_inodes" if !is_bind => {}
        // A bind mount shows a file system that has its own.
        "size" | "mode" | "uid" | "gid" if is_bind => {}
        _ if !is_bind && SETTINGS.contains(&name) => {
            let radix = if name == "mode" { 8 } else { 10 };
            if u32::from_str_radix(value, radix).is_err() {
                return Err(bad_option(option, path));
            }
            settings.push(option.to_owned());
        }
        _ => return Err(BundleError::refused(format!("option {option:?} of mount {}", path.display()))),
    }
    Ok(())
}

fn bad_option(option: &str, path: &Path) -> BundleError {
    let what = format!("an option of mount {}", path.display());
    BundleError::invalid(what, option, "whose value is not understood")
}

/// Bytes: a number with a suffix as in `tmpfs(5)`; percentages are of the host's memory.
fn size(value: &str, path: &Path) -> Result<u64> {
    let bad = || bad_option(&format!("size={value}"), path);
    if let Some(percent) = value.strip_suffix('%') {
        let percent: u64 = percent.parse().map_err(|_| bad())?;
        return Ok(vmm::process::host_memory().saturating_mul(percent.min(100)) / 100);
    }
    crate::units::parse_size(value).map_err(|_| bad())
}
