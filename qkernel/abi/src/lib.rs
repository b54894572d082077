//! The interface between the kernel (`qkernel`) and the VMM (`qvisor`).
//!
//! Every type that crosses the border is `#[repr(C)]`, has no padding the compiler chose, and its size and the
//! offset of each field are pinned at compile time. The VMM treats all of it as hostile: it copies a request out of
//! shared memory once, checks the copy, and never reads the original again.
#![no_std]
#![warn(missing_docs)]
#![warn(clippy::too_many_lines)]

/// Pins a struct's size and the offsets of all its fields, in bytes.
macro_rules! pin_layout {
    ($name:ident, $size:literal, $($field:ident: $offset:literal),+ $(,)?) => {
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $offset);)+
            // A field that is not named does not compile.
            let _ = |value: &$name| {
                let $name { $($field: _),+ } = value;
            };
        };
    };
}

pub mod address;
pub mod boot;
pub mod hostcall;
pub mod kvm;
pub mod layout;
pub mod limits;
pub mod mount;
pub mod records;
pub mod report;
pub mod run;
pub mod seccomp;
pub mod socket;
pub mod stats;
pub mod sysctl;
pub mod word;

pub use hostcall::HostCall;
pub use layout::{PAGE_BYTES, PAGE_SHIFT, PAGE_SIZE};

/// Version of this interface; the VMM refuses a kernel built with another one.
pub const ABI_VERSION: u32 = 7;
