//! `regex-lite` in the place of `regex`, which oci-spec needs for one pattern of ASCII digits. The Unicode tables of
//! `regex` are full of addresses that relocation changes, so that each sandbox would have a copy of 200 KiB of its own.

#![warn(missing_docs)]

pub use regex_lite::*;
