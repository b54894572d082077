//! Arguments that every family of calls has: handles, and names.

use std::ffi::CStr;

use abi::hostcall::NO_HANDLE;

use crate::errno::Errno;

/// A handle as the guest gave it; whether it exists is for the file table to say.
pub type Handle = u32;

/// A zero-terminated string with room for `N` bytes of text, kept in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

/// One component of a path: not empty, no `/`, no NUL, neither `.` nor `..`, at most 255 bytes.
pub type Name = Text<256>;

impl<const N: usize> Text<N> {
    pub(super) fn new(text: &[u8]) -> Result<Self, Errno> {
        let mut bytes = [0; N];
        match bytes.get_mut(..text.len()) {
            Some(room) if text.len() < N => room.copy_from_slice(text),
            _ => return Err(Errno(libc::ENAMETOOLONG)),
        }
        if text.contains(&0) {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Self { bytes, len: text.len() })
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    #[must_use]
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl<const N: usize> std::fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_c_str())
    }
}

/// Components of paths, each ended by NUL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names(Vec<u8>);

impl Names {
    /// Checks that there are so many, and nothing else.
    pub(super) fn new(bytes: Vec<u8>, count: u64) -> Result<Self, Errno> {
        let names = Self(bytes);
        let mut found = 0;
        for name in names.each() {
            match name.to_bytes() {
                [] => return Err(Errno(libc::ENOENT)),
                name => component(name).map(drop)?,
            }
            found += 1;
        }
        if found == count && names.0.last() == Some(&0) { Ok(names) } else { Err(Errno(libc::EINVAL)) }
    }

    pub fn each(&self) -> impl Iterator<Item = &CStr> {
        self.0.split_inclusive(|byte| *byte == 0).filter_map(|name| CStr::from_bytes_with_nul(name).ok())
    }
}

/// Checks a handle's number.
pub(super) fn handle(arg: u64) -> Result<Handle, Errno> {
    match u32::try_from(arg) {
        Ok(handle) if handle != NO_HANDLE => Ok(handle),
        _ => Err(Errno(libc::EBADF)),
    }
}

/// Checks one component of a path.
pub(super) fn component(bytes: &[u8]) -> Result<Name, Errno> {
    if bytes == b"." || bytes == b".." || bytes.contains(&b'/') {
        return Err(Errno(libc::EINVAL));
    }
    Text::new(bytes)
}
