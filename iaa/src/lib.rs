//! Packing and unpacking on Intel's In-Memory Analytics Accelerator (IAA), by canned DEFLATE (*Sabre*, section 3).
//!
//! A [`Driver`] keeps many jobs in flight on one work queue, which it reaches through a [`Portal`]: [`WritePortal`] asks the
//! kernel, [`MappedPortal`] tells the device itself. A [`QueueEngine`] gives each thread a driver. [`discovery`] finds the queues,
//! and [`open`] opens the best one. Whatever the device cannot do, or does wrongly, is done by the processor, a piece at a time,
//! and counted.
//!
//! There was no such device where this was written. [`SoftwareDevice`] stands for one in the tests: it reads the very bytes of
//! descriptors and tables. Where the bytes' meaning comes from is said at each.

#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::unwrap_used)]

pub mod discovery;
mod driver;
mod engine;
mod job;
pub mod layout;
mod memory;
mod open;
mod portal;
mod software_device;
mod work;

pub use driver::Driver;
pub use engine::QueueEngine;
pub use memory::Shared;
pub use open::{Unusable, open};
pub use portal::{MappedPortal, Portal, Submitted, WritePortal};
pub use software_device::{Fate, Seen, SoftwareDevice};
pub use work::{Counters, Settings};
