//! Families of Internet addresses.

pub const AF_INET: u16 = 2;
pub const AF_INET6: u16 = 10;
