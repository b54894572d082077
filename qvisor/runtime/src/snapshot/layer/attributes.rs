//! Attributes of files that go along with a copy.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{self, XattrFlags};
use rustix::io::Errno;
use vmm::jail::MAPPED_COUNT;

/// Attributes of overlayfs that are about one overlay, and mean nothing in another.
const OF_ONE_OVERLAY: [&[u8]; 5] = [b"origin", b"nlink", b"impure", b"uuid", b"upper"];
const OVERLAY: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
const ACCESS_LISTS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// File capabilities (`capabilities(7)`), and the length of their third version.
const CAPABILITY: &[u8] = b"security.capability";
const CAPABILITY_V3: usize = 24;
/// Tags of entries for users and groups by id (`acl(5)`).
const NAMED: [u16; 2] = [0x02, 0x08];
/// Bytes before the entries of such a list, and of each: tag, permissions and id.
const ACL_HEAD: usize = 4;
const ACL_ENTRY: usize = 8;

/// The ids in a copy.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ids {
    AsTheyAre,
    /// Those that are shown as the others by adding so much.
    Without(u32),
    /// So much is added.
    With(u32),
}

impl Ids {
    pub(super) fn of(self, id: u32) -> u32 {
        match self {
            Self::AsTheyAre => id,
            Self::Without(base) => id.checked_sub(base).filter(|inside| *inside < MAPPED_COUNT).unwrap_or(id),
            Self::With(base) => id.checked_add(base).filter(|_| id < MAPPED_COUNT).unwrap_or(id),
        }
    }
}

/// An attribute's name and value.
pub(super) type Attribute = (Vec<u8>, Vec<u8>);

/// The extended attributes of the file at a path, which is not followed, by name; those that are about one overlay are left out.
pub(super) fn of(path: &Path) -> io::Result<Vec<Attribute>> {
    let mut names = vec![0; 4096];
    let len = loop {
        match fs::llistxattr(path, &mut names[..]) {
            Err(Errno::RANGE) => names.resize(names.len() * 4, 0),
            // The file system has none.
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            len => break len?,
        }
    };
    let names = names.get(..len).unwrap_or_default().split(|byte| *byte == 0);
    let mut found = Vec::new();
    for name in names.filter(|name| !name.is_empty() && !is_of_one_overlay(name)) {
        let c_name = CString::new(name)?;
        let mut value = vec![0; 1 << 16];
        match fs::lgetxattr(path, &*c_name, &mut value[..]) {
            Ok(len) => value.truncate(len),
            Err(Errno::NODATA) => continue,
            Err(error) => return Err(error.into()),
        }
        found.push((name.to_owned(), value));
    }
    found.sort();
    Ok(found)
}

fn is_of_one_overlay(name: &[u8]) -> bool {
    OVERLAY.iter().filter_map(|start| name.strip_prefix(*start)).any(|rest| OF_ONE_OVERLAY.contains(&rest))
}

/// Gives them to the file at a path.
pub(super) fn set(path: &Path, attributes: Vec<Attribute>, ids: Ids) -> io::Result<()> {
    for (name, mut value) in attributes {
        if ACCESS_LISTS.contains(&&*name) {
            map_access_list(&mut value, ids);
        }
        if name == CAPABILITY && value.len() == CAPABILITY_V3 {
            // Its last word is the root for whom it counts.
            map_id(value.get_mut(CAPABILITY_V3 - 4..).unwrap_or_default(), ids);
        }
        let c_name = CString::new(&*name)?;
        match fs::lsetxattr(path, &*c_name, &value, XattrFlags::empty()) {
            // Labels are for the host's policy to give.
            Err(_) if name == b"security.selinux" => {}
            result => result
                .map_err(|error| io::Error::other(format!("{}: {error}", String::from_utf8_lossy(&name))))?,
        }
    }
    Ok(())
}

fn map_access_list(list: &mut [u8], ids: Ids) {
    for entry in list.get_mut(ACL_HEAD..).unwrap_or_default().chunks_exact_mut(ACL_ENTRY) {
        if let [a, b, _, _, id @ ..] = entry
            && NAMED.contains(&u16::from_le_bytes([*a, *b]))
        {
            map_id(id, ids);
        }
    }
}

/// Maps an id of four bytes.
fn map_id(bytes: &mut [u8], ids: Ids) {
    if let Ok(bytes) = <&mut [u8; 4]>::try_from(bytes) {
        *bytes = ids.of(u32::from_le_bytes(*bytes)).to_le_bytes();
    }
}

/// A path to an entry of an open directory.
pub(super) fn at(directory: &OwnedFd, name: &OsStr) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_mapping_are_taken_back() {
        let (without, with) = (Ids::Without(1000), Ids::With(1000));
        assert_eq!((Ids::Without(0).of(7), without.of(1007), without.of(7), with.of(7)), (7, 7, 7, 1007));
        assert_eq!(without.of(1000 + MAPPED_COUNT), 1000 + MAPPED_COUNT);
        assert_eq!((with.of(MAPPED_COUNT), with.of(u32::MAX)), (MAPPED_COUNT, u32::MAX));
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[7, 0], &id.to_le_bytes()[..]].concat();
        let list = |ids: [u32; 3]| {
            [&2_u32.to_le_bytes()[..], &entry(1, ids[0]), &entry(2, ids[1]), &entry(8, ids[2])].concat()
        };
        let mut mapped = list([u32::MAX, 1005, 1006]);
        map_access_list(&mut mapped, without);
        assert_eq!(mapped, list([u32::MAX, 5, 6]));
        let mut cut = mapped[..mapped.len() - 3].to_vec();
        map_access_list(&mut cut, without);
        map_access_list(&mut [], without);
    }

    #[test]
    fn what_is_about_one_overlay_is_left_out() {
        assert!(is_of_one_overlay(b"trusted.overlay.origin") && is_of_one_overlay(b"user.overlay.nlink"));
        for kept in
            [&b"trusted.overlay.opaque"[..], b"trusted.overlay.redirect", b"user.overlay.overlay.origin"]
        {
            assert!(!is_of_one_overlay(kept));
        }
    }
}
