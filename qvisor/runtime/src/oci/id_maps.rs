//! Id mappings: of the container's user namespace, and of single mounts.

use oci_spec::runtime::{LinuxIdMapping, LinuxNamespaceType, Mount, Spec};
use vmm::ids::{Extent, IdMaps};

use super::error::{BundleError, Result};

/// The ids of the container's user namespace; `None`: it has none.
pub(super) fn of_container(spec: &Spec) -> Result<Option<IdMaps>> {
    let Some(linux) = spec.linux() else { return Ok(None) };
    let namespaces = linux.namespaces().as_deref().unwrap_or_default();
    let has_namespace = namespaces.iter().any(|namespace| namespace.typ() == LinuxNamespaceType::User);
    let maps = both("linux", linux.uid_mappings().as_deref(), linux.gid_mappings().as_deref())?;
    match (has_namespace, maps) {
        (false, None) => Ok(None),
        (true, Some(maps)) => {
            for (name, extents) in [("linux.uidMappings", &maps.users), ("linux.gidMappings", &maps.groups)] {
                if !extents.iter().any(|extent| extent.inside == 0) {
                    let why = "and root's id, 0, is not mapped";
                    return Err(BundleError::invalid(name, extents.len(), why));
                }
            }
            Ok(Some(maps))
        }
        (true, None) => Err(BundleError::Missing { what: "linux.uidMappings, for the user namespace" }),
        (false, Some(_)) => Err(BundleError::Missing { what: "the user namespace of linux.uidMappings" }),
    }
}

/// The ids of a mount.
pub(super) fn of_mount(mount: &Mount) -> Result<Option<IdMaps>> {
    let what = format!("mounts[{}]", mount.destination().display());
    both(&what, mount.uid_mappings().as_deref(), mount.gid_mappings().as_deref())
}

fn both(
    what: &str,
    users: Option<&[LinuxIdMapping]>,
    groups: Option<&[LinuxIdMapping]>,
) -> Result<Option<IdMaps>> {
    let (users, groups) = (users.unwrap_or_default(), groups.unwrap_or_default());
    if users.is_empty() && groups.is_empty() {
        return Ok(None);
    }
    let users = extents(&format!("{what}.uidMappings"), users)?;
    Ok(Some(IdMaps { users, groups: extents(&format!("{what}.gidMappings"), groups)? }))
}

fn extents(what: &str, list: &[LinuxIdMapping]) -> Result<Vec<Extent>> {
    let bad = |value: String, why: &str| Err(BundleError::invalid(what, value, why));
    if list.is_empty() {
        return bad("empty".into(), "and users and groups must be mapped both");
    }
    let mut extents: Vec<Extent> = Vec::new();
    for mapping in list {
        let (inside, host, count) = (mapping.container_id(), mapping.host_id(), mapping.size());
        let shown = format!("{inside} {host} {count}");
        let ends = [(inside, IdMaps::INSIDE_MAX), (host, u32::MAX - 1)];
        if count == 0
            || ends.iter().any(|(first, last)| count - 1 > last.saturating_sub(*first) || first > last)
        {
            return bad(shown, "which is no range of ids (inside, 536870910 is the last)");
        }
        let extent = Extent { inside, host, count };
        if extent.has_own_ids(0) {
            return bad(shown, "and some of these ids of the host are those of sandboxes' own processes");
        }
        let overlap = |a: u32, b: u32, b_count: u32| a < b + b_count && b < a + count;
        if extents
            .iter()
            .any(|known| overlap(inside, known.inside, known.count) || overlap(host, known.host, known.count))
        {
            return bad(shown, "which overlaps another one");
        }
        extents.push(extent);
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(list: serde_json::Value) -> Result<Vec<Extent>> {
        extents("x", &serde_json::from_value::<Vec<LinuxIdMapping>>(list).unwrap())
    }

    #[test]
    fn ranges_are_checked() {
        let map =
            |inside: u32, host: u32, size: u32| json!({"containerID": inside, "hostID": host, "size": size});
        let good = parse(json!([map(0, 100_000, 65_536), map(65_536, 7, 1)])).unwrap();
        assert_eq!(good[1], Extent { inside: 65_536, host: 7, count: 1 });
        assert!(parse(json!([map(0, u32::MAX - 1, 1)])).is_ok());
        for bad in [
            json!([]),
            json!([map(0, 0, 0)]),
            json!([map(0, u32::MAX - 1, 2)]),
            json!([map(0, 1, u32::MAX)]),
            json!([map(IdMaps::INSIDE_MAX, 0, 2)]),
            json!([map(IdMaps::INSIDE_MAX + 1, 0, 1)]),
            json!([map(0, 0x5fff_ffff, 1)]),
            json!([map(0, 0x6000_0000, 1)]),
            json!([map(0, 0x5fff_0000, 0x10_0000)]),
            json!([map(0, 5, 10), map(9, 50, 1)]),
            json!([map(0, 5, 10), map(10, 14, 1)]),
        ] {
            assert!(parse(bad.clone()).is_err(), "{bad}");
        }
    }
}
