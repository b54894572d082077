//! Flags and protections of mappings.

use abi::word::low32;

use machine::errno::{Errno, Result};
use machine::mm::map::Placement;
use machine::mm::{MapFlags, Prot, UserAddr};

/// `flags` of `mmap(2)`. As on Linux, those without a meaning are ignored with the old types of mappings, `MAP_SHARED` and
/// `MAP_PRIVATE`; `MAP_SHARED_VALIDATE` is for files, and refuses what came after it (`MAP_SYNC` among them).
pub(super) fn map_flags(flags: u64) -> Result<MapFlags> {
    const SHARED_VALIDATE: u64 = 3;
    const ANONYMOUS: u64 = 0x20;
    /// `LEGACY_MAP_MASK`.
    const OLD: u64 = 0x7c07_f9f3;
    match flags & 0xf {
        1 | 2 => Ok(MapFlags::from_bits_truncate(low32(flags))),
        SHARED_VALIDATE if flags & ANONYMOUS != 0 => Err(Errno::EINVAL),
        SHARED_VALIDATE if flags & !OLD != 0 => Err(Errno::EOPNOTSUPP),
        SHARED_VALIDATE => Ok(MapFlags::from_bits_truncate(low32(flags))),
        _ => Err(Errno::EINVAL),
    }
}

pub(super) fn placement(addr: UserAddr, flags: MapFlags) -> Placement {
    let addr = addr.get();
    if flags.contains(MapFlags::FIXED_NOREPLACE) {
        Placement::FixedNoReplace(addr)
    } else if flags.contains(MapFlags::FIXED) {
        Placement::Fixed(addr)
    } else if flags.contains(MapFlags::BIT32) {
        Placement::Low(addr)
    } else {
        Placement::Hint(addr)
    }
}

/// `prot` of `mprotect(2)`, an `unsigned long`, and whether the mapping's growth is protected too.
pub(super) fn protection(prot: u64) -> Result<(Prot, bool)> {
    const GROWSDOWN: u32 = 0x0100_0000;
    let prot = u32::try_from(prot).map_err(|_| Errno::EINVAL)?;
    let known = Prot::from_bits(prot & !GROWSDOWN).ok_or(Errno::EINVAL)?;
    Ok((known, prot & GROWSDOWN != 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_beyond_32_bits_are_not_cut_off() {
        assert_eq!(protection(3), Ok((Prot::READ | Prot::WRITE, false)));
        assert_eq!(protection(0x0100_0001), Ok((Prot::READ, true)));
        assert_eq!(protection(1 << 32 | 3), Err(Errno::EINVAL));
        assert_eq!(map_flags(1 << 40 | 0x22), Ok(MapFlags::PRIVATE | MapFlags::ANONYMOUS));
        assert_eq!(map_flags(1 << 40 | 3), Err(Errno::EOPNOTSUPP));
    }

    #[test]
    fn a_validated_mapping_refuses_what_it_does_not_know() {
        let shared = MapFlags::SHARED | MapFlags::PRIVATE;
        assert_eq!(map_flags(3), Ok(shared));
        assert_eq!(map_flags(0x8003), Ok(shared | MapFlags::POPULATE));
        for newer in [MapFlags::SYNC, MapFlags::FIXED_NOREPLACE] {
            assert_eq!(map_flags(u64::from(newer.bits()) | 3), Err(Errno::EOPNOTSUPP));
            assert_eq!(map_flags(u64::from(newer.bits()) | 1), Ok(newer | MapFlags::SHARED));
        }
        assert_eq!(map_flags(0x23), Err(Errno::EINVAL));
        assert!([0, 4, 0x10, 0xf].into_iter().all(|kind| map_flags(kind) == Err(Errno::EINVAL)));
    }
}
