//! Events of watched files.

use bitflags::bitflags;

bitflags! {
    /// Events, and how they are asked for: `IN_*`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Mask: u32 {
        const ACCESS = 0x1;
        const MODIFY = 0x2;
        const ATTRIB = 0x4;
        const CLOSE_WRITE = 0x8;
        const CLOSE_NOWRITE = 0x10;
        const OPEN = 0x20;
        const MOVED_FROM = 0x40;
        const MOVED_TO = 0x80;
        const CREATE = 0x100;
        const DELETE = 0x200;
        const DELETE_SELF = 0x400;
        const MOVE_SELF = 0x800;
        const UNMOUNT = 0x2000;
        const OVERFLOW = 0x4000;
        const IGNORED = 0x8000;
        const ONLY_DIR = 0x0100_0000;
        const DONT_FOLLOW = 0x0200_0000;
        const EXCL_UNLINK = 0x0400_0000;
        const MASK_CREATE = 0x1000_0000;
        const MASK_ADD = 0x2000_0000;
        const IS_DIR = 0x4000_0000;
        const ONE_SHOT = 0x8000_0000;
    }
}

impl Mask {
    /// The events that a watch can ask for.
    pub const EVENTS: Self = Self::from_bits_truncate(0xfff);
    /// Events of what programs do with a file that they have opened.
    pub const OF_OPEN_FILES: Self = Self::ACCESS
        .union(Self::MODIFY)
        .union(Self::CLOSE_WRITE)
        .union(Self::CLOSE_NOWRITE)
        .union(Self::OPEN);
    /// The flags of a request that a watch keeps.
    pub const KEPT: Self = Self::EVENTS.union(Self::EXCL_UNLINK).union(Self::ONE_SHOT);
}

/// An event of a node, as each of its watches is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    pub mask: Mask,
    /// The number that the two events of a rename have in common; 0 for other events.
    pub cookie: u32,
    /// In a watched directory, whose event it is. Empty: the watched node's own.
    pub name: &'a [u8],
    /// The name is one that was removed.
    pub is_unlinked: bool,
    /// If the host watches the node, it tells of this as well.
    pub by_host: bool,
}

impl Event<'_> {
    /// An event of the watched node itself.
    pub fn own(mask: Mask) -> Self {
        Self { mask, cookie: 0, name: b"", is_unlinked: false, by_host: false }
    }
}
