//! How much the users of the reader's container may watch: `/proc/sys/fs/inotify`.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;

use crate::fs::notify::limits::store;
use crate::pseudo::{Entry, parse_number};
use crate::task::container;

/// A file that shows and changes a limit.
macro_rules! limit {
    ($name:literal, $field:ident) => {
        Entry::setting(
            $name,
            |_, out| {
                let value = container::current().inotify.$field.load(Ordering::Relaxed);
                out.push(alloc::format!("{value}\n").as_bytes());
                Ok(())
            },
            |_, bytes| store(&container::current().inotify.$field, parse_number(bytes)?),
        )
    };
}

/// The settings, for whatever the entries around them are about.
pub(super) struct Settings<C>(PhantomData<C>);

impl<C: 'static> Settings<C> {
    /// The directory.
    pub(super) const TABLE: &'static [Entry<C>] = &[
        limit!("max_queued_events", events),
        limit!("max_user_instances", instances),
        limit!("max_user_watches", watches),
    ];
}
