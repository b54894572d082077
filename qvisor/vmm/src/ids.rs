//! Ids of a user namespace, and those of the host behind them.
#![deny(unsafe_code)]

/// Ids of a namespace: the `count` ones from `inside` on are those of the host from `host` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    pub inside: u32,
    pub host: u32,
    pub count: u32,
}

/// The ids of a user namespace that a bundle describes: none beyond [`IdMaps::INSIDE_MAX`] inside, and id 0 among them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMaps {
    pub users: Vec<Extent>,
    pub groups: Vec<Extent>,
}

impl IdMaps {
    /// The largest id that they may know inside. The ones above are the VMM's own.
    pub const INSIDE_MAX: u32 = 0x1fff_fffe;
}
