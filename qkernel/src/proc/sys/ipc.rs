//! The limits of the reader's IPC namespace: some of `/proc/sys/kernel`, and `/proc/sys/fs/mqueue`.

use core::marker::PhantomData;

use crate::creds::{CAP_CHECKPOINT_RESTORE, CAP_SYS_ADMIN};
use crate::pseudo::Entry;
use crate::task;
use crate::task::container;
use machine::errno::Errno;

/// A file that shows and changes a limit.
macro_rules! limit {
    ($name:literal, $path:literal) => {
        Entry::setting(
            $name,
            |_, out| {
                let text = container::current().ipc().setting($path).ok_or(Errno::ENOENT)?;
                out.push(text.as_bytes());
                Ok(())
            },
            |_, bytes| container::current().ipc().set($path, bytes),
        )
    };
}

/// A file that shows and changes the id of the next object.
macro_rules! next_id {
    ($name:literal, $path:literal) => {
        Entry::setting(
            $name,
            |_, out| {
                let text = container::current().ipc().setting($path).ok_or(Errno::ENOENT)?;
                out.push(text.as_bytes());
                Ok(())
            },
            |_, bytes| {
                let creds = task::current().creds.get();
                if !creds.has(CAP_SYS_ADMIN) && !creds.has(CAP_CHECKPOINT_RESTORE) {
                    return Err(Errno::EPERM);
                }
                container::current().ipc().set($path, bytes)
            },
        )
    };
}

/// The settings, for whatever the entries around them are about.
pub(super) struct Settings<C>(PhantomData<C>);

impl<C: 'static> Settings<C> {
    pub(super) const MSGMAX: Entry<C> = limit!("msgmax", "kernel/msgmax");
    pub(super) const MSGMNB: Entry<C> = limit!("msgmnb", "kernel/msgmnb");
    pub(super) const MSGMNI: Entry<C> = limit!("msgmni", "kernel/msgmni");
    pub(super) const MSG_NEXT_ID: Entry<C> = next_id!("msg_next_id", "kernel/msg_next_id");
    pub(super) const SEM: Entry<C> = limit!("sem", "kernel/sem");
    pub(super) const SEM_NEXT_ID: Entry<C> = next_id!("sem_next_id", "kernel/sem_next_id");
    pub(super) const SHMALL: Entry<C> = limit!("shmall", "kernel/shmall");
    pub(super) const SHMMAX: Entry<C> = limit!("shmmax", "kernel/shmmax");
    pub(super) const SHMMNI: Entry<C> = limit!("shmmni", "kernel/shmmni");
    pub(super) const SHM_NEXT_ID: Entry<C> = next_id!("shm_next_id", "kernel/shm_next_id");
    pub(super) const SHM_RMID_FORCED: Entry<C> = limit!("shm_rmid_forced", "kernel/shm_rmid_forced");

    /// `/proc/sys/fs/mqueue`.
    pub(super) const MQUEUE: &'static [Entry<C>] = &[
        limit!("msg_default", "fs/mqueue/msg_default"),
        limit!("msg_max", "fs/mqueue/msg_max"),
        limit!("msgsize_default", "fs/mqueue/msgsize_default"),
        limit!("msgsize_max", "fs/mqueue/msgsize_max"),
        limit!("queues_max", "fs/mqueue/queues_max"),
    ];
}
