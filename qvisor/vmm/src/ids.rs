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

/// Ids of the host that are VMMs' own. A bundle must not map them.
pub const OWN_IDS: std::ops::RangeInclusive<u32> = 0x5fff_ffff..=0x6040_0000;

impl Extent {
    /// An id of the namespace as the host knows it; `None`: it is not one of these.
    #[must_use]
    pub fn on_the_host(&self, id: u32) -> Option<u32> {
        let at = id.checked_sub(self.inside).filter(|at| *at < self.count)?;
        self.host.checked_add(at)
    }

    /// Whether one of its ids, on the host and moved by `base`, is a VMM's own.
    #[must_use]
    pub fn has_own_ids(&self, base: u32) -> bool {
        let first = u64::from(self.host) + u64::from(base);
        first <= u64::from(*OWN_IDS.end()) && first + u64::from(self.count) > u64::from(*OWN_IDS.start())
    }
}

impl IdMaps {
    /// The largest id that they may know inside. The ones above are the VMM's own.
    pub const INSIDE_MAX: u32 = 0x1fff_fffe;
}
