//! The `mounts` of a configuration: host files to bind, and file systems of the sandbox's kernel.

use std::path::{Component, Path, PathBuf};

use abi::boot::{MOUNT_NO_DEV, MOUNT_NO_EXEC, MOUNT_NO_SUID, MOUNT_READ_ONLY, MOUNT_SHARED, MOUNT_VOLUME};
use abi::mount::{FileSystem, HostKind, Kind, Mount, Settings};
use oci_spec::runtime::{self as oci, Spec};

use vmm::ids::IdMaps;

use super::error::{BundleError, Result};
use super::id_maps;

/// File systems that the sandbox's kernel makes.
const OWN: &[(&str, FileSystem)] = &[
    ("proc", FileSystem::Proc),
    ("sysfs", FileSystem::Sysfs),
    ("tmpfs", FileSystem::Tmpfs),
    ("devpts", FileSystem::Terminals),
    ("mqueue", FileSystem::Queues),
    // Whatever the host has: the sandbox shows the container's own group, in version 2. Groups can be made below it unless the
    // mount is read only.
    ("cgroup", FileSystem::ControlGroups),
    ("cgroup2", FileSystem::ControlGroups),
];
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

/// A mount to be made; its path is absolute, without `.` and `..`.
pub type MountPlan = Mount<PathBuf, HostSource>;

/// A file or directory of the host that a mount shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSource {
    pub path: PathBuf,
    /// The mounts below it are shown as well.
    pub recursive: bool,
    /// `MOUNT_READ_ONLY` counts for what is mounted below the source as well.
    pub read_only_below: bool,
    /// Mounts that the host makes below the source later are seen.
    pub follows_host: bool,
    /// How ids on disk are shown.
    pub id_maps: Option<IdMaps>,
}

/// All mounts in their order, with a `/dev` if there is none.
pub(super) fn plan(spec: &Spec, bundle: &Path) -> Result<Vec<MountPlan>> {
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    let mut plans = mounts.iter().map(|mount| plan_one(mount, bundle)).collect::<Result<Vec<_>>>()?;
    if !plans.iter().any(|plan| plan.path == Path::new("/dev")) {
        let settings = Settings { mode: Some(0o755), size_bytes: Some(65536), ..Settings::default() };
        let dev = MountPlan::of_kernel(FileSystem::DevicesInTmpfs, "/dev".into(), MOUNT_NO_SUID);
        plans.insert(0, MountPlan { kind: Kind::Own(FileSystem::DevicesInTmpfs, settings), ..dev });
    }
    Ok(plans)
}

fn plan_one(mount: &oci::Mount, bundle: &Path) -> Result<MountPlan> {
    let path = destination(mount.destination())?;
    let id_maps = id_maps::of_mount(mount)?;
    let options = mount.options().as_deref().unwrap_or_default();
    let name = mount.typ().as_deref().unwrap_or_default();
    let bind = options.iter().rev().find(|option| ["bind", "rbind"].contains(&option.as_str()));
    let is_bind = bind.is_some() || name == "bind";
    let mut flags = 0;
    let mut settings = Settings::default();
    for option in options {
        take_option(option, &path, is_bind, &mut flags, &mut settings)?;
    }
    if is_bind {
        let source = mount.source().as_ref().ok_or(BundleError::Missing { what: "the source of a mount" })?;
        let source = bundle.join(source);
        std::fs::metadata(&source)
            .map_err(|error| BundleError::Source { path: source.clone(), source: error })?;
        let host = HostSource {
            path: source,
            recursive: bind.is_some_and(|option| option == "rbind"),
            read_only_below: flags & MOUNT_READ_ONLY != 0 && options.iter().any(|option| option == "rro"),
            follows_host: options.iter().rev().find_map(|option| follows(option)).unwrap_or(false),
            id_maps,
        };
        return Ok(MountPlan::of_host(HostKind::Bind, host, path, flags | MOUNT_SHARED | MOUNT_VOLUME));
    }
    let Some((_, own)) = OWN.iter().find(|(own, _)| *own == name) else {
        let why = "bind, proc, sysfs, tmpfs, devpts, mqueue and cgroup are";
        let what = format!("mount {} of type {name:?}", path.display());
        return Err(BundleError::refused_because(what, why));
    };
    if id_maps.is_some() {
        return Err(BundleError::refused(format!(
            "id mappings of mount {}, which is no bind mount",
            path.display()
        )));
    }
    let is_dev = *own == FileSystem::Tmpfs && path == Path::new("/dev");
    let kind = Kind::Own(if is_dev { FileSystem::DevicesInTmpfs } else { *own }, settings);
    Ok(MountPlan { path, source: mount.source().clone().unwrap_or_else(|| name.into()), kind, flags })
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
    settings: &mut Settings,
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
        "size" if !is_bind => settings.size_bytes = Some(size(value, path)?),
        "ptmxmode" | "nr_inodes" if !is_bind => {}
        // A bind mount shows a file system that has its own.
        "size" | "mode" | "uid" | "gid" if is_bind => {}
        "mode" | "uid" | "gid" => {
            let radix = if name == "mode" { 8 } else { 10 };
            let number = u32::from_str_radix(value, radix).map_err(|_| bad_option(option, path))?;
            // No user, and no group, has the last number (`chown(2)`).
            if number == u32::MAX {
                return Err(bad_option(option, path));
            }
            *match name {
                "mode" => &mut settings.mode,
                "uid" => &mut settings.uid,
                _ => &mut settings.gid,
            } = Some(number);
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
