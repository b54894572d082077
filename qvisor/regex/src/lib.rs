//! `regex-lite` in the place of `regex`, which oci-spec wants for one pattern of ASCII digits. The tables of Unicode that
//! come with `regex` are full of addresses, so that each sandbox would have a copy of 200 KiB of its own.

pub use regex_lite::*;
