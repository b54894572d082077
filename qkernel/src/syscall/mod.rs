//! System calls: one table, one file a family.

mod attr;
pub mod context;
mod creds;
mod descriptor;
mod dir;
pub mod dispatch;
mod event;
mod futex;
mod jobs;
mod limits;
mod lock;
mod memory;
mod message;
mod mount;
mod names;
mod open;
pub mod poll;
mod prctl;
mod process;
mod rw;
mod sched;
mod signal;
mod socket;
mod splice;
mod stat;
mod system;
pub mod table;
mod time;
mod timer;
mod transfer;
mod unknown;
mod watch;
mod xattr;

pub use dispatch::dispatch;
