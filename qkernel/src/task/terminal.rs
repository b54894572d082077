//! A session's terminal.

use alloc::boxed::Box;
use machine::errno::Result;

use crate::fs::file::{FileOps, OpenFlags};

/// A terminal as job control sees it.
pub trait Terminal: Send + Sync {
    /// The foreground process group (0: none).
    fn foreground(&self) -> u32;
    /// Makes a group the foreground one.
    fn set_foreground(&self, group: u32);
    /// Its screen has a new size.
    fn resize(&self, rows: u16, columns: u16);
    /// The session whose terminal it was is gone.
    fn left(&self) {}
    /// The container whose console it is has ended.
    fn container_ended(&self) {}
    /// Its device number, for `/proc/PID/stat`.
    fn device(&self) -> u64;
    /// Opens it (`/dev/tty`).
    fn open(&self, flags: OpenFlags) -> Result<Box<dyn FileOps>>;
}
