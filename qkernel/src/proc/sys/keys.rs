//! How many keys users may have: `/proc/sys/kernel/keys`.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use crate::pseudo::{Entry, parse_number};
use crate::task::container;
use machine::errno::Errno;

/// A file that shows and changes a limit.
macro_rules! limit {
    ($name:literal, $field:ident) => {
        Entry::setting(
            $name,
            |_, out| {
                let value = container::current().keys.quotas.limits.$field.load(Ordering::Relaxed);
                out.push(alloc::format!("{value}\n").as_bytes());
                Ok(())
            },
            |_, bytes| {
                let value = i32::try_from(parse_number(bytes)?).map_err(|_| Errno::EINVAL)?;
                let value = u32::try_from(value).map_err(|_| Errno::EINVAL)?;
                container::current().keys.quotas.limits.$field.store(value, Ordering::Relaxed);
                Ok(())
            },
        )
    };
}

/// The settings, for whatever the entries around them are about.
pub(super) struct Settings<C>(PhantomData<C>);

impl<C: 'static> Settings<C> {
    /// The directory.
    pub(super) const TABLE: &'static [Entry<C>] = &[
        limit!("gc_delay", gc_delay),
        limit!("maxbytes", bytes),
        limit!("maxkeys", keys),
        limit!("persistent_keyring_expiry", persistent_seconds),
        limit!("root_maxbytes", root_bytes),
        limit!("root_maxkeys", root_keys),
    ];
}
